"""Items of many graphs (nodes, edges, matrix entries) side by side in one flat list: whose they are, and some of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Int, Shaped
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Spans:
    """The items of graph g are rows ``start[g]`` to ``start[g + 1]`` of a flat list; a graph may have none.

    >>> nodes = Spans.of(torch.tensor([2, 0, 3]))
    >>> nodes.owner, nodes.within
    (tensor([0, 0, 2, 2, 2]), tensor([0, 1, 0, 1, 2]))
    >>> nodes.rows(torch.tensor([2, 0]))
    tensor([2, 3, 4, 0, 1])
    """

    start: Int[Tensor, " graphs_and_end"]

    @classmethod
    def of(cls, counts: Int[Tensor, " graphs"]) -> Spans:
        """Spans of so many items for each graph."""
        return cls(torch.cat([counts.new_zeros(1), counts.cumsum(0)]))

    def __len__(self) -> int:
        """How many graphs there are."""
        return len(self.start) - 1

    @cached_property
    def counts(self) -> Int[Tensor, " graphs"]:
        """Items of each graph."""
        return self.start.diff()

    @property
    def first(self) -> Int[Tensor, " graphs"]:
        """The row of each graph's first item."""
        return self.start[:-1]

    @cached_property
    def total(self) -> int:
        """Items of all graphs together."""
        return int(self.start[-1])

    @cached_property
    def owner(self) -> Int[Tensor, " items"]:
        """The graph of every item, ascending."""
        graphs = torch.arange(len(self), device=self.start.device)
        return torch.repeat_interleave(graphs, self.counts, output_size=self.total)

    @cached_property
    def within(self) -> Int[Tensor, " items"]:
        """The position of every item within its own graph."""
        return torch.arange(self.total, device=self.start.device) - self.first[self.owner]

    def rows(self, which: Int[Tensor, " chosen"]) -> Int[Tensor, " rows"]:
        """The rows of the chosen graphs' items, one graph after the other."""
        chosen = self.select(which)
        return chosen.within + self.start[which][chosen.owner]

    def select(self, which: Int[Tensor, " chosen"]) -> Spans:
        """The spans of the chosen graphs' items once they lie side by side, in the order of ``which``."""
        return Spans.of(self.counts[which])

    def split(self, x: Shaped[Tensor, "items ..."]) -> tuple[Shaped[Tensor, "count ..."], ...]:
        """What belongs to each graph."""
        return x.split(self.counts.tolist())
