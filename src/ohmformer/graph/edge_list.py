"""Edge lists as text: which columns hold nodes and weights, and one sentence with file and line for anything else.

The first line is a header if ``header`` says so, if a column is requested by name, if it holds two words that usually name
nodes (:data:`NODE_WORDS`), or if it has words where all lines below have numbers. If the rest of the file contradicts this
(words of a header are nodes further down, or those of an edge occur nowhere else), the caller must pass ``header``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ohmformer.graph.directions import count_both_directions, merge_directions
from ohmformer.graph.graph import Graph
from ohmformer.graph.labelled import NamedGraph
from ohmformer.graph.text_table import Row, is_number, read_rows

NODE_WORDS = (
    ("source", "target"), ("from", "to"), ("u", "v"), ("node1", "node2"), ("head", "tail"), ("src", "dst"),
    ("origin", "destination"), ("sourceid", "targetid"), ("fromnode", "tonode"), ("fromnodeid", "tonodeid"),
    ("nodea", "nodeb"), ("vertex1", "vertex2"),
)  # fmt: skip
"""Usual names of the two node columns, in lower case, without blanks, hyphens and underscores."""
WEIGHT_WORDS = {"resistance", "conductance", "weight", "ohm", "ohms", "siemens"}
"""Names of columns that do not hold nodes."""


@dataclass(frozen=True)
class Columns:
    """Indices of the columns to read, from 0."""

    names: list[str] | None
    """The cells of the header, if there is one."""
    u: int
    v: int
    weight: int | None

    def title(self, column: int) -> str:
        """Return the name of a column for messages."""
        return repr(self.names[column]) if self.names and column < len(self.names) else str(column + 1)


def parse_edges(
    lines: Iterable[str],
    name: str,
    delimiter: str | None,
    *,
    resistance: str | None = None,
    conductance: str | None = None,
    unit: bool = False,
    source: str | None = None,
    target: str | None = None,
    header: bool | None = None,
    symmetrize: bool = False,
) -> NamedGraph:
    """Read a graph from the lines of an edge list.

    Args:
        lines: the lines, with or without line ends.
        name: name of the file in errors.
        delimiter: a character, or None for any white space.
        resistance: column of resistances, by name or by number from 1; without weights every edge has one ohm.
        conductance: column of conductances instead.
        unit: do not warn about columns that are not read.
        source: column of the nodes that edges start from; found by the words of the header unless given.
        target: column of the nodes that edges end at.
        header: whether the first line names the columns; detected unless given.
        symmetrize: merge (u, v) and (v, u) into one edge; they must agree.
    """
    if resistance is not None and conductance is not None:
        raise ValueError("expected --resistance or --conductance, got both")
    if (source is None) != (target is None):
        raise ValueError(f"expected both --source and --target, got only --{'source' if target is None else 'target'}")
    lines = list(lines)
    rows = read_rows(lines, name, delimiter)
    none = f"expected at least one edge in {name}, got none up to line {max(len(lines), 1)}, its last"
    if not rows:
        raise ValueError(none)
    weight = resistance if conductance is None else conductance
    columns = find_columns(rows, name, weight, source, target, header)
    width = len(rows[0].cells)
    rows = rows if columns.names is None else rows[1:]
    if not rows:
        raise ValueError(none)
    number: dict[str, int] = {}
    ends: list[int] = []
    for row in rows:
        _check_cells(row, columns, width, name)
        ends += (number.setdefault(row.cells[column], len(number)) for column in (columns.u, columns.v))
    index = np.array(ends, dtype=np.int64).reshape(-1, 2).T
    kind = "resistance" if conductance is None else "conductance"
    weights = np.ones(len(rows)) if columns.weight is None else _weights(rows, columns, kind, name)
    notes = () if unit else _unread(columns, width, name)
    if symmetrize:
        stays = merge_directions(index, weights, lambda i: f"line {rows[i].line} of {name}")
        index, weights = index[:, stays], weights[stays]
    elif twice := count_both_directions(index):
        notes += (
            f"{twice} {'pair stands' if twice == 1 else 'pairs stand'} in both directions in {name} and "
            f"{'counts' if twice == 1 else 'count'} as parallel edges; --symmetrize makes each one edge",
        )
    given: dict[str, Any] = {kind: weights}
    graph = Graph.from_edges(index.T, num_nodes=len(number), **given)
    return NamedGraph(graph, list(number), notes)


@runtime_checkable
class Nodes(Protocol):
    """Nodes with names, of a graph that need not be in memory."""

    @property
    def labels(self) -> Container[str]:
        """The names."""
        ...

    def number(self, label: str, /) -> int:
        """Return the number of the node with this name, or raise a ValueError."""
        ...


def parse_pairs(lines: Iterable[str], name: str, delimiter: str | None, named: Nodes) -> list[tuple[str, str]]:
    """Read pairs of node names, one per line; a first line of usual words (source, target) that are no nodes is a header."""
    rows = read_rows(lines, name, delimiter)
    if rows and _node_columns(rows[0].cells) and not any(cell in named.labels for cell in rows[0].cells):
        rows = rows[1:]
    for row in rows:
        if len(row.cells) != 2:
            raise ValueError(f"expected two nodes in line {row.line} of {name}, got {len(row.cells)} cells")
        for label in row.cells:
            try:
                named.number(label)
            except ValueError as error:
                raise ValueError(f"{error} (line {row.line} of {name})") from None
    if not rows:
        raise ValueError(f"expected at least one pair of nodes in {name}, got none")
    return [(row.cells[0], row.cells[1]) for row in rows]


def find_columns(
    rows: Sequence[Row], name: str, weight: str | None, source: str | None, target: str | None, header: bool | None
) -> Columns:
    """Find the columns of nodes and weights, and whether the first row names them."""
    first = rows[0].cells
    asked = {"--source": source, "--target": target, "weights": weight}
    by_name = [x for x in asked.values() if x is not None and not _is_column_number(x, len(first))]
    if by_name and header is False:
        raise ValueError(
            f"expected a column number from 1 to {len(first)} with --no-header, got {by_name[0]!r} "
            f"(line {rows[0].line} of {name})"
        )
    for wanted in by_name:
        if first.count(wanted) != 1:
            often = "more than once: " if wanted in first else ""
            raise ValueError(
                f"expected a column {wanted!r} in line {rows[0].line} of {name}, it has "
                f"{often}{', '.join(first) or 'nothing'}"
            )
    place = {key: None if x is None else first.index(x) if x in by_name else int(x) - 1 for key, x in asked.items()}
    if header is None:
        header = bool(by_name) or _is_header(rows, name, place["--source"], place["--target"])
    u, v = place["--source"], place["--target"]
    if u is None or v is None:
        u, v = _named_nodes(rows[0], place["weights"], name) if header else (0, 1)
    if len({u, v, place["weights"]}) < 3:
        got = f"{u + 1}, {v + 1} and {weight} of line {rows[0].line} of {name}"
        raise ValueError(f"expected three different columns for two nodes and weights, got {got}")
    return Columns(first if header else None, u, v, place["weights"])


def _is_column_number(text: str, width: int) -> bool:
    return text.isdecimal() and 1 <= int(text) <= width


def _node_columns(names: Sequence[str]) -> list[tuple[int, int]]:
    """Return the columns named by a usual pair of words, each word once; more than one pair is ambiguous."""
    plain = [re.sub(r"[\s_-]", "", cell.lower()) for cell in names]
    found = (pair for pair in NODE_WORDS if all(plain.count(word) == 1 for word in pair))
    return [(plain.index(u), plain.index(v)) for u, v in found]


def _named_nodes(row: Row, weight: int | None, name: str) -> tuple[int, int]:
    """Return the node columns of a header: usual words, or the only two columns that are not weights."""
    names = row.cells
    known = _node_columns(names)
    if len(known) == 1:
        return known[0]
    left = [i for i, cell in enumerate(names) if i != weight and cell.lower() not in WEIGHT_WORDS]
    if known or len(left) != 2:
        raise ValueError(
            "expected --source COLUMN and --target COLUMN to name the two columns of nodes, "
            f"line {row.line} of {name} has {', '.join(names)}"
        )
    return left[0], left[1]


def _is_header(rows: Sequence[Row], name: str, u: int | None, v: int | None) -> bool:
    """Tell whether the first row names columns; raise a ValueError if it might also be an edge."""
    first, below = rows[0].cells, rows[1:]
    known = _node_columns(first)
    words = [i for i, cell in enumerate(first) if not is_number(cell)]
    above = {i for i in words if below and all(i < len(row.cells) and is_number(row.cells[i]) for row in below)}
    looks = bool(known) or above >= {0, 1} or max(above, default=0) > 1
    nodes = known[0] if known else ((0, 1) if u is None or v is None else (u, v))
    ends = {first[i] for i in nodes if i < len(first)}
    if "" in ends or (not looks and any(is_number(end) for end in ends)):
        return False
    again = any(row.cells[i] in ends for row in below for i in nodes if i < len(row.cells))
    if looks == again and nodes[0] != nodes[1] and max(nodes) < len(first):
        raise ValueError(
            f"expected --header or --no-header, line {rows[0].line} of {name} ({', '.join(first)}) may name columns or "
            "be an edge"
        )
    return looks


def _check_cells(row: Row, columns: Columns, width: int, name: str) -> None:
    """Raise a ValueError if a row has too few or too many cells, or an empty node name."""
    cells, needed = row.cells, max(columns.u, columns.v, -1 if columns.weight is None else columns.weight) + 1
    if len(cells) < needed:
        raise ValueError(f"expected {needed} columns in line {row.line} of {name}, got {len(cells)}")
    if len(cells) > width and any(cells[width:]):
        raise ValueError(
            f"expected at most {width} columns in line {row.line} of {name}, as in its first line, got {len(cells)}"
        )
    for column in (columns.u, columns.v):
        if not cells[column]:
            raise ValueError(f"expected a node in column {columns.title(column)} of line {row.line} of {name}, got nothing")


def _weights(rows: Sequence[Row], columns: Columns, kind: str, name: str) -> np.ndarray:
    """Return positive, finite weights, or raise a ValueError that names line, column and file."""
    assert columns.weight is not None
    weights = np.empty(len(rows))
    for i, row in enumerate(rows):
        cell = row.cells[columns.weight]
        value = float(cell) if is_number(cell) else math.nan
        if not (0 < value < math.inf and 1 / value < math.inf):
            number = "a number" if not is_number(cell) else f"a positive and finite {kind}"
            point = "; decimals have a point" if re.fullmatch(r"-?\d+,\d+", cell) else ""
            title = columns.title(columns.weight)
            raise ValueError(f"expected {number} in line {row.line} of {name}, column {title}, got {cell!r}{point}")
        weights[i] = value
    return weights


def _unread(columns: Columns, width: int, name: str) -> tuple[str, ...]:
    """Return a remark if there are columns that may be weights and no weights were requested."""
    left = [i for i in range(width) if i not in (columns.u, columns.v)]
    if columns.weight is not None or not left:
        return ()
    example = columns.names[left[0]] if columns.names else str(left[0] + 1)
    titles = ", ".join(columns.title(i) for i in left)
    return (
        f"every edge has one ohm: column{'s' if len(left) > 1 else ''} {titles} of {name} "
        f"{'are' if len(left) > 1 else 'is'} not read (--resistance {example} or --conductance {example} would)",
    )
