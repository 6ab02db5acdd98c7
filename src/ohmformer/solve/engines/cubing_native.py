"""The layers of engine ``cubing`` in C (``small.c``): one small graph after the other, each in the first cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ohmformer import native
from ohmformer.constructions.electric import Chebyshev
from ohmformer.graph import Graph
from ohmformer.graph.blocks import Blocks
from ohmformer.graph.ragged import Matrices, Spans
from ohmformer.solve.engines.cubing_layers import MOST_SQUARINGS, Depth

LIMITS = native.KERNELS["ohm_invert"].limits


def invert(
    graph: Graph,
    blocks: Blocks,
    depths: Sequence[Depth],
    degree: Float[Tensor, " nodes"],
    root: Float[Tensor, " nodes"],
    null: Float[Tensor, " nodes"],
) -> tuple[Float[Tensor, " entries"], Float[Tensor, " graphs"], Int[Tensor, " graphs"]]:
    """Return the buffer of ``D^-1/2 N^+ D^-1/2``, and for every graph its residual and number of squarings.

    Args:
        graph: a batch within the limits of the kernel.
        blocks: where its matrices go.
        depths: the depth of every block.
        degree: the degree of every node.
        root: ``D^-1/2``, zero where the degree is zero.
        null: spans the null space of N on every component.
    """
    (u, v), resistance = graph.edge_index, graph.resistance.detach().double()
    if bool((graph.edge_graph.diff() < 0).any()):
        order = graph.edge_graph.argsort(stable=True)
        u, v, resistance = (x.index_select(0, order) for x in (u, v, resistance))
    depth_of = torch.zeros(graph.num_graphs, dtype=torch.long)
    for number, block in enumerate(blocks.blocks):
        depth_of[block.which] = number
    buffer, residual = degree.new_empty(blocks.entries), degree.new_empty(graph.num_graphs)
    squared = torch.empty_like(depth_of)
    table = torch.tensor([_row(depth) for depth in depths], dtype=torch.float32)
    edges = Spans.of(graph.edge_counts)
    arrays = [graph.nodes.start, edges.start, u, v, resistance, degree, root, null, graph.components]
    arrays += [table, depth_of, blocks.base, blocks.stride, buffer, residual, squared]
    tol = max((depth.tol for depth in depths), default=0.0)
    native.call("ohm_invert", graph.num_graphs, MOST_SQUARINGS, tol, *(x.contiguous() for x in arrays))
    return buffer, residual, squared


def all_pairs(graph: Graph, blocks: Blocks, buffer: Float[Tensor, " entries"]) -> Matrices:
    """Compute effective resistances of all pairs, ``inf`` between components."""
    out = Matrices(buffer.new_empty(int(graph.graph_sizes.square().sum())), graph.graph_sizes)
    label = None if graph.connected else graph.components
    arrays = graph.nodes.start, label, blocks.base, blocks.stride, buffer, out.spans.start, out.entries
    native.call("ohm_all_pairs", graph.num_graphs, *arrays)
    return out


def _row(depth: Depth) -> list[float]:
    """Return a depth as numbers in the order of the C struct."""
    offsets = depth.cubing.offsets(depth.depth - 1)
    omegas = Chebyshev(depth.cubing.spectrum).omegas(LIMITS["degree"])
    numbers = float(len(offsets)), float(depth.squarings)
    return [depth.cubing.start, *numbers, *omegas, *offsets, *[0.0] * (LIMITS["layers"] - len(offsets))]
