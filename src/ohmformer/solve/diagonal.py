"""The diagonal of ``L^+``, and what is a sum over it: the Kirchhoff index and current-flow closeness.

It is exact from one factor if that is small enough (:mod:`ohmformer.solve.selected`), else from one solve per node, or
estimated from short walks and random projections (:mod:`ohmformer.solve.projections`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from scipy.special import stdtrit
from torch import Tensor

from ohmformer.graph import Graph
from ohmformer.graph.labelled import as_graph
from ohmformer.solve import blockwise, selected
from ohmformer.solve.answer import Answer, as_estimate, check_tolerance, join
from ohmformer.solve.certificate import check_finite
from ohmformer.solve.costs import DEFAULT_EPS, PANEL, SMALL
from ohmformer.solve.engines.base import DENSE, Progress
from ohmformer.solve.factor import look
from ohmformer.solve.plan import METHODS
from ohmformer.solve.projections import FAILURE, check_eps, default_tolerance, estimated, local_part_for, without_gradient
from ohmformer.solve.pseudoinverse import Request, apply_pinv
from ohmformer.solve.resistance import all_pairs, is_selected, needs_gradient


def pinv_diagonal(
    graph: Any,
    *,
    eps: float | None = None,
    seed: int = 0,
    tol: float | None = None,
    method: str = "auto",
    progress: Progress | None = None,
    resistance: Any = None,
    conductance: Any = None,
) -> Answer:
    """Compute the diagonal of ``L^+``, ``(nodes,)``; ``L^+_uu = |L^+ (e_u - 1/n)|_L^2`` measures how remote node u is.

    Exact and differentiable by selected inversion if the factor of the Laplacian is small enough; ``residual`` is then the
    largest relative difference from solves for some nodes. Otherwise up to 8,000 nodes take one solve per node; beyond that,
    or with ``eps``, it is estimated as in :func:`effective_resistance`, within 1 % by default.

    >>> pinv_diagonal([(0, 1), (1, 2)]).value
    tensor([0.5556, 0.2222, 0.5556], dtype=torch.float64)
    """
    tol = default_tolerance(eps) if tol is None else tol
    check_tolerance(tol, method, METHODS)
    asked = as_graph(graph, resistance=resistance, conductance=conductance)
    answer = _diagonal(asked.graph, eps, seed, Request(tol, method, progress))
    check_finite(answer.value, asked.graph.num_nodes)
    return replace(answer, labels=asked.labels)


def current_flow_closeness(graph: Any, *, resistance: Any = None, conductance: Any = None, **options: Any) -> Answer:
    """Compute current-flow closeness (information centrality) of every node: ``1 / sum_w R_uw`` over its component.

    As ``sum_w R_uw = n L^+_uu + tr L^+``, options and the rest are as for :func:`pinv_diagonal`. It is zero for isolated
    nodes. The definition is networkx's; times ``n - 1`` it is NetworKit's.
    """
    asked = as_graph(graph, resistance=resistance, conductance=conductance)
    answer = pinv_diagonal(asked, **options)
    e = answer.error
    error = (
        None if e is None else math.inf if e >= 1 else e / (1 - e) + asked.graph.width * torch.finfo(answer.value.dtype).eps
    )
    return replace(answer, value=closeness_of(asked.graph, answer.value), error=error)


def closeness_of(graph: Graph, diagonal: Float[Tensor, " nodes"]) -> Float[Tensor, " nodes"]:
    """Compute current-flow closeness from the diagonal of ``L^+``."""
    component, none = graph.components, diagonal.new_zeros(graph.num_components)
    size = none.index_add(0, component, torch.ones_like(diagonal.detach()))[component]
    far = size * diagonal + none.index_add(0, component, diagonal)[component]
    return torch.where(size > 1, 1 / torch.where(size > 1, far, 1.0), 0.0)


def kirchhoff_index(
    graph: Any,
    *,
    eps: float | None = None,
    seed: int = 0,
    tol: float = 1e-6,
    method: str = "auto",
    progress: Progress | None = None,
    resistance: Any = None,
    conductance: Any = None,
) -> Answer:
    """Compute the sum of all effective resistances, ``n tr L^+``, one per graph; ``inf`` if a graph is disconnected.

    For large graphs it is exact by selected inversion if the factor of the Laplacian is small enough. With ``eps``, or
    within 1 % for graphs too large for all pairs, ``tr L^+`` is estimated by Hutchinson's ``z^T L^+ z`` with random signs z
    until ``error``, Student's quantile of 0.99 for its mean, is below ``eps``; there is no gradient. If it needs more signs
    than there are nodes, graphs that are small enough for all pairs are answered exactly. ``progress`` is called
    with (layers, residual), or with ``eps`` (signs, residual).
    """
    check_tolerance(tol, method, METHODS)
    graph = as_graph(graph, resistance=resistance, conductance=conductance).graph
    whole, request = graph.ranks >= graph.graph_sizes - 1, Request(tol, method, progress)
    if eps is None and is_selected(graph, None, request):
        answer = selected.diagonal(graph, tol)
        traces = answer.value.new_zeros(graph.num_graphs).index_add(0, graph.batch, answer.value)
        value = torch.where(whole, traces * graph.graph_sizes, torch.inf)
        check_finite(value, int(whole.sum()))
        return replace(answer, value=value if graph.batched else value[0], error=_of_sum(graph, answer))
    if eps is None and graph.width <= DENSE:
        pairs = all_pairs(graph, request)
        sums = (pairs.value.sums() if graph.batched else pairs.value.sum(0).sum()) / 2
        value = torch.where(whole if graph.batched else whole[0], sums, torch.inf)
        check_finite(value, int(whole.sum()))
        return replace(pairs, value=value, error=_of_sum(graph, pairs))
    if eps is None and needs_gradient(graph):
        raise ValueError(_no_gradient(graph))
    eps = DEFAULT_EPS if eps is None else eps
    check_eps(eps)
    draw = torch.Generator().manual_seed(seed)
    forms: list[Answer] = []
    relative, stopped, failure = math.inf, False, FAILURE
    while relative > eps and not stopped:
        z = torch.randint(0, 2, (graph.num_nodes, PANEL), generator=draw, dtype=torch.int8)
        z = graph.center((2 * z - 1).to(graph.device, graph.dtype))
        found = apply_pinv(graph, z, Request(tol, method))
        stopped = found.stopped
        if stopped and forms:
            break  # the earlier ones are complete
        none = torch.zeros(graph.num_graphs, z.shape[1], dtype=z.dtype, device=z.device)
        forms.append(replace(found, value=none.index_add(0, graph.batch, z * found.value).mT))
        drawn = torch.cat([form.value for form in forms])
        failure /= 2  # every check is a chance to be wrong
        times = float(stdtrit(len(drawn) - 1, 1 - failure / (2 * max(graph.num_graphs, 1)))) / math.sqrt(len(drawn))
        mean, spread = drawn.mean(dim=0), drawn.std(dim=0)
        relative = float(torch.where(mean > 0, times * spread / mean, 0.0).max()) if len(mean) else 0.0
        stopped = stopped or bool(progress and progress(len(drawn), found.residual))
        too_many = relative > eps and len(drawn) * (relative / eps) ** 2 > graph.num_nodes
        if too_many and not stopped and (graph.width <= DENSE or is_selected(graph, None, request)):
            answer = kirchhoff_index(
                without_gradient(graph), tol=min(tol, max(eps / 10, 1e-12)), method=method, progress=progress
            )
            return replace(
                answer, note="; ".join(x for x in (answer.note, "exact, random signs would be more than nodes") if x)
            )
    drawn = torch.cat([form.value for form in forms])
    answer = join(forms, drawn)
    value = torch.where(whole, drawn.mean(dim=0) * graph.graph_sizes, torch.inf)
    check_finite(value, int(whole.sum()))
    short = stopped and relative > eps
    note = f"within {relative:.1e} with probability {1 - FAILURE:g}, from {len(drawn)} random signs"
    note += ", stopped early" if short else ""
    return replace(as_estimate(answer, relative), value=value if graph.batched else value[0], note=note, stopped=short)


def _of_sum(graph: Graph, answer: Answer) -> float | None:
    """Bound the relative error of sums of an answer's entries, all positive, over a graph's nodes or pairs."""
    return None if answer.error is None else answer.error + 2 * graph.width * torch.finfo(graph.dtype).eps


def _no_gradient(graph: Graph) -> str:
    return (
        f"expected resistances without gradient for a graph of more than {DENSE} nodes whose factor is too large, got "
        f"{graph.width} nodes; eps=0.1 estimates without gradient"
    )


def _diagonal(graph: Graph, eps: float | None, seed: int, request: Request) -> Answer:
    """Compute the diagonal of ``L^+`` by selected inversion, by one solve per node, or by an estimate."""
    little = graph.width <= SMALL and request.method in ("auto", "direct") and look(graph) is not None
    if little or is_selected(graph, None, request):
        answer = selected.diagonal(graph, request.tol)
        return answer if eps is None else replace(answer, note=f"{answer.note}; eps was not needed")
    if graph.width <= SMALL or (eps is None and graph.width <= DENSE):
        nothing = torch.empty(graph.num_nodes, 0, device=graph.device)
        answer = blockwise.rows(graph, lambda part, _: _by_solves(part, request), nothing)
        return replace(answer, value=answer.value[:, 0], rounded=False)
    if eps is None and needs_gradient(graph):
        raise ValueError(_no_gradient(graph))
    return _estimated(without_gradient(graph), DEFAULT_EPS if eps is None else eps, seed, request)


def _by_solves(graph: Graph, request: Request) -> Answer:
    """Compute the diagonal of ``L^+`` for graphs of similar size as a column, by one solve per node."""
    answer = apply_pinv(graph, graph.unpad(graph.projector()), request)
    error = None if answer.error is None else answer.error + 16 * torch.finfo(graph.dtype).eps  # rounding of psi . phi
    return replace(answer, value=answer.value.gather(1, graph.nodes.within[:, None]), error=error)


def _estimated(graph: Graph, eps: float, seed: int, request: Request) -> Answer:
    """Estimate ``L^+_uu = G_uu - 2 (G 1)_u / n + 1^T G 1 / n^2``, as ``L^+ = P G P`` for ``G = D^-1/2 N^+ D^-1/2``.

    ``G 1`` takes one solve, ``G_uu`` is the contribution of walks plus the projected estimate of the rest.
    """
    component, count = graph.components, graph.num_components
    degree = torch.as_tensor(graph.degrees(), device=graph.device)

    def by_component(x: Tensor) -> Tensor:
        return x.new_zeros(count, *x.shape[1:]).index_add(0, component, x)[component]

    size, volume = by_component(torch.ones_like(degree)), by_component(degree).clamp(min=1e-300)

    def balanced(phi: Float[Tensor, "nodes k"]) -> Float[Tensor, "nodes k"]:
        return phi - by_component(degree[:, None] * phi) / volume[:, None]

    mine = (degree > 0).nonzero()[:, 0]
    inside = apply_pinv(graph, graph.center((1 - degree * size / volume)[:, None].to(graph.dtype)), request)
    mean = balanced(inside.value.double())[:, 0]
    walks = local_part_for(graph, graph.edge_index, eps)
    local = (walks.own.to(graph.device) - 2 * mean / size + by_component(mean) / size**2)[mine]
    answer, unsure = estimated(
        graph, local, walks, lambda phi: balanced(phi.double())[mine].square().sum(1), eps, seed, request
    )
    value = torch.zeros(graph.num_nodes, dtype=graph.dtype, device=graph.device).index_copy(0, mine, answer.value)
    answers, left = [answer, inside], mine[unsure] if not answer.stopped else mine[:0]
    for some in left.split(2 * PANEL) if len(left) else ():
        column = torch.arange(len(some), device=graph.device)
        psi = torch.zeros(graph.num_nodes, len(some), dtype=graph.dtype, device=graph.device)
        psi[some, column] = 1.0
        solved = apply_pinv(graph, graph.center(psi), Request(request.tol, request.method))
        answers.append(solved)
        value[some] = solved.value[some, column]
    note = f"{answer.note}; {len(left)} solved for instead" if len(left) else answer.note
    joined = join(answers, value)
    return replace(joined, method=answer.method, note=note, error=answer.error, error_kind=answer.error_kind)
