"""A batch of 999 molecules and one graph of 2,000 nodes: every question, against its parts asked one after the other."""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import ohmformer as ohm
from measure import megabytes, side_by_side, write_table
from ohmformer import Graph


def ends(graph: Graph) -> tuple[Tensor, Tensor]:
    """The first and the last node of every graph."""
    last = graph.graph_sizes.cumsum(0) - 1
    return last - graph.graph_sizes + 1, last


def flow_between_ends(graph: Graph) -> object:
    """One ampere through every graph."""
    first, last = ends(graph)
    return ohm.current_flow(graph, first.tolist(), last.tolist())


def harmonic_between_ends(graph: Graph) -> object:
    """Potentials between 0 and 1 on the first and the last node of every graph."""
    fixed = torch.cat(ends(graph))
    return ohm.harmonic(graph, fixed, torch.arange(2, dtype=torch.float64).repeat_interleave(len(fixed) // 2))


QUESTIONS: dict[str, Callable[[Graph, Tensor], object]] = {
    "potentials": lambda g, x: ohm.potentials(g, x),
    "electric_flow": lambda g, x: ohm.electric_flow(g, x),
    "effective_resistance, edges": lambda g, x: ohm.effective_resistance(g),
    "effective_resistance, all pairs": lambda g, x: ohm.effective_resistance(g, "all"),
    "effective_resistance, one pair a graph": lambda g, x: ohm.effective_resistance(g, torch.stack(ends(g), dim=1)),
    "spanning_tree_marginals": lambda g, x: ohm.spanning_tree_marginals(g),
    "kirchhoff_index": lambda g, x: ohm.kirchhoff_index(g),
    "pinv_diagonal": lambda g, x: ohm.pinv_diagonal(g),
    "current_flow_closeness": lambda g, x: ohm.current_flow_closeness(g),
    "current_flow, one pair a graph": lambda g, x: flow_between_ends(g),
    "harmonic, two nodes a graph": lambda g, x: harmonic_between_ends(g),
    "kron_reduce, every fifth node": lambda g, x: ohm.kron_reduce(g, torch.arange(0, g.num_nodes, 5, device=g.device)),
    "sparsify, eps=0.5": lambda g, x: ohm.sparsify(g, eps=0.5),
    "resistive_embedding, 8 dimensions": lambda g, x: ohm.resistive_embedding(g, 8),
    "heat_kernel": lambda g, x: ohm.heat_kernel(g, 0.5),
    "heat_kernel of a signal": lambda g, x: ohm.heat_kernel(g, 0.5, x),
    "eigenvectors, 4": lambda g, x: ohm.eigenvectors(g, 4),
    "spectral_filter": lambda g, x: ohm.spectral_filter(g, lambda t: 1 / (1 + t), x),
    "prepare, and potentials": lambda g, x: ohm.prepare(g).potentials(x),
}
"""Every question of the front door, by its name; a test says which are missing."""


def random_graph(nodes: int, extra: int, rng: np.random.Generator) -> Graph:
    """A random tree of short branches and some more edges."""
    tree = [(i, int(rng.integers(max(0, i - 3), i))) for i in range(1, nodes)]
    return Graph.from_edges(tree + rng.integers(0, nodes, (extra, 2)).tolist(), num_nodes=nodes)


def parts_and_batch() -> tuple[Graph, Graph, Graph]:
    """999 molecules, a graph of 2,000 nodes, and both in one batch."""
    rng = np.random.default_rng(0)
    molecules = Graph.collate([random_graph(int(n), 3, rng) for n in rng.integers(15, 36, 999)])
    large = Graph.collate([random_graph(2000, 6000, rng)])
    return molecules, large, Graph.collate([*molecules.split(), *large.split()])


def demand(graph: Graph) -> Tensor:
    """A random demand."""
    return graph.center(torch.randn(graph.num_nodes, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64))


def peak_memory(run: Callable[[], object]) -> float:
    """MB that something takes at its most."""
    ctypes.CDLL(None).malloc_trim(0)  # what earlier questions left counts as used again
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = megabytes("VmRSS")
    run()
    return megabytes("VmHWM") - before


def main() -> None:
    """Measure, print, and write results/mixed_batch.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--question", help="only questions that begin with this; writes no table")
    arguments = parser.parse_args()
    given = {name: (g, demand(g)) for name, g in zip(("molecules", "large", "together"), parts_and_batch(), strict=True)}
    rows = []
    for question, ask in QUESTIONS.items():
        if not question.startswith(arguments.question or ""):
            continue
        runs = {name: lambda g=g, x=x, ask=ask: ask(replace(g), x) for name, (g, x) in given.items()}
        took = side_by_side(runs, repeats=arguments.repeats, warmup=1)
        parts = took["molecules"] + took["large"]
        rows.append(
            [question, f"{took['together']:.3g} s", f"{took['molecules']:.3g} s", f"{took['large']:.3g} s",
             f"{took['together'] / parts:.2f}", f"{peak_memory(runs['together']):.0f} MB"]
        )  # fmt: skip
        print("  ".join(rows[-1]), flush=True)
    if arguments.question:
        return
    header = ["question", "together", "999 molecules", "2,000 nodes", "together / sum of the parts", "memory"]
    print(write_table("mixed_batch", "999 molecules and one graph of 2,000 nodes in one batch", header, rows))


if __name__ == "__main__":
    main()
