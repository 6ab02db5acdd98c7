"""Inverses of small graphs by the kernel ``ohm_invert``, graph by graph, as :mod:`.cubing`.

It takes batches on the CPU whose graphs are within the limits of the kernel and can be done in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ohmformer import native
from ohmformer.constructions.electric import Chebyshev
from ohmformer.graph import Graph
from ohmformer.solve.engines.cubing import MOST_SQUARINGS, Plan

if TYPE_CHECKING:
    from ohmformer.solve.engines.small import Buckets

NODES, EDGES, LAYERS, DEGREE = (native.KERNELS["ohm_invert"].limits[name] for name in ("nodes", "edges", "layers", "degree"))
"""Limits of the kernel: nodes and edges of a graph, layers of cubing, and the degree of the first of them."""


def takes(graph: Graph, plans: Sequence[Plan]) -> bool:
    """Whether compiled code is there and written for these graphs."""
    return (
        native.active() is not None
        and graph.device.type == "cpu"
        and graph.width <= NODES
        and (graph.num_edges <= EDGES or int(_edges_of(graph).max()) <= EDGES)
        and all(plan.dtype == torch.float32 and plan.depth <= LAYERS for plan in plans)
    )


def invert(
    graph: Graph,
    buckets: Buckets,
    plans: Sequence[Plan],
    degree: Float[Tensor, " nodes"],
    root: Float[Tensor, " nodes"],
    null: Float[Tensor, " nodes"],
) -> tuple[Float[Tensor, " entries"], Float[Tensor, " graphs"], Int[Tensor, " graphs"]]:
    """The buffer of ``D^-1/2 N^+ D^-1/2``, and of every graph the residual and how often it was squared.

    Args:
        graph: a batch that is taken.
        buckets: where its matrices go.
        plans: of every block.
        degree: of every node.
        root: ``D^-1/2``, zero where the degree is.
        null: spans the null space of N on every component.
    """
    edges, (u, v), resistance = _edges_of(graph), graph.edge_index, graph.resistance.detach().double()
    owner = graph.batch.index_select(0, u)
    if bool((owner.diff() < 0).any()):
        order = owner.argsort(stable=True)
        u, v, resistance = (x.index_select(0, order) for x in (u, v, resistance))
    plan_of = torch.zeros(graph.num_graphs, dtype=torch.long)
    for number, block in enumerate(buckets.blocks):
        plan_of[block.which] = number
    buffer, residual = degree.new_empty(buckets.entries), degree.new_empty(graph.num_graphs)
    squared = torch.empty_like(plan_of)
    table = torch.tensor([_row(plan) for plan in plans], dtype=torch.float32)
    arrays = [_firsts(graph.graph_sizes), _firsts(edges), u, v, resistance, degree, root, null, graph.components]
    arrays += [table, plan_of, buckets.base, buckets.stride, buffer, residual, squared]
    tol = max((plan.tol for plan in plans), default=0.0)
    native.call("ohm_invert", graph.num_graphs, MOST_SQUARINGS, tol, *(x.contiguous() for x in arrays))
    return buffer, residual, squared


def all_pairs(
    graph: Graph, buckets: Buckets, buffer: Float[Tensor, " entries"]
) -> Float[Tensor, "graphs width width"] | None:
    """Effective resistances of all pairs, ``inf`` between components, zero on padding; or None where it is not taken."""
    if native.active() is None or buffer.device.type != "cpu" or buffer.requires_grad or graph.width > NODES:
        return None
    out = buffer.new_empty(graph.num_graphs, graph.width, graph.width)
    label = None if graph.connected else graph.components
    arrays = _firsts(graph.graph_sizes), label, buckets.base, buckets.stride, buffer, out
    native.call("ohm_all_pairs", graph.num_graphs, graph.width, *arrays)
    return out


def _edges_of(graph: Graph) -> Int[Tensor, " graphs"]:
    """How many edges every graph has."""
    return torch.bincount(graph.batch.index_select(0, graph.edge_index[0]), minlength=graph.num_graphs)


def _firsts(counts: Int[Tensor, " graphs"]) -> Int[Tensor, " bounds"]:
    """Where the items of every graph begin, and where the last end."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def _row(plan: Plan) -> list[float]:
    """A plan in the order of the C struct."""
    offsets = plan.cubing.offsets(plan.depth - 1)
    omegas = Chebyshev(plan.cubing.spectrum).omegas(DEGREE)
    numbers = float(len(offsets)), float(plan.squarings)
    return [plan.cubing.start, *numbers, *omegas, *offsets, *[0.0] * (LAYERS - len(offsets))]
