"""Graphs from files and tables into files; nothing is unpickled, and nothing is half-written."""

from __future__ import annotations

import csv
import io
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ohmformer.graph.directions import merge_directions
from ohmformer.graph.edge_list import parse_edges, parse_pairs
from ohmformer.graph.extras import check_modules, require
from ohmformer.graph.graph import Graph
from ohmformer.graph.labelled import NamedGraph
from ohmformer.graph.matrix_file import read_matrix
from ohmformer.graph.node_list import parse_nodes, parse_values
from ohmformer.graph.power_grid import PowerGrid
from ohmformer.graph.text_table import check_separator, decode, is_number, separator

__all__ = ["DELIMITERS", "NamedGraph", "parse_edges", "read_graph", "read_pairs", "sweep", "whole_file", "write_table"]

DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": None, ".edges": None}
"""Edge lists by suffix; None is any white space."""
MATRICES = (".mtx", ".npz")
POWER = ".m"
TABLES = (".csv", ".tsv", ".npz", ".parquet")
"""What :func:`write_table` writes."""
PARTIAL = ".partial-"
"""How names of files begin that are not whole yet."""


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

    The arguments are the flags of ``ohmformer solve``, and errors call them so.

    Args:
        path: the file.
        resistance: column (name, or number from 1) or attribute with resistances; ``"entries"`` for a matrix's values.
        conductance: the same for conductances.
        unit: give every edge one ohm, whatever the file holds.
        sep: separator of an edge list: a character, ``"tab"`` or ``"space"``; by the suffix unless given.
        source: column of an edge list that edges run from; found by the header unless given.
        target: column that edges run to.
        header: whether the first line of an edge list names its columns; found out unless given.
        symmetrize: merge edges listed in both directions; take directed graphs as undirected ones.
    """
    if sum((resistance is not None, conductance is not None, unit)) > 1:
        raise ValueError("expected only one of --resistance, --conductance and --unit, got more")
    if not path.is_file():
        raise ValueError(f"expected a file, {path} is none")
    suffix = path.suffix.lower()
    weights = {"resistance": resistance, "conductance": conductance}
    if suffix not in DELIMITERS:
        for flag, given in (("--sep", sep), ("--source", source), ("--target", target), ("--header", header)):
            if given is not None:
                raise ValueError(f"expected {flag} for an edge list only ({', '.join(DELIMITERS)}), got {path.name}")
    if suffix in DELIMITERS:
        lines, delimiter = _lines(path, sep)
        found = {"source": source, "target": target, "header": header}
        return parse_edges(lines, path.name, delimiter, unit=unit, symmetrize=symmetrize, **weights, **found)
    if suffix == ".graphml":
        return _read_graphml(path, **weights, unit=unit, symmetrize=symmetrize)
    if suffix in MATRICES:
        return read_matrix(path, **weights, unit=unit, symmetrize=symmetrize)
    if suffix == POWER:
        if resistance is not None or conductance is not None or unit:
            raise ValueError(
                "expected no --resistance, --conductance or --unit for a MATPOWER case, whose reactances are read"
            )
        return PowerGrid.of(path)
    known = ", ".join([*DELIMITERS, ".graphml", *MATRICES])
    raise ValueError(f"expected a file of type {known} or {POWER}, got {path.name}")


def read_pairs(path: Path, named: NamedGraph, *, sep: str | None = None) -> list[tuple[str, str]]:
    """Read pairs of node names from two columns of a .csv, .tsv, .txt or .edges file."""
    return parse_pairs(*_node_lines(path, "pairs", sep), named)


def read_values(path: Path, named: NamedGraph, *, sep: str | None = None) -> tuple[dict[str, list[float]], list[str]]:
    """Read nodes and their values, and what the columns of these are called, from a .csv, .tsv, .txt or .edges file."""
    return parse_values(*_node_lines(path, "values of nodes", sep), named)


def read_nodes(path: Path, named: NamedGraph, *, sep: str | None = None) -> list[str]:
    """Read nodes from one column of a .csv, .tsv, .txt or .edges file."""
    return parse_nodes(*_node_lines(path, "nodes", sep), named)


def _node_lines(path: Path, what: str, sep: str | None) -> tuple[list[str], str, str | None]:
    """The lines of a file, its name and its separator, if it is a file of columns."""
    if not path.is_file():
        raise ValueError(f"expected a file of {what}, {path} is none")
    if path.suffix.lower() not in DELIMITERS:
        raise ValueError(f"expected a file of {what} of type {', '.join(DELIMITERS)}, got {path.name}")
    lines, delimiter = _lines(path, sep)
    return lines, path.name, delimiter


def _lines(path: Path, sep: str | None) -> tuple[list[str], str | None]:
    """The lines of a text file, and the separator of its columns."""
    delimiter = DELIMITERS[path.suffix.lower()] if sep is None else separator(sep)
    lines = list(io.StringIO(decode(path.read_bytes(), path.name), newline=""))
    if sep is None:
        check_separator(lines, path.name, delimiter)
    return lines, delimiter


def _read_graphml(
    path: Path, *, resistance: str | None, conductance: str | None, unit: bool, symmetrize: bool
) -> NamedGraph:
    import networkx as nx

    try:
        graph = nx.read_graphml(path)
    except (nx.NetworkXError, SyntaxError, ValueError, KeyError, UnicodeDecodeError) as error:
        raise ValueError(f"expected GraphML in {path}: {(str(error).splitlines() or ['unreadable'])[0]}") from error
    if graph.is_directed() and not symmetrize:
        raise ValueError(
            f"expected an undirected graph, {path.name} is directed; --symmetrize takes each edge as undirected"
        )
    labels = [str(node) for node in graph.nodes]
    number = {node: i for i, node in enumerate(graph.nodes)}
    edges = list(graph.edges(data=True))
    index = np.array([(number[u], number[v]) for u, v, _ in edges], dtype=np.int64).reshape(-1, 2).T
    kind, attribute = ("resistance", resistance) if conductance is None else ("conductance", conductance)
    weights = np.ones(len(edges))
    notes: tuple[str, ...] = ()
    if attribute is not None:
        for i, (u, v, data) in enumerate(edges):
            weights[i] = _attribute(data, attribute, f"edge ({u}, {v}) of {path.name}", kind)
    elif (found := sorted({key for *_, data in edges for key in data if key != "id"})) and not unit:
        notes = (
            f"every edge has one ohm: attributes of edges ({', '.join(found)}) of {path.name} are not read "
            f"(--resistance {found[0]} or --conductance {found[0]} would)",
        )
    if symmetrize:
        stays = merge_directions(index, weights, lambda i: f"edge ({edges[i][0]}, {edges[i][1]}) of {path.name}")
        index, weights = index[:, stays], weights[stays]
    given: dict[str, Any] = {kind: weights}
    return NamedGraph(Graph.from_edges(index.T, num_nodes=len(labels), **given), labels, notes)


def _attribute(data: Mapping[str, object], name: str, where: str, kind: str) -> float:
    """A positive number out of an edge's attributes, or a ValueError that names the edge."""
    if name not in data:
        raise ValueError(f"expected an attribute {name!r} on every edge, {where} has {', '.join(data) or 'none'}")
    text = str(data[name])
    value = float(text) if is_number(text) else float("nan")
    if not (0 < value < float("inf") and 1 / value < float("inf")):
        raise ValueError(f"expected a positive and finite {kind} {name!r}, {where} has {text!r}")
    return value


def check_table(path: Path) -> None:
    """Raise unless :func:`write_table` can write a file of this name."""
    if path.suffix.lower() not in TABLES:
        raise ValueError(f"expected an output file of type {', '.join(TABLES[:-1])} or {TABLES[-1]}, got {path.name}")
    if path.suffix.lower() == ".parquet":
        check_modules(("pyarrow",), "large")
    check_writable(path)


def check_writable(path: Path) -> None:
    """Raise a ValueError if a file of this name cannot be written: it is a folder, or a folder above it is a file."""
    if path.is_dir():
        raise ValueError(f"expected a file to write, {path} is a folder")
    above = next(parent for parent in path.absolute().parents if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise ValueError(f"expected a folder to write {path.name} into, {above} is none that can be written to")


def write_table(path: Path, table: Mapping[str, Sequence | np.ndarray]) -> Path:
    """Write columns into .csv, .tsv, .npz or .parquet, under a temporary name first."""
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
    """Yield a temporary file beside ``path`` that takes its name if all goes well, and is removed if not."""
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


def sweep(folder: Path) -> None:
    """Remove what a kill in the middle of :func:`whole_file` left in a folder that nobody else writes to."""
    for path in folder.glob(f"{PARTIAL}*"):
        path.unlink(missing_ok=True)
