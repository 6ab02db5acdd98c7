"""A graph as it is drawn: names, places, edges and resistances, within limits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from ohmformer.graph import Graph
from ohmformer.graph.places import UNIT, Place

MOST_NODES = 500
MOST_EDGES = 2000
LONGEST_NAME = 60
OHMS = (1e-3, 1e3)
"""The least and the largest resistance; beyond a ratio of a million a picture of layers says little."""
FARTHEST = 1e5
"""The largest distance of a node from the origin."""


@dataclass(frozen=True)
class Drawing:
    """A drawn graph: nodes with names and positions, edges ``(u, v)`` with resistances; checked when it is made.

    >>> Drawing(("a", "b"), ((0.0, 0.0), (100.0, 0.0)), ((0, 1),), (2.0,)).graph()
    Graph(nodes=2, edges=1, components=1)
    """

    names: tuple[str, ...]
    places: tuple[Place, ...]
    edges: tuple[tuple[int, int], ...]
    ohms: tuple[float, ...]

    def __post_init__(self) -> None:
        nodes = len(self.names)
        check_size(nodes, len(self.edges))
        if len(self.places) != nodes or len(self.ohms) != len(self.edges):
            raise ValueError("expected one place per node and one resistance per edge")
        if len(set(self.names)) != nodes:
            raise ValueError("expected every node to have a name of its own, got one twice")
        for name in self.names:
            if not 1 <= len(name) <= LONGEST_NAME or not name.isprintable():
                raise ValueError(f"expected names of 1 to {LONGEST_NAME} printable characters, got {name[:40]!r}")
        for place in self.places:
            if not all(math.isfinite(x) and abs(x) <= FARTHEST for x in place):
                raise ValueError(f"expected places within {FARTHEST:g} of the origin, got {place}")
        for u, v in self.edges:
            if not (0 <= u < nodes and 0 <= v < nodes and u != v):
                raise ValueError(f"expected edges between two of the nodes 0 to {nodes - 1}, got {u} and {v}")
        for ohm in self.ohms:
            if not OHMS[0] <= ohm <= OHMS[1]:
                raise ValueError(f"expected a resistance from {OHMS[0]:g} to {OHMS[1]:g} ohm, got {ohm:g}")

    def graph(self) -> Graph:
        """Convert to a graph, in float64."""
        edges = torch.tensor(self.edges, dtype=torch.long).reshape(-1, 2)
        return Graph.from_edges(edges, num_nodes=len(self.names), resistance=torch.tensor(self.ohms, dtype=torch.float64))

    # ------------------------------------------------------------------------------------------------ changes

    def add_node(self, place: Place | None) -> Drawing:
        """Add a node, named by the least free number; beside the rightmost one unless a place is given."""
        if place is None:
            right, y = max(self.places, default=(-UNIT, 0.0))
            place = (right + UNIT, y)
        taken = set(self.names)
        name = next(str(i) for i in range(len(taken) + 1) if str(i) not in taken)
        return replace(self, names=(*self.names, name), places=(*self.places, place))

    def add_edge(self, u: int, v: int) -> Drawing:
        """Add an edge of one ohm."""
        if {u, v} in [set(edge) for edge in self.edges]:
            raise ValueError(f"expected two nodes that are not joined yet, {self.name(u)} and {self.name(v)} are")
        return replace(self, edges=(*self.edges, (u, v)), ohms=(*self.ohms, 1.0))

    def drop_node(self, i: int) -> Drawing:
        """Remove a node and its edges; later nodes are renumbered."""
        self.name(i)
        kept = [j for j, edge in enumerate(self.edges) if i not in edge]

        def moved(u: int) -> int:
            return u - (u > i)

        return Drawing(
            self.names[:i] + self.names[i + 1 :],
            self.places[:i] + self.places[i + 1 :],
            tuple((moved(u), moved(v)) for u, v in (self.edges[j] for j in kept)),
            tuple(self.ohms[j] for j in kept),
        )

    def drop_edge(self, j: int) -> Drawing:
        """Remove an edge."""
        self._check_edge(j)
        return replace(self, edges=self.edges[:j] + self.edges[j + 1 :], ohms=self.ohms[:j] + self.ohms[j + 1 :])

    def with_ohm(self, j: int, ohm: float) -> Drawing:
        """Set the resistance of an edge."""
        self._check_edge(j)
        return replace(self, ohms=(*self.ohms[:j], ohm, *self.ohms[j + 1 :]))

    def with_place(self, i: int, place: Place) -> Drawing:
        """Move a node."""
        self.name(i)
        return replace(self, places=(*self.places[:i], place, *self.places[i + 1 :]))

    def name(self, i: int) -> str:
        """Look up the name of a node; a ValueError if there is no such node."""
        if not 0 <= i < len(self.names):
            raise ValueError(f"expected one of the {len(self.names)} nodes, got number {i}")
        return self.names[i]

    def _check_edge(self, j: int) -> None:
        if not 0 <= j < len(self.edges):
            raise ValueError(f"expected one of the {len(self.edges)} edges, got number {j}")


def check_size(nodes: int, edges: int) -> None:
    """Raise a ValueError if a graph is too large for the page."""
    if nodes > MOST_NODES:
        raise ValueError(f"expected at most {MOST_NODES} nodes, got {nodes}; larger graphs: ohmformer solve FILE")
    if edges > MOST_EDGES:
        raise ValueError(f"expected at most {MOST_EDGES} edges, got {edges}; larger graphs: ohmformer solve FILE")
