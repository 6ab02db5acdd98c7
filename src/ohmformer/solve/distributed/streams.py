"""Lists of edges that need not fit into memory: chunks of them from arrays, .npz, .csv or .parquet, always in one order."""

from __future__ import annotations

import itertools
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ohmformer.graph.contents import open_text, suffix_of
from ohmformer.graph.edge_list import Columns as Found
from ohmformer.graph.edge_list import find_columns
from ohmformer.graph.extras import require
from ohmformer.graph.files import DELIMITERS
from ohmformer.graph.text_table import find_separator, read_rows, separator

CHUNK = 2**22
"""Maximum number of edges in memory."""
SAMPLE = 100
"""Lines of a text file used to detect its columns."""
MOST_NODES = 2**40

Columns = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""Tails, heads and weights of some edges."""
Reading = tuple[Callable[[], Iterator[Columns]], int | None, str]
"""How to read a file, the approximate number of its edges, and which of its columns are read and how."""


@dataclass(frozen=True)
class Chunk:
    """A chunk of edges."""

    tail: Int[np.ndarray, " edges"]
    head: Int[np.ndarray, " edges"]
    conductance: Float[np.ndarray, " edges"] | None
    """None if every edge has one ohm."""


@dataclass(frozen=True)
class EdgeStream:
    """A list of edges that every loop reads from the start. Nodes are integers from zero."""

    name: str
    """The name used in error messages."""
    read: Callable[[], Iterator[Columns]]
    size: int
    """Bytes of the file, or number of edges."""
    kind: str | None = None
    """``"resistance"`` or ``"conductance"`` if there are weights."""
    about: int | None = None
    """Approximate number of edges, if known before reading."""
    mark: str = ""
    """Checksum of arrays, or a file's path, time of last change and how it is read: with ``size``, the check that edges are
    the same as before."""

    def __iter__(self) -> Iterator[Chunk]:
        for tail, head, weight in self.read():
            tail, head = (self._nodes(x) for x in (tail, head))
            if len(tail) != len(head) or (weight is not None and len(weight) != len(tail)):
                raise ValueError(f"expected columns of one length in {self.name}, got {len(tail)}, {len(head)} and others")
            yield Chunk(tail, head, None if weight is None else self._conductance(weight))

    def _nodes(self, x: np.ndarray) -> Int[np.ndarray, " edges"]:
        if x.dtype.kind not in "iu":
            raise ValueError(f"expected whole numbers from 0 as nodes of {self.name}, got {x.dtype}")
        x = np.require(x, np.int64, ["C", "W"])
        if len(x) and (x.min() < 0 or x.max() >= MOST_NODES):
            wrong = int(x.min() if x.min() < 0 else x.max())
            raise ValueError(f"expected nodes of {self.name} numbered from 0 without large gaps, got {wrong}")
        return x

    def _conductance(self, weight: np.ndarray) -> Float[np.ndarray, " edges"]:
        weight = np.ascontiguousarray(weight, dtype=np.float64)
        with np.errstate(divide="ignore", over="ignore"):
            inverse = 1 / weight
        good = np.isfinite(weight) & (weight > 0) & np.isfinite(inverse)
        if not good.all():
            raise ValueError(f"expected every {self.kind} of {self.name} positive and finite, got {weight[~good][0]}")
        return inverse if self.kind == "resistance" else weight


def edge_arrays(tail: Any, head: Any, *, resistance: Any = None, conductance: Any = None) -> EdgeStream:
    """Make a stream of edges from arrays in memory or memory-mapped arrays."""
    if resistance is not None and conductance is not None:
        raise ValueError("expected resistance= or conductance=, got both")
    kind, weight = ("resistance", resistance) if conductance is None else ("conductance", conductance)
    u, v, w = np.asarray(tail), np.asarray(head), None if weight is None else np.asarray(weight)

    def read() -> Iterator[Columns]:
        for first in range(0, len(tail), CHUNK):
            some = slice(first, first + CHUNK)
            yield u[some], v[some], None if w is None else w[some]

    checksum = 0
    for x in (x for some in read() for x in some if x is not None):
        checksum = zlib.crc32(x.tobytes(), checksum)
    return EdgeStream("the edges", read, len(tail), None if weight is None else kind, len(tail), f"{checksum:08x}")


def edge_file(
    path: Path,
    *,
    resistance: str | None = None,
    conductance: str | None = None,
    unit: bool = False,
    source: str | None = None,
    target: str | None = None,
    sep: str | None = None,
    header: bool | None = None,
) -> EdgeStream:
    """Stream edges of a .npz, .csv, .tsv, .txt or .parquet file, whose columns are named as for ``ohmformer solve``.

    Text may be compressed by gzip (.csv.gz). A .npz holds ``edge_index`` with two rows, or two arrays of nodes, and weights
    by name. Weights are never guessed: if there is another column that no option mentions, ``unit`` is required.
    """
    if sum((resistance is not None, conductance is not None, unit)) > 1:
        raise ValueError("expected only one of --resistance, --conductance and --unit, got more")
    if (source is None) != (target is None):
        raise ValueError(f"expected both --source and --target, got only --{'source' if target is None else 'target'}")
    if not path.is_file():
        raise ValueError(f"expected a file of edges, {path} is none")
    kind = "resistance" if resistance is not None else "conductance" if conductance is not None else None
    weight, suffix = resistance if conductance is None else conductance, suffix_of(path.name)
    packed = path.suffix.lower() == ".gz"
    if suffix == ".npz" and not packed:
        read, about, how = _npz(path, source, target, weight, unit)
    elif suffix == ".parquet" and not packed:
        read, about, how = _parquet(path, source, target, weight, unit)
    elif suffix in DELIMITERS:
        read, about, how = _text(path, source, target, weight, unit, sep, header)
    else:
        text = ", ".join(DELIMITERS)
        raise ValueError(f"expected a file of type .npz, .parquet, or {text} (packed by gzip or not), got {path.name}")
    mark = f"{path.stat().st_mtime_ns}, {how} of {path.resolve()}"
    return EdgeStream(path.name, read, path.stat().st_size, kind, about, mark)


def _columns(
    names: list[str], name: str, source: str | None, target: str | None, weight: str | None, unit: bool
) -> list[int]:
    """Return the places of the columns of tails, heads and, if there are any, weights; names may occur more than once."""
    rows = read_rows([",".join(f'"{x}"' for x in names), ",".join("0" for _ in names)], name, ",")
    found = find_columns(rows, name, weight, source, target, True)
    return _picked(found, names, name, unit)


def _picked(found: Found, names: list[str], name: str, unit: bool) -> list[int]:
    picked = [i for i in (found.u, found.v, found.weight) if i is not None]
    _check_unread([x for i, x in enumerate(names) if i not in picked], name, found.weight is not None or unit)
    return picked


def _check_unread(left: list[str], name: str, known: bool) -> None:
    if left and not known:
        raise ValueError(
            f"expected --resistance COLUMN, --conductance COLUMN or --unit, as {name} has more columns: {', '.join(left)}"
        )


# ---------------------------------------------------------------------------------------------------- .npz


def _npz(path: Path, source: str | None, target: str | None, weight: str | None, unit: bool) -> Reading:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [x.removesuffix(".npy") for x in archive.namelist()]
    except zipfile.BadZipFile:
        raise ValueError(f"expected arrays as numpy.savez writes them in {path.name}, it is no .npz") from None
    if "edge_index" in names and source is None:
        _check_unread([x for x in names if x != "edge_index"], path.name, weight is not None or unit)
        given = [("edge_index", 0), ("edge_index", 1), *([] if weight is None else [(weight, 0)])]
    else:
        given = [(names[i], 0) for i in _columns(names, path.name, source, target, weight, unit)]
    for array, _ in given:
        if array not in names:
            raise ValueError(f"expected an array {array!r} in {path.name}, it has {', '.join(names)}")

    def read() -> Iterator[Columns]:
        lengths = {_shape(path, name)[-1] for name, _ in given}
        if len(lengths) > 1:
            raise ValueError(f"expected arrays of one length in {path.name}, got {', '.join(map(str, sorted(lengths)))}")
        for tail, head, *weights in zip(*(_member(path, *place) for place in given), strict=True):
            yield tail, head, weights[0] if weights else None

    return read, _shape(path, given[0][0])[-1], f"arrays {given}"


def _shape(path: Path, name: str) -> tuple[int, ...]:
    with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as file:
        return _header(file)[0]


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return shape, Fortran order and dtype of an array in a .npy file."""
    version = np.lib.format.read_magic(file)
    return (np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0)(file)


def _member(path: Path, name: str, row: int) -> Iterator[np.ndarray]:
    """Yield a one-row array, or one row of a two-row array, from an archive, chunk by chunk."""
    with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as file:
        shape, fortran, dtype = _header(file)
        if dtype.hasobject or fortran or len(shape) not in (1, 2) or (len(shape) == 2 and shape[0] != 2):
            raise ValueError(f"expected {name!r} of {path.name} as one row of numbers or two, got {shape} of {dtype}")
        left = shape[-1]
        for _ in range(row * left * dtype.itemsize // 2**24):
            file.read(2**24)
        file.read(row * left * dtype.itemsize % 2**24)
        while left:
            count = min(left, CHUNK)
            numbers = np.frombuffer(file.read(count * dtype.itemsize), dtype)
            if len(numbers) < count:
                raise ValueError(f"expected {shape[-1]} numbers in {name!r} of {path.name}, the file ends before")
            yield numbers
            left -= count


# ---------------------------------------------------------------------------------------------------- tables


def _parquet(path: Path, source: str | None, target: str | None, weight: str | None, unit: bool) -> Reading:
    arrow, parquet = require("pyarrow", "large"), require("pyarrow.parquet", "large")
    try:
        found = parquet.read_metadata(path)
        names = list(found.schema.to_arrow_schema().names)
    except (arrow.ArrowException, OSError) as error:
        raise ValueError(f"expected a Parquet file, {path.name} is none: {str(error).splitlines()[0]}") from error
    picked = _columns(names, path.name, source, target, weight, unit)
    wanted = list(dict.fromkeys(names[i] for i in picked))
    together = [i for name in wanted for i, x in enumerate(names) if x == name]  # a name is read with all its columns

    def read() -> Iterator[Columns]:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(CHUNK, columns=wanted):
                yield _numbers([batch.column(together.index(i)) for i in picked], [names[i] for i in picked], path.name)

    return read, found.num_rows, f"columns {picked}"


def _text(
    path: Path, source: str | None, target: str | None, weight: str | None, unit: bool, sep: str | None, header: bool | None
) -> Reading:
    require("pyarrow.csv", "large")
    delimiter = DELIMITERS[suffix_of(path.name)] if sep is None else separator(sep)
    with open_text(path, errors="replace") as file:
        lines = list(itertools.islice(file, SAMPLE))
    if sep is None:
        delimiter = find_separator(lines, path.name, delimiter)
    rows = read_rows(lines, path.name, delimiter)
    if not rows:
        raise ValueError(f"expected at least one edge in the first {SAMPLE} lines of {path.name}, got none")
    found = find_columns(rows, path.name, weight, source, target, header)
    names = found.names or [str(i + 1) for i in range(len(rows[0].cells))]
    picked = _picked(found, names, path.name, unit)
    skipped = rows[0].line - 1 + (found.names is not None)
    character = delimiter or ("\t" if "\t" in lines[rows[-1].line - 1] else " ")

    def read() -> Iterator[Columns]:
        import pyarrow as pa
        from pyarrow import csv

        types = {str(place): pa.float64() if i == 2 else pa.int64() for i, place in enumerate(picked)}
        numbered = [str(i) for i in range(len(names))]  # unlike names, each once
        reading = csv.ReadOptions(column_names=numbered, skip_rows=skipped, block_size=2**26, encoding="utf8")
        converting = csv.ConvertOptions(column_types=types, include_columns=list(types))
        try:
            with csv.open_csv(path, reading, csv.ParseOptions(delimiter=character), converting) as batches:
                for batch in batches:
                    yield _numbers([batch.column(x) for x in types], [names[i] for i in picked], path.name)
        except pa.ArrowInvalid as error:
            raise ValueError(
                f"expected whole numbers as nodes and numbers as weights in {path.name}: {str(error).splitlines()[0]}"
            ) from None

    packed, sampled = path.suffix.lower() == ".gz", sum(len(line.encode()) for line in lines)
    how = f"columns {picked} by {character!r} from line {skipped + 1}"
    return read, None if packed else path.stat().st_size * len(lines) // sampled, how


def _numbers(arrays: list[Any], columns: list[str], name: str) -> Columns:
    """Return columns of a record batch as arrays."""
    for column, x in zip(columns, arrays, strict=True):
        if x.null_count:
            raise ValueError(f"expected a number in every row of column {column!r} of {name}, some are empty")
    tail, head, *weight = (x.to_numpy(zero_copy_only=False) for x in arrays)
    return tail, head, weight[0] if weight else None
