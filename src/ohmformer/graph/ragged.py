"""Items of many graphs (nodes, edges, matrix entries) side by side in one flat list: whose they are, and some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor


class kept(cached_property):
    """A cached property whose tensors can be used everywhere, also if they were first asked for in ``inference_mode``."""

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        @wraps(compute)
        def outside(owner: Any) -> Any:
            with torch.inference_mode(False):
                return compute(owner)

        super().__init__(outside)


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
        """Make spans of so many items for each graph."""
        return cls(torch.cat([counts.new_zeros(1), counts.cumsum(0)]))

    def __len__(self) -> int:
        """How many graphs there are."""
        return len(self.start) - 1

    @kept
    def counts(self) -> Int[Tensor, " graphs"]:
        """Items of each graph."""
        return self.start.diff()

    @property
    def first(self) -> Int[Tensor, " graphs"]:
        """The row of each graph's first item."""
        return self.start[:-1]

    @kept
    def total(self) -> int:
        """Items of all graphs together."""
        return int(self.start[-1])

    @kept
    def owner(self) -> Int[Tensor, " items"]:
        """The graph of every item, ascending."""
        graphs = torch.arange(len(self), device=self.start.device)
        return torch.repeat_interleave(graphs, self.counts, output_size=self.total)

    @kept
    def within(self) -> Int[Tensor, " items"]:
        """The position of every item within its own graph."""
        return torch.arange(self.total, device=self.start.device) - self.first[self.owner]

    def rows(self, which: Int[Tensor, " chosen"]) -> Int[Tensor, " rows"]:
        """Find the rows of the chosen graphs' items, one graph after the other."""
        chosen = self.select(which)
        return chosen.within + self.start[which][chosen.owner]

    def select(self, which: Int[Tensor, " chosen"]) -> Spans:
        """Make the spans of the chosen graphs' items once they lie side by side, in the order of ``which``."""
        return Spans.of(self.counts[which])

    def split(self, x: Shaped[Tensor, "items ..."]) -> tuple[Shaped[Tensor, "count ..."], ...]:
        """Split a flat list into what belongs to each graph."""
        return x.split(self.counts.tolist())


@dataclass(frozen=True, eq=False)
class Matrices:
    """One square matrix per graph, each of its own size, in one flat list: graph by graph, row by row.

    >>> pair = Matrices(torch.arange(5.0), torch.tensor([1, 2]))
    >>> len(pair), pair[1]
    (2, tensor([[1., 2.],
            [3., 4.]]))
    """

    entries: Float[Tensor, " entries"]
    sizes: Int[Tensor, " graphs"]
    """Rows of each matrix."""

    @kept
    def spans(self) -> Spans:
        """Which entries belong to which graph."""
        return Spans.of(self.sizes.square())

    def __len__(self) -> int:
        """How many matrices there are."""
        return len(self.sizes)

    def __getitem__(self, graph: int) -> Float[Tensor, "nodes nodes"]:
        """The matrix of one graph."""
        number = range(len(self))[graph]
        n, first = int(self.sizes[number]), int(self.spans.start[number])
        return self.entries[first : first + n * n].view(n, n)

    def split(self) -> list[Float[Tensor, "nodes nodes"]]:
        """Split into the matrices one by one, as views."""
        return [x.view(n, n) for x, n in zip(self.spans.split(self.entries), self.sizes.tolist(), strict=True)]

    @kept
    def nodes(self) -> Spans:
        """Which rows belong to which graph, those of all graphs counted through."""
        return Spans.of(self.sizes)

    @kept
    def rows(self) -> Spans:
        """Which entries belong to which row."""
        return Spans.of(self.sizes[self.nodes.owner])

    def at(self, u: Int[Tensor, " pairs"], v: Int[Tensor, " pairs"]) -> Float[Tensor, " pairs"]:
        """Look up the entries of pairs of nodes of one graph, by their numbers in the batch."""
        return self.entries[self.rows.first[u] + self.nodes.within[v]]

    def diagonal(self) -> Float[Tensor, " nodes"]:
        """Return the diagonals, one after the other."""
        return self.entries[self.rows.first + self.nodes.within]

    def sums(self) -> Float[Tensor, " graphs"]:
        """Sum the entries of each matrix."""
        return self.entries.new_zeros(len(self)).index_add(0, self.spans.owner, self.entries)

    def to(self, dtype: torch.dtype) -> Matrices:
        """Convert the entries to another type."""
        return Matrices(self.entries.to(dtype), self.sizes)

    @property
    def padded_bytes(self) -> int:
        """The bytes that :meth:`padded` will take: graphs times the square of the largest size times those of a number."""
        return len(self) * (int(self.sizes.max()) if len(self) else 0) ** 2 * self.entries.itemsize

    def padded(self, *, most_bytes: int = 2**30) -> Float[Tensor, "graphs width width"]:
        """Arrange all matrices in one tensor, zeros beyond a graph; refused if it takes more than ``most_bytes``."""
        if self.padded_bytes > most_bytes:
            limit, padded, ragged = (x / 2**30 for x in (most_bytes, self.padded_bytes, self.entries.nbytes))
            raise ValueError(
                f"expected padded matrices of at most {limit:.3g} GiB, these take {padded:.3g} GiB instead of the "
                f"{ragged:.3g} they take now; use .split(), or pass most_bytes="
            )
        width = int(self.sizes.max()) if len(self) else 0
        place = self.nodes.owner * width**2 + self.nodes.within * width  # where every row begins
        flat = self.entries.new_zeros(len(self) * width**2)
        return flat.index_copy(0, place[self.rows.owner] + self.rows.within, self.entries).view(len(self), width, width)

    @classmethod
    def join(cls, parts: Sequence[tuple[Int[Tensor, " chosen"], Matrices]], graphs: int) -> Matrices:
        """Join the matrices of parts of a batch, each with the numbers of its graphs, in the order of the batch."""
        which, found = zip(*parts, strict=True)
        sizes = torch.cat([m.sizes for m in found]).new_zeros(graphs)
        for chosen, m in parts:
            sizes[chosen] = m.sizes
        spans = Spans.of(sizes.square())
        rows = torch.cat([spans.rows(chosen) for chosen in which])
        entries = torch.cat([m.entries for m in found])
        return cls(torch.empty_like(entries).index_copy(0, rows, entries), sizes)

    @classmethod
    def unpad(cls, padded: Float[Tensor, "graphs width width"], sizes: Int[Tensor, " graphs"]) -> Matrices:
        """Take the matrices out of the upper left corners of padded ones."""
        real = torch.arange(padded.shape[-1], device=padded.device) < sizes[:, None]
        return cls(padded[real[:, :, None] & real[:, None, :]], sizes)
