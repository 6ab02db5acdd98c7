"""Engine ``elimination``: conjugate gradients in float64 with an approximate Cholesky factor, made by sampled elimination.

For graphs that need too many layers: roads, power grids, meshes, rasters. The factor
(:mod:`~ohmformer.solve.engines.elimination_factor`) is kept for the next question about this graph. Demands are solved for
in panels of up to eight, each column with its own coefficients; the residual is then measured on the graph, and while it
misses the tolerance and still falls, the solution is refined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from scipy.linalg import eigvalsh_tridiagonal
from scipy.sparse import csc_array
from scipy.sparse.linalg import splu
from torch import Tensor

from ohmformer import native
from ohmformer.graph import Graph
from ohmformer.graph.memory import recall, remembered
from ohmformer.solve.answer import Answer
from ohmformer.solve.certificate import energy_norm, measure, sum_over_graphs
from ohmformer.solve.costs import EDITS
from ohmformer.solve.distances import parts_of
from ohmformer.solve.engines.base import Problem, Watch
from ohmformer.solve.engines.elimination_factor import Factor, eliminate
from ohmformer.solve.rows import Rows, edges_of
from ohmformer.solve.scaled import OFTEN, empty_huge_pages

WIDEST = native.KERNELS["ohm_conjugate"].limits["demands"]
WITHOUT_KERNELS = 20_000
"""Maximum number of nodes without kernels: some 40 microseconds per edge, 5 s at this size."""
AT_ONCE = 10
"""Steps between two reports."""
STEPS = 1000
"""Steps after which conjugate gradients restart from the current residual; 20 to 50 are usual."""
STALLED = 10
"""Consecutive reports without gain after which a solve with an approximate factor ends."""

MARGIN = 2.0
"""Margin for unconverged Ritz values: the smallest one is above the smallest eigenvalue of ``M^-1 L``."""


class EliminationEngine:
    """Conjugate gradients preconditioned by sampled elimination, for any graph."""

    def supports(self, problem: Problem) -> str | None:
        """Support every graph with kernels, and graphs of some thousand nodes without."""
        nodes, edges = problem.graph.num_nodes, problem.graph.num_edges
        if not problem.part.native and nodes > WITHOUT_KERNELS:
            return f"expected at most {WITHOUT_KERNELS} nodes for method='elimination' without native kernels, got {nodes}"
        if edges > (most := native.KERNELS["ohm_eliminate"].limits["edges"]):
            return f"expected at most {most} edges for method='elimination', got {edges}"
        return None

    def run(self, problem: Problem) -> Answer:
        """Solve, and measure the residual; the layers of the answer are steps of conjugate gradients."""
        graph, psi = problem.graph, problem.demands
        on_host = graph.device.type == "cpu" and graph.dtype == torch.float64
        host = graph if on_host else graph.to("cpu", torch.float64)
        demands = psi.detach().to("cpu", torch.float64)
        phi, watch, deepest, lowest, found = torch.zeros_like(demands), Watch(problem.progress), 0, 1.0, None
        try:
            with native.polled(lambda: watch(0)):
                found = factored(graph, in_c=problem.part.native)
                for first in range(0, demands.shape[1], problem.part.panel):
                    part = slice(first, first + problem.part.panel)
                    steps, ritz = solve_to(host, found, demands[:, part], phi[:, part], problem.tol, watch)
                    deepest, lowest = max(deepest, steps), min(lowest, ritz)
                    if watch.stopped:
                        break
        except (KeyboardInterrupt, native.Stopped):
            watch.stopped = True
        phi = graph.center(phi.to(psi))
        now = measure(host, phi.to(demands), demands)
        stopped = watch.stopped and now.residual > problem.tol
        note = "stopped early" if stopped else ""
        answer = Answer(phi, "elimination", deepest, now.residual, None, None, note, stopped)
        if found is None or stopped:
            return answer
        panels = now.left.split(problem.part.panel, dim=1)
        norm = torch.cat([energy_norm(host, preconditioned(found, left)) for left in panels], dim=1)
        return replace(answer, error=now.error(norm * MARGIN / lowest), error_kind="estimate")


@dataclass(frozen=True, eq=False)
class Factored:
    """A factor, and conjugate gradient steps with it on panels of demands in elimination order."""

    factor: Factor
    iterate: Callable[[State, int], int]
    """Do up to a number of steps, fewer if all columns reach their goals; returns the number done."""
    edits: int = 0
    """Number of node pairs whose edges were edited since the factor was made."""
    patience: int = STALLED
    """Consecutive reports without halving the residual after which a solve ends."""


def preconditioned(found: Factored, psi: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    """Compute the approximate solution ``M^-1 psi`` by the factor alone, the first search direction."""
    state, place = _start(found, psi, psi.new_zeros(psi.shape[1])), found.factor.place.long()
    found.iterate(state, 1)
    return torch.cat([panel[place] for panel in state.p], dim=1)[:, : psi.shape[1]]


class State:
    """The state of conjugate gradients, ``(panels, nodes, width)``: solutions x, residuals r, directions p, scratch q."""

    def __init__(self, demands: Float[Tensor, "panels nodes width"], goal: Float[Tensor, "panels width"]) -> None:
        shape, device = demands.shape, demands.device
        self.r, self.goal = demands, goal
        self.x, self.p, self.q = (empty_huge_pages(*shape, dtype=torch.float64, device=device, zero=True) for _ in range(3))
        self.size = demands.square().sum(1)
        """Squared norms of the residuals."""
        self.product = torch.zeros_like(self.size)
        """Inner products of residual and preconditioned residual in the previous step."""
        self.coefficients: list[tuple[np.ndarray, np.ndarray]] = []
        """The step sizes alpha and coefficients beta of the first panel's columns, ``(steps, width)`` for every call."""

    def narrow(self, columns: int) -> None:
        """Drop the columns of the only panel beyond ``columns``, if fewer are faster."""
        width = _width(columns)
        if width < self.r.shape[2]:
            self.x, self.r, self.p, self.q = (y[..., :width].contiguous() for y in (self.x, self.r, self.p, self.q))
            self.goal, self.size, self.product = (y[:, :width].contiguous() for y in (self.goal, self.size, self.product))
            self.coefficients = [(alpha[:, :width], beta[:, :width]) for alpha, beta in self.coefficients]

    def tridiagonal(self, column: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the Lanczos tridiagonal matrix of the steps of a column of the first panel.

        The off-diagonal has one more entry if the following step is known.
        """
        alpha, beta = (np.concatenate(c)[:, column] for c in zip(*self.coefficients, strict=True))
        steps = int(np.argmin(alpha > 0)) if (alpha <= 0).any() else len(alpha)
        a, b = 1 / alpha[:steps], beta[1 : steps + 1]
        return a + np.concatenate([[0.0], b * a[: len(b)]])[:steps], np.sqrt(b) * a[: len(b)]

    def smallest_ritz_value(self) -> float:
        """Compute the smallest Ritz value of ``M^-1 L`` in the first panel."""
        lowest = 1.0
        for column in range(self.size.shape[1] if self.coefficients else 0):
            diagonal, beside = self.tridiagonal(column)
            if len(diagonal):
                lowest = min(lowest, max(float(eigvalsh_tridiagonal(diagonal, beside[: len(diagonal) - 1])[0]), 1e-3))
        return lowest


@runtime_checkable
class Trial(Protocol):
    """An additional demand, and the information from its steps."""

    demand: Float[Tensor, "n 1"]
    goal: float
    """Squared norm of its residual at which it counts as solved."""
    ended: bool
    """Whether it has ended the solve."""
    over: bool
    """Whether its steps have given all their information."""

    def look(self, state: State, column: int) -> bool:
        """Inspect the steps of a column of the first panel; return True to end the solve."""
        ...


def factored(graph: Graph, *, in_c: bool) -> Factored:
    """Return the factor of a graph, kept for the next question about the same graph."""

    def make() -> Factored:
        factor = eliminate(graph, part=parts_of(graph) if in_c else None, in_c=in_c)
        return Factored(factor, in_order(graph, factor, in_c=in_c))

    return recall(graph, ("approximate factor", in_c), make)


def carry_over(before: Graph, after: Graph, pairs: int) -> None:
    """Reuse the factor of the original graph to precondition the edited one, if it is kept and has changed little.

    Every pair of nodes whose edges change shifts one eigenvalue of ``M^-1 L``, which takes a step or two. If components are
    joined, the factor gives no potentials between them.
    """
    for in_c in (True, False):
        found = remembered(before, name := ("approximate factor", in_c))
        if found is None or found.edits + pairs > EDITS or _joins(before, after):
            continue
        iterate = in_order(after, found.factor, in_c=in_c)
        recall(after, name, lambda found=found, iterate=iterate: Factored(found.factor, iterate, found.edits + pairs))


def _joins(before: Graph, after: Graph) -> bool:
    """Return whether an edge joins components of the original graph."""
    tail, head = before.components[after.edge_index]
    return bool((tail != head).any())


def in_order(graph: Graph, factor: Factor, *, in_c: bool) -> Callable[[State, int], int]:
    """Prepare conjugate gradient steps on a graph in elimination order."""
    return steps_in_c(Rows.of(graph, place=factor.place), factor) if in_c else _by_scipy(graph, factor)


def solve_to(
    graph: Graph,
    found: Factored,
    psi: Float[Tensor, "n k"],
    phi: Float[Tensor, "n k"],
    tol: float,
    watch: Watch,
    trial: Trial | None = None,
) -> tuple[int, float]:
    """Solve for demands, in place of the zeros of ``phi``, until there is no gain; return steps and a Ritz value.

    A ``trial`` runs beside them at first, and may end them.
    """
    norms = sum_over_graphs(graph, psi.square())
    smallest = torch.where(norms > 0, norms, torch.inf).amin(0)  # minimum over graphs: each has its own tolerance
    goal, left, worst, steps, lowest = smallest * (0.5 * tol) ** 2, psi, 1.0 if psi.any() else 0.0, 0, 1.0
    while worst > tol and not watch.stopped:
        found_x, done, ritz = _conjugate_gradients(found, left, goal, watch, trial if steps == 0 else None)
        steps, lowest = steps + done, min(lowest, ritz)
        if trial is not None and trial.ended:
            break
        before, now = worst, measure(graph, phi + found_x, psi)
        if now.residual < worst:
            phi += found_x
            left, worst = now.left, now.residual
        if not now.residual < 0.5 * before:
            break  # limit of float64
    return steps, lowest


def _conjugate_gradients(
    found: Factored, psi: Float[Tensor, "n k"], goal: Float[Tensor, " k"], watch: Watch, trial: Trial | None
) -> tuple[Float[Tensor, "n k"], int, float]:
    """Solve for columns of demands until the squared norms of their residuals are at most ``goal``."""
    k, at_once = psi.shape[1], AT_ONCE if trial is None else OFTEN
    if trial is not None:
        psi, goal = torch.cat([psi, trial.demand], dim=1), torch.cat([goal, goal.new_tensor([trial.goal])])
    state, place = _start(found, psi, goal), found.factor.place.long()
    done, best, without_gain = 0, torch.inf, 0
    norm = float(state.size.max())
    try:
        while done < STEPS and without_gain < found.patience:
            steps = found.iterate(state, at_once)
            done += steps
            size = float(state.size.max())
            watch.layers += steps
            watch.residual = min(watch.residual, (size / norm) ** 0.5) if norm > 0 else 0.0
            ended = trial is not None and trial.look(state, k)
            if watch(0) or ended or steps < at_once or not size < torch.inf:
                break
            best, without_gain = (size, 0) if size < best / 4 else (best, without_gain + 1)
            if trial is not None and trial.over:
                state.narrow(k)
                trial = None
    except (KeyboardInterrupt, native.Stopped):
        watch.stopped = True
    return torch.cat([panel[place] for panel in state.x], dim=1)[:, :k], done, state.smallest_ritz_value()


def _start(found: Factored, psi: Float[Tensor, "n k"], goal: Float[Tensor, " k"]) -> State:
    """Return the initial state: demands in panels, in elimination order."""
    n, k = psi.shape
    width = _width(k)
    panels = -(-k // width)
    demands = psi.new_zeros(panels, n, width)
    goals = goal.new_zeros(panels * width)
    goals[:k] = torch.where(goal < torch.inf, goal, 0.0)
    for panel, columns in zip(demands, psi.split(width, dim=1), strict=True):
        panel[:, : columns.shape[1]] = columns[found.factor.order.long()]
    return State(demands, goals.view(panels, width))


def _width(columns: int) -> int:
    """Return the panel width for a number of columns."""
    return next(w for w in (1, 2, 4, WIDEST) if columns <= w or w == WIDEST)


def steps_in_c(rows: Rows, factor: Factor) -> Callable[[State, int], int]:
    """Prepare steps by the kernel, with the rows of the graph in elimination order."""
    nodes, parts = len(rows.degree), len(factor.first) - 2
    entries = factor.begin, factor.neighbour, factor.share, factor.inverse
    matrices = factor.first, rows.start, rows.column, rows.value, rows.degree, *entries

    def iterate(state: State, steps: int) -> int:
        panels, _, width = state.x.shape
        done = torch.zeros(panels, dtype=torch.int64)
        alpha, beta = torch.zeros(2, panels, steps, width, dtype=torch.float64)
        vectors = state.goal, state.x, state.r, state.p, state.q, state.size, state.product, done, alpha, beta
        native.call("ohm_conjugate", nodes, parts, panels, width, steps, *matrices, *vectors)
        state.coefficients.append((alpha[0, : done[0]].numpy(), beta[0, : done[0]].numpy()))
        return int(done.max())

    return iterate


def _by_scipy(graph: Graph, factor: Factor) -> Callable[[State, int], int]:
    """Prepare the same steps by SciPy, panel by panel."""
    n, place = graph.num_nodes, factor.place.long()
    tail, head, c = (x.numpy() for x in edges_of(graph))
    rows = np.concatenate([place[tail], place[head]]), np.concatenate([place[head], place[tail]])
    beside = csc_array((np.concatenate([c, c]), rows), shape=(n, n))
    diagonal = beside.sum(1)[:, None]
    sweep = sweeps(factor)

    def step(state: State, panel: int) -> None:
        x, r, p, size, goal, product = (
            y[panel].numpy() for y in (state.x, state.r, state.p, state.size, state.goal, state.product)
        )
        z = sweep(r)
        dot = (r * z).sum(0)
        beta = np.where(product > 0, dot / np.where(product > 0, product, 1), 0)
        p[:] = z + beta * p
        product[:] = dot
        q = diagonal * p - beside @ p
        curvature = (p * q).sum(0)
        move = (size > goal) & (curvature > 0)
        alpha = np.where(move, dot / np.where(move, curvature, 1), 0)
        x += alpha * p
        r -= alpha * q
        size[:] = (r * r).sum(0)
        if panel == 0:
            state.coefficients.append((alpha[None], beta[None]))

    def iterate(state: State, steps: int) -> int:
        for done in range(steps):
            open_panels = (state.size > state.goal).any(1).nonzero().flatten().tolist()
            if not open_panels:
                return done
            for panel in open_panels:
                step(state, panel)
        return steps

    return iterate


def sweeps(factor: Factor) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that applies the factor's pseudoinverse to columns, by a forward and a backward sweep."""
    n = len(factor.order)
    column = np.repeat(np.arange(n), factor.begin.diff().numpy())
    node = np.arange(n)
    values = np.concatenate([-factor.share.numpy(), np.ones(n)])
    place = np.concatenate([factor.neighbour.numpy(), node]), np.concatenate([column, node])
    matrix = csc_array((values, place), shape=(n, n))
    lower = splu(matrix, permc_spec="NATURAL", diag_pivot_thresh=0.0, options={"SymmetricMode": True, "Equil": False})
    inverse = factor.inverse.numpy()[:, None]
    return lambda x: lower.solve(inverse * lower.solve(x), trans="T")
