"""Make the arrays of one part out of the entries that were handed to it.

A part holds its rows of the Laplacian. Its columns are first its own nodes, those without neighbours in other parts first,
then its halo: neighbours in other parts, by part and number. It sends to another part those of its own nodes that have a
neighbour there, which are in the other's halo in the same order.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int
from scipy.sparse import coo_array

from ohmformer.graph.directions import AGREEMENT

MOST = 2**31 - 1
"""Maximum number of entries and of columns of a part, which have 32-bit indices."""


class DirectionsDiffer(ValueError):
    """Raised if the conductances of an edge's two directions, which are to be merged, differ."""

    def __init__(self, ends: tuple[int, int], conductances: tuple[float, float]):
        super().__init__(ends, conductances)
        self.ends, self.conductances = ends, conductances

    def sentence(self, kind: str, name: str) -> str:
        """Return the message for edges of this name that came with weights of this kind."""
        (u, v), weights = self.ends, [x if kind == "conductance" else 1 / x for x in self.conductances]
        return (
            f"expected equal {kind}s in both directions, got {weights[0]:.6g} from node {u} to {v} and "
            f"{weights[1]:.6g} from {v} to {u} in {name}"
        )


def entry_type(nodes: int, weighted: bool) -> np.dtype:
    """Return the dtype of a part's input entries: an edge's conductance, negative if listed from column to row."""
    index = np.int32 if nodes <= MOST else np.int64
    return np.dtype([("row", index), ("column", index), ("value", np.float64 if weighted else np.int8)])


def part_arrays(
    p: int, parts: int, entries: np.ndarray, owner: Int[np.ndarray, " nodes"], symmetrize: bool
) -> tuple[dict[str, np.ndarray], int]:
    """Build the arrays of part p, by name; also count the entries whose edge is listed in both directions.

    ``nodes`` and ``halo`` are node numbers, ``start``, ``column`` and ``value`` the rows of L, ``sent`` the rows of which
    ``sends[q]`` go to part q, in order of q; ``receives[q]`` of the halo come from there. The first ``interior`` rows have
    no neighbour in other parts.
    """
    own, far = np.flatnonzero(owner == p), owner[entries["column"]] != p
    row = np.searchsorted(own, entries["row"])
    outside = np.zeros(len(own), dtype=bool)
    outside[row[far]] = True
    order = np.argsort(outside, kind="stable")
    place = _inverse(order)
    halo, which = np.unique(entries["column"][far], return_inverse=True)
    by_part = np.argsort(owner[halo], kind="stable")
    width = len(own) + len(halo)
    if max(len(entries) + len(own), width) > MOST:
        raise ValueError(
            f"expected at most {MOST} entries in a part, part {p} has {len(entries) + len(own)}: take more parts"
        )
    row, column = place[row], np.empty(len(row), dtype=np.int32)
    column[~far] = place[np.searchsorted(own, entries["column"][~far])]
    column[far] = len(own) + _inverse(by_part)[which]
    to, sent = np.divmod(np.unique(owner[entries["column"][far]] * np.int64(len(own)) + row[far]), max(len(own), 1))
    del far, which
    numbers = np.concatenate([own[order], halo[by_part]])
    start, column, value, both = _laplacian(row, column, entries, numbers, len(own), symmetrize)
    return {
        "nodes": own[order], "halo": halo[by_part].astype(np.int64), "start": start, "column": column, "value": value,
        "sent": sent.astype(np.int32), "sends": np.bincount(to, minlength=parts),
        "receives": np.bincount(owner[halo], minlength=parts), "interior": np.array([len(own) - int(outside.sum())]),
    }, both  # fmt: skip


def _inverse(order: np.ndarray) -> Int[np.ndarray, " n"]:
    place = np.empty(len(order), dtype=np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    return place


def _laplacian(
    row: np.ndarray, column: np.ndarray, entries: np.ndarray, nodes: np.ndarray, rows: int, symmetrize: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Return rows of the Laplacian by start, column and value, with full diagonal; count the entries listed both ways.

    ``nodes`` are the numbers of the nodes of all columns, the first of which are those of the ``rows`` rows.
    """
    diagonal = np.arange(rows, dtype=np.int32)
    places = np.concatenate([row, diagonal]), np.concatenate([column, diagonal])
    listed = np.zeros(len(entries) + rows, dtype=np.complex128)  # from row to column, and from column to row
    given, forward = np.abs(entries["value"]).astype(np.float64), entries["value"] > 0
    listed.real[: len(entries)], listed.imag[: len(entries)] = np.where(forward, given, 0), np.where(forward, 0, given)
    matrix = coo_array((listed, places), shape=(rows, len(nodes))).tocsr()
    del listed, places, given, forward
    matrix.sum_duplicates()
    data = np.asarray(matrix.data, dtype=np.complex128)
    there, back = data.real, data.imag
    both = (there > 0) & (back > 0)
    value = there + back
    if symmetrize:
        differs = both & (np.abs(there - back) > AGREEMENT * there)
        if differs.any():
            i = int(differs.argmax())
            u, v = nodes[np.searchsorted(matrix.indptr, i, "right") - 1], nodes[matrix.indices[i]]
            raise DirectionsDiffer((int(u), int(v)), (float(there[i]), float(back[i])))
        value[both] = there[both]
    begin = matrix.indptr[:-1]
    degree = np.add.reduceat(value, begin) if len(begin) else value
    value = -value
    value[matrix.indices == np.repeat(diagonal, np.diff(matrix.indptr))] = degree
    return matrix.indptr.astype(np.int32), matrix.indices.astype(np.int32), value, int(both.sum())
