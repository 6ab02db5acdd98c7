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
    """A cached property, computed outside of ``inference_mode`` so that its tensors can be used anywhere."""

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        @wraps(compute)
        def outside(owner: Any) -> Any:
            with torch.inference_mode(False):
                return compute(owner)

        super().__init__(outside)


@dataclass(frozen=True, eq=False)
class Spans:
    """Ranges of a flat list: the items of graph g are rows ``start[g]`` to ``start[g + 1]``; a range may be empty.

    >>> nodes = Spans.of(torch.tensor([2, 0, 3]))
    >>> nodes.owner, nodes.within
    (tensor([0, 0, 2, 2, 2]), tensor([0, 1, 0, 1, 2]))
    >>> nodes.rows(torch.tensor([2, 0]))
    tensor([2, 3, 4, 0, 1])
    """

    start: Int[Tensor, " graphs_and_end"]

    @classmethod
    def of(cls, counts: Int[Tensor, " graphs"]) -> Spans:
        """Build the ranges from the number of items of each graph."""
        return cls(torch.cat([counts.new_zeros(1), counts.cumsum(0)]))

    def __len__(self) -> int:
        """Return the number of graphs."""
        return len(self.start) - 1

    @kept
    def counts(self) -> Int[Tensor, " graphs"]:
        """Number of items of each graph."""
        return self.start.diff()

    @property
    def first(self) -> Int[Tensor, " graphs"]:
        """Row of each graph's first item."""
        return self.start[:-1]

    @kept
    def total(self) -> int:
        """Total number of items of all graphs."""
        return int(self.start[-1])

    @kept
    def owner(self) -> Int[Tensor, " items"]:
        """Index of the graph of each item, ascending."""
        graphs = torch.arange(len(self), device=self.start.device)
        return torch.repeat_interleave(graphs, self.counts, output_size=self.total)

    @kept
    def within(self) -> Int[Tensor, " items"]:
        """Position of each item within its graph."""
        return torch.arange(self.total, device=self.start.device) - self.first[self.owner]

    def rows(self, which: Int[Tensor, " chosen"]) -> Int[Tensor, " rows"]:
        """Return the rows of the chosen graphs' items, one graph after the other."""
        chosen = self.select(which)
        return chosen.within + self.start[which][chosen.owner]

    def select(self, which: Int[Tensor, " chosen"]) -> Spans:
        """Return the ranges of the chosen graphs' items after concatenation in the order of ``which``."""
        return Spans.of(self.counts[which])

    def split(self, x: Shaped[Tensor, "items ..."]) -> tuple[Shaped[Tensor, "count ..."], ...]:
        """Split a flat list into one part per graph."""
        return x.split(self.counts.tolist())


@dataclass(frozen=True, eq=False)
class Matrices:
    """Square matrices, one per graph and of its size, in one flat list: graph by graph, row by row.

    >>> pair = Matrices(torch.arange(5.0), torch.tensor([1, 2]))
    >>> len(pair), pair[1]
    (2, tensor([[1., 2.],
            [3., 4.]]))
    """

    entries: Float[Tensor, " entries"]
    sizes: Int[Tensor, " graphs"]
    """Number of rows of each matrix."""

    @kept
    def spans(self) -> Spans:
        """The range of entries of each graph."""
        return Spans.of(self.sizes.square())

    def __len__(self) -> int:
        """Return the number of matrices."""
        return len(self.sizes)

    def __getitem__(self, graph: int) -> Float[Tensor, "nodes nodes"]:
        """Return the matrix of one graph."""
        number = range(len(self))[graph]
        n, first = int(self.sizes[number]), int(self.spans.start[number])
        return self.entries[first : first + n * n].view(n, n)

    def split(self) -> list[Float[Tensor, "nodes nodes"]]:
        """Split into individual matrices, as views."""
        return [x.view(n, n) for x, n in zip(self.spans.split(self.entries), self.sizes.tolist(), strict=True)]

    @kept
    def nodes(self) -> Spans:
        """The range of rows of each graph, numbered through all graphs."""
        return Spans.of(self.sizes)

    @kept
    def rows(self) -> Spans:
        """The range of entries of each row."""
        return Spans.of(self.sizes[self.nodes.owner])

    def at(self, u: Int[Tensor, " pairs"], v: Int[Tensor, " pairs"]) -> Float[Tensor, " pairs"]:
        """Return the entries ``(u, v)`` for pairs of nodes of the same graph, numbered as in the batch."""
        return self.entries[self.rows.first[u] + self.nodes.within[v]]

    def diagonal(self) -> Float[Tensor, " nodes"]:
        """Return the diagonals of all matrices, concatenated."""
        return self.entries[self.rows.first + self.nodes.within]

    def sums(self) -> Float[Tensor, " graphs"]:
        """Sum the entries of each matrix, row by row, which rounds by at most ``2 n eps`` if they are positive."""
        rows = self.entries.new_zeros(len(self.rows)).index_add(0, self.rows.owner, self.entries)
        return rows.new_zeros(len(self)).index_add(0, self.nodes.owner, rows)

    def to(self, dtype: torch.dtype) -> Matrices:
        """Convert the entries to another dtype."""
        return Matrices(self.entries.to(dtype), self.sizes)

    @property
    def padded_bytes(self) -> int:
        """Bytes that :meth:`padded` allocates: graphs times the squared largest size times the bytes of a number."""
        return len(self) * (int(self.sizes.max()) if len(self) else 0) ** 2 * self.entries.itemsize

    def padded(self, *, most_bytes: int = 2**30) -> Float[Tensor, "graphs width width"]:
        """Return all matrices as one tensor, padded with zeros; raise a ValueError if it takes more than ``most_bytes``."""
        if self.padded_bytes > most_bytes:
            limit, padded, ragged = (x / 2**30 for x in (most_bytes, self.padded_bytes, self.entries.nbytes))
            raise ValueError(
                f"expected padded matrices of at most {limit:.3g} GiB, these take {padded:.3g} GiB instead of the "
                f"{ragged:.3g} they take now; use .split(), or pass most_bytes="
            )
        width = int(self.sizes.max()) if len(self) else 0
        place = self.nodes.owner * width**2 + self.nodes.within * width  # offset of each row
        flat = self.entries.new_zeros(len(self) * width**2)
        return flat.index_copy(0, place[self.rows.owner] + self.rows.within, self.entries).view(len(self), width, width)

    @classmethod
    def join(cls, parts: Sequence[tuple[Int[Tensor, " chosen"], Matrices]], graphs: int) -> Matrices:
        """Join the matrices of parts of a batch, each given with its graph indices, in the order of the batch."""
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
        """Extract the matrices from the upper left corners of padded ones."""
        real = torch.arange(padded.shape[-1], device=padded.device) < sizes[:, None]
        return cls(padded[real[:, :, None] & real[:, None, :]], sizes)
