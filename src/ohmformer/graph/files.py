"""Graphs from files and tables into files; nothing is unpickled, and nothing is half-written."""

from __future__ import annotations

import csv
import io
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from ohmformer.graph.contents import Contents, read_contents
from ohmformer.graph.edge_list import Nodes, parse_edges, parse_pairs
from ohmformer.graph.extras import check_modules, require
from ohmformer.graph.graphml import parse_graphml
from ohmformer.graph.labelled import NamedGraph
from ohmformer.graph.matpower import parse_case
from ohmformer.graph.matrix_file import read_matrix
from ohmformer.graph.node_list import parse_nodes, parse_values
from ohmformer.graph.power_grid import PowerGrid
from ohmformer.graph.text_table import SEPARATOR_NAMES, decode, find_separator, guess_separator, separator

__all__ = [
    "DELIMITERS",
    "NamedGraph",
    "parse_edges",
    "parse_graph",
    "read_graph",
    "read_pairs",
    "sweep",
    "whole_file",
    "write_table",
    "write_text",
]

DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": None, ".edges": None}
"""Separators of edge lists by suffix; None is any white space."""
LISTS = {"", *DELIMITERS}
"""Kinds of contents that are edge lists; the empty one has an unknown separator."""
MATRICES = (".mtx", ".npz")
POWER = ".m"
TABLES = (".csv", ".tsv", ".npz", ".parquet")
"""File types that :func:`write_table` can write."""
PARTIAL = ".partial-"
"""Prefix of the names of files that are still being written."""


def read_graph(
    path: Path,
    *,
    resistance: str | None = None,
    conductance: str | None = None,
    unit: bool = False,
    sep: str | None = None,
    source: str | None = None,
    target: str | None = None,
    header: bool | None = None,
    symmetrize: bool = False,
) -> NamedGraph:
    """Read a graph from an edge list (.csv, .tsv, .txt, .edges), GraphML, .mtx, a SciPy .npz or a MATPOWER case (.m).

    The arguments are the flags of ``ohmformer solve``, and errors refer to them by those names.

    Args:
        path: the file, compressed by gzip or not; ``-`` is standard input, whose format is detected by its first bytes.
        resistance: column (name, or number from 1) or attribute with resistances; ``"entries"`` for the values of a matrix.
        conductance: the same for conductances.
        unit: give every edge one ohm, whatever the file contains.
        sep: separator of an edge list: a character, ``"tab"`` or ``"space"``; by the suffix unless given.
        source: column of an edge list with the nodes that edges start from; found by the header unless given.
        target: column with the nodes that edges end at.
        header: whether the first line of an edge list names its columns; detected unless given.
        symmetrize: merge edges listed in both directions; treat directed graphs as undirected.
    """
    flags = {"resistance": resistance, "conductance": conductance, "unit": unit, "symmetrize": symmetrize}
    return parse_graph(read_contents(path), sep=sep, source=source, target=target, header=header, **flags)


def parse_graph(
    contents: Contents,
    *,
    resistance: str | None = None,
    conductance: str | None = None,
    unit: bool = False,
    sep: str | None = None,
    source: str | None = None,
    target: str | None = None,
    header: bool | None = None,
    symmetrize: bool = False,
) -> NamedGraph:
    """Read a graph from the bytes of a file, as :func:`read_graph` does."""
    if sum((resistance is not None, conductance is not None, unit)) > 1:
        raise ValueError("expected only one of --resistance, --conductance and --unit, got more")
    kind, name = contents.kind, contents.name
    weights = {"resistance": resistance, "conductance": conductance}
    if kind in LISTS:
        lines, _, delimiter, notes = _lines(contents, sep)
        found = {"source": source, "target": target, "header": header}
        named = parse_edges(lines, name, delimiter, unit=unit, symmetrize=symmetrize, **weights, **found)
        return replace(named, notes=notes + named.notes)
    for flag, given in (("--sep", sep), ("--source", source), ("--target", target), ("--header", header)):
        if given is not None:
            raise ValueError(f"expected {flag} for an edge list only ({', '.join(DELIMITERS)}), got {name}")
    if kind == ".graphml":
        return parse_graphml(contents, **weights, unit=unit, symmetrize=symmetrize)
    if kind in MATRICES:
        return read_matrix(contents, **weights, unit=unit, symmetrize=symmetrize)
    if kind == POWER:
        if resistance is not None or conductance is not None or unit:
            raise ValueError(
                "expected no --resistance, --conductance or --unit for a MATPOWER case, whose reactances are read"
            )
        return PowerGrid.of(parse_case(contents.data.decode("utf-8", "replace"), name))
    known = ", ".join([*DELIMITERS, ".graphml", *MATRICES])
    raise ValueError(f"expected a file of type {known} or {POWER}, packed by gzip or not, got {name}")


def read_pairs(path: Path, named: Nodes, *, sep: str | None = None) -> list[tuple[str, str]]:
    """Read pairs of node names from two columns of a .csv, .tsv, .txt or .edges file."""
    return parse_pairs(*_node_lines(path, "pairs", sep), named)


def read_values(path: Path, named: NamedGraph, *, sep: str | None = None) -> tuple[dict[str, list[float]], list[str]]:
    """Read values of nodes and the names of their columns from a .csv, .tsv, .txt or .edges file."""
    return parse_values(*_node_lines(path, "values of nodes", sep), named)


def read_nodes(path: Path, named: NamedGraph, *, sep: str | None = None) -> list[str]:
    """Read nodes from one column of a .csv, .tsv, .txt or .edges file."""
    return parse_nodes(*_node_lines(path, "nodes", sep), named)


def _node_lines(path: Path, what: str, sep: str | None) -> tuple[list[str], str, str | None]:
    """Return the lines of a file of columns, its name and its separator."""
    contents = read_contents(path, f"a file of {what}")
    if contents.kind not in LISTS:
        raise ValueError(f"expected a file of {what} of type {', '.join(DELIMITERS)}, got {contents.name}")
    return _lines(contents, sep)[:3]


def _lines(contents: Contents, sep: str | None) -> tuple[list[str], str, str | None, tuple[str, ...]]:
    """Return the lines of a text, its name, its separator, and a remark if that is not the usual one of the suffix."""
    name = contents.name
    lines = list(io.StringIO(decode(contents.data, name), newline=""))
    if sep is not None:
        return lines, name, separator(sep), ()
    usual = DELIMITERS[contents.kind] if contents.kind else guess_separator(lines)
    found = find_separator(lines, name, usual)
    note = f"columns of {name} are separated by {SEPARATOR_NAMES[found]}" if contents.kind and found != usual else ""
    return lines, name, found, (note,) if note else ()


def check_table(path: Path) -> None:
    """Raise unless :func:`write_table` can write a file under this name."""
    if path.suffix.lower() not in TABLES:
        raise ValueError(f"expected an output file of type {', '.join(TABLES[:-1])} or {TABLES[-1]}, got {path.name}")
    if path.suffix.lower() == ".parquet":
        check_modules(("pyarrow",), "large")
    check_writable(path)


def check_writable(path: Path) -> None:
    """Raise a ValueError if no file can be written under this name: it is a folder, or its folder is not writable."""
    if path.is_dir():
        raise ValueError(f"expected a file to write, {path} is a folder")
    check_folder(path.parent, f"{path.name} ")


def check_folder(path: Path, what: str = "") -> None:
    """Raise a ValueError if nothing can be written into this folder, which need not exist yet."""
    whole = path.absolute()
    above = next(place for place in (whole, *whole.parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=above):  # permissions alone do not say: root may write into /proc by them
            pass
    except OSError:
        raise ValueError(f"expected a folder to write {what}into, {above} is none that can be written to") from None


def write_table(path: Path, table: Mapping[str, Sequence | np.ndarray]) -> Path:
    """Write columns to .csv, .tsv, .npz or .parquet; a temporary file is renamed once it is complete."""
    check_table(path)
    suffix = path.suffix.lower()
    with whole_file(path) as temporary:
        if suffix == ".npz":
            np.savez(temporary, **{key: np.asarray(values) for key, values in table.items()})  # pyright: ignore[reportArgumentType]
        elif suffix == ".parquet":
            arrow, parquet = require("pyarrow", "large"), require("pyarrow.parquet", "large")
            parquet.write_table(arrow.table({key: np.asarray(values) for key, values in table.items()}), temporary)
        else:
            with temporary.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, delimiter="," if suffix == ".csv" else "\t")
                writer.writerow(table)
                writer.writerows(zip(*(np.asarray(values).tolist() for values in table.values()), strict=True))
    return path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside ``path`` that is renamed to it on success and removed on failure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(path.suffix, PARTIAL, path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> Path:
    """Write a text as UTF-8 by :func:`whole_file`."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def sweep(folder: Path) -> None:
    """Remove temporary files left by an interrupted :func:`whole_file` in a folder that no other process writes to."""
    for path in folder.glob(f"{PARTIAL}*"):
        path.unlink(missing_ok=True)
