"""Currents between many pairs of nodes, through edges and nodes, and their sums, without a number for every edge and pair.

Potentials of a unit current from s to t are ``phi_s - phi_t``, with columns of ``L^+``: k linear systems give all k (k - 1)
/ 2 pairs of k places. Together these pairs send ``|f_s - f_t|`` through an edge, computed by sorting k numbers.

>>> import ohmformer as ohm
>>> answer = ohm.current_flow([("a", "b"), ("b", "c"), ("a", "c")], ["a", "b"], ["c", "c"])
>>> answer.resistance, answer.edges  # resistances of both pairs, and currents of both together
(tensor([0.6667, 0.6667], dtype=torch.float64), tensor([0.6667, 1.0000, 1.0000], dtype=torch.float64))
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ohmformer.graph import Graph
from ohmformer.graph.labelled import LabelledGraph, as_graph
from ohmformer.graph.ragged import Spans
from ohmformer.solve.answer import Answer, check_tolerance, join
from ohmformer.solve.certificate import relative
from ohmformer.solve.engines.base import Progress
from ohmformer.solve.plan import METHODS, PANEL
from ohmformer.solve.pseudoinverse import Request, apply_in_turn

MOST = 2**27
"""Maximum size of the columns kept for all pairs together: a gigabyte. Beyond it, pairs are solved for one by one."""
CELLS = 2**22
"""Size of one slice of edges x places or pairs."""


@dataclass(frozen=True)
class CurrentAnswer(Answer):
    """Currents; ``value`` is the current through the edges."""

    nodes: Tensor = field(kw_only=True)
    """The current through the nodes: half the sum of currents in their edges, injected and extracted."""
    resistance: Tensor = field(kw_only=True)
    """The effective resistance of every pair."""

    @property
    def edges(self) -> Tensor:
        """The current through the edges."""
        return self.value


def current_flow(
    graph: Any,
    sources: Any,
    targets: Any = None,
    *,
    each: bool = False,
    tol: float = 1e-6,
    method: str = "auto",
    progress: Progress | None = None,
    resistance: Any = None,
    conductance: Any = None,
) -> CurrentAnswer:
    """Send one ampere from every source to its target, pair by pair, and sum the currents through edges and nodes.

    The value is the sum of absolute currents over all pairs, ``(edges,)``, and ``nodes`` likewise; with ``each`` it is the
    current of every pair, ``(edges, pairs)``, positive along the edge's direction. ``residual`` is that of the linear
    systems, for the worst pair; ``error`` is the relative error of the value, for the worst pair if ``each``, in the norm
    ``(sum_e r_e f_e^2)^(1/2)``, or the relative error of any resistance if that is larger. Differentiable in the resistances
    where no current is zero.

    Args:
        graph: one graph or a batch, in any form that :func:`potentials` takes.
        sources: nodes by label or number, one per pair. A list or set of nodes in place of a node is a region, whose nodes
            share the current equally.
        targets: likewise; a single node is the target of all sources. If omitted, every pair of sources, in the order of
            ``itertools.combinations``: focal nodes of a landscape.
        each: return the currents of every pair instead of their sum.
        tol: the largest acceptable residual.
        method: as for :func:`potentials`.
        progress: called with (layers, residual); return True to stop. Currents not yet started are then zero.
        resistance: as for :func:`potentials`.
        conductance: likewise.
    """
    check_tolerance(tol, method, METHODS)
    asked = as_graph(graph, resistance=resistance, conductance=conductance)
    pairs = _Pairs.of(asked, sources, targets)
    request = Request(tol / math.sqrt(2), method, progress)  # a pair is the difference of two
    if pairs.count * asked.graph.num_nodes * each > MOST:
        raise ValueError(
            f"expected at most {MOST} numbers for each=True, got {asked.graph.num_nodes} nodes x {pairs.count} pairs"
        )
    answer = (_each if each else _summed)(asked.graph, pairs, request)
    return replace(answer, labels=asked.labels)


def sum_of_differences(rows: Float[Tensor, "rows k"]) -> Float[Tensor, " rows"]:
    """Compute ``sum over i < j of |x_i - x_j|`` of each row: sorted, the i-th of k is above i and below k - 1 - i others."""
    k = rows.shape[1]
    plain = rows.device.type == "cpu" and not rows.requires_grad
    ordered = torch.as_tensor(np.sort(rows.numpy(), axis=1)) if plain else rows.sort(dim=1).values  # numpy's is the faster
    return ordered @ (2.0 * torch.arange(k, dtype=rows.dtype, device=rows.device) - (k - 1))


def at_nodes(graph: Graph, flow: Tensor) -> Tensor:
    """Sum the flow along the edges of every node, ``(edges, ...)`` to ``(nodes, ...)``."""
    tail, head = graph.edge_index
    return flow.new_zeros(graph.num_nodes, *flow.shape[1:]).index_add(0, tail, flow).index_add(0, head, flow)


# ---------------------------------------------------------------------------------------------------- arguments


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Pairs of places; a place is a node, or nodes with equal shares."""

    node: Int[Tensor, " shares"]
    share: Float[Tensor, " shares"]
    of_place: Spans
    """The range of shares of every place."""
    source: Int[Tensor, " pairs"]
    target: Int[Tensor, " pairs"]
    every: bool
    """Whether all pairs of places are requested."""
    column: Int[Tensor, " pairs"] | None = None
    """The column with the potentials of every pair, ascending; if None, every pair has its own column."""

    @property
    def count(self) -> int:
        return len(self.source)

    @classmethod
    def of(cls, asked: LabelledGraph, sources: Any, targets: Any) -> _Pairs:
        """Return the requested pairs; raise a ValueError if they are invalid."""
        given = [_places(asked, x) for x in (sources, [] if targets is None else targets)]
        if targets is not None:
            counts = [len(x) for x in given]
            count = max(counts) if min(counts) == 1 else counts[0]
            if counts[1] not in (1, count) or counts[0] not in (1, count):
                raise ValueError(f"expected as many targets as sources, or one, got {counts[1]} for {counts[0]}")
            given = [x * count if len(x) == 1 else x for x in given]
        number: dict[tuple[int, ...], int] = {}
        ends = [[number.setdefault(place, len(number)) for place in x] for x in given]
        if targets is None:
            count = len(given[0]) * (len(given[0]) - 1) // 2
            if count > MOST:
                raise ValueError(
                    f"expected at most {MOST} pairs of sources, got {count}, each with a resistance of its own; networkx's "
                    "current_flow_betweenness_centrality(backend='ohmformer') adds up all pairs of nodes without them"
                )
            if len(number) < len(given[0]):
                raise ValueError(
                    f"expected every source once, as there are no targets, got {len(given[0])} of {len(number)}"
                )
            ends = np.triu_indices(len(number), 1)
        device = asked.graph.device
        source, target = (torch.as_tensor(x, dtype=torch.long, device=device) for x in ends)
        sizes = torch.tensor([len(place) for place in number], dtype=torch.long, device=device)
        found = cls(
            torch.tensor([node for place in number for node in place], dtype=torch.long, device=device),
            torch.repeat_interleave(1 / sizes.to(torch.float64), sizes).to(asked.graph.dtype),
            Spans.of(sizes),
            source,
            target,
            every=targets is None,
        )
        found._check_connected(asked, list(number))
        return found

    def _check_connected(self, asked: LabelledGraph, places: list[tuple[int, ...]]) -> None:
        """Refuse a pair across components: current injected on a component must be extracted there."""
        component = asked.graph.components.tolist()
        on = [tuple(sorted(component[node] for node in place)) for place in places]
        share = [{c: x.count(c) / len(x) for c in set(x)} for x in on]
        kind: dict[Any, int] = {}
        of = torch.tensor([kind.setdefault(tuple(sorted(x.items())), len(kind)) for x in share], dtype=torch.long)
        of = of.to(self.source.device)
        apart = (of[self.source] != of[self.target]).nonzero()[:, 0]
        if len(apart):
            a, b = (_called(asked, places[int(x[apart[0]])]) for x in (self.source, self.target))
            raise ValueError(f"expected a way between the nodes of every pair, {a} and {b} are in different components")
        if all(len(place) == 1 for place in places):
            return
        for one, other in zip(self.source.tolist(), self.target.tolist(), strict=True):
            both = set(places[one]) & set(places[other])
            if both and one != other:
                name = asked.name(min(both))
                raise ValueError(f"expected a source and its target to have no node in common, both have {name}")

    def side_by_side(self, graph: Graph) -> tuple[_Pairs, Int[Tensor, " pairs"] | None]:
        """Put pairs of different graphs into shared columns, and return their order, unless a region spans graphs."""
        of_place = graph.batch[self.node[self.of_place.first]]
        owner = of_place[self.source]
        if not torch.equal(of_place[self.of_place.owner], graph.batch[self.node]) or int(owner.unique().numel()) < 2:
            return self, None
        counts = torch.bincount(owner, minlength=graph.num_graphs)
        column = torch.empty_like(owner).index_copy(0, owner.argsort(stable=True), Spans.of(counts).within)
        order = column.argsort(stable=True)
        return replace(self, source=self.source[order], target=self.target[order], column=column[order]), order

    def panels(self) -> Iterator[_Pairs]:
        """Yield the pairs in panels of :data:`PANEL` columns."""
        if self.column is None:
            counts = [min(PANEL, self.count - i) for i in range(0, self.count, PANEL)]
        else:
            counts = torch.bincount(self.column // PANEL).tolist()
        for i, some in enumerate(torch.arange(self.count, device=self.source.device).split(counts)):
            column = None if self.column is None else self.column[some] - i * PANEL
            yield replace(self, source=self.source[some], target=self.target[some], every=False, column=column)

    def demands(self, graph: Graph) -> Float[Tensor, "nodes k"]:
        """Return demands of one ampere from every source to its target."""
        return graph.center(self.put_in(graph, self.source, self.column) - self.put_in(graph, self.target, self.column))

    def put_in(
        self, graph: Graph, places: Int[Tensor, " pairs"], column: Int[Tensor, " pairs"] | None = None
    ) -> Float[Tensor, "nodes k"]:
        """Return demands of one ampere into each given place, in columns of their own if ``column`` is None."""
        rows, of = self.of_place.rows(places), self.of_place.select(places).owner
        width = len(places) if column is None else int(column[-1]) + 1
        none = torch.zeros(graph.num_nodes, width, dtype=graph.dtype, device=graph.device)
        return none.index_put((self.node[rows], of if column is None else column[of]), self.share[rows])

    def at_places(self, potential: Float[Tensor, "nodes k"]) -> Float[Tensor, "places k"]:
        """Return the mean potentials of places."""
        none = potential.new_zeros(len(self.of_place), potential.shape[1])
        return none.index_add(0, self.of_place.owner, potential[self.node] * self.share[:, None])


def _places(asked: LabelledGraph, given: Any) -> list[tuple[int, ...]]:
    """Return places as tuples of node numbers."""
    if isinstance(given, (Tensor, np.ndarray)):
        return [(node,) for node in asked.nodes(given.reshape(-1) if given.ndim == 0 else given).tolist()]
    found = []
    for place in [given] if isinstance(given, (str, bytes)) or not isinstance(given, Iterable) else given:
        region = isinstance(place, (list, set, range, Tensor, np.ndarray))
        found.append(tuple(sorted(set(asked.nodes(place).tolist()))) if region else (asked.number(place),))
        if not found[-1]:
            raise ValueError("expected at least one node in a region, got none")
    return found


def _called(asked: LabelledGraph, place: tuple[int, ...]) -> str:
    return asked.name(place[0]) if len(place) == 1 else f"the region of {asked.name(place[0])}"


# ---------------------------------------------------------------------------------------------------- the solves


def _columns(graph: Graph, pairs: _Pairs, request: Request) -> Iterator[tuple[Answer, _Pairs, bool]]:
    """Yield potentials, their pairs, and whether they are those of all places, which is chosen if it is less work."""
    places = len(pairs.of_place)
    if pairs.column is None and 0 < places <= pairs.count and places * graph.num_nodes <= MOST:
        every = torch.arange(places, device=graph.device)
        panels = (graph.center(pairs.put_in(graph, part)) for part in every.split(4 * PANEL))
        answers = list(apply_in_turn(graph, panels, request))
        yield join(answers, torch.cat([a.value for a in answers], dim=1)), pairs, True
        return
    parts = list(pairs.panels())
    panels = (part.demands(graph) for part in parts)
    for part, answer in zip(parts, apply_in_turn(graph, panels, request), strict=True):
        yield answer, part, False


def _resistance(pairs: _Pairs, potential: Float[Tensor, "nodes k"], of_places: bool) -> Float[Tensor, " pairs"]:
    found, s, t = pairs.at_places(potential), pairs.source, pairs.target
    if of_places:
        return found[s, s] + found[t, t] - found[s, t] - found[t, s]
    column = torch.arange(pairs.count, device=potential.device) if pairs.column is None else pairs.column
    return found[s, column] - found[t, column]


def _wrong(
    pairs: _Pairs, answer: Answer, of_places: bool, resistance: Float[Tensor, " pairs"]
) -> Float[Tensor, "2 pairs"] | None:
    """Bound the error of every pair's flow in the energy norm, and of its resistance; None if unknown.

    A column is off by the error times its own energy norm, ``(psi . phi)^(1/2)``, plus the rounding of flows. A pair with
    equal ends has no current, without error.
    """
    if answer.error is None:
        return None
    error, eps = answer.error + 4 * torch.finfo(answer.value.dtype).eps, torch.finfo(answer.value.dtype).eps
    if not of_places:
        size = resistance.detach().clamp(min=0).sqrt()
    else:
        own = pairs.at_places(answer.value.detach()).diagonal().clamp(min=0).sqrt() * (1 + error)
        size = own[pairs.source] + own[pairs.target]
    size = torch.where(pairs.source == pairs.target, 0.0, size)
    return torch.stack([error * size, error * size * resistance.detach().clamp(min=0).sqrt() + 4 * eps * size**2])


def _summed(graph: Graph, pairs: _Pairs, request: Request) -> CurrentAnswer:
    total, answers, between, wrong = graph.resistance.new_zeros(graph.num_edges), [], [], []
    pairs, order = pairs.side_by_side(graph)
    for answer, some, of_places in _columns(graph, pairs, request):
        step = max(CELLS // max(answer.value.shape[1], 1 if some.every else some.count), 1)
        slices = [
            _recomputed(_absolute, answer.value, graph.resistance[part], graph.edge_index[:, part], some, of_places)
            for part in torch.arange(graph.num_edges, device=graph.device).split(step)
        ]
        total = total + torch.cat(slices) if slices else total
        between.append(_resistance(some, answer.value, of_places))
        wrong.append(_wrong(some, answer, of_places, between[-1]))
        answers.append(replace(answer, value=total))
    error, off, size = None, [x for x in wrong if x is not None], torch.cat(between).detach() if between else total[:0]
    if off and len(off) == len(wrong):
        heat = (total.detach().square() * graph.resistance.detach()).sum().sqrt()
        error = max(relative(torch.cat([x[0] for x in off]).sum(), heat), relative(torch.cat([x[1] for x in off]), size))
    share = pairs.share * _uses(pairs)[pairs.of_place.owner]
    put = graph.resistance.new_zeros(graph.num_nodes).index_add(0, pairs.node, share)
    if order is not None:
        between = [torch.cat(between)[order.argsort()]]
    return _answer(answers, total, (at_nodes(graph, total) + put) / 2, between, error)


def _uses(pairs: _Pairs) -> Tensor:
    """Count the pairs that begin or end at every place; pairs with equal ends do not count."""
    real = pairs.source != pairs.target
    ends = torch.cat([pairs.source[real], pairs.target[real]])
    return torch.bincount(ends, minlength=len(pairs.of_place)).to(pairs.share.dtype)


def _absolute(phi: Tensor, resistance: Tensor, ends: Tensor, pairs: _Pairs, of_places: bool) -> Float[Tensor, " part"]:
    """Return the summed absolute currents of all pairs through some edges."""
    rows = (phi[ends[0]] - phi[ends[1]]) / resistance[:, None]
    if pairs.every and of_places:
        return sum_of_differences(rows)
    return (rows[:, pairs.source] - rows[:, pairs.target] if of_places else rows).abs().sum(1)


def _recomputed(function: Any, *arguments: Any) -> Tensor:
    """Evaluate a function; for gradients it is evaluated again instead of storing edges x pairs."""
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in arguments):
        found = checkpoint(function, *arguments, use_reentrant=False)
        assert isinstance(found, Tensor)
        return found
    return function(*arguments)


def _each(graph: Graph, pairs: _Pairs, request: Request) -> CurrentAnswer:
    answers, flows, between, errors = [], [], [], []
    tail, head = graph.edge_index
    for answer, some, of_places in _columns(graph, pairs, request):
        potential = answer.value[:, some.source] - answer.value[:, some.target] if of_places else answer.value
        flows.append((potential[tail] - potential[head]) / graph.resistance[:, None])
        between.append(_resistance(some, answer.value, of_places))
        wrong, size = _wrong(some, answer, of_places, between[-1]), between[-1].detach()
        if wrong is not None:
            errors.append(max(relative(wrong[0], size.clamp(min=0).sqrt()), relative(wrong[1], size)))
        answers.append(answer)
    flow = torch.cat(flows, dim=1) if flows else graph.resistance.new_zeros(graph.num_edges, 0)
    put = (pairs.put_in(graph, pairs.source) - pairs.put_in(graph, pairs.target)).abs()
    error = max(errors) if errors and len(errors) == len(answers) else None
    return _answer(answers, flow, (at_nodes(graph, flow.abs()) + put) / 2, between, error)


def _answer(
    answers: list[Answer], edges: Tensor, nodes: Tensor, between: list[Tensor], error: float | None
) -> CurrentAnswer:
    resistance = torch.cat(between) if between else edges.new_zeros(0)
    made = join(answers, edges) if answers else Answer(edges, "none", 0, 0.0, 0.0)
    certificate = vars(made) | {"residual": math.sqrt(2) * made.residual, "bound": None, "rounded": False}
    certificate |= {"error": error, "error_kind": None if error is None else made.error_kind}
    return CurrentAnswer(**certificate, nodes=nodes, resistance=resistance)
