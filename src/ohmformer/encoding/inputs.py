"""From PyG's ``edge_index``, ``edge_weight`` and ``batch`` to what the layers read: dense blocks, or CSR for large graphs.

Weights are conductances, as PyG's Laplacian reads them. Every listed pair counts for both of its directions and parallel
pairs add up, so it does not matter whether all edges are listed in both directions or all once, nor in which order: degree
scaling divides the factor two out. Self-loops carry no current and are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ohmformer.encoding.dynamics import CHUNK, FixedState, GramState, IncidenceState, SparseGraphs, inverse_root
from ohmformer.graph import Graph
from ohmformer.graph.blocks import ENTRIES, Block
from ohmformer.graph.blocks import Blocks as Buckets


@dataclass(frozen=True)
class Pairs:
    """Edges as they come, checked; ``graph`` lends its sizes and offsets."""

    u: Int[Tensor, " pairs"]
    v: Int[Tensor, " pairs"]
    weight: Float[Tensor, " pairs"]
    graph: Graph
    l1: bool
    """Whether degrees are ``sum_j |B_ij|``, which needs every edge once."""

    @cached_property
    def degree(self) -> Float[Tensor, " nodes"]:
        """The diagonal of D, for the degrees that were asked for."""
        weight = self.weight.sqrt() if self.l1 else self.weight
        return self._sum_at_nodes(weight)

    @cached_property
    def gram_degree(self) -> Float[Tensor, " nodes"]:
        """The diagonal of L."""
        return self._sum_at_nodes(self.weight) if self.l1 else self.degree

    def _sum_at_nodes(self, weight: Tensor) -> Tensor:
        return weight.new_zeros(self.graph.num_nodes).scatter_add_(0, self.u, weight).scatter_add_(0, self.v, weight)

    @cached_property
    def root(self) -> Float[Tensor, " nodes"]:
        """``D^-1/2``."""
        return inverse_root(self.degree)

    @cached_property
    def off_diagonal(self) -> Float[Tensor, " pairs"]:
        """The entry of ``N = D^-1/2 L D^-1/2`` that each pair adds to, on both sides of the diagonal."""
        return -self.weight * self.root.index_select(0, self.u) * self.root.index_select(0, self.v)

    @cached_property
    def diagonal(self) -> Float[Tensor, " nodes"]:
        """The diagonal of N."""
        return self.gram_degree * self.root.square() if self.l1 else (self.degree > 0).to(self.weight.dtype)

    @cached_property
    def incidence_norm(self) -> Float[Tensor, " graphs"]:
        """``1 / |B|_F``, one for graphs without edges."""
        square = self.degree.new_zeros(self.graph.num_graphs).index_add(0, self.graph.batch, self.gram_degree)
        return torch.where(square > 0, inverse_root(square), 1.0)


def read_pairs(
    edge_index: Tensor,
    edge_weight: Tensor | None,
    batch: Tensor | None,
    num_nodes: int | None,
    *,
    l1: bool,
    dtype: torch.dtype,
) -> Pairs:
    """Checked edges, or a ValueError that says in a sentence what is wrong with them."""
    if edge_index.ndim != 2 or edge_index.shape[0] != 2 or edge_index.is_floating_point():
        raise ValueError(
            f"expected edge_index as integers of shape (2, edges), got {edge_index.dtype} of {tuple(edge_index.shape)}"
        )
    device = edge_index.device
    u, v = edge_index.long()
    low, top = (int(x) for x in torch.aminmax(edge_index)) if edge_index.numel() else (0, -1)
    nodes = num_nodes if num_nodes is not None else len(batch) if batch is not None else top + 1
    if low < 0 or top >= nodes:
        raise ValueError(f"expected node numbers in 0..{nodes - 1}, got {low if low < 0 else top}")
    graphs = 1
    if batch is None:
        batch = torch.zeros(nodes, dtype=torch.long, device=device)
    else:
        if tuple(batch.shape) != (nodes,):
            raise ValueError(f"expected batch of shape ({nodes},), got {tuple(batch.shape)}")
        graphs = int(batch[-1]) + 1 if nodes else 0
        if bool((batch.diff() < 0).any()):
            raise ValueError("expected batch in ascending order, as PyG's Batch makes it")
        if bool((batch.index_select(0, u) != batch.index_select(0, v)).any()):
            raise ValueError("expected every edge within one graph of the batch, found one between two graphs")
    loop = u == v
    if edge_weight is None:
        weight = torch.ones(len(u), dtype=dtype, device=device)
    else:
        weight = edge_weight[:, 0] if edge_weight.ndim == 2 and edge_weight.shape[1] == 1 else edge_weight
        if tuple(weight.shape) != (len(u),):
            raise ValueError(f"expected one edge_weight per edge, shape ({len(u)},), got {tuple(edge_weight.shape)}")
        weight = weight.to(dtype)
        if not bool((torch.isfinite(weight) & (weight >= 0)).all()):
            raise ValueError("expected every edge_weight finite and not negative, got one that is not")
        # the layers do not see the scale of a graph's weights under Gram degrees; without it nothing can overflow
        if not l1 and len(u):
            most = weight.detach().new_zeros(graphs).scatter_reduce(0, batch[u], weight.detach(), "amax")
            weight = weight / torch.where(most > 0, most, 1.0)[batch[u]]
    if bool(loop.any()):
        u, v, weight = u[~loop], v[~loop], weight[~loop]
    if l1:
        u, v, weight = _each_once(u, v, weight, nodes)
    graph = Graph(torch.stack([u, v]), torch.ones_like(weight.detach()), batch, graphs, True)
    return Pairs(u, v, weight, graph, l1)


def _each_once(u: Tensor, v: Tensor, weight: Tensor, nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Parallel pairs as one edge; a pair that is listed in both directions counts once."""
    key = torch.minimum(u, v) * nodes + torch.maximum(u, v)
    edges, which = torch.unique(key, return_inverse=True)
    total = weight.new_zeros(len(edges)).index_add(0, which, weight)
    directions = [torch.zeros_like(edges).index_fill(0, which[side], 1) for side in (u < v, u > v)]
    return edges // max(nodes, 1), edges % max(nodes, 1), total / (directions[0] + directions[1]).clamp(min=1)


@dataclass(frozen=True)
class SmallGraphs:
    """All graphs of a batch as dense blocks of N."""

    pairs: Pairs
    buckets: Buckets
    buffer: Float[Tensor, " entries"]

    @classmethod
    def of(cls, pairs: Pairs, together: int = ENTRIES) -> SmallGraphs:
        """Scatter the entries of N into the buckets' buffer, blocks of ``together`` entries."""
        buckets = Buckets(pairs.graph, together)
        buffer = pairs.diagonal.new_zeros(buckets.entries).scatter_(0, buckets.diagonal(), pairs.diagonal)
        for u, v in ((pairs.u, pairs.v), (pairs.v, pairs.u)):
            buffer = buffer.scatter_add_(0, buckets.index(u, v), pairs.off_diagonal)
        return cls(pairs, buckets, buffer)

    def state(self, block: Block) -> GramState | IncidenceState:
        """B of one block, to be moved."""
        if self.pairs.l1:
            return self._incidence_state(block)
        return GramState(block.of(self.buffer), self.on_nodes(self.pairs.gram_degree, block))

    def fixed_state(self, block: Block) -> FixedState:
        """B of one block, to stay."""
        return FixedState(block.of(self.buffer), self.after_first(block))

    def after_first(self, block: Block) -> Float[Tensor, " graphs"] | None:
        """What scales N from the second layer on, where B is normalised but not moved: nothing under Gram degrees."""
        return self.pairs.incidence_norm[block.which] if self.pairs.l1 else None

    def on_nodes(self, x: Float[Tensor, " nodes"], block: Block) -> Float[Tensor, "graphs width"]:
        """A number per node, in the block's layout, zero on padding."""
        return torch.cat([x, x.new_zeros(1)])[block.node]

    def _incidence_state(self, block: Block) -> IncidenceState:
        """B of one block, padded to the graph with most edges."""
        graph, u, v = self.pairs.graph, self.pairs.u, self.pairs.v
        position = torch.full((graph.num_graphs,), -1, device=u.device).scatter(
            0, block.which, torch.arange(len(block.which), device=u.device)
        )
        mine = (position[graph.batch[u]] >= 0).nonzero()[:, 0]
        mine = mine[torch.argsort(graph.batch[u[mine]], stable=True)]
        owner = position[graph.batch[u[mine]]]
        count = torch.bincount(owner, minlength=len(block.which))
        column = torch.arange(len(mine), device=u.device) - (count.cumsum(0) - count)[owner]
        slot = torch.arange(graph.num_nodes, device=u.device) - graph.graph_offsets[graph.batch]
        value = self.pairs.weight[mine].sqrt()
        empty = value.new_zeros(*block.node.shape, int(count.max()) if len(count) else 0)
        empty = empty.index_put((owner, slot[u[mine]], column), -value)
        return IncidenceState(empty.index_put((owner, slot[v[mine]], column), value))


def sparse_graphs(pairs: Pairs) -> tuple[SparseGraphs, Int[Tensor, " nodes"]]:
    """N of all graphs in CSR over padded rows, and the row of every node."""
    graph = pairs.graph
    chunks = -(-graph.graph_sizes // CHUNK)
    first = (chunks.cumsum(0) - chunks) * CHUNK
    row = torch.arange(graph.num_nodes, device=pairs.u.device) + (first - graph.graph_offsets)[graph.batch]
    rows = int(chunks.sum()) * CHUNK
    chunk_graph = torch.repeat_interleave(torch.arange(graph.num_graphs, device=row.device), chunks)
    u, v = row[pairs.u], row[pairs.v]
    if pairs.weight.requires_grad or u.device.type != "cpu":
        key = torch.cat([u * rows + v, v * rows + u, row * rows + row])
        entries, which = torch.unique(key, return_inverse=True)
        values = torch.cat([pairs.off_diagonal, pairs.off_diagonal, pairs.diagonal])
        value = values.new_zeros(len(entries)).index_add(0, which, values)
        row_of, column = entries // rows, entries % rows
        start = torch.searchsorted(row_of, torch.arange(rows, device=row.device))
        return SparseGraphs(start, column, value, row_of, chunk_graph, graph.num_graphs), row
    from scipy.sparse import coo_array

    a, b, c = (x.numpy().astype(np.int32) for x in (u, v, row))
    off, diagonal = pairs.off_diagonal.numpy(), pairs.diagonal.numpy()
    place = np.concatenate([a, b, c]), np.concatenate([b, a, c])
    n = coo_array((np.concatenate([off, off, diagonal]), place), shape=(rows, rows)).tocsr()
    start, column, value = (torch.as_tensor(x) for x in (n.indptr[:-1], n.indices, n.data))
    return SparseGraphs(start, column, value, None, chunk_graph, graph.num_graphs), row


def select(pairs: Pairs, which: Bool[Tensor, " graphs"]) -> tuple[Pairs, Int[Tensor, " nodes"]]:
    """Some graphs of a batch as a batch of their own, and the numbers of their nodes in the old one."""
    graph = pairs.graph
    node = which[graph.batch].nonzero()[:, 0]
    renumber = torch.full((graph.num_nodes,), -1, device=node.device).scatter(
        0, node, torch.arange(len(node), device=node.device)
    )
    mine = which[graph.batch[pairs.u]]
    order = which.long().cumsum(0) - 1
    u, v = renumber[pairs.u[mine]], renumber[pairs.v[mine]]
    batch = order[graph.batch[node]]
    part = Graph(torch.stack([u, v]), graph.resistance[mine], batch, int(which.sum()), True)
    return Pairs(u, v, pairs.weight[mine], part, pairs.l1), node
