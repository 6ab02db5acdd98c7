"""What a graph is here: edges stored once, resistances, batches, and the matrices built from them.

Conventions, for the whole library
----------------------------------
Edge ``j`` runs from ``u`` to ``v`` with resistance ``r_j > 0``; the orientation is arbitrary and never changes an answer::

    B[u, j] = -1/sqrt(r_j)      B[v, j] = +1/sqrt(r_j)      L = B B^T

A demand ``psi`` is current put in where it is positive and taken out where it is negative. Its potentials are
``phi = L^+ psi``, high where current is put in, and the current along edge ``j`` is ``(phi_u - phi_v) / r_j``: it runs
downhill, and what leaves a node is its demand. (The paper's flow ``f = R^{-1/2} B^T phi`` is the negative of it.)

Three nodes, resistances 1 and 4, so conductances 1 and 1/4:

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
- Weights are never guessed: ``resistance=`` or ``conductance=``, by keyword.
- Disconnected graphs are normal. Null spaces, projections and demands are per connected component.
- Node tensors are ``(nodes, features)``. A batch of graphs keeps its nodes in one long list, as PyTorch Geometric does;
  :meth:`Graph.pad` turns it into ``(graphs, nodes, features)``, and matrices of a batch are ``(graphs, nodes, nodes)``.
  A graph that is not a batch has no leading axis.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ohmformer.graph.edges import as_edge_index, as_resistance, check_weights, column, fold, read_edges
from ohmformer.graph.spectrum import Spectrum, resistance_bounds

if TYPE_CHECKING:
    import networkx as nx

Weights = Sequence[float] | np.ndarray | Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """An undirected graph, or a batch of them, with a resistance on every edge.

    Build one with :meth:`from_edges`, :meth:`from_pyg`, :meth:`from_networkx`, :meth:`from_scipy` or :meth:`collate`.
    """

    edge_index: Int[Tensor, "2 edges"]
    """Each edge once, tail then head."""
    resistance: Float[Tensor, " edges"]
    batch: Int[Tensor, " nodes"]
    """The graph each node belongs to, ascending."""
    num_graphs: int = 1
    batched: bool = False
    """Whether matrices carry a leading graph axis."""
    self_loops_dropped: int = 0

    # ------------------------------------------------------------------------------------------------ building

    @classmethod
    def from_edges(
        cls,
        edges: Iterable[Sequence[int]] | np.ndarray | Tensor,
        *,
        num_nodes: int | None = None,
        resistance: Weights | None = None,
        conductance: Weights | None = None,
    ) -> Graph:
        """A graph from pairs ``(u, v)``, each undirected edge listed once; unit resistances unless weights are given.

        >>> Graph.from_edges([(0, 1), (1, 2), (2, 2)], conductance=[1.0, 2.0, 5.0], num_nodes=4)
        Graph(nodes=4, edges=2, components=2, self_loops_dropped=1)
        """
        index = as_edge_index(edges)
        weight = as_resistance(index.shape[1], resistance, conductance)
        return _assemble(index, weight, num_nodes)

    @classmethod
    def from_pyg(
        cls, data: Any, *, resistance: str | Weights | None = None, conductance: str | Weights | None = None
    ) -> Graph:
        """A graph from a PyG ``Data`` or ``Batch``.

        Its ``edge_index`` lists every edge in both directions or every edge once; a mixture is an error, see
        :func:`~ohmformer.graph.edges.lists_both_directions`. Weights are an attribute's name or one value per listed pair;
        where both directions are listed they must agree.
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
        """A graph from a networkx ``Graph`` or ``MultiGraph``; nodes are numbered in the order of ``graph.nodes``.

        ``resistance=`` or ``conductance=`` names the edge attribute to read.
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
        """A graph from a symmetric SciPy sparse adjacency matrix.

        ``entries`` says what its values are: ``"conductance"``, ``"resistance"`` or, to ignore them, ``"unit"``.
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
        """One batch out of several graphs."""
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
        )

    def split(self) -> list[Graph]:
        """The graphs of a batch, one by one; the inverse of :meth:`collate`."""
        edge_graph = self.batch[self.edge_index[0]]
        counts = torch.bincount(edge_graph, minlength=self.num_graphs).tolist()
        order = edge_graph.argsort(stable=True)
        parts = zip(
            (self.edge_index - self.graph_offsets[edge_graph])[:, order].split(counts, dim=1),
            self.resistance[order].split(counts),
            torch.zeros_like(self.batch).split(self.graph_sizes.tolist()),
            strict=True,
        )
        return [Graph(*part) for part in parts]

    def select(self, which: Int[Tensor, " chosen"]) -> Graph:
        """A batch of some graphs of a batch, in the order of ``which``."""
        sizes = self.graph_sizes[which]
        position = torch.full((self.num_graphs,), -1, device=self.device).scatter(
            0, which, torch.arange(len(which), device=self.device)
        )
        node = torch.repeat_interleave(self.graph_offsets[which] - (sizes.cumsum(0) - sizes), sizes)
        node = node + torch.arange(len(node), device=self.device)
        renumber = torch.full((self.num_nodes,), -1, device=self.device).scatter(
            0, node, torch.arange(len(node), device=self.device)
        )
        mine = position[self.batch[self.edge_index[0]]] >= 0
        return Graph(renumber[self.edge_index[:, mine]], self.resistance[mine], position[self.batch[node]], len(which), True)

    def to_networkx(self) -> nx.MultiGraph:
        """A networkx ``MultiGraph`` whose edges carry ``resistance`` and keep their order as ``index``."""
        import networkx as nx

        graph = nx.MultiGraph()
        graph.add_nodes_from(range(self.num_nodes))
        for j, ((u, v), r) in enumerate(zip(self.edge_index.t().tolist(), self.resistance.tolist(), strict=True)):
            graph.add_edge(u, v, resistance=r, index=j)
        return graph

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Graph:
        """The same graph on another device or with resistances of another type."""
        resistance = self.resistance.to(device=device, dtype=dtype)
        if resistance.dtype != self.dtype:
            check_weights(resistance, "resistance")
        return replace(
            self, edge_index=self.edge_index.to(device=device), resistance=resistance, batch=self.batch.to(device=device)
        )

    # ------------------------------------------------------------------------------------------------ sizes

    @property
    def num_nodes(self) -> int:
        """Nodes of all graphs together."""
        return self.batch.shape[0]

    @property
    def num_edges(self) -> int:
        """Edges of all graphs together, each counted once."""
        return self.edge_index.shape[1]

    @property
    def device(self) -> torch.device:
        """Where the tensors live."""
        return self.resistance.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the resistances, and of every matrix made from them."""
        return self.resistance.dtype

    @cached_property
    def graph_sizes(self) -> Int[Tensor, " graphs"]:
        """Nodes of each graph."""
        return torch.bincount(self.batch, minlength=self.num_graphs)

    @cached_property
    def graph_offsets(self) -> Int[Tensor, " graphs"]:
        """Index of each graph's first node."""
        return self.graph_sizes.cumsum(0) - self.graph_sizes

    @cached_property
    def components(self) -> Int[Tensor, " nodes"]:
        """The connected component of every node, numbered from 0 over the whole batch."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        tail, head = self.edge_index.cpu().numpy()
        n = self.num_nodes
        adjacency = coo_array((np.ones(len(tail), dtype=np.int8), (tail, head)), shape=(n, n))
        labels = connected_components(adjacency, directed=False)[1] if n else np.zeros(0, dtype=np.int64)
        return torch.as_tensor(labels, dtype=torch.long, device=self.device)

    @cached_property
    def num_components(self) -> int:
        """Connected components of all graphs together; isolated nodes count."""
        return int(self.components.max()) + 1 if self.num_nodes else 0

    @cached_property
    def connected(self) -> bool:
        """Whether every graph is; one without nodes is."""
        return self.num_components == int((self.graph_sizes > 0).sum())

    @cached_property
    def component_sizes(self) -> Int[Tensor, " components"]:
        """Nodes of each component."""
        return torch.bincount(self.components, minlength=self.num_components)

    @cached_property
    def ranks(self) -> Int[Tensor, " graphs"]:
        """The rank of each graph's Laplacian: nodes minus components."""
        first = torch.full((self.num_components,), self.num_nodes, device=self.device)
        node = torch.arange(self.num_nodes, device=self.device)
        first = first.scatter_reduce(0, self.components, node, "amin")
        return self.graph_sizes - torch.bincount(self.batch[first], minlength=self.num_graphs)

    def __repr__(self) -> str:
        head = f"graphs={self.num_graphs}, " if self.batched else ""
        tail = f", self_loops_dropped={self.self_loops_dropped}" if self.self_loops_dropped else ""
        return f"Graph({head}nodes={self.num_nodes}, edges={self.num_edges}, components={self.num_components}{tail})"

    # ------------------------------------------------------------------------------------------------ padding

    @property
    def width(self) -> int:
        """Nodes of the largest graph: the node axis of padded tensors."""
        return int(self.graph_sizes.max()) if self.num_graphs else 0

    @cached_property
    def _slot(self) -> Int[Tensor, " nodes"]:
        """Position of each node within its own graph."""
        return torch.arange(self.num_nodes, device=self.device) - self.graph_offsets[self.batch]

    @cached_property
    def mask(self) -> Bool[Tensor, "*graphs width"]:
        """True where a padded tensor holds a real node."""
        mask = torch.zeros(self.num_graphs, self.width, dtype=torch.bool, device=self.device)
        mask[self.batch, self._slot] = True
        return self._squeeze(mask)

    @cached_property
    def padded_components(self) -> Int[Tensor, "*graphs width"]:
        """The component of every node of a padded tensor, -1 on padding."""
        label = torch.full((self.num_graphs, self.width), -1, device=self.device)
        label[self.batch, self._slot] = self.components
        return self._squeeze(label)

    def pad(self, x: Float[Tensor, "nodes features"]) -> Float[Tensor, "*graphs width features"]:
        """Node features of a batch as ``(graphs, nodes, features)``, zeros where there is no node."""
        if not self.batched:
            return x
        padded = x.new_zeros(self.num_graphs, self.width, x.shape[1])
        return padded.index_put((self.batch, self._slot), x)

    def unpad(self, x: Float[Tensor, "*graphs width features"]) -> Float[Tensor, "nodes features"]:
        """The inverse of :meth:`pad`."""
        return x[self.batch, self._slot] if self.batched else x

    def _squeeze(self, x: Tensor) -> Tensor:
        return x if self.batched else x.squeeze(0)

    # ------------------------------------------------------------------------------------------------ matrices

    def incidence(self) -> Float[Tensor, "*graphs width edges"]:
        """``B``, dense; in a batch, padded with zero rows and columns."""
        edge_graph = self.batch[self.edge_index[0]]
        counts = torch.bincount(edge_graph, minlength=self.num_graphs)
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
        """``L = B B^T``, dense, without forming ``B``."""
        edge_graph = self.batch[self.edge_index[0]]
        tail, head = self._slot[self.edge_index]
        c = self.resistance.reciprocal()
        matrix = c.new_zeros(self.num_graphs, self.width, self.width)
        index = (edge_graph.repeat(4), torch.cat([tail, head, tail, head]), torch.cat([tail, head, head, tail]))
        return self._squeeze(matrix.index_put(index, torch.cat([c, c, -c, -c]), accumulate=True))

    def sparse_laplacian(self) -> Tensor:
        """``L`` of all graphs together as one block-diagonal CSR tensor, ``(nodes, nodes)``."""
        tail, head = self.edge_index
        c = self.resistance.reciprocal()
        index = torch.stack([torch.cat([tail, head, tail, head]), torch.cat([tail, head, head, tail])])
        size = (self.num_nodes, self.num_nodes)
        entries = torch.sparse_coo_tensor(index, torch.cat([c, c, -c, -c]), size, check_invariants=False)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            return entries.coalesce().to_sparse_csr()

    def projector(self) -> Float[Tensor, "*graphs width width"]:
        """The projection onto the range of ``L``: identity minus averaging over each component (the paper's I-hat)."""
        label = self.padded_components
        same = (label[..., :, None] == label[..., None, :]) & (label[..., :, None] >= 0)
        size = same.sum(dim=-1, keepdim=True).clamp(min=1).to(self.dtype)
        return self.identity() - same.to(self.dtype) / size

    def identity(self) -> Float[Tensor, "*graphs width width"]:
        """The identity on real nodes, zero on padding."""
        return torch.diag_embed(self.mask.to(self.dtype))

    def component_means(self, x: Float[Tensor, "nodes features"]) -> Float[Tensor, "components features"]:
        """The mean of every column over every component."""
        if self.num_components == 1:
            return x.mean(dim=0, keepdim=True)
        sums = x.new_zeros(self.num_components, x.shape[1]).index_add(0, self.components, x)
        return sums / self.component_sizes[:, None].to(x.dtype)

    def center(self, x: Float[Tensor, "nodes features"]) -> Float[Tensor, "nodes features"]:
        """``x`` with its mean over each component taken away; twice, as the first mean is rounded."""
        for _ in range(2):
            x = x - self._means_on_nodes(x)
        return x

    def center_(self, x: Float[Tensor, "nodes features"]) -> Float[Tensor, "nodes features"]:
        """The same in place, for large tensors that need no gradient."""
        for _ in range(2):
            x.sub_(self._means_on_nodes(x))
        return x

    def _means_on_nodes(self, x: Tensor) -> Tensor:
        mean = self.component_means(x)
        return mean if len(mean) == 1 else mean[self.components]

    def check_signals(self, signals: Tensor | np.ndarray | Sequence[Any]) -> Float[Tensor, "nodes signals"]:
        """``signals`` as ``(nodes, signals)`` of this graph's type, or a ValueError that says what is wrong."""
        signals = torch.as_tensor(signals)
        x = signals[:, None] if signals.ndim == 1 else signals
        if x.ndim != 2 or x.shape[0] != self.num_nodes:
            raise ValueError(f"expected one row per node, shape ({self.num_nodes}, k), got {tuple(signals.shape)}")
        x = x.to(self.device, self.dtype)
        if x.numel() and not torch.isfinite(torch.stack(torch.aminmax(x.detach()))).all():
            raise ValueError("expected finite numbers on the nodes, got NaN or infinity")
        return x

    def check_demands(
        self, demands: Tensor | np.ndarray | Sequence[Any], *, center: bool = False
    ) -> Float[Tensor, "nodes demands"]:
        """``demands`` as ``(nodes, demands)``, summing to zero on each component, or a ValueError that says what is wrong.

        With ``center=True`` the component means are taken away instead.
        """
        demands = torch.as_tensor(demands)
        psi = self.check_signals(demands)
        if center or not psi.numel():
            return self.center(psi)
        sums = self.component_means(psi.detach()) * self.component_sizes[:, None]
        eps = max(torch.finfo(x).eps for x in (psi.dtype, demands.dtype) if x.is_floating_point)
        largest = self.component_sizes[:, None] * torch.maximum(psi.detach().amax(dim=0), -psi.detach().amin(dim=0))
        off = sums.abs() - 8 * eps * largest
        if off.max() > 0:
            component, column = divmod(int(off.argmax()), psi.shape[1])
            raise ValueError(
                f"expected every demand to sum to zero on each component, demand {column} sums to "
                f"{sums[component, column].item():.3g} on component {component}; pass center=True to subtract the mean"
            )
        rounded = bool((sums.abs() <= torch.finfo(psi.dtype).eps * largest).all())
        return psi if rounded else self.center(psi)

    # ------------------------------------------------------------------------------------------------ spectrum

    @cached_property
    def _resistance_bounds(self) -> np.ndarray:
        """For every component a number that no effective resistance within it exceeds; zero where there is no edge."""
        return resistance_bounds(*self._numpy(), self.components.cpu().numpy())

    def _numpy(self) -> tuple[np.ndarray, np.ndarray]:
        return self.edge_index.cpu().numpy(), self.resistance.detach().cpu().double().numpy()

    def degrees(self) -> Float[np.ndarray, " nodes"]:
        """The weighted degree of every node, the diagonal of ``L``, in float64."""
        (tail, head), r = self._numpy()
        both = np.concatenate([tail, head])
        return np.bincount(both, np.concatenate([1 / r, 1 / r]), self.num_nodes).astype(np.float64)

    def spectral_bounds(self) -> Spectrum:
        """A cheap interval that provably holds every nonzero eigenvalue of every graph here.

        Above: ``lmax <= max over edges (u, v) of deg(u) + deg(v)`` (Anderson and Morley), deg the weighted degree.
        Below: ``lmin >= 4 / (n_c R_c)`` on a component of ``n_c`` nodes, where ``R_c`` bounds the largest effective
        resistance. (For x orthogonal to 1, ``x^T L x >= (max x - min x)^2 / R_c`` by Thomson's principle, and
        ``|x|^2 <= n_c (max x - min x)^2 / 4`` by Popoviciu's inequality.) A graph without edges has no nonzero
        eigenvalue: ``[1, 1]``.
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
        """For every graph a proved lower bound on the nonzero eigenvalues of ``D^-1/2 L D^-1/2``, none of which exceeds 2.

        ``4 / (vol_c R_c)`` with ``vol_c`` the sum of the degrees, as above with D for the inner product. 2 without edges.
        """
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
    """The graph of checked weights: node numbers checked, self-loops dropped."""
    top = int(index.max()) + 1 if index.numel() else 0
    nodes = top if num_nodes is None else operator.index(num_nodes)
    if nodes < 0:
        raise ValueError(f"expected num_nodes >= 0, got {nodes}")
    if index.numel() and (top > nodes or int(index.min()) < 0):
        wrong = top - 1 if top > nodes else int(index.min())
        raise ValueError(f"expected node numbers in 0..{nodes - 1}, got {wrong}")
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
