"""Nodes as text, a line each, alone or with values: lines checked one by one, so that errors can name them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ohmformer.graph.labelled import NamedGraph
from ohmformer.graph.text_table import Row, is_number, read_rows


def parse_nodes(lines: Iterable[str], name: str, delimiter: str | None, named: NamedGraph) -> list[str]:
    """Read node names, one per line; a first line that is not a node, such as ``node``, is a header."""
    rows = read_rows(lines, name, delimiter)
    if rows and rows[0].cells[:1] == ["node"] and "node" not in named.labels:
        rows = rows[1:]
    for row in rows:
        if len(row.cells) != 1:
            raise ValueError(f"expected one node in line {row.line} of {name}, got {len(row.cells)} cells")
        _check_node(row, name, named)
    if not rows:
        raise ValueError(f"expected at least one node in {name}, got none")
    return [row.cells[0] for row in rows]


def parse_values(
    lines: Iterable[str], name: str, delimiter: str | None, named: NamedGraph
) -> tuple[dict[str, list[float]], list[str]]:
    """Read values of nodes, and the names of their columns: each line has a node and one or more numbers.

    A first line without numbers after its first cell names the columns.
    """
    rows = read_rows(lines, name, delimiter)
    header = bool(rows) and not any(map(is_number, rows[0].cells[1:]))
    width = len(rows[0].cells) if rows else 2
    names = rows[0].cells[1:] if header else ["value"] if width == 2 else [f"value{i}" for i in range(1, width)]
    if len(set(names)) < len(names) or "" in names:
        raise ValueError(f"expected different names of columns in line {rows[0].line} of {name}, got {', '.join(names)}")
    found: dict[str, tuple[int, list[float]]] = {}
    for row in rows[header:]:
        if len(row.cells) != width or width < 2:
            wanted = f"a node and {width - 1} values" if width > 2 else "a node and a value"
            raise ValueError(f"expected {wanted} in line {row.line} of {name}, got {len(row.cells)} cells")
        _check_node(row, name, named)
        for cell in row.cells[1:]:
            if not is_number(cell) or not math.isfinite(float(cell)):
                raise ValueError(f"expected a finite number in line {row.line} of {name}, got {cell!r}")
        values = [float(cell) for cell in row.cells[1:]]
        line, before = found.setdefault(row.cells[0], (row.line, values))
        if before != values:
            raise ValueError(
                f"expected one value for every node, {row.cells[0]!r} has {_shown(before)} in line {line} and "
                f"{_shown(values)} in line {row.line} of {name}"
            )
    if not found:
        raise ValueError(f"expected at least one node with a value in {name}, got none")
    return {node: values for node, (_, values) in found.items()}, names


def _check_node(row: Row, name: str, named: NamedGraph) -> None:
    try:
        named.number(row.cells[0])
    except ValueError as error:
        raise ValueError(f"{error} (line {row.line} of {name})") from None


def _shown(values: list[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
