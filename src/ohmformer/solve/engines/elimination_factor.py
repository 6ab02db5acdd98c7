"""An approximate Cholesky factor of a Laplacian by sampled elimination, in C (``elimination.c``) and plainly.

Nodes are eliminated by their current number of edges. Exact elimination of a node with conductance W and neighbours with
conductances w_j would add edges of ``w_j w_k / W`` between all of them; here, with neighbours in ascending order of w, each
but the last is joined to one later neighbour, drawn by conductance, with ``w_j S_j / W`` where S_j is the sum of all later
ones: the same in expectation (Kyng and Sachdeva 2016; Gao, Kyng and Spielman 2023). Trees are eliminated exactly.

Large graphs come in parts. Nodes without a neighbour in another part are eliminated first, so that neither this nor a sweep
over their rows changes anything in another part, and threads can take parts; then follow the nodes between the parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ohmformer import native
from ohmformer.graph import Graph
from ohmformer.solve.rows import edges_of

EXACT, BUCKETS = 64, 264
"""Degrees with a bucket of their own, and all buckets: larger degrees have eight buckets per doubling."""
MASK = 2**64 - 1


@dataclass(frozen=True, eq=False)
class Factor:
    """``P L P^T ~ (I - F) diag(1 / inverse) (I - F)^T`` with rows in the order of elimination.

    F is strictly lower triangular: column s holds the shares of row s of the arrays below.
    """

    order: Int[Tensor, " nodes"]
    """The node of every row."""
    place: Int[Tensor, " nodes"]
    """The row of every node."""
    begin: Int[Tensor, " rows_and_end"]
    """The start of every row's neighbours."""
    neighbour: Int[Tensor, " entries"]
    """Rows, all later than the row whose neighbours they are."""
    share: Float[Tensor, " entries"]
    """The fractions of a row's conductance to its neighbours; they sum to one. The last of a component has none."""
    inverse: Float[Tensor, " nodes"]
    """The reciprocal conductance of a row when it is eliminated; zero for the last of a component."""
    first: Int[Tensor, " parts_and_two"]
    """The first row of every part, of the nodes between parts, and the number of rows."""


def eliminate(graph: Graph, *, part: Int[Tensor, " nodes"] | None = None, seed: int = 0, in_c: bool) -> Factor:
    """Compute the factor of a graph or batch with all components; the same in C and by NumPy.

    ``part`` numbers the part of every node; without it the graph is one part.
    """
    nodes, edges = graph.num_nodes, graph.num_edges
    part = torch.zeros(nodes, dtype=torch.int32) if part is None else part
    if not in_c:
        return _by_numpy(graph, part, seed)
    tail, head, conductance = edges_of(graph)
    parts = _count(part)
    first = torch.empty(parts + 2, dtype=torch.int64)
    order, place = torch.empty(2, nodes, dtype=torch.int32)
    begin, found = torch.empty(nodes + 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    inverse = torch.empty(nodes, dtype=torch.float64)
    times = 2
    while True:
        room = times * (nodes + 2 * edges)  # unused memory costs nothing
        neighbour, share = (torch.from_numpy(np.zeros(room, dtype)) for dtype in (np.int32, np.float64))
        arrays = tail, head, conductance, part, first, order, place, begin, neighbour, share, inverse, found
        native.call("ohm_eliminate", nodes, edges, parts, seed, times, *arrays)
        entries = int(found)
        if entries >= 0:
            return Factor(order, place, begin, neighbour[:entries], share[:entries], inverse, first)
        times *= 4


def _count(part: Int[Tensor, " nodes"]) -> int:
    return 1 + int(part.max()) if len(part) else 1


def _bucket(degree: int) -> int:
    if degree < EXACT:
        return degree
    bits = degree.bit_length()
    return EXACT + 8 * (bits - 7) + (degree >> (bits - 4) & 7)


def _draw(seed: int, count: int) -> float:
    """Return number ``count`` of a random sequence (splitmix64), in [0, 1)."""
    z = (seed + (count + 1) * 0x9E3779B97F4A7C15) & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return ((z ^ z >> 31) >> 11) * 2.0**-53


class _Elimination:
    """The state of an elimination: edges as lists ``[one end, other end, conductance]``, zero once removed."""

    def __init__(self, graph: Graph, seed: int) -> None:
        self.seed, self.drawn = seed, 0
        self.edges: list[list[list]] = [[] for _ in range(graph.num_nodes)]  # every edge is in the lists of both ends
        for tail, head, c in zip(*(x.tolist() for x in edges_of(graph)), strict=True):
            edge = [tail, head, c]
            self.edges[tail].append(edge)
            self.edges[head].append(edge)
        self.degree = [len(edges) for edges in self.edges]
        self.bucket: dict[int, int] = {}
        """The bucket of every node that is in the queue."""
        self.queue: list[dict[int, None]] = [{} for _ in range(BUCKETS)]

    def begin_part(self, part: int, nodes: list[int]) -> None:
        """Fill the queue with the nodes of a part, which has random numbers of its own."""
        self.drawn = part << 40
        self.bucket = {node: _bucket(self.degree[node]) for node in nodes}
        for node, bucket in self.bucket.items():
            self.queue[bucket][node] = None

    def next(self) -> int:
        """Return a node of lowest degree, the last one added to its bucket, and remove it from the queue."""
        node = next(bucket for bucket in self.queue if bucket).popitem()[0]
        del self.bucket[node]
        return node

    def neighbours(self, node: int) -> list[tuple[float, int, list]]:
        """Return conductances, neighbours and edges of a node by ascending conductance, with parallel edges merged."""
        found: dict[int, tuple[float, list]] = {}
        for edge in reversed(self.edges[node]):
            if edge[2] == 0:
                continue
            other = edge[1] if edge[0] == node else edge[0]
            if other in found:
                found[other] = found[other][0] + edge[2], found[other][1]
                edge[2] = 0.0
                self.degree[other] -= 1
            else:
                found[other] = edge[2], edge
        return sorted((c, other, edge) for other, (c, edge) in found.items())

    def eliminate(self, around: list[tuple[float, int, list]]) -> tuple[list[int], list[float], float]:
        """Join the neighbours of a node; return them, their shares, and the reciprocal conductance."""
        total, after = 0.0, np.zeros(len(around))
        for j in reversed(range(len(around))):
            after[j], total = total, total + around[j][0]
        for j, (c, one, edge) in enumerate(around[:-1]):
            at = _draw(self.seed, self.drawn) * after[j]
            self.drawn += 1
            other = around[next(k for k in range(j + 1, len(around)) if after[k] <= at)][1]
            edge[:] = [one, other, max(c * (float(after[j]) / total), 1e-300)]
            self.edges[other].append(edge)
            self.degree[other] += 1
        if around:
            around[-1][2][2] = 0.0
            self.degree[around[-1][1]] -= 1
        for _, other, _ in around:
            bucket = _bucket(self.degree[other])
            if bucket != self.bucket.get(other, bucket):
                del self.queue[self.bucket[other]][other]
                self.bucket[other] = bucket
                self.queue[bucket][other] = None
        return [other for _, other, _ in around], [c / total for c, _, _ in around], 1 / total if around else 0.0


def _by_numpy(graph: Graph, part: Int[Tensor, " nodes"], seed: int) -> Factor:
    """Compute the same factor as the kernel, edge by edge: slow, but short enough to check against the description."""
    state, owner = _Elimination(graph, seed), part.tolist()
    for tail, head in graph.edge_index.t().tolist():
        if part[tail] != part[head]:
            owner[tail] = owner[head] = _count(part)
    order, neighbours, shares, inverse, begin, first = [], [], [], [], [0], [0]
    for number in range(_count(part) + 1):
        nodes = [node for node, its in enumerate(owner) if its == number]
        state.begin_part(number, nodes)
        for _ in nodes:
            node = state.next()
            found = state.eliminate(state.neighbours(node))
            order.append(node)
            neighbours += found[0]
            shares += found[1]
            inverse.append(found[2])
            begin.append(len(neighbours))
        first.append(len(order))
    rows = torch.tensor(order, dtype=torch.int32)
    place = torch.empty_like(rows)
    place[rows.long()] = torch.arange(len(order), dtype=torch.int32)
    neighbour = place[torch.tensor(neighbours, dtype=torch.long)]
    share, reciprocal = (torch.tensor(x, dtype=torch.float64) for x in (shares, inverse))
    return Factor(rows, place, torch.tensor(begin), neighbour, share, reciprocal, torch.tensor(first))
