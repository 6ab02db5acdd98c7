"""Pictures of circuits: potentials as colours on nodes, currents as arrows on edges."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer.graph import Graph, circuit
from ohmformer.graph.extras import check_modules
from ohmformer.graph.files import check_writable, whole_file
from ohmformer.graph.places import Place, least_stress

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST_NODES = 150
"""Largest graph to draw; larger ones would be illegible and slow to lay out."""
PICTURES = (".png", ".svg", ".pdf", ".jpg", ".jpeg")


def check_picture(path: Path, graph: Graph | None = None) -> None:
    """Raise unless a picture can be written under this name and, if a graph is given, the graph can be drawn."""
    if path.suffix.lower() not in PICTURES:
        raise ValueError(f"expected a picture of type {', '.join(PICTURES)}, got {path.name}")
    check_modules(("matplotlib",), "plot")
    check_writable(path)
    if graph is not None and not 1 <= graph.num_nodes <= MOST_NODES:
        raise ValueError(f"expected 1 to {MOST_NODES} nodes for a picture of a circuit, got {graph.num_nodes}")


def draw_circuit(
    graph: Graph,
    potential: Float[Tensor, " nodes"],
    injected: Float[Tensor, " nodes"],
    *,
    title: str,
    positions: dict[int, Place] | None = None,
    labels: Sequence[str] | None = None,
) -> Figure:
    """Draw a solved circuit. ``injected`` is the current injected at each node; it flows from high to low potential."""
    check_modules(("matplotlib",), "plot")
    if not 1 <= graph.num_nodes <= MOST_NODES:
        raise ValueError(f"expected 1 to {MOST_NODES} nodes for a picture of a circuit, got {graph.num_nodes}")
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyArrowPatch

    figure = Figure(figsize=(8, 4.4), layout="constrained")
    axes = figure.add_subplot()
    place = positions or dict(enumerate(least_stress(graph)))
    current = circuit.flow(graph, potential[:, None])[:, 0]
    strongest = max(float(current.abs().max()) if graph.num_edges else 0.0, 1e-300)
    for (u, v), i, r in zip(graph.edge_index.t().tolist(), current.tolist(), graph.resistance.tolist(), strict=True):
        start, end = (place[u], place[v]) if i >= 0 else (place[v], place[u])
        share = abs(i) / strongest
        axes.add_patch(
            FancyArrowPatch(
                start, end, arrowstyle="-|>" if share > 1e-9 else "-", shrinkA=17, shrinkB=17,
                mutation_scale=10 + 10 * share, linewidth=0.8 + 3.2 * share, color="0.35", zorder=1,
            )
        )  # fmt: skip
        middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
        axes.annotate(
            f"{abs(i):.2f} A\n{r:g} Ω", middle, ha="center", va="center", fontsize=8, zorder=3,
            bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.85},
        )  # fmt: skip
    _draw_nodes(axes, place, potential, injected, labels or [str(i) for i in range(graph.num_nodes)], figure)
    axes.set_title(title)
    axes.set_axis_off()
    axes.margins(0.1, 0.16)
    return figure


def _draw_nodes(
    axes: Axes,
    place: dict[int, Place],
    potential: Tensor,
    injected: Tensor,
    labels: Sequence[str],
    figure: Figure,
) -> None:
    x, y = zip(*(place[i] for i in range(len(potential))), strict=True)
    dots = axes.scatter(x, y, c=potential.tolist(), s=900, cmap="viridis", edgecolors="black", zorder=2)
    figure.colorbar(dots, ax=axes, label="potential (V)", shrink=0.8)
    middle = float(potential.min() + potential.max()) / 2
    for node, (value, flowing) in enumerate(zip(potential.tolist(), injected.tolist(), strict=True)):
        axes.annotate(
            f"{labels[node]}\n{value:.2f}", place[node], ha="center", va="center", fontsize=8, zorder=4,
            color="white" if value < middle else "black",
        )  # fmt: skip
        if abs(flowing) > 1e-12:
            word = f"{flowing:g} A in" if flowing > 0 else f"{-flowing:g} A out"
            axes.annotate(
                word, place[node], xytext=(0, -30), textcoords="offset points", ha="center", fontsize=9, weight="bold",
                zorder=5, bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.85},
            )  # fmt: skip


def save(figure: Figure, path: Path) -> Path:
    """Write a figure under a temporary name, then rename it, so that no partial file is ever visible."""
    with whole_file(path) as temporary:
        figure.savefig(temporary, dpi=150)
    return path


def save_both(figure: Figure, path: Path) -> list[Path]:
    """Save a figure as .svg and as .png."""
    return [save(figure, path.with_name(path.name + suffix)) for suffix in (".svg", ".png")]


def wheatstone() -> tuple[Graph, Tensor, dict[int, Place]]:
    """Return a Wheatstone bridge with a ladder behind it: the graph, the injected current, and positions of the nodes."""
    edges = [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (1, 4), (3, 5), (4, 5)]
    graph = Graph.from_edges(edges, resistance=[1.0, 2.0, 3.0, 2.0, 1.0, 2.0, 1.0, 4.0])
    injected = torch.zeros(6, dtype=torch.float64)
    injected[0], injected[5] = 1.0, -1.0
    return graph, injected, dict(enumerate([(0.0, 0.5), (1.0, 1.1), (1.0, -0.1), (2.0, 0.5), (2.2, 1.5), (3.2, 0.5)]))
