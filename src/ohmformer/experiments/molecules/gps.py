"""PyG's GPS layers as a second backbone: a message-passing layer with bonds, global attention, batch norm, residuals."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch_geometric.nn import GINEConv, GPSConv

from ohmformer.experiments.molecules.batches import MoleculeBatch, no_rows
from ohmformer.experiments.molecules.graph_transformer import embed_atoms


class GPS(nn.Module):
    """GPS layers; takes and returns what ``GraphTransformer`` does, see there for the arguments."""

    def __init__(
        self, atoms: int, bonds: int = 4, *, width: int = 64, heads: int = 4, layers: int = 4,
        node_encoding: int = 0, edge_encoding: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.atom, self.bond = nn.Embedding(atoms, width), nn.Embedding(bonds, width)
        self.node_encoding = nn.Linear(node_encoding, width) if node_encoding else None
        self.edge_encoding = nn.Linear(edge_encoding, width, bias=False) if edge_encoding else None
        self.layers = nn.ModuleList(
            GPSConv(width, GINEConv(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))), heads=heads)
            for _ in range(layers)
        )

    def forward(
        self,
        batch: MoleculeBatch,
        node: Float[Tensor, "nodes columns"] | None = None,
        edge: Float[Tensor, "edges few"] | None = None,
    ) -> Float[Tensor, "nodes width"]:
        """Compute h on every atom; ``node`` and ``edge`` are the encodings."""
        if not len(batch.atom):
            return no_rows(self, self.atom.embedding_dim, node, edge)  # torch's batch norm takes no empty batch
        h = embed_atoms(self.atom, batch.atom)
        if self.node_encoding is not None:
            h = h + self.node_encoding(node)
        e = self.bond(batch.bond)
        if self.edge_encoding is not None:
            e = e + self.edge_encoding(edge)
        edges = torch.stack([batch.source, batch.target])
        for layer in self.layers:
            h = layer(h, edges, batch.owner, edge_attr=e)
        return h
