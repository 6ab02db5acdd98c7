"""What a training step of the Graph Transformer costs, next to the paper's layer transcribed.

Ours in float32, and with matrix products in bfloat16 by torch's autocast (`precision="bfloat16"`).

python benchmarks/molecules.py --smiles zinc_valid.smi.gz
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from measure import side_by_side, write_table
from ohmformer.experiments.molecules.batches import MoleculeBatch, Split
from ohmformer.experiments.molecules.config import RunConfig
from ohmformer.experiments.molecules.encodings import keep
from ohmformer.experiments.molecules.model import MoleculeModel
from ohmformer.experiments.molecules.table import MoleculeTable, from_smiles
from ohmformer.graph.smiles import read_smiles


class TranscribedLayer(nn.Module):
    """The paper's layer as its equations read: one map per letter, edges gathered and scattered, batch norm by torch."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.maps = nn.ModuleDict({name: nn.Linear(width, width) for name in "QKVEOP"})
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)) for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(4))

    def forward(self, h: Tensor, e: Tensor, batch: MoleculeBatch) -> tuple[Tensor, Tensor]:
        """New h and e."""
        split = (-1, self.heads, self.width // self.heads)
        q, k, v, seen = (self.maps[name](x).view(split) for name, x in zip("QKVE", (h, h, h, e), strict=True))
        w = k[batch.source] * q[batch.target] * seen
        score = (w.sum(-1, keepdim=True) / (self.width // self.heads) ** 0.5).clamp(-5, 5).exp()
        total = torch.zeros(len(h), self.heads, 1).index_add(0, batch.target, score)
        mixed = torch.zeros_like(v).index_add(0, batch.target, score * v[batch.source]) / total
        h = self.norms[0](h + self.maps["O"](mixed.flatten(1)))
        e = self.norms[1](e + self.maps["P"](w.flatten(1)))
        return self.norms[2](h + self.mlps[0](h)), self.norms[3](e + self.mlps[1](e))


class Transcribed(nn.Module):
    """The paper's Graph Transformer without encoding, as a straightforward reader would write it."""

    def __init__(self, atoms: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.atom, self.bond = nn.Embedding(atoms, width), nn.Embedding(4, width)
        self.layers = nn.ModuleList(TranscribedLayer(width, heads) for _ in range(layers))
        self.readout = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, batch: MoleculeBatch, draw: torch.Generator) -> Tensor:
        """A number per molecule."""
        h, e = self.atom(batch.atom), self.bond(batch.bond)
        for layer in self.layers:
            h, e = layer(h, e, batch)
        pooled = torch.zeros(len(batch.sizes), h.shape[1]).index_add(0, batch.owner, h) / batch.sizes[:, None]
        return self.readout(pooled)[:, 0]


def step(model: nn.Module, split: Split, batch: int, *, fused: bool) -> Callable[[], None]:
    """Make a whole training step, from batch to optimiser: torch's default, or the fused one that we train with."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    draw = torch.Generator().manual_seed(0)

    def run() -> None:
        molecules = split.take(torch.randint(0, len(split), (batch,), generator=draw))
        loss = (model(molecules, draw) - molecules.y).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return run


def throughput(table: MoleculeTable, batch: int, repeats: int) -> list[list[str]]:
    """Measure molecules per second of every model, relative to the transcription and to the model without encoding."""
    y = torch.zeros(len(table))
    candidates: dict[str, Callable[[], object]] = {
        "transcribed layer by layer": step(Transcribed(len(table.labels), 128, 8, 4), Split(table, y), batch, fused=False)
    }
    for precision in ("float32", "bfloat16"):
        for encoding in ("none", "lt-diagonal", "lt-pairs"):
            config = RunConfig(encoding=encoding, width=128, groups=16, loops=1, precision=precision)
            split = Split(table, y, *keep(config, table))
            model = MoleculeModel(config, len(table.labels), 64)
            candidates[f"{precision}: {encoding}"] = step(model, split, batch, fused=True)
    with FlopCounterMode(display=False) as counter:
        candidates["float32: none"]()
    print(f"{counter.get_total_flops() / batch / 1e6:.0f} million operations of matrix products per molecule and step")
    seconds = side_by_side(candidates, repeats=repeats, in_a_row=10, warmup=2)
    plain = seconds["transcribed layer by layer"]
    rows = []
    for name, s in seconds.items():
        kind, _, encoding = name.rpartition(": ")
        on_top = f"{s / seconds[f'{kind}: none'] - 1:+.0%}" if encoding.startswith("lt-") else ""
        rows.append([name, f"{batch / s:.0f}", f"{plain / s:.2f}", on_top])
    return rows


def main() -> None:
    """Measure and write ``results/molecules.md``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smiles", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    smiles = list(read_smiles(options.smiles))
    rows = throughput(from_smiles(smiles[:2000])[0], options.batch, options.repeats)
    header = [
        "training step, 128 wide, 4 layers",
        "molecules per second",
        "times the transcription",
        "on top of no encoding",
    ]
    write_table("molecules", "Training the Graph Transformer", header, rows, notes=f"Batches of {options.batch}.")


if __name__ == "__main__":
    main()
