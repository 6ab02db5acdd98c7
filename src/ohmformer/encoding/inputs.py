"""Read PyG's ``edge_index``, ``edge_weight`` and ``batch`` into what the layers work on: dense blocks, or CSR rows.

Weights are conductances, as in PyG's Laplacian, and parallel edges add up. All edges are listed in both directions or all
once, in any order (:func:`ohmformer.graph.edges.lists_both_directions`). A list with both directions is kept as it is: every
edge then counts twice, a factor that the scaling by degrees cancels. Self-loops carry no current and are dropped.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse import coo_array
from torch import Tensor

from ohmformer.encoding.dynamics import CHUNK, GramState, IncidenceState, SparseGraphs, inverse_root
from ohmformer.graph import Graph
from ohmformer.graph.blocks import ENTRIES, Block, Blocks
from ohmformer.graph.edges import check_directions_agree, lists_both_directions
from ohmformer.graph.ragged import Spans

KEPT = "spectrum_values", "spectrum_vectors", "spectrum_check"
"""Attributes of PyG data that store spectra."""
SAMPLED = (
    "the encoding of a sampled subgraph is not that of its nodes in the whole graph: encode the whole graph once and take "
    "rows n_id of it"
)


@dataclass(frozen=True)
class Pairs:
    """The checked edges of a batch with their conductances, which may require gradients and may be zero.

    This is the input of all engines. ``graph`` holds the node pairs as listed; its own resistances are ones and not used.
    """

    graph: Graph
    weight: Float[Tensor, " pairs"]
    l1: bool
    """Whether degrees are ``sum_j |B_ij|``; then every edge is listed once."""
    combinatorial: bool = False
    """Whether N is ``L / max_i L_ii``: every node is divided by the largest degree of its graph."""
    unit: float | Float[Tensor, " graphs"] = 1.0
    """The divisor of weights, for all graphs or per graph; it includes 0.5 if edges are listed twice."""

    @property
    def u(self) -> Int[Tensor, " pairs"]:
        """The first node of every pair."""
        return self.graph.edge_index[0]

    @property
    def v(self) -> Int[Tensor, " pairs"]:
        """The second node of every pair."""
        return self.graph.edge_index[1]

    @cached_property
    def degree(self) -> Float[Tensor, " nodes"]:
        """The diagonal of D: ``sum_j |B_ij|``, or ``sum_j B_ij^2`` for Gram degrees; if combinatorial, the largest L_ii."""
        if not self.combinatorial:
            return self._sum_at_nodes(self.weight.sqrt() if self.l1 else self.weight)
        degree = self.gram_degree
        none = degree.new_zeros(self.graph.num_graphs)
        return none.scatter_reduce(0, self.graph.batch, degree, "amax").index_select(0, self.graph.batch)

    @cached_property
    def gram_degree(self) -> Float[Tensor, " nodes"]:
        """The diagonal of L."""
        return self._sum_at_nodes(self.weight) if self.l1 or self.combinatorial else self.degree

    def _sum_at_nodes(self, weight: Tensor) -> Tensor:
        """Sum the weights of pairs at both of their nodes."""
        return weight.new_zeros(self.graph.num_nodes).scatter_add_(0, self.u, weight).scatter_add_(0, self.v, weight)

    @cached_property
    def root(self) -> Float[Tensor, " nodes"]:
        """``D^-1/2``, zero at isolated nodes."""
        return inverse_root(self.degree)

    @cached_property
    def off_diagonal(self) -> Float[Tensor, " pairs"]:
        """The off-diagonal entries that every pair adds to ``N = D^-1/2 L D^-1/2``."""
        return -self.weight * self.root.index_select(0, self.u) * self.root.index_select(0, self.v)

    @cached_property
    def diagonal(self) -> Float[Tensor, " nodes"]:
        """The diagonal of N."""
        if self.l1 or self.combinatorial:
            return self.gram_degree * self.root.square()
        return (self.degree > 0).to(self.weight.dtype)

    @cached_property
    def incidence_norm(self) -> Float[Tensor, " graphs"]:
        """``1 / |B|_F`` of every graph, one for graphs without edges."""
        square = self.degree.new_zeros(self.graph.num_graphs).index_add(0, self.graph.batch, self.gram_degree)
        return torch.where(square > 0, inverse_root(square), 1.0)

    @property
    def after_first(self) -> Float[Tensor, " graphs"] | None:
        """The factor of N from the second layer on when B is normalised but not updated; None for Gram degrees."""
        return self.incidence_norm if self.l1 else None

    def select(self, which: Int[Tensor, " chosen"]) -> tuple[Pairs, Int[Tensor, " nodes"]]:
        """Return some graphs, given in ascending order, as a batch, and the original indices of their nodes."""
        chosen = torch.zeros(self.graph.num_graphs, dtype=torch.bool, device=which.device).index_fill(0, which, True)
        mine = chosen[self.graph.batch[self.u]]
        unit = self.unit[which] if isinstance(self.unit, Tensor) else self.unit
        pairs = Pairs(self.graph.select(which), self.weight[mine], self.l1, self.combinatorial, unit)
        return pairs, chosen[self.graph.batch].nonzero()[:, 0]


@dataclass(frozen=True)
class Arguments:
    """What an encoding is given: arguments of its call, and those that are not given from PyG data."""

    edge_index: Int[Tensor, "2 edges"]
    edge_weight: Tensor | None
    batch: Tensor | None
    num_nodes: int | None
    x: Tensor | None
    spectrum: tuple[Tensor, Tensor, Tensor] | None
    graphs: int | None = None
    """Number of graphs if known."""

    @classmethod
    def of(
        cls, edge_index: Any, edge_weight: Any, batch: Any, num_nodes: Any, x: Any, spectrum: Any, *, features: bool
    ) -> Arguments:
        """Return the arguments of a call; with ``features``, x is taken from the data too."""
        graphs = None
        if hasattr(edge_index, "edge_index"):
            data = edge_index
            names = set(data.keys())
            if not names.isdisjoint(("n_id", "input_id")):
                warnings.warn(SAMPLED, stacklevel=4)
            edge_index = data.edge_index
            edge_weight = data.edge_weight if edge_weight is None and "edge_weight" in names else edge_weight
            batch = getattr(data, "batch", None) if batch is None else batch
            num_nodes = data.num_nodes if num_nodes is None else num_nodes
            x = data.x if x is None and features else x
            graphs = len(data.ptr) - 1 if "ptr" in names else None
            missing = [name for name in KEPT if name not in names]
            if spectrum is None and len(missing) < len(KEPT):
                if missing:
                    raise ValueError(
                        f"expected {', '.join(KEPT)} in the data, {missing[0]} is missing: use AddSpectrum again"
                    )
                spectrum = tuple(data[name] for name in KEPT)
        batch = batch.long() if isinstance(batch, Tensor) else batch
        return cls(plain_index(edge_index), edge_weight, batch, num_nodes, x, spectrum, graphs)


def plain_index(edge_index: Any) -> Int[Tensor, "2 edges"]:
    """Return ``edge_index`` (PyG's ``EdgeIndex`` too) as a plain tensor of int64; raise a ValueError if it is none."""
    if hasattr(edge_index, "as_tensor"):
        edge_index = edge_index.as_tensor()
    if edge_index is None:
        raise ValueError("expected data with an edge_index, it has none")
    if hasattr(edge_index, "node_types"):
        raise ValueError("expected homogeneous data, got a HeteroData: use data.to_homogeneous()")
    _check_edge_index(edge_index)
    return edge_index.long()


def read_pairs(
    edge_index: Any,
    edge_weight: Tensor | None,
    batch: Tensor | None,
    num_nodes: int | None,
    *,
    l1: bool = False,
    dtype: torch.dtype = torch.float64,
    combinatorial: bool = False,
    graphs: int | None = None,
) -> Pairs:
    """Check the edges of one graph or of a batch; raise a ValueError that says what is wrong with them.

    The number of ``graphs`` is only needed if the last ones have no nodes.
    """
    edge_index = plain_index(edge_index)
    u, v = edge_index
    low, top = (int(x) for x in torch.aminmax(edge_index)) if edge_index.numel() else (0, -1)
    nodes = num_nodes if num_nodes is not None else len(batch) if batch is not None else top + 1
    if low < 0 or top >= nodes:
        raise ValueError(f"expected node numbers in 0..{nodes - 1}, got {low if low < 0 else top}")
    batch, least = _read_batch(batch, nodes, u, v)
    graphs = max(least, graphs or 0)
    both_directions = lists_both_directions(edge_index)
    unit: float | Tensor = 0.5 if both_directions else 1.0
    if edge_weight is None:
        weight = torch.ones(len(u), dtype=dtype, device=edge_index.device)
    else:
        weight = _read_weights(edge_weight, edge_index, dtype, both_directions)
        # under Gram degrees layers do not depend on the scale of a graph's weights; removing it prevents overflow
        if not l1 and len(u):
            most = weight.detach().new_zeros(graphs).scatter_reduce(0, batch[u], weight.detach(), "amax")
            most = torch.where(most > 0, most, 1.0)
            weight, unit = weight / most[batch[u]], unit * most
    loop = u == v
    if bool(loop.any()):
        edge_index, weight = edge_index[:, ~loop], weight[~loop]
    if l1:
        edge_index, weight = _merge_parallel(edge_index, weight, nodes, both_directions)
    graph = Graph(edge_index, torch.ones_like(weight.detach()), batch, graphs, True)
    return Pairs(graph, weight, l1, combinatorial, 1.0 if l1 else unit)


def _check_edge_index(edge_index: Any) -> None:
    """Raise a ValueError unless this is an integer tensor with two rows that holds values."""
    if not isinstance(edge_index, Tensor):
        raise ValueError(f"expected edge_index as a tensor of shape (2, edges), got {_describe(edge_index)}")
    kind, shape = edge_index.dtype, tuple(edge_index.shape)
    if (
        edge_index.is_floating_point()
        or edge_index.is_complex()
        or kind == torch.bool
        or shape[:1] != (2,)
        or len(shape) != 2
    ):
        raise ValueError(f"expected edge_index as integers of shape (2, edges), got {kind} of {shape}")
    if edge_index.is_meta:
        raise ValueError("expected edge_index with values, got a tensor on the device 'meta'")


def _describe(value: Any) -> str:
    """Describe a value given instead of a tensor: a list with its first element, or a type."""
    return f"a list that begins with {value[0]!r}" if isinstance(value, list) and value else f"a {type(value).__name__}"


def _read_batch(batch: Tensor | None, nodes: int, u: Tensor, v: Tensor) -> tuple[Int[Tensor, " nodes"], int]:
    """Return the checked graph of every node and the number of graphs; all nodes are in one graph if ``batch`` is None."""
    if batch is None:
        return torch.zeros(nodes, dtype=torch.long, device=u.device), 1
    if tuple(batch.shape) != (nodes,):
        raise ValueError(f"expected batch of shape ({nodes},), got {tuple(batch.shape)}")
    if bool((batch.diff() < 0).any()):
        raise ValueError("expected batch in ascending order, as PyG's Batch makes it")
    if bool((batch.index_select(0, u) != batch.index_select(0, v)).any()):
        raise ValueError("expected every edge within one graph of the batch, found one between two graphs")
    return batch, int(batch[-1]) + 1 if nodes else 0


def _read_weights(
    edge_weight: Tensor, edge_index: Int[Tensor, "2 pairs"], dtype: torch.dtype, both_directions: bool
) -> Float[Tensor, " pairs"]:
    """Return one checked conductance per pair."""
    weight = edge_weight[:, 0] if edge_weight.ndim == 2 and edge_weight.shape[1] == 1 else edge_weight
    pairs = edge_index.shape[1]
    if tuple(weight.shape) != (pairs,):
        raise ValueError(f"expected one edge_weight per edge, shape ({pairs},), got {tuple(edge_weight.shape)}")
    given, weight = weight, weight.to(dtype)
    if not bool((torch.isfinite(weight) & (weight >= 0)).all()):
        raise ValueError("expected every edge_weight finite and not negative, got one that is not")
    if both_directions:
        check_directions_agree(edge_index, given if given.is_floating_point() else weight, "edge_weight")
    return weight


def _merge_parallel(
    edge_index: Int[Tensor, "2 pairs"], weight: Float[Tensor, " pairs"], nodes: int, both_directions: bool
) -> tuple[Int[Tensor, "2 edges"], Float[Tensor, " edges"]]:
    """Return each edge once, as u < v, with the conductances of parallel edges summed."""
    u, v = edge_index
    key = torch.minimum(u, v) * nodes + torch.maximum(u, v)
    edges, which = torch.unique(key, return_inverse=True)
    total = weight.new_zeros(len(edges)).index_add(0, which, weight)
    return torch.stack([edges // max(nodes, 1), edges % max(nodes, 1)]), total / 2 if both_directions else total


@dataclass(frozen=True)
class SmallGraphs:
    """N of all graphs of a batch as dense blocks of graphs of similar size, for small graphs."""

    pairs: Pairs
    layout: Blocks
    buffer: Float[Tensor, " entries"]

    @classmethod
    def of(cls, pairs: Pairs, together: int = ENTRIES) -> SmallGraphs:
        """Scatter the entries of N into one buffer, in blocks of about ``together`` entries."""
        layout = Blocks(pairs.graph, together)
        buffer = pairs.diagonal.new_zeros(layout.entries).scatter_(0, layout.diagonal(), pairs.diagonal)
        for u, v in ((pairs.u, pairs.v), (pairs.v, pairs.u)):
            buffer = buffer.scatter_add_(0, layout.index(u, v), pairs.off_diagonal)
        return cls(pairs, layout, buffer)

    def state(self, block: Block) -> GramState | IncidenceState:
        """Return B of one block, for layers that update it."""
        if self.pairs.l1:
            return self._incidence_state(block)
        return GramState(block.of(self.buffer), self.on_nodes(self.pairs.gram_degree, block))

    def after_first(self, block: Block) -> Float[Tensor, " graphs"] | None:
        """Return the pairs' ``after_first`` for the graphs of a block."""
        return None if self.pairs.after_first is None else self.pairs.after_first[block.which]

    def on_nodes(self, x: Float[Tensor, " nodes"], block: Block) -> Float[Tensor, "graphs width"]:
        """Arrange one value per node in the layout of the block, zero on padding."""
        return torch.cat([x, x.new_zeros(1)])[block.node]

    def _incidence_state(self, block: Block) -> IncidenceState:
        """Return B itself for one block, padded to the largest number of edges of a graph."""
        graph, u, v = self.pairs.graph, self.pairs.u, self.pairs.v
        position = torch.full((graph.num_graphs,), -1, device=u.device).scatter(
            0, block.which, torch.arange(len(block.which), device=u.device)
        )
        mine = (position[graph.batch[u]] >= 0).nonzero()[:, 0]
        mine = mine[torch.argsort(graph.batch[u[mine]], stable=True)]
        owner = position[graph.batch[u[mine]]]
        count = torch.bincount(owner, minlength=len(block.which))
        column = torch.arange(len(mine), device=u.device) - (count.cumsum(0) - count)[owner]
        slot, value = graph.nodes.within, self.pairs.weight[mine].sqrt()
        empty = value.new_zeros(*block.node.shape, int(count.max()) if len(count) else 0)
        empty = empty.index_put((owner, slot[u[mine]], column), -value)
        return IncidenceState(empty.index_put((owner, slot[v[mine]], column), value))


def sparse_graphs(pairs: Pairs) -> tuple[SparseGraphs, Int[Tensor, " nodes"]]:
    """Return N of all graphs in CSR over padded rows, and the row of every node."""
    graph = pairs.graph
    chunks = Spans.of(-(-graph.graph_sizes // CHUNK))
    row = graph.nodes.within + CHUNK * chunks.first[graph.batch]
    rows = chunks.total * CHUNK
    u, v = row[pairs.u], row[pairs.v]
    if pairs.weight.requires_grad or u.device.type != "cpu":
        key = torch.cat([u * rows + v, v * rows + u, row * rows + row])
        entries, which = torch.unique(key, return_inverse=True)
        values = torch.cat([pairs.off_diagonal, pairs.off_diagonal, pairs.diagonal])
        value = values.new_zeros(len(entries)).index_add(0, which, values)
        row_of, column = entries // rows, entries % rows
        start = torch.searchsorted(row_of, torch.arange(rows, device=row.device))
        return SparseGraphs(start, column, value, row_of, chunks.owner, graph.num_graphs), row
    a, b, c = (x.numpy().astype(np.int32) for x in (u, v, row))
    off, diagonal = pairs.off_diagonal.numpy(), pairs.diagonal.numpy()
    place = np.concatenate([a, b, c]), np.concatenate([b, a, c])
    n = coo_array((np.concatenate([off, off, diagonal]), place), shape=(rows, rows)).tocsr()
    start, column, value = (torch.as_tensor(x) for x in (n.indptr[:-1], n.indices, n.data))
    return SparseGraphs(start, column, value, None, chunks.owner, graph.num_graphs), row
