"""Which part every node belongs to: by ranges of numbers, by clusters that a stream of edges forms, or by METIS."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec

import numpy as np
import torch
from jaxtyping import Int
from scipy.sparse import coo_array

from ohmformer import native
from ohmformer.graph.extras import require
from ohmformer.solve.distributed.streams import Chunk

RULES = ("auto", "metis", "stream", "ranges")
METIS_EDGES = 2**25
"""Edges up to which ``"auto"`` uses METIS: in four parts two million edges took 0.4 microseconds and 55 bytes an edge on a
grid, 2.1 microseconds and 193 bytes on a random graph, so this many take a minute and 6 GB at worst."""
CLUSTERS = 8
"""Minimum number of clusters per part."""

Owner = Int[np.ndarray, " nodes"]
"""The part of every node, as int16."""


def by_ranges(degree: Int[np.ndarray, " nodes"], parts: int) -> Owner:
    """Give every part consecutive nodes, with about equal numbers of nodes and edges."""
    return _cut(degree + 1, parts)


def _cut(weight: np.ndarray, parts: int) -> Owner:
    """Group consecutive items into parts of about equal weight."""
    middle = np.cumsum(weight, dtype=np.float64) - weight / 2
    total = float(weight.sum())
    return np.minimum(middle * (parts / total) if total else middle, parts - 1).astype(np.int16)


def by_stream(chunks: Iterable[Chunk], degree: Int[np.ndarray, " nodes"], parts: int) -> Owner:
    """Form clusters in one pass over the edges, and assign them to parts in the order of their numbers.

    Every node starts as a cluster; for every edge the end in the smaller cluster moves to the other one, unless that is full
    (Hollocou, Maudet, Bonald and Lelarge's streaming clustering, with known degrees and a size limit).
    """
    cluster, volume = np.arange(len(degree)), degree.copy()
    most = int(degree.sum()) // (CLUSTERS * parts) + 1
    for chunk in chunks:
        arrays = (torch.as_tensor(x) for x in (chunk.tail, chunk.head, degree, cluster, volume))
        if native.active() is not None:
            native.call("ohm_cluster", len(chunk.tail), most, *arrays)
        else:
            _cluster(chunk, degree, cluster, volume, most)
    weight = np.bincount(cluster, degree + 1, len(degree))
    return _cut(weight, parts)[cluster]


def _cluster(chunk: Chunk, degree: np.ndarray, cluster: np.ndarray, volume: np.ndarray, most: int) -> None:
    """Compute the same as the kernel ``ohm_cluster``."""
    for u, v in zip(chunk.tail.tolist(), chunk.head.tolist(), strict=True):
        a, b = cluster[u], cluster[v]
        if a == b:
            continue
        if volume[a] > volume[b]:
            u, a, b = v, b, a
        if volume[b] + degree[u] <= most:
            volume[a] -= degree[u]
            volume[b] += degree[u]
            cluster[u] = b


def by_metis(chunks: Iterable[Chunk], nodes: int, parts: int) -> Owner:
    """Partition by METIS, with few edges between parts; the graph is held in memory."""
    pymetis = require("pymetis", "shards")
    if parts == 1 or not nodes:
        return np.zeros(nodes, dtype=np.int16)
    if parts > nodes:
        raise ValueError(f"expected at most as many parts as nodes for METIS, got {parts} parts of {nodes} nodes")
    ends = [np.stack([chunk.tail, chunk.head]).astype(np.int32) for chunk in chunks]
    tail, head = np.concatenate(ends, axis=1) if ends else np.zeros((2, 0), dtype=np.int32)
    both = np.concatenate([tail, head]), np.concatenate([head, tail])
    matrix = coo_array((np.ones(len(both[0]), dtype=np.int8), both), shape=(nodes, nodes)).tocsr()
    matrix.setdiag(0)
    matrix.eliminate_zeros()
    _, owner = pymetis.part_graph(parts, pymetis.CSRAdjacency(matrix.indptr, matrix.indices))
    return np.asarray(owner, dtype=np.int16)


def have_metis() -> bool:
    """Return whether METIS is installed."""
    return find_spec("pymetis") is not None


def cuts(chunks: Iterable[Chunk], owners: Sequence[Owner]) -> list[int]:
    """Count the edges whose ends are in different parts, for each of several partitions."""
    found = [0] * len(owners)
    for chunk in chunks:
        for i, owner in enumerate(owners):
            found[i] += int((owner[chunk.tail] != owner[chunk.head]).sum())
    return found
