"""True errors of potentials and resistances, found without the library's factors, and random graphs to take them on.

Up to some dozen nodes everything is in 50 digits or more; beyond, solves by SciPy are corrected by residuals that are.
"""

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import torch
from scipy.linalg import solve_triangular
from scipy.sparse import coo_array, csc_array
from scipy.sparse.linalg import splu

from ohmformer import Graph
from ohmformer.graph.families import FAMILIES, disjoint, family

Solve = Callable[[np.ndarray], np.ndarray]
DIGITS = 50
DENSE = {"complete": 60, "barbell": 60, "erdos-renyi": 300}
"""Families whose edges grow as the square of their nodes, and how many nodes they get at most."""
ORDERS = (20.0, 20.0, 20.0, 10.0, 4.0, 0.0)
"""Orders of magnitude that resistances range over."""


def draw_graph(seed: int, largest: int = 3000) -> tuple[Graph, torch.Tensor]:
    """A graph of 3 nodes to ``largest``, as many small ones as large ones, sometimes in parts, and two demands on it."""
    draw = torch.Generator().manual_seed(seed)
    rng = np.random.default_rng(seed)
    name = sorted(FAMILIES)[seed % len(FAMILIES)]
    most = min(largest, DENSE.get(name, largest))
    nodes = max(int(np.exp(rng.uniform(np.log(3), np.log(most)))), 5 if name in ("csl", "barbell") else 3)
    parts = [family(name, nodes, generator=draw)]
    if rng.random() < 0.2:
        parts += [family("tree", int(rng.integers(3, 12)), generator=draw), Graph.from_edges([], num_nodes=1)]
    graph = disjoint(*parts)
    half = ORDERS[seed // len(FAMILIES) % len(ORDERS)] / 2
    resistance = 10.0 ** torch.as_tensor(rng.uniform(-half, half, graph.num_edges))
    graph = Graph(graph.edge_index, resistance, graph.batch)
    psi = graph.center(torch.as_tensor(rng.standard_normal((graph.num_nodes, 2))))
    u, v = graph.edge_index[:, int(rng.integers(graph.num_edges))]
    psi[:, 1] = 0.0
    psi[u, 1], psi[v, 1] = 1.0, -1.0
    return graph, psi


def grounded(graph: Graph) -> tuple[csc_array, np.ndarray]:
    """The Laplacian in float64 without one node of every component, and the nodes that are left."""
    first = np.unique(graph.components.numpy(), return_index=True)[1]
    kept = np.setdiff1d(np.arange(graph.num_nodes), first)
    (tail, head), c, n = graph.edge_index.numpy(), 1 / graph.resistance.numpy(), graph.num_nodes
    place = np.concatenate([tail, head, tail, head]), np.concatenate([head, tail, tail, head])
    matrix = csc_array(coo_array((np.concatenate([-c, -c, c, c]), place), shape=(n, n)).tocsc())
    return csc_array(matrix[kept][:, kept]), kept


def by_superlu(graph: Graph) -> Solve:
    """``L^+ psi`` up to constants by SuperLU with pivoting: right to some digits unless resistances range far."""
    matrix, kept = grounded(graph)
    try:
        factor = splu(matrix)
    except RuntimeError:  # by rounding
        return lambda psi: np.full(psi.shape, np.nan)

    def solve(psi: np.ndarray) -> np.ndarray:
        phi = np.zeros(psi.shape)
        phi[kept] = factor.solve(np.ascontiguousarray(psi[kept]))
        return phi

    return solve


def without_subtractions(graph: Graph, block: int = 64) -> Solve:
    """The same by dense elimination in the order of the nodes, every conductance a sum of products."""
    n, (tail, head) = graph.num_nodes, graph.edge_index.numpy()
    c, pivot = np.zeros((n, n)), np.zeros(n)
    np.add.at(c, (np.append(tail, head), np.append(head, tail)), 1 / np.tile(graph.resistance.numpy(), 2))
    for first in range(0, n, block):
        last = min(first + block, n)
        for k in range(first, last):
            pivot[k] = c[k, k + 1 :].sum()
            if pivot[k] > 0:
                c[k + 1 : last, k + 1 :] += np.outer(c[k, k + 1 : last] / pivot[k], c[k, k + 1 :])
        own = c[first:last, last:]
        c[last:, last:] += (own / np.where(pivot > 0, pivot, 1.0)[first:last, None]).T @ own
    inverse = np.where(pivot > 0, 1 / np.where(pivot > 0, pivot, 1.0), 0.0)[:, None]
    upper = np.eye(n) - np.triu(c, 1) * inverse

    def solve(psi: np.ndarray) -> np.ndarray:
        swept = solve_triangular(upper, psi, trans=1, unit_diagonal=True)
        return solve_triangular(upper, swept * inverse, unit_diagonal=True)

    return solve


def true_potentials(graph: Graph, psi: torch.Tensor) -> list[Any]:
    """``L^+ psi`` up to constants, for one demand: potentials refined until they do not change in 25 digits."""
    found = refined(graph, psi, by_superlu(graph)) or refined(graph, psi, without_subtractions(graph))
    assert found is not None, "refinement does not converge"
    return found


def refined(graph: Graph, psi: torch.Tensor, solve: Solve) -> list[Any] | None:
    """Potentials corrected by a solve in float64 for their residual in 50 digits; None if they do not settle."""
    tail, head = graph.edge_index.tolist()
    component, sizes = graph.components.tolist(), graph.components.bincount().tolist()
    with mpmath.workdps(DIGITS):
        resistance = [mpmath.mpf(r) for r in graph.resistance.tolist()]
        demand = [mpmath.mpf(x) for x in psi.tolist()]
        mean = [mpmath.mpf(0)] * len(sizes)
        for c, x in zip(component, demand, strict=True):
            mean[c] += x / sizes[c]
        demand = [x - mean[c] for c, x in zip(component, demand, strict=True)]
        phi, before = [mpmath.mpf(0)] * graph.num_nodes, None
        for _ in range(12):
            left = list(demand)
            for u, v, r in zip(tail, head, resistance, strict=True):
                flow = (phi[u] - phi[v]) / r
                left[u] -= flow
                left[v] += flow
            step = [mpmath.mpf(x) for x in solve(np.array([[float(x)] for x in left]))[:, 0].tolist()]
            phi = [x + y for x, y in zip(phi, step, strict=True)]
            size = energy(graph, step)
            if size <= energy(graph, phi) * mpmath.mpf(10) ** -50:  # a square
                return phi
            if before is not None and not size < before / 4:
                return None
            before = size
    return None


def energy(graph: Graph, phi: list[Any]) -> Any:
    """``|phi|_L^2``."""
    with mpmath.workdps(DIGITS):
        edges = zip(*graph.edge_index.tolist(), graph.resistance.tolist(), strict=True)
        return mpmath.fsum((phi[u] - phi[v]) ** 2 / mpmath.mpf(r) for u, v, r in edges)


def by_elimination(graph: Graph, psi: torch.Tensor) -> list[Any]:
    """The same by an LU factorisation in 50 digits, for a few nodes."""
    component = graph.components.tolist()
    grounds = {component.index(c) for c in set(component)}
    kept = [i for i in range(graph.num_nodes) if i not in grounds]
    with mpmath.workdps(DIGITS + 30):
        laplacian = mpmath.zeros(graph.num_nodes)
        for u, v, r in zip(*graph.edge_index.tolist(), graph.resistance.tolist(), strict=True):
            for i, j, sign in ((u, u, 1), (v, v, 1), (u, v, -1), (v, u, -1)):
                laplacian[i, j] += sign / mpmath.mpf(r)
        demand = [mpmath.mpf(x) for x in psi.tolist()]
        for c in set(component):
            nodes = [i for i in range(graph.num_nodes) if component[i] == c]
            mean = mpmath.fsum(demand[i] for i in nodes) / len(nodes)
            for i in nodes:
                demand[i] -= mean
        phi = [mpmath.mpf(0)] * graph.num_nodes
        matrix = mpmath.matrix([[laplacian[i, j] for j in kept] for i in kept])
        for i, x in zip(kept, mpmath.lu_solve(matrix, mpmath.matrix([demand[i] for i in kept])), strict=True):
            phi[i] = x
        return phi


def true_error(graph: Graph, phi: torch.Tensor, psi: torch.Tensor, exact: int = 20) -> float:
    """``|phi - phi*|_L / |phi*|_L`` of the worst demand; graphs of up to ``exact`` nodes by LU in 50 digits."""
    worst = 0.0
    for x, demand in zip(phi.T, psi.T, strict=True):
        right = (by_elimination if graph.num_nodes <= exact else true_potentials)(graph, demand)
        with mpmath.workdps(DIGITS):
            wrong = [a - mpmath.mpf(b) for a, b in zip(right, x.tolist(), strict=True)]
            worst = max(worst, float(mpmath.sqrt(energy(graph, wrong) / energy(graph, right))))
    return worst


def true_resistance(graph: Graph, u: int, v: int, exact: int = 20) -> Any:
    """The effective resistance of two nodes of one component."""
    psi = torch.zeros(graph.num_nodes, dtype=torch.float64)
    psi[u], psi[v] = 1.0, -1.0
    phi = (by_elimination if graph.num_nodes <= exact else true_potentials)(graph, psi)
    with mpmath.workdps(DIGITS):
        return phi[u] - phi[v]


def resistances_by_cholesky(graph: Graph) -> np.ndarray:
    """Of all pairs, in 80 digits, rounded to long double; inf between components."""
    first = np.unique(graph.components.numpy(), return_index=True)[1]
    kept, n = np.setdiff1d(np.arange(graph.num_nodes), first).tolist(), graph.num_nodes
    with mpmath.workdps(DIGITS + 30):
        laplacian = mpmath.zeros(n)
        for u, v, r in zip(*graph.edge_index.tolist(), graph.resistance.tolist(), strict=True):
            for i, j, sign in ((u, u, 1), (v, v, 1), (u, v, -1), (v, u, -1)):
                laplacian[i, j] += sign / mpmath.mpf(r)
        matrix = mpmath.matrix([[laplacian[i, j] for j in kept] for i in kept])
        lower = mpmath.cholesky(matrix).tolist() if kept else []
        columns = {i: [mpmath.mpf(0)] * len(kept) for i in range(n)}  # of the inverse of the factor; its Gram matrix is G
        for j, node in enumerate(kept):
            x = columns[node]
            for i in range(j, len(kept)):
                x[i] = (int(i == j) - mpmath.fdot(lower[i][j:i], x[j:i])) / lower[i][i]
        found = np.full((n, n), np.inf, dtype=np.longdouble)
        component = graph.components.tolist()
        for u in range(n):
            for v in range(u + 1):
                if component[u] == component[v]:
                    square = mpmath.fsum((a - b) ** 2 for a, b in zip(columns[u], columns[v], strict=True))
                    high = float(square)
                    found[u, v] = found[v, u] = np.longdouble(high) + np.longdouble(float(square - high))
    return found


def true_resistances(graph: Graph, pairs: np.ndarray) -> np.ndarray:
    """Effective resistances of pairs of one component each, right to 17 digits, in long double.

    For potentials phi with residual r, ``R = 2 psi . phi - |phi|_L^2 + r . L^+ r`` exactly; potentials are found in float64
    and refined in long double, and the last term is small.
    """
    for solve, enough in ((by_superlu, 1e-16), (without_subtractions, 3e-12)):  # of the last term SuperLU knows few digits
        found, doubt = _by_principle(graph, pairs, solve(graph))
        if doubt <= enough:
            return found
    raise AssertionError(f"the last term is {doubt:.1e} of a resistance")


def _by_principle(graph: Graph, pairs: np.ndarray, solve: Solve) -> tuple[np.ndarray, float]:
    found, doubt = np.zeros(len(pairs), dtype=np.longdouble), 0.0
    (tail, head), r = graph.edge_index.numpy(), graph.resistance.numpy().astype(np.longdouble)[:, None]
    ends = np.append(tail, head)
    order = np.argsort(ends, kind="stable")
    nodes, begin = np.unique(ends[order], return_index=True)
    for first in range(0, len(pairs), 256):
        u, v = pairs[first : first + 256].T
        column = np.arange(len(u))
        psi = np.zeros((graph.num_nodes, len(u)))
        psi[u, column], psi[v, column] = 1.0, -1.0
        phi = solve(psi)

        def residual(phi: np.ndarray, psi: np.ndarray = psi) -> np.ndarray:
            flow = (phi[tail].astype(np.longdouble) - phi[head]) / r
            left = psi.astype(np.longdouble)
            left[nodes] -= np.add.reduceat(np.concatenate([flow, -flow])[order], begin, axis=0)
            return left.astype(np.float64)

        phi = phi.astype(np.longdouble)
        for _ in range(3):
            phi = phi + solve(residual(phi))
        left = residual(phi)
        drop = phi[tail].astype(np.longdouble) - phi[head]
        last = (left * solve(left)).sum(0)
        value = 2 * (phi[u, column].astype(np.longdouble) - phi[v, column]) - (drop * drop / r).sum(0) + last
        with np.errstate(invalid="ignore"):
            worst = np.abs(last / value).max()
        doubt = max(doubt, float(worst) if np.isfinite(worst) else np.inf)
        found[first : first + 256] = value
    return found, doubt
