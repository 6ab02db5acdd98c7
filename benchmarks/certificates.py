"""Reported errors of potentials beside true ones: random graphs of every family, resistances over 20 orders of magnitude.

True errors are taken in 50-digit arithmetic: by LU up to 20 nodes, else by potentials refined until 25 digits stand.
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

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.solve.true_errors import draw_graph, true_error

FLOOR = 1e-15


def main() -> None:
    """Count, per engine, how often the report is below the truth, and how far above it lies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=2000)
    parser.add_argument("--largest", type=int, default=3000)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    refused = 0
    for seed in range(asked.graphs):
        graph, psi = draw_graph(seed, asked.largest)
        try:
            answer = ohm.potentials(graph, psi)
        except ValueError as error:
            refused += 1
            print(f"graph {seed}: {error}", file=sys.stderr)
            continue
        true = true_error(graph, answer.value, psi)
        if answer.error is None or not answer.error >= true:
            print(f"graph {seed}: {answer.method} reports {answer.error}, true is {true}", file=sys.stderr)
        found[answer.method].append((np.nan if answer.error is None else answer.error, true, answer.residual))
    rows = []
    for name, numbers in [*sorted(found.items()), ("all", [x for some in found.values() for x in some])]:
        reported, true, residual = np.array(numbers).T
        ratio = reported / np.maximum(true, FLOOR)
        below, within = int((~(reported >= true)).sum()), (ratio <= 100).mean()
        cells = [name, len(ratio), below, f"{np.median(ratio):.2f}", f"{ratio.max():.0f}", f"{within:.1%}"]
        rows.append([*map(str, cells), f"{true.max():.1e}", f"{residual.max():.1e}"])
    header = [
        "engine",
        "graphs",
        "report below truth",
        "report / truth, median",
        "largest",
        "within 100",
        "largest true error",
    ]
    text = f"{asked.graphs} graphs of 3 to {asked.largest} nodes, {refused} refused at the default tolerance; floor {FLOOR}."
    print(write_table("certificates", "Reported and true errors", [*header, "largest residual"], rows, notes=text))


if __name__ == "__main__":
    main()
