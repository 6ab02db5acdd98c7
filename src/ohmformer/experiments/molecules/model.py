"""The model of a run: positional encoding, backbone and read-out."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import one_hot

from ohmformer.experiments.molecules.backbone import Backbone, EdgeFeatures
from ohmformer.experiments.molecules.batches import MoleculeBatch
from ohmformer.experiments.molecules.config import RunConfig
from ohmformer.experiments.molecules.encodings import Encoding, build
from ohmformer.experiments.molecules.gine import GINE
from ohmformer.experiments.molecules.gps import GPS
from ohmformer.experiments.molecules.graph_transformer import GraphTransformer

TYPICAL_SIZE = 20.0
"""Divisor of a sum over atoms, which gives it the initial scale of a mean."""


class Embedding(nn.Module):
    """Embed labels and encodings of atoms and bonds as h and e; labels beyond ``atoms``, unseen in training, give zero."""

    def __init__(self, atoms: int, width: int, node_encoding: int = 0, edge_encoding: int = 0, bonds: int = 4) -> None:
        super().__init__()
        self.atom, self.bond = nn.Embedding(atoms, width), nn.Embedding(bonds, width)
        self.node_encoding = nn.Linear(node_encoding, width) if node_encoding else None
        self.edge_encoding = nn.Linear(edge_encoding, width, bias=False) if edge_encoding else None

    def forward(
        self, atom: Int[Tensor, " nodes"], bond: Int[Tensor, " edges"], node: Tensor | None, edge: Tensor | None
    ) -> tuple[Float[Tensor, "nodes width"], EdgeFeatures]:
        """Return h and e; ``node`` and ``edge`` are the encodings."""
        labels, table = self.atom.num_embeddings, self.bond.weight
        h = self.atom(atom.clamp(max=labels - 1)) * (atom < labels)[:, None]
        h = h if self.node_encoding is None else h + self.node_encoding(node)
        few = one_hot(bond, len(table)).to(h.dtype)
        if self.edge_encoding is None or edge is None:
            return h, EdgeFeatures(few, table)
        return h, EdgeFeatures(torch.cat([few, edge], dim=1), torch.cat([table, self.edge_encoding.weight.mT]))


class ReadOut(nn.Module):
    """Pool h over atoms to one number per molecule, or to ``outputs`` of them.

    ``paper``: the mean over atoms, then width -> 1 -> 1; ``mean`` and ``sum``: width -> width -> 1.
    """

    def __init__(self, kind: str, width: int, outputs: int = 1) -> None:
        super().__init__()
        self.kind = kind
        inner = 1 if kind == "paper" else width
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, outputs)

    def forward(self, h: Float[Tensor, "nodes width"], batch: MoleculeBatch) -> Float[Tensor, "molecules ..."]:
        """Pool h over the atoms of each molecule and map it to one or several numbers."""
        pooled = h.new_zeros(len(batch.sizes), h.shape[1]).index_add(0, batch.owner, h)
        pooled = pooled / (TYPICAL_SIZE if self.kind == "sum" else batch.sizes[:, None])
        found = self.down(self.up(pooled).relu())
        return found if found.shape[1] > 1 else found[:, 0]


class MoleculeModel(nn.Module):
    """Predict one number, or ``outputs`` of them, per molecule."""

    def __init__(self, config: RunConfig, atoms: int, most_nodes: int, outputs: int = 1) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)  # torch draws the initial weights of its layers from the global generator
            self.encoding: Encoding = build(config, atoms, most_nodes)
            encoded = self.encoding.node_columns, self.encoding.edge_columns
            self.embedding = Embedding(atoms, config.width, *encoded)
            self.backbone = self._backbone(config)
            self.readout = ReadOut(config.readout, config.width, outputs)
        self.autocast = config.precision == "bfloat16"

    def _backbone(self, config: RunConfig) -> Backbone:
        if config.backbone == "gine":
            return GINE(config.width, layers=config.layers, dropout=config.dropout)
        shape = {"width": config.width, "heads": config.heads, "layers": config.layers}
        if config.backbone == "gt":
            return GraphTransformer(**shape)
        return GPS(**shape, dropout=config.dropout, pairs=self.encoding.pair_columns)

    def forward(self, batch: MoleculeBatch, draw: torch.Generator) -> Float[Tensor, "molecules ..."]:
        """Return the prediction for every molecule; ``draw`` is for random encodings."""
        node, edge, pairs = self.encoding(batch, draw)
        h, e = self.embedding(batch.atom, batch.bond, node, edge)
        with torch.autocast(batch.atom.device.type, torch.bfloat16, enabled=self.autocast and self.training):
            h = self.backbone.run(h, e, batch.edges, batch.owner, pairs)
        return self.readout(h, batch)

    def parameter_counts(self) -> dict[str, int]:
        """Count the parameters of the model and of the encoding."""
        every = sum(p.numel() for p in self.parameters())
        return {"parameters": every, "encoding_parameters": sum(p.numel() for p in self.encoding.parameters())}
