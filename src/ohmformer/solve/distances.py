"""A quick look at whether a graph is long: an upper bound on its smallest eigenvalue from distances, without Lanczos."""

from __future__ import annotations

import torch

from ohmformer import native
from ohmformer.graph import Graph
from ohmformer.graph.memory import recall
from ohmformer.solve.rows import edges_of, rows_of


def lmin_at_most(graph: Graph) -> float:
    """Bound the smallest nonzero eigenvalue of the scaled Laplacian from above; kept for the next question.

    The bound is the smallest Rayleigh quotient, over the components, of the hop distance from a far node: sharp up to a
    small factor on paths, grids and meshes, and infinite where distances say nothing, as on expanders, whose nodes are all
    about equally far. Needs kernels.
    """
    return recall(graph, "lmin at most", lambda: _least_quotient(graph))


def _least_quotient(graph: Graph) -> float:
    nodes = graph.num_nodes
    if not graph.num_edges:
        return float("inf")
    rows, (tail, head, conductance) = rows_of(graph), edges_of(graph)
    degree = rows.degree
    queue, hops = torch.empty(2, nodes, dtype=torch.int32)
    native.call("ohm_distances", nodes, rows.start, rows.column, queue, hops)
    if int(hops.max()) < 4 * nodes.bit_length():  # about the distances of an expander
        return float("inf")
    f, component = hops.double(), graph.components.cpu()
    none = f.new_zeros(graph.num_components)
    mass = none.index_add(0, component, degree)
    f -= (none.index_add(0, component, degree * f) / torch.where(mass > 0, mass, 1.0))[component]
    energy = none.index_add(0, component[tail], conductance * (f[tail] - f[head]).square())
    size = none.index_add(0, component, degree * f.square())
    return float(torch.where(size > 0, energy / torch.where(size > 0, size, 1.0), torch.inf).min())
