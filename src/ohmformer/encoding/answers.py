"""Read what the solvers answer for a batch, matrices of graphs and rows of nodes, without padding graphs to one size."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ohmformer.graph import Graph
from ohmformer.graph.ragged import Spans


class Entries:
    """The entries of one square matrix per graph in a flat list: graph by graph, row by row."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.rows = Spans.of(graph.graph_sizes[graph.batch])
        """Which entries belong to the row of which node."""
        self.place = Spans.of(graph.graph_sizes).within
        """The position of every node in its own graph."""

    def of(self, value: Any) -> Float[Tensor, " entries"]:
        """Flatten a matrix, a batch of padded ones, or matrices that are flat already."""
        if not isinstance(value, Tensor):
            return value.entries
        if not self.graph.batched:
            return value.flatten()
        real = torch.arange(value.shape[-1]) < self.graph.graph_sizes[:, None]
        return value[real[:, :, None] & real[:, None, :]]

    def at(self, u: Int[Tensor, " pairs"], v: Int[Tensor, " pairs"]) -> Int[Tensor, " pairs"]:
        """Return where the entries of pairs of nodes of one graph stand."""
        return self.rows.start[u] + self.place[v]

    def diagonal(self) -> Int[Tensor, " nodes"]:
        """Return where the diagonal entries stand."""
        return self.rows.first + self.place


def node_rows(graph: Graph, value: Tensor) -> Float[Tensor, "nodes k"]:
    """Return one row per node from rows, or from ``(graphs, width, k)`` padded."""
    return value if value.ndim == 2 else value[graph.batch, Spans.of(graph.graph_sizes).within]


def padded(value: Any) -> Float[Tensor, "graphs width width"]:
    """Return one matrix per graph padded to the largest, from those or from ragged ones."""
    return value if isinstance(value, Tensor) else value.padded()
