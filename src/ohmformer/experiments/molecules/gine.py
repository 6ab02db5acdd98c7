"""GINE as recent baselines have it: residuals, batch norm, a feed-forward part, bonds mapped anew in every layer.

One layer, with h on atoms and e on bonds in both directions::

    h_v <- norm(h_v + MLP((1 + eps) h_v + sum_u relu(h_u + E e_uv)))      then norm(h + FF(h))
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ohmformer.experiments.molecules.backbone import Backbone, EdgeFeatures, Edges, gine_messages, mlp
from ohmformer.experiments.molecules.norm import ResidualNorm


class GINELayer(nn.Module):
    """One GINE layer."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.edge, self.eps = nn.Linear(width, width), nn.Parameter(torch.zeros(()))
        self.mlp, self.ff = mlp(width, width), mlp(width, 2 * width)
        self.norm, self.ff_norm = ResidualNorm(width), ResidualNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, h: Float[Tensor, "nodes width"], e: EdgeFeatures, edges: Edges) -> Tensor:
        """Update h."""
        summed = gine_messages(h, e.mapped(self.edge), edges)
        h = self.norm(h, self.dropout(self.mlp(torch.addcmul(summed, h, 1 + self.eps))))
        return self.ff_norm(h, self.dropout(self.ff(h)))


class GINE(Backbone):
    """A stack of GINE layers.

    >>> x, edge_index, edge_attr = torch.randn(3, 64), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), torch.randn(4, 64)
    >>> GINE(64, layers=2)(x, edge_index, edge_attr, batch=torch.tensor([0, 0, 0])).shape
    torch.Size([3, 64])
    """

    def __init__(self, width: int = 64, *, layers: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(GINELayer(width, dropout) for _ in range(layers))

    def run(self, h: Tensor, e: EdgeFeatures, edges: Edges, batch: Tensor, pairs: Tensor | None = None) -> Tensor:
        """Run the layers."""
        for layer in self.layers:
            h = layer(h, e, edges)
        return h
