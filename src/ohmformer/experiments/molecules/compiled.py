"""The Graph Transformer's layers by ``affine.c`` and ``attention.c``, for who asks for compiled code, and their gradients.

Same layers, same numbers up to rounding. What is fast about it beyond :mod:`.graph_transformer`: products
run at nearly the machine's speed and take a batch norm and a sum along, so that arrays are read and written once; attention
never leaves the registers, and is computed again on the way back instead of kept.

It takes float32 on the CPU, widths that are multiples of 32, heads of 4, 8 or 16 columns. Under ``torch.autocast`` to
bfloat16 what enters products and attention is rounded, and nearly twice as fast on machines that multiply such numbers;
sums are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ohmformer import native
from ohmformer.experiments.molecules.norm import ResidualNorm, over_all_rows, over_processes

if TYPE_CHECKING:
    from ohmformer.experiments.molecules.batches import Batch
    from ohmformer.experiments.molecules.graph_transformer import _MLP, GraphTransformerLayer

PANEL, HEADS = 32, (4, 8, 16)
"""What the source is written for: divisors of widths, and widths of heads."""


def takes(h: Float[Tensor, "nodes width"], heads: int) -> bool:
    """Whether compiled code is there and written for this."""
    width = h.shape[1]
    there = native.library() is not None and h.device.type == "cpu" and h.dtype == torch.float32
    return there and width % PANEL == 0 and width // heads in HEADS and _rounding() in (None, torch.bfloat16)


def _rounding() -> torch.dtype | None:
    """What products are rounded to: what autocast says, None without it."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


def run(
    layers: list[GraphTransformerLayer], h: Float[Tensor, "nodes width"], e: Tensor, seen: Tensor, batch: Batch
) -> Float[Tensor, "nodes width"]:
    """H after all layers; ``seen`` is what the first one sees of e."""
    weights = [p for layer in layers for p in layer.parameters()]
    return _Layers.apply(h, e, seen, batch, layers, _rounding() is not None, *weights)  # pyright: ignore[reportReturnType]


@dataclass
class _Rows:
    """Rows as they were before a norm, and what the norm does to them: nothing, or ``x scale + shift``."""

    x: Tensor
    norm: ResidualNorm | None = None
    scale: Tensor | None = None
    shift: Tensor | None = None
    mean: Tensor | None = None
    inverse: Tensor | None = None
    """One over the spread."""
    count: float = 0.0
    """Rows that mean and spread were measured on; zero where they are the norm's running ones."""
    sums: Tensor | None = None
    """Of the gradient after the norm, as it is and times ``x - mean``; over rows."""

    def normed(self) -> Tensor:
        """The rows after the norm."""
        return self.x if self.shift is None or self.scale is None else torch.addcmul(self.shift, self.x, self.scale)


class _Layers(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h: Tensor, e: Tensor, seen: Tensor, batch: Batch, layers: list[GraphTransformerLayer], half: bool,
        *weights: Tensor,
    ) -> Tensor:  # fmt: skip
        graph = _Graph.of(batch)
        node, edge = _Rows(h.contiguous()), _Rows(e.contiguous())
        ctx.layers, ctx.weights = [], weights
        for l, layer in enumerate(layers):
            done = _Layer(layer, graph, node, edge, seen if l == 0 else None, half)
            node, edge = done.node.after, done.edge.after if done.edge else edge
            ctx.layers.append(done)
        return node.normed()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        layers: list[_Layer] | None = ctx.layers
        if layers is None:
            raise RuntimeError("expected one backward pass, got a second, after what it needs is gone")
        ctx.layers = None
        g_node, g_edge, g_seen = gradients[0].contiguous(), None, None
        last = layers[-1].node.after
        assert last.mean is not None
        last.sums = torch.stack([g_node.sum(0), torch.mul(g_node, last.x - last.mean).sum(0)])
        found: dict[Tensor, Tensor] = {}
        with native.used():
            while layers:
                g_node, g_edge, g_seen = layers.pop().backward(g_node, g_edge, found)
        # popped, so that autograd, seeing that nobody else holds them, keeps them without a copy
        return g_node, g_edge, g_seen, None, None, None, *(found.pop(p, None) for p in ctx.weights)


@dataclass(frozen=True)
class _Graph:
    """A batch as the source reads it: where nodes of molecules and edges to nodes begin, and where the last end."""

    first_node: Tensor
    first_edge: Tensor
    source: Tensor

    @classmethod
    def of(cls, batch: Batch) -> _Graph:
        edges = batch.first_edge.new_tensor([len(batch.source)])
        first_node = torch.cat([batch.sizes.new_zeros(1), batch.sizes.cumsum(0)])
        return cls(first_node, torch.cat([batch.first_edge, edges]), batch.source.contiguous())


class _Layer:
    """One layer on a batch: what it makes of nodes and edges, and the way back; the first is told what it sees of e."""

    def __init__(
        self, layer: GraphTransformerLayer, graph: _Graph, node: _Rows, edge: _Rows, seen: Tensor | None, half: bool
    ) -> None:
        self.layer, self.graph, self.half, self.before, self.told = layer, graph, half, (node, edge), seen is not None
        kept = _kept(half)
        self.qkv = _affine(node, layer.qkv, half)
        self.seen = _affine(edge, layer.edge, half) if seen is None else _Rows(seen.to(kept).contiguous())
        width = node.x.shape[1]
        self.shape = width, width // layer.heads, int(half), (width // layer.heads) ** -0.5
        mixed, w = torch.empty_like(node.x, dtype=kept), None if layer.last else torch.empty_like(edge.x, dtype=kept)
        arrays = graph.first_edge, graph.source, self.qkv.x, self.seen.x, mixed, w
        native.call("ohm_attend", len(mixed), *self.shape, *arrays)
        self.node = _Update(_Rows(mixed), node, layer.out, layer.norm, layer.mlp, layer.mlp_norm, half)
        self.edge = None
        if w is not None:
            maps = layer.edge_out, layer.edge_norm, layer.edge_mlp, layer.edge_mlp_norm
            self.edge = _Update(_Rows(w), edge, *maps, half)

    def backward(
        self, g_node: Tensor, g_edge: Tensor | None, found: dict[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Gradients of h and e before the layer and of what it sees of e; those of weights are put into ``found``."""
        layer, graph, (node, edge) = self.layer, self.graph, self.before
        g_mixed, g_node = self.node.backward(g_node, found)
        g_w = None
        if self.edge is not None:
            assert g_edge is not None
            g_w, g_edge = self.edge.backward(g_edge, found)
        g_qkv, g_seen = torch.empty_like(self.qkv.x), torch.empty_like(self.seen.x)
        arrays = graph.first_edge, graph.source, self.qkv.x, self.seen.x, graph.first_node, g_mixed, g_w, g_qkv, g_seen
        native.call("ohm_attend_backward", len(graph.first_node) - 1, *self.shape, *arrays)
        g_node, _ = _affine_backward(g_qkv, self.qkv, node, layer.qkv, self.half, found, more=g_node)
        if self.told:
            return g_node, g_edge, g_seen.to(g_node.dtype)
        g_edge, _ = _affine_backward(g_seen, self.seen, edge, layer.edge, self.half, found, more=g_edge)
        return g_node, g_edge, g_seen


class _Update:
    """``r <- norm(r + O x)``, then ``norm(r + MLP(r))``."""

    def __init__(
        self, x: _Rows, r: _Rows, out: nn.Linear, norm: ResidualNorm, mlp: _MLP, mlp_norm: ResidualNorm, half: bool
    ) -> None:
        self.x, self.out, self.mlp, self.half = x, out, mlp, half
        self.middle = _affine(x, out, half, residual=r, norm=norm)
        z, width = self.middle, self.middle.x.shape[1]
        self.inner, y = torch.empty_like(z.x), torch.empty_like(z.x)
        measured = _room_to_measure(mlp_norm)
        arrays = z.x, z.scale, z.shift, mlp.up.weight, mlp.up.bias, mlp.down.weight, mlp.down.bias, self.inner, y, *measured
        native.call("ohm_mlp", len(y), width, int(half), *arrays)
        self.after = _before_norm(y, mlp_norm, *measured)

    def backward(self, g: Tensor, found: dict[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Gradients of x and r."""
        up, down, z, y = self.mlp.up, self.mlp.down, self.middle, self.after
        g_middle, width = torch.empty_like(g), g.shape[1]
        results = g.new_empty(2 * width + 4, width)
        arrays = self.inner, z.x, z.scale, z.shift, z.mean, up.weight, down.weight, g_middle, results
        native.call("ohm_mlp_backward", len(g), width, int(self.half), g, y.x, *_norm_backward(y, found), *arrays)
        found[up.weight], found[down.weight], found[up.bias], found[down.bias], z.sums = (
            x.squeeze(0) for x in results.split([width, width, 1, 1, 2])
        )
        return _affine_backward(g_middle, self.middle, self.x, self.out, self.half, found)


def _kept(half: bool) -> torch.dtype:
    """As what numbers are kept that enter attention or leave it: as they enter products, if there are pairs of them."""
    library = native.library()
    assert library is not None
    return torch.bfloat16 if half and library.ohm_pair() == 2 else torch.float32


def _affine(
    x: _Rows, map: nn.Linear, half: bool, *, residual: _Rows | None = None, norm: ResidualNorm | None = None
) -> _Rows:
    """``W x + b``, into attention; or, out of it, the sum with a residual, before a norm that is measured on the way."""
    y = torch.empty(len(x.x), map.out_features, dtype=torch.float32 if residual else _kept(half))
    measured = _room_to_measure(norm)
    arrays = [x.x, x.scale, x.shift, map.weight, map.bias]
    arrays += [residual.x, residual.scale, residual.shift] if residual else [None] * 3
    native.call("ohm_affine", len(y), map.in_features, map.out_features, int(half), *arrays, y, *measured)
    return _Rows(y) if norm is None else _before_norm(y, norm, *measured)


def _room_to_measure(norm: ResidualNorm | None) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """For mean and squared deviations of rows, if a norm wants them."""
    if norm is None or not norm.training:
        return None, None
    return torch.empty_like(norm.weight), torch.empty_like(norm.weight)


def _before_norm(y: Tensor, norm: ResidualNorm, mean: Tensor | None, squares: Tensor | None) -> _Rows:
    """Rows that are to be normalised, by what was measured or by running statistics."""
    scale, shift, inverse = torch.empty(3, y.shape[1]).unbind()
    if mean is None or squares is None:
        running, count, momentum = (None, None), 0.0, 0.0
        mean, squares = norm.running_mean, norm.running_var
    else:
        mean, squares, count = over_all_rows(mean, squares, len(y))
        momentum = norm.momentum_of(count)
        running = norm.running_mean, norm.running_var
    arrays = mean, squares, norm.weight, norm.bias, *running, scale, shift, inverse
    native.call("ohm_norm", y.shape[1], count or 1.0, norm.eps, momentum, *arrays)
    return _Rows(y, norm, scale, shift, mean, inverse, count)


def _affine_backward(
    g: Tensor, y: _Rows, x: _Rows, map: nn.Linear, half: bool, found: dict[Tensor, Tensor], more: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The gradient of x, to which ``more`` is added, and that of y before its norm; of the weights, into ``found``."""
    coefficients, kept = (_norm_backward(y, found), torch.empty_like(g)) if y.norm is not None else ([None] * 3, None)
    g_x = torch.empty_like(x.x)
    found[map.weight], found[map.bias] = torch.empty_like(map.weight), torch.empty_like(map.bias)
    x.sums = g_x.new_empty(2, g_x.shape[1]) if x.norm is not None else None
    arrays = [g, y.x, *coefficients, x.x, x.scale, x.shift, x.mean, map.weight, more, kept, g_x]
    arrays += [found[map.weight], found[map.bias], x.sums]
    native.call("ohm_affine_backward", len(g), map.in_features, map.out_features, int(half), *arrays)
    return g_x, g if kept is None else kept


def _norm_backward(y: _Rows, found: dict[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """By what the gradient after a norm is multiplied, by what the rows are, and what is added: the gradient before it."""
    assert y.norm is not None
    assert y.sums is not None
    assert y.scale is not None
    width = len(y.scale)
    g_weight, slope, shift = torch.empty(3, width).unbind()
    everywhere = over_processes(y.sums.clone()) if y.count else y.sums
    arrays = y.sums, everywhere, y.scale, y.inverse, y.mean, g_weight, slope, shift
    native.call("ohm_norm_backward", width, y.count, *arrays)
    found[y.norm.weight], found[y.norm.bias] = g_weight, y.sums[0]
    return y.scale, slope, shift
