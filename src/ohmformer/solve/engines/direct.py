"""Engines ``direct`` and ``multigrid``: a sparse factor, pyamg; and ARPACK for eigenvectors of large graphs."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse import csc_array
from torch import Tensor

from ohmformer.graph import Graph
from ohmformer.solve.answer import Answer
from ohmformer.solve.certificate import energy_norm, measure, rounding_norm
from ohmformer.solve.engines.base import Problem
from ohmformer.solve.factor import look, prepared

EXACT = 1e-13
"""An error that is not made smaller."""
ROUNDS = 4
MARGIN = 1.1
"""The solution for a residual is right to ``eps sqrt(kappa)`` times a small multiple of the nodes: 1e-5 for resistances over
twenty orders of magnitude."""

Apply = Callable[[Float[Tensor, "nodes k"]], Float[Tensor, "nodes k"]]


class DirectEngine:
    """A sparse factor, or multigrid, and solves for the residual as often as it helps."""

    def __init__(self, name: str, inverse: Callable[[Graph], Apply], package: str | None = None) -> None:
        self.name, self._inverse, self._package = name, inverse, package

    def supports(self, problem: Problem) -> str | None:
        """Every graph, if the package is installed."""
        if self._package and not find_spec(self._package):
            return (
                f"expected {self._package} to be installed for method={self.name!r}, it is not; pip install {self._package}"
            )
        return None

    def run(self, problem: Problem) -> Answer:
        """Solve, and solve for the residual, which gives the error; add that while it makes the error smaller."""
        graph, psi = problem.graph, problem.demands
        apply = self._inverse(graph)
        kind = "bound" if self.name == "sparse LU" and look(graph) is not None else "estimate"
        phi, answer = apply(psi), None
        for _ in range(ROUNDS):
            now = measure(graph, phi, psi)
            missing = apply(now.left.to(psi))
            norm = MARGIN * energy_norm(graph, missing)
            error = now.error(norm)
            if answer is not None and not error < (answer.error or 0.0):
                break
            exact = error <= EXACT
            rounded = not exact and psi.dtype == torch.float64 and bool((norm <= 2 * rounding_norm(graph, phi)).all())
            answer = Answer(phi, self.name, 0, now.residual, None, error=error, error_kind=kind, rounded=rounded)
            if exact or rounded:
                break
            phi = phi + missing
        assert answer is not None
        return answer


def by_sparse_lu(graph: Graph) -> Apply:
    """``psi -> L^+ psi`` by our own factor, which is kept for the next question, or by SuperLU where that is too large."""
    factor = prepared(graph)
    if factor is None:
        return on_kept_nodes(graph, _factorised)

    def apply(psi: Tensor) -> Tensor:
        found = factor.solve(psi.detach().double().cpu().numpy())
        return graph.center(torch.as_tensor(found).to(psi))

    return apply


def by_multigrid(graph: Graph) -> Apply:
    """``psi -> L^+ psi`` by pyamg's smoothed aggregation."""
    return on_kept_nodes(graph, _multigrid)


def on_kept_nodes(graph: Graph, prepare: Callable[[csc_array], Callable[[np.ndarray], np.ndarray]]) -> Apply:
    """Ground the first node of every component, solve on the others, and centre."""
    matrix, kept = _grounded(graph)
    solve = prepare(matrix)

    def apply(psi: Tensor) -> Tensor:
        phi = torch.zeros_like(psi)
        if len(kept):
            phi[kept] = torch.as_tensor(solve(psi[kept].detach().double().cpu().numpy())).to(psi)
        return graph.center(phi)

    return apply


def _grounded(graph: Graph) -> tuple[csc_array, Tensor]:
    """The Laplacian without the first node of every component, and the nodes that are left."""
    first = np.unique(graph.components.cpu().numpy(), return_index=True)[1]
    keep = np.ones(graph.num_nodes, dtype=bool)
    keep[first] = False
    number = np.cumsum(keep) - 1
    tail, head = graph.edge_index.cpu().numpy()
    c = 1 / graph.resistance.detach().cpu().double().numpy()
    inner = keep[tail] & keep[head]
    degree = graph.degrees()[keep]
    rows = np.concatenate([number[tail[inner]], number[head[inner]], np.arange(len(degree))])
    columns = np.concatenate([number[head[inner]], number[tail[inner]], np.arange(len(degree))])
    values = np.concatenate([-c[inner], -c[inner], degree])
    matrix = csc_array((values, (rows, columns)), shape=(len(degree), len(degree)))
    return matrix, torch.as_tensor(np.nonzero(keep)[0], device=graph.device)


def _factorised(matrix: csc_array) -> Callable[[np.ndarray], np.ndarray]:
    """A sparse LU factorisation."""
    from scipy.sparse.linalg import splu

    return splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}).solve


def _multigrid(matrix: csc_array) -> Callable[[np.ndarray], np.ndarray]:
    """Conjugate gradients preconditioned by smoothed aggregation, one demand after the other."""
    import pyamg

    levels: Any = pyamg.smoothed_aggregation_solver(matrix.tocsr())

    def solve(psi: np.ndarray) -> np.ndarray:
        columns = [levels.solve(np.ascontiguousarray(b), tol=1e-10, accel="cg", maxiter=200) for b in psi.T]
        return np.stack(columns, axis=1)

    return solve


def eigenpairs(graph: Graph, k: int, which: str, pinv: Apply | None) -> tuple[Float[Tensor, " k"], Float[Tensor, "nodes k"]]:
    """``k`` eigenpairs of one large graph by ARPACK's Lanczos, seeded: the largest of L, or with ``pinv`` of ``L^+``."""
    from scipy.sparse.linalg import LinearOperator, eigsh

    n = graph.num_nodes
    csr = graph.sparse_laplacian().detach().double()
    start = graph.center(torch.as_tensor(np.random.default_rng(0).standard_normal((n, 1))))[:, 0].numpy()

    def multiply(x: np.ndarray) -> np.ndarray:
        column = torch.as_tensor(x, dtype=torch.float64).reshape(n, 1)
        return (csr @ column if pinv is None else pinv(graph.center(column))).numpy()[:, 0]

    operator: Any = LinearOperator((n, n), matvec=multiply, dtype=np.float64)  # pyright: ignore[reportCallIssue]
    values, vectors = eigsh(operator, k=k, which="LA", v0=start)
    order = np.argsort(-values)
    found = torch.linalg.qr(graph.center(torch.as_tensor(vectors[:, order].copy()))).Q
    quotient = (found * (csr @ found)).sum(0)
    return quotient, found
