"""GPS: every layer a GINE along bonds beside attention between all atoms of a molecule, with a bias from pairs of atoms.

One layer, with h on atoms, e on bonds, p on pairs of atoms, and attention as ``softmax(q k^T / sqrt(d) + bias(p)) v``::

    h <- norm(h + MLP(h + sum_u relu(h_u + e_uv))) + norm(h + attention(h, p))      then norm(h + FF(h))

Without p it is PyG's ``GPSConv`` around a ``GINEConv``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ohmformer.encoding.pairs import PairwiseBias
from ohmformer.experiments.molecules.backbone import Backbone, EdgeFeatures, Edges, check_heads, gine_messages, mlp
from ohmformer.experiments.molecules.norm import ResidualNorm


@dataclass(frozen=True)
class Dense:
    """Nodes of graphs padded to the size of the largest."""

    place: Int[Tensor, " nodes"]
    """The position of every node among ``graphs * size``."""
    real: Bool[Tensor, "graphs size"]

    @classmethod
    def of(cls, batch: Int[Tensor, " nodes"], pairs: Tensor | None) -> Dense:
        """Arrange the nodes of graphs; the shape of ``pairs`` gives the sizes without a device transfer."""
        if pairs is None:
            counts = torch.bincount(batch)
            graphs, size = len(counts), int(counts.max()) if len(counts) else 0
        else:
            graphs, size = pairs.shape[:2]
            counts = torch.zeros(graphs, dtype=batch.dtype, device=batch.device).index_add(0, batch, torch.ones_like(batch))
        first = counts.cumsum(0) - counts
        within = torch.arange(len(batch), device=batch.device) - first.index_select(0, batch)
        return cls(batch * size + within, torch.arange(size, device=batch.device) < counts[:, None])

    def spread(self, x: Float[Tensor, "nodes columns"]) -> Float[Tensor, "graphs size columns"]:
        """Arrange the rows of nodes densely, with zeros on padding."""
        graphs, size = self.real.shape
        return x.new_zeros(graphs * size, x.shape[1]).index_copy(0, self.place, x).view(graphs, size, x.shape[1])


class GPSLayer(nn.Module):
    """One GPS layer."""

    def __init__(self, width: int, heads: int, dropout: float, pairs: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = PairwiseBias(heads, pairs) if pairs else None
        self.mlp, self.ff = mlp(width, width), mlp(width, 2 * width)
        self.norm, self.attention_norm, self.ff_norm = (ResidualNorm(width) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        h: Float[Tensor, "nodes width"],
        e: Float[Tensor, "edges width"],
        edges: Edges,
        dense: Dense,
        pairs: Float[Tensor, "graphs size size columns"] | None,
    ) -> Float[Tensor, "nodes width"]:
        """Update h."""
        local = self.norm(h, self.dropout(self.mlp(h + gine_messages(h, e, edges))))
        h = local + self.attention_norm(h, self.dropout(self.out(self.attend(h, dense, pairs))))
        return self.ff_norm(h, self.dropout(self.ff(h)))

    def attend(self, h: Tensor, dense: Dense, pairs: Tensor | None) -> Float[Tensor, "nodes width"]:
        """Apply attention among all nodes of each graph."""
        width = h.shape[1]
        qkv = dense.spread(self.qkv(h)).unflatten(2, (3, self.heads, width // self.heads))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        score = (q / math.sqrt(width // self.heads)) @ k.mT
        if self.bias is not None:
            score = score + self.bias(pairs)
        a = score.masked_fill(~dense.real[:, None, None, :], torch.finfo(score.dtype).min).softmax(-1)
        return (a @ v).transpose(1, 2).flatten(2).flatten(0, 1).index_select(0, dense.place)


class GPS(Backbone):
    """A stack of GPS layers; ``pairs`` is the number of feature columns of node pairs, which bias attention.

    >>> x, edge_index, edge_attr = torch.randn(3, 64), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), torch.randn(4, 64)
    >>> GPS(64, layers=2, pairs=5)(x, edge_index, edge_attr, pairs=torch.randn(1, 3, 3, 5)).shape
    torch.Size([3, 64])
    """

    def __init__(self, width: int = 64, *, heads: int = 4, layers: int = 4, dropout: float = 0.0, pairs: int = 0) -> None:
        super().__init__()
        check_heads(width, heads)
        self.layers = nn.ModuleList(GPSLayer(width, heads, dropout, pairs) for _ in range(layers))

    def run(self, h: Tensor, e: EdgeFeatures, edges: Edges, batch: Tensor, pairs: Tensor | None = None) -> Tensor:
        """Run the layers."""
        dense, features = Dense.of(batch, pairs), e.e
        for layer in self.layers:
            h = layer(h, features, edges, dense, pairs)
        return h
