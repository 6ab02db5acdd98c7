"""Engine ``direct``: a sparse factor, kept for the next question; and ARPACK for eigenvectors of large graphs.

The factor is our own (:mod:`ohmformer.solve.factor`), chosen by measurement: with 64 demands on a weighted grid of 300 x 300
it takes 0.47 s, SuperLU in symmetric mode 0.86 s, CHOLMOD through cholespy 0.83 s; with one demand 0.14, 0.30 and 0.52 s
(process time, one thread, a busy machine; ``benchmarks/real_graphs.py`` measures again). It uses no subtractions, so its
error is known, and its size is known in advance. SciPy's SuperLU is used only without kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse import csc_array
from torch import Tensor

from ohmformer import native
from ohmformer.graph import Graph
from ohmformer.graph.memory import forget, remembered
from ohmformer.solve.answer import Answer
from ohmformer.solve.certificate import MARGIN, Sizes, energy_norm, measure, rounding_norm, worst_residual
from ohmformer.solve.engines.base import Problem
from ohmformer.solve.factor import Factor, look, prepared, that_fits
from ohmformer.solve.scaled import Scaled

EXACT = 1e-13
"""Errors below this are not reduced further."""
ROUNDS = 4
SAME = 1e-6
"""Eigenvalues that differ by less than this, relative to the largest, count as one when missing copies are looked for."""

EDITED = "edited factor"
"""Key under which a graph stores the factor of the graph it was edited from, :mod:`ohmformer.solve.edits`."""
Apply = Callable[[Float[Tensor, "nodes k"]], Float[Tensor, "nodes k"]]


class DirectEngine:
    """A sparse factor with iterative refinement."""

    name = "direct"

    def supports(self, problem: Problem) -> str | None:
        """Support every graph whose factor fits in memory."""
        if native.active() is None or remembered(problem.graph, EDITED):
            return None
        if look(problem.graph) or look(problem.graph, most := that_fits()):
            return None
        return (
            f"expected a factor of at most {most.entries} entries for method='direct', half of the memory, got a "
            f"graph of {problem.graph.num_nodes} nodes and {problem.graph.num_edges} edges whose factor has more; "
            "use method='elimination'"
        )

    def run(self, problem: Problem) -> Answer:
        """Solve with the kept factor; if it is from before edits and misses the tolerance, make a new one."""
        answer = self._solve(problem)
        if remembered(problem.graph, EDITED) and not max(answer.residual, answer.error or 0.0) <= problem.tol:
            forget(problem.graph)
            answer = self._solve(problem)
        return answer

    def _solve(self, problem: Problem) -> Answer:
        """Solve, and measure the residual and its energy, the error; refine while needed."""
        graph, psi = problem.graph, problem.demands
        inverse = inverse_of(graph)
        (phi, now, norm), answer = inverse.solve(psi), None
        for _ in range(ROUNDS):
            norm = MARGIN * norm
            error = now.error(norm)
            if answer is not None and not error < (answer.error or 0.0):
                break
            enough = error <= EXACT or max(now.residual, error) <= problem.tol
            rounded = not enough and psi.dtype == torch.float64 and bool((norm <= 2 * rounding_norm(graph, phi)).all())
            kind = "bound" if inverse.proved else "estimate"
            answer = Answer(phi, self.name, 0, now.residual, None, error=error, error_kind=kind, rounded=rounded)
            if enough or rounded:
                break
            phi, now, norm = inverse.measured(phi + inverse.apply(measure(graph, phi, psi).left.to(psi)), psi)
        assert answer is not None
        return answer


Measurement = tuple[Float[Tensor, "nodes k"], Sizes, Float[Tensor, "graphs k"]]
"""Potentials, the sizes of their residual, and the energy norm of ``L^+`` times the residual."""


@dataclass(frozen=True, eq=False)
class Inverse:
    """``L^+`` of a graph through a factor."""

    graph: Graph
    apply: Apply
    """``psi -> L^+ psi``, centred."""
    norm: Callable[[Float[Tensor, "nodes k"]], Float[Tensor, "graphs k"]]
    """The energy norm of ``L^+ psi``, ``(psi . L^+ psi)^(1/2)``."""
    factor: Factor | None = None
    """Our own factor, accurate to rounding for any resistances; None if another is used."""

    @property
    def proved(self) -> bool:
        """Whether errors are proved bounds."""
        return self.factor is not None

    def solve(self, psi: Float[Tensor, "nodes k"]) -> Measurement:
        """Compute ``L^+ psi`` and measure it; in C, in a single call."""
        graph, factor = self.graph, self.factor
        if factor is None or native.active() is None or psi.dtype != torch.float64 or graph.device.type != "cpu":
            return self.measured(self.apply(psi), psi)
        phi, sums = factor.answer(psi, graph)
        gap, energy, size, of_gap = sums.unbind(1)
        return phi, Sizes(energy, worst_residual(gap, size)), of_gap.sqrt()

    def measured(self, phi: Float[Tensor, "nodes k"], psi: Float[Tensor, "nodes k"]) -> Measurement:
        """Measure residual and error of potentials."""
        now = measure(self.graph, phi, psi)
        return phi, now, self.norm(now.left)


def inverse_of(graph: Graph) -> Inverse:
    """Return ``L^+`` from our own factor, kept for the next question, or from SuperLU's on large graphs without kernels."""
    edited = remembered(graph, EDITED)
    if edited is not None and edited.changes:
        apply = lambda psi: graph.center_(edited.solve(psi).to(psi))  # noqa: E731
        return Inverse(graph, apply, lambda psi: energy_norm(graph, apply(graph.center(psi))))
    factor = edited.factor if edited else prepared(graph) or (prepared(graph, that_fits()) if native.active() else None)
    if factor is None:
        apply = on_kept_nodes(graph, _superlu)
        return Inverse(graph, apply, lambda psi: energy_norm(graph, apply(graph.center(psi))))
    return Inverse(
        graph,
        lambda psi: graph.center_(factor.solve(psi).to(psi)),
        lambda psi: factor.energy(psi, graph).to(graph.device).sqrt(),
        factor,
    )


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


def _superlu(matrix: csc_array) -> Callable[[np.ndarray], np.ndarray]:
    """Return the solve function of a sparse LU factorization."""
    from scipy.sparse.linalg import splu

    return splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}).solve


def _grounded(graph: Graph) -> tuple[csc_array, Tensor]:
    """Return the Laplacian without the first node of every component, and the remaining nodes."""
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


def eigenpairs(
    graph: Graph, k: int, which: str, pinv: Apply | None, scaled: Scaled | None = None
) -> tuple[Float[Tensor, " k"], Float[Tensor, "nodes k"]]:
    """Compute ``k`` eigenpairs of a large graph by ARPACK, seeded: the largest of L, or with ``pinv`` of ``L^+``.

    With ``scaled`` those of ``N = D^-1/2 L D^-1/2``; ``N^+`` is ``D^1/2 L^+ D^1/2`` between projections on the range of N.
    """
    n = graph.num_nodes
    csr = graph.sparse_laplacian().detach().double()
    project = graph.center if scaled is None else scaled.project
    times = csr.__matmul__ if scaled is None else scaled.times
    up = 1.0 if scaled is None else torch.where(scaled.root > 0, 1 / scaled.root, 0.0)  # D^1/2
    start = project(torch.as_tensor(np.random.default_rng(0).standard_normal((n, 1))))[:, 0].numpy()

    def multiply(x: np.ndarray) -> np.ndarray:
        column = torch.as_tensor(x, dtype=torch.float64).reshape(n, 1)
        return (times(column) if pinv is None else project(up * pinv(graph.center(up * project(column))))).numpy()[:, 0]

    found = torch.linalg.qr(project(torch.as_tensor(_leading(multiply, k, start)))).Q
    quotient = (found * times(found)).sum(0)
    return quotient, found


def _leading(multiply: Callable[[np.ndarray], np.ndarray], k: int, start: np.ndarray) -> Float[np.ndarray, "n k"]:
    """Return eigenvectors of the ``k`` largest eigenvalues, descending, of a positive semidefinite operator.

    From one start Lanczos finds every eigenvalue, but of a multiple one perhaps not all vectors. So the largest eigenvalue
    on the complement of what was found is compared with the k-th one, to half of the distance from the k-th to the next
    larger one, of which a copy may be missing; vectors are exchanged until none is larger. Measured, where none is missing:
    20 to 50 products more on graphs for which Lanczos takes 40 to 270, 8 % more where it takes 4,800.
    """
    from scipy.sparse.linalg import LinearOperator, eigsh

    draw = np.random.default_rng(1)

    def besides(found: np.ndarray, k: int, start: np.ndarray, tol: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        outside = lambda x: x - found @ (found.T @ x)  # noqa: E731
        inside: dict[str, Any] = {"matvec": lambda x: outside(multiply(outside(x))), "dtype": np.float64}
        ends: dict[str, Any] = {"which": "LA", "v0": outside(start), "tol": tol}
        values, vectors = eigsh(LinearOperator((len(start), len(start)), **inside), k=k, **ends)
        return values[::-1], vectors[:, ::-1].copy()

    values, vectors = besides(np.zeros((len(start), 0)), k, start)
    for _ in range(k):
        above = (values - values[-1])[values - values[-1] > SAME * values[0]]
        if not len(above):
            break
        value, vector = besides(vectors, 1, draw.standard_normal(len(start)), above[-1] / (2 * values[0]))
        if value[0] < values[-1] + above[-1] / 4:
            break
        value, vector = besides(vectors, 1, vector[:, 0])
        place = int(np.searchsorted(-values, -value[0]))
        values = np.insert(values, place, value)[:k]
        vectors = np.insert(vectors, place, vector[:, 0], axis=1)[:, :k]
    return vectors
