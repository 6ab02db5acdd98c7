"""True errors of potentials and resistances in 50-digit arithmetic, and random graphs of every kind to take them on."""

from typing import Any

import mpmath
import numpy as np
import torch

from ohmformer import Graph
from ohmformer.graph.families import FAMILIES, disjoint, family
from ohmformer.solve.engines.direct import inverse_of

DIGITS = 50
DENSE = {"complete": 60, "barbell": 60, "erdos-renyi": 300}
"""Families whose edges grow as the square of their nodes, and how many nodes they get at most."""
ORDERS = (20.0, 20.0, 20.0, 10.0, 4.0, 0.0)
"""Orders of magnitude that resistances range over."""


def draw_graph(seed: int, largest: int = 3000) -> tuple[Graph, torch.Tensor]:
    """A graph of 3 nodes to ``largest``, as many small ones as large ones, sometimes in parts, and two demands on it."""
    draw = torch.Generator().manual_seed(seed)
    rng = np.random.default_rng(seed)
    name = sorted(FAMILIES)[seed % len(FAMILIES)]
    most = min(largest, DENSE.get(name, largest))
    nodes = max(int(np.exp(rng.uniform(np.log(3), np.log(most)))), 5 if name in ("csl", "barbell") else 3)
    parts = [family(name, nodes, generator=draw)]
    if rng.random() < 0.2:
        parts += [family("tree", int(rng.integers(3, 12)), generator=draw), Graph.from_edges([], num_nodes=1)]
    graph = disjoint(*parts)
    half = ORDERS[seed // len(FAMILIES) % len(ORDERS)] / 2
    resistance = 10.0 ** torch.as_tensor(rng.uniform(-half, half, graph.num_edges))
    graph = Graph(graph.edge_index, resistance, graph.batch)
    psi = graph.center(torch.as_tensor(rng.standard_normal((graph.num_nodes, 2))))
    u, v = graph.edge_index[:, int(rng.integers(graph.num_edges))]
    psi[:, 1] = 0.0
    psi[u, 1], psi[v, 1] = 1.0, -1.0
    return graph, psi


def true_potentials(graph: Graph, psi: torch.Tensor) -> list[Any]:
    """``L^+ psi`` up to constants, for one demand: potentials refined until they do not change in 25 digits."""
    tail, head = graph.edge_index.tolist()
    component, sizes = graph.components.tolist(), graph.components.bincount().tolist()
    with mpmath.workdps(DIGITS):
        resistance = [mpmath.mpf(r) for r in graph.resistance.tolist()]
        demand = [mpmath.mpf(x) for x in psi.tolist()]
        mean = [mpmath.mpf(0)] * len(sizes)
        for c, x in zip(component, demand, strict=True):
            mean[c] += x / sizes[c]
        demand = [x - mean[c] for c, x in zip(component, demand, strict=True)]
        phi, inverse = [mpmath.mpf(0)] * graph.num_nodes, inverse_of(graph)
        for _ in range(12):
            left = list(demand)
            for u, v, r in zip(tail, head, resistance, strict=True):
                flow = (phi[u] - phi[v]) / r
                left[u] -= flow
                left[v] += flow
            rounded = torch.tensor([[float(x)] for x in left], dtype=torch.float64)
            step = [mpmath.mpf(x) for x in inverse.apply(graph.center(rounded))[:, 0].tolist()]
            phi = [x + y for x, y in zip(phi, step, strict=True)]
            if energy(graph, step) <= energy(graph, phi) * mpmath.mpf(10) ** -50:  # a square
                return phi
    raise AssertionError("refinement does not converge")


def energy(graph: Graph, phi: list[Any]) -> Any:
    """``|phi|_L^2``."""
    with mpmath.workdps(DIGITS):
        edges = zip(*graph.edge_index.tolist(), graph.resistance.tolist(), strict=True)
        return mpmath.fsum((phi[u] - phi[v]) ** 2 / mpmath.mpf(r) for u, v, r in edges)


def by_elimination(graph: Graph, psi: torch.Tensor) -> list[Any]:
    """The same by an LU factorisation in 50 digits, for a few nodes."""
    component = graph.components.tolist()
    grounds = {component.index(c) for c in set(component)}
    kept = [i for i in range(graph.num_nodes) if i not in grounds]
    with mpmath.workdps(DIGITS + 30):
        laplacian = mpmath.zeros(graph.num_nodes)
        for u, v, r in zip(*graph.edge_index.tolist(), graph.resistance.tolist(), strict=True):
            for i, j, sign in ((u, u, 1), (v, v, 1), (u, v, -1), (v, u, -1)):
                laplacian[i, j] += sign / mpmath.mpf(r)
        demand = [mpmath.mpf(x) for x in psi.tolist()]
        for c in set(component):
            nodes = [i for i in range(graph.num_nodes) if component[i] == c]
            mean = mpmath.fsum(demand[i] for i in nodes) / len(nodes)
            for i in nodes:
                demand[i] -= mean
        phi = [mpmath.mpf(0)] * graph.num_nodes
        matrix = mpmath.matrix([[laplacian[i, j] for j in kept] for i in kept])
        for i, x in zip(kept, mpmath.lu_solve(matrix, mpmath.matrix([demand[i] for i in kept])), strict=True):
            phi[i] = x
        return phi


def true_error(graph: Graph, phi: torch.Tensor, psi: torch.Tensor, exact: int = 20) -> float:
    """``|phi - phi*|_L / |phi*|_L`` of the worst demand; graphs of up to ``exact`` nodes by LU in 50 digits."""
    worst = 0.0
    for x, demand in zip(phi.T, psi.T, strict=True):
        right = (by_elimination if graph.num_nodes <= exact else true_potentials)(graph, demand)
        with mpmath.workdps(DIGITS):
            wrong = [a - mpmath.mpf(b) for a, b in zip(right, x.tolist(), strict=True)]
            worst = max(worst, float(mpmath.sqrt(energy(graph, wrong) / energy(graph, right))))
    return worst


def true_resistance(graph: Graph, u: int, v: int, exact: int = 20) -> Any:
    """The effective resistance of two nodes of one component."""
    psi = torch.zeros(graph.num_nodes, dtype=torch.float64)
    psi[u], psi[v] = 1.0, -1.0
    phi = (by_elimination if graph.num_nodes <= exact else true_potentials)(graph, psi)
    with mpmath.workdps(DIGITS):
        return phi[u] - phi[v]
