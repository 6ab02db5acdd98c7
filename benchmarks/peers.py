"""How ours and every other library is asked the same question, from edge arrays in memory to a checked answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from scipy.sparse import coo_array, csc_array
from scipy.sparse.csgraph import connected_components

from graphs import Edges

TOL = 1e-8
BUDGET = 8.0
"""Seconds after which demands that are taken one by one, or edges, are left off and their time is extrapolated."""

Solve = Callable[[np.ndarray], np.ndarray]

left_off = [0.0, 0.0]
"""Seconds by the clock and of the processor that what was left off of the last answer would have taken."""


class Grounded:
    """The Laplacian without the first node of every component, as SciPy's users build it."""

    def __init__(self, edges: Edges) -> None:
        (u, v), c, n = edges.ends.T, edges.conductance, edges.nodes
        weights = coo_array((np.concatenate([c, c]), (np.concatenate([u, v]), np.concatenate([v, u]))), shape=(n, n)).tocsr()
        self.kept = np.ones(n, dtype=bool)
        self.kept[np.unique(connected_components(weights, directed=False)[1], return_index=True)[1]] = False
        degree = weights.sum(axis=0)
        laplacian = coo_array((degree, (np.arange(n), np.arange(n))), shape=(n, n)).tocsr() - weights
        self.matrix = csc_array(laplacian[self.kept].tocsc()[:, self.kept])

    def potentials(self, solve: Solve, demands: np.ndarray) -> np.ndarray:
        """Potentials, zero at the grounded nodes; the residual is looked at, as a careful user does."""
        b = np.ascontiguousarray(demands[self.kept])
        x = solve(b)
        if not np.isfinite(np.linalg.norm(b - self.matrix @ x)):
            raise ValueError("expected a finite residual")
        phi = np.zeros_like(demands)
        phi[self.kept] = x
        return phi


# ------------------------------------------------------------------------------------------------ their solvers


def superlu(matrix: csc_array) -> Solve:
    """SciPy's sparse LU in symmetric mode."""
    from scipy.sparse.linalg import splu

    options = {"SymmetricMode": True, "Equil": False}
    return splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options).solve


def cholmod(matrix: csc_array) -> Solve:
    """CHOLMOD through cholespy."""
    library: Any = import_module("cholespy")
    first, row = matrix.indptr.astype(np.int32), matrix.indices.astype(np.int32)
    solver = library.CholeskySolverD(len(first) - 1, first, row, matrix.data, library.MatrixType.CSC)

    def solve(b: np.ndarray) -> np.ndarray:
        x = np.zeros_like(b)
        solver.solve(b, x)
        return x

    return solve


def pyamg(matrix: csc_array) -> Solve:
    """Conjugate gradients with smoothed aggregation."""
    library: Any = import_module("pyamg")
    levels = library.smoothed_aggregation_solver(matrix.tocsr())
    return _one_by_one(lambda b: levels.solve(b, tol=TOL, accel="cg", maxiter=500))


def apxchol(matrix: csc_array) -> Solve:
    """Conjugate gradients with ETH's approximate Cholesky factor."""
    library: Any = import_module("apxchol")
    solver = library.factorize(matrix)
    return _one_by_one(lambda b: solver.solve(b, rtol=TOL).x)


PEERS: dict[str, Callable[[csc_array], Solve]] = {
    "superlu": superlu,
    "cholmod": cholmod,
    "pyamg": pyamg,
    "apxchol": apxchol,
}


def _one_by_one(solve: Solve) -> Solve:
    def solve_all(b: np.ndarray) -> np.ndarray:
        if b.ndim == 1:
            return solve(b)
        x, start = np.zeros_like(b), _now()
        for done in range(1, b.shape[1] + 1):
            x[:, done - 1] = solve(np.ascontiguousarray(b[:, done - 1]))
            if _over(start, done, b.shape[1]):
                break
        return x

    return solve_all


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _over(start: tuple[float, float], done: int, total: int) -> bool:
    """Whether the budget is used up since the first demand; the rest is extrapolated."""
    took = [now - then for now, then in zip(_now(), start, strict=True)]
    if took[0] <= BUDGET or done == total:
        return False
    left_off[:] = [seconds * (total / done - 1) for seconds in took]
    return True


# ------------------------------------------------------------------------------------------------ potentials


def potentials_by(solver: str, edges: Edges) -> Solve:
    """From edge arrays to a function that answers demands."""
    if solver == "ours":
        import torch

        import ohmformer as ohm

        graph = ohm.Graph.from_edges(edges.ends, num_nodes=edges.nodes, conductance=edges.conductance)
        return lambda b: ohm.potentials(graph, torch.as_tensor(b), tol=TOL).value.numpy()
    system = Grounded(edges)
    solve = PEERS[solver](system.matrix)
    return lambda b: system.potentials(solve, b)


def pair_by(solver: str, edges: Edges) -> float:
    """The resistance of the first edge: NetworKit and networkx have this instead of potentials."""
    whole, inside = _largest(edges)
    u, v = whole.ends[0].tolist()
    if solver == "networkit":
        library: Any = import_module("networkit")
        commute = library.distance.CommuteTimeDistance(_networkit(whole), TOL).runSinglePair(u, v)
        return commute**2 / (2 * float(edges.conductance[inside].sum()))
    library = import_module("networkx")
    return float(library.resistance_distance(_networkx(whole), u, v, weight="c", invert_weight=False))


# ------------------------------------------------------------------------------------------------ all edges


def resistances_by(solver: str, edges: Edges, eps: float | None) -> np.ndarray:
    """From edge arrays to the resistances of all edges, estimated to ``eps`` where ours is; 0 for those left off."""
    if solver in PEERS:
        return _by_columns(edges, PEERS[solver])
    if solver == "ours":
        import ohmformer as ohm

        graph = ohm.Graph.from_edges(edges.ends, num_nodes=edges.nodes, conductance=edges.conductance)
        answer = ohm.effective_resistance(graph) if eps is None else ohm.effective_resistance(graph, eps=eps)
        return answer.value.numpy()
    (whole, inside), library, found = _largest(edges), import_module(solver), np.zeros(len(edges.ends))
    if solver == "networkit":
        asked = library.centrality.SpanningEdgeCentrality(_networkit(whole), 1e-6 if eps is None else eps)
        asked.run() if eps is None else asked.runParallelApproximation()
        found[inside] = asked.scores()
    else:
        pairs = library.resistance_distance(_networkx(whole), weight="c", invert_weight=False)
        found[inside] = [pairs[u][v] for u, v in whole.ends.tolist()]
    return found


def _by_columns(edges: Edges, factorise: Callable[[csc_array], Solve]) -> np.ndarray:
    """A demand for every edge, 64 at a time."""
    system = Grounded(edges)
    solve = factorise(system.matrix)
    found, start = np.zeros(len(edges.ends)), _now()
    for first in range(0, len(found), 64):
        u, v = edges.ends[first : first + 64].T
        b, column = np.zeros((edges.nodes, len(u))), np.arange(len(u))
        b[u, column], b[v, column] = 1.0, -1.0
        x = np.zeros_like(b)
        x[system.kept] = solve(np.ascontiguousarray(b[system.kept]))
        found[first : first + 64] = x[u, column] - x[v, column]
        if _over(start, first + len(u), len(found)):
            break
    return found


def _largest(edges: Edges) -> tuple[Edges, np.ndarray]:
    """The largest component, and which edges it has: NetworKit and networkx refuse more than one."""
    label = connected_components(coo_array((edges.conductance, edges.ends.T), shape=(edges.nodes,) * 2))[1]
    chosen = label == np.bincount(label).argmax()
    inside = chosen[edges.ends[:, 0]]
    number = np.cumsum(chosen) - 1
    return Edges(int(chosen.sum()), number[edges.ends[inside]], edges.conductance[inside]), inside


def _networkit(edges: Edges) -> Any:
    library: Any = import_module("networkit")
    tail, head = np.ascontiguousarray(edges.ends.T)
    return library.GraphFromCoo((edges.conductance, (tail, head)), n=edges.nodes, weighted=True, edgesIndexed=True)


def _networkx(edges: Edges) -> Any:
    graph = import_module("networkx").MultiGraph()
    graph.add_weighted_edges_from(zip(*edges.ends.T.tolist(), edges.conductance.tolist(), strict=True), weight="c")
    return graph
