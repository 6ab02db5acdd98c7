"""Where matrices of many graphs lie for batched products: graphs of like size together, padded to one width."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ohmformer.graph.graph import Graph

ENTRIES = 2**18
"""Default number of matrix entries per block, chosen so that they stay in the cache between products."""


def padded_widths(sizes: Int[np.ndarray, " graphs"]) -> Int[np.ndarray, " graphs"]:
    """Compute the padded width of each graph: at most three nodes more, or an eighth of the graph."""
    step = np.maximum(4, 2 ** np.floor(np.log2(np.maximum(sizes, 1) / 8)).clip(min=1)).astype(np.int64)
    return -(-sizes // step) * step


def like_sized(sizes: Int[np.ndarray, " graphs"], together: int = ENTRIES) -> list[tuple[int, Int[np.ndarray, " chosen"]]]:
    """Group graphs by padded width, with at most ``together`` matrix entries per group; return widths and graphs."""
    widths, groups = padded_widths(sizes), []
    for width in np.unique(widths).tolist():
        members = np.nonzero(widths == width)[0]
        cuts = range(0, len(members), max(1, together // max(1, width**2)))[1:]
        groups += [(width, part) for part in np.split(members, cuts)]
    return groups


@dataclass(frozen=True)
class Block:
    """Graphs of similar size, padded to one width, whose matrices are stored contiguously."""

    which: Int[Tensor, " graphs"]
    """Indices of the graphs in the batch."""
    node: Int[Tensor, "graphs width"]
    """Indices of their nodes in the batch, -1 on padding."""
    start: int
    """Offset of their matrices in the buffer."""
    first_row: int
    """Offset of their nodes in the list of all nodes and padding."""

    def of(self, buffer: Float[Tensor, " entries"]) -> Float[Tensor, "graphs width width"]:
        """Return a view of the matrices of these graphs in a buffer."""
        graphs, width = self.node.shape
        return buffer[self.start : self.start + graphs * width**2].view(graphs, width, width)

    def rows_of(self, rows: Shaped[Tensor, "rows k"]) -> Shaped[Tensor, "graphs width k"]:
        """Return the rows of these graphs from an array over all nodes and padding."""
        return rows[self.first_row : self.first_row + self.node.numel()].view(*self.node.shape, rows.shape[1])


class Blocks:
    """Positions of the matrices of a batch's graphs in one flat buffer, block by block."""

    def __init__(self, graph: Graph, together: int = ENTRIES) -> None:
        sizes, offsets = graph.graph_sizes.cpu().numpy(), graph.graph_offsets.cpu().numpy()
        widths = padded_widths(sizes)
        bases, first_rows = np.zeros((2, graph.num_graphs), dtype=np.int64)
        on_device = partial(torch.as_tensor, device=graph.device)
        self.blocks: list[Block] = []
        self.entries = self.rows = 0
        for width, which in like_sized(sizes, together):
            slot = np.arange(width)
            node = np.where(slot < sizes[which, None], offsets[which, None] + slot, -1)
            bases[which] = self.entries + np.arange(len(which)) * width**2
            first_rows[which] = self.rows + np.arange(len(which)) * width
            self.blocks.append(Block(on_device(which), on_device(node), self.entries, self.rows))
            self.entries += len(which) * width**2
            self.rows += len(which) * width
        self.base, self.stride = on_device(bases), on_device(widths)
        """Offset and row length of each graph's matrix."""
        node = torch.arange(graph.num_nodes, device=graph.device)
        before, base, stride, shift = (
            on_device(x).index_select(0, graph.batch) for x in (offsets, bases, widths, first_rows - offsets)
        )
        self._slot = node - before
        self._line = base + self._slot * stride
        self.row: Int[Tensor, " nodes"] = node + shift
        """Position of each node in the list of all nodes and padding."""

    def padded(self, x: Shaped[Tensor, " nodes"]) -> Shaped[Tensor, "rows 1"]:
        """Copy values on nodes to the padded list of nodes, with zeros on padding."""
        return x.new_zeros(self.rows).index_copy_(0, self.row, x)[:, None]

    def index(self, u: Int[Tensor, " pairs"], v: Int[Tensor, " pairs"]) -> Int[Tensor, " pairs"]:
        """Return the position in the buffer of the entry ``(u, v)`` for pairs of nodes of the same graph."""
        return self._line.index_select(0, u) + self._slot.index_select(0, v)

    def diagonal(self) -> Int[Tensor, " nodes"]:
        """Return the position in the buffer of each node's diagonal entry."""
        return self._line + self._slot
