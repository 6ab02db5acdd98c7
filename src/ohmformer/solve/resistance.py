"""Effective resistance, in every form it is asked for: pairs, edges, all pairs, and the sum of them all.

Small graphs are answered from one inverse each (:mod:`ohmformer.solve.engines.cubing`), all edges of large graphs from a
factor (:mod:`ohmformer.solve.selected`), pairs by one solve each, or by estimates from short walks and random projections
(:mod:`ohmformer.solve.walks`, :mod:`ohmformer.solve.projections`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ohmformer import native
from ohmformer.graph import Graph, circuit
from ohmformer.graph.labelled import as_graph
from ohmformer.graph.memory import some_graphs
from ohmformer.graph.ragged import Matrices
from ohmformer.solve import pairwise, selected
from ohmformer.solve.answer import TOL, Answer, check_reached, check_tolerance, join, reached
from ohmformer.solve.certificate import EPS, check_finite, measure, resistance_error
from ohmformer.solve.costs import DEFAULT_EPS, FEW_EDGES, LAYERS, LITTLE_WORK, PANEL, SMALL
from ohmformer.solve.engines import cubing
from ohmformer.solve.engines.base import DENSE, Part, Progress
from ohmformer.solve.factor import look
from ohmformer.solve.plan import METHODS, Plan, make_plan
from ohmformer.solve.projections import (
    default_tolerance,
    estimated,
    local_part_for,
    local_part_of_edges,
    projections_for,
    without_gradient,
)
from ohmformer.solve.pseudoinverse import Request, apply_in_turn, apply_pinv
from ohmformer.solve.walks import LocalPart


def effective_resistance(
    graph: Any,
    pairs: Any = "edges",
    *,
    eps: float | None = None,
    seed: int = 0,
    tol: float | None = None,
    tol_of: str = "residual",
    method: str = "auto",
    trace: bool = False,
    progress: Progress | None = None,
    resistance: Any = None,
    conductance: Any = None,
) -> Answer:
    """Compute effective resistances of all edges, ``(edges,)``, of given pairs, ``(pairs,)``, or of all pairs.

    For all pairs the value is a matrix, or for a batch one matrix per graph, :class:`~ohmformer.graph.ragged.Matrices`.
    Between components it is ``inf``; a batch takes pairs by node number in the whole batch. ``residual`` is that of the
    linear systems, ``error`` the largest relative error of any resistance. Small graphs whose resistances vary too widely
    for accurate inverses use elimination without subtractions, accurate to rounding for each.

    All edges of a large graph are computed exactly by selected inversion if the factor of its Laplacian is small enough, as
    for roads, power grids and meshes; ``residual`` is then the largest relative difference from solves for some edges and
    from Foster's theorem. With ``eps``, resistances of edges or pairs of other large graphs, or where it takes less time,
    are estimated within ``1 +- eps``, all of them with probability 0.99: the contribution of short walks is exact, the
    remainder is estimated by random projections, as many as its measured size requires, and the few uncertain pairs are
    solved for. ``note`` says what was done. Such an estimate has no gradient. If stopped early, it uses the projections so
    far. Without ``eps``, all edges of a graph of more than 8,000 nodes whose factor is too large are estimated within 1 %,
    unless its resistances need a gradient: then every edge is solved for, which is slow.

    Args:
        graph: one graph or a batch, in any form that :func:`potentials` takes.
        pairs: ``"edges"``, ``"all"``, a tensor of shape ``(pairs, 2)`` or a list of pairs of nodes.
        eps: the acceptable relative error; estimate instead of solving for every pair.
        seed: seed of the random projections.
        tol: the largest acceptable residual; by default 1e-6, or ``eps / 1000``.
        tol_of: ``"error"`` if ``tol`` bounds the error instead.
        method: as for :func:`potentials`.
        trace: keep the state after every layer.
        progress: called with (layers, residual), or with ``eps`` (projections, residual); return True to stop. Pairs not yet
            started are then zero, with a residual of one.
        resistance: as for :func:`potentials`.
        conductance: likewise.
    """
    tol = default_tolerance(eps) if tol is None else tol
    check_tolerance(tol, method, METHODS, tol_of)
    if isinstance(pairs, str) and pairs not in ("edges", "all"):
        raise ValueError(f"expected pairs='edges', 'all' or a list of pairs, got {pairs!r}")
    asked = as_graph(graph, resistance=resistance, conductance=conductance)
    found, request = asked.graph, Request(tol, method, progress, trace, tol_of)
    if isinstance(pairs, str) and pairs == "all":
        return replace(all_pairs(found, request), labels=asked.labels)
    if isinstance(pairs, str):
        answer, joined = _edges(found, eps, seed, request), found.num_edges
    else:
        chosen = asked.pairs(pairs)
        label = found.components[chosen]
        answer, joined = _estimated_or_solved(found, chosen, eps, seed, request), int((label[:, 0] == label[:, 1]).sum())
    check_finite(answer.value, joined)
    return replace(answer, labels=asked.labels)


def _estimated_or_solved(
    graph: Graph,
    pairs: Int[Tensor, "pairs 2"],
    eps: float | None,
    seed: int,
    request: Request,
    local: LocalPart | None = None,
) -> Answer:
    """Compute resistances of pairs, estimated if allowed and cheaper; ``local`` is their local part if known."""
    u, v = pairs.t()
    joined = graph.components.index_select(0, u) == graph.components.index_select(0, v)
    few = graph.width <= SMALL or len(u) <= 4 * PANEL
    if eps is not None and not few and not request.trace:
        local = local_part_for(graph, pairs.t(), eps) if local is None else local
        if projections_for(local, eps, len(u)) < min(graph.num_nodes, len(u)):
            return _estimated(graph, u, v, joined, local, eps, seed, request)
    answer = _pairs(graph, u, v, joined, request)
    return replace(answer, value=torch.where(joined, answer.value.clamp(min=0), torch.inf))


def _estimated(
    graph: Graph,
    u: Tensor,
    v: Tensor,
    joined: Bool[Tensor, " pairs"],
    local: LocalPart,
    eps: float,
    seed: int,
    request: Request,
) -> Answer:
    """Estimate resistances by short walks plus squared distances of projected rows; solve for the pairs left uncertain."""
    mine = (joined & (u != v)).nonzero()[:, 0]
    parts = [(u[some], v[some]) for some in mine.split(2**16)]

    def squares(phi: Tensor) -> Tensor:
        return torch.cat([phi.new_zeros(0), *((phi[a] - phi[b]).square_().sum(1) for a, b in parts)])

    answer, unsure = estimated(graph, local.between.to(graph.device)[mine], local, squares, eps, seed, request)
    value = torch.where(joined, 0.0, torch.inf).to(graph.dtype).index_copy(0, mine, answer.value)
    left = mine[unsure]
    if answer.stopped or not len(left):
        return replace(answer, value=value)
    solved = _pair_by_pair(without_gradient(graph), u[left], v[left], Request(request.tol, request.method))
    joint = join([answer, solved], value.index_copy(0, left, solved.value))
    return replace(joint, method=answer.method, note=f"{answer.note}; {len(left)} solved for instead")


# ---------------------------------------------------------------------------------------------------- all edges


def _edges(graph: Graph, eps: float | None, seed: int, request: Request) -> Answer:
    """Compute resistances of all edges, by selected inversion on large graphs with a small enough factor, else as pairs."""
    if graph.num_graphs > 1 and graph.width > SMALL:
        return _edges_of_batch(graph, eps, seed, request)
    if is_selected(graph, eps, request):
        answer = check_reached(selected.edge_resistances(graph, request.tol), request.tol, request.tol_of)
        return answer if eps is None else replace(answer, note=f"{answer.note}; eps was not needed")
    if eps is None and graph.width > DENSE and not needs_gradient(graph):
        answer = _edges(graph, DEFAULT_EPS, seed, replace(request, tol=max(request.tol, 1e-3 * DEFAULT_EPS)))
        return replace(answer, note=f"a factor would be too large, and eps was not given: {answer.note or 'solved for'}")
    local = None if eps is None or graph.width <= SMALL else local_part_of_edges(graph, eps)
    return _estimated_or_solved(graph, graph.edge_index.t(), eps, seed, request, local)


def _edges_of_batch(graph: Graph, eps: float | None, seed: int, request: Request) -> Answer:
    """Compute resistances of all edges of a batch: small graphs together, each larger one on its own."""
    small = (graph.graph_sizes <= SMALL).nonzero()[:, 0]
    groups = [*(graph.graph_sizes > SMALL).nonzero(), *([small] if len(small) else [])]
    answers = [_edges(some_graphs(graph, group), eps, seed, request) for group in groups]
    places, values = torch.cat([graph.edges_of(group) for group in groups]), torch.cat([a.value for a in answers])
    return replace(join(answers, torch.zeros_like(values).index_copy(0, places, values)), plan=None)


def is_selected(graph: Graph, eps: float | None, request: Request) -> bool:
    """Return whether selected inversion computes all edges of a graph that is too large for dense inverses.

    It does if no other method is requested and the factor is small enough, unless the alternative is faster: an estimate, or
    for up to :data:`DENSE` nodes one solve per node.
    """
    in_c = native.active() is not None and graph.device.type == "cpu"
    either = in_c and request.method == "auto" and request.tol_of == "residual"
    little = min(native.KERNELS["ohm_invert"].limits["nodes"], SMALL) if either else SMALL
    if request.method not in ("auto", "direct") or request.trace or graph.width <= little:
        return False
    entries, demands = 2 * graph.num_edges + graph.num_nodes, math.inf if graph.width > DENSE else graph.num_nodes
    if eps is not None:
        demands = max(projections_for(local_part_of_edges(graph, eps), eps, graph.num_edges), 2 * PANEL)
        if demands == 2 * PANEL and graph.width > DENSE and graph.num_edges > FEW_EDGES * graph.num_nodes:
            return False  # ordering would take about as long as the estimate
    pattern = look(graph)
    return pattern is not None and pattern.work <= max(LAYERS * demands * entries, LITTLE_WORK)


def needs_gradient(graph: Graph) -> bool:
    """Return whether the answer is to be differentiated with respect to the resistances."""
    return torch.is_grad_enabled() and graph.resistance.requires_grad


# ---------------------------------------------------------------------------------------------------- parts of a batch


def _parts(
    graph: Graph, demands: int, request: Request, *, inverses: bool = True
) -> Iterator[tuple[Int[Tensor, " graphs"], Graph, Part]]:
    """Yield parts of a plan: small graphs together, with inverses if these pay off; every other graph on its own."""
    every = torch.arange(graph.num_graphs, device=graph.device)
    for part in make_plan(graph, demands, request.tol, request.method, request.trace, inverses=inverses).parts:
        which = every if part.which is None else part.which
        if _has_inverse(part, request) or len(which) == 1 or part.of(graph).width <= SMALL:
            yield which, part.of(graph), part
        else:
            for number in which.split(1):
                yield number, some_graphs(graph, number), replace(part, which=number)


def _has_inverse(part: Part, request: Request) -> bool:
    return part.engine == "cubing" and not request.trace


def _inverses(graph: Graph, part: Part, request: Request) -> cubing.Inverses | None:
    """Invert the graphs of a part; return None if ``auto`` should eliminate instead because the tolerance is missed."""
    found = cubing.invert(graph, request.tol, native=part.native)
    worst = found.resistance_error if request.tol_of == "error" else found.residual
    return found if worst <= request.tol or request.method == "cubing" else None


def _certified(graph: Graph, value: Tensor | Matrices, found: cubing.Inverses, request: Request) -> Answer:
    answer = Answer(value, "cubing", found.layers, found.residual, found.bound, found.spectrum)
    rounded = found.resistance_error + torch.finfo(graph.dtype).eps
    answer = replace(answer, error=rounded, error_kind="bound")
    return check_reached(answer, request.tol, request.tol_of)


def _is_eliminated(graph: Graph, part: Part, request: Request) -> bool:
    """Return whether a part without inverses uses elimination of pairs: for small graphs."""
    return part.engine in ("cubing", "direct") and graph.width <= SMALL and not request.trace


def _eliminated(graph: Graph, request: Request) -> tuple[Matrices, Answer]:
    """Compute resistances of all pairs, one matrix per graph, by elimination without subtractions."""
    found = pairwise.all_pairs(graph).to(graph.dtype)
    if torch.is_grad_enabled() and graph.resistance.requires_grad:
        other = _dense(graph, replace(request, method="direct", tol=TOL))[0].entries  # its gradient is one more solve
        found = Matrices(found.entries + torch.where(other.isfinite(), other - other.detach(), 0.0), found.sizes)
    error = pairwise.error_bound(graph.width) + torch.finfo(graph.dtype).eps
    answer = Answer(found, "elimination of pairs", 0, error, error, error=error, error_kind="bound")
    return found, check_reached(answer, request.tol, request.tol_of)


def _dense(graph: Graph, request: Request) -> tuple[Matrices, Answer]:
    """Compute resistances of all pairs as ``X_uu + X_vv - 2 X_uv``, ``X = L^+``, by one solve per node."""
    answer = apply_pinv(graph, graph.unpad(graph.projector()), replace(request, tol_of="residual"))
    inverse = graph.pad(answer.value)
    padded = circuit.resistance_from_pinv(graph, inverse)
    matrices = Matrices.unpad(padded if graph.batched else padded[None], graph.graph_sizes)
    error = None if answer.error is None else resistance_error(graph, inverse, padded, answer.error)
    return matrices, replace(answer, error=error, rounded=False)


def all_pairs(graph: Graph, request: Request) -> Answer:
    """Compute resistances of all pairs, one matrix per graph."""
    if graph.width > DENSE:
        raise ValueError(f"expected at most {DENSE} nodes for pairs='all', got {graph.width}; ask for pairs or edges")
    answers, found, parts = [], [], []
    for which, some, part in _parts(graph, graph.width, request):
        matrices, answer = _matrices(some, part, request)
        answers, found = [*answers, answer], [*found, (which, matrices)]
        parts.append(replace(part, which=which) if _has_inverse(part, request) else part)
    if not found:
        return Answer(Matrices(graph.resistance.new_zeros(0), graph.graph_sizes), "none", 0, 0.0, 0.0)
    value = found[0][1] if len(found) == 1 else Matrices.join(found, graph.num_graphs)
    check_finite(value.entries, int(graph.component_sizes.square().sum()))
    return replace(join(answers, value if graph.batched else value[0]), plan=Plan(tuple(parts), graph.num_graphs))


def _matrices(graph: Graph, part: Part, request: Request) -> tuple[Matrices, Answer]:
    """Compute resistances of all pairs of a part's graphs: from inverses, by elimination, or by one solve per node."""
    inverses = _inverses(graph, part, request) if _has_inverse(part, request) else None
    if inverses is not None:
        matrices = inverses.all_pairs(graph).to(graph.dtype)
        return matrices, _certified(graph, matrices, inverses, request)
    if not _is_eliminated(graph, part, request):
        matrices, answer = _dense(graph, request)
        good = reached(answer, request.tol, request.tol_of) and answer.error is not None and answer.error < 1
        if good or request.method != "auto" or request.trace:
            return matrices, check_reached(answer, request.tol, request.tol_of)
    return _eliminated(graph, request)


def _pairs(graph: Graph, u: Tensor, v: Tensor, joined: Bool[Tensor, " pairs"], request: Request) -> Answer:
    """Compute resistances of pairs, part by part: from inverses, or by one solve per pair."""
    answers, parts, places = [], [], []
    graph_of = graph.batch.index_select(0, u)
    most = int(graph_of.bincount().max()) if len(u) else 0  # pairs of one graph
    for which, some, part in _parts(graph, min(most, 4 * PANEL), request, inverses=len(u) > graph.width):
        whole = len(which) == graph.num_graphs
        mine = joined.nonzero()[:, 0] if whole else (joined & torch.isin(graph_of, which)).nonzero()[:, 0]
        if not len(mine):
            continue
        number = torch.arange(graph.num_nodes, device=graph.device)
        if not whole:
            rows = graph.nodes.rows(which)
            number[rows] = torch.arange(len(rows), device=graph.device)
        mine_u, mine_v = (number.index_select(0, x.index_select(0, mine)) for x in (u, v))
        answers.append(_of_part(some, mine_u, mine_v, part, request))
        parts.append(part)
        places.append(mine)
    if not answers:
        return Answer(graph.resistance.new_zeros(len(u)), "none", 0, 0.0, 0.0)
    value = answers[0].value.new_zeros(len(u)).index_copy(0, torch.cat(places), torch.cat([a.value for a in answers]))
    return replace(join(answers, value), plan=Plan(tuple(parts), graph.num_graphs))


def _of_part(graph: Graph, u: Tensor, v: Tensor, part: Part, request: Request) -> Answer:
    """Compute resistances of pairs of connected nodes of a part's graphs."""
    inverses = _inverses(graph, part, request) if _has_inverse(part, request) else None
    if inverses is not None and graph.num_graphs == 1 and len(u) <= 4 * PANEL and graph.dtype == torch.float64:
        return _pair_by_pair(graph, u, v, replace(request, method="cubing"))  # fast, and the error is squared
    if inverses is not None:
        return _certified(graph, inverses.between(u, v).to(graph.dtype), inverses, request)
    if graph.width > DENSE or (len(u) <= graph.width and not _is_eliminated(graph, part, request)):
        return _pair_by_pair(graph, u, v, request)
    if len(u) <= graph.width and request.tol_of == "residual":
        return _pair_by_pair(graph, u, v, replace(request, method="direct"))
    matrices, answer = _matrices(graph, part, request)
    place, slot = matrices.spans.start[graph.batch[u]], graph.nodes.within
    return replace(answer, value=matrices.entries[place + matrices.sizes[graph.batch[u]] * slot[u] + slot[v]])


def _pair_by_pair(graph: Graph, u: Tensor, v: Tensor, request: Request) -> Answer:
    """Compute resistances with one solve per pair, a few panels of pairs at a time.

    For ``R = psi . phi*``, the relative error of ``psi . phi`` is at most the error e of phi, that of ``2 psi . phi -
    |phi|_L^2`` at most ``e^2``. The latter is ``psi . phi + phi . (psi - L phi)``, whose last term is small and rounds like
    flows. Where resistances vary widely the sum is small but its terms are not, and rounding of the residual matters.
    """
    parts = torch.arange(len(u), device=graph.device).split(4 * PANEL)

    def demands(part: Tensor) -> Tensor:
        column, unit = torch.arange(len(part), device=graph.device), graph.resistance.new_ones(len(part)).detach()
        none = torch.zeros(graph.num_nodes, len(part), dtype=graph.dtype, device=graph.device)
        return none.index_put((u[part], column), unit).index_put((v[part], column), -unit, accumulate=True)

    answers = []
    for part, phi in zip(parts, apply_in_turn(graph, map(demands, parts), request), strict=True):
        column = torch.arange(len(part), device=graph.device)
        found = phi.value[u[part], column] - phi.value[v[part], column]
        left = measure(graph, phi.value, demands(part)).uncentred
        terms, eps = phi.value.detach().double() * left, torch.finfo(graph.dtype).eps
        better = found.detach().double() + terms.sum(0)
        doubt = float(torch.where(better > 0, terms.abs().sum(0) / better, 0.0).max())
        if doubt > 1 / 16:
            exact = [x.detach().cpu().numpy().astype(np.longdouble) for x in (found, phi.value, left)]
            better = torch.as_tensor((exact[0] + (exact[1] * exact[2]).sum(0)).astype(np.float64)).to(left)
        lost = 16 * eps + (0.0 if doubt <= 1 / 16 else (EPS + len(left) * float(np.finfo(np.longdouble).eps)) * doubt)
        error = None if phi.error is None else phi.error**2 + lost
        answers.append(replace(phi, value=found + (better - found.detach()).to(found), error=error, rounded=False))
    return join(answers, torch.cat([a.value for a in answers]))


# ---------------------------------------------------------------------------------------------------- spanning trees


def spanning_tree_marginals(graph: Any, *, resistance: Any = None, conductance: Any = None, **options: Any) -> Answer:
    """Compute the probability ``R_e / r_e`` that a random spanning tree (or forest) contains each edge, ``(edges,)``.

    Trees are drawn with probability proportional to the product of their conductances. Options and the rest are as for
    :func:`effective_resistance` of all edges; if that is exact, the sum is the number of nodes minus that of components.
    """
    asked = as_graph(graph, resistance=resistance, conductance=conductance)
    answer = effective_resistance(asked, "edges", **options)
    value = answer.value / asked.graph.resistance
    error = None if answer.error is None else answer.error + torch.finfo(value.dtype).eps  # of the division
    return replace(answer, value=value, error=error)
