"""The factor of a Laplacian by elimination without subtractions, with a look at its size beforehand.

For every node the factor lists its neighbours at the time of its elimination, and the fractions of its conductance to them;
see ``native/src/selected.c``. The last node of a component is its ground. Graphs of a batch share a factor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.sparse import coo_array, csr_array, triu
from torch import Tensor

from ohmformer import native
from ohmformer.graph import Graph
from ohmformer.graph.memory import recall
from ohmformer.native.machine import memory
from ohmformer.solve import factor_numpy
from ohmformer.solve.costs import BEARABLE, BYTES, Limits
from ohmformer.solve.rows import Rows, edges_of, rows_of
from ohmformer.solve.scaled import empty_huge_pages


@dataclass(frozen=True, eq=False)
class Pattern:
    """The sparsity pattern of a factor, known before the numerical factorization."""

    order: Int[np.ndarray, " nodes"]
    """The nodes in elimination order."""
    rank: Int[np.ndarray, " nodes"]
    """The place of every node in that order."""
    first: Int[Tensor, " nodes_and_one"]
    """The start of every column of the factor."""
    row: Int[Tensor, " entries"]
    """The row indices of the columns, ascending."""
    work: float
    """The sum of squared column counts."""
    eliminated: int
    """Number of nodes that are eliminated; the nodes after them are kept."""


@dataclass(frozen=True, eq=False)
class Factor:
    """A factor, and its tangent if requested."""

    pattern: Pattern
    fraction: Float[Tensor, " entries"]
    pivot: Float[Tensor, " nodes"]
    d_fraction: Float[Tensor, " entries"] | None = None
    d_pivot: Float[Tensor, " nodes"] | None = None

    def solve(self, demands: Float[Tensor, "nodes k"]) -> Float[Tensor, "nodes k"]:
        """Solve for demands that sum to zero on every component; potentials are zero at its ground, or at kept nodes."""
        psi = demands.detach().to("cpu", torch.float64).contiguous()
        if native.active() is None:
            return torch.as_tensor(self._in_numpy(psi, only_energy=False)[self.pattern.rank])
        phi = empty_huge_pages(*psi.shape, dtype=torch.float64, device=psi.device)
        native.call("ohm_sweep", *psi.shape, 0, *self._columns, None, psi, phi, None)
        return phi

    def energy(self, demands: Float[Tensor, "nodes k"], graph: Graph) -> Float[Tensor, "graphs k"]:
        """Compute the energy ``psi . L^+ psi`` of demands on every graph of the batch."""
        psi, owner = demands.detach().to("cpu", torch.float64).contiguous(), graph.batch.cpu()
        if native.active() is None:
            found = torch.as_tensor(self._in_numpy(psi, only_energy=True))
            return psi.new_zeros(graph.num_graphs, psi.shape[1]).index_add_(0, owner[self.pattern.order], found)
        sums = psi.new_empty(graph.num_graphs, 4, psi.shape[1])
        native.call("ohm_sweep", *psi.shape, graph.num_graphs, *self._columns, owner, psi, None, sums)
        return sums[:, 3]

    def rounding(self) -> float:
        """Bound the relative error of conductances between kept nodes, and of potentials relative to them for demands >= 0.

        Eliminating a node with k neighbours rounds the conductances between these k + 4 times, by eps / 2. The results are
        quotients of sums over forests, each with fewer than k of these edges, and at most as many as nodes remain. The
        conductances of the graph itself, one per such node in a forest, are accurate to eps / 2.
        """
        count = self.pattern.first.diff()[: self.pattern.eliminated].double()
        fewer = torch.minimum(count, torch.arange(len(count), 0, -1, dtype=torch.float64))
        return float(torch.finfo(torch.float64).eps * (((count + 4) * (fewer + 0.5)).sum() + len(count) + 1))

    def answer(
        self, psi: Float[Tensor, "nodes k"], graph: Graph
    ) -> tuple[Float[Tensor, "nodes k"], Float[Tensor, "graphs 4 k"]]:
        """Return centred potentials in float64, and for every graph ``|r|^2``, their energy, ``|psi|^2``, ``r . L^+ r``.

        ``r = psi - L phi``; computed in C, panel by panel while a panel is in the cache.
        """
        psi, rows = psi.contiguous(), rows_of(graph)
        phi = empty_huge_pages(*psi.shape, dtype=torch.float64, device=psi.device)
        sums = psi.new_empty(graph.num_graphs, 4, psi.shape[1])
        sizes = *psi.shape, graph.num_graphs, graph.num_components
        nodes = torch.as_tensor(self.pattern.rank), graph.batch, graph.components
        given = *self._columns, *nodes, rows.start, rows.column, rows.value, psi
        native.call("ohm_answer", *sizes, *given, phi, sums)
        return phi, sums

    @property
    def _columns(self) -> tuple[Tensor, ...]:
        """Arguments of the kernels: columns without those of kept nodes, and the order of elimination."""
        pattern = self.pattern
        kept = pattern.eliminated < len(pattern.order)
        first = pattern.first.clamp(max=int(pattern.first[pattern.eliminated])) if kept else pattern.first
        return first, pattern.row, self.fraction, self.pivot, torch.as_tensor(pattern.order)

    def _in_numpy(self, psi: Float[Tensor, "nodes k"], *, only_energy: bool) -> Float[np.ndarray, "nodes k"]:
        first, row, fraction, pivot, order = (a.numpy() for a in self._columns)
        return factor_numpy.sweep(first, row, fraction, pivot, psi.numpy()[order], only_energy=only_energy)


def look(graph: Graph, limits: Limits | None = None) -> Pattern | None:
    """Compute the pattern of a graph's factor, kept for the next question; None if beyond :data:`BEARABLE` or memory.

    This takes about as long as the elimination order, which is abandoned once it is known to need too much work.
    """
    in_c = native.active() is not None
    limits = replace(BEARABLE, entries=min(BEARABLE.entries, that_fits().entries)) if limits is None else limits
    return recall(graph, ("pattern", in_c, limits), lambda: _pattern(graph, limits, in_c), weighted=False)


def keeping(graph: Graph, kept: Bool[np.ndarray, " nodes"]) -> Factor | None:
    """Factorize all nodes but those in ``kept``, and store the factor; None if it would be too large.

    No other engine can do this, so the limit on work is the same without kernels.
    """
    in_c, limits = native.active() is not None, replace(BEARABLE, work_in_python=BEARABLE.work)

    def make() -> Factor | None:
        pattern = _pattern(graph, limits, in_c, kept)
        return None if pattern is None else factorise(graph, pattern)

    return recall(graph, ("partial factor", in_c, kept.tobytes()), make)


def that_fits() -> Limits:
    """Return limits that allow a factor with any work in up to half of the memory, rounded to a power of two."""
    return Limits(2 ** (max(memory() // 2 // BYTES, 1).bit_length() - 1), math.inf, math.inf)


def prepared(graph: Graph, limits: Limits | None = None) -> Factor | None:
    """Factorize a graph and keep the factor for the next question; return None if it would be too large."""
    pattern = look(graph, limits)
    if pattern is None:
        return None
    try:
        return recall(graph, "factor", lambda: factorise(graph, pattern), fits=lambda found: found.pattern is pattern)
    except (MemoryError, RuntimeError) as error:  # torch raises RuntimeError
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        size = len(pattern.row) * BYTES / 1e6
        raise MemoryError(
            f"expected {size:.0f} MB for a factor of {len(pattern.row)} entries, there is no such memory; "
            "use method='elimination'"
        ) from None


def factorise(graph: Graph, pattern: Pattern, tangent: Float[np.ndarray, " edges"] | None = None) -> Factor:
    """Compute the factor on a pattern, and its derivative in the direction ``tangent`` of the conductances if given."""
    moved = None if tangent is None else torch.as_tensor(tangent)
    nodes, entries = graph.num_nodes, len(pattern.row)
    if native.active() is None:
        start, column, value = by_scipy(graph, edges_of(graph)[2], pattern.rank)
        d_value = None if moved is None else by_scipy(graph, moved, pattern.rank)[2]
        where = pattern.first.numpy(), pattern.row.numpy(), pattern.eliminated
        found = factor_numpy.factorise(start, column, value, d_value, *where)
        fraction, pivot, d_fraction, d_pivot = (None if a is None else torch.as_tensor(a) for a in found)
        assert fraction is not None
        assert pivot is not None
        return Factor(pattern, fraction, pivot, d_fraction, d_pivot)
    rows = rows_of(graph)
    d_value = None if moved is None else Rows.of(graph, moved).value
    fraction, pivot = torch.empty(entries, dtype=torch.float64), torch.empty(nodes, dtype=torch.float64)
    d_fraction, d_pivot = (None, None) if moved is None else (torch.empty_like(fraction), torch.empty_like(pivot))
    order = torch.as_tensor(pattern.order), torch.as_tensor(pattern.rank)
    found = pattern.first, pattern.row, fraction, d_fraction, pivot, d_pivot
    native.call("ohm_factorise", nodes, pattern.eliminated, rows.start, rows.column, rows.value, d_value, *order, *found)
    return Factor(pattern, fraction, pivot, d_fraction, d_pivot)


def by_scipy(
    graph: Graph, numbers: Float[Tensor, " edges"], rank: Int[np.ndarray, " nodes"] | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Arrange numbers on edges as a symmetric SciPy CSR matrix, nodes in the given order, parallel edges summed."""
    tail, head = (x.numpy() if rank is None else rank[x.numpy()] for x in edges_of(graph)[:2])
    place = np.concatenate([tail, head]), np.concatenate([head, tail])
    matrix = coo_array((np.concatenate([numbers, numbers]), place), shape=(graph.num_nodes,) * 2).tocsr()
    return matrix.indptr.astype(np.int32), matrix.indices.astype(np.int32), matrix.data


def _pattern(graph: Graph, limits: Limits, in_c: bool, kept: Bool[np.ndarray, " nodes"] | None = None) -> Pattern | None:
    """Order the nodes and compute the pattern of the factor; None if it is beyond the limits."""
    if graph.num_edges > native.KERNELS["ohm_rows"].limits["edges"]:
        return None
    nodes = graph.num_nodes
    eliminated = nodes if kept is None else nodes - int(kept.sum())
    if not in_c:
        start, column, _ = by_scipy(graph, torch.ones(graph.num_edges), None)
        found = factor_numpy.order_and_pattern(start, column, limits.work_in_python, kept)
        return None if found is None else _numbered(*found, eliminated)
    rows, work = rows_of(graph), torch.zeros(2, dtype=torch.float64)
    others = rows if kept is None else Rows.of(graph, without=torch.as_tensor(kept))
    order, rank, count = torch.empty(3, nodes, dtype=torch.int32)
    native.call("ohm_order", nodes, limits.work, others.start, others.column, order, rank, work)
    if work[0] > limits.work:
        return None
    if kept is not None:
        order = order[torch.as_tensor(kept)[order.long()].to(torch.int8).argsort(stable=True)]
        rank[order.long()] = torch.arange(nodes, dtype=torch.int32)
    given = rows.start, rows.column, order, rank, count, work
    native.call("ohm_pattern", nodes, eliminated, limits.entries, *given, None, None)
    if work[0] > limits.entries or work[1] > limits.work:
        return None
    first = torch.zeros(nodes + 1, dtype=torch.int64)
    first[1:] = count.cumsum(0)
    row = torch.empty(int(first[-1]), dtype=torch.int32)
    native.call("ohm_pattern", nodes, eliminated, limits.entries, *given, first, row)
    if eliminated < nodes:
        start, column, _ = by_scipy(graph, torch.ones(graph.num_edges), rank.numpy())
        more = _between_kept(first.numpy(), row.numpy(), start, column, eliminated, limits.entries)
        if more is None:
            return None
        first[eliminated + 1 :] += torch.as_tensor(more[0])
        row = torch.cat([row, torch.as_tensor(more[1])])
    return Pattern(order.numpy(), rank.numpy(), first, row, float(work[1]), eliminated)


def _between_kept(
    first: np.ndarray, row: np.ndarray, start: np.ndarray, column: np.ndarray, eliminated: int, most: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return column ends and rows of kept nodes: pairs joined by an edge or through eliminated nodes.

    A path through eliminated nodes contains one whose neighbours at its elimination are all kept, and are all joined by it.
    """
    kept = len(first) - 1 - eliminated
    count = np.diff(first[: eliminated + 1])
    last = np.flatnonzero(count)
    last = last[row[first[last]] >= eliminated]
    if float((count[last].astype(np.float64) ** 2).sum()) > 4.0 * most:
        return None
    places = [np.arange(int(first[j]), int(first[j + 1])) for j in last]
    entries = np.concatenate(places) if places else np.empty(0, np.int64)
    shape = len(last), kept
    ends = csr_array((np.ones(len(entries)), row[entries] - eliminated, np.append(0, np.cumsum(count[last]))), shape=shape)
    own = csr_array((np.ones(len(column)), column, start), shape=(len(start) - 1,) * 2)[eliminated:, eliminated:]
    pairs = csr_array(triu(ends.T @ ends + own, k=1))
    pairs.sort_indices()
    return pairs.indptr[1:].astype(np.int64), (pairs.indices + eliminated).astype(np.int32)


def _numbered(order: np.ndarray, first: np.ndarray, row: np.ndarray, eliminated: int) -> Pattern:
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order), dtype=order.dtype)
    work = float((np.diff(first) ** 2.0).sum())
    return Pattern(order, rank, torch.as_tensor(first), torch.as_tensor(row), work, eliminated)
