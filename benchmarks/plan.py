"""What the plan predicts beside what engines take, and how much of an answer goes into choosing how to find it.

Seconds are of the processor, on one thread. Graphs below the line were not looked at when the constants of
``solve/costs.py`` were fitted. Roads and power grids come out of wheels, see graphs.py.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import ohmformer as ohm
from graphs import GRAPHS, WHEELS, Edges, barabasi_albert, geometric, grid, mesh, random
from measure import write_table
from ohmformer.graph.memory import recall, remembered
from ohmformer.solve.rows import rows_of
from ohmformer.solve.scaled import Scaled

TOL, LIMIT = 1e-8, 6.0
HELD_OUT: dict[str, Callable[[], Edges]] = {
    "grid 150 x 150": lambda: grid(150, seed=1),
    "mesh, 40,000 nodes": lambda: mesh(40_000, seed=1),
    "geometric, 50,000 nodes": lambda: geometric(50_000, seed=1),
    "random, 1.5 edges a node": lambda: random(50_000, 75_000, seed=1),
    "random, 2 edges a node": lambda: random(30_000, 60_000, seed=1),
    "random, 5 edges a node": lambda: random(20_000, 100_000, seed=1),
    "Barabasi-Albert, 20,000 nodes": lambda: barabasi_albert(20_000, 4, seed=1),
}
EXPANDERS: dict[str, Callable[[], Edges]] = {
    "random, 200,000 nodes, 10^6 edges": lambda: random(200_000, 1_000_000),
    "Barabasi-Albert, 100,000 nodes, 4 edges a node": lambda: barabasi_albert(100_000, 4),
    "random, 20,000 nodes, 10^5 edges": lambda: random(20_000, 100_000),
}


def made(edges: Edges) -> ohm.Graph:
    """A graph that nothing is known of."""
    ohm.forget()
    return ohm.Graph.from_edges(edges.ends, num_nodes=edges.nodes, conductance=edges.conductance)


def demands(graph: ohm.Graph, count: int) -> torch.Tensor:
    """Random demands that sum to zero on every component."""
    draw = torch.Generator().manual_seed(count)
    return graph.center(torch.randn(graph.num_nodes, count, generator=draw, dtype=torch.float64))


def seconds(run: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, float]:
    """What a call gives, and its processor seconds."""
    start = time.process_time()
    found = run(*args, **options)
    return found, time.process_time() - start


def prepare(graph: ohm.Graph) -> None:
    """What every answer needs: the graph by rows, and its scaled Laplacian."""
    rows_of(graph)
    recall(graph, "scaled", lambda: Scaled.of(graph))


def predictions(name: str, edges: Edges, repeats: int) -> list[list[str]]:
    """Rows of engines, with one demand and with 64: predicted and taken."""
    rows = []
    for count in (1, 64):
        b = demands(made(edges), count)
        for method in ("elimination", "direct", "conjugate", "chebyshev"):
            predicted = ohm.plan(made(edges), demands=count, tol=TOL, method=method).parts[0].predicted
            if not predicted < LIMIT or (method == "conjugate" and count > 3):
                continue
            try:
                best = min(seconds(ohm.potentials, made(edges), b, tol=TOL, method=method)[1] for _ in range(repeats))
            except ValueError:  # Lanczos gave up, and layers do not reach the tolerance: the plan would not ask for them
                continue
            rows.append([name, str(count), method, f"{predicted:.3g}", f"{best:.3g}", f"{predicted / best:.2f}"])
    return rows


def probing(name: str, edges: Edges, repeats: int) -> list[list[str]]:
    """Rows of demands: a first answer beside the same one where the ends of the spectrum are known beforehand."""
    rows = []
    for count in (1, 3, 4, 8, 16, 32, 64):
        b, blind, told, rest, answer = demands(made(edges), count), [], [], [], None
        for _ in range(repeats):
            graph = made(edges)
            rest.append(seconds(prepare, graph)[1])
            answer, took = seconds(ohm.potentials, graph, b, tol=TOL)
            blind.append(took)
            known = {what: remembered(graph, what) for what in ("ends", "lmin at most")}
            graph = made(edges)
            prepare(graph)
            for what, value in known.items():
                recall(graph, what, lambda value=value: value)
            told.append(seconds(ohm.potentials, graph, b, tol=TOL)[1])
        one, two, whole = (statistics.median(x) for x in (blind, told, rest))
        cells = [f"{one + whole:.3g}", f"{one - two:.2g}", f"{(one - two) / (one + whole):.2f}"]
        rows.append([name, str(count), answer.method if answer else "", *cells])
    return rows


def main() -> None:
    """Measure, and write results/plan.md and results/probing.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheels", type=Path, default=WHEELS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=("plan", "probing"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ohm.potentials(made(grid(25)), demands(made(grid(25)), 2))  # what is made at a first call
    if arguments.only != "plan":
        rows = [row for name, edges in EXPANDERS.items() for row in probing(name, edges(), arguments.repeats)]
        header = ["graph", "demands", "engine", "answer, s", "of it probing, s", "share"]
        notes = (
            "Processor seconds of a first question, medians. Probing is what it takes longer than where the ends of the "
            "spectrum are known: distances and Lanczos before layers, a random demand beside conjugate gradients."
        )
        print(write_table("probing", "How much of an answer goes into choosing its engine", header, rows, notes=notes))
    if arguments.only != "probing":
        fitted = [name for name in GRAPHS if name not in ("grid1000", "barabasi", "random")]
        known = [(GRAPHS[name][0], GRAPHS[name][1](arguments.wheels)) for name in fitted]
        others = [(f"not fitted: {name}", edges()) for name, edges in HELD_OUT.items()]
        rows = [row for name, edges in known + others for row in predictions(name, edges, arguments.repeats)]
        header = ["graph", "demands", "engine", "predicted, s", "took, s", "predicted / took"]
        best = f"best of {arguments.repeats}"
        notes = f"Processor seconds of a first question to {TOL:g}, {best}; none that is predicted above {LIMIT:g} s."
        print(write_table("plan", "What answers were predicted to take", header, rows, notes=notes))


if __name__ == "__main__":
    main()
