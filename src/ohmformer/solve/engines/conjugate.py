"""Engine ``conjugate``: conjugate gradients scaled by degrees, for few demands on graphs that expand.

No spectrum is needed beforehand. A random demand runs beside the given ones; its steps are those of Lanczos and estimate the
eigenvalues of ``N = D^-1/2 L D^-1/2``, which the error estimate needs. A given demand would not do: it may miss a weakly
connected part of the graph. If these eigenvalues are small and the residuals fall so slowly that too many steps would be
needed, the engine ends early, and the plan names another one: a few small eigenvalues, as of communities, cost few steps
each. The ends of the spectrum and the number of steps are kept for the next question.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer import native
from ohmformer.graph import Graph, Spectrum
from ohmformer.graph.memory import recall, remembered
from ohmformer.solve.answer import Answer
from ohmformer.solve.certificate import measure, sum_over_graphs
from ohmformer.solve.costs import NODES_OF_A_PART
from ohmformer.solve.engines.base import Part, Problem, Watch
from ohmformer.solve.engines.chebyshev import energy_of_residual, layers_for
from ohmformer.solve.engines.elimination import Factored, State, in_order, solve_to, steps_in_c
from ohmformer.solve.engines.elimination_factor import Factor
from ohmformer.solve.rows import rows_of
from ohmformer.solve.scaled import LARGEST, STEPS, Ends, known_ends

SMALL = 1e-6
"""Norm of the random demand relative to that of the smallest other, small enough not to affect reported residuals."""
EXACT = 1e-14
"""Relative residual at which the random demand counts as solved."""
RATE = "digits a step of conjugate gradients"
"""Key under which a graph stores by how many digits a step has reduced the residual on average."""


def steps_taken(graph: Graph, tol: float) -> int:
    """Predict the steps to a tolerance from those of the last question about this graph; zero if there was none."""
    rate = remembered(graph, RATE)
    return 0 if rate is None else max(math.ceil(-math.log10(tol) / rate), 1)


class ConjugateEngine:
    """Conjugate gradients preconditioned by degrees, for any graph with a well-conditioned scaled Laplacian."""

    def supports(self, problem: Problem) -> str | None:
        """Support every graph; the plan decides whether few steps suffice."""
        return None

    def run(self, problem: Problem) -> Answer:
        """Solve, and measure the residual; end without an answer if too many steps would be needed."""
        graph, psi, part = problem.graph, problem.demands, problem.part
        on_host = graph.device.type == "cpu" and graph.dtype == torch.float64
        host = graph if on_host else graph.to("cpu", torch.float64)
        demands = psi.detach().to("cpu", torch.float64)
        found, ends = _by_degrees(host, in_c=part.native), known_ends(graph)
        trial = _Random(host, found.factor, demands, part, problem.tol) if ends is None else None
        phi, watch, deepest = torch.zeros_like(demands), Watch(problem.progress), 0
        try:
            with native.polled(lambda: watch(0)):
                for first in range(0, demands.shape[1], part.panel):
                    some = slice(first, first + part.panel)
                    mine = trial if first == 0 else None
                    steps = solve_to(host, found, demands[:, some], phi[:, some], problem.tol, watch, mine)[0]
                    deepest = max(deepest, steps)
                    if watch.stopped or (trial and trial.ended):
                        break
        except (KeyboardInterrupt, native.Stopped):
            watch.stopped = True
        if trial and not watch.stopped:
            ends = recall(graph, "ends", trial.ends.found, fits=lambda _: False)
            if trial.ended:
                condition = f"a condition number of more than {ends.spectrum.condition:.1e}"
                note = f"conjugate gradients were ended after {deepest} steps at {condition}"
                return Answer(phi.to(psi), "conjugate", deepest, 1.0, None, ends.spectrum, note)
        phi = graph.center(phi.to(psi))
        now = measure(host, phi.to(demands), demands)
        stopped = watch.stopped and now.residual > problem.tol
        answer = Answer(phi, "conjugate", deepest, now.residual, None, None, "stopped early" if stopped else "", stopped)
        if 0 < now.residual <= problem.tol and deepest:
            recall(graph, RATE, lambda: -math.log10(now.residual) / deepest, fits=lambda _: False)
        if ends is None or not ends.separated:
            return answer
        norm = sum_over_graphs(host, now.left.square().mul_(found.factor.inverse[:, None])).sqrt()
        error = now.error(energy_of_residual(norm, now.energy, ends.spectrum))
        return replace(answer, spectrum=ends.spectrum, error=error, error_kind="estimate")


class _Random:
    """A random demand whose steps show the ends of the spectrum and whether another engine is faster."""

    def __init__(self, graph: Graph, degrees: Factor, psi: Float[Tensor, "n k"], part: Part, tol: float) -> None:
        inverse = degrees.inverse[:, None]
        draw = torch.randn(inverse.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        random = graph.center(torch.where(inverse > 0, draw / inverse.sqrt(), 0.0))
        norms = psi.norm(dim=0)
        size = SMALL * float(norms[norms > 0].min()) if bool((norms > 0).any()) else 1.0
        self.demand, self.goal = random * (size / random.norm().clamp(min=1e-300)), (EXACT * size) ** 2
        self.ends, self.part, self.ended, self.over = Ends(part.floor), part, False, False
        self.sizes: list[tuple[int, Tensor]] = [(0, norms[: part.panel].square().log())]
        self.most = min(layers_for(tol, Spectrum(part.floor, LARGEST)), STEPS) if part.floor else STEPS

    def look(self, state: State, column: int) -> bool:
        """Return whether another engine is faster: eigenvalues may be small, and the residuals fall slowly."""
        diagonal, beside = state.tridiagonal(column)
        if len(beside) > 0:
            self.ends.look(diagonal[: len(beside)], beside)
        self.sizes.append((self.ends.steps, state.size[0, :column].clamp(min=1e-300).log()))
        may_be_small = 0 < self.part.trial <= self.ends.steps and self.ends.low < 4 * self.part.floor  # half of the steps
        self.ended = may_be_small and self._steps_in_all(state.goal[0, :column].log()) > self.most
        self.over = self.ended or self.ends.separated or self.ends.steps >= STEPS
        if self.over:
            state.goal[0, column] = torch.inf
        return self.ended

    def _steps_in_all(self, goal: Float[Tensor, " k"]) -> float:
        """Estimate the steps until the logarithms of all squared residuals are at most ``goal``, from the recent ones."""
        steps, now = self.sizes[-1]
        earlier, before = self.sizes[max(len(self.sizes) - 3, 0)]
        left = torch.where(now > goal, (now - goal) / (before - now).clamp(min=1e-9), 0.0)
        return steps + float(left.max()) * (steps - earlier)


def _by_degrees(graph: Graph, *, in_c: bool) -> Factored:
    """Return the degrees as a factor without entries, and steps on the graph in its own order."""
    degree = rows_of(graph).degree if in_c else torch.as_tensor(graph.degrees())
    node = torch.arange(graph.num_nodes, dtype=torch.int32)
    begin, none = torch.zeros(graph.num_nodes + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.float64)
    parts = min(
        1 + len(node) // NODES_OF_A_PART, native.KERNELS["ohm_conjugate"].limits["parts"]
    )  # any: no row has neighbours
    first = torch.cat([torch.arange(parts + 1) * len(node) // parts, torch.tensor([len(node)])])
    factor = Factor(node, node, begin, none.int(), none, torch.where(degree > 0, 1 / degree, 0.0), first)
    iterate = steps_in_c(rows_of(graph), factor) if in_c else in_order(graph, factor, in_c=False)
    return Factored(factor, iterate, patience=STEPS)
