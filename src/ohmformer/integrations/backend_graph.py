"""Networkx graphs as the backend keeps them, and conversions there and back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np
from jaxtyping import Float, Int
from networkx.utils import reverse_cuthill_mckee_ordering

from ohmformer.graph import Graph


@dataclass(frozen=True, eq=False, repr=False)
class BackendGraph:
    """A networkx graph as the backend stores it: labels, edges by node number, neighbours, and unchanged edge attributes."""

    nodes: list[Any]
    ends: Int[np.ndarray, "edges 2"]
    """The end nodes of every edge, in the order of networkx's ``edges()``."""
    neighbours: list[dict[Any, int]]
    """For every node its neighbours and the number of edges to each, in networkx's order, which its orderings depend on."""
    attributes: dict[Any, list[Any]]
    """Attribute values of every edge, None where an edge has none."""
    whole: bool = False
    """Whether all attributes are kept, rather than only those requested by a call."""
    directed: bool = False
    multigraph: bool = False

    __networkx_backend__ = "ohmformer"

    def is_directed(self) -> bool:
        """Return whether the graph is directed, as networkx checks before dispatching."""
        return self.directed

    def is_multigraph(self) -> bool:
        """Return whether the graph has parallel edges, as networkx checks before dispatching."""
        return self.multigraph

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.nodes)

    def __contains__(self, node: Any) -> bool:
        return node in self.nodes

    def __repr__(self) -> str:
        return f"BackendGraph(nodes={len(self.nodes)}, edges={len(self.ends)})"

    def conductances(self, weight: Any, invert: bool = False) -> Float[np.ndarray, " edges"]:
        """Return one number per edge as networkx reads ``weight``, or its reciprocal; raise the same errors as networkx."""
        if weight is None:
            return np.ones(len(self.ends))
        if weight not in self.attributes and not self.whole:
            raise KeyError(f"expected a graph converted with edge attribute {weight!r}, it holds {list(self.attributes)}")
        values = self.attributes.get(weight, [None] * len(self.ends))
        if not invert:
            return np.array([1.0 if value is None else value for value in values], dtype=np.float64)
        if any(value is None for value in values):
            raise KeyError(weight)
        resistance = np.array(values, dtype=np.float64)
        if not resistance.all():
            raise ZeroDivisionError(f"expected resistances other than zero in {weight!r}, got one that is zero")
        return 1 / resistance

    def pairs(self) -> Int[np.ndarray, "edges 2"]:
        """Return the end nodes of every edge, the one with the smaller node number first."""
        return np.sort(self.ends, axis=1)

    def circuit(self, conductance: Float[np.ndarray, " edges"]) -> Graph:
        """Return the graph as a circuit: parallel edges merged, no self-loops, no edges of zero conductance."""
        bad = ~(np.isfinite(conductance) & (conductance >= 0))
        if bad.any():
            raise NotImplementedError(f"expected finite conductances of at least zero, got {conductance[bad][0]}")
        pairs = self.pairs()
        keep = (conductance > 0) & (pairs[:, 0] != pairs[:, 1])
        merged, which = np.unique(pairs[keep] @ [len(self), 1], return_inverse=True)
        ends = np.stack(np.divmod(merged, max(len(self), 1)), axis=1)
        summed = np.bincount(which, conductance[keep], len(merged))
        return Graph.from_edges(ends, num_nodes=len(self), conductance=summed)

    def bandwidth_ordering(self) -> list[Any]:
        """Return networkx's reverse Cuthill-McKee ordering of an undirected graph.

        networkx's current-flow functions number nodes by it, which determines their samples and edge directions. It depends
        on the order of every node's neighbours, so the graph is rebuilt in that order with networkx's own dictionaries.
        """
        plain = nx.MultiGraph() if self.multigraph else nx.Graph()
        plain.add_nodes_from(self.nodes)
        for node, others in zip(self.nodes, self.neighbours, strict=True):
            plain._adj[node].update(  # pyright: ignore[reportAttributeAccessIssue]
                {other: {key: {} for key in range(count)} if self.multigraph else {} for other, count in others.items()}
            )
        return list(reverse_cuthill_mckee_ordering(plain))

    def component_sets(self, conductance: Float[np.ndarray, " edges"]) -> list[set[Any]]:
        """Return the nodes of every component as networkx's spectral functions do, as sets with the same iteration order."""
        simple = nx.MultiGraph() if self.directed else nx.Graph()
        simple.add_nodes_from(self.nodes)
        kept = (conductance != 0) & (self.ends[:, 0] != self.ends[:, 1])
        simple.add_edges_from((self.nodes[u], self.nodes[v]) for u, v in self.ends[kept].tolist())
        if self.directed:
            again = nx.Graph()
            again.add_nodes_from(simple)
            again.add_edges_from(simple.edges())
            simple = again
        return list(nx.connected_components(simple))


def convert_from_nx(
    graph: Any,
    *,
    edge_attrs: dict[Any, Any] | None = None,
    node_attrs: dict[Any, Any] | None = None,
    preserve_edge_attrs: bool = False,
    preserve_node_attrs: bool = False,
    preserve_graph_attrs: bool = False,
    preserve_all_attrs: bool = False,
    name: str | None = None,
    graph_name: str | None = None,
) -> BackendGraph:
    """Convert a networkx graph of any kind, with the requested edge attributes."""
    number = {node: i for i, node in enumerate(graph)}
    multigraph = graph.is_multigraph()
    neighbours = [{v: len(keys) if multigraph else 1 for v, keys in others.items()} for _, others in graph.adjacency()]
    ends = np.array([(number[u], number[v]) for u, v in graph.edges()], dtype=np.int64).reshape(-1, 2)
    whole = preserve_edge_attrs or preserve_all_attrs
    keys = {key: None for *_, data in graph.edges(data=True) for key in data} if whole else edge_attrs or {}
    attributes = {key: [data.get(key) for *_, data in graph.edges(data=True)] for key in keys}
    return BackendGraph(list(number), ends, neighbours, attributes, whole, graph.is_directed(), multigraph)


def convert_to_nx(obj: Any, *, name: str | None = None) -> Any:
    """Convert a :class:`BackendGraph` to a networkx graph; return anything else unchanged."""
    if not isinstance(obj, BackendGraph):
        return obj
    kind = {(0, 0): nx.Graph, (0, 1): nx.MultiGraph, (1, 0): nx.DiGraph, (1, 1): nx.MultiDiGraph}
    graph = kind[obj.directed, obj.multigraph]()
    graph.add_nodes_from(obj.nodes)
    for j, (u, v) in enumerate(obj.ends.tolist()):
        data = {key: values[j] for key, values in obj.attributes.items() if values[j] is not None}
        graph.add_edges_from([(obj.nodes[u], obj.nodes[v], data)])
    return graph
