"""What a graph is here: edges stored once, resistances, batches, and the matrices built from them.

Conventions, for the whole library
----------------------------------
Edge ``j`` runs from ``u`` to ``v`` with resistance ``r_j > 0``; the orientation is arbitrary and never changes an answer::

    B[u, j] = -1/sqrt(r_j)      B[v, j] = +1/sqrt(r_j)      L = B B^T

A demand ``psi`` is the current injected at each node, negative where current is extracted. Its potentials are
``phi = L^+ psi``, high where current is injected, and the current along edge ``j`` is ``(phi_u - phi_v) / r_j``: it flows
from high to low potential. The net current out of a node is its demand. (The paper's flow ``f = R^{-1/2} B^T phi`` has the
opposite sign.)

Example with three nodes and resistances 1 and 4, that is, conductances 1 and 1/4:

>>> g = Graph.from_edges([(0, 1), (1, 2)], resistance=[1.0, 4.0])
>>> g.incidence()
tensor([[-1.0000,  0.0000],
        [ 1.0000, -0.5000],
        [ 0.0000,  0.5000]], dtype=torch.float64)
>>> g.laplacian()
tensor([[ 1.0000, -1.0000,  0.0000],
        [-1.0000,  1.2500, -0.2500],
        [ 0.0000, -0.2500,  0.2500]], dtype=torch.float64)

- Every undirected edge is stored once. Parallel edges stay separate edges, and their conductances add in ``L``.
  Self-loops carry no current: they are dropped and counted.
- Weights are given by keyword, ``resistance=`` or ``conductance=``, and never guessed.
- Graphs may be disconnected. Null spaces, projections and demands are per connected component.
- Node tensors are ``(nodes, features)``. A batch of graphs stores its nodes in one long list, as PyTorch Geometric does;
  :meth:`Graph.pad` converts it to ``(graphs, nodes, features)``, and matrices of a batch are ``(graphs, nodes, nodes)``.
  A graph that is not a batch has no leading axis.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ohmformer.graph.csr import csr_tensor
from ohmformer.graph.edges import as_edge_index, as_resistance, check_weights, column, fold, read_edges
from ohmformer.graph.layout import Layout
from ohmformer.graph.memory import recall
from ohmformer.graph.spectrum import Spectrum, resistance_bounds

if TYPE_CHECKING:
    import networkx as nx

Weights = Sequence[float] | np.ndarray | Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Graph(Layout):
    """An undirected graph, or a batch of them, with a resistance on every edge.

    Build one with :meth:`from_edges`, :meth:`from_pyg`, :meth:`from_networkx`, :meth:`from_scipy` or :meth:`collate`.
    """

    # ------------------------------------------------------------------------------------------------ building

    @classmethod
    def from_edges(
        cls,
        edges: Iterable[Sequence[int]] | np.ndarray | Tensor,
        *,
        num_nodes: int | None = None,
        resistance: Weights | None = None,
        conductance: Weights | None = None,
        signed: bool = False,
    ) -> Graph:
        """Build a graph from pairs ``(u, v)``, each undirected edge listed once; resistances are 1 unless weights are given.

        The graph is on the device of ``edges``, or on that of the weights if ``edges`` is on the CPU. With ``signed=True``
        weights may be negative, like those of series capacitors. Potentials and flow of such a graph can be computed with
        ``method="direct"`` only; all other functions and methods reject it.

        >>> Graph.from_edges([(0, 1), (1, 2), (2, 2)], conductance=[1.0, 2.0, 5.0], num_nodes=4)
        Graph(nodes=4, edges=2, components=2, self_loops_dropped=1)
        """
        index = as_edge_index(edges)
        weight = as_resistance(index.shape[1], resistance, conductance, signed=signed)
        graph = _assemble(index, weight, num_nodes)
        return replace(graph, signed=True) if signed and bool((graph.resistance < 0).any()) else graph

    @classmethod
    def from_pyg(
        cls, data: Any, *, resistance: str | Weights | None = None, conductance: str | Weights | None = None
    ) -> Graph:
        """Build a graph from a PyG ``Data`` or ``Batch``.

        ``edge_index`` must list every edge in both directions or every edge once; a mixture is an error, see
        :func:`~ohmformer.graph.edges.lists_both_directions`. Weights are an attribute name or one value per listed pair; the
        weights of both directions of an edge must agree.
        """
        if data.edge_index is None:
            raise ValueError("expected data with an edge_index, it has none")
        index = as_edge_index(data.edge_index.t())
        weights = [column(getattr(data, w, None), w) if isinstance(w, str) else w for w in (resistance, conductance)]
        batch = getattr(data, "batch", None)
        tail_head, weight, loops = read_edges(index, as_resistance(index.shape[1], *weights))
        graph = _assemble(tail_head, weight, data.num_nodes, loops)
        if batch is None:
            return graph
        return _with_batch(graph, batch, getattr(data, "num_graphs", None) or (int(batch.max()) + 1 if len(batch) else 0))

    @classmethod
    def from_networkx(cls, graph: nx.Graph, *, resistance: str | None = None, conductance: str | None = None) -> Graph:
        """Build a graph from a networkx ``Graph`` or ``MultiGraph``; nodes are numbered in the order of ``graph.nodes``.

        ``resistance=`` or ``conductance=`` is the name of the edge attribute to read.
        """
        if graph.is_directed():
            raise ValueError("expected an undirected networkx graph, got a directed one; call .to_undirected() first")
        number = {node: i for i, node in enumerate(graph.nodes)}
        edges = np.array([(number[u], number[v]) for u, v in graph.edges()], dtype=np.int64).reshape(-1, 2)
        weights: list[np.ndarray | None] = [None, None]
        for i, name in enumerate((resistance, conductance)):
            if name is None:
                continue
            for u, v, value in graph.edges(data=name):
                if value is None:
                    raise ValueError(f"expected every edge to carry {name!r}, edge ({u!r}, {v!r}) does not")
            weights[i] = np.array([value for *_, value in graph.edges(data=name)], dtype=np.float64)
        return cls.from_edges(edges, num_nodes=len(number), resistance=weights[0], conductance=weights[1])

    @classmethod
    def from_scipy(cls, adjacency: Any, *, entries: str) -> Graph:
        """Build a graph from a symmetric SciPy sparse adjacency matrix.

        ``entries`` says what the values are: ``"conductance"``, ``"resistance"`` or, to ignore them, ``"unit"``.
        """
        if entries not in ("conductance", "resistance", "unit"):
            raise ValueError(f"expected entries='conductance', 'resistance' or 'unit', got {entries!r}")
        rows, columns = adjacency.shape
        if rows != columns:
            raise ValueError(f"expected a square adjacency matrix, got shape {rows} x {columns}")
        if np.iscomplexobj(adjacency.data):
            raise ValueError("expected real entries in the adjacency matrix, got complex ones")
        matrix = adjacency.astype(np.float64).tocsr()
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        matrix = matrix.tocoo()
        index = torch.as_tensor(np.stack([matrix.row, matrix.col]).astype(np.int64))
        values = None if entries == "unit" else matrix.data
        weight = as_resistance(
            index.shape[1],
            resistance=values if entries == "resistance" else None,
            conductance=values if entries == "conductance" else None,
        )
        tail_head, weight, loops = fold(index, weight)
        return _assemble(tail_head, weight, rows, loops)

    @classmethod
    def collate(cls, graphs: Iterable[Graph]) -> Graph:
        """Combine several graphs into one batch."""
        graphs = list(graphs)
        if not graphs:
            raise ValueError("expected at least one graph to collate, got none")
        offsets = np.cumsum([0] + [g.num_nodes for g in graphs])
        starts = np.cumsum([0] + [g.num_graphs for g in graphs])
        return cls(
            edge_index=torch.cat([g.edge_index + int(o) for g, o in zip(graphs, offsets, strict=False)], dim=1),
            resistance=torch.cat([g.resistance for g in graphs]),
            batch=torch.cat([g.batch + int(s) for g, s in zip(graphs, starts, strict=False)]),
            num_graphs=int(starts[-1]),
            batched=True,
            self_loops_dropped=sum(g.self_loops_dropped for g in graphs),
            signed=any(g.signed for g in graphs),
        )

    def split(self) -> list[Graph]:
        """Split a batch into its graphs; the inverse of :meth:`collate`."""
        counts = self.edge_counts.tolist()
        order = self.edge_graph.argsort(stable=True)
        parts = zip(
            (self.edge_index - self.graph_offsets[self.edge_graph])[:, order].split(counts, dim=1),
            self.resistance[order].split(counts),
            torch.zeros_like(self.batch).split(self.graph_sizes.tolist()),
            strict=True,
        )
        return [Graph(*part, signed=self.signed) for part in parts]

    def select(self, which: Int[Tensor, " chosen"]) -> Graph:
        """Select some graphs of a batch, in the order of ``which``."""
        node = self.nodes.rows(which)
        renumber = torch.full((self.num_nodes,), -1, device=self.device)
        renumber[node] = torch.arange(len(node), device=self.device)
        mine = self.edges_of(which)
        batch = self.nodes.select(which).owner
        return Graph(renumber[self.edge_index[:, mine]], self.resistance[mine], batch, len(which), True, signed=self.signed)

    def edges_of(self, which: Int[Tensor, " chosen"]) -> Int[Tensor, " edges"]:
        """Return the indices of the edges of some graphs of a batch, in ascending order."""
        chosen = torch.zeros(self.num_graphs, dtype=torch.bool, device=self.device)
        chosen[which] = True
        return chosen[self.edge_graph].nonzero()[:, 0]

    def to_networkx(self) -> nx.MultiGraph:
        """Convert to a networkx ``MultiGraph`` whose edges carry ``resistance`` and keep their order as ``index``."""
        import networkx as nx

        graph = nx.MultiGraph()
        graph.add_nodes_from(range(self.num_nodes))
        for j, ((u, v), r) in enumerate(zip(self.edge_index.t().tolist(), self.resistance.tolist(), strict=True)):
            graph.add_edge(u, v, resistance=r, index=j)
        return graph

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Graph:
        """Move the graph to another device, or convert its resistances to another dtype."""
        resistance = self.resistance.to(device=device, dtype=dtype)
        if resistance.dtype != self.dtype:
            check_weights(resistance, "resistance", signed=self.signed)
        return replace(
            self, edge_index=self.edge_index.to(device=device), resistance=resistance, batch=self.batch.to(device=device)
        )

    def __repr__(self) -> str:
        head = f"graphs={self.num_graphs}, " if self.batched else ""
        tail = f", self_loops_dropped={self.self_loops_dropped}" if self.self_loops_dropped else ""
        return f"Graph({head}nodes={self.num_nodes}, edges={self.num_edges}, components={self.num_components}{tail})"

    def check_positive(self) -> None:
        """Raise a ValueError if a resistance is negative."""
        if self.signed and bool((negative := self.resistance < 0).any()):
            j = int(negative.nonzero()[0])
            raise ValueError(
                f"expected positive resistances, edge {j} has {self.resistance[j].item():g}; a signed graph has potentials "
                "and flow only, by method='direct'"
            )

    # ------------------------------------------------------------------------------------------------ matrices

    def incidence(self) -> Float[Tensor, "*graphs width edges"]:
        """Build the dense incidence matrix ``B``; in a batch, it is padded with zero rows and columns."""
        self.check_positive()
        edge_graph, counts = self.edge_graph, self.edge_counts
        column = torch.arange(self.num_edges, device=self.device)
        if self.batched:
            order = torch.argsort(edge_graph, stable=True)
            starts = counts.cumsum(0) - counts
            column = torch.empty_like(column).scatter(0, order, column - starts[edge_graph[order]])
        value = self.resistance.rsqrt()
        tail, head = self._slot[self.edge_index]
        matrix = value.new_zeros(self.num_graphs, self.width, int(counts.max()) if self.num_graphs else 0)
        matrix = matrix.index_put((edge_graph, tail, column), -value)
        return self._squeeze(matrix.index_put((edge_graph, head, column), value))

    def laplacian(self) -> Float[Tensor, "*graphs width width"]:
        """Build the dense Laplacian ``L = B B^T`` without forming ``B``."""
        edge_graph = self.edge_graph
        tail, head = self._slot[self.edge_index]
        c = self.resistance.reciprocal()
        matrix = c.new_zeros(self.num_graphs, self.width, self.width)
        index = (edge_graph.repeat(4), torch.cat([tail, head, tail, head]), torch.cat([tail, head, head, tail]))
        return self._squeeze(matrix.index_put(index, torch.cat([c, c, -c, -c]), accumulate=True))

    def sparse_laplacian(self) -> Tensor:
        """Build the Laplacian of all graphs as one block-diagonal CSR tensor, ``(nodes, nodes)``."""
        tail, head = self.edge_index
        c = self.resistance.reciprocal()
        index = torch.stack([torch.cat([tail, head, tail, head]), torch.cat([tail, head, head, tail])])
        size = (self.num_nodes, self.num_nodes)
        entries = torch.sparse_coo_tensor(index, torch.cat([c, c, -c, -c]), size, check_invariants=False).coalesce()
        row, column = entries.indices()
        start = torch.searchsorted(row, torch.arange(self.num_nodes + 1, device=row.device))
        return csr_tensor(start, column, entries.values(), self.num_nodes)

    def projector(self) -> Float[Tensor, "*graphs width width"]:
        """Build the projection onto the range of ``L``: identity minus averaging over each component (the paper's I-hat)."""
        label = self.padded_components
        same = (label[..., :, None] == label[..., None, :]) & (label[..., :, None] >= 0)
        size = same.sum(dim=-1, keepdim=True).clamp(min=1).to(self.dtype)
        return self.identity() - same.to(self.dtype) / size

    def identity(self) -> Float[Tensor, "*graphs width width"]:
        """Build the identity, with zeros on padding."""
        return torch.diag_embed(self.mask.to(self.dtype))

    # ------------------------------------------------------------------------------------------------ spectrum

    @property
    def _resistance_bounds(self) -> np.ndarray:
        """Upper bounds on the effective resistances within each component; zero for components without edges."""
        self.check_positive()
        return recall(self, "bounds", lambda: resistance_bounds(*self._numpy(), self.components.cpu().numpy()))

    def _numpy(self) -> tuple[np.ndarray, np.ndarray]:
        return self.edge_index.cpu().numpy(), self.resistance.detach().cpu().double().numpy()

    def degrees(self) -> Float[np.ndarray, " nodes"]:
        """Compute the weighted degree of every node, the diagonal of ``L``, in float64."""
        return recall(self, "degrees", self._add_up_degrees).copy()

    def _add_up_degrees(self) -> Float[np.ndarray, " nodes"]:
        (tail, head), r = self._numpy()
        both = np.concatenate([tail, head])
        return np.bincount(both, np.concatenate([1 / r, 1 / r]), self.num_nodes).astype(np.float64)

    @np.errstate(over="ignore")
    def spectral_bounds(self) -> Spectrum:
        """Compute a cheap interval that provably contains every nonzero eigenvalue of every graph.

        Upper bound: ``lmax <= max over edges (u, v) of deg(u) + deg(v)`` (Anderson and Morley), deg the weighted degree.
        Lower bound: ``lmin >= 4 / (n_c R_c)`` on a component of ``n_c`` nodes, where ``R_c`` bounds the largest effective
        resistance. (For x orthogonal to 1, ``x^T L x >= (max x - min x)^2 / R_c`` by Thomson's principle, and
        ``|x|^2 <= n_c (max x - min x)^2 / 4`` by Popoviciu's inequality.) A graph without edges has no nonzero
        eigenvalue; the interval is then ``[1, 1]``.
        """
        if not self.num_edges:
            return Spectrum(1.0, 1.0)
        tail, head = self.edge_index.cpu().numpy()
        degree = self.degrees()
        lmax = float((degree[tail] + degree[head]).max())
        real = self._resistance_bounds > 0
        lmin = float((4 / (self.component_sizes.cpu().numpy() * self._resistance_bounds)[real]).min())
        return Spectrum(min(lmin, lmax), lmax)

    def scaled_spectral_bounds(self) -> Float[np.ndarray, " graphs"]:
        """Bound the nonzero eigenvalues of ``D^-1/2 L D^-1/2`` of each graph from below; none of them exceeds 2.

        The bound is ``4 / (vol_c R_c)``, ``vol_c`` the sum of the degrees, as in :meth:`spectral_bounds` with D for the
        inner product. It is 2 without edges.
        """
        return recall(self, "scaled bounds", self._bound_scaled_spectra).copy()

    @np.errstate(over="ignore")
    def _bound_scaled_spectra(self) -> Float[np.ndarray, " graphs"]:
        volume = np.bincount(self.components.cpu().numpy(), self.degrees(), self.num_components)
        lowest = np.full(self.num_graphs, 2.0)
        real = self._resistance_bounds > 0
        graph_of = np.zeros(self.num_components, dtype=np.int64)
        graph_of[self.components.cpu().numpy()] = self.batch.cpu().numpy()
        np.minimum.at(lowest, graph_of[real], 4 / (volume * self._resistance_bounds)[real])
        return lowest


def _assemble(
    index: Int[Tensor, "2 edges"], weight: Float[Tensor, " edges"], num_nodes: int | None, loops: int = 0
) -> Graph:
    """Build a graph from checked weights: check node numbers and drop self-loops."""
    top = int(index.max()) + 1 if index.numel() else 0
    nodes = top if num_nodes is None else operator.index(num_nodes)
    if nodes < 0:
        raise ValueError(f"expected num_nodes >= 0, got {nodes}")
    if index.numel() and (top > nodes or int(index.min()) < 0):
        wrong = top - 1 if top > nodes else int(index.min())
        raise ValueError(f"expected node numbers in 0..{nodes - 1}, got {wrong}")
    if index.device.type == "cpu":
        index = index.to(weight.device)
    keep = index[0] != index[1]
    return Graph(
        edge_index=index[:, keep],
        resistance=weight.to(index.device)[keep],
        batch=torch.zeros(nodes, dtype=torch.long, device=index.device),
        self_loops_dropped=loops + int((~keep).sum()),
    )


def _with_batch(graph: Graph, batch: Tensor, num_graphs: int) -> Graph:
    if tuple(batch.shape) != (graph.num_nodes,):
        raise ValueError(f"expected batch of shape ({graph.num_nodes},), got {tuple(batch.shape)}")
    if batch.numel() and bool((batch.diff() < 0).any()):
        raise ValueError("expected batch in ascending order, as PyG's Batch makes it")
    if bool((batch[graph.edge_index[0]] != batch[graph.edge_index[1]]).any()):
        raise ValueError("expected every edge within one graph of the batch, found one between two graphs")
    return replace(graph, batch=batch.long(), num_graphs=num_graphs, batched=True)
