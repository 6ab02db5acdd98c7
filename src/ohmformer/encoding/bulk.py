"""Encode all graphs of a file into one Parquet file, chunk by chunk, so that an interrupted run continues where it stopped.

Every chunk of the input becomes one part file, written atomically. A run skips the parts that already exist; when all
exist, they are joined into the output and removed. A row is a graph: ``row`` (its number in the input), ``name``,
``nodes``, ``encoding`` (its ``nodes x dim`` values in row-major order), and exact quantities if requested
(:mod:`~ohmformer.encoding.quantities`).
"""

from __future__ import annotations

import csv
import itertools
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ohmformer.encoding import transforms
from ohmformer.encoding.pyg import Batch, Data
from ohmformer.encoding.quantities import check_quantities, exact_quantities
from ohmformer.encoding.saving import shipped
from ohmformer.graph.contents import open_text, suffix_of
from ohmformer.graph.extras import require
from ohmformer.graph.files import DELIMITERS, MATRICES, read_graph, whole_file, write_text
from ohmformer.graph.smiles import bonds, read_smiles
from ohmformer.graph.text_table import find_separator

Columns = dict[str, list[Tensor]]
"""Columns by name: for each graph the values of its encoding and of the requested quantities."""
Encode = Callable[[list[Data]], Columns]

FIXED = {
    "resistance": lambda: transforms.AddResistancePE("pe"),
    "resistive-embedding": lambda: transforms.AddResistiveEmbeddingPE(8, "pe"),
    "heat": lambda: transforms.AddHeatDiagonalPE(attr_name="pe"),
    "eigenvectors": lambda: transforms.AddEigenvectorPE(6, attr_name="pe"),
}
"""Encodings without learned weights, by name."""


@dataclass(frozen=True)
class Reading:
    """Options for reading the input."""

    column: str | None = None
    """The column of a table that holds SMILES; by default "smiles" if the table has it, else the table is an edge list."""
    resistance: str | None = None
    """The column of edge lists that holds resistances."""
    conductance: str | None = None
    """The column of edge lists that holds conductances."""
    unweighted: bool = False
    """Whether to ignore further columns of edge lists; otherwise one of the two fields above must name them."""


@dataclass(frozen=True)
class Entry:
    """One graph of the input, or the reason why it could not be read."""

    row: int
    name: str
    data: Data | None
    error: str = ""


def encoder(name: str, exact: Sequence[str] = (), s: float = 0.5) -> Encode:
    """Return an encoding function: one of :data:`FIXED`, or a model by shipped name, folder or hub repository.

    It also returns the quantities named in ``exact``.
    """
    if name not in (*FIXED, *shipped()) and "/" not in name and not Path(name).exists():
        known = ", ".join((*shipped(), *FIXED))
        raise ValueError(f"expected encoding= as one of {known}, a model's folder, or OWNER/NAME on the hub, got {name!r}")
    transform = FIXED[name]() if name in FIXED else transforms.AddLinearTransformerPE(name, "pe")

    def encode(graphs: list[Data]) -> Columns:
        found = transform(Batch.from_data_list([*graphs])).pe if graphs else torch.zeros(0, 0)
        encodings = list(found.split([g.num_nodes or 0 for g in graphs])) if graphs else []
        return {"encoding": encodings, **exact_quantities(graphs, exact, s)}

    return encode


# ---------------------------------------------------------------------------------------------------- reading


def read_graphs(source: Path, reading: Reading | None = None) -> Iterator[Entry]:
    """Read graphs from a SMILES file, a PyG dataset folder, an edge list, or a folder of edge lists."""
    reading = reading or Reading()
    weighted = reading.resistance or reading.conductance
    if source.is_dir():
        processed = sorted((source / "processed").glob("*.pt"))
        files = sorted(p for p in source.iterdir() if suffix_of(p.name) in DELIMITERS)
        if not processed and not files:
            raise ValueError(f"expected processed/*.pt or edge lists in {source}, there is neither")
        if processed and weighted:
            raise ValueError(f"expected edge lists for the column {weighted!r}, got a PyG dataset in {source}")
        return _from_pyg(source / "processed") if processed else _from_edge_lists(files, reading)
    if not source.is_file():
        raise ValueError(f"expected a file or a folder of graphs, {source} is neither")
    if suffix_of(source.name) in (".graphml", ".m", *MATRICES):
        raise ValueError(f"expected SMILES or edge lists ({', '.join(DELIMITERS)}), or a PyG folder, got {source.name}")
    if _is_edge_list(source, reading.column):
        return _from_edge_lists([source], reading)
    if weighted:
        raise ValueError(f"expected an edge list for the column {weighted!r}, got SMILES in {source.name}")
    return _from_smiles(source, reading.column or "smiles")


def _is_edge_list(path: Path, column: str | None) -> bool:
    """Return whether the file has an edge-list suffix, ``column`` is None and the first line has no "smiles" column."""
    if suffix_of(path.name) not in DELIMITERS or column is not None:
        return False
    with open_text(path, errors="replace") as file:
        head = file.readline().lower().replace(",", " ").split()
    return "smiles" not in head


def _from_smiles(path: Path, column: str) -> Iterator[Entry]:
    """Read one molecule per row of a table or line of a file."""
    require("rdkit", "encode")
    for row, smiles in enumerate(read_smiles(path, column)):
        try:
            nodes, edges = bonds(smiles)
        except ValueError as error:
            yield Entry(row, smiles, None, str(error))
            continue
        index = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).t()
        yield Entry(row, smiles, Data(edge_index=torch.cat([index, index.flip(0)], dim=1), num_nodes=nodes))


def _from_edge_lists(files: list[Path], reading: Reading) -> Iterator[Entry]:
    """Read one graph per file, with conductances if a weight column is named."""
    weights: dict[str, Any] = {"resistance": reading.resistance, "conductance": reading.conductance}
    for row, path in enumerate(files):
        try:
            if not (any(weights.values()) or reading.unweighted):
                _check_two_columns(path)
            graph = read_graph(path, **weights).graph
        except ValueError as error:
            yield Entry(row, path.name, None, str(error))
            continue
        index = torch.cat([graph.edge_index, graph.edge_index.flip(0)], dim=1)
        data = Data(edge_index=index, num_nodes=graph.num_nodes)
        if any(weights.values()):
            data.edge_weight = graph.resistance.reciprocal().repeat(2)
        yield Entry(row, path.name, data)


def _check_two_columns(path: Path) -> None:
    """Raise a ValueError if an edge list has columns that no option names: they may be weights."""
    with open_text(path, errors="replace") as file:
        lines = [line for line in itertools.islice(file, 100) if not line.lstrip().startswith("#")]
    delimiter = find_separator(lines, path.name, DELIMITERS[suffix_of(path.name)])
    rows = csv.reader(lines, delimiter=delimiter) if delimiter else (line.split() for line in lines)
    first = next((row for row in rows if row), [])
    if len(first) > 2:
        columns = ", ".join(cell.strip() for cell in first)
        raise ValueError(
            f"expected --resistance or --conductance with a column's name, or --unweighted, as {path.name} has more than "
            f"two columns: {columns}"
        )


def _from_pyg(folder: Path) -> Iterator[Entry]:
    """Read the file of an InMemoryDataset without executing code from it."""
    path = folder / "data.pt"
    path = path if path.is_file() else next(p for p in sorted(folder.glob("*.pt")) if not p.name.startswith("pre_"))
    try:
        stored, slices = torch.load(path, weights_only=True)[:2]  # importing PyG adds its Data to torch's safe globals
        stored = stored if isinstance(stored, dict) else stored.to_dict()
        edges, starts, weights = stored["edge_index"], slices["edge_index"], stored.get("edge_weight")
    except Exception as error:  # the exception type depends on where torch fails on a file of another format
        raise ValueError(f"expected the graphs of a PyG dataset in {path}: {str(error).splitlines()[0]}") from error
    for row, (low, high) in enumerate(itertools.pairwise(starts.tolist())):
        index = edges[:, low:high]
        if "x" in slices:
            nodes = int(slices["x"][row + 1] - slices["x"][row])
        else:
            counts = stored.get("_num_nodes", stored.get("num_nodes"))
            listed = counts if isinstance(counts, list | Tensor) else None  # a number is the sum over all graphs
            nodes = int(listed[row]) if listed is not None else int(index.max()) + 1 if index.numel() else 0
        data = Data(edge_index=index, num_nodes=nodes)
        if weights is not None:
            data.edge_weight = weights[low:high]
        yield Entry(row, f"{path.parent.parent.name}[{row}]", data)


# ---------------------------------------------------------------------------------------------------- writing


def encode_file(
    source: Path,
    out: Path,
    encoding: str,
    *,
    reading: Reading | None = None,
    exact: Sequence[str] = (),
    s: float = 0.5,
    chunk: int = 2000,
    cluster: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[int, int]:
    """Encode every graph of ``source`` into ``out``; return the numbers of all graphs and of unreadable ones.

    Unreadable graphs are listed in a file named as ``out`` with the suffix ``.bad.csv``. If no graph can be read, a
    ValueError is raised and nothing is written. ``exact`` names quantities to write beside the encoding
    (:data:`~.quantities.QUANTITIES`), ``s`` is the time of the heat kernel. ``progress(rows, bad)`` is called after every
    chunk.
    """
    if out.suffix != ".parquet":
        raise ValueError(f"expected an output file of type .parquet, got {out.name}")
    for module, extra in (("pyarrow", "encode"), *((("ray", "cluster"),) if cluster is not None else ())):
        require(module, extra)
    reading = reading or Reading()
    check_quantities(exact, s)
    encode = encoder(encoding, exact, s)
    entries = read_graphs(source, reading)
    entries = itertools.chain(
        list(itertools.islice(entries, 1)), entries
    )  # reject a wrong file here, before anything is written
    parts = out.with_name(out.name + ".parts")
    plan = {"source": str(source.resolve()), "size": _size(source), "encoding": encoding, "chunk": chunk, **asdict(reading)}
    plan |= {"exact": list(exact), "s": s} if exact else {}
    note = parts / "plan.json"
    if note.is_file() and json.loads(note.read_text()) != plan:
        raise ValueError(f"expected {parts} to be of the same input and options, it is of others; remove it to start over")
    write_text(note, json.dumps(plan))
    rows = bad = 0
    error = "it is empty"
    for part in _run(
        enumerate(_chunks(entries, chunk)), parts, {"encoding": encoding, "exact": list(exact), "s": s}, encode, cluster
    ):
        error = next((entry.error for entry in part if entry.error), error) if rows == bad == 0 else error
        rows += len(part)
        bad += sum(entry.data is None for entry in part)
        if progress:
            progress(rows, bad)
    if rows == bad:
        shutil.rmtree(parts)
        raise ValueError(f"expected at least one graph in {source.name}, got none: {error}")
    _join(parts, out, exact)
    return rows, bad


def _size(source: Path) -> int:
    """Return the bytes of a file or the number of files in a folder, as a cheap test of whether it has changed."""
    return source.stat().st_size if source.is_file() else len(list(source.iterdir()))


def _chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Split items into lists of ``size``."""
    items = iter(items)
    while part := list(itertools.islice(items, size)):
        yield part


def _run(
    chunks: Iterable[tuple[int, list[Entry]]], parts: Path, asked: dict[str, Any], encode: Encode, cluster: str | None
) -> Iterator[list[Entry]]:
    """Encode the chunks that have no part file yet, in this process or on Ray workers; yield all chunks in order."""
    if cluster is None:
        for i, part in chunks:
            if not _part(parts, i).is_file():
                _write_part(parts, i, part, encode([e.data for e in part if e.data is not None]))
            yield part
        return
    for wave in _chunks(chunks, 32):  # submitted to the cluster together
        missing = [(i, part) for i, part in wave if not _part(parts, i).is_file()]
        for i, columns in _on_cluster(missing, asked, cluster):
            _write_part(parts, i, dict(missing)[i], columns)
        yield from (part for _, part in wave)


def _on_cluster(chunks: list[tuple[int, list[Entry]]], asked: dict[str, Any], cluster: str) -> Iterator[tuple[int, Columns]]:
    """Encode chunks with Ray Data; yield them in order of completion."""
    ray = require("ray", "cluster")
    require("ray.data", "cluster")
    if not ray.is_initialized():
        ray.init(address=cluster, log_to_driver=False, include_dashboard=False if cluster == "local" else None)
    if not chunks:
        return
    items = []
    for i, part in chunks:
        graphs = [e.data for e in part if e.data is not None]
        items.append({
            "chunk": i, **asked, "weighted": any(g.edge_weight is not None for g in graphs),
            "nodes": [g.num_nodes or 0 for g in graphs],
            "edges": [g.edge_index.flatten().tolist() for g in graphs if g.edge_index is not None],
            "weights": [[] if g.edge_weight is None else g.edge_weight.tolist() for g in graphs],
        })  # fmt: skip

    for row in ray.data.from_items(items).map(_work).iter_rows():
        values = zip(row["values"], row["dim"], strict=True)
        encodings = [torch.tensor(list(x), dtype=torch.float32).view(-1, int(d)) for x, d in values]
        exact = {name: [torch.tensor(list(x), dtype=torch.float64) for x in row[name]] for name in asked["exact"]}
        yield int(row["chunk"]), {"encoding": encodings, **exact}


def _work(item: dict[str, Any]) -> dict[str, Any]:
    """Encode one chunk on a worker."""
    torch.set_num_threads(1)
    graphs = []
    for nodes, edges, weights in zip(item["nodes"], item["edges"], item["weights"], strict=True):
        graph = Data(edge_index=torch.as_tensor(list(edges), dtype=torch.long).view(2, -1), num_nodes=int(nodes))
        if item["weighted"]:
            graph.edge_weight = torch.as_tensor(list(weights), dtype=torch.float64)
        graphs.append(graph)
    found = encoder(item["encoding"], list(item["exact"]), float(item["s"]))(graphs)
    encodings = found.pop("encoding")
    exact = {name: [x.tolist() for x in values] for name, values in found.items()}
    values = [x.flatten().tolist() for x in encodings]
    return {"chunk": item["chunk"], "dim": [x.shape[1] for x in encodings], "values": values, **exact}


def _part(parts: Path, i: int) -> Path:
    """Return the path of part file i."""
    return parts / f"part-{i:06d}.parquet"


def _write_part(parts: Path, i: int, entries: list[Entry], columns: Columns) -> None:
    """Write the list of unreadable graphs, then the table of the others, so that an existing part always has both."""
    pa, parquet = require("pyarrow", "encode"), require("pyarrow.parquet", "encode")
    with whole_file(_part(parts, i).with_suffix(".bad.csv")) as temporary, temporary.open("w", newline="") as file:
        csv.writer(file).writerows((e.row, e.name, e.error) for e in entries if e.data is None)
    good = [e for e in entries if e.data is not None]
    table = pa.table(
        {
            "row": pa.array([e.row for e in good], pa.int64()),
            "name": pa.array([e.name for e in good], pa.string()),
            "nodes": pa.array([len(x) for x in columns["encoding"]], pa.int32()),
            **{name: pa.array([x.flatten().numpy() for x in values], _type(name)) for name, values in columns.items()},
        }
    )
    with whole_file(_part(parts, i)) as temporary:
        parquet.write_table(table, temporary)


def _type(column: str) -> Any:
    """Return the Arrow type: float32 lists for encodings, float64 lists for exact quantities."""
    pa = require("pyarrow", "encode")
    return pa.list_(pa.float32() if column == "encoding" else pa.float64())


def _join(parts: Path, out: Path, exact: Sequence[str]) -> None:
    """Join all parts into one file and their lists of unreadable graphs into another; remove the parts."""
    pa, parquet = require("pyarrow", "encode"), require("pyarrow.parquet", "encode")
    files = sorted(parts.glob("part-*.parquet"))
    schema = pa.schema(
        [("row", pa.int64()), ("name", pa.string()), ("nodes", pa.int32()), *((x, _type(x)) for x in ("encoding", *exact))]
    )
    with whole_file(out.with_suffix(".bad.csv")) as temporary, temporary.open("w") as file:
        file.write("row,name,error\n")
        for path in files:
            file.write(path.with_suffix(".bad.csv").read_text())
    with whole_file(out) as temporary, parquet.ParquetWriter(temporary, schema) as writer:
        for path in files:
            writer.write_table(parquet.read_table(path))
    shutil.rmtree(parts)
