"""One layer of each model for many graphs at once, and their normalisations, with their derivatives written out.

    dense:      S = X M X^T,   X <- X (I + W_R^T) + S X W_V^T,   X = [B | Phi],   B <- B / |B|,   Phi <- Phi / |Phi|
    efficient:  S = seen G + Phi M Phi^T,   A = stay I + move S,   Phi <- Phi (I + W_R^T) + S Phi W_V^T,   G <- A G A^T
                Phi <- Phi / |Phi|,   G <- G / trace G

Autograd would take twice the time for the same derivatives: it does not use the symmetry of G (both factors A get the same
gradient), stores more intermediate results, and reads each of them once per operation.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def dense_layer(
    x: Float[Tensor, "graphs nodes width"], weights: Float[Tensor, "seeds width 3*width"]
) -> Float[Tensor, "graphs nodes width"]:
    """Apply a layer of the dense model to X, without normalisation; ``weights`` as in :func:`layer`."""
    return _DenseLayer.apply(x, weights)  # pyright: ignore[reportReturnType]


class _DenseLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor) -> Tensor:
        x = x.contiguous()
        graphs, nodes, width = x.shape
        products = torch.bmm(x.view(len(weights), -1, width), weights).view(graphs, nodes, 3 * width)
        compared, value, kept = products.split(width, dim=-1)
        similarity = torch.bmm(compared, x.mT)
        ctx.save_for_backward(x, weights, products, similarity)
        return torch.baddbmm(kept, similarity, value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weights, products, similarity = ctx.saved_tensors
        width = x.shape[-1]
        compared, value, _ = products.split(width, dim=-1)
        d_similarity = torch.bmm(gradients[0], value.mT)
        rows = torch.cat([torch.bmm(d_similarity, x), torch.bmm(similarity.mT, gradients[0]), gradients[0]], dim=-1)
        rows = rows.view(len(weights), -1, 3 * width)
        old = None
        if ctx.needs_input_grad[0]:
            old = torch.baddbmm(torch.bmm(rows, weights.mT).view_as(x), d_similarity.mT, compared)
        return old, torch.bmm(x.view(len(weights), -1, width).mT, rows)


def layer(
    phi: Float[Tensor, "graphs nodes width"],
    gram: Float[Tensor, "graphs nodes nodes"],
    weights: Float[Tensor, "seeds width 3*width"],
    seen: Float[Tensor, "graphs 1 1"],
    move: Float[Tensor, "graphs 1 1"],
    stay: Float[Tensor, "graphs 1 1"],
) -> tuple[Float[Tensor, "graphs nodes width"], Float[Tensor, "graphs nodes nodes"]]:
    """Apply a layer of the efficient model to Phi and G, without normalisation.

    ``weights`` holds ``[M | W_V^T | I + W_R^T]`` of every seed, graphs are sorted by seed; ``seen = alpha_K alpha_Q``,
    ``move = alpha_V`` and ``stay = 1 + alpha_R`` are given per graph.
    """
    return _Layer.apply(phi, gram, weights, seen, move, stay)  # pyright: ignore[reportReturnType]


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, phi: Tensor, gram: Tensor, weights: Tensor, seen: Tensor, move: Tensor, stay: Tensor
    ) -> tuple[Tensor, Tensor]:
        phi = phi.contiguous()
        graphs, nodes, width = phi.shape
        products = torch.bmm(phi.view(len(weights), -1, width), weights).view(graphs, nodes, 3 * width)
        compared, value, kept = products.split(width, dim=-1)
        similarity = torch.baddbmm(seen * gram, compared, phi.mT)
        acting = move * similarity
        acting.diagonal(dim1=1, dim2=2).add_(stay[:, 0])
        ctx.save_for_backward(phi, gram, weights, seen, move, products, similarity, acting)
        ctx.set_materialize_grads(False)
        return torch.baddbmm(kept, similarity, value), torch.bmm(torch.bmm(acting, gram), acting.mT)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        phi, gram, weights, seen, move, products, similarity, acting = ctx.saved_tensors
        d_phi, d_gram = gradients
        d_phi = torch.zeros_like(phi) if d_phi is None else d_phi
        width = phi.shape[-1]
        compared, value, _ = products.split(width, dim=-1)
        twice = d_acting = None
        if d_gram is None:  # the last layer's G is not used
            d_similarity = torch.bmm(d_phi, value.mT)
        else:
            twice = torch.bmm(d_gram + d_gram.mT, acting)
            d_acting = torch.bmm(twice, gram)
            d_similarity = torch.baddbmm(move * d_acting, d_phi, value.mT)
        d_products = torch.cat([torch.bmm(d_similarity, phi), torch.bmm(similarity.mT, d_phi), d_phi], dim=-1)
        rows = d_products.view(len(weights), -1, 3 * width)
        old_phi = old_gram = None
        if ctx.needs_input_grad[0]:
            old_phi = torch.baddbmm(torch.bmm(rows, weights.mT).view_as(phi), d_similarity.mT, compared)
        if ctx.needs_input_grad[1]:
            old_gram = seen * d_similarity
            old_gram = old_gram if twice is None else old_gram.baddbmm_(acting.mT, twice, alpha=0.5)
        return (
            old_phi,
            old_gram,
            torch.bmm(phi.view(len(weights), -1, width).mT, rows),
            (d_similarity * gram).sum(dim=(1, 2), keepdim=True),
            None if d_acting is None else (d_acting * similarity).sum(dim=(1, 2), keepdim=True),
            None if d_acting is None else d_acting.diagonal(dim1=1, dim2=2).sum(-1)[:, None, None],
        )


def unit_norm(x: Float[Tensor, "graphs nodes width"], dims: tuple[int, ...] = (1, 2)) -> Float[Tensor, "graphs nodes width"]:
    """Divide x by its norm over the given dimensions."""
    return _UnitNorm.apply(x, dims)  # pyright: ignore[reportReturnType]


def unit_blocks(
    x: Float[Tensor, "graphs nodes width"], edges: int, whole: tuple[bool, bool]
) -> Float[Tensor, "graphs nodes width"]:
    """Normalise X = [B | Phi]: B as a whole or not at all, Phi as a whole or each column by itself."""
    return _UnitBlocks.apply(x, edges, *whole)  # pyright: ignore[reportReturnType]


class _UnitBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, edges: int, incidence: bool, features: bool) -> Tensor:
        ctx.groups = (edges, incidence, features)
        inverse = _over_groups(x.square().sum(dim=-2, keepdim=True), *ctx.groups).rsqrt_()
        if not incidence:
            inverse[..., :edges] = 1.0
        y = x * inverse
        ctx.save_for_backward(y, inverse)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        y, inverse = ctx.saved_tensors
        edges, incidence, _ = ctx.groups
        along = _over_groups((gradients[0] * y).sum(dim=-2, keepdim=True), *ctx.groups)
        if not incidence:
            along[..., :edges] = 0.0
        return torch.addcmul(gradients[0], y, along, value=-1).mul_(inverse), None, None, None


def _over_groups(columns: Tensor, edges: int, incidence: bool, features: bool) -> Tensor:
    """Replace numbers per column by their sum over the columns that are normalised together."""
    parts = columns[..., :edges], columns[..., edges:]
    return torch.cat(
        [
            p.sum(-1, keepdim=True).expand_as(p) if whole else p
            for p, whole in zip(parts, (incidence, features), strict=True)
        ],
        dim=-1,
    )


def unit_trace(x: Float[Tensor, "graphs nodes nodes"]) -> Float[Tensor, "graphs nodes nodes"]:
    """Divide x by its trace."""
    return _UnitTrace.apply(x)  # pyright: ignore[reportReturnType]


class _UnitNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dims: tuple[int, ...]) -> Tensor:
        inverse = torch.linalg.vector_norm(x, dim=dims, keepdim=True).reciprocal_()
        y = x * inverse
        ctx.save_for_backward(y, inverse)
        ctx.dims = dims
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        y, inverse = ctx.saved_tensors
        d = gradients[0]
        along = (d * y).sum(dim=ctx.dims, keepdim=True)
        return torch.addcmul(d, y, along, value=-1).mul_(inverse), None


class _UnitTrace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        inverse = x.diagonal(dim1=1, dim2=2).sum(-1).reciprocal_()[:, None, None]
        y = x * inverse
        ctx.save_for_backward(y, inverse)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        y, inverse = ctx.saved_tensors
        d = gradients[0]
        along = (d * y).sum(dim=(1, 2), keepdim=True).mul_(inverse)
        d = d * inverse
        d.diagonal(dim1=1, dim2=2).sub_(along[:, 0])
        return d
