"""The kernels of ``native/src/selected.c`` in plain NumPy, node by node, for where there is no compiled library.

Tangents use a complex step: conductances get an imaginary part so small that its square vanishes.
"""

from __future__ import annotations

import heapq

import numpy as np
from jaxtyping import Bool, Float, Int

STEP = 1e-100


def order_and_pattern(
    start: Int[np.ndarray, " nodes_and_one"],
    column: Int[np.ndarray, " entries"],
    most: float,
    kept: Bool[np.ndarray, " nodes"] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Compute a minimum-degree elimination order, the starts of the factor's columns, and their rows.

    Return None once the sum of squared column counts is above ``most``. Kept nodes come last; the rows of their columns are
    their neighbours in the end.
    """
    nodes, work = len(start) - 1, 0.0
    joined = [set(column[start[i] : start[i + 1]].tolist()) for i in range(nodes)]
    stays = np.zeros(nodes, dtype=bool) if kept is None else kept
    queue = [(len(joined[i]), i) for i in range(nodes) if not stays[i]]
    heapq.heapify(queue)
    order, rank, columns = [], np.full(nodes, -1, dtype=np.int32), []
    while queue:
        degree, p = heapq.heappop(queue)
        if rank[p] >= 0 or degree != len(joined[p]):
            continue  # stale entry of the queue
        rank[p] = len(order)
        order.append(p)
        columns.append(list(joined[p]))
        work += degree**2
        if work > most:
            return None
        for i in joined[p]:
            joined[i] |= joined[p]
            joined[i] -= {i, p}
            if not stays[i]:
                heapq.heappush(queue, (len(joined[i]), i))
    last = np.nonzero(stays)[0].tolist()
    rank[last] = np.arange(len(order), nodes)
    order += last
    columns += [[i for i in joined[p] if i > p] for p in last]
    first = np.concatenate([[0], np.cumsum([len(c) for c in columns], dtype=np.int64)]).astype(np.int64)
    rows = [np.sort(rank[c]) for c in columns if c]
    row = np.concatenate(rows) if rows else np.empty(0, dtype=np.int32)
    return np.array(order, dtype=np.int32), first, row.astype(np.int32)


def factorise(
    start: Int[np.ndarray, " nodes_and_one"],
    column: Int[np.ndarray, " neighbours"],
    value: Float[np.ndarray, " neighbours"],
    tangent: Float[np.ndarray, " neighbours"] | None,
    first: Int[np.ndarray, " nodes_and_one"],
    row: Int[np.ndarray, " entries"],
    eliminated: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Compute fractions and pivots of the factor, and their tangents; columns of kept nodes hold conductances."""
    nodes = len(first) - 1
    number = value if tangent is None else value + 1j * STEP * tangent
    entries, pivot = np.zeros(len(row), dtype=number.dtype), np.zeros(nodes, dtype=number.dtype)
    for j in range(nodes):
        own = slice(start[j], start[j + 1])
        later = column[own] > j
        entries[first[j] + np.searchsorted(row[first[j] : first[j + 1]], column[own][later])] += number[own][later]
    for j in range(eliminated):
        rows, c = row[first[j] : first[j + 1]], entries[first[j] : first[j + 1]]
        pivot[j] = c.sum()
        if not len(rows):
            continue
        fraction = c / pivot[j]
        for at, k in enumerate(rows[:-1].tolist()):
            entries[_places(first, row, k, rows[at + 1 :])] += c[at] * fraction[at + 1 :]
        entries[first[j] : first[j + 1]] = fraction
    if tangent is None:
        return entries, pivot, None, None
    return entries.real.copy(), pivot.real.copy(), entries.imag / STEP, pivot.imag / STEP


def sweep(
    first: Int[np.ndarray, " nodes_and_one"],
    row: Int[np.ndarray, " entries"],
    fraction: Float[np.ndarray, " entries"],
    pivot: Float[np.ndarray, " nodes"],
    x: Float[np.ndarray, "nodes k"],
    *,
    only_energy: bool,
) -> Float[np.ndarray, "nodes k"]:
    """Solve for demands x that sum to zero on every component, zero at its ground; or compute their energy per node."""
    x, nodes = x.copy(), len(first) - 1
    columns = [slice(first[j], first[j + 1]) for j in range(nodes)]
    for j, own in enumerate(columns):
        x[row[own]] += fraction[own, None] * x[j]
        x[j] = x[j] * (x[j] if only_energy else 1.0) / pivot[j] if own.start < own.stop else 0.0
    for j in range(0 if only_energy else nodes)[::-1]:
        x[j] += fraction[columns[j]] @ x[row[columns[j]]]
    return x


def select(
    first: Int[np.ndarray, " nodes_and_one"],
    row: Int[np.ndarray, " entries"],
    fraction: np.ndarray,
    d_fraction: np.ndarray | None,
    pivot: np.ndarray,
    d_pivot: np.ndarray | None,
    given: np.ndarray,
    eliminated: int,
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Compute effective resistances on the pattern, their tangents, and resistances between nodes and grounds.

    Those between kept nodes are given.
    """
    nodes, f, d = len(first) - 1, fraction, pivot
    if d_fraction is not None and d_pivot is not None:
        f, d = fraction + 1j * STEP * d_fraction, pivot + 1j * STEP * d_pivot
    resistance, ground = given.astype(f.dtype), np.zeros(nodes, dtype=f.dtype)
    for j in range(eliminated - 1, -1, -1):
        own = slice(first[j], first[j + 1])
        rows, part = row[own], f[own]
        if not len(rows):
            continue
        sums = np.zeros(len(rows), dtype=f.dtype)
        for at, k in enumerate(rows[:-1].tolist()):
            between = resistance[_places(first, row, k, rows[at + 1 :])]
            sums[at] += part[at + 1 :] @ between
            sums[at + 1 :] += part[at] * between
        q = part @ sums / 2
        ground[j] = 1 / d[j] + part @ ground[rows] - q
        resistance[own] = 1 / d[j] + (sums - q)
    if d_fraction is None:
        return resistance, None, ground
    return resistance.real.copy(), resistance.imag / STEP, ground.real.copy()


def _places(first: np.ndarray, row: np.ndarray, k: int, rows: np.ndarray) -> np.ndarray:
    """Return the places of these rows in column k of the factor."""
    return first[k] + np.searchsorted(row[first[k] : first[k + 1]], rows)
