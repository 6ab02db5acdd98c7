"""The layers of appendix E (equation ``e:z_dynamics_molecule``), on blocks of small graphs and on large sparse ones.

One layer, with ``N = D^-1/2 B B^T D^-1/2`` and ``K = Phi W_Q W_K Phi^T``::

    B   <- (1 + alpha_R) B + alpha_V (beta_1 alpha_QK N + beta_2 K) B          then B / |B|_F
    Phi <- (1 + w_R) Phi   + (beta_3 alpha_QK N + beta_4 K) Phi W_V            then every column / its norm

W_V, W_Q and W_K are diagonal: one number per channel. A channel is one column of Phi, or several columns that share weights
and one norm (the ``diagonal`` start has one column per node in every channel).

Phi is held transposed, ``(graphs, columns, nodes)``, which is what small batched products like best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import embedding_bag

TINY = 1e-12
"""Added to squared norms: a state that vanishes stays zero, and its gradient finite."""


@dataclass(frozen=True)
class Layer:
    """The weights of one layer, scalars multiplied out: numbers, or 0-dimensional tensors that are being differentiated."""

    b_skip: Any
    """``1 + alpha_R``."""
    b_gram: Any
    """``alpha_V beta_1 alpha_QK``, on N in the update of B."""
    b_phi: Any
    """``alpha_V beta_2``, on K in the update of B."""
    skip: Any
    """``1 + w_R``."""
    gram: Any
    """``beta_3 alpha_QK``, on N in the update of Phi."""
    phi: Any
    """``beta_4``, on K in the update of Phi."""
    value: Float[Tensor, " channels"]
    """The diagonal of W_V."""
    product: Float[Tensor, " channels"]
    """The diagonal of W_Q W_K."""


def unit(phi: Float[Tensor, "graphs columns nodes"], channels: int) -> Float[Tensor, "graphs columns nodes"]:
    """Every channel divided by its norm."""
    grouped = phi.reshape(phi.shape[0], channels, -1) if phi.shape[1] != channels else phi
    scale = grouped.square().sum(-1, keepdim=True).add(TINY).rsqrt()
    return (grouped * scale).view_as(phi)


def inverse_root(degree: Tensor, floor: float = 0.0) -> Tensor:
    """``degree^-1/2``, zero where the degree does not exceed ``floor``."""
    real = degree > floor
    return torch.where(real, torch.where(real, degree, 1.0).rsqrt(), 0.0)


# ---------------------------------------------------------------------------------------------------- B fixed, small graphs


def fixed_layers(
    seen: Float[Tensor, "graphs width width"],
    phi: Float[Tensor, "graphs columns width"],
    layers: Sequence[Layer],
    after_first: Float[Tensor, " graphs"] | None = None,
) -> Float[Tensor, "graphs columns width"]:
    """Phi after all layers, where B stays what it is: ``Phi <- skip Phi + (gram N + phi K) Phi W_V``, two products a layer.

    ``after_first`` scales N from the second layer on, as B's normalisation does under l1 degrees.
    """
    for l, layer in enumerate(layers):
        if l == 1 and after_first is not None:
            seen = seen * after_first[:, None, None]
        similarity = _plus(seen, layer.gram, (phi * _column(layer.product * layer.phi, phi)).mT, phi)
        phi = _plus(phi, layer.skip, phi * _column(layer.value, phi), similarity)
        phi = unit(phi, len(layer.value))
    return phi


def _column(weight: Float[Tensor, " channels"], phi: Tensor) -> Float[Tensor, "columns 1"]:
    """A channel's weight for each of its columns."""
    repeats = phi.shape[1] // len(weight)
    return (weight if repeats == 1 else weight.repeat_interleave(repeats))[:, None]


def _plus(base: Tensor, scale: Any, a: Tensor, b: Tensor) -> Tensor:
    """``scale base + a b``."""
    if isinstance(scale, float):
        return torch.baddbmm(base, a, b, beta=scale)
    return torch.baddbmm(base * scale, a, b)


def _sum(x: Tensor, a: Any, y: Tensor, b: Any) -> Tensor:
    """``a x + b y``."""
    return torch.mul(y, b).add_(x, alpha=a) if isinstance(a, float) else x * a + y * b


# ---------------------------------------------------------------------------------------------------- B evolving


class GramState:
    """B as ``G = B B^T``: no edge axis. The degrees of D are the diagonal of G."""

    def __init__(self, seen: Float[Tensor, "graphs width width"], degree: Float[Tensor, "graphs width"]) -> None:
        share = degree / degree.sum(1, keepdim=True).clamp(min=TINY)
        root = share * inverse_root(share)  # the square root, whose gradient at zero is finite this way
        self.gram = root[:, :, None] * seen * root[:, None, :]
        self.seen = seen

    def move(self, mover: Float[Tensor, "graphs width width"]) -> None:
        """``G <- A G A / trace``. By Cauchy and Schwarz no entry of N exceeds 1; rounding is clipped to that."""
        gram = mover @ self.gram @ mover
        scale = (gram.diagonal(dim1=1, dim2=2).sum(1) + TINY).reciprocal()[:, None, None]
        self.gram = gram * scale if gram.requires_grad else gram.mul_(scale)
        root = inverse_root(self.gram.diagonal(dim1=1, dim2=2), TINY)
        seen = self.gram * root[:, :, None]
        if seen.requires_grad:
            self.seen = (seen * root[:, None, :]).clamp(-1, 1)
        else:
            self.seen = seen.mul_(root[:, None, :]).clamp_(-1, 1)


class IncidenceState:
    """B itself, for the paper's degrees ``D_ii = sum_j |B_ij|``, which a Gram matrix does not know."""

    def __init__(self, incidence: Float[Tensor, "graphs width edges"]) -> None:
        self.incidence = incidence
        self.seen = self._seen()

    def _seen(self) -> Float[Tensor, "graphs width width"]:
        half = self.incidence * inverse_root(self.incidence.abs().sum(2), TINY)[:, :, None]
        return half @ half.mT

    def move(self, mover: Float[Tensor, "graphs width width"]) -> None:
        """``B <- A B / |A B|_F``."""
        moved = mover @ self.incidence
        size = moved.square().sum(dim=(1, 2)).add(TINY).rsqrt()
        self.incidence = moved * size[:, None, None]
        self.seen = self._seen()


def evolving_layers(
    state: GramState | IncidenceState, phi: Float[Tensor, "graphs columns width"], layers: Sequence[Layer]
) -> Float[Tensor, "graphs columns width"]:
    """Phi after all layers, with B moved by every layer but the last, whose B nobody reads."""
    for l, layer in enumerate(layers):
        seen = state.seen
        similarity = torch.bmm((phi * _column(layer.product, phi)).mT, phi)
        if l + 1 < len(layers):
            mover = _sum(seen, layer.b_gram, similarity, layer.b_phi)
            if isinstance(layer.b_skip, float):
                mover.diagonal(dim1=1, dim2=2).add_(layer.b_skip)
            else:
                mover = mover + layer.b_skip * torch.eye(seen.shape[1], dtype=seen.dtype, device=seen.device)
            state.move(mover)
        similarity = _sum(seen, layer.gram, similarity, layer.phi)
        phi = unit(_plus(phi, layer.skip, phi * _column(layer.value, phi), similarity), len(layer.value))
    return phi


# ---------------------------------------------------------------------------------------------------- B fixed, large graphs

CHUNK = 64
"""Rows of Phi whose part in ``Phi^T Phi`` is taken together."""


@dataclass(frozen=True)
class SparseGraphs:
    """Large graphs as one block-diagonal N in CSR, every graph's rows padded to whole chunks."""

    start: Int[Tensor, " rows"]
    column: Int[Tensor, " entries"]
    value: Float[Tensor, " entries"]
    row_of: Int[Tensor, " entries"] | None
    """The row of every entry, where gradients of the values are wanted."""
    chunk_graph: Int[Tensor, " chunks"]
    """The graph that each chunk belongs to."""
    graphs: int

    def times(self, phi: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows columns"]:
        """``N Phi``, a sum of weighted rows for every row."""
        return _SymmetricProduct.apply(phi, self.value, self)  # pyright: ignore[reportReturnType]

    def sum_over_graphs(self, x: Tensor) -> Tensor:
        """``(chunks, ...)`` added up to ``(graphs, ...)``."""
        if self.graphs == 1:
            return x.sum(0, keepdim=True)
        return x.new_zeros(self.graphs, *x.shape[1:]).index_add(0, self.chunk_graph, x)


class _SymmetricProduct(torch.autograd.Function):
    """``N Phi``; as N is symmetric the gradient of Phi is ``N`` times the gradient."""

    @staticmethod
    def forward(ctx: Any, phi: Tensor, value: Tensor, graphs: SparseGraphs) -> Tensor:
        ctx.graphs = graphs
        ctx.save_for_backward(phi, value)
        return embedding_bag(graphs.column, phi, graphs.start, mode="sum", per_sample_weights=value)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        phi, value = ctx.saved_tensors
        g, graphs = gradients[0].contiguous(), ctx.graphs
        back = embedding_bag(graphs.column, g, graphs.start, mode="sum", per_sample_weights=value)
        if not ctx.needs_input_grad[1]:
            return back, None, None
        return back, (g[graphs.row_of] * phi[graphs.column]).sum(1), None


def sparse_layers(
    graphs: SparseGraphs,
    phi: Float[Tensor, "rows columns"],
    layers: Sequence[Layer],
    after_first: Float[Tensor, " graphs"] | None = None,
    *,
    unit_start: bool,
) -> Float[Tensor, "rows columns"]:
    """The same as :func:`fixed_layers` without an n x n array: ``K Phi = Phi (W_Q W_K Phi^T Phi)``.

    The norms are the diagonal of ``Phi^T Phi``, so normalisation is folded into the small matrix of the next layer.
    ``unit_start`` says whether it begins with Phi_0.
    """
    columns = phi.shape[1]
    eye = torch.eye(columns, dtype=phi.dtype, device=phi.device)
    for l, layer in enumerate(layers):
        repeats = columns // len(layer.value)
        value, product = (x if repeats == 1 else x.repeat_interleave(repeats) for x in (layer.value, layer.product))
        chunks = phi.view(-1, CHUNK, columns)
        gram = graphs.sum_over_graphs(chunks.mT @ chunks)
        if l or unit_start:
            square = gram.diagonal(dim1=1, dim2=2).reshape(graphs.graphs, -1, repeats).sum(-1)
            scale = square.add(TINY).rsqrt().repeat_interleave(repeats, dim=1)
        else:
            scale = phi.new_ones(graphs.graphs, columns)
        # Phi <- N Phi diag(turn) + Phi mix, both on columns that are scaled first
        mix = scale[:, :, None] * (
            layer.skip * eye + (product * layer.phi)[:, None] * (scale[:, :, None] * gram * scale[:, None, :]) * value
        )
        turn = layer.gram * value * scale
        if l and after_first is not None:
            turn = turn * after_first[:, None]
        image = graphs.times(phi).view_as(chunks)
        if graphs.graphs == 1:
            phi = torch.addcmul(phi @ mix[0], image.reshape(phi.shape), turn)
        else:
            phi = torch.addcmul(chunks @ mix[graphs.chunk_graph], image, turn[graphs.chunk_graph, None, :]).view_as(phi)
    channels = len(layers[-1].value)
    square = graphs.sum_over_graphs(phi.view(-1, CHUNK, columns).square().sum(1)).view(graphs.graphs, channels, -1).sum(-1)
    scale = square.add(TINY).rsqrt().repeat_interleave(columns // channels, dim=1)
    return (phi.view(-1, CHUNK, columns) * scale[graphs.chunk_graph, None, :]).view_as(phi)
