"""``L^+ psi`` by the engines that the plan names, with a certificate, and with gradients by one more solve."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer import native
from ohmformer.graph import Graph
from ohmformer.graph.memory import recall
from ohmformer.solve.answer import Answer, check_reached, join
from ohmformer.solve.engines.base import Part, Problem, Progress
from ohmformer.solve.plan import INSTEAD_OF_LAYERS, SPENT, Plan, engine, fallback, make_plan

EXTREME = {torch.float32: 40, torch.float64: 330}
"""Binary exponents beyond which a demand is scaled before it is solved for, at most by three times as many."""


@dataclass(frozen=True)
class Request:
    """Options of a solve."""

    tol: float
    method: str = "auto"
    progress: Progress | None = None
    trace: bool = False
    tol_of: str = "residual"
    """``"residual"`` or ``"error"``: the quantity that ``tol`` limits."""


def apply_pinv(graph: Graph, psi: Tensor, request: Request) -> Answer:
    """Compute ``L^+ psi`` for centred columns psi, differentiable in psi and in the resistances.

    Ctrl-C returns the best potentials so far, or raises KeyboardInterrupt if a gradient is recorded.
    """
    if not (torch.is_grad_enabled() and (graph.resistance.requires_grad or psi.requires_grad)):
        return solve(graph, psi.detach(), request)
    certificate: list[Answer] = []
    phi = _PseudoInverse.apply(graph.resistance, psi, graph, request, certificate)
    return replace(certificate[0], value=phi)


def apply_in_turn(graph: Graph, panels: Iterable[Tensor], request: Request) -> Iterator[Answer]:
    """Solve for one panel of demands after another; ``progress`` receives the total layers of all panels.

    If one is stopped, the following panels are skipped: zero, with a residual of one.
    """
    before, now, last = 0, 0, None

    def tell(layers: int, residual: float) -> bool:
        nonlocal now
        now = layers
        return bool(request.progress and request.progress(before + layers, residual))

    for psi in panels:
        if last is not None and last.stopped:
            last = replace(last, value=torch.zeros_like(psi), layers=0, residual=1.0, error=None, error_kind=None)
        else:
            last = apply_pinv(graph, psi, replace(request, progress=tell))
            before, now = before + now, 0
        yield last


class _PseudoInverse(torch.autograd.Function):
    """``phi = L^+ psi``, with gradients by one more solve instead of through the layers.

    For an incoming gradient g: ``w = L^+ g`` is the gradient in psi, and as ``d phi = -L^+ dL phi``, an edge (u, v) of
    conductance c gets ``-(w_u - w_v)(phi_u - phi_v)``, so its resistance gets the same over ``-r^2``.
    """

    @staticmethod
    def forward(
        ctx: Any, resistance: Tensor, psi: Tensor, graph: Graph, request: Request, certificate: list[Answer]
    ) -> Tensor:
        answer = solve(graph, psi.detach(), request)
        if answer.stopped and not request.progress:
            raise KeyboardInterrupt  # a training step must not use an incomplete answer
        ctx.graph, ctx.tol, ctx.method = graph, request.tol, request.method
        ctx.save_for_backward(resistance, answer.value)
        certificate.append(replace(answer, value=None))  # a reference to the output would keep it alive
        return answer.value

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        resistance, phi = ctx.saved_tensors
        found = solve(ctx.graph, ctx.graph.center(gradients[0]), Request(ctx.tol, ctx.method))
        if found.stopped:
            raise KeyboardInterrupt  # nor an incomplete gradient
        adjoint, (tail, head) = found.value, ctx.graph.edge_index
        drop = torch.zeros_like(resistance)
        for w, x in zip(adjoint.split(8, dim=1), phi.split(8, dim=1), strict=True):  # avoids an edges x demands array
            drop += ((w[head] - w[tail]) * (x[head] - x[tail])).sum(1)
        return drop / resistance.square(), adjoint, None, None, None


def solve(graph: Graph, psi: Tensor, request: Request) -> Answer:
    """Compute ``L^+ psi`` without gradient: solve every part of the batch with its engine and join the answers.

    Demands whose squares would overflow or underflow are scaled by powers of two, which rounds nothing.
    """
    start, scale = perf_counter(), None if request.trace else _scale_of_extremes(graph, psi)
    if scale is None:
        answer = _solve(graph, psi, request)
    else:
        answer = _solve(graph, psi * scale, request)
        answer = replace(answer, value=answer.value / scale)
    return replace(answer, seconds=perf_counter() - start)


def _scale_of_extremes(graph: Graph, psi: Tensor) -> Float[Tensor, "nodes k"] | None:
    """Return powers of two for every demand of a graph that are about 1 / |psi|, or None if no demand is extreme.

    Demands sum to zero, so the largest entry tells their size.
    """
    if not psi.numel():
        return None
    if graph.num_graphs == 1:
        largest = psi.amax(dim=0, keepdim=True)
    else:
        owner = graph.batch[:, None].expand_as(psi)
        largest = psi.new_zeros(graph.num_graphs, psi.shape[1]).scatter_reduce_(0, owner, psi, "amax")
    exponent, limit = torch.where(largest > 0, largest, 1.0).log2().floor(), EXTREME[psi.dtype]
    exponent = torch.where(exponent.abs() > limit, exponent, 0.0).clamp(-3 * limit, 3 * limit)
    return (-exponent).exp2()[graph.batch] if exponent.any() else None


def _solve(graph: Graph, psi: Tensor, request: Request) -> Answer:
    made = make_plan(graph, psi.shape[1], request.tol, request.method, request.trace)
    if not (psi[:1000].any() or psi.any()):  # mostly, the first rows suffice
        return Answer(
            torch.zeros_like(psi), "none", 0, 0.0, 0.0, note="nothing is demanded", plan=made, error=0.0, error_kind="bound"
        )
    if len(made.parts) == 1:
        answer, part = _solve_part(graph, psi, made.parts[0], request)
        return replace(answer, plan=Plan((part,), graph.num_graphs))
    value, answers, parts = torch.zeros_like(psi), [], []
    for part in made.parts:
        assert part.which is not None
        rows = graph.nodes.rows(part.which)
        mine = psi[rows]
        if mine.any() and answers and answers[-1].stopped:
            answers.append(_nothing(mine, part))
        elif mine.any():
            answer, part = _solve_part(part.of(graph), mine, part, request)
            value[rows] = answer.value
            answers.append(answer)
        parts.append(part)
    return replace(join(answers, value), plan=Plan(tuple(parts), graph.num_graphs))


def _solve_part(graph: Graph, psi: Tensor, part: Part, request: Request) -> tuple[Answer, Part]:
    """Solve one part with its engine, or the next one if the tolerance is missed; also return the part finally used."""
    start = perf_counter()
    answer, part = _first_or_next(graph, psi, part, request)
    if part.engine == "elimination" and part.predicted == part.predicted:
        recall(graph, SPENT, lambda: [-part.predicted])[0] += part.predicted  # for all questions but the first
    return answer, replace(part, took=perf_counter() - start)


def _first_or_next(graph: Graph, psi: Tensor, part: Part, request: Request) -> tuple[Answer, Part]:
    problem = Problem(graph, psi, request.tol, part, request.progress, request.trace)
    chosen = engine(part, transformer=request.trace)
    missing = chosen.supports(problem)
    if missing:
        raise ValueError(missing)
    answer = _run_to(chosen.run, problem, request.tol_of)
    if request.method != "auto" or request.trace or _is_good(answer, request) or answer.stopped:
        chosen_instead = request.method == "auto" and part.engine in INSTEAD_OF_LAYERS
        answer = replace(answer, note=answer.note or part.reason) if chosen_instead else answer
        return check_reached(answer, request.tol, request.tol_of), part
    last = answer
    while not (_is_good(answer, request) or answer.stopped):
        reason = last.note or f"{last.method} stopped at a residual of {last.residual:.1e}"
        then = fallback(problem, reason)
        if then is None:
            break
        problem = replace(problem, part=then, trace=False)
        last = _run_to(engine(then, transformer=False).run, problem, request.tol_of)
        if last.stopped or _error(last) < _error(answer) or last.residual < answer.residual:
            answer, part = replace(last, note=reason), then
    return check_reached(answer, request.tol, request.tol_of), part


def _is_good(answer: Answer, request: Request) -> bool:
    return (_error(answer) if request.tol_of == "error" else answer.residual) <= request.tol


def _error(answer: Answer) -> float:
    return math.inf if answer.error is None else answer.error


def _run_to(run: Callable[[Problem], Answer], problem: Problem, tol_of: str) -> Answer:
    """Run an engine; if ``tol`` limits the error, repeat with smaller residual tolerances until it is met."""
    answer, tol, goal = _run(run, problem), problem.tol, problem.tol
    while tol_of == "error" and tol < _error(answer) < math.inf and answer.residual <= goal and goal > 1e-15:
        goal *= 0.3 * tol / _error(answer)
        answer = _run(run, replace(problem, tol=goal))
    return answer


def _run(run: Callable[[Problem], Answer], problem: Problem) -> Answer:
    """Run an engine; return a zero answer if ``progress`` or Ctrl-C stopped it before it had a result."""
    progress = problem.progress
    try:
        with native.polled(lambda: progress(0, 1.0)) if progress else nullcontext():
            return run(problem)
    except (KeyboardInterrupt, native.Stopped):
        return _nothing(problem.demands, problem.part)


def _nothing(psi: Tensor, part: Part) -> Answer:
    return Answer(torch.zeros_like(psi), part.engine, 0, 1.0, None, note="stopped early", stopped=True)
