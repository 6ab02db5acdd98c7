"""Kron reduction: the graph that some nodes see of a network, the Schur complement of its Laplacian, without subtractions.

Eliminating a node joins its neighbours by conductances that are products and quotients of sums of positive numbers, so those
of the reduced graph are accurate to rounding for any range of resistances (:mod:`ohmformer.solve.factor`).

>>> import ohmformer as ohm
>>> star = [("hub", "a"), ("hub", "b"), ("hub", "c")]
>>> triangle = ohm.kron_reduce(star, ["a", "b", "c"])
>>> triangle.labels, triangle.graph.resistance
(['a', 'b', 'c'], tensor([3., 3., 3.], dtype=torch.float64))
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ohmformer.graph import Graph
from ohmformer.graph.labelled import as_graph
from ohmformer.solve.answer import GraphAnswer
from ohmformer.solve.certificate import check_finite
from ohmformer.solve.factor import BEARABLE, Factor, keeping
from ohmformer.solve.selected import Selected, edge_places

METHOD = "partial elimination"


def kron_reduce(graph: Any, keep: Any, *, resistance: Any = None, conductance: Any = None) -> GraphAnswer:
    """Reduce a graph to some of its nodes (Kron reduction), preserving currents and resistances between them.

    Its Laplacian is ``L_KK - L_KU L_UU^-1 L_UK``: potentials of demands on the kept nodes K, and thus effective resistances
    between them, are unchanged. The other nodes U are eliminated in an order that keeps fill-in small; two kept nodes share
    an edge in the reduced graph if a path through eliminated nodes, or an edge, connects them. Components without a kept
    node vanish. Differentiable in the resistances, by reverse elimination, which takes about as long again.

    ``residual`` is the largest difference between the currents of both graphs at random potentials on the kept nodes,
    relative to the sizes of their terms; ``error`` is a proved bound on the relative error of every resistance.

    Args:
        graph: one graph or a batch, in any form that :func:`potentials` takes.
        keep: the nodes to keep, each once: a list of labels, a tensor of numbers, or a mask. The reduced graph keeps this
            order within each graph of a batch.
        resistance: as for :func:`potentials`.
        conductance: likewise.
    """
    asked = as_graph(graph, resistance=resistance, conductance=conductance)
    found, nodes = asked.graph, asked.nodes(keep)
    if not len(nodes):
        raise ValueError("expected at least one node to keep, got none")
    nodes = nodes[found.batch[nodes].argsort(stable=True)]
    number = torch.full((found.num_nodes,), -1, device=found.device)
    number[nodes] = torch.arange(len(nodes), device=found.device)
    twice = nodes[number[nodes] != torch.arange(len(nodes), device=found.device)]
    if len(twice):
        raise ValueError(f"expected every node to keep once, got {asked.name(int(twice[0]))} twice")
    factor = keeping(found, (number >= 0).cpu().numpy())
    if factor is None:
        raise ValueError(
            f"expected nodes whose elimination takes at most {BEARABLE.entries} numbers and {BEARABLE.work:.0e} operations, "
            f"keeping {len(nodes)} of {found.num_nodes} nodes takes more"
        )
    ends, places = _edges(factor, number.cpu().numpy())
    weight = _Reduced.apply(found.resistance, found, factor, places)
    check_finite(weight, len(places))  # pyright: ignore[reportArgumentType]
    batch = found.batch[nodes]
    reduced = Graph(ends.to(found.device), weight, batch, found.num_graphs, found.batched)  # pyright: ignore[reportArgumentType]
    lost = found.num_components - len(found.components[nodes].unique())
    labels = None if asked.labels is None else [asked.labels[i] for i in nodes.tolist()]
    note = f"{factor.pattern.eliminated} nodes eliminated by a factor of {len(factor.pattern.row)} entries"
    note += f"; {lost} components without a kept node are gone" if lost else ""
    gap = _gap(found, reduced, nodes, factor)
    error = factor.rounding() + torch.finfo(found.dtype).eps
    return GraphAnswer(reduced, METHOD, 0, gap, None, note=note, labels=labels, kept=nodes, error=error, error_kind="bound")


def _edges(factor: Factor, number: Int[np.ndarray, " nodes"]) -> tuple[Int[Tensor, "2 edges"], Int[Tensor, " edges"]]:
    """Return the edges of the reduced graph, ordered by nodes, and the places of their conductances in the factor."""
    pattern, nodes = factor.pattern, len(number)
    first = pattern.first.numpy()
    begin = int(first[pattern.eliminated])
    column = np.repeat(np.arange(pattern.eliminated, nodes), np.diff(first[pattern.eliminated :]))
    place = begin + np.nonzero(factor.fraction.numpy()[begin:] > 0)[0]
    ends = np.sort(number[pattern.order[np.stack([column[place - begin], pattern.row.numpy()[place]])]], axis=0)
    order = np.lexsort(ends[::-1])
    return torch.as_tensor(ends[:, order]).long(), torch.as_tensor(place[order])


class _Reduced(torch.autograd.Function):
    """Resistances of the reduced graph, with gradients by reverse elimination.

    With P the harmonic extension from kept nodes, the Schur complement changes by ``P^T dL P``. So for a gradient G with
    respect to the conductances between kept nodes, that of an edge (u, v) is ``-q_uv / 2``, where ``q_uv = (P_u - P_v)^T G
    (P_u - P_v)`` is ``-2 G_uv`` on kept nodes, and follows for others by the recurrence of resistances with infinite pivots.
    """

    @staticmethod
    def forward(ctx: Any, resistance: Tensor, graph: Graph, factor: Factor, places: Tensor) -> Tensor:
        ctx.graph, ctx.factor, ctx.places = graph, factor, places
        found = 1 / factor.fraction[places]
        ctx.save_for_backward(resistance, found)
        return found.to(graph.device, graph.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (resistance, found), factor = ctx.saved_tensors, ctx.factor
        given = torch.zeros_like(factor.fraction)
        given[ctx.places] = 2 * gradients[0].detach().cpu().double() * found.square()  # -2 G, and dr = -r^2 dc
        free = replace(factor, pivot=torch.full_like(factor.pivot, torch.inf), d_fraction=None, d_pivot=None)
        q = Selected.of(free, given).resistance[edge_places(ctx.graph, factor.pattern)]
        return q.to(resistance.device, resistance.dtype) / 2 / resistance.square(), None, None, None


def _gap(graph: Graph, reduced: Graph, nodes: Int[Tensor, " kept"], factor: Factor) -> float:
    """Compare currents of both graphs at random potentials on the kept nodes, relative to the sizes of their terms."""
    draw = torch.Generator().manual_seed(0)
    potential = torch.zeros(graph.num_nodes, dtype=torch.float64)
    potential[nodes.cpu()] = torch.randn(len(nodes), generator=draw, dtype=torch.float64)
    demand, _ = _currents(graph, potential)
    demand[nodes.cpu()] = 0
    potential += factor.solve(-demand[:, None])[:, 0]
    flow, size = _currents(graph, potential)
    expected, terms = _currents(reduced, potential[nodes.cpu()])
    flow[nodes.cpu()] -= expected
    size[nodes.cpu()] += terms
    return float((flow.abs() / torch.where(size > 0, size, 1.0)).max())


def _currents(graph: Graph, potential: Float[Tensor, " nodes"]) -> tuple[Float[Tensor, " nodes"], Float[Tensor, " nodes"]]:
    """Compute ``L phi`` and ``|L| |phi|``."""
    (tail, head), c = graph.edge_index.cpu(), 1 / graph.resistance.detach().cpu().double()
    flow, size = c * (potential[tail] - potential[head]), c * (potential[tail].abs() + potential[head].abs())
    none = torch.zeros(2, graph.num_nodes, dtype=torch.float64)
    out = none.index_add(1, tail, torch.stack([flow, size])).index_add(1, head, torch.stack([-flow, size]))
    return out[0], out[1]
