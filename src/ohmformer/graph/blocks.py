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
"""Matrix entries of one block unless said otherwise: as many as stay in the cache between products."""


def padded_widths(sizes: Int[np.ndarray, " graphs"]) -> Int[np.ndarray, " graphs"]:
    """Compute the width each graph is padded to: at most three nodes more, or an eighth of the graph."""
    step = np.maximum(4, 2 ** np.floor(np.log2(np.maximum(sizes, 1) / 8)).clip(min=1)).astype(np.int64)
    return -(-sizes // step) * step


def like_sized(sizes: Int[np.ndarray, " graphs"], together: int = ENTRIES) -> list[tuple[int, Int[np.ndarray, " chosen"]]]:
    """Group graphs that are padded to one width, each with that width and at most ``together`` matrix entries."""
    widths, groups = padded_widths(sizes), []
    for width in np.unique(widths).tolist():
        members = np.nonzero(widths == width)[0]
        cuts = range(0, len(members), max(1, together // max(1, width**2)))[1:]
        groups += [(width, part) for part in np.split(members, cuts)]
    return groups


@dataclass(frozen=True)
class Block:
    """Graphs of like size, whose matrices lie beside each other, padded to one width."""

    which: Int[Tensor, " graphs"]
    """Their numbers in the batch."""
    node: Int[Tensor, "graphs width"]
    """The numbers of their nodes in the batch, -1 on padding."""
    start: int
    """Where their matrices begin in the buffer."""
    first_row: int
    """Where their nodes begin among all nodes and padding."""

    def of(self, buffer: Float[Tensor, " entries"]) -> Float[Tensor, "graphs width width"]:
        """Return the matrices of these graphs in a buffer, as a view."""
        graphs, width = self.node.shape
        return buffer[self.start : self.start + graphs * width**2].view(graphs, width, width)

    def rows_of(self, rows: Shaped[Tensor, "rows k"]) -> Shaped[Tensor, "graphs width k"]:
        """Return the rows of these graphs among all nodes and padding."""
        return rows[self.first_row : self.first_row + self.node.numel()].view(*self.node.shape, rows.shape[1])


class Blocks:
    """Where the matrices of a batch's graphs lie in one flat buffer, block by block."""

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
        """Where the matrix of every graph begins, and how many columns it has."""
        node = torch.arange(graph.num_nodes, device=graph.device)
        before, base, stride, shift = (
            on_device(x).index_select(0, graph.batch) for x in (offsets, bases, widths, first_rows - offsets)
        )
        self._slot = node - before
        self._line = base + self._slot * stride
        self.row: Int[Tensor, " nodes"] = node + shift
        """The place of every node among all nodes and padding."""

    def padded(self, x: Shaped[Tensor, " nodes"]) -> Shaped[Tensor, "rows 1"]:
        """Arrange numbers on nodes among all nodes and padding, zero on padding."""
        return x.new_zeros(self.rows).index_copy_(0, self.row, x)[:, None]

    def index(self, u: Int[Tensor, " pairs"], v: Int[Tensor, " pairs"]) -> Int[Tensor, " pairs"]:
        """Find where the entry of two nodes of one graph lies in the buffer."""
        return self._line.index_select(0, u) + self._slot.index_select(0, v)

    def diagonal(self) -> Int[Tensor, " nodes"]:
        """Find where the diagonal entry of every node lies in the buffer."""
        return self._line + self._slot
