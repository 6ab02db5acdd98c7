"""Adjacency matrices in files: Matrix Market (.mtx) and SciPy's sparse .npz. Their values are never ignored silently."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from ohmformer.graph.directions import merge_directions
from ohmformer.graph.graph import Graph
from ohmformer.graph.labelled import NamedGraph

ENTRIES = "entries"
"""What ``--resistance`` and ``--conductance`` say to take a matrix's values."""


def read_matrix(
    path: Path,
    *,
    resistance: str | None = None,
    conductance: str | None = None,
    unit: bool = False,
    symmetrize: bool = False,
) -> NamedGraph:
    """Read a graph from a square matrix; row i is node i, counted from 0.

    Args:
        path: an .mtx or .npz file.
        resistance: ``"entries"`` takes the values as resistances.
        conductance: ``"entries"`` takes them as conductances; an entry of zero is no edge.
        unit: give every edge one ohm, whatever the values are. Without any of the three all values must be 1.
        symmetrize: take entries that stand on one side of the diagonal only, too.
    """
    for flag, word in (("--resistance", resistance), ("--conductance", conductance)):
        if word not in (None, ENTRIES):
            raise ValueError(f"expected {flag} {ENTRIES} for the values of the matrix {path.name}, got {flag} {word}")
    row, column, value, size = _entries(path)
    if resistance is not None:
        _check_distinct(row, column, size, path.name)
    else:
        row, column, value = _summed(row, column, value, size)
    inner = row != column
    kind = "resistance" if resistance is not None else "conductance"
    if resistance is None and conductance is None:
        if not unit and (value[inner] != 1).any():
            i = int(np.flatnonzero(inner & (value != 1))[0])
            raise ValueError(
                f"expected --resistance {ENTRIES}, --conductance {ENTRIES} or --unit (one ohm for every edge) for a matrix "
                f"whose values are not all 1, {path.name} has {value[i]:g} in {_place(row, column, i)}"
            )
        value = np.ones_like(value)
    with np.errstate(divide="ignore", over="ignore"):
        bad = inner & ~((value > 0) & np.isfinite(value) & np.isfinite(1 / value))
    if bad.any():
        i = int(np.flatnonzero(bad)[0])
        where = _place(row, column, i)
        raise ValueError(f"expected every {kind} positive and finite, {path.name} has {value[i]:g} in {where}")
    if not symmetrize:
        _check_both_sides(row, column, size, path.name)
    index = np.stack([row, column])
    stays = merge_directions(index, value, lambda i: f"{_place(row, column, i)} of {path.name}")
    weights = np.where(inner, value, 1.0)[stays]  # self-loops carry no current: Graph counts and drops them
    given: dict[str, Any] = {kind: weights}
    graph = Graph.from_edges(index[:, stays].T, num_nodes=size, **given)
    return NamedGraph(graph, [str(i) for i in range(size)])


def _entries(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Rows, columns and values as they stand in the file, and the number of nodes."""
    import scipy.io
    import scipy.sparse

    try:
        matrix = scipy.io.mmread(path) if path.suffix.lower() == ".mtx" else scipy.sparse.load_npz(path)
    except (ValueError, OSError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"expected a sparse matrix in {path}: {said}") from error
    found: Any = scipy.sparse.coo_array(matrix)
    if found.ndim != 2 or found.shape[0] != found.shape[1]:
        raise ValueError(f"expected a square matrix in {path.name}, got shape {' x '.join(map(str, found.shape))}")
    if np.iscomplexobj(found.data):
        raise ValueError(f"expected real entries in {path.name}, got complex ones")
    return found.row.astype(np.int64), found.col.astype(np.int64), found.data.astype(np.float64), found.shape[0]


def _summed(row: np.ndarray, column: np.ndarray, value: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Entries that stand twice added up, as SciPy reads them, and zeros left out."""
    import scipy.sparse

    matrix = scipy.sparse.coo_array((value, (row, column)), shape=(size, size)).tocsr()
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    summed = matrix.tocoo()
    return summed.row.astype(np.int64), summed.col.astype(np.int64), summed.data


def _check_distinct(row: np.ndarray, column: np.ndarray, size: int, name: str) -> None:
    _, first, count = np.unique(row * size + column, return_index=True, return_counts=True)
    if (count > 1).any():
        i = int(first[count > 1][0])
        raise ValueError(f"expected every resistance once in {name}, {_place(row, column, i)} stands twice")


def _check_both_sides(row: np.ndarray, column: np.ndarray, size: int, name: str) -> None:
    """Refuse an entry that has nothing across the diagonal."""
    alone = np.flatnonzero(~np.isin(row * size + column, column * size + row))
    if len(alone):
        where = _place(row, column, int(alone[0]))
        raise ValueError(
            f"expected a symmetric matrix, {name} has {where} and nothing across the diagonal; "
            "--symmetrize takes such entries as edges"
        )


def _place(row: np.ndarray, column: np.ndarray, i: int) -> str:
    return f"row {row[i]}, column {column[i]} (counted from 0)"
