"""Where animals would pass between habitats: currents between focal cells of a landscape raster.

python examples/landscape.py --side 120 --out landscape.png

A raster of resistances to movement: hills cost more, a river costs much and has two bridges, a lake is no cell at all. One
ampere goes from every habitat to every other; where the sum of currents is high there are few other ways.
"""

from __future__ import annotations

import argparse
from itertools import combinations
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import ohmformer as ohm
from ohmformer.graph.draw import save


def landscape(side: int, seed: int = 0) -> np.ndarray:
    """Smooth hills, a river with two bridges, and a lake."""
    y, x = np.mgrid[:side, :side] / side
    draw = np.random.default_rng(seed)
    hills = sum(
        a * np.cos(2 * np.pi * (u * x + v * y) + p) for a, u, v, p in draw.uniform([0, -4, -4, 0], [1, 4, 4, 6], (12, 4))
    )
    cost = np.exp(hills / 2)
    river = np.abs(y - 0.5 - 0.08 * np.sin(7 * x)) < 0.02
    bridge = (np.abs(x - 0.2) < 0.02) | (np.abs(x - 0.75) < 0.02)
    cost[river & ~bridge] = 1000
    cost[(x - 0.35) ** 2 + (y - 0.25) ** 2 < 0.01] = np.nan
    return cost


def main() -> None:
    """Ask for currents and resistances between all pairs of habitats, and draw the currents."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=120)
    parser.add_argument("--out", type=Path, default=Path("landscape.png"))
    options = parser.parse_args()
    n = options.side
    cost = landscape(n)
    land = ohm.Raster.of(cost, neighbours=8)
    habitats = [(n // 8, n // 8), (n // 8, 7 * n // 8), (7 * n // 8, n // 6), (5 * n // 6, 3 * n // 4)]
    answer = ohm.current_flow(land, habitats)
    print(f"{land.graph}; {answer.method}, residual {answer.residual:.1e}")
    for (i, j), ohms in zip(combinations(range(1, 5), 2), answer.resistance.tolist(), strict=True):
        print(f"from habitat {i} to {j}: {ohms:.3f} ohm")
    current = land.image(answer.nodes).numpy()

    figure = Figure(figsize=(10, 4.6), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis, picture, title in (
        (axes[0], np.log10(cost), "log10 resistance of cells"),
        (axes[1], np.log10(current), "log10 current, sum over pairs"),
    ):
        shown = axis.imshow(picture, cmap="viridis" if axis is axes[0] else "inferno", vmin=None if axis is axes[0] else -2)
        axis.plot(*np.array(habitats).T[::-1], "o", color="white", markeredgecolor="black")
        axis.set_title(title)
        axis.axis("off")
        figure.colorbar(shown, ax=axis, shrink=0.8)
    print(f"picture: {save(figure, options.out)}")


if __name__ == "__main__":
    main()
