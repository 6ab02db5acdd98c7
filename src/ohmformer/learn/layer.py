"""One layer of the efficient model for many graphs at once, with its derivative written out.

    S = seen G + Phi M Phi^T,   A = stay I + move S,   Phi <- Phi (I + W_R^T) + S Phi W_V^T,   G <- A G A^T

Autograd would find the same derivative in twice the time: it does not know that G is symmetric (so that both factors A get
the same gradient), keeps more intermediate results, and goes over each of them once per operation.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def layer(
    phi: Float[Tensor, "graphs nodes width"],
    gram: Float[Tensor, "graphs nodes nodes"],
    weights: Float[Tensor, "seeds width 3*width"],
    seen: Float[Tensor, "graphs 1 1"],
    move: Float[Tensor, "graphs 1 1"],
    stay: Float[Tensor, "graphs 1 1"],
) -> tuple[Float[Tensor, "graphs nodes width"], Float[Tensor, "graphs nodes nodes"]]:
    """Phi and G after the layer, before any normalisation.

    ``weights`` holds ``[M | W_V^T | I + W_R^T]`` of every seed, graphs come seed by seed; ``seen = alpha_K alpha_Q``,
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
        acting = torch.addcmul(stay * torch.eye(nodes, dtype=phi.dtype), move, similarity)
        ctx.save_for_backward(phi, gram, weights, seen, move, products, similarity, acting)
        return torch.baddbmm(kept, similarity, value), torch.bmm(torch.bmm(acting, gram), acting.mT)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        phi, gram, weights, seen, move, products, similarity, acting = ctx.saved_tensors
        d_phi, d_gram = gradients
        width = phi.shape[-1]
        compared, value, _ = products.split(width, dim=-1)
        half = torch.bmm((d_gram + d_gram.mT) / 2, acting)
        d_acting = 2 * torch.bmm(half, gram)
        d_similarity = torch.baddbmm(move * d_acting, d_phi, value.mT)
        d_products = torch.cat([torch.bmm(d_similarity, phi), torch.bmm(similarity.mT, d_phi), d_phi], dim=-1)
        rows = d_products.view(len(weights), -1, 3 * width)
        return (
            torch.baddbmm(torch.bmm(rows, weights.mT).view_as(phi), d_similarity.mT, compared),
            torch.baddbmm(seen * d_similarity, acting.mT, half) if ctx.needs_input_grad[1] else None,
            torch.bmm(phi.view(len(weights), -1, width).mT, rows),
            (d_similarity * gram).sum(dim=(1, 2), keepdim=True),
            (d_acting * similarity).sum(dim=(1, 2), keepdim=True),
            d_acting.diagonal(dim1=1, dim2=2).sum(-1)[:, None, None],
        )
