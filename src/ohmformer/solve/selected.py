"""Exact effective resistances of all edges of a large graph, and the diagonal of ``L^+``, by selected inversion of a factor.

Every edge lies in the pattern of the factor (:mod:`ohmformer.solve.factor`). Takahashi's recurrence gives the resistances of
all pairs in the pattern, from the last eliminated node to the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse import coo_array, csc_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree
from scipy.sparse.linalg import splu
from torch import Tensor

from ohmformer import native
from ohmformer.graph import Graph
from ohmformer.graph.memory import recall
from ohmformer.solve import factor_numpy
from ohmformer.solve.answer import Answer, check_reached
from ohmformer.solve.certificate import measure
from ohmformer.solve.factor import Factor, Pattern, by_scipy, factorise, look, prepared
from ohmformer.solve.rows import edges_of

METHOD = "selected inversion"
CHECKED = 8
"""Number of edges or nodes that are checked independently."""
Ask = Callable[[Graph, float], Answer]
Move = Callable[[Graph, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Selected:
    """Effective resistances on the pattern of a factor."""

    resistance: Float[Tensor, " entries"]
    tangent: Float[Tensor, " entries"] | None
    ground: Float[Tensor, " nodes"]
    """Resistances between every node and the ground of its component, in elimination order."""

    @classmethod
    def of(cls, factor: Factor, between_kept: Float[Tensor, " entries"] | None = None) -> Selected:
        """Compute the resistances, and their tangent if the factor has one, given those between kept nodes."""
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
    """Return the resistances on the pattern of a graph's factor, kept for the next question."""
    return recall(graph, "selected", lambda: (factor, Selected.of(factor)), fits=lambda found: found[0] is factor)[1]


def edge_resistances(graph: Graph, tol: float) -> Answer:
    """Compute effective resistances of all edges from a factor within the limits, differentiable in the resistances.

    ``residual`` is the largest relative difference of some of them from the bounds of Dirichlet's and Thomson's principles,
    or between the two sides of Foster's theorem: the sum of ``R_e / r_e`` is the number of nodes minus that of components.
    """
    return _differentiable(graph, tol, _edges, _move_edges)


def diagonal(graph: Graph, tol: float) -> Answer:
    """Compute the diagonal of ``L^+`` from a factor within the limits, differentiable in the resistances."""
    return _differentiable(graph, tol, _diagonal, _move_diagonal)


def _differentiable(graph: Graph, tol: float, ask: Ask, move: Move) -> Answer:
    if not (torch.is_grad_enabled() and graph.resistance.requires_grad):
        return ask(graph, tol)
    certificate: list[Answer] = []
    value = _OfFactor.apply(graph.resistance, graph, tol, ask, move, certificate)
    return replace(certificate[0], value=value)


@np.errstate(over="ignore", invalid="ignore")
def pinv_diagonal(graph: Graph) -> Float[Tensor, " nodes"] | None:
    """Compute the diagonal of ``L^+`` of a graph or batch in float64, without gradient; None if the factor is too large."""
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


def _diagonal(graph: Graph, tol: float) -> Answer:
    found, edges = pinv_diagonal(graph), _edges(graph, tol)
    assert found is not None
    some = _some(graph.num_nodes)
    gap = max(_gap(graph, some[:, None], torch.ones(1), found.cpu()[some]), edges.residual)
    return check_reached(
        replace(edges, value=found.to(graph.device, graph.dtype), residual=gap, error=_error(gap, graph)), tol
    )


def _edges(graph: Graph, tol: float) -> Answer:
    factor = prepared(graph)
    assert factor is not None, "a bearable factor"
    found = _selected(graph, factor).resistance[edge_places(graph, factor.pattern)]
    rank, some = graph.num_nodes - graph.num_components, _some(len(found))
    foster = abs(float((found / graph.resistance.detach().cpu().double()).sum()) - rank) / max(rank, 1)
    gap = max(_gap(graph, graph.edge_index.cpu()[:, some].t(), torch.tensor([1.0, -1.0]), found[some]), foster)
    note = (
        f"exact: a factor of {len(factor.pattern.row)} entries; Foster's theorem holds to {foster:.1e}, the residual is the "
        f"worst difference from it and, for {len(some)} edges, from Dirichlet's and Thomson's principles"
    )
    answer = Answer(found.to(graph.device, graph.dtype), METHOD, 0, gap, None, note=note)
    return check_reached(replace(answer, error=_error(gap, graph), error_kind="estimate"), tol)


def _error(gap: float, graph: Graph) -> float:
    """Estimate the error of unchecked numbers from the error ``gap`` of the checked ones."""
    return 4 * gap + 50 * torch.finfo(graph.dtype).eps


def _some(count: int) -> Int[Tensor, " some"]:
    return torch.as_tensor(np.random.default_rng(0).choice(count, min(CHECKED, count), replace=False), dtype=torch.long)


def _gap(
    graph: Graph, nodes: Int[Tensor, "some ends"], units: Float[Tensor, " ends"], found: Float[Tensor, " some"]
) -> float:
    """Bound the relative difference between ``psi . L^+ psi`` and the values found, for units of current at some nodes.

    The factor only supplies potentials, which are corrected once; the bounds they prove do not depend on their origin.
    """
    factor = prepared(graph)
    assert factor is not None, "a bearable factor"
    if not len(nodes):
        return 0.0
    fixed = graph.to("cpu", torch.float64)
    fixed = replace(fixed, resistance=fixed.resistance.detach())
    psi = torch.zeros(graph.num_nodes, len(nodes), dtype=torch.float64)
    psi = fixed.center(psi.index_put((nodes.t(), torch.arange(len(nodes))), units.double()[:, None]))
    phi = factor.solve(psi)
    phi = fixed.center(phi + factor.solve(measure(fixed, phi, psi).left))
    low, high = bracket(fixed, phi, psi)
    far = torch.maximum((found - low).abs(), (high - found).abs())
    return float((far / low.clamp(min=1e-300)).where(low > 0, 0.0).max())


def bracket(
    graph: Graph, phi: Float[Tensor, "nodes k"], psi: Float[Tensor, "nodes k"]
) -> tuple[Float[Tensor, " k"], Float[Tensor, " k"]]:
    """Bound ``psi . L^+ psi`` from below and above, by any potentials phi.

    By Dirichlet's principle it is at least ``2 psi . phi - |phi|_L^2``, by Thomson's at most the energy of any flow that
    meets psi: here the flow of phi plus a flow on a spanning tree that meets the residual. The bounds differ by the latter's
    energy.
    """
    now = measure(graph, phi, psi)
    low = 2 * (psi * phi).sum(0) - now.energy.sum(0)
    return low, low + torch.as_tensor(tree_heat(graph, now.left.numpy()))


def tree_heat(graph: Graph, demands: Float[np.ndarray, "nodes k"]) -> Float[np.ndarray, " k"]:
    """Compute the energy of the flow on a minimum-resistance spanning forest that meets demands; by SciPy alone."""
    start, column, conductance = by_scipy(graph, edges_of(graph)[2], None)
    nodes, component = graph.num_nodes, graph.components.numpy()
    tree = minimum_spanning_tree(csr_array((1 / conductance, column, start), shape=(nodes, nodes))).tocoo()
    first = np.unique(component, return_index=True)[1]  # joined to an extra root, so that there is one tree
    ends = np.concatenate([tree.row, first]), np.concatenate([tree.col, np.full(len(first), nodes)])
    whole = coo_array((np.append(tree.data, np.ones(len(first))), ends), shape=(nodes + 1, nodes + 1)).tocsr()
    order, parent = breadth_first_order(whole, nodes, directed=False)
    rank = np.empty_like(order)
    rank[order] = np.arange(nodes + 1)
    child = order[1:]
    place = np.append(rank[parent[child]], np.arange(nodes + 1)), np.append(rank[child], np.arange(nodes + 1))
    below = csc_array((np.append(-np.ones(nodes), np.ones(nodes + 1)), place), shape=(nodes + 1, nodes + 1))
    lower = splu(below, permc_spec="NATURAL", diag_pivot_thresh=0.0, options={"Equil": False})
    through = lower.solve(np.append(demands, np.zeros((1, demands.shape[1])), axis=0)[order])[rank[child]]
    above = whole + whole.T
    return (np.asarray(above[child, parent[child]])[:, None] * through**2).sum(0)


def edge_places(graph: Graph, pattern: Pattern) -> Int[Tensor, " edges"]:
    """Return the places of the edges in the factor."""
    ends = np.sort(pattern.rank[graph.edge_index.cpu().numpy()].astype(np.int64), axis=0)
    first, nodes = pattern.first.numpy(), graph.num_nodes
    column = np.repeat(np.arange(nodes, dtype=np.int64), np.diff(first))
    return torch.as_tensor(np.searchsorted(column * nodes + pattern.row.numpy(), ends[0] * nodes + ends[1]))


class _OfFactor(torch.autograd.Function):
    """An answer of ``ask`` from a factor; ``move`` maps gradients in the answer to gradients in the conductances."""

    @staticmethod
    def forward(ctx: Any, resistance: Tensor, graph: Graph, tol: float, ask: Ask, move: Move, kept: list[Answer]) -> Tensor:
        answer = ask(graph, tol)
        ctx.graph, ctx.move = graph, move
        ctx.save_for_backward(resistance)
        kept.append(replace(answer, value=None))
        return answer.value

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (resistance,) = ctx.saved_tensors
        by_conductance = ctx.move(ctx.graph, gradients[0].detach().cpu().double())
        return -by_conductance.to(resistance.device, resistance.dtype) / resistance.square(), None, None, None, None, None


def _move_edges(graph: Graph, g: Float[Tensor, " edges"]) -> Float[Tensor, " edges"]:
    """Compute the gradient by one more factor and selected inversion with tangents.

    The derivative of R_e in a conductance c_f is ``-(b_e^T L^+ b_f)^2``, the same as that of R_f in c_e. So the gradient of
    ``sum_e g_e R_e`` in the conductances is the derivative of all R in the direction g.
    """
    pattern = look(graph)
    assert pattern is not None, "a bearable factor"
    moved = Selected.of(factorise(graph, pattern, g.numpy())).tangent
    assert moved is not None
    return moved[edge_places(graph, pattern)]


def _move_diagonal(graph: Graph, g: Float[Tensor, " nodes"]) -> Float[Tensor, " edges"]:
    """Compute the gradient by a factor with tangents.

    The derivative of ``sum_u g_u L^+_uu`` in c_e is ``-sum_u g_u (L^+ b_e)_u^2``. With ``G b_e``, zero at the ground and not
    on average, ``sum_u g_u (G b_e)_u^2`` is the rate at which R_e falls as conductances g_u are added between all nodes and
    the ground. The mean of ``G b_e`` over the n nodes of its component is ``b_e . G 1 / n``.
    """
    factor = prepared(graph)
    assert factor is not None, "a bearable factor"
    pattern, component = factor.pattern, graph.components.cpu()
    order = torch.as_tensor(pattern.order).long()
    ground = torch.zeros(graph.num_components, dtype=torch.long)
    ground[component[order]] = order  # the last eliminated node of a component
    size, total = (g.new_zeros(graph.num_components).index_add(0, component, x)[component] for x in (torch.ones_like(g), g))
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
    return moved[edge_places(graph, both)] + drop


def _with_ground(graph: Graph, pattern: Pattern, ground: Int[Tensor, " nodes"]) -> tuple[Graph, Pattern]:
    """Add edges of zero conductance from all nodes to the grounds of their components; also return the factor's pattern."""
    node = torch.arange(graph.num_nodes)
    others = torch.stack([node, ground])[:, node != ground].to(graph.device)
    nothing = torch.full((others.shape[1],), torch.inf, dtype=graph.dtype, device=graph.device)
    joined = replace(
        graph,
        edge_index=torch.cat([graph.edge_index, others], dim=1),
        resistance=torch.cat([graph.resistance.detach(), nothing]),
    )
    first, row = pattern.first.numpy(), pattern.row.numpy()
    last = pattern.rank[ground.numpy()[pattern.order]]  # the row of the ground is the last of every column that has it
    end = first[1:]
    lacks = np.where(end > first[:-1], row[np.maximum(end - 1, 0)] != last, last != np.arange(len(last)))
    rows = np.insert(row, end[lacks], last[lacks])
    starts = first + np.concatenate([[0], np.cumsum(lacks)])
    return joined, replace(pattern, first=torch.as_tensor(starts), row=torch.as_tensor(rows.astype(np.int32)))
