"""Files of graphs in, one Parquet file of encodings out: chunk by chunk, so that a killed run goes on where it stopped.

Every chunk of the input becomes one part file, which is written whole or not at all. A run first looks which parts are
there; when all are, they become the output and are removed. A row is a graph: ``row`` (its number in the input), ``name``,
``nodes``, and ``encoding``, its ``nodes x dim`` numbers row by row.
"""

from __future__ import annotations

import csv
import itertools
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from ohmformer.encoding import transforms
from ohmformer.graph.extras import check_modules
from ohmformer.graph.files import DELIMITERS, read_graph, whole_file

Encode = Callable[[list[Data]], list[Tensor]]

FIXED = {
    "resistance": lambda: transforms.AddResistancePE("pe"),
    "resistive-embedding": lambda: transforms.AddResistiveEmbeddingPE(8, "pe"),
    "heat": lambda: transforms.AddHeatDiagonalPE(attr_name="pe"),
    "eigenvectors": lambda: transforms.AddEigenvectorPE(6, attr_name="pe"),
}
"""Encodings that are not learned, by name."""


@dataclass(frozen=True)
class Entry:
    """One graph of the input, or why it is none."""

    row: int
    name: str
    data: Data | None
    error: str = ""


def encoder(name: str) -> Encode:
    """The encoding of a name: one of :data:`FIXED`, or a model by shipped name, folder or hub repository."""
    transform = FIXED[name]() if name in FIXED else transforms.AddLinearTransformerPE(name, "pe")

    def encode(graphs: list[Data]) -> list[Tensor]:
        return (
            list(transform(Batch.from_data_list([*graphs])).pe.split([g.num_nodes or 0 for g in graphs])) if graphs else []
        )

    return encode


# ---------------------------------------------------------------------------------------------------- reading


def read_graphs(source: Path, column: str = "smiles") -> Iterator[Entry]:
    """The graphs of a SMILES file, of a PyG dataset folder, of an edge list, or of a folder of edge lists."""
    if source.is_dir():
        processed = sorted((source / "processed").glob("*.pt"))
        files = sorted(p for p in source.iterdir() if p.suffix.lower() in DELIMITERS)
        if not processed and not files:
            raise ValueError(f"expected processed/*.pt or edge lists in {source}, there is neither")
        return _from_pyg(source / "processed") if processed else _from_edge_lists(files)
    if not source.is_file():
        raise ValueError(f"expected a file or a folder of graphs, {source} is neither")
    if _is_edge_list(source, column):
        return _from_edge_lists([source])
    return _from_smiles(source, column)


def _is_edge_list(path: Path, column: str) -> bool:
    """An edge list's suffix, and no column of SMILES in its first line."""
    if path.suffix.lower() not in DELIMITERS:
        return False
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        head = file.readline().lower().replace(",", " ").split()
    return column.lower() not in head


def _from_smiles(path: Path, column: str) -> Iterator[Entry]:
    from ohmformer.graph.smiles import bonds, read_smiles

    for row, smiles in enumerate(read_smiles(path, column)):
        try:
            nodes, edges = bonds(smiles)
        except ValueError as error:
            yield Entry(row, smiles, None, str(error))
            continue
        index = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).t()
        yield Entry(row, smiles, Data(edge_index=torch.cat([index, index.flip(0)], dim=1), num_nodes=nodes))


def _from_edge_lists(files: list[Path]) -> Iterator[Entry]:
    for row, path in enumerate(files):
        try:
            graph = read_graph(path).graph
        except ValueError as error:
            yield Entry(row, path.name, None, str(error))
            continue
        index = torch.cat([graph.edge_index, graph.edge_index.flip(0)], dim=1)
        yield Entry(row, path.name, Data(edge_index=index, num_nodes=graph.num_nodes))


def _from_pyg(folder: Path) -> Iterator[Entry]:
    """An InMemoryDataset's file, read without running any code in it."""
    path = folder / "data.pt"
    path = path if path.is_file() else next(p for p in sorted(folder.glob("*.pt")) if not p.name.startswith("pre_"))
    try:
        with torch.serialization.safe_globals([Data]):
            stored, slices = torch.load(path, weights_only=True)[:2]
        stored = stored if isinstance(stored, dict) else stored.to_dict()
        edges, starts = stored["edge_index"], slices["edge_index"]
    except Exception as error:
        raise ValueError(f"expected the graphs of a PyG dataset in {path}: {str(error).splitlines()[0]}") from error
    for row, (low, high) in enumerate(itertools.pairwise(starts.tolist())):
        index = edges[:, low:high]
        if "x" in slices:
            nodes = int(slices["x"][row + 1] - slices["x"][row])
        else:
            counts = stored.get("num_nodes", stored.get("_num_nodes"))
            nodes = int(counts[row]) if counts is not None else int(index.max()) + 1 if index.numel() else 0
        yield Entry(row, f"{path.parent.parent.name}[{row}]", Data(edge_index=index, num_nodes=nodes))


# ---------------------------------------------------------------------------------------------------- writing


def encode_file(
    source: Path,
    out: Path,
    encoding: str,
    *,
    column: str = "smiles",
    chunk: int = 2000,
    cluster: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[int, int]:
    """Encode every graph of ``source`` into ``out``; the numbers of graphs that went in and of those that could not be read.

    The latter are listed in ``out`` with the suffix ``.bad.csv``. ``progress(rows, bad)`` is called after every chunk.
    """
    if out.suffix != ".parquet":
        raise ValueError(f"expected an output file of type .parquet, got {out.name}")
    check_modules(("pyarrow",), "encode")
    entries = read_graphs(source, column)
    parts = out.with_name(out.name + ".parts")
    plan = {"source": str(source.resolve()), "size": _size(source), "encoding": encoding, "column": column, "chunk": chunk}
    note = parts / "plan.json"
    if note.is_file() and json.loads(note.read_text()) != plan:
        raise ValueError(f"expected {parts} to be of the same input and options, it is of others; remove it to start anew")
    encode = encoder(encoding)
    with whole_file(note) as temporary:
        temporary.write_text(json.dumps(plan))
    rows = bad = 0
    chunks = ((i, list(part)) for i, part in enumerate(_chunks(entries, chunk)))
    for _, part in _run(chunks, parts, encoding, encode, cluster):
        rows += len(part)
        bad += sum(entry.data is None for entry in part)
        if progress:
            progress(rows, bad)
    _join(parts, out)
    return rows, bad


def _size(source: Path) -> int:
    return source.stat().st_size if source.is_file() else len(list(source.iterdir()))


def _chunks(entries: Iterable[Entry], size: int) -> Iterator[list[Entry]]:
    entries = iter(entries)
    while part := list(itertools.islice(entries, size)):
        yield part


def _run(
    chunks: Iterable[tuple[int, list[Entry]]], parts: Path, encoding: str, encode: Encode, cluster: str | None
) -> Iterator[tuple[int, list[Entry]]]:
    """Every chunk once its part is there, by this process or by Ray's workers."""
    if cluster is None:
        for i, part in chunks:
            if not _part(parts, i).is_file():
                _write_part(parts, i, part, encode([e.data for e in part if e.data is not None]))
            yield i, part
        return
    for wave in _waves(chunks, 32):
        missing = [(i, part) for i, part in wave if not _part(parts, i).is_file()]
        for i, encodings in _on_cluster(missing, encoding, cluster):
            _write_part(parts, i, dict(missing)[i], encodings)
        yield from wave


def _waves(chunks: Iterable[Any], size: int) -> Iterator[list[Any]]:
    chunks = iter(chunks)
    while wave := list(itertools.islice(chunks, size)):
        yield wave


def _on_cluster(chunks: list[tuple[int, list[Entry]]], encoding: str, cluster: str) -> Iterator[tuple[int, list[Tensor]]]:
    """Chunks through Ray Data, in whatever order they are done."""
    import ray
    import ray.data

    if not ray.is_initialized():
        ray.init(address=cluster, log_to_driver=False, include_dashboard=False if cluster == "local" else None)
    if not chunks:
        return
    items = []
    for i, part in chunks:
        graphs = [e.data for e in part if e.data is not None]
        items.append({
            "chunk": i, "encoding": encoding, "nodes": [g.num_nodes or 0 for g in graphs],
            "edges": [g.edge_index.flatten().tolist() for g in graphs if g.edge_index is not None],
        })  # fmt: skip

    for row in ray.data.from_items(items).map(_work).iter_rows():
        values = zip(row["values"], row["dim"], strict=True)
        yield int(row["chunk"]), [torch.tensor(list(x), dtype=torch.float32).view(-1, int(d)) for x, d in values]


def _work(item: dict[str, Any]) -> dict[str, Any]:
    """One chunk, on a worker."""
    torch.set_num_threads(1)
    graphs = [
        Data(edge_index=torch.as_tensor(list(e), dtype=torch.long).view(2, -1), num_nodes=int(n))
        for n, e in zip(item["nodes"], item["edges"], strict=True)
    ]
    found = encoder(item["encoding"])(graphs)
    return {"chunk": item["chunk"], "dim": [x.shape[1] for x in found], "values": [x.flatten().tolist() for x in found]}


def _part(parts: Path, i: int) -> Path:
    return parts / f"part-{i:06d}.parquet"


def _write_part(parts: Path, i: int, entries: list[Entry], encodings: list[Tensor]) -> None:
    """The bad ones first, so that a part that is there has both."""
    import pyarrow as pa
    import pyarrow.parquet

    with whole_file(_part(parts, i).with_suffix(".bad.csv")) as temporary, temporary.open("w", newline="") as file:
        csv.writer(file).writerows((e.row, e.name, e.error) for e in entries if e.data is None)
    good = [e for e in entries if e.data is not None]
    table = pa.table(
        {
            "row": pa.array([e.row for e in good], pa.int64()),
            "name": pa.array([e.name for e in good], pa.string()),
            "nodes": pa.array([len(x) for x in encodings], pa.int32()),
            "encoding": pa.array([x.flatten().numpy() for x in encodings], pa.list_(pa.float32())),
        }
    )
    with whole_file(_part(parts, i)) as temporary:
        pyarrow.parquet.write_table(table, temporary)


def _join(parts: Path, out: Path) -> None:
    """All parts as one file, and the list of bad ones beside it."""
    import pyarrow as pa
    import pyarrow.parquet

    files = sorted(parts.glob("part-*.parquet"))
    schema = pa.schema(
        [("row", pa.int64()), ("name", pa.string()), ("nodes", pa.int32()), ("encoding", pa.list_(pa.float32()))]
    )
    with whole_file(out.with_suffix(".bad.csv")) as temporary, temporary.open("w") as file:
        file.write("row,name,error\n")
        for path in files:
            file.write(path.with_suffix(".bad.csv").read_text())
    with whole_file(out) as temporary, pyarrow.parquet.ParquetWriter(temporary, schema) as writer:
        for path in files:
            writer.write_table(pyarrow.parquet.read_table(path))
    shutil.rmtree(parts)
