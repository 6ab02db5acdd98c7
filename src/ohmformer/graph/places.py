"""Where to draw the nodes of a graph: circles, rows, and least stress for everything else. One edge is about 100 long."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float
from scipy.sparse import coo_array
from scipy.sparse.csgraph import shortest_path

from ohmformer.graph.graph import Graph

Place = tuple[float, float]
UNIT = 100.0
ROUNDS = 60
LEAST, MOST_STRETCH = 0.6, 4.0
"""If nodes are closer than this many edges the picture is stretched, at most by the second number."""


def circle(n: int) -> list[Place]:
    """Place nodes on a circle, the first one at the top."""
    radius = UNIT / (2 * math.sin(math.pi / n)) if n > 2 else UNIT / 2
    turns = [2 * math.pi * i / max(n, 1) for i in range(n)]
    return [(radius * math.sin(t), -radius * math.cos(t)) for t in turns]


def rows(n: int, width: int, *, turning: bool = False) -> list[Place]:
    """Place nodes in rows from left to right; ``turning`` reverses every other row, so that paths stay connected."""
    cells = [divmod(i, width) for i in range(n)]
    return [(UNIT * (width - 1 - x if turning and y % 2 else x), UNIT * y) for y, x in cells]


def least_stress(graph: Graph) -> list[Place]:
    """Place nodes so that distances in the plane approximate distances in the graph, one component after the other.

    Stress majorisation: with weights ``d_ij^-2`` every iteration solves ``L_w x = L_z z``, which never increases the stress.
    It starts from classical scaling, so the result is deterministic.
    """
    n, label = graph.num_nodes, graph.components.cpu().numpy()
    tail, head = graph.edge_index.cpu().numpy()
    adjacency = coo_array((np.ones(len(tail)), (tail, head)), shape=(n, n)).tocsr()
    distances = shortest_path(adjacency, directed=False, unweighted=True)
    places, left = np.zeros((n, 2)), 0.0
    for component in range(graph.num_components):
        mine = np.flatnonzero(label == component)
        points = UNIT * _scaled(distances[np.ix_(mine, mine)])
        places[mine] = points - points.min(axis=0) + [left, 0.0]
        left = places[mine, 0].max() + UNIT
    return [(float(x), float(y)) for x, y in places]


def _scaled(distance: Float[np.ndarray, "m m"]) -> Float[np.ndarray, "m 2"]:
    """Compute points in the plane from a matrix of distances, with the largest extent from left to right."""
    m = len(distance)
    if m == 1:
        return np.zeros((1, 2))
    centring = np.eye(m) - 1 / m
    values, vectors = np.linalg.eigh(-centring @ distance**2 @ centring / 2)
    points = vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 1e-3))
    points += 1e-3 * np.column_stack([np.cos(np.arange(m)), np.sin(np.arange(m))])  # alike nodes must not coincide
    away = distance + np.eye(m)
    weight = (1 - np.eye(m)) / away**2
    inverse = np.linalg.pinv(np.diag(weight.sum(1)) - weight)
    for _ in range(ROUNDS):
        gap = np.linalg.norm(points[:, None] - points[None], axis=-1)
        ratio = weight * distance / np.maximum(gap, 1e-9)
        points = inverse @ ((np.diag(ratio.sum(1)) - ratio) @ points)
    points -= points.mean(axis=0)
    nearest = np.linalg.norm(points[:, None] - points[None] + np.eye(m)[..., None] * m, axis=-1).min()
    points *= min(max(LEAST / nearest, 1.0), MOST_STRETCH)
    return points @ np.linalg.svd(points, full_matrices=False)[2].T
