"""Edges added, removed or given another resistance, without a new factor: Woodbury's formula.

An approximate factor is kept unchanged to precondition conjugate gradients on the edited graph
(:mod:`ohmformer.solve.engines.elimination`). An exact one is used as follows.

For ``L' = L + U C U^T``, with a column ``e_u - e_v`` of U for every pair of nodes whose conductance changes by c, potentials
are ``x = G (psi - U w) + E b``. G applies the factor of L, with the ground of every component at zero; E shifts the
components of L joined by edits; w, the currents through the changes, and b solve a small symmetric system,

    (C^-1 + U^T G U) w - U^T E b = U^T G psi,    -E^T U w = -E^T psi.

Any solution suffices; the nullity of the system is the number of components of L' without a ground.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ohmformer.graph import Graph
from ohmformer.graph.labelled import LabelledGraph
from ohmformer.graph.memory import recall, remembered
from ohmformer.solve.costs import EDITS
from ohmformer.solve.engines import elimination
from ohmformer.solve.engines.direct import EDITED
from ohmformer.solve.factor import Factor

TRUSTED = 1e-9
"""Eigenvalues of the small system, relative to the largest, below which too many digits have cancelled."""


@dataclass(frozen=True, eq=False)
class EditedFactor:
    """The factor of a graph, and the corrections for its edits."""

    factor: Factor
    components: Int[Tensor, " nodes"]
    """Components of the graph that was factored."""
    changes: dict[tuple[int, int], tuple[float, float]]
    """The conductance between two nodes, before and after."""
    moved: Float[Tensor, "nodes changes"]
    """``G U``."""
    shifts: Int[Tensor, " nodes"] | None
    """The column of E of every node, the last one for none; None if edits join no components."""
    inverse: Float[Tensor, "unknowns unknowns"]
    """The inverse of the small system."""

    def solve(self, demands: Float[Tensor, "nodes k"]) -> Float[Tensor, "nodes k"]:
        """Solve for demands that sum to zero on every component; potentials in float64, up to a constant per component."""
        psi = demands.detach().to("cpu", torch.float64)
        x, (u, v) = self.factor.solve(psi), _ends(self.changes)
        given = x[u] - x[v]
        if self.shifts is None:
            return x.addmm_(self.moved, self.inverse @ given, alpha=-1.0)
        sums = psi.new_zeros(len(self.inverse) - len(u) + 1, psi.shape[1]).index_add_(0, self.shifts, psi)[:-1]
        found = self.inverse @ torch.cat([given, -sums])
        shift = torch.cat([found[len(u) :], found.new_zeros(1, psi.shape[1])])
        return x.addmm_(self.moved, found[: len(u)], alpha=-1.0) + shift[self.shifts]


def edit(asked: LabelledGraph, add: Iterable[Any], remove: Iterable[Any], reweight: Iterable[Any]) -> LabelledGraph:
    """Edit a graph; if the factor of the original is kept, the edited graph uses it.

    Remaining edges keep their order, followed by the added ones. Differentiable in all resistances.
    """
    graph = asked.graph
    (tail, head), r = graph.edge_index, graph.resistance
    ends = tail.cpu().numpy(), head.cpu().numpy()
    gone = [_edge_number(asked, ends, edge) for edge in remove]
    changed = [(_edge_number(asked, ends, edge[:-1]), edge[-1]) for edge in (_with_resistance(e, 2) for e in reweight)]
    added = [(*asked.pairs([edge[:2]])[0].tolist(), edge[2]) for edge in (_with_resistance(e, 3) for e in add)]
    touched = gone + [number for number, _ in changed]
    if len(set(touched)) < len(touched):
        raise ValueError("expected every edge to be removed or given another resistance once, got one twice")
    for u, v, _ in added:
        if u == v or graph.batch[u] != graph.batch[v]:
            why = "a self-loop" if u == v else "nodes of two graphs of a batch"
            raise ValueError(f"expected an edge between two different nodes of a graph, got {why}")
    new = _numbers([value for *_, value in changed] + [value for *_, value in added], r)
    if changed:
        where = torch.tensor([number for number, _ in changed], device=r.device)
        r = r.index_put((where,), new[: len(changed)])
    stay = torch.ones(len(r), dtype=torch.bool, device=r.device)
    stay[gone] = False
    ends_added = torch.tensor([edge[:2] for edge in added], dtype=torch.long, device=r.device).view(-1, 2).t()
    after = replace(
        graph,
        edge_index=torch.cat([graph.edge_index[:, stay], ends_added], dim=1),
        resistance=torch.cat([r[stay], new[len(changed) :]]),
    )
    touched_pairs = [(int(tail[e]), int(head[e])) for e in touched] + [(u, v) for u, v, _ in added]
    pairs = {(min(pair), max(pair)) for pair in touched_pairs}
    with torch.no_grad():
        _carry_over(graph, after, pairs)
        elimination.carry_over(graph, after, len(pairs))
    return replace(asked, graph=after)


def _with_resistance(edge: Any, least: int) -> tuple:
    """Return an edge, given by number or two nodes, and its resistance."""
    if not isinstance(edge, (tuple, list)) or not least <= len(edge) <= 3:
        wanted = "(node, node, resistance)" + (" or (edge number, resistance)" if least == 2 else "")
        raise ValueError(f"expected {wanted}, got {edge!r}")
    return tuple(edge)


def _edge_number(asked: LabelledGraph, ends: tuple[Any, Any], edge: Any) -> int:
    """Return the number of an edge, given by number or by its two nodes."""
    edge = edge[0] if isinstance(edge, (tuple, list)) and len(edge) == 1 else edge
    if isinstance(edge, (int, np.integer)):
        if not 0 <= edge < asked.graph.num_edges:
            raise ValueError(f"expected an edge number in 0..{asked.graph.num_edges - 1}, got {edge}")
        return int(edge)
    u, v = asked.pairs([edge])[0].tolist()
    tail, head = ends
    found = (((tail == u) & (head == v)) | ((tail == v) & (head == u))).nonzero()[0].tolist()
    if len(found) != 1:
        several = f"{len(found)}: name one of them by its number, {', '.join(map(str, found))}" if found else "none"
        raise ValueError(f"expected one edge between {edge[0]!r} and {edge[1]!r}, got {several}")
    return found[0]


def _numbers(values: list[Any], like: Tensor) -> Float[Tensor, " edges"]:
    """Check resistances and return them as a tensor; those that are tensors keep their gradient."""
    bad = [value for value in values if not isinstance(value, (Real, Tensor))]
    if bad:
        raise ValueError(f"expected a positive and finite resistance, got {bad[0]!r}")
    parts = [torch.as_tensor(value, dtype=like.dtype, device=like.device).reshape(1) for value in values]
    for part in parts:
        if not (part > 0 and part.isfinite() and part.reciprocal().isfinite()):
            raise ValueError(f"expected a positive and finite resistance, got {part.item()}")
    return torch.cat(parts) if parts else like.new_zeros(0)


def _carry_over(before: Graph, after: Graph, touched: set[tuple[int, int]]) -> None:
    """Reuse the factor of the original graph for the edited one, unless the edits are too many or too large."""
    if before.signed:
        return
    base = remembered(before, EDITED)
    factor = base.factor if base else remembered(before, "factor")
    if factor is None:
        return
    total = dict(base.changes) if base else {}
    for pair in sorted(touched):
        then = total.pop(pair)[0] if pair in total else _conductance(before, pair)
        now = _conductance(after, pair)
        if now != then:
            total[pair] = then, now
    if len(total) > EDITS:
        return
    components = base.components if base else before.components.cpu()
    old = dict(zip(base.changes, base.moved.t(), strict=True)) if base else {}
    fresh = _unit_demands(after.num_nodes, [pair for pair in total if pair not in old])
    solved = iter(factor.solve(fresh).t()) if fresh.shape[1] else iter(())
    columns = [old[pair] if pair in old else next(solved) for pair in total]
    moved = torch.stack(columns, dim=1) if columns else fresh
    found = _edited(after, factor, components, total, moved)
    if found is not None:
        recall(after, EDITED, lambda: found)


def _edited(
    graph: Graph, factor: Factor, components: Tensor, changes: dict[tuple[int, int], tuple[float, float]], moved: Tensor
) -> EditedFactor | None:
    """Build the small system and its inverse; return None if too many digits cancel in it."""
    u, v = _ends(changes)
    inside = moved[u] - moved[v]
    change = torch.tensor([after - before for before, after in changes.values()], dtype=torch.float64)
    joins = components[u] != components[v]
    joined = torch.unique(torch.cat([components[u[joins]], components[v[joins]]]))
    across = (components[u, None] == joined).double() - (components[v, None] == joined).double()
    system = torch.cat(
        [
            torch.cat([inside + torch.diag(1 / change), -across], 1),
            torch.cat([-across.mT, across.new_zeros(len(joined), len(joined))], 1),
        ]
    )
    scale = torch.maximum(change.abs().reciprocal(), inside.diagonal()).rsqrt()
    largest = (across.abs() * scale[:, None]).amax(0) if len(scale) else scale
    scale = torch.cat([scale, largest.reciprocal()])
    values, vectors = torch.linalg.eigh(scale[:, None] * (system + system.mT) / 2 * scale)
    singular = graph.num_components - (int(components.max()) + 1 - len(joined))
    order = values.abs().argsort()[singular:]
    values, vectors = values[order], scale[:, None] * vectors[:, order]
    if len(values) and not float(values.abs().min()) > TRUSTED * float(values.abs().max()):
        return None
    shifts = None
    if len(joined):
        place = torch.full((int(components.max()) + 1,), len(joined))
        place[joined] = torch.arange(len(joined))
        shifts = place[components]
    return EditedFactor(factor, components, changes, moved, shifts, vectors / values @ vectors.mT)


def _ends(pairs: Iterable[tuple[int, int]]) -> Int[Tensor, "2 pairs"]:
    return torch.tensor(list(pairs), dtype=torch.long).view(-1, 2).t()


def _conductance(graph: Graph, pair: tuple[int, int]) -> float:
    """Return the total conductance of all edges between two nodes."""
    tail, head = graph.edge_index
    between = ((tail == pair[0]) & (head == pair[1])) | ((tail == pair[1]) & (head == pair[0]))
    return float(graph.resistance[between].double().reciprocal().sum())


def _unit_demands(nodes: int, pairs: list[tuple[int, int]]) -> Float[Tensor, "nodes pairs"]:
    """Return U: demands of a unit injected at one node of every pair and extracted at the other."""
    psi, column = torch.zeros(nodes, len(pairs), dtype=torch.float64), torch.arange(len(pairs))
    for node, unit in zip(_ends(pairs), (1.0, -1.0), strict=True):
        psi[node, column] = unit
    return psi
