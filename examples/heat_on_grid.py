"""Heat spreads from a corner of a grid, computed by a handful of attention layers, drawn at four times.

python examples/heat_on_grid.py --side 30 --out heat.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure

import ohmformer as ohm
from ohmformer.graph.draw import save

TIMES = (1.0, 5.0, 25.0, 125.0)


def main() -> None:
    """Solve, check that no heat is lost, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("heat.png"))
    arguments = parser.parse_args()
    n = arguments.side
    right = [(r * n + c, r * n + c + 1) for r in range(n) for c in range(n - 1)]
    down = [(r * n + c, (r + 1) * n + c) for r in range(n - 1) for c in range(n)]
    grid = ohm.Graph.from_edges(right + down)
    hot = torch.zeros(n * n, 1, dtype=torch.float64)
    hot[0] = 1.0
    figure = Figure(figsize=(3 * len(TIMES), 3.2), layout="constrained")
    for axis, s in zip(figure.subplots(1, len(TIMES)), TIMES, strict=True):
        answer = ohm.heat_kernel(grid, s, hot)
        total, there = float(answer.value.sum()), float(answer.value[0])
        print(
            f"s = {s:5.0f}: {answer.method}, {answer.layers} layers; {there:.4f} is left in the corner, {total:.9f} in all"
        )
        axis.imshow(answer.value.reshape(n, n).numpy(), cmap="inferno")
        axis.set(title=f"s = {s:g}, {answer.layers} layers", xticks=[], yticks=[])
    print(f"picture: {save(figure, arguments.out)}")


if __name__ == "__main__":
    main()
