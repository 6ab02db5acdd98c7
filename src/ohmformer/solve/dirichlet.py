"""Harmonic functions: given on some nodes, and everywhere else the mean of the neighbours, weighted by conductances.

Label propagation, random-walker segmentation and Dirichlet problems are of this form. All fixed nodes of a component are
merged into one node, the ground. Free rows of the Laplacian, ``L_UU``, are the same as in the given graph; demands are the
currents from fixed values to free nodes, and the potentials relative to the ground are the answer.

The error of the potentials is bounded by comparison. ``L_UU`` has a nonnegative inverse: if ``L_UU w >= d`` with d the
degrees, then an error with residual at most m d is at most m w everywhere. (The smallest such w is the mean number of steps
of a random walk to a fixed node.)

>>> import ohmformer as ohm
>>> ohm.harmonic([("a", "b"), ("b", "c"), ("c", "d")], {"a": 0.0, "d": 3.0}).value.flatten()
tensor([0.0000, 1.0000, 2.0000, 3.0000], dtype=torch.float64)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ohmformer.graph import Graph
from ohmformer.graph.labelled import LabelledGraph, as_graph
from ohmformer.graph.memory import recall
from ohmformer.solve.answer import TOL, Answer, check_reached, check_tolerance
from ohmformer.solve.certificate import EPS, measure
from ohmformer.solve.engines.base import Progress
from ohmformer.solve.factor import keeping
from ohmformer.solve.plan import METHODS
from ohmformer.solve.pseudoinverse import Request, apply_pinv, solve

METHOD = "elimination without subtractions"
ROUNDS = 6
"""Maximum number of corrections before a tolerance is reported as out of reach."""
TIGHT = 1e-3
"""Maximum residual of a correction; its own error, known only by comparison, is then smaller than the correction."""
FLOOR = 1e-14
"""Errors below this are not reduced further."""
LOOSE = 1e-11
"""Proved error of a factor or inverses above which elimination without subtractions is tried."""


def harmonic(
    graph: Any,
    fixed: Any,
    values: Any = None,
    *,
    partial: bool = False,
    tol: float = 1e-6,
    method: str = "auto",
    progress: Progress | None = None,
    resistance: Any = None,
    conductance: Any = None,
) -> Answer:
    """Compute potentials that are fixed on some nodes and harmonic elsewhere; differentiable in values and resistances.

    The value is ``(nodes, k)``. ``residual`` bounds the distance of any potential from the harmonic function, relative to
    the range of the values on its component; so the maximum principle holds to ``tol`` of that range without clipping. The
    bound is proved from residuals measured in float64; ``error`` is the same bound including rounding of the returned
    values. Ctrl-C and gradients are as for :func:`potentials`.

    Args:
        graph: one graph or a batch, in any form that :func:`potentials` takes.
        fixed: the fixed nodes: a list of labels, a tensor of numbers (in the whole batch), a mask, or a mapping from label
            to value or values.
        values: values of the fixed nodes, ``(fixed,)`` or ``(fixed, k)``; only if ``fixed`` is not a mapping.
        partial: return NaN on components without a fixed node, where nothing is determined, instead of raising an error.
        tol: the largest acceptable ``residual``.
        method: as for :func:`potentials`.
        progress: called with (layers, residual of the linear systems); return True to stop with the best answer so far.
        resistance: as for :func:`potentials`.
        conductance: likewise.
    """
    check_tolerance(tol, method, METHODS)
    asked = as_graph(graph, resistance=resistance, conductance=conductance)
    if isinstance(fixed, Mapping):
        if values is not None:
            raise ValueError("expected no values= beside a mapping of fixed nodes, which has its own")
        fixed, values = list(fixed), list(fixed.values())
    elif values is None:
        raise ValueError("expected values for the fixed nodes, got none")
    nodes = asked.nodes(fixed)
    found, numbers = asked.with_signals(values)
    nodes, numbers = _each_once(asked, nodes, _checked_values(found, len(nodes), numbers))
    network = _grounded(found, nodes)
    if not partial:
        _check_reached_everywhere(asked, network)
    answer = _potentials(found, network, nodes, numbers, Request(tol, method, progress))
    return replace(check_reached(answer, tol), labels=asked.labels)


# ---------------------------------------------------------------------------------------------------- arguments


def _checked_values(graph: Graph, count: int, values: Tensor) -> Float[Tensor, "fixed k"]:
    x = values[:, None] if values.ndim == 1 else values
    if x.ndim != 2 or len(x) != count:
        raise ValueError(f"expected one row of values per fixed node, shape ({count}, k), got {tuple(values.shape)}")
    if x.is_complex() or not bool(torch.isfinite(x.detach()).all()):
        raise ValueError("expected finite real values on the fixed nodes, got others")
    return x.to(graph.device, torch.float64)


def _each_once(
    asked: LabelledGraph, nodes: Int[Tensor, " fixed"], values: Float[Tensor, "fixed k"]
) -> tuple[Int[Tensor, " distinct"], Float[Tensor, "distinct k"]]:
    """Return every fixed node once; raise a ValueError if one has two different values."""
    order = nodes.argsort(stable=True)
    again = nodes[order[1:]] == nodes[order[:-1]]
    if not bool(again.any()):
        return nodes, values
    other = again & (values[order[1:]] != values[order[:-1]]).any(dim=1)
    if bool(other.any()):
        first = int(other.nonzero()[0, 0])
        a, b = (values[order[i]].tolist() for i in (first, first + 1))
        a, b = (a[0], b[0]) if len(a) == 1 else (a, b)
        raise ValueError(f"expected one value for every fixed node, {asked.name(int(nodes[order[first]]))} has {a} and {b}")
    once = order[torch.cat([again.new_ones(1), ~again])]
    return nodes[once], values[once]


def _check_reached_everywhere(asked: LabelledGraph, network: Grounded) -> None:
    missing = (network.place < 0).nonzero()[:, 0]
    if len(missing):
        component = asked.graph.components[missing[0]]
        size = int(asked.graph.component_sizes[component])
        raise ValueError(
            f"expected a fixed node on every component, that of {asked.name(int(missing[0]))} ({size} nodes) has none; "
            "pass partial=True for NaN there"
        )


# ---------------------------------------------------------------------------------------------------- the grounded graph


@dataclass(frozen=True, eq=False)
class Grounded:
    """A graph whose fixed nodes are merged into one node, the ground, on every component."""

    graph: Graph
    """The merged graph, without gradient, in float64."""
    place: Int[Tensor, " nodes"]
    """The node of ``graph`` for every given node; -1 where nothing is fixed on its component."""
    free: Bool[Tensor, " nodes"]
    """Whether each given node is free and has a place."""
    ground: Int[Tensor, " free"]
    """The place of the ground for every free node's component."""
    inner: Int[Tensor, " inner"]
    """The given edges that are in ``graph``: those with a free node."""

    @cached_property
    def is_free(self) -> Bool[Tensor, " places"]:
        """A mask of the places that are free nodes."""
        mask = torch.zeros(self.graph.num_nodes, dtype=torch.bool, device=self.graph.device)
        mask[self.place[self.free]] = True
        return mask

    @cached_property
    def degree(self) -> Float[Tensor, "places 1"]:
        """Sums of the conductances of the edges at every place."""
        return torch.as_tensor(self.graph.degrees(), device=self.graph.device)[:, None]

    @cached_property
    def steps(self) -> Float[Tensor, " components"]:
        """Bound the error on every component for a residual of d, the degrees; ``inf`` where nothing is proved."""
        demand = torch.where(self.is_free[:, None], self.degree, 0.0)
        demand[~self.is_free] = -self._per_component(demand, "sum")[self.graph.components][~self.is_free]
        w, left, bound = torch.zeros_like(demand), demand, demand.new_full((self.graph.num_components,), torch.inf)
        for _ in range(ROUNDS):
            w = w + solve(self.graph, self.graph.center(left), Request(1e-3)).value
            left = measure(self.graph, w, demand).uncentred
            met = 1 - left / self.degree  # L_UU w over d
            least = self._per_component(torch.where(self.is_free[:, None], met, torch.inf), "amin")[:, 0]
            highest = self._per_component(self._against_ground(w), "amax")[:, 0]
            bound = torch.where(least > 0.0, highest / least, torch.inf)
            if bool((least > 0.5).all()):
                break
        return bound

    def _per_component(self, x: Float[Tensor, "places k"], way: str) -> Float[Tensor, "components k"]:
        index = self.graph.components[:, None].expand_as(x)
        none = x.new_zeros(self.graph.num_components, x.shape[1])
        return none.scatter_reduce(0, index, x, way, include_self=way == "sum")

    def error(
        self, phi: Float[Tensor, "places k"], left: Float[Tensor, "places k"], span: Float[Tensor, "components k"]
    ) -> tuple[float, float]:
        """Bound the error of potentials with residual ``left``, relative to the range of values; also its rounding part."""
        rounding = self.rounding(phi)
        worst = [
            self._per_component(torch.where(self.is_free[:, None], x / self.degree, 0.0), "amax")
            for x in (left.abs() + rounding, rounding)
        ]
        off = [_relative(x * self.steps[:, None], span) for x in worst]
        return off[0], off[1]

    def size(self, phi: Float[Tensor, "places k"], span: Float[Tensor, "components k"]) -> float:
        """Compute the largest potential relative to the ground, divided by the range of values."""
        return _relative(self._per_component(self._against_ground(phi).abs(), "amax"), span)

    def _against_ground(self, phi: Float[Tensor, "places k"]) -> Float[Tensor, "places k"]:
        """Return potentials minus that of the ground of their component."""
        own = torch.zeros_like(phi)
        own[self.place[self.free]] = phi[self.place[self.free]] - phi[self.ground]
        return own

    def without_subtractions(
        self, demands: Float[Tensor, "places k"], span: Float[Tensor, "components k"]
    ) -> tuple[Float[Tensor, "places k"], float]:
        """Solve for demands that are negative only at the ground; return potentials relative to it and an error bound.

        Only sums, products and quotients of positive numbers are computed; sweeps round every entry of the factor twice. So
        the solution for any demands is off by at most a fraction ``part`` of the solution for their absolute values. The
        error is the solution for the residual, up to that fraction and up to the solution for the rounding in flows.
        """
        factor = keeping(self.graph, ~self.is_free.cpu().numpy())
        if factor is None:
            return demands, math.inf
        free = torch.where(self.is_free[:, None], demands, 0.0)
        found = factor.solve(free).to(demands.device)
        part = factor.rounding() + 4 * EPS * (int(factor.pattern.first[factor.pattern.eliminated]) + free.shape[0])
        left = torch.where(self.is_free[:, None], measure(self.graph, found, free).uncentred, 0.0)
        rounding = torch.where(self.is_free[:, None], self.rounding(found), 0.0)
        off, size, lost = (factor.solve(x).to(demands.device).abs() for x in (left, left.abs(), rounding))
        measured = self.size(off + part * size + (1 + part) * lost, span) if part < 1 else math.inf
        return found, min(measured, part * self.size(found, span))

    def rounding(self, phi: Float[Tensor, "places k"]) -> Float[Tensor, "places k"]:
        """Bound the error of a measured residual: sums of flows are exact, flows are accurate to rounding."""
        tail, head = self.graph.edge_index
        sizes = torch.zeros_like(phi)
        for out, x in zip(sizes.split(16, dim=1), phi.split(16, dim=1), strict=True):  # avoids an edges x columns array
            flow = (x[tail] - x[head]).abs() / self.graph.resistance[:, None]
            out.index_add_(0, tail, flow).index_add_(0, head, flow)
        return 2 * EPS * sizes


def _relative(x: Float[Tensor, "components k"], span: Float[Tensor, "components k"]) -> float:
    found = torch.where(span > 0, x / torch.where(span > 0, span, 1.0), 0.0)
    return float(found.nan_to_num(torch.inf, torch.inf).max()) if found.numel() else 0.0


def _grounded(graph: Graph, nodes: Int[Tensor, " fixed"]) -> Grounded:
    """Return the graph with the fixed nodes of each component merged; kept for the next question with the same nodes."""
    fixed = torch.zeros(graph.num_nodes, dtype=torch.bool, device=graph.device)
    fixed[nodes] = True
    return recall(graph, ("grounded", fixed.cpu().numpy().tobytes()), lambda: _contract(graph, fixed))


def _contract(graph: Graph, fixed: Bool[Tensor, " nodes"]) -> Grounded:
    component, device = graph.components, graph.device
    reached = torch.zeros(graph.num_components, dtype=torch.bool, device=device)
    reached[component[fixed]] = True
    owner = torch.zeros(graph.num_components, dtype=torch.long, device=device)
    owner[component] = graph.batch
    free = ~fixed & reached[component]
    order = torch.cat([graph.batch[free], owner[reached]]).argsort(stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=device)
    count = int(free.sum())
    ground = torch.full((graph.num_components,), -1, device=device)
    ground[reached] = rank[count:]
    place = torch.where(fixed, ground[component], -1)
    place[free] = rank[:count]
    ends = place[graph.edge_index]
    inner = (ends[0] != ends[1]).nonzero()[:, 0]
    batch = torch.cat([graph.batch[free], owner[reached]])[order]
    weight = graph.resistance.detach()[inner].double()
    contracted = Graph(ends[:, inner], weight, batch, graph.num_graphs, graph.batched)
    return Grounded(contracted, place, free, ground[component[free]], inner)


# ---------------------------------------------------------------------------------------------------- the solve


def _potentials(
    graph: Graph, network: Grounded, nodes: Int[Tensor, " fixed"], values: Float[Tensor, "fixed k"], request: Request
) -> Answer:
    k, free, component = values.shape[1], network.free, graph.components
    given = values.new_full((graph.num_nodes, k), torch.nan).index_put((nodes,), values)
    known = values.detach()
    index = component[nodes][:, None].expand_as(known)
    low, high = (known.new_zeros(graph.num_components, k).scatter_reduce(0, index, known, way, include_self=False)
                 for way in ("amin", "amax"))  # fmt: skip
    resistance = graph.resistance.double()[network.inner]
    tail, head = graph.edge_index[:, network.inner]
    from_tail, fixed = ~free[tail], ~(free[tail] & free[head])
    source, sink = torch.where(from_tail, tail, head)[fixed], torch.where(from_tail, head, tail)[fixed]

    def demands(base: Float[Tensor, "components k"]) -> Float[Tensor, "places k"]:
        """Return currents from fixed nodes, with their values relative to a base on their component."""
        current = (given[source] - base[component[source]]) / resistance[fixed][:, None]
        psi = values.new_zeros(network.graph.num_nodes, k)
        return psi.index_add(0, network.place[sink], current).index_add(0, network.place[source], -current)

    base = low / 2 + high / 2
    grounded, psi = network.graph, demands(base)
    if torch.is_grad_enabled() and resistance.requires_grad:
        grounded = replace(grounded, resistance=resistance)
    answer = apply_pinv(grounded, grounded.center(psi), request)
    span = known.new_zeros(grounded.num_components, k)
    span[grounded.components[network.ground]] = (high - low)[component[free]]
    answer = _corrected(network, psi.detach(), span, answer, request)
    phi = answer.value
    own = phi[network.place[free]] - phi[network.ground] + base[component[free]]
    factored = answer.method in ("direct", "cubing") and answer.residual > LOOSE
    if (answer.residual > request.tol or factored) and not answer.stopped and request.method == "auto":
        exact, error = network.without_subtractions(demands(low).detach(), span)
        if error < answer.residual:
            own = own + (exact[network.place[free]] + low[component[free]] - own).detach()
            answer = replace(answer, method=METHOD, residual=error, note=f"{answer.method} proved {answer.residual:.1e}")
    value = given.index_put((free.nonzero()[:, 0],), own)
    rounding = torch.finfo(graph.dtype).eps * torch.maximum(low.abs(), high.abs())  # of adding a base
    error = answer.residual + _relative(rounding, high - low)
    return replace(answer, value=value.to(graph.dtype), bound=None, error=error, error_kind="bound", rounded=False)


def _corrected(network: Grounded, psi: Tensor, span: Tensor, answer: Answer, request: Request) -> Answer:
    """Correct potentials until they are provably within the tolerance, if possible.

    A correction estimates the error of the potentials, up to its own error; it is added to them only if that is too large.
    """
    phi, layers, stopped = answer.value.detach(), answer.layers, answer.stopped
    left = measure(network.graph, phi, psi).uncentred
    error, rounding = network.error(phi, left, span)
    for _ in range(ROUNDS):
        if error <= max(4 * rounding, FLOOR) or stopped or not math.isfinite(error):
            break
        goal = min(max(0.3 * request.tol / error, TOL), TIGHT)
        more = solve(network.graph, network.graph.center(left), Request(goal, request.method, request.progress))
        layers, stopped = layers + more.layers, more.stopped
        better = phi + more.value
        left = measure(network.graph, better, psi).uncentred
        after, rounding = network.error(better, left, span)
        seen = network.size(more.value, span) + after
        if seen <= request.tol or after >= error:
            error = min(error, seen)
            break
        phi, error = better, after
    value = answer.value + (phi - answer.value.detach())  # corrections have no gradient of their own
    return replace(answer, value=value, layers=layers, stopped=stopped, residual=error)
