"""Exact effective resistances of all edges of a large graph, and the diagonal of ``L^+``, by selected inversion of a factor.

Every edge lies in the pattern of the factor (:mod:`ohmformer.solve.factor`). Takahashi's recurrence gives the resistances of
all pairs there, from the last node to be eliminated to the first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ohmformer import native
from ohmformer.graph import Graph
from ohmformer.graph.memory import recall
from ohmformer.solve import factor_numpy
from ohmformer.solve.answer import Answer, check_reached
from ohmformer.solve.engines.base import residual
from ohmformer.solve.factor import Factor, Pattern, factorise, look, prepared

METHOD = "selected inversion"
CHECKED = 8
"""Edges whose resistance is solved for to check the others."""


@dataclass(frozen=True, eq=False)
class Selected:
    """Effective resistances on the pattern of a factor."""

    resistance: Float[Tensor, " entries"]
    tangent: Float[Tensor, " entries"] | None
    ground: Float[Tensor, " nodes"]
    """Between every node and the ground of its component, nodes in the order of elimination."""

    @classmethod
    def of(cls, factor: Factor, between_kept: Float[Tensor, " entries"] | None = None) -> Selected:
        """The resistances, and their tangent if the factor has one; those of kept nodes are given, on the whole pattern."""
        pattern = factor.pattern
        given = pattern.first, pattern.row, factor.fraction, factor.d_fraction, factor.pivot, factor.d_pivot
        resistance = torch.zeros_like(factor.fraction) if between_kept is None else between_kept.clone()
        if native.active() is None:
            arrays: list[Any] = [None if a is None else a.numpy() for a in (*given, resistance)]
            found = factor_numpy.select(*arrays, eliminated=pattern.eliminated)
            return cls(*(None if a is None else torch.as_tensor(a) for a in found))  # pyright: ignore[reportArgumentType]
        ground = torch.empty_like(factor.pivot)
        tangent = None if factor.d_fraction is None else torch.empty_like(resistance)
        native.call("ohm_select", len(ground), pattern.eliminated, *given, resistance, tangent, ground)
        return cls(resistance, tangent, ground)


def _selected(graph: Graph, factor: Factor) -> Selected:
    """The resistances on the pattern of a graph's factor, kept for the next question."""
    return recall(graph, "selected", lambda: (factor, Selected.of(factor)), fits=lambda found: found[0] is factor)[1]


def edge_resistances(graph: Graph, tol: float) -> Answer:
    """Effective resistances of all edges of graphs whose factor is bearable, differentiable in the resistances.

    ``residual`` is the largest relative difference between some of them and a refined solve, or between the two sides of
    Foster's theorem: the sum of ``R_e / r_e`` is the number of nodes less that of components.
    """
    if not (torch.is_grad_enabled() and graph.resistance.requires_grad):
        return _edges(graph, tol)
    certificate: list[Answer] = []
    value = _EdgeResistances.apply(graph.resistance, graph, tol, certificate)
    return replace(certificate[0], value=value)


def pinv_diagonal(graph: Graph) -> Float[Tensor, " nodes"] | None:
    """The diagonal of ``L^+`` of a graph or batch in float64, without gradient; None if the factor is too large."""
    factor = prepared(graph)
    if factor is None:
        return None
    ground = _selected(graph, factor).ground.numpy()
    component, order = graph.components.cpu().numpy(), factor.pattern.order
    size = np.bincount(component)[component].astype(np.float64)
    roots = order[np.diff(factor.pattern.first.numpy()) == 0]
    demand = np.ones((len(order), 1))
    demand[roots, 0] = 1 - size[roots]
    x = factor.solve(torch.as_tensor(demand))[:, 0].numpy()
    total = np.bincount(component, weights=x)[component]
    return torch.as_tensor(ground[factor.pattern.rank] - 2 * x / size + total / size**2, device=graph.device)


def diagonal(graph: Graph, tol: float) -> Answer:
    """The diagonal of ``L^+`` of graphs whose factor is bearable, differentiable in the resistances.

    ``residual`` is the largest relative difference between some of it and refined solves, or that of Foster's theorem.
    """
    if not (torch.is_grad_enabled() and graph.resistance.requires_grad):
        return _diagonal(graph, tol)
    certificate: list[Answer] = []
    value = _Diagonal.apply(graph.resistance, graph, tol, certificate)
    return replace(certificate[0], value=value)


def _diagonal(graph: Graph, tol: float) -> Answer:
    found, factor, edges = pinv_diagonal(graph), prepared(graph), _edges(graph, tol)
    assert found is not None
    assert factor is not None, "a bearable factor"
    some = torch.as_tensor(np.random.default_rng(0).choice(graph.num_nodes, min(CHECKED, graph.num_nodes), replace=False))
    unit = torch.zeros(graph.num_nodes, len(some), dtype=torch.float64)
    unit[some, torch.arange(len(some))] = 1.0
    solved = _refined(graph, factor, unit)[some, torch.arange(len(some))]
    gap = ((found.cpu()[some] - solved).abs() / solved.clamp(min=1e-300)).where(solved > 0, 0.0)
    worst = max(float(gap.max()) if len(some) else 0.0, edges.residual)
    answer = replace(
        edges, value=found.to(graph.device, graph.dtype), residual=worst, error=4 * worst + 50 * torch.finfo(graph.dtype).eps
    )
    return check_reached(answer, tol)


def _refined(graph: Graph, factor: Factor, demands: Float[Tensor, "nodes k"]) -> Float[Tensor, "nodes k"]:
    """``L^+`` of some demands by the factor, corrected by their residual, which is taken over the edges."""
    fixed = graph.to("cpu", torch.float64)
    fixed = replace(fixed, resistance=fixed.resistance.detach())
    psi = fixed.center(demands)
    phi = factor.solve(psi)
    return fixed.center(phi + factor.solve(fixed.center(residual(fixed, phi, psi))))


def _edges(graph: Graph, tol: float) -> Answer:
    factor = prepared(graph)
    assert factor is not None, "a bearable factor"
    places = edge_places(graph, factor.pattern)
    found = _selected(graph, factor).resistance[places]
    weight = graph.resistance.detach().cpu().double()
    rank = graph.num_nodes - graph.num_components
    foster = abs(float((found / weight).sum()) - rank) / max(rank, 1)
    gap = max(_gap(graph, factor, found), foster)
    note = (
        f"exact: a factor of {len(factor.pattern.row)} entries; Foster's theorem holds to {foster:.1e}, "
        f"the residual is the worst difference from it and from {min(CHECKED, len(found))} refined solves"
    )
    value = found.to(graph.device, graph.dtype)
    error = 4 * gap + 50 * torch.finfo(graph.dtype).eps
    return check_reached(Answer(value, METHOD, 0, gap, None, note=note, error=error, error_kind="estimate"), tol)


def edge_places(graph: Graph, pattern: Pattern) -> Int[Tensor, " edges"]:
    """Where the factor has the edges."""
    ends = np.sort(pattern.rank[graph.edge_index.cpu().numpy()].astype(np.int64), axis=0)
    first, nodes = pattern.first.numpy(), graph.num_nodes
    column = np.repeat(np.arange(nodes, dtype=np.int64), np.diff(first))
    return torch.as_tensor(np.searchsorted(column * nodes + pattern.row.numpy(), ends[0] * nodes + ends[1]))


def _gap(graph: Graph, factor: Factor, found: Float[Tensor, " edges"]) -> float:
    """The largest relative difference between the resistances of some edges and those by a refined solve."""
    if not len(found):
        return 0.0
    some = torch.as_tensor(np.random.default_rng(0).choice(len(found), min(CHECKED, len(found)), replace=False))
    (u, v), column = graph.edge_index.cpu()[:, some], torch.arange(len(some))
    psi = torch.zeros(graph.num_nodes, len(some), dtype=torch.float64)
    psi[u, column], psi[v, column] = 1.0, -1.0
    phi = _refined(graph, factor, psi)
    solved = phi[u, column] - phi[v, column]
    return float(((found[some] - solved) / solved).abs().max())


class _EdgeResistances(torch.autograd.Function):
    """``R`` of all edges, with gradients by one more factor and selected inversion, whose tangents are carried along.

    A conductance c_f moves R_e by ``-(b_e^T L^+ b_f)^2``, as much as c_e moves R_f. So the gradient of ``sum_e g_e R_e`` in
    the conductances is how all R move if the conductances move by g.
    """

    @staticmethod
    def forward(ctx: Any, resistance: Tensor, graph: Graph, tol: float, certificate: list[Answer]) -> Tensor:
        answer = _edges(graph, tol)
        ctx.graph = graph
        ctx.save_for_backward(resistance)
        certificate.append(replace(answer, value=None))
        return answer.value

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (resistance,), graph = ctx.saved_tensors, ctx.graph
        pattern = look(graph)
        assert pattern is not None, "a bearable factor"
        moved = Selected.of(factorise(graph, pattern, gradients[0].detach().cpu().double().numpy())).tangent
        assert moved is not None
        by_conductance = moved[edge_places(graph, pattern)].to(resistance.device, resistance.dtype)
        return -by_conductance / resistance.square(), None, None, None


class _Diagonal(torch.autograd.Function):
    """The diagonal of ``L^+``, with gradients by a factor whose tangents are carried along.

    A conductance c_e moves ``sum_u g_u L^+_uu`` by ``-sum_u g_u (L^+ b_e)_u^2``. With ``G b_e``, zero at the ground and not
    on average, ``sum_u g_u (G b_e)_u^2`` is how R_e falls if conductances g_u come up between all nodes and the ground.
    The mean of ``G b_e`` over the n nodes of its component is ``b_e . G 1 / n``.
    """

    @staticmethod
    def forward(ctx: Any, resistance: Tensor, graph: Graph, tol: float, certificate: list[Answer]) -> Tensor:
        answer = _diagonal(graph, tol)
        ctx.graph = graph
        ctx.save_for_backward(resistance)
        certificate.append(replace(answer, value=None))
        return answer.value

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (resistance,), graph = ctx.saved_tensors, ctx.graph
        factor = prepared(graph)
        assert factor is not None, "a bearable factor"
        pattern, g, component = factor.pattern, gradients[0].detach().cpu().double(), graph.components.cpu()
        order = torch.as_tensor(pattern.order).long()
        ground = torch.zeros(graph.num_components, dtype=torch.long)
        ground[component[order]] = order  # the last of a component to be eliminated
        size, total = (
            g.new_zeros(graph.num_components).index_add(0, component, x)[component] for x in (torch.ones_like(g), g)
        )
        demands = torch.stack([1 / size, g], dim=1)
        demands[ground] -= g.new_zeros(graph.num_components, 2).index_add(0, component, demands)
        mean, w = factor.solve(demands).t()
        tail, head = graph.edge_index.cpu()
        drop = (mean[tail] - mean[head]) * (2 * (w[tail] - w[head]) - (mean[tail] - mean[head]) * total[tail])
        joined, both = _with_ground(graph, pattern, ground[component])
        tangent = torch.cat(
            [torch.zeros(graph.num_edges, dtype=torch.float64), g[joined.edge_index[0, graph.num_edges :].cpu()]]
        )
        moved = Selected.of(factorise(joined, both, tangent.numpy())).tangent
        assert moved is not None
        by_conductance = (moved[edge_places(graph, both)] + drop).to(resistance.device, resistance.dtype)
        return -by_conductance / resistance.square(), None, None, None


def _with_ground(graph: Graph, pattern: Pattern, ground: Int[Tensor, " nodes"]) -> tuple[Graph, Pattern]:
    """A graph with edges of no conductance from all nodes to the grounds of their components, and its factor's pattern."""
    node = torch.arange(graph.num_nodes)
    others = torch.stack([node, ground])[:, node != ground].to(graph.device)
    nothing = torch.full((others.shape[1],), torch.inf, dtype=graph.dtype, device=graph.device)
    joined = replace(
        graph,
        edge_index=torch.cat([graph.edge_index, others], dim=1),
        resistance=torch.cat([graph.resistance.detach(), nothing]),
    )
    first, row = pattern.first.numpy(), pattern.row.numpy()
    last = pattern.rank[ground.numpy()[pattern.order]]  # the row of the ground, the last of every column that has it
    end = first[1:]
    lacks = np.where(end > first[:-1], row[np.maximum(end - 1, 0)] != last, last != np.arange(len(last)))
    rows = np.insert(row, end[lacks], last[lacks])
    starts = first + np.concatenate([[0], np.cumsum(lacks)])
    return joined, replace(pattern, first=torch.as_tensor(starts), row=torch.as_tensor(rows.astype(np.int32)))
