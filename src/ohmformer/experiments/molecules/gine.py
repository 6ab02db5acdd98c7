"""GINE as recent baselines have it: residuals, batch norm, a feed-forward part, bonds mapped anew in every layer.

One layer, with h on atoms and e on bonds in both directions::

    h_v <- norm(h_v + MLP((1 + eps) h_v + sum_u relu(h_u + E e_uv)))      then norm(h + FF(h))
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear, one_hot

from ohmformer.experiments.molecules.batches import MoleculeBatch
from ohmformer.experiments.molecules.graph_transformer import embed_atoms, sum_at_sources, sum_at_targets
from ohmformer.experiments.molecules.norm import ResidualNorm


class _Messages(torch.autograd.Function):
    """``sum_u relu(h_u + e_uv)`` at every node v, edges sorted by target."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, e: Tensor, batch: MoleculeBatch) -> Tensor:
        carried = h.index_select(0, batch.source).add_(e).relu_()
        ctx.save_for_backward(carried)
        ctx.batch = batch
        return sum_at_targets(carried, batch)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (carried,) = ctx.saved_tensors
        g = gradients[0].index_select(0, ctx.batch.target).mul_(carried > 0)
        return sum_at_sources(g, ctx.batch), g, None


def mlp(width: int, inner: int) -> nn.Sequential:
    """Make two linear maps with a ReLU between them."""
    return nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width))


class GINELayer(nn.Module):
    """One layer."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.edge, self.eps = nn.Linear(width, width), nn.Parameter(torch.zeros(()))
        self.mlp, self.ff = mlp(width, width), mlp(width, 2 * width)
        self.norm, self.ff_norm = ResidualNorm(width), ResidualNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, h: Float[Tensor, "nodes width"], few: Float[Tensor, "edges few"], table: Tensor, batch: MoleculeBatch
    ) -> Tensor:
        """Update h; ``e = few table``, so that ``E e`` is a product of few columns."""
        summed = _Messages.apply(h, linear(few, self.edge.weight @ table.mT, self.edge.bias), batch)
        h = self.norm(h, self.dropout(self.mlp(torch.addcmul(summed, h, 1 + self.eps))))
        return self.ff_norm(h, self.dropout(self.ff(h)))


class GINE(nn.Module):
    """GINE layers; takes and returns what ``GraphTransformer`` does, see there for the arguments; it has no heads."""

    def __init__(
        self, atoms: int, bonds: int = 4, *, width: int = 64, heads: int = 1, layers: int = 8, dropout: float = 0.0,
        node_encoding: int = 0, edge_encoding: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.atom, self.bond = nn.Embedding(atoms, width), nn.Embedding(bonds, width)
        self.node_encoding = nn.Linear(node_encoding, width) if node_encoding else None
        self.edge_encoding = nn.Linear(edge_encoding, width, bias=False) if edge_encoding else None
        self.layers = nn.ModuleList(GINELayer(width, dropout) for _ in range(layers))

    def forward(
        self,
        batch: MoleculeBatch,
        node: Float[Tensor, "nodes columns"] | None = None,
        edge: Float[Tensor, "edges few"] | None = None,
    ) -> Float[Tensor, "nodes width"]:
        """Compute h on every atom; ``node`` and ``edge`` are the encodings."""
        h, table = embed_atoms(self.atom, batch.atom), self.bond.weight
        few = one_hot(batch.bond, len(table)).to(h.dtype)
        if self.node_encoding is not None:
            h = h + self.node_encoding(node)
        if self.edge_encoding is not None:
            assert edge is not None
            few, table = torch.cat([few, edge], dim=1), torch.cat([table, self.edge_encoding.weight.mT])
        for layer in self.layers:
            h = layer(h, few, table, batch)
        return h
