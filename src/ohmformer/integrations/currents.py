"""Compute currents between many pairs of nodes at once, and their sums: the numerics of the networkx backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

import ohmformer as ohm
from ohmformer.graph import Graph
from ohmformer.solve import selected
from ohmformer.solve.costs import SMALL
from ohmformer.solve.currents import sum_of_differences

TOL = 1e-9
"""The residual tolerance of every linear system."""
DENSE = 8000
"""Largest graph, in nodes, for LAPACK and a sparse LU, which is certain to fit in memory."""
CELLS = 1 << 22
"""Number of entries in one slice of right-hand sides of a large graph."""


def ask(question: Callable[..., ohm.Answer], graph: Graph, *args: Any, **options: Any) -> Tensor:
    """Call a library function at :data:`TOL`, by a direct solver if it fits; its ValueErrors become NotImplementedErrors."""
    if question is not ohm.eigenvectors:
        options["method"] = "direct" if graph.num_nodes <= DENSE else "auto"
    try:
        return question(graph, *args, tol=TOL, **options).value
    except ValueError as error:
        raise NotImplementedError(str(error)) from error


def slice_width(graph: Graph) -> int:
    """Return the number of right-hand sides per slice."""
    return max(CELLS // max(graph.num_nodes, 1), 1)


def units(graph: Graph, nodes: Int[Tensor, " chosen"]) -> Float[Tensor, "nodes chosen"]:
    """Return the columns of ``L^+`` of the given nodes."""
    demands = torch.zeros(graph.num_nodes, len(nodes), dtype=torch.float64)
    demands[nodes, torch.arange(len(nodes))] = 1.0
    return ask(ohm.potentials, graph, demands, center=True)


def pair_potentials(graph: Graph, pairs: Int[Tensor, "pairs 2"]) -> Float[Tensor, "nodes pairs"]:
    """Return ``L^+ (e_u - e_v)`` for every pair."""
    demands = torch.zeros(graph.num_nodes, len(pairs), dtype=torch.float64)
    column = torch.arange(len(pairs))
    demands[pairs[:, 0], column] = 1.0
    demands[pairs[:, 1], column] = -1.0
    return ask(ohm.potentials, graph, demands)


def pinv_diagonal(graph: Graph) -> Float[Tensor, " nodes"]:
    """Return the diagonal of ``L^+`` of a connected graph, from a sparse factor of a large graph if that is affordable.

    Otherwise by Cholesky if ``L + t J / n`` is well conditioned, else column by column. With t the mean degree,
    ``(L + t J / n)^-1 = L^+ + J / (n t)``.
    """
    n = graph.num_nodes
    if n > SMALL and (diagonal := selected.pinv_diagonal(graph)) is not None:
        return diagonal
    if 1 < n <= DENSE // 2:
        matrix = graph.laplacian()
        t = float(matrix.diagonal().mean())
        factor, failed = torch.linalg.cholesky_ex(matrix + t / n)
        pivots = factor.diagonal()
        if not failed and float(pivots.min()) > 1e-3 * float(pivots.max()):
            return torch.cholesky_inverse(factor).diagonal() - 1 / (n * t)
    parts = torch.arange(n).split(slice_width(graph))
    return torch.cat([units(graph, part)[part, torch.arange(len(part))] for part in parts])


def pair_flows(graph: Graph, groups: list[Tensor]) -> Float[Tensor, " edges"]:
    """Return ``sum |I_e|`` over all pairs within one group of nodes, or over the pairs between two groups.

    A unit current from s to t drives ``f_s - f_t`` through an edge, with ``f_s = c (L^+_us - L^+_vs)``, so this is a sum of
    absolute differences. Within a group it takes a sort; between two it is the sum of their union minus those of each.
    """
    nodes = torch.cat(groups)
    total = torch.zeros(graph.num_edges, dtype=torch.float64)
    for part, rows in edge_rows(graph, nodes):
        sums = sum_of_differences(rows)
        if len(groups) == 2:
            for group in rows.split([len(g) for g in groups], dim=1):
                sums = sums - sum_of_differences(group)
        total[part] = sums
    return total


def edge_rows(graph: Graph, nodes: Int[Tensor, " chosen"]) -> Iterator[tuple[slice, Float[Tensor, "part chosen"]]]:
    """Yield, for slices of edges, the flow ``c (L^+_us - L^+_vs)`` of a unit current from each given node s.

    It is computed from the columns of ``L^+`` of those nodes if these fit, else from those of the edges, slice by slice.
    """
    fits = graph.num_nodes * len(nodes) <= 16 * CELLS
    columns = units(graph, nodes) if fits else None
    step = slice_width(graph)
    for start in range(0, graph.num_edges, step):
        part = slice(start, start + step)
        tail, head = ends = graph.edge_index[:, part]
        drop = columns[tail] - columns[head] if columns is not None else pair_potentials(graph, ends.t())[nodes].t()
        yield part, drop / graph.resistance[part, None]
