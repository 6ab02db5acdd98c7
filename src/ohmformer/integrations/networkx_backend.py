"""A networkx backend: ``nx.resistance_distance(G, backend="ohmformer")``, and so on for whatever asks a Laplacian.

This module is the object that networkx dispatches to: public functions bear networkx's names and take networkx's arguments.
Weights keep networkx's meaning. They are conductances, or resistances under ``invert_weight=True``; a missing one is 1.

Everything is computed in float64 to a measured residual of 1e-9, mostly to rounding, so networkx's choice of numerics
(``solver``, ``dtype``, ``method``, ``tol``) is checked for names that networkx refuses, and otherwise changes nothing. What
cannot be answered that well (negative conductances, too many nodes, hopeless condition numbers) is a NotImplementedError,
which under ``nx.config.backend_priority`` hands the call to the next backend.

Two answers differ from networkx 3.6, on purpose: betweenness takes parallel edges as one of their summed conductance
(networkx reads no weights of a multigraph there) and lets no current through self-loops. Automatic dispatch leaves both to
networkx, see :func:`should_run`. And edges come as keys ``(u, v)`` with u first in the order of the graph's nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

import ohmformer as ohm
from ohmformer.graph import Graph, circuit
from ohmformer.integrations.currents import DENSE, ask, at_nodes, pair_flows, pair_potentials, pinv_diagonal, slice_width

# ---------------------------------------------------------------------------------------------------- the graph


@dataclass(frozen=True, eq=False, repr=False)
class BackendGraph:
    """What is kept of a networkx graph: labels, edges by node number, and edge attributes as they were."""

    nodes: list[Any]
    ends: Int[np.ndarray, "edges 2"]
    attributes: dict[Any, list[Any]]
    """Values edge by edge, None where an edge has none."""
    whole: bool = False
    """Whether all attributes are kept, rather than those that a call asked for."""
    directed: bool = False
    multigraph: bool = False

    __networkx_backend__ = "ohmformer"

    def is_directed(self) -> bool:
        """As networkx asks before it dispatches."""
        return self.directed

    def is_multigraph(self) -> bool:
        """As networkx asks before it dispatches."""
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
        """One number per edge as networkx reads ``weight``, one over it if asked; the errors are networkx's."""
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
        """The ends of every edge, the node that comes first in the graph first."""
        return np.sort(self.ends, axis=1)

    def circuit(self, conductance: Float[np.ndarray, " edges"]) -> Graph:
        """The graph as a circuit: parallel edges merged, no self-loops, no edges without conductance."""
        bad = ~(np.isfinite(conductance) & (conductance >= 0))
        if bad.any():
            raise NotImplementedError(f"expected finite conductances of at least zero, got {conductance[bad][0]}")
        pairs = self.pairs()
        keep = (conductance > 0) & (pairs[:, 0] != pairs[:, 1])
        merged, which = np.unique(pairs[keep] @ [len(self), 1], return_inverse=True)
        ends = np.stack(np.divmod(merged, max(len(self), 1)), axis=1)
        summed = np.bincount(which, conductance[keep], len(merged))
        return Graph.from_edges(ends, num_nodes=len(self), conductance=summed)


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
    """A networkx graph of any kind, with the edge attributes that are asked for; nothing here asks for others."""
    number = {node: i for i, node in enumerate(graph)}
    ends = np.array([(number[u], number[v]) for u, v in graph.edges()], dtype=np.int64).reshape(-1, 2)
    whole = preserve_edge_attrs or preserve_all_attrs
    keys = {key: None for *_, data in graph.edges(data=True) for key in data} if whole else edge_attrs or {}
    attributes = {key: [data.get(key) for *_, data in graph.edges(data=True)] for key in keys}
    return BackendGraph(list(number), ends, attributes, whole, graph.is_directed(), graph.is_multigraph())


def convert_to_nx(obj: Any, *, name: str | None = None) -> Any:
    """The networkx graph of a :class:`BackendGraph`; anything else as it is."""
    if not isinstance(obj, BackendGraph):
        return obj
    kind = {(0, 0): nx.Graph, (0, 1): nx.MultiGraph, (1, 0): nx.DiGraph, (1, 1): nx.MultiDiGraph}
    graph = kind[obj.directed, obj.multigraph]()
    graph.add_nodes_from(obj.nodes)
    for j, (u, v) in enumerate(obj.ends.tolist()):
        data = {key: values[j] for key, values in obj.attributes.items() if values[j] is not None}
        graph.add_edges_from([(obj.nodes[u], obj.nodes[v], data)])
    return graph


def can_run(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | str:
    """Whether the graph is small enough for LAPACK, where that is what it takes."""
    nodes = len(args[0] if args else kwargs["G"])
    if name in ("algebraic_connectivity", "fiedler_vector", "spectral_bisection", "spectral_ordering") and nodes > DENSE:
        return f"expected at most {DENSE} nodes for eigenvectors, got {nodes}"
    return True


def should_run(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | str:
    """No where networkx would answer differently; such calls are run for those who say ``backend="ohmformer"``."""
    graph = args[0] if args else kwargs["G"]
    if "current_flow_betweenness" in name and (graph.is_multigraph() or any(graph.has_edge(v, v) for v in graph)):
        return "networkx counts the flow through parallel edges and self-loops otherwise"
    return True


# ---------------------------------------------------------------------------------------------------- resistances


def resistance_distance(
    G: BackendGraph, nodeA: Any = None, nodeB: Any = None, weight: Any = None, invert_weight: bool = True
) -> float | dict[Any, Any]:
    """``R_ab = (e_a - e_b)^T L^+ (e_a - e_b)`` of one pair, of one node with all, or of all pairs."""
    if not len(G):
        raise nx.NetworkXError("expected a graph with at least one node, got none")
    for name, node in (("nodeA", nodeA), ("nodeB", nodeB)):
        if node is not None and node not in G:
            raise nx.NetworkXError(f"expected {name} to be a node of the graph, got {node!r}")
    graph = _connected(G.circuit(G.conductances(weight, invert_weight)))
    if nodeA is None and nodeB is None:
        rows = ask(ohm.effective_resistance, graph, "all").tolist()
        return {node: dict(zip(G.nodes, row, strict=True)) for node, row in zip(G.nodes, rows, strict=True)}
    if nodeA is not None and nodeB is not None:
        pair = torch.tensor([[G.nodes.index(nodeA), G.nodes.index(nodeB)]])
        return float(ask(ohm.effective_resistance, graph, pair))
    node = G.nodes.index(nodeB if nodeA is None else nodeA)
    others = torch.arange(len(G))
    pairs = torch.stack([torch.full_like(others, node), others], dim=1)
    values = [ask(ohm.effective_resistance, graph, part) for part in pairs.split(slice_width(graph))]
    return dict(zip(G.nodes, torch.cat(values).tolist(), strict=True))


def effective_graph_resistance(G: BackendGraph, weight: Any = None, invert_weight: bool = True) -> float:
    """``n tr L^+``, the sum of all resistances; infinite for a disconnected graph."""
    if not len(G):
        raise nx.NetworkXError("expected a graph with at least one node, got none")
    graph = G.circuit(G.conductances(weight, invert_weight))
    return math.inf if graph.num_components > 1 else len(G) * float(pinv_diagonal(graph).sum())


def current_flow_closeness_centrality(
    G: BackendGraph, weight: Any = None, dtype: Any = float, solver: str = "lu"
) -> dict[Any, float]:
    """``1 / sum_w R_vw``, where ``sum_w R_vw = n L^+_vv + tr L^+``."""
    graph = _connected(G.circuit(G.conductances(weight)))
    _check_solver(solver)
    diagonal = pinv_diagonal(graph)
    return {v: 1 / far for v, far in zip(G.nodes, (len(G) * diagonal + diagonal.sum()).tolist(), strict=True)}


# ---------------------------------------------------------------------------------------------------- betweenness


def current_flow_betweenness_centrality(
    G: BackendGraph, normalized: bool = True, weight: Any = None, dtype: Any = float, solver: str = "full"
) -> dict[Any, float]:
    """Current through each node, ``(sum of |I_e| over its edges - |demand|) / 2``, summed over all pairs of other nodes."""
    graph = _connected(G.circuit(G.conductances(weight)))
    _check_solver(solver)
    n = len(G)
    through = at_nodes(graph, pair_flows(graph, [torch.arange(n)])) - (n - 1)
    return {v: x / _pairs_counted(n, normalized) for v, x in zip(G.nodes, through.tolist(), strict=True)}


def current_flow_betweenness_centrality_subset(
    G: BackendGraph,
    sources: Iterable[Any],
    targets: Iterable[Any],
    normalized: bool = True,
    weight: Any = None,
    dtype: Any = float,
    solver: str = "lu",
) -> dict[Any, float]:
    """The same over pairs of a source and a target, with networkx's constant ``1 / (2 - n)`` for the ends."""
    graph = _connected(G.circuit(G.conductances(weight)))
    _check_solver(solver)
    n = len(G)
    through = at_nodes(graph, pair_flows(graph, [_numbers(G, sources), _numbers(G, targets)])) / 2
    return {v: x / _pairs_counted(n, normalized) + 1.0 / (2 - n) for v, x in zip(G.nodes, through.tolist(), strict=True)}


def edge_current_flow_betweenness_centrality(
    G: BackendGraph, normalized: bool = True, weight: Any = None, dtype: Any = float, solver: str = "full"
) -> dict[tuple[Any, Any], float]:
    """``|I_e|`` summed over all pairs of nodes, for every edge."""
    graph = _connected(G.circuit(G.conductances(weight)))
    _check_solver(solver)
    flows = pair_flows(graph, [torch.arange(len(G))])
    return _by_edge(G, graph, flows, _pairs_counted(len(G), normalized))


def edge_current_flow_betweenness_centrality_subset(
    G: BackendGraph,
    sources: Iterable[Any],
    targets: Iterable[Any],
    normalized: bool = True,
    weight: Any = None,
    dtype: Any = float,
    solver: str = "lu",
) -> dict[tuple[Any, Any], float]:
    """``|I_e| / 2`` summed over pairs of a source and a target, for every edge."""
    graph = _connected(G.circuit(G.conductances(weight)))
    _check_solver(solver)
    flows = pair_flows(graph, [_numbers(G, sources), _numbers(G, targets)]) / 2
    return _by_edge(G, graph, flows, _pairs_counted(len(G), normalized))


def approximate_current_flow_betweenness_centrality(
    G: BackendGraph,
    normalized: bool = True,
    weight: Any = None,
    dtype: Any = float,
    solver: str = "full",
    epsilon: float | int = 0.5,
    kmax: int = 10000,
    seed: Any = None,
    *,
    sample_weight: float | int = 1,
) -> dict[Any, float]:
    """The same from ``k = sample_weight (c / epsilon)^2 log n`` random pairs, ``c = n / (n - 2)``, scaled to all of them."""
    graph = _connected(G.circuit(G.conductances(weight)))
    n = len(G)
    if n < 3:
        return dict.fromkeys(G.nodes, 0.0)
    if epsilon <= 0:
        raise nx.NetworkXError(f"Epsilon must be positive. Got {epsilon=}.")
    if sample_weight <= 0:
        raise nx.NetworkXError(f"Sample weight must be positive. Got {sample_weight=}.")
    c = n / (n - 2)
    k = int(sample_weight * math.ceil((c / epsilon) ** 2 * math.log(n)))
    if k > kmax:
        raise nx.NetworkXError(f"Number random pairs k>kmax ({k}>{kmax}). Increase kmax or epsilon")
    _check_solver(solver)
    ends = torch.tensor([seed.sample(range(n), 2) for _ in range(k)], dtype=torch.long).reshape(k, 2)
    through = torch.zeros(n, dtype=torch.float64)
    for part in ends.split(slice_width(graph)):
        column = torch.arange(len(part))
        flow = circuit.flow(graph, pair_potentials(graph, part)).abs()
        inside = at_nodes(graph, flow)
        inside[part.t(), column] = 0.0
        through += inside.sum(1)
    scale = c / (2 * k) * (1.0 if normalized else (n - 1) * (n - 2) / 2)
    return dict(zip(G.nodes, (scale * through).tolist(), strict=True))


# ---------------------------------------------------------------------------------------------------- eigenvectors


def algebraic_connectivity(
    G: BackendGraph,
    weight: Any = "weight",
    normalized: bool = False,
    tol: float = 1e-8,
    method: str = "tracemin_pcg",
    seed: Any = None,
) -> float:
    """The second smallest eigenvalue of ``L``, or of ``D^-1/2 L D^-1/2``, at conductances ``|weight|``."""
    graph = _magnitudes(G, weight)
    if graph.num_components > 1:
        return 0.0
    return _fiedler(graph, normalized, method)[0]


def fiedler_vector(
    G: BackendGraph,
    weight: Any = "weight",
    normalized: bool = False,
    tol: float = 1e-8,
    method: str = "tracemin_pcg",
    seed: Any = None,
) -> np.ndarray:
    """The unit eigenvector of that eigenvalue; its first entry that is not zero is negative, as by networkx's default."""
    graph = _magnitudes(G, weight)
    if graph.num_components > 1:
        raise nx.NetworkXError(f"expected a connected graph, got one of {graph.num_components} components")
    if len(G) == 2:
        return np.array([1.0, -1.0])
    return _fiedler(graph, normalized, method)[1]


def spectral_bisection(
    G: BackendGraph,
    weight: Any = "weight",
    normalized: bool = False,
    tol: float = 1e-8,
    method: str = "tracemin_pcg",
    seed: Any = None,
) -> tuple[set[Any], set[Any]]:
    """The nodes where the Fiedler vector is negative, and the others."""
    if G.is_directed():
        raise nx.NetworkXNotImplemented("expected an undirected graph, got a directed one")
    negative = fiedler_vector(G, weight, normalized, tol, method, seed) < 0
    sides = [{v for v, below in zip(G.nodes, negative, strict=True) if below == side} for side in (True, False)]
    return sides[0], sides[1]


def spectral_ordering(
    G: BackendGraph,
    weight: Any = "weight",
    normalized: bool = False,
    tol: float = 1e-8,
    method: str = "tracemin_pcg",
    seed: Any = None,
) -> list[Any]:
    """The nodes component by component, each in the order of its Fiedler vector."""
    if not len(G):
        raise nx.NetworkXError("expected a graph with at least one node, got none")
    _check_method(method)
    graph = G.circuit(np.abs(G.conductances(weight)))
    label = graph.components
    order: list[Any] = []
    for component in dict.fromkeys(label.tolist()):
        nodes = (label == component).nonzero()[:, 0]
        if len(nodes) > 2:
            mine = label[graph.edge_index[0]] == component
            ends = torch.searchsorted(nodes, graph.edge_index[:, mine]).t()
            part = Graph.from_edges(ends, num_nodes=len(nodes), resistance=graph.resistance[mine])
            nodes = nodes[np.argsort(_fiedler(part, normalized, method)[1], kind="stable")]
        order += [G.nodes[i] for i in nodes.tolist()]
    return order


def _magnitudes(G: BackendGraph, weight: Any) -> Graph:
    if len(G) < 2:
        raise nx.NetworkXError(f"expected a graph of at least two nodes, got {len(G)}")
    return G.circuit(np.abs(G.conductances(weight)))


def _fiedler(graph: Graph, normalized: bool, method: str) -> tuple[float, np.ndarray]:
    """The smallest nonzero eigenvalue, as the energy of its unit eigenvector, and that vector."""
    if graph.num_nodes > 2:
        _check_method(method)
    if normalized:
        root = torch.as_tensor(graph.degrees()).rsqrt()
        x = _scaled_eigenvector(graph, root)
        potential = root * x
    else:
        potential = x = ask(ohm.eigenvectors, graph, 1)[:, 0]
    energy = circuit.primal_energy(graph, circuit.flow(graph, potential))
    first = x[x.abs() > 1e-9][0]
    return float(energy), (x * -torch.sign(first)).numpy()


def _scaled_eigenvector(graph: Graph, root: Float[Tensor, " nodes"]) -> Float[Tensor, " nodes"]:
    """The second eigenvector of ``D^-1/2 L D^-1/2`` by LAPACK, its null vector ``D^1/2 1`` moved above all others."""
    from scipy.linalg import eigh

    null = 1 / root
    null = null / null.norm()
    matrix = root[:, None] * graph.laplacian() * root + 4 * null[:, None] * null
    return torch.as_tensor(eigh(matrix.numpy(), subset_by_index=(0, 0))[1][:, 0])


# ---------------------------------------------------------------------------------------------------- common


def _by_edge(G: BackendGraph, graph: Graph, flows: Float[Tensor, " edges"], pairs: float) -> dict[tuple[Any, Any], float]:
    """Flows over pairs, keyed by the labels of the ends; edges that carry nothing (self-loops) have zero."""
    values = {(G.nodes[u], G.nodes[v]): 0.0 for u, v in G.pairs().tolist()}
    for (u, v), flow in zip(graph.edge_index.t().tolist(), flows.tolist(), strict=True):
        values[G.nodes[u], G.nodes[v]] = flow / pairs
    return values


def _pairs_counted(n: int, normalized: bool) -> float:
    """Networkx divides by the ordered pairs of other nodes, or by 2."""
    return (n - 1.0) * (n - 2.0) if normalized else 2.0


def _numbers(G: BackendGraph, nodes: Iterable[Any]) -> Int[Tensor, " chosen"]:
    number = {node: i for i, node in enumerate(G.nodes)}
    return torch.tensor([number[node] for node in nodes], dtype=torch.long)


def _connected(graph: Graph) -> Graph:
    if not graph.num_nodes:
        raise nx.NetworkXPointlessConcept("expected a graph with at least one node, got none")
    if graph.num_components > 1:
        raise nx.NetworkXError(f"Graph not connected: it has {graph.num_components} components.")
    return graph


def _check_solver(solver: str) -> None:
    if solver not in ("full", "lu", "cg"):
        raise KeyError(solver)


def _check_method(method: str) -> None:
    if method not in ("tracemin", "tracemin_pcg", "tracemin_lu", "lanczos", "lobpcg"):
        raise nx.NetworkXError(f"expected method 'tracemin_pcg', 'tracemin_lu', 'lanczos' or 'lobpcg', got {method!r}")
