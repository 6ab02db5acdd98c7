"""Distances in a graph: a bound on its smallest eigenvalue without Lanczos, and parts of it for several threads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from ohmformer import native
from ohmformer.graph import Graph
from ohmformer.graph.memory import recall
from ohmformer.solve.costs import FEWEST_PARTS, HOPS_OF_A_PART, MAYBE_LONG, NODES_OF_A_PART
from ohmformer.solve.rows import edges_of, rows_of


@dataclass(frozen=True, eq=False)
class Distances:
    """Distances in hops from a far node of every component."""

    order: Int[Tensor, " nodes"]
    """The nodes, component by component, by their distance."""
    hops: Int[Tensor, " nodes"]
    """-1 where the search stopped early, as it does on graphs that expand."""

    @property
    def farthest(self) -> int:
        """The largest distance; zero if it says nothing, as on expanders, whose nodes are all about equally far."""
        most = int(self.hops.max()) if len(self.hops) else 0
        return most if most >= 4 * len(self.hops).bit_length() else 0


def distances_of(graph: Graph) -> Distances:
    """Compute distances by breadth-first search; kept for the next question about the same graph. Needs kernels."""
    return recall(graph, "distances", lambda: _distances(graph))


def _distances(graph: Graph) -> Distances:
    rows = rows_of(graph)
    order, hops = torch.empty(2, graph.num_nodes, dtype=torch.int32)
    native.call("ohm_distances", graph.num_nodes, rows.start, rows.column, order, hops)
    return Distances(order, hops)


def parts_of(graph: Graph) -> Int[Tensor, " nodes"]:
    """Number the parts of a long graph by distance, and of any other graph as one part. Needs kernels.

    They depend on the graph alone, not on the number of threads. With p parts and distances up to d, about 2 p / d of the
    nodes have neighbours in another part.
    """
    nodes = graph.num_nodes
    number = torch.zeros(nodes, dtype=torch.int32)
    if nodes < FEWEST_PARTS * NODES_OF_A_PART or graph.num_edges > MAYBE_LONG * nodes:
        return number
    found = distances_of(graph)
    most = native.KERNELS["ohm_conjugate"].limits["parts"]
    parts = min(nodes // NODES_OF_A_PART, found.farthest // HOPS_OF_A_PART, most)
    if parts >= FEWEST_PARTS and bool((found.hops >= 0).all()):
        number[found.order.long()] = (torch.arange(nodes) * parts // nodes).int()
    return number


def lmin_at_most(graph: Graph) -> float:
    """Bound the smallest nonzero eigenvalue of the scaled Laplacian from above; kept for the next question.

    The bound is the smallest Rayleigh quotient, over the components, of the hop distance from a far node: sharp up to a
    small factor on paths, grids and meshes, and infinite where distances say nothing. Needs kernels.
    """
    return recall(graph, "lmin at most", lambda: _least_quotient(graph))


def _least_quotient(graph: Graph) -> float:
    if not graph.num_edges or not (found := distances_of(graph)).farthest:
        return float("inf")
    degree, (tail, head, conductance) = rows_of(graph).degree, edges_of(graph)
    f, component = found.hops.double(), graph.components.cpu()
    none = f.new_zeros(graph.num_components)
    mass = none.index_add(0, component, degree)
    f -= (none.index_add(0, component, degree * f) / torch.where(mass > 0, mass, 1.0))[component]
    energy = none.index_add(0, component[tail], conductance * (f[tail] - f[head]).square())
    size = none.index_add(0, component, degree * f.square())
    return float(torch.where(size > 0, energy / torch.where(size > 0, size, 1.0), torch.inf).min())
