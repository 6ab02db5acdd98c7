"""Reported errors beside true ones: random graphs of every family, resistances over 20 orders of magnitude.

True errors of potentials are taken in 50-digit arithmetic, those of resistances in long double or, up to 60 nodes, 80
digits; nothing in them is made by the library.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

import ohmformer as ohm
from measure import write_table
from ohmformer import Graph

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.solve.true_errors import draw_graph, resistances_by_cholesky, true_error, true_resistances

FLOOR = 1e-15
EXACT = 60
"""Nodes up to which all pairs are looked at."""
SOME = 500
"""Edges of larger graphs that are looked at, if there are more, beside 50 pairs."""
Found = tuple[str, float, float, float]
"""What was asked and which engine answered, the reported and the true error, and the residual."""


def main() -> None:
    """Count, per question and engine, how often the report is below the truth, and how far above it lies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=2000)
    parser.add_argument("--largest", type=int, default=3000)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    refused = 0
    for seed in range(asked.graphs):
        graph, psi = draw_graph(seed, asked.largest)
        for question in (_potentials, _resistances):
            try:
                rows = question(graph, psi, seed)
            except ValueError as error:
                refused += 1
                print(f"graph {seed}: {error}", file=sys.stderr)
                continue
            for name, reported, true, residual in rows:
                if not reported >= true:
                    print(f"graph {seed}: {name} reports {reported}, true is {true}", file=sys.stderr)
                found[name].append((reported, true, residual))
    groups = sorted(found.items())
    for what in ("potentials", "all pairs", "edges", "pairs"):
        groups.append((f"**{what}**", [x for name, some in found.items() if name.startswith(f"{what}:") for x in some]))
    rows = []
    for name, numbers in groups:
        reported, true, residual = np.array(numbers).reshape(-1, 3).T
        ratio = reported / np.maximum(true, FLOOR)
        below, within = int((~(reported >= true)).sum()), (ratio <= 100).mean()
        cells = [name, len(ratio), below, f"{np.median(ratio):.2f}", f"{ratio.max(initial=0):.0f}", f"{within:.1%}"]
        rows.append([*map(str, cells), f"{true.max(initial=0):.1e}", f"{residual.max(initial=0):.1e}"])
    header = ["question: engine", "graphs", "report below truth", "report / truth, median", "largest", "within 100"]
    text = (
        f"{asked.graphs} graphs of 3 to {asked.largest} nodes, {refused} refused at the default tolerance; floor {FLOOR}. "
    )
    text += f"All pairs up to {EXACT} nodes; beyond, all edges or {SOME} of them, and 50 pairs at random."
    columns = [*header, "largest true error", "largest residual"]
    print(write_table("certificates", "Reported and true errors", columns, rows, notes=text))


def _potentials(graph: Graph, psi: torch.Tensor, seed: int) -> list[Found]:
    answer = ohm.potentials(graph, psi)
    return [_found("potentials", answer, true_error(graph, answer.value, psi))]


def _resistances(graph: Graph, psi: torch.Tensor, seed: int) -> list[Found]:
    """Of all pairs, of all edges and of some pairs, as a user would ask for them."""
    rng, component, n = np.random.default_rng(seed), graph.components.numpy(), graph.num_nodes
    edges = rng.permutation(graph.num_edges)[:SOME] if n > EXACT else np.arange(graph.num_edges)
    pairs = rng.integers(0, n, (400, 2))
    pairs = pairs[(pairs[:, 0] != pairs[:, 1]) & (component[pairs[:, 0]] == component[pairs[:, 1]])][:50]
    every = np.concatenate([graph.edge_index.t().numpy()[edges], pairs])
    matrix = resistances_by_cholesky(graph) if n <= EXACT else None
    right = true_resistances(graph, every) if matrix is None else matrix[tuple(every.T)]
    found = []
    if matrix is not None:
        answer, real = ohm.effective_resistance(graph, "all"), np.isfinite(matrix) & (matrix > 0)
        found.append(_found("all pairs", answer, _off(answer.value.numpy()[real], matrix[real])))
    answer = ohm.effective_resistance(graph)
    found.append(_found("edges", answer, _off(answer.value.numpy()[edges], right[: len(edges)])))
    answer = ohm.effective_resistance(graph, torch.as_tensor(pairs))
    return [*found, _found("pairs", answer, _off(answer.value.numpy(), right[len(edges) :]))]


def _off(value: np.ndarray, right: np.ndarray) -> float:
    return float(np.abs(value / right - 1).max(initial=0.0))


def _found(what: str, answer: ohm.Answer, true: float) -> Found:
    return f"{what}: {answer.method}", np.nan if answer.error is None else answer.error, true, answer.residual


if __name__ == "__main__":
    main()
