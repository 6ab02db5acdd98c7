"""Seeded graphs to test, verify and train on: a family, a size and a seed name a graph completely.

>>> family("barbell", 11, generator=torch.Generator().manual_seed(0))
Graph(nodes=11, edges=22, components=1)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from ohmformer.graph import Graph

Edges = list[tuple[int, int]]


def _path(n: int, draw: torch.Generator) -> Edges:
    return [(i, i + 1) for i in range(n - 1)]


def _ring(n: int, draw: torch.Generator) -> Edges:
    return [(i, (i + 1) % n) for i in range(n)] if n > 2 else _path(n, draw)


def _grid(n: int, draw: torch.Generator) -> Edges:
    width = max(d for d in range(1, int(n**0.5) + 1) if n % d == 0)
    right = [(i, i + 1) for i in range(n) if (i + 1) % width]
    return right + [(i, i + width) for i in range(n - width)]


def _star(n: int, draw: torch.Generator) -> Edges:
    return [(0, i) for i in range(1, n)]


def _tree(n: int, draw: torch.Generator) -> Edges:
    return [(int(torch.randint(i, (), generator=draw)), i) for i in range(1, n)]


def _complete(n: int, draw: torch.Generator) -> Edges:
    return [(i, j) for i in range(n) for j in range(i + 1, n)]


def _barbell(n: int, draw: torch.Generator) -> Edges:
    half = (n - 1) // 2
    left, right = _complete(half, draw), _complete(half, draw)
    bridge = [(i, i + 1) for i in range(half - 1, n - half)]
    return left + bridge + [(n - half + u, n - half + v) for u, v in right]


def _csl(n: int, draw: torch.Generator) -> Edges:
    """Build circular skip links: a ring plus links that skip 2 or 4 ahead (equal to the paper's 8 and 6 for n = 10)."""
    skips = [skip for skip in (2, 4) if 2 * skip < n]
    skip = skips[int(torch.randint(len(skips), (), generator=draw))]
    return _ring(n, draw) + [(i, (i + skip) % n) for i in range(n)]


def _erdos_renyi(n: int, draw: torch.Generator) -> Edges:
    """Add each pair with probability 2 log(n) / n to a random tree, which keeps the graph connected."""
    chance = min(1.0, 2 * float(np.log(max(n, 2))) / max(n, 2))
    pairs = _complete(n, draw)
    chosen = torch.rand(len(pairs), generator=draw) < chance
    tree = _tree(n, draw)
    return tree + [pair for pair, take in zip(pairs, chosen.tolist(), strict=True) if take and pair not in set(tree)]


def _barabasi_albert(n: int, draw: torch.Generator) -> Edges:
    """Link each new node to two old ones, chosen with probability proportional to their degree."""
    edges: Edges = _path(min(n, 3), draw)
    for new in range(3, n):
        ends = [end for edge in edges for end in edge]
        targets: set[int] = set()
        while len(targets) < 2:
            targets.add(ends[int(torch.randint(len(ends), (), generator=draw))])
        edges += [(old, new) for old in sorted(targets)]
    return edges


FAMILIES: dict[str, Callable[[int, torch.Generator], Edges]] = {
    "path": _path,
    "ring": _ring,
    "grid": _grid,
    "star": _star,
    "tree": _tree,
    "complete": _complete,
    "barbell": _barbell,
    "csl": _csl,
    "erdos-renyi": _erdos_renyi,
    "barabasi-albert": _barabasi_albert,
}
"""Generators of connected graphs on n nodes, by name."""


def family(name: str, nodes: int, *, generator: torch.Generator, spread: float = 0.0) -> Graph:
    """Draw a graph of a family with resistances ``exp(U[-spread, spread])``: 1 for spread 0, the paper's for 2."""
    if name not in FAMILIES:
        raise ValueError(f"expected a family among {', '.join(FAMILIES)}, got {name!r}")
    least = {"csl": 5, "barbell": 5, "barabasi-albert": 3}.get(name, 1)
    if nodes < least:
        raise ValueError(f"expected at least {least} nodes for {name}, got {nodes}")
    edges = FAMILIES[name](nodes, generator)
    uniform = torch.rand(len(edges), generator=generator, dtype=torch.float64)
    return Graph.from_edges(edges, num_nodes=nodes, resistance=torch.exp(spread * (2 * uniform - 1)))


def disjoint(*graphs: Graph) -> Graph:
    """Combine several graphs into one disconnected graph."""
    together = Graph.collate(graphs)
    return Graph(together.edge_index, together.resistance, torch.zeros_like(together.batch))


@dataclass(frozen=True)
class Named:
    """A graph with a name."""

    name: str
    graph: Graph


def zoo(seed: int) -> list[Named]:
    """Draw the graphs of ``ohmformer verify``: ten families, two sizes, two kinds of resistances, disconnected mixtures."""
    generator = torch.Generator().manual_seed(seed)
    graphs = [
        Named(f"{name}-{nodes}{'-weighted' if spread else ''}", family(name, nodes, generator=generator, spread=spread))
        for name in FAMILIES
        for nodes in (8, 12)
        for spread in (0.0, 2.0)
    ]
    for spread in (0.0, 2.0):
        for names in (("ring", "path"), ("complete", "star", "csl")):
            parts = [family(name, 6, generator=generator, spread=spread) for name in names]
            alone = Graph.from_edges([], num_nodes=1)
            name = "+".join((*names, "node")) + ("-weighted" if spread else "")
            graphs.append(Named(name, disjoint(*parts, alone)))
    return graphs
