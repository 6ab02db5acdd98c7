"""The layers of appendix E (equation ``e:z_dynamics_molecule``), on blocks of small graphs and on large sparse ones.

One layer, with ``N = D^-1/2 B B^T D^-1/2`` and ``K = Phi W_Q W_K Phi^T``::

    B   <- (1 + alpha_R) B + alpha_V (beta_1 alpha_QK N + beta_2 K) B          then B / |B|_F
    Phi <- (1 + w_R) Phi   + (beta_3 alpha_QK N + beta_4 K) Phi W_V            then every column / its norm

W_V, W_Q and W_K are diagonal: one number per channel. A channel is one column of Phi, or several columns that share weights
and one norm (the ``diagonal`` start has one column per node in every channel).

Phi is stored transposed, ``(graphs, columns, nodes)``, the layout in which small batched products are fastest.
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
"""Added to squared norms, so that a zero state stays zero and its gradient stays finite."""


@dataclass(frozen=True)
class Layer:
    """The weights of one layer, scalars multiplied out: numbers, or 0-dimensional tensors if gradients are needed."""

    b_skip: Any
    """``1 + alpha_R``."""
    b_gram: Any
    """``alpha_V beta_1 alpha_QK``, times N in the update of B."""
    b_phi: Any
    """``alpha_V beta_2``, times K in the update of B."""
    skip: Any
    """``1 + w_R``."""
    gram: Any
    """``beta_3 alpha_QK``, times N in the update of Phi."""
    phi: Any
    """``beta_4``, times K in the update of Phi."""
    value: Float[Tensor, " channels"]
    """The diagonal of W_V."""
    product: Float[Tensor, " channels"]
    """The diagonal of W_Q W_K."""


def unit(phi: Float[Tensor, "graphs columns nodes"], channels: int) -> Float[Tensor, "graphs columns nodes"]:
    """Divide every channel by its norm."""
    grouped = phi.reshape(phi.shape[0], channels, -1) if phi.shape[1] != channels else phi
    scale = torch.linalg.vector_norm(grouped, dim=-1, keepdim=True).square().add_(TINY).rsqrt_()
    return (grouped * scale).view_as(phi)


def inverse_root(degree: Tensor, floor: float = 0.0) -> Tensor:
    """Return ``degree^-1/2``, and zero where the degree does not exceed ``floor``."""
    real = degree > floor
    return torch.where(real, torch.where(real, degree, 1.0).rsqrt(), 0.0)


# ---------------------------------------------------------------------------------------------------- B fixed, small graphs


def fixed_layers(
    seen: Float[Tensor, "graphs width width"],
    phi: Float[Tensor, "graphs channels width"],
    layers: Sequence[Layer],
    after_first: Float[Tensor, " graphs"] | None = None,
    *,
    unit_start: bool,
) -> Float[Tensor, "graphs channels width"]:
    """Return Phi after all layers when B is fixed, with three small matrix products per layer.

    ``after_first`` multiplies N from the second layer on, the effect of normalising B under l1 degrees. ``unit_start`` says
    whether Phi_0 is normalised first.
    """
    eye = torch.eye(phi.shape[1], dtype=phi.dtype, device=phi.device)
    for l, layer in enumerate(layers):
        if l == 1 and after_first is not None:
            seen = seen * after_first[:, None, None]
        phi = unit(phi, phi.shape[1]) if l or unit_start else phi
        similar = torch.outer(layer.value, layer.product * layer.phi)  # K Phi = Phi (W_Q W_K Phi^T Phi)
        mix = torch.addcmul(eye * layer.skip, torch.bmm(phi, phi.mT), similar)
        phi = (torch.bmm(phi, seen) * (layer.value * layer.gram)[:, None]).baddbmm_(mix, phi)
    return unit(phi, phi.shape[1])


# ---------------------------------------------------------------------------------------------------- B evolving


class GramState:
    """B as ``G = B B^T = D^1/2 N D^1/2``, without an edge axis. D is the diagonal of G, whose trace is one."""

    def __init__(self, seen: Float[Tensor, "graphs width width"], degree: Float[Tensor, "graphs width"]) -> None:
        share = degree / degree.sum(1, keepdim=True).clamp(min=TINY)
        self.root = share * inverse_root(share)  # the square root, written so that its gradient at zero is finite
        self.seen = seen
        self.half = seen * self.root[:, None, :]
        """``N D^1/2``."""

    def move(self, layer: Layer, similarity: Float[Tensor, "graphs width width"]) -> None:
        """Replace G by ``A G A / trace = C N C^T / trace`` with ``C = A D^1/2`` and A of :func:`mover`.

        By Cauchy-Schwarz no entry of N exceeds 1 in magnitude; entries are clipped to that against rounding.
        """
        c = _sum(self.half, layer.b_gram, similarity, (self.root * layer.b_phi)[:, None, :])
        c.diagonal(dim1=1, dim2=2).add_(self.root * layer.b_skip)
        gram = torch.bmm(torch.bmm(c, self.seen), c.mT)
        degree = gram.diagonal(dim1=1, dim2=2)
        total = degree.sum(1, keepdim=True) + TINY
        share = degree / total
        down = inverse_root(share, TINY)
        self.root = share * down
        self.half = gram * (down / total)[:, :, None]
        self.seen = (self.half * down[:, None, :]).clamp_(-1, 1)


class IncidenceState:
    """B itself, for the paper's degrees ``D_ii = sum_j |B_ij|``, which cannot be computed from a Gram matrix."""

    def __init__(self, incidence: Float[Tensor, "graphs width edges"]) -> None:
        self.incidence = incidence
        self.seen = self._seen()

    def _seen(self) -> Float[Tensor, "graphs width width"]:
        half = self.incidence * inverse_root(self.incidence.abs().sum(2), TINY)[:, :, None]
        return half @ half.mT

    def move(self, layer: Layer, similarity: Float[Tensor, "graphs width width"]) -> None:
        """Replace B by ``A B / |A B|_F`` with A of :func:`mover`."""
        moved = mover(self.seen, similarity, layer) @ self.incidence
        size = moved.square().sum(dim=(1, 2)).add(TINY).rsqrt()
        self.incidence = moved * size[:, None, None]
        self.seen = self._seen()


def mover(seen: Tensor, similarity: Tensor, layer: Layer) -> Float[Tensor, "graphs width width"]:
    """Return ``A = (1 + alpha_R) I + alpha_V (beta_1 alpha_QK N + beta_2 K)``, the matrix by which a layer multiplies B."""
    a = _sum(seen, layer.b_gram, similarity, layer.b_phi)
    a.diagonal(dim1=1, dim2=2).add_(layer.b_skip)
    return a


def _sum(x: Tensor, a: Any, y: Tensor, b: Any) -> Tensor:
    """Return ``a x + b y``, where a is a float or a tensor that may require gradients."""
    return torch.mul(y, b).add_(x, alpha=a) if isinstance(a, float) else torch.addcmul(y * b, x, a)


def moving_layers(
    state: GramState | IncidenceState, phi: Float[Tensor, "graphs columns width"], layers: Sequence[Layer]
) -> Float[Tensor, "graphs columns width"]:
    """Return Phi after all layers if they update B; the last one does not, as no layer follows. Any number of columns."""
    repeats = phi.shape[1] // len(layers[0].value)
    for l, layer in enumerate(layers):
        value, product = (x[:, None].expand(-1, repeats).reshape(-1, 1) for x in (layer.value, layer.product))
        seen = state.seen
        similarity = torch.bmm((phi * product).mT, phi)
        if l + 1 < len(layers):
            state.move(layer, similarity)
        similarity = _sum(seen, layer.gram, similarity, layer.phi)
        phi = unit((phi * layer.skip).baddbmm_(phi * value, similarity), len(layer.value))
    return phi


# ---------------------------------------------------------------------------------------------------- B fixed, large graphs

CHUNK = 64
"""Rows of Phi whose contribution to ``Phi^T Phi`` is computed at once."""


@dataclass(frozen=True)
class SparseGraphs:
    """N of large graphs as one block-diagonal CSR matrix, the rows of every graph padded to whole chunks."""

    start: Int[Tensor, " rows"]
    column: Int[Tensor, " entries"]
    value: Float[Tensor, " entries"]
    row_of: Int[Tensor, " entries"] | None
    """The row of every entry; None if values need no gradient."""
    chunk_graph: Int[Tensor, " chunks"]
    """The graph that each chunk belongs to."""
    graphs: int

    def times(self, phi: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows columns"]:
        """Return ``N Phi``."""
        return _SymmetricProduct.apply(phi, self.value, self)  # pyright: ignore[reportReturnType]

    def sum_over_graphs(self, x: Tensor) -> Tensor:
        """Sum ``(chunks, ...)`` over each graph to ``(graphs, ...)``."""
        if self.graphs == 1:
            return x.sum(0, keepdim=True)
        return x.new_zeros(self.graphs, *x.shape[1:]).index_add(0, self.chunk_graph, x)


class _SymmetricProduct(torch.autograd.Function):
    """Compute ``N Phi``; as N is symmetric, the gradient of Phi is N times the gradient of the product."""

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


def mixing(
    gram: Float[Tensor, "graphs k k"], layer: Layer, *, normalise: bool
) -> tuple[Float[Tensor, "graphs k k"], Float[Tensor, "graphs k"]]:
    """Return ``mix`` and ``turn`` of the layer update ``Phi^T <- diag(turn) Phi^T N + mix Phi^T``.

    Both follow from the Gram matrix ``Phi^T Phi``: ``K Phi = Phi W_Q W_K Phi^T Phi``, and its diagonal holds the squared
    norms of the columns, for the normalisation.
    """
    square = gram.diagonal(dim1=1, dim2=2)
    scale = (square + TINY).rsqrt() if normalise else torch.ones_like(square)
    value = scale * layer.value
    mix = gram * value[:, :, None] * (scale.square() * (layer.product * layer.phi))[:, None, :]
    mix.diagonal(dim1=1, dim2=2).add_(scale * layer.skip)
    return mix, value * layer.gram


def sparse_layers(
    graphs: SparseGraphs,
    phi: Float[Tensor, "rows channels"],
    layers: Sequence[Layer],
    after_first: Float[Tensor, " graphs"] | None = None,
    *,
    unit_start: bool,
) -> Float[Tensor, "rows channels"]:
    """Return Phi after all layers when B is fixed, as :func:`fixed_layers`, without an n x n array."""
    chunks = phi.view(-1, CHUNK, phi.shape[1])
    for l, layer in enumerate(layers):
        mix, turn = mixing(graphs.sum_over_graphs(chunks.mT @ chunks), layer, normalise=unit_start or l > 0)
        if l and after_first is not None:
            turn = turn * after_first[:, None]
        image = graphs.times(phi)
        if graphs.graphs == 1:
            phi = torch.addcmul(phi @ mix[0].mT, image, turn)
        else:
            which = graphs.chunk_graph
            mixed = chunks @ mix.mT.index_select(0, which)
            phi = torch.addcmul(mixed, image.view_as(chunks), turn.index_select(0, which)[:, None]).view_as(phi)
        chunks = phi.view_as(chunks)
    scale = graphs.sum_over_graphs(chunks.square().sum(1)).add(TINY).rsqrt()
    return (chunks * scale.index_select(0, graphs.chunk_graph)[:, None]).view_as(phi)
