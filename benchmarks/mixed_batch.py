"""A batch of 999 molecules and one graph of 2,000 nodes: every question, against its parts asked one after the other."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import ohmformer as ohm
from measure import side_by_side, write_table
from ohmformer import Graph

Ask = Callable[[Graph, Tensor], object]
QUESTIONS: dict[str, Ask] = {
    "potentials": lambda g, x: ohm.potentials(g, x),
    "electric_flow": lambda g, x: ohm.electric_flow(g, x),
    "effective_resistance, edges": lambda g, x: ohm.effective_resistance(g),
    "effective_resistance, all pairs": lambda g, x: ohm.effective_resistance(g, "all"),
    "effective_resistance, 10 pairs": lambda g, x: ohm.effective_resistance(g, [(0, i) for i in range(1, 11)]),
    "kirchhoff_index": lambda g, x: ohm.kirchhoff_index(g),
    "resistive_embedding, 8 dimensions": lambda g, x: ohm.resistive_embedding(g, 8),
    "heat_kernel": lambda g, x: ohm.heat_kernel(g, 0.5),
    "heat_kernel of a signal": lambda g, x: ohm.heat_kernel(g, 0.5, x),
    "eigenvectors, 4": lambda g, x: ohm.eigenvectors(g, 4),
    "spectral_filter": lambda g, x: ohm.spectral_filter(g, lambda t: 1 / (1 + t), x),
}


def random_graph(nodes: int, extra: int, rng: np.random.Generator) -> Graph:
    """A random tree of short branches and some more edges."""
    tree = [(i, int(rng.integers(max(0, i - 3), i))) for i in range(1, nodes)]
    return Graph.from_edges(tree + rng.integers(0, nodes, (extra, 2)).tolist(), num_nodes=nodes)


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


def main() -> None:
    """Measure, print, and write results/mixed_batch.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    molecules = Graph.collate([random_graph(int(n), 3, rng) for n in rng.integers(15, 36, 999)])
    large = Graph.collate([random_graph(2000, 6000, rng)])
    batch = Graph.collate([*molecules.split(), *large.split()])
    signals = {g: g.center(torch.randn(g.num_nodes, 1, dtype=torch.float64)) for g in (molecules, large, batch)}
    rows = []
    for question, ask in QUESTIONS.items():
        runs = {
            name: lambda g=g, ask=ask: ask(replace(g), signals[g])
            for name, g in (("together", batch), ("molecules", molecules), ("large", large))
        }
        took = side_by_side(runs, repeats=arguments.repeats, warmup=1)
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        before = _status("VmRSS")
        runs["together"]()
        peak = _status("VmHWM") - before
        parts = took["molecules"] + took["large"]
        rows.append(
            [question, f"{took['together']:.3g} s", f"{took['molecules']:.3g} s", f"{took['large']:.3g} s",
             f"{took['together'] / parts:.2f}", f"{peak:.0f} MB"]
        )  # fmt: skip
        print("  ".join(rows[-1]), flush=True)
    header = ["question", "together", "999 molecules", "2,000 nodes", "together / sum of the parts", "memory"]
    print(write_table("mixed_batch", "999 molecules and one graph of 2,000 nodes in one batch", header, rows))


if __name__ == "__main__":
    main()
