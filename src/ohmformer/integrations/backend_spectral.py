"""Networkx's spectral functions, answered by LAPACK: algebraic connectivity, Fiedler vectors, bisection and ordering."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import networkx as nx
import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.linalg import eigh
from torch import Tensor

import ohmformer as ohm
from ohmformer.graph import Graph, circuit
from ohmformer.integrations.backend_graph import BackendGraph
from ohmformer.integrations.currents import ask

T = TypeVar("T")


def _spectral(function: Callable[[BackendGraph, Any, bool, str], T]) -> Callable[..., T]:
    """Give a function networkx's arguments; ``tol`` and ``seed`` are ignored."""

    @wraps(function)
    def call(
        G: BackendGraph,
        weight: Any = "weight",
        normalized: bool = False,
        tol: float = 1e-8,
        method: str = "tracemin_pcg",
        seed: Any = None,
    ) -> T:
        return function(G, weight, normalized, method)

    return call


@_spectral
def algebraic_connectivity(G: BackendGraph, weight: Any, normalized: bool, method: str) -> float:
    """Return the second smallest eigenvalue of ``L``, or of ``D^-1/2 L D^-1/2``, for conductances ``|weight|``."""
    graph = _magnitudes(G, weight)
    if graph.num_components > 1:
        return 0.0
    return _fiedler(graph, normalized, method)[0]


@_spectral
def fiedler_vector(G: BackendGraph, weight: Any, normalized: bool, method: str) -> np.ndarray:
    """Return the unit Fiedler vector, with its first nonzero entry negative as by networkx's default method."""
    graph = _magnitudes(G, weight)
    if graph.num_components > 1:
        raise nx.NetworkXError(f"expected a connected graph, got one of {graph.num_components} components")
    if len(G) == 2:
        return np.array([1.0, -1.0])
    return _fiedler(graph, normalized, method)[1]


@_spectral
def spectral_bisection(G: BackendGraph, weight: Any, normalized: bool, method: str) -> tuple[set[Any], set[Any]]:
    """Return the nodes where the Fiedler vector is negative, and the others."""
    if G.is_directed():
        raise nx.NetworkXNotImplemented("expected an undirected graph, got a directed one")
    negative = fiedler_vector(G, weight, normalized, method=method) < 0
    sides = [{v for v, below in zip(G.nodes, negative, strict=True) if below == side} for side in (True, False)]
    return sides[0], sides[1]


@_spectral
def spectral_ordering(G: BackendGraph, weight: Any, normalized: bool, method: str) -> list[Any]:
    """Return the nodes component by component, each sorted by its Fiedler vector.

    If the eigenvalue is simple and no two entries are equal, this is networkx's order by its default method: the sign makes
    the entry of the first node, in the order of networkx's set of the component, negative.
    """
    if not len(G):
        raise nx.NetworkXError("expected a graph with at least one node, got none")
    _check_method(method)
    conductance = np.abs(G.conductances(weight))
    graph, number = G.circuit(conductance), {node: i for i, node in enumerate(G.nodes)}
    order: list[Any] = []
    for component in G.component_sets(conductance):
        labels = list(component)
        if len(labels) > 2:
            part = _part(graph, torch.tensor([number[label] for label in labels]))
            labels = [labels[i] for i in np.argsort(_fiedler(part, normalized, method)[1], kind="stable")]
        order += labels
    return order


def _part(graph: Graph, nodes: Int[Tensor, " chosen"]) -> Graph:
    """Return a component as a separate graph, its nodes numbered in the given order."""
    renumber = torch.full((graph.num_nodes,), -1).index_copy(0, nodes, torch.arange(len(nodes)))
    mine = renumber[graph.edge_index[0]] >= 0
    return Graph.from_edges(renumber[graph.edge_index[:, mine]].t(), num_nodes=len(nodes), resistance=graph.resistance[mine])


def _magnitudes(G: BackendGraph, weight: Any) -> Graph:
    """Return the circuit of conductances ``|weight|``."""
    if len(G) < 2:
        raise nx.NetworkXError(f"expected a graph of at least two nodes, got {len(G)}")
    return G.circuit(np.abs(G.conductances(weight)))


def _fiedler(graph: Graph, normalized: bool, method: str) -> tuple[float, np.ndarray]:
    """Return the smallest nonzero eigenvalue, as the energy of its unit eigenvector, and that vector."""
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
    """Return the second eigenvector of ``D^-1/2 L D^-1/2`` by LAPACK, its null vector ``D^1/2 1`` moved above the others."""
    null = 1 / root
    null = null / null.norm()
    matrix = root[:, None] * graph.laplacian() * root + 4 * null[:, None] * null
    return torch.as_tensor(eigh(matrix.numpy(), subset_by_index=(0, 0))[1][:, 0])


def _check_method(method: str) -> None:
    """Raise networkx's error for an unknown method."""
    if method not in ("tracemin", "tracemin_pcg", "tracemin_lu", "lanczos", "lobpcg"):
        raise nx.NetworkXError(f"expected method 'tracemin_pcg', 'tracemin_lu', 'lanczos' or 'lobpcg', got {method!r}")
