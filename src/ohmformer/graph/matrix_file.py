"""Adjacency matrices in files: Matrix Market (.mtx) and SciPy's sparse .npz. Their values are never ignored silently."""

from __future__ import annotations

import io
import re
import zipfile
from typing import Any

import numpy as np
from scipy.sparse import coo_array, load_npz

from ohmformer.graph.contents import Contents
from ohmformer.graph.directions import merge_directions
from ohmformer.graph.graph import Graph
from ohmformer.graph.labelled import NamedGraph

ENTRIES = "entries"
"""The value of ``--resistance`` and ``--conductance`` that selects a matrix's values."""
MOST_NODES = 2**28
"""More than any graph that has been collected; numbers for every node then take gigabytes."""
BOM = b"\xef\xbb\xbf"


def read_matrix(
    contents: Contents,
    *,
    resistance: str | None = None,
    conductance: str | None = None,
    unit: bool = False,
    symmetrize: bool = False,
) -> NamedGraph:
    """Read a graph from a square matrix; row i is node i, counted from 0.

    Args:
        contents: the contents of an .mtx or .npz file.
        resistance: ``"entries"`` to take the values as resistances.
        conductance: ``"entries"`` to take them as conductances; a zero entry is no edge.
        unit: give every edge one ohm, whatever the values are. Without any of the three, all values must be 1.
        symmetrize: also accept entries on only one side of the diagonal.
    """
    name = contents.name
    for flag, word in (("--resistance", resistance), ("--conductance", conductance)):
        if word not in (None, ENTRIES):
            raise ValueError(f"expected {flag} {ENTRIES} for the values of the matrix {name}, got {flag} {word}")
    row, column, value, size = _entries(contents)
    if resistance is not None:
        _check_distinct(row, column, size, contents)
    else:
        row, column, value = _summed(row, column, value, size)
    inner = row != column
    kind = "resistance" if resistance is not None else "conductance"
    if resistance is None and conductance is None:
        if not unit and (value[inner] != 1).any():
            i = int(np.flatnonzero(inner & (value != 1))[0])
            raise ValueError(
                f"expected --resistance {ENTRIES}, --conductance {ENTRIES} or --unit (one ohm for every edge) for a matrix "
                f"whose values are not all 1, {name} has {value[i]:g} in {_place(contents, row, column, i)}"
            )
        value = np.ones_like(value)
    with np.errstate(divide="ignore", over="ignore"):
        bad = inner & ~((value > 0) & np.isfinite(value) & np.isfinite(1 / value))
    if bad.any():
        i = int(np.flatnonzero(bad)[0])
        where = _place(contents, row, column, i)
        raise ValueError(f"expected every {kind} positive and finite, {name} has {value[i]:g} in {where}")
    if not symmetrize:
        _check_both_sides(row, column, size, contents)
    index = np.stack([row, column])
    stays = merge_directions(index, value, lambda i: f"{_place(contents, row, column, i)} of {name}")
    weights = np.where(inner, value, 1.0)[stays]  # self-loops carry no current: Graph counts and drops them
    given: dict[str, Any] = {kind: weights}
    graph = Graph.from_edges(index[:, stays].T, num_nodes=size, **given)
    return NamedGraph(graph, [str(i) for i in range(size)])


def _entries(contents: Contents) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Return the rows, columns and values of the file, and the number of nodes."""
    import scipy.io

    name, data = contents.name, contents.data.removeprefix(BOM)
    if contents.kind == ".mtx":
        _check_size(data, name)
    try:
        file = io.BytesIO(data)
        matrix = scipy.io.mmread(file) if contents.kind == ".mtx" else load_npz(file)
    except (ValueError, OSError, KeyError, TypeError, EOFError, OverflowError, zipfile.BadZipFile) as error:
        if contents.kind == ".npz":
            raise ValueError(
                f"expected a sparse matrix as scipy.sparse.save_npz writes it in {name}, it holds none; edges as arrays are "
                "for `ohmformer shard`"
            ) from error
        said = (str(error).splitlines() or [type(error).__name__])[0]
        last = "" if "Line" in said else f" (up to its last line, line {len(data.splitlines())})"
        raise ValueError(f"expected a sparse matrix in {name}{last}: {said}") from error
    if contents.kind == ".mtx" and (line := _long_line(data)):
        raise ValueError(f"expected a row, a column and at most one value in line {line} of {name}, got more")
    found: Any = coo_array(matrix)
    if found.ndim != 2 or found.shape[0] != found.shape[1]:
        where = f"line {_size_line(data)} of {name}" if contents.kind == ".mtx" else name
        raise ValueError(f"expected a square matrix in {where}, got shape {' x '.join(map(str, found.shape))}")
    if found.shape[0] > MOST_NODES:
        raise ValueError(f"expected at most {MOST_NODES} nodes, {name} has {found.shape[0]} rows")
    if np.iscomplexobj(found.data):
        raise ValueError(f"expected real entries in {name} (line 1 of a Matrix Market file says), got complex ones")
    return found.row.astype(np.int64), found.col.astype(np.int64), found.data.astype(np.float64), found.shape[0]


def _check_size(data: bytes, name: str) -> None:
    """Raise a ValueError if the size of a Matrix Market file is too large, before memory is taken for it."""
    content = ((i, line) for i, line in enumerate(io.BytesIO(data), 1) if line.strip() and not line.startswith(b"%"))
    line, cells = next(content, (0, b""))
    rows = re.match(rb"\s*(\d+)\s", cells)
    if rows and int(rows[1]) > MOST_NODES:
        raise ValueError(f"expected at most {MOST_NODES} nodes, line {line} of {name} has {int(rows[1])} rows")


def _summed(row: np.ndarray, column: np.ndarray, value: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Add up duplicate entries, as SciPy does, and drop zeros."""
    matrix = coo_array((value, (row, column)), shape=(size, size)).tocsr()
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    summed = matrix.tocoo()
    return summed.row.astype(np.int64), summed.col.astype(np.int64), summed.data


def _check_distinct(row: np.ndarray, column: np.ndarray, size: int, contents: Contents) -> None:
    _, first, count = np.unique(row * size + column, return_index=True, return_counts=True)
    if (count > 1).any():
        i = int(first[count > 1][0])
        raise ValueError(
            f"expected every resistance once in {contents.name}, {_place(contents, row, column, i)} stands twice"
        )


def _check_both_sides(row: np.ndarray, column: np.ndarray, size: int, contents: Contents) -> None:
    """Raise a ValueError if an entry has no counterpart across the diagonal."""
    alone = np.flatnonzero(~np.isin(row * size + column, column * size + row))
    if len(alone):
        where = _place(contents, row, column, int(alone[0]))
        raise ValueError(
            f"expected a symmetric matrix, {contents.name} has {where} and nothing across the diagonal; "
            "--symmetrize takes such entries as edges"
        )


def _place(contents: Contents, row: np.ndarray, column: np.ndarray, i: int) -> str:
    line = _line(contents.data.removeprefix(BOM), int(row[i]), int(column[i])) if contents.kind == ".mtx" else 0
    return f"row {row[i]}, column {column[i]} (counted from 0{f'; line {line}' if line else ''})"


def _line(data: bytes, row: int, column: int) -> int:
    """Return the line of a Matrix Market file that holds an entry or its transpose, or 0."""
    lines = [(i, line.split()) for i, line in enumerate(data.splitlines(), 1) if line.strip() and not line.startswith(b"%")]
    header = data.partition(b"\n")[0].lower()
    if b"array" in header:
        size, below = int(lines[0][1][0]), b"general" not in header
        order = [(i, j) for j in range(size) for i in range(j if below else 0, size)]
        return lines[1 + order.index((max(row, column), min(row, column)) if below else (row, column))][0]
    at = {(int(cells[0]), int(cells[1])): i for i, cells in reversed(lines[1:])}
    return at.get((row + 1, column + 1), at.get((column + 1, row + 1), 0))


def _size_line(data: bytes) -> int:
    """Return the line of a Matrix Market file that holds the matrix size."""
    return next(i for i, line in enumerate(data.splitlines(), 1) if line.strip() and not line.startswith(b"%"))


def _long_line(data: bytes) -> int:
    """Return the first line of a Matrix Market file with more cells than its header declares, which SciPy ignores; or 0."""
    header, _, rest = data.partition(b"\n")
    cells = 1 if b"array" in header.lower() else 2 if b"pattern" in header.lower() else 3
    cells += b"complex" in header.lower()
    size_line = re.search(rb"(?m)^[ \t]*[^%\s].*$", rest)
    start = 0 if size_line is None else size_line.end()
    found = re.compile(rb"(?m)^[ \t]*\S+(?:[ \t]+\S+){%d}" % cells).search(rest, start)
    return 0 if found is None else rest.count(b"\n", 0, found.start()) + 2
