"""The model of a run: positional encoding, backbone and read-out."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ohmformer.experiments.molecules.batches import MoleculeBatch
from ohmformer.experiments.molecules.config import RunConfig
from ohmformer.experiments.molecules.encodings import Encoding, build
from ohmformer.experiments.molecules.gine import GINE
from ohmformer.experiments.molecules.gps import GPS
from ohmformer.experiments.molecules.graph_transformer import GraphTransformer

TYPICAL_SIZE = 20.0
"""A sum over atoms is divided by this, so that it starts at the scale of a mean."""


class ReadOut(nn.Module):
    """Pools h over atoms to one number per molecule.

    ``paper``: the mean over atoms, then width -> 1 -> 1; ``mean`` and ``sum``: width -> width -> 1.
    """

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.kind = kind
        inner = 1 if kind == "paper" else width
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, 1)

    def forward(self, h: Float[Tensor, "nodes width"], batch: MoleculeBatch) -> Float[Tensor, " molecules"]:
        """Pool h over the atoms of each molecule and map it to a number."""
        pooled = h.new_zeros(len(batch.sizes), h.shape[1]).index_add(0, batch.owner, h)
        pooled = pooled / (TYPICAL_SIZE if self.kind == "sum" else batch.sizes[:, None])
        return self.down(self.up(pooled).relu())[:, 0]


class MoleculeModel(nn.Module):
    """Predicts a number for every molecule."""

    def __init__(self, config: RunConfig, atoms: int, most_nodes: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)  # the initial weights of torch's layers come from the global generator
            self.encoding: Encoding = build(config, atoms, most_nodes)
            self.backbone = self._backbone(config, atoms)
            self.readout = ReadOut(config.readout, config.width)
        self.autocast = config.precision == "bfloat16"

    def _backbone(self, config: RunConfig, atoms: int) -> nn.Module:
        shape = {
            "width": config.width, "heads": config.heads, "layers": config.layers,
            "node_encoding": self.encoding.node_columns, "edge_encoding": self.encoding.edge_columns,
        }  # fmt: skip
        if config.backbone == "gine":
            return GINE(atoms, dropout=config.dropout, **shape)
        return (GraphTransformer if config.backbone == "gt" else GPS)(atoms, **shape)

    def forward(self, batch: MoleculeBatch, draw: torch.Generator) -> Float[Tensor, " molecules"]:
        """Predict a number for every molecule; ``draw`` is for encodings that are random."""
        encoding = self.encoding(batch, draw)
        with torch.autocast(batch.atom.device.type, torch.bfloat16, enabled=self.autocast and self.training):
            h = self.backbone(batch, *encoding)
        return self.readout(h, batch)

    def parameter_counts(self) -> dict[str, int]:
        """Count all parameters, and those of the encoding."""
        every = sum(p.numel() for p in self.parameters())
        return {"parameters": every, "encoding_parameters": sum(p.numel() for p in self.encoding.parameters())}
