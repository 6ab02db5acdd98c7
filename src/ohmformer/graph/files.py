"""Graphs from files and tables into files; nothing is unpickled, and nothing is half-written."""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ohmformer.graph import Graph

DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": None, ".edges": None}
"""Edge lists by suffix; None is any white space."""
PARTIAL = ".partial-"
"""How names of files begin that are not whole yet."""
HEADERS = {"source", "target", "from", "to", "u", "v", "node1", "node2", "head", "tail", "src", "dst"}


@dataclass(frozen=True)
class LabelledGraph:
    """A graph and what its nodes are called in the file."""

    graph: Graph
    labels: Sequence[str]

    def number(self, label: str) -> int:
        """The node of a label, or a ValueError."""
        if label not in self.labels:
            raise ValueError(f"expected a node of the file, got {label!r}; the first are {', '.join(self.labels[:5])}")
        return list(self.labels).index(label)


def read_graph(path: Path, *, resistance: str | None = None, conductance: str | None = None) -> LabelledGraph:
    """A graph from an edge list (.csv, .tsv, .txt, .edges), GraphML, Matrix Market (.mtx) or a SciPy .npz.

    ``resistance`` or ``conductance`` names the column or attribute with the weights; in a matrix any name stands for its
    entries. Without them every resistance is 1.
    """
    if not path.is_file():
        raise ValueError(f"expected a file, {path} is none")
    suffix = path.suffix.lower()
    if suffix in DELIMITERS:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return parse_edges(file, path.name, DELIMITERS[suffix], resistance=resistance, conductance=conductance)
    if suffix == ".graphml":
        import networkx as nx

        try:
            graph = nx.read_graphml(path)
        except (nx.NetworkXError, SyntaxError) as error:
            raise ValueError(f"expected GraphML in {path}: {str(error).splitlines()[0]}") from error
        return LabelledGraph(
            Graph.from_networkx(graph, resistance=resistance, conductance=conductance), [str(n) for n in graph.nodes]
        )
    if suffix in (".mtx", ".npz"):
        return _read_matrix(path, "resistance" if resistance else "conductance" if conductance else "unit")
    raise ValueError(f"expected a file of type {', '.join([*DELIMITERS, '.graphml', '.mtx', '.npz'])}, got {path.name}")


def _read_matrix(path: Path, entries: str) -> LabelledGraph:
    import scipy.io
    import scipy.sparse

    try:
        matrix = scipy.io.mmread(path) if path.suffix.lower() == ".mtx" else scipy.sparse.load_npz(path)
    except (ValueError, OSError, KeyError) as error:
        raise ValueError(f"expected a sparse matrix in {path}: {str(error).splitlines()[0]}") from error
    graph = Graph.from_scipy(scipy.sparse.coo_array(matrix), entries=entries)
    return LabelledGraph(graph, [str(i) for i in range(graph.num_nodes)])


def parse_edges(
    lines: Iterable[str],
    name: str,
    delimiter: str | None,
    *,
    resistance: str | None = None,
    conductance: str | None = None,
) -> LabelledGraph:
    """A graph from the lines of an edge list, of which ``name`` is what errors call it."""
    cells = csv.reader(lines, delimiter=delimiter) if delimiter else (line.split() for line in lines)
    try:
        rows = [(i, row) for i, row in enumerate(cells, 1) if row and not row[0].lstrip().startswith("#")]
    except (UnicodeDecodeError, csv.Error):
        raise ValueError(f"expected an edge list as text in {name}, it is not text") from None
    header = [cell.strip() for cell in rows[0][1]] if rows else []
    weight = resistance or conductance
    if weight is not None and weight not in header:
        raise ValueError(
            f"expected a column {weight!r} in the first line of {name}, it has {', '.join(header) or 'nothing'}"
        )
    if weight is not None or _names_columns(header, [row for _, row in rows[1:]]):
        rows = rows[1:]
    column = header.index(weight) if weight is not None else None
    number: dict[str, int] = {}
    edges: list[tuple[int, int]] = []
    weights: list[float] = []
    for line, row in rows:
        if len(row) < 2 or (column is not None and len(row) <= column):
            raise ValueError(f"expected {max(2, (column or 0) + 1)} columns in line {line} of {name}, got {len(row)}")
        u, v = (number.setdefault(cell.strip(), len(number)) for cell in row[:2])
        edges.append((u, v))
        if column is not None:
            try:
                weights.append(float(row[column]))
            except ValueError:
                raise ValueError(f"expected a number in line {line} of {name}, got {row[column]!r}") from None
    if not edges:
        raise ValueError(f"expected at least one edge in {name}, got none")
    graph = Graph.from_edges(
        np.array(edges, dtype=np.int64).reshape(-1, 2),
        num_nodes=len(number),
        resistance=weights if resistance else None,
        conductance=weights if conductance else None,
    )
    return LabelledGraph(graph, list(number))


def _names_columns(first: list[str], below: list[list[str]]) -> bool:
    """Whether a first line names columns: in known words, or having words where all lines below have numbers.

    That is so in one of the columns behind the nodes, or in both columns of nodes.
    """
    words = [i for i, cell in enumerate(first) if not _is_number(cell)]
    above = {i for i in words if below and all(i < len(row) and _is_number(row[i]) for row in below)}
    return {cell.lower() for cell in first[:2]} <= HEADERS or above >= {0, 1} or max(above, default=0) > 1


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def write_table(path: Path, table: Mapping[str, Sequence | np.ndarray]) -> Path:
    """Columns into .csv, .tsv, .npz or .parquet (if pyarrow is there), under a temporary name first."""
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".tsv", ".npz", ".parquet"):
        raise ValueError(f"expected an output file of type .csv, .tsv, .npz or .parquet, got {path.name}")
    with whole_file(path) as temporary:
        if suffix == ".npz":
            np.savez(temporary, **{key: np.asarray(values) for key, values in table.items()})  # pyright: ignore[reportArgumentType]
        elif suffix == ".parquet":
            _write_parquet(temporary, table)
        else:
            with temporary.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, delimiter="," if suffix == ".csv" else "\t")
                writer.writerow(table)
                writer.writerows(zip(*(np.asarray(values).tolist() for values in table.values()), strict=True))
    return path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` that takes its name if all goes well, and is gone if not."""
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


def _write_parquet(path: Path, table: Mapping[str, Sequence | np.ndarray]) -> None:
    try:
        import pyarrow  # pyright: ignore[reportMissingImports]
        import pyarrow.parquet  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError("expected pyarrow to be installed for .parquet files, it is not; use .csv or .npz") from error
    pyarrow.parquet.write_table(pyarrow.table({key: np.asarray(values) for key, values in table.items()}), path)
