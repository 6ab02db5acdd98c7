"""A networkx backend: ``nx.resistance_distance(G, backend="ohmformer")``, and so on for other functions of the Laplacian.

This module is the object that networkx dispatches to: public functions have networkx's names and arguments. Weights keep
networkx's meaning: conductances, or resistances under ``invert_weight=True``; a missing one is 1.

Everything is computed in float64 to a measured residual of 1e-9, mostly to rounding. networkx's numerical options
(``solver``, ``dtype``, ``method``, ``tol``) are therefore checked for names that networkx rejects and otherwise ignored.
What cannot be computed that accurately (negative conductances, too many nodes, extreme condition numbers) raises a
NotImplementedError, on which ``nx.config.backend_priority`` passes the call to the next backend.

Two results differ from networkx 3.6 on purpose: betweenness treats parallel edges as one edge of their summed conductance
(networkx ignores weights of a multigraph there) and lets no current through self-loops. Automatic dispatch leaves both to
networkx, see :func:`should_run`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import networkx as nx
import torch
from jaxtyping import Float, Int
from torch import Tensor

import ohmformer as ohm
from ohmformer.graph import Graph, circuit
from ohmformer.integrations.backend_graph import BackendGraph, convert_from_nx, convert_to_nx
from ohmformer.integrations.backend_spectral import (
    algebraic_connectivity,
    fiedler_vector,
    spectral_bisection,
    spectral_ordering,
)
from ohmformer.integrations.currents import DENSE, ask, pair_flows, pair_potentials, pinv_diagonal, slice_width
from ohmformer.solve.currents import at_nodes

__all__ = [
    "algebraic_connectivity",
    "approximate_current_flow_betweenness_centrality",
    "can_run",
    "convert_from_nx",
    "convert_to_nx",
    "current_flow_betweenness_centrality",
    "current_flow_betweenness_centrality_subset",
    "current_flow_closeness_centrality",
    "edge_current_flow_betweenness_centrality",
    "edge_current_flow_betweenness_centrality_subset",
    "effective_graph_resistance",
    "fiedler_vector",
    "resistance_distance",
    "should_run",
    "spectral_bisection",
    "spectral_ordering",
]


def can_run(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | str:
    """Return True, or why not if the function needs eigenvectors and the graph is too large for LAPACK."""
    nodes = len(args[0] if args else kwargs["G"])
    if name in ("algebraic_connectivity", "fiedler_vector", "spectral_bisection", "spectral_ordering") and nodes > DENSE:
        return f"expected at most {DENSE} nodes for eigenvectors, got {nodes}"
    return True


def should_run(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | str:
    """Return True, or a reason if networkx's result would differ; such calls run only with ``backend="ohmformer"``."""
    graph = args[0] if args else kwargs["G"]
    if "current_flow_betweenness" in name and (graph.is_multigraph() or any(graph.has_edge(v, v) for v in graph)):
        return "networkx counts the flow through parallel edges and self-loops otherwise"
    return True


# ---------------------------------------------------------------------------------------------------- resistances


def resistance_distance(
    G: BackendGraph, nodeA: Any = None, nodeB: Any = None, weight: Any = None, invert_weight: bool = True
) -> float | dict[Any, Any]:
    """Return the resistance ``R_ab = (e_a - e_b)^T L^+ (e_a - e_b)`` of one pair, of one node with all, or of all pairs."""
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
    """Return ``n tr L^+``, the sum of all resistances; infinite for a disconnected graph."""
    if not len(G):
        raise nx.NetworkXError("expected a graph with at least one node, got none")
    graph = G.circuit(G.conductances(weight, invert_weight))
    return math.inf if graph.num_components > 1 else len(G) * float(pinv_diagonal(graph).sum())


def current_flow_closeness_centrality(
    G: BackendGraph, weight: Any = None, dtype: Any = float, solver: str = "lu"
) -> dict[Any, float]:
    """Return the closeness ``1 / sum_w R_vw`` of every node, where ``sum_w R_vw = n L^+_vv + tr L^+``."""
    graph = _connected(G.circuit(G.conductances(weight)))
    _check_solver(solver)
    diagonal = pinv_diagonal(graph)
    return {v: 1 / far for v, far in zip(G.nodes, (len(G) * diagonal + diagonal.sum()).tolist(), strict=True)}


# ---------------------------------------------------------------------------------------------------- betweenness


def current_flow_betweenness_centrality(
    G: BackendGraph, normalized: bool = True, weight: Any = None, dtype: Any = float, solver: str = "full"
) -> dict[Any, float]:
    """Return the current through each node, ``(sum of |I_e| over its edges - |demand|) / 2``, over all pairs of others."""
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
    """Return the current through each node over source-target pairs, with networkx's constant for the end nodes."""
    graph = _connected(G.circuit(G.conductances(weight)))
    _check_solver(solver)
    n = len(G)
    through = at_nodes(graph, pair_flows(graph, [_numbers(G, sources), _numbers(G, targets)])) / 2
    return {v: x / _pairs_counted(n, normalized) + 1.0 / (2 - n) for v, x in zip(G.nodes, through.tolist(), strict=True)}


def edge_current_flow_betweenness_centrality(
    G: BackendGraph, normalized: bool = True, weight: Any = None, dtype: Any = float, solver: str = "full"
) -> dict[tuple[Any, Any], float]:
    """Return the betweenness of every edge: ``|I_e|``, summed over all pairs of nodes."""
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
    """Return the betweenness of every edge: ``|I_e| / 2``, summed over source-target pairs."""
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
    """Estimate the current through each node from ``k = sample_weight (n / (n - 2) / epsilon)^2 log n`` random pairs."""
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
    sampled = torch.tensor([seed.sample(range(n), 2) for _ in range(k)], dtype=torch.long).reshape(k, 2)
    ends = _numbers(G, G.bandwidth_ordering())[sampled]  # networkx numbers the nodes in this order
    through = torch.zeros(n, dtype=torch.float64)
    for part in ends.split(slice_width(graph)):
        column = torch.arange(len(part))
        flow = circuit.flow(graph, pair_potentials(graph, part)).abs()
        inside = at_nodes(graph, flow)
        inside[part.t(), column] = 0.0
        through += inside.sum(1)
    scale = c / (2 * k) * (1.0 if normalized else (n - 1) * (n - 2) / 2)
    return dict(zip(G.nodes, (scale * through).tolist(), strict=True))


# ---------------------------------------------------------------------------------------------------- common


def _by_edge(G: BackendGraph, graph: Graph, flows: Float[Tensor, " edges"], pairs: float) -> dict[tuple[Any, Any], float]:
    """Return flows divided by ``pairs``, keyed by edge in networkx's order and direction; 0 for self-loops."""
    found = {(u, v): flow / pairs for (u, v), flow in zip(graph.edge_index.t().tolist(), flows.tolist(), strict=True)}
    rank = {node: i for i, node in enumerate(G.bandwidth_ordering())}
    values = {}
    for u, v in G.pairs().tolist():
        ends = sorted((G.nodes[u], G.nodes[v]), key=rank.__getitem__)
        values[ends[0], ends[1]] = found.get((u, v), 0.0)
    return values


def _pairs_counted(n: int, normalized: bool) -> float:
    """Return networkx's divisor: the number of ordered pairs of other nodes, or 2."""
    return (n - 1.0) * (n - 2.0) if normalized else 2.0


def _numbers(G: BackendGraph, nodes: Iterable[Any]) -> Int[Tensor, " chosen"]:
    """Return the indices of nodes; raise a KeyError for an unknown one, as networkx does."""
    number = {node: i for i, node in enumerate(G.nodes)}
    return torch.tensor([number[node] for node in nodes], dtype=torch.long)


def _connected(graph: Graph) -> Graph:
    """Return the graph if it is connected; raise networkx's errors if it is empty or not connected."""
    if not graph.num_nodes:
        raise nx.NetworkXPointlessConcept("expected a graph with at least one node, got none")
    if graph.num_components > 1:
        raise nx.NetworkXError(f"Graph not connected: it has {graph.num_components} components.")
    return graph


def _check_solver(solver: str) -> None:
    """Raise networkx's error for an unknown solver."""
    if solver not in ("full", "lu", "cg"):
        raise KeyError(solver)
