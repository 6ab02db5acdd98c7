"""Edges that a list holds in both directions: count them, and merge each pair into one edge."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float, Int

AGREEMENT = 16 * float(np.finfo(np.float64).eps)
"""Relative difference up to which two weights are considered equal."""


def count_both_directions(index: Int[np.ndarray, "2 edges"]) -> int:
    """Count the pairs of nodes that are listed both as (u, v) and as (v, u)."""
    key, forward, backward = _split(index)
    return len(np.intersect1d(key[forward], key[backward]))


def merge_directions(
    index: Int[np.ndarray, "2 edges"], weight: Float[np.ndarray, " edges"], where: Callable[[int], str]
) -> Bool[np.ndarray, " edges"]:
    """Return the edges to keep when each (u, v) is merged with a (v, u) of equal weight; edges listed one way are all kept.

    Args:
        index: tails and heads.
        weight: one number per edge; both directions must agree.
        where: how to name an edge in an error, such as ``line 3``.
    """
    key, forward, backward = _split(index)
    both = np.intersect1d(key[forward], key[backward])
    there, back = (_sorted(which[np.isin(key[which], both)], key, weight) for which in (forward, backward))
    if len(there) != len(back) or not np.array_equal(key[there], key[back]):
        counts = [dict(zip(*np.unique(key[which], return_counts=True), strict=True)) for which in (there, back)]
        k = next(k for k in both if counts[0][k] != counts[1][k])
        first = int(there[key[there] == k][0])
        raise ValueError(
            f"expected as many edges in one direction as in the other, the pair of {where(first)} has "
            f"{counts[0][k]} and {counts[1][k]}"
        )
    differs = np.abs(weight[there] - weight[back]) > AGREEMENT * np.abs(weight[there])
    if differs.any():
        i, j = int(there[differs][0]), int(back[differs][0])
        raise ValueError(
            f"expected equal weights in both directions, {where(i)} has {weight[i]:.6g} and {where(j)} has {weight[j]:.6g}"
        )
    stays = np.ones(index.shape[1], dtype=bool)
    stays[back] = False
    return stays


def _split(index: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Number unordered pairs of nodes, and find the edges with ascending and with descending node numbers."""
    low, high = np.minimum(*index).astype(np.int64), np.maximum(*index).astype(np.int64)
    key = low * (int(high.max()) + 1 if high.size else 1) + high
    return key, np.flatnonzero(index[0] < index[1]), np.flatnonzero(index[0] > index[1])


def _sorted(which: np.ndarray, key: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return which[np.lexsort((weight[which], key[which]))]
