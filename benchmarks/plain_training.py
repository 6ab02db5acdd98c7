"""A plain training loop of PyG with the encoder inside: how far validation error rises above its best after half of it.

No statistics are measured anew, no weights averaged: PyG's GINE with residuals and batch norms (``--norm layer``: layer
norms), Adam, a rate that falls along a cosine (``--schedule constant``: one that stays).

python benchmarks/plain_training.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINEConv, global_add_pool
from torch_geometric.transforms import AddRandomWalkPE

from measure import write_table
from ohmformer.encoding import AddSpectrum, LinearTransformerPE
from ohmformer.experiments.molecules.config import RunConfig
from ohmformer.experiments.molecules.data import ZINC12K
from ohmformer.experiments.molecules.sources import tables
from ohmformer.experiments.molecules.table import MoleculeTable

READ = ("nodes", "edges")
ENCODERS: dict[str, Callable[[], tuple[LinearTransformerPE | None, bool]] | None] = {
    "none": None,
    "AddRandomWalkPE(16), then BatchNorm1d": lambda: (None, True),
    "LinearTransformerPE(16)": lambda: (LinearTransformerPE(16, read=READ), False),
    "LinearTransformerPE(16, pace=1)": lambda: (LinearTransformerPE(16, read=READ, pace=1), False),
    "LinearTransformerPE(16, norm=None)": lambda: (LinearTransformerPE(16, read=READ, norm=None), False),
    "LinearTransformerPE(16, norm=None), then BatchNorm1d": lambda: (LinearTransformerPE(16, read=READ, norm=None), True),
}


class Model(nn.Module):
    """PyG's GINE with residuals and norms; the encoding is added to atoms and bonds, random walks to atoms."""

    def __init__(self, name: str, norms: str, width: int = 64, layers: int = 4) -> None:
        super().__init__()
        made = ENCODERS[name]
        self.walks = made is not None and made()[0] is None
        self.pe, norm = made() if made else (None, False)
        self.atom, self.bond = nn.Embedding(40, width), nn.Embedding(4, width)
        self.node_pe, self.edge_pe = (nn.Sequential(_norm(norm), nn.Linear(16, width)) for _ in range(2))
        nets = (nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)) for _ in range(layers))
        self.convs = nn.ModuleList(map(GINEConv, nets))
        self.norms = nn.ModuleList((nn.BatchNorm1d if norms == "batch" else nn.LayerNorm)(width) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, data: Any) -> Tensor:
        """Predict one number per molecule."""
        x, e = self.atom(data.x), self.bond(data.edge_attr)
        if self.pe is not None:
            nodes, edges = self.pe(data)
            x, e = x + self.node_pe(nodes), e + self.edge_pe(edges)
        elif self.walks:
            x = x + self.node_pe(data.random_walk_pe)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(x + conv(x, data.edge_index, e))
        return self.head(global_add_pool(x, data.batch))[:, 0]


def _norm(wanted: bool) -> nn.Module:
    return nn.BatchNorm1d(16) if wanted else nn.Identity()


def graphs(table: MoleculeTable) -> list[Data]:
    """Convert molecules to PyG's data, with spectra and random walks."""
    found, y, walks = [], ZINC12K.values(table), AddRandomWalkPE(16)
    for m in range(len(table)):
        one = table.rows(torch.tensor([m]))
        ends, bond = one.ends.long(), one.bond.long()
        edge_index = torch.cat([ends, ends.flip(0)], dim=1)
        data = Data(x=one.atom.long(), edge_index=edge_index, edge_attr=bond.repeat(2), y=y[m : m + 1])
        found.append(walks(AddSpectrum()(data)))
    return found


def train(name: str, data: dict[str, list[Data]], options: argparse.Namespace, seed: int) -> list[float]:
    """Train, and return the validation error after every epoch."""
    torch.manual_seed(seed)
    model = Model(name, options.norm)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.rate)
    falls = options.schedule == "cosine"
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs, 0 if falls else options.rate)
    valid = []
    for _ in range(options.epochs):
        model.train()
        for batch in DataLoader(data["train"], batch_size=64, shuffle=True):
            optimizer.zero_grad()
            (model(batch) - batch.y).abs().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        schedule.step()
        model.eval()
        with torch.no_grad():
            errors = [(model(batch) - batch.y).abs() for batch in DataLoader(data["valid"], batch_size=500)]
        valid.append(float(torch.cat(errors).mean()))
    print(name, seed, *(f"{error:.3f}" for error in valid), flush=True)
    return valid


def rise(valid: list[float]) -> float:
    """Return how far the error rises above the best one so far in the second half, as a share of it."""
    return max(valid[i] / min(valid[: i + 1]) for i in range(len(valid) // 2, len(valid))) - 1


def main() -> None:
    """Train every encoder with every seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=int, default=10000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--norm", choices=("batch", "layer"), default="batch", help="of the backbone")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--schedule", choices=("cosine", "constant"), default="cosine")
    parser.add_argument("--encoder", action="append", choices=tuple(ENCODERS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = tables(RunConfig(data="zinc12k"))
    data = {"train": graphs(found.train.rows(torch.arange(options.train))), "valid": graphs(found.valid)}
    rows = []
    for name in options.encoder or ENCODERS:
        began = time.process_time()
        runs = [train(name, data, options, seed) for seed in range(options.seeds)]
        seconds = (time.process_time() - began) / options.seeds / options.epochs
        worst = 100 * max(map(rise, runs))
        last, best = (sum(map(what, runs)) / len(runs) for what in (lambda valid: valid[-1], min))
        rows.append([name, f"{best:.3f}", f"{last:.3f}", f"{worst:.1f} %", f"{seconds:.1f}"])
        print(*rows[-1], sep="  ", flush=True)
    header = ["encoder", "best validation error", "last", "largest rise above the best in the second half", "s an epoch"]
    notes = f"{options.train:,} of ZINC-12k's training molecules, all 1,000 to validate, {options.epochs} epochs, "
    notes += f"{options.norm} norms, {options.schedule} rate from {options.rate}, "
    notes += f"{options.seeds} seeds: errors are means over seeds, the rise is the worst of them; processor seconds."
    print(write_table("plain_training", "The encoder in a plain training loop", header, rows, notes=notes))


if __name__ == "__main__":
    main()
