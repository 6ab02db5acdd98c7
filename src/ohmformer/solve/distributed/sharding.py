"""Cut a graph that need not fit into memory into parts, one file for each process that will hold it.

The edges are read three or four times: to count (degrees, components), to compute a partition, and to assign every edge to
the parts of its ends. The parts are then built one at a time. Memory holds only some numbers per node, a chunk of edges, and
one part. Finished steps are kept, and the same call resumes after them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int
from safetensors.numpy import save_file
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ohmformer.graph.files import check_folder, whole_file
from ohmformer.solve.distributed import partition as rules
from ohmformer.solve.distributed.part_file import DirectionsDiffer, entry_type, part_arrays
from ohmformer.solve.distributed.streams import Chunk, EdgeStream

FORMAT = "ohmformer shards 1"
MANIFEST = "manifest.json"
PARTS = 2**15 - 1

Progress = Callable[[str, int, int | None], None]
"""Callback with the current step, the number of edges or parts done, and the total if known."""


@dataclass(frozen=True)
class PartFile:
    """One part as listed in the manifest."""

    name: str
    sha256: str
    rows: int
    halo: int
    entries: int
    """Entries of the Laplacian, diagonal included."""


@dataclass(frozen=True)
class Manifest:
    """The description of a folder of shards."""

    graph: str
    """The SHA-256 of all edges and of the partition, repeated in every part."""
    nodes: int
    edges: int
    """Listed edges without loops."""
    loops: int
    """Edges from a node to itself, which are ignored."""
    both: int
    """Node pairs listed in both directions: parallel edges, or one edge each if the list was symmetrized."""
    components: int
    shared: int
    """Components with nodes in more than one part, numbered first."""
    partition: str
    cut: int
    """Number of edges between parts."""
    files: list[PartFile]

    def write(self, folder: Path) -> None:
        """Write the manifest atomically."""
        with whole_file(folder / MANIFEST) as temporary:
            temporary.write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=1))

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read a manifest; raise a ValueError that says what is wrong with the folder."""
        path = folder / MANIFEST
        if not path.is_file():
            more = ", sharding was not finished" if _unfinished(folder).is_dir() else ""
            raise ValueError(f"expected shards as `ohmformer shard` makes them in {folder}, it has no {MANIFEST}{more}")
        try:
            found = json.loads(path.read_text())
            if found.pop("format") != FORMAT:
                raise ValueError("another format")
            return cls(**{**found, "files": [PartFile(**x) for x in found["files"]]})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"expected {path} of format {FORMAT!r}, it cannot be read: {error}") from None


def shard(
    edges: EdgeStream,
    out: Path,
    parts: int,
    *,
    partition: str = "auto",
    nodes: int | None = None,
    symmetrize: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Write ``parts`` parts of a graph and their manifest to the folder ``out``; after an interruption the call resumes.

    If the edges are refused, what was written is removed.

    Parallel edges are summed, loops ignored. ``nodes`` is one more than the largest node number by default. ``partition`` is
    ``"metis"``, ``"stream"``, ``"ranges"``, or ``"auto"``: METIS if it is installed and the graph fits in memory, else the
    one of the others that cuts fewer edges. ``symmetrize`` merges (u, v) and (v, u) into one edge; their weights must agree.
    """
    if not 1 <= parts <= PARTS:
        raise ValueError(f"expected 1 to {PARTS} parts, got {parts}")
    if partition not in rules.RULES:
        raise ValueError(f"expected a partition among {', '.join(rules.RULES)}, got {partition!r}")
    if partition == "metis":
        rules.require("pymetis", "shards")
    asked = {"edges": edges.name, "size": edges.size, "mark": edges.mark, "weights": edges.kind, "parts": parts,
             "partition": partition, "nodes": nodes, "symmetrize": symmetrize}  # fmt: skip
    check_folder(out)
    work, is_new = _unfinished(out), not out.exists()
    note = (out if (out / MANIFEST).is_file() else work) / "asked.json"
    if note.is_file() and json.loads(note.read_text()) != asked:
        raise ValueError(f"expected {out} to be of the same edges and options, it is of others; remove it to start over")
    if (out / MANIFEST).is_file():
        return Manifest.read(out)
    if out.is_dir() and not work.is_dir() and any(out.iterdir()):
        raise ValueError(f"expected a new or empty folder for shards, {out} holds other files")
    with whole_file(work / "asked.json") as temporary:
        temporary.write_text(json.dumps(asked))
    try:
        manifest = _made(edges, out, parts, partition, nodes, symmetrize, progress or (lambda what, done, of: None))
    except ValueError:
        for p in range(parts):
            (out / _part_name(p)).unlink(missing_ok=True)
        shutil.rmtree(work)
        if is_new:
            out.rmdir()
        raise
    shutil.copyfile(work / "asked.json", out / "asked.json")
    manifest.write(out)
    shutil.rmtree(work)
    return manifest


def _made(
    edges: EdgeStream, out: Path, parts: int, partition: str, nodes: int | None, symmetrize: bool, tell: Progress
) -> Manifest:
    """Write the parts and describe them."""
    work = _unfinished(out)
    counted = _counted(edges, nodes, work, tell)
    placed = _placed(edges, counted, parts, partition, work, tell)
    _hand_out(edges, counted.listed, placed, parts, work, tell)
    files, both = [], 0
    for p in range(parts):
        found, twice = _part(p, parts, edges, placed, out, symmetrize)
        files.append(found)
        both += twice
        tell("making parts", p + 1, parts)
    return Manifest(
        placed.graph, counted.nodes, counted.edges, counted.loops, both // 2, placed.components, placed.shared, placed.rule,
        placed.cut, files,
    )  # fmt: skip


def _unfinished(out: Path) -> Path:
    return out / "unfinished"


# ---------------------------------------------------------------------------------------------------- nodes


@dataclass(frozen=True)
class Counted:
    """The results of one pass over the edges."""

    edges: int
    loops: int
    digest: str
    degree: Int[np.ndarray, " nodes"]
    """Number of edge ends at every node, without loops."""
    root: Int[np.ndarray, " nodes"]
    """The smallest node of every node's component."""

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.degree)

    @property
    def listed(self) -> int:
        """The number of listed edges, loops included."""
        return self.edges + self.loops


def _told(edges: EdgeStream, what: str, of: int | None, tell: Progress) -> Iterator[Chunk]:
    """Yield the chunks of a list of edges; ``tell`` receives the number of edges read."""
    done = 0
    for chunk in edges:
        yield chunk
        done += len(chunk.tail)
        tell(what, done, of)


def _counted(edges: EdgeStream, nodes: int | None, work: Path, tell: Progress) -> Counted:
    path = work / "counted.npz"
    if path.is_file():
        with np.load(path) as kept:
            return Counted(int(kept["edges"]), int(kept["loops"]), str(kept["digest"]), kept["degree"], kept["root"])
    degree, parent, digests = (
        np.zeros(nodes or 0, dtype=np.int64),
        np.arange(nodes or 0),
        [hashlib.sha256() for _ in range(3)],
    )
    count = loops = last = 0
    for chunk in _told(edges, "counting edges", edges.about, tell):
        most = max((int(x.max()) for x in (chunk.tail, chunk.head) if len(x)), default=-1) + 1
        if nodes is not None and most > nodes:
            raise ValueError(f"expected nodes 0 to {nodes - 1} in {edges.name}, got {most - 1}")
        last = max(last, most)
        if most > len(degree):
            more = np.arange(len(degree), max(most, min(2 * len(degree), most + 2**20)))
            degree, parent = np.concatenate([degree, np.zeros_like(more)]), np.concatenate([parent, more])
        real = chunk.tail != chunk.head
        ends = chunk.tail[real], chunk.head[real]
        for x in ends:
            degree += np.bincount(x, minlength=len(degree))
        _join(parent, *ends)
        count, loops = count + len(ends[0]), loops + int((~real).sum())
        for digest, x in zip(digests, (chunk.tail, chunk.head, chunk.conductance), strict=True):
            digest.update(b"" if x is None else x.data)
    last = last if nodes is None else nodes
    root = _find(parent, np.arange(len(parent)))[:last]
    found = Counted(count, loops, " ".join(x.hexdigest() for x in digests), degree[:last], root)
    with whole_file(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **asdict(found))
    return found


def _join(parent: Int[np.ndarray, " nodes"], tail: np.ndarray, head: np.ndarray) -> None:
    """Join the components of the ends of edges; ``parent`` leads from every node to the smallest of its component."""
    a, b = _find(parent, tail), _find(parent, head)
    apart = a != b
    if apart.any():
        roots, place = np.unique(np.concatenate([a[apart], b[apart]]), return_inverse=True)
        u, v = np.split(place, 2)
        shape = (len(roots), len(roots))
        _, label = connected_components(coo_array((np.ones(len(u), dtype=np.int8), (u, v)), shape=shape), directed=False)
        least = np.full(len(roots), len(parent))
        np.minimum.at(least, label, roots)
        parent[roots] = least[label]


def _find(parent: Int[np.ndarray, " nodes"], nodes: np.ndarray) -> np.ndarray:
    """Return the roots of nodes in ``parent``, and shorten the paths to them."""
    found = parent[nodes]
    while True:
        further = parent[found]
        if np.array_equal(further, found):
            parent[nodes] = found
            return found
        found = further


@dataclass(frozen=True)
class Placed:
    """The part of every node, and the numbering of components."""

    graph: str
    rule: str
    cut: int
    owner: Int[np.ndarray, " nodes"]
    component: Int[np.ndarray, " nodes"]
    """Component numbers: first the components with nodes in several parts, then the others from :attr:`shared` on."""
    components: int
    shared: int


def _placed(edges: EdgeStream, counted: Counted, parts: int, rule: str, work: Path, tell: Progress) -> Placed:
    path = work / "placed.npz"
    if path.is_file():
        with np.load(path) as kept:
            numbers = (int(kept[x]) for x in ("components", "shared"))
            return Placed(
                str(kept["graph"]), str(kept["rule"]), int(kept["cut"]), kept["owner"], kept["component"], *numbers
            )
    owner, rule, crossing = _partition(edges, counted, parts, rule, tell)
    first, last = np.full(counted.nodes, parts, dtype=np.int16), np.full(counted.nodes, -1, dtype=np.int16)
    np.minimum.at(first, counted.root, owner)
    np.maximum.at(last, counted.root, owner)
    roots = np.flatnonzero(last >= 0)
    roots = roots[np.argsort(first[roots] == last[roots], kind="stable")]  # components in several parts first
    number = np.empty(counted.nodes, dtype=np.int64)
    number[roots] = np.arange(len(roots))
    graph = hashlib.sha256(f"{counted.digest} {parts}".encode() + owner.tobytes()).hexdigest()
    shared = int((first[roots] < last[roots]).sum())
    found = Placed(graph, rule, crossing, owner, number[counted.root], len(roots), shared)
    with whole_file(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **asdict(found))
    return found


def _partition(edges: EdgeStream, counted: Counted, parts: int, rule: str, tell: Progress) -> tuple[np.ndarray, str, int]:
    """Return the part of every node, the rule, and the number of cut edges."""
    if rule == "auto" and counted.edges <= rules.METIS_EDGES and 1 < parts <= counted.nodes and rules.have_metis():
        rule = "metis"
    made = {
        "ranges": lambda: rules.by_ranges(counted.degree, parts),
        "stream": lambda: rules.by_stream(_told(edges, "forming clusters", counted.listed, tell), counted.degree, parts),
        "metis": lambda: rules.by_metis(_told(edges, "reading edges for METIS", counted.listed, tell), counted.nodes, parts),
    }
    names = ("ranges", "stream") if rule == "auto" and parts > 1 else ("ranges",) if rule == "auto" else (rule,)
    found = [(made[name](), name) for name in names]
    cuts = rules.cuts(_told(edges, "counting edges between parts", counted.listed, tell), [owner for owner, _ in found])
    best = min(range(len(found)), key=lambda i: cuts[i])
    return *found[best], cuts[best]


# ---------------------------------------------------------------------------------------------------- parts


def _hand_out(edges: EdgeStream, listed: int, placed: Placed, parts: int, work: Path, tell: Progress) -> None:
    """Append both entries of every edge to the files of the parts that have the rows; record progress after every chunk."""
    note, kind = work / "handed_out.json", entry_type(len(placed.owner), edges.kind is not None)
    done = json.loads(note.read_text()) if note.is_file() else {"chunks": 0, "bytes": [0] * parts}
    paths = [_handed(work, p) for p in range(parts)]
    for path, size in zip(paths, done["bytes"], strict=True):
        with path.open("ab") as file:
            file.truncate(size)  # drop what was written after the last record
    for i, chunk in enumerate(_told(edges, "handing out edges", listed, tell)):
        if i < done["chunks"]:
            continue
        real = chunk.tail != chunk.head
        for turned, (row, column) in enumerate(((chunk.tail, chunk.head), (chunk.head, chunk.tail))):
            entries = np.empty(int(real.sum()), dtype=kind)
            entries["row"], entries["column"] = row[real], column[real]
            entries["value"] = (1 if chunk.conductance is None else chunk.conductance[real]) * (-1 if turned else 1)
            part = placed.owner[row[real]]
            order = np.argsort(part, kind="stable")
            ends = np.searchsorted(part[order], np.arange(parts + 1))
            for p in np.flatnonzero(np.diff(ends)):
                with paths[p].open("ab") as file:
                    entries[order[ends[p] : ends[p + 1]]].tofile(file)
        with whole_file(note) as temporary:
            temporary.write_text(json.dumps({"chunks": i + 1, "bytes": [path.stat().st_size for path in paths]}))


def _handed(work: Path, p: int) -> Path:
    return work / f"part-{p:05d}.entries"


def _part_name(p: int) -> str:
    return f"part-{p:05d}.safetensors"


def _part(p: int, parts: int, edges: EdgeStream, placed: Placed, out: Path, symmetrize: bool) -> tuple[PartFile, int]:
    """Build a part's file unless it exists; also count the entries whose edge is listed in both directions."""
    name, note, handed = _part_name(p), _unfinished(out) / f"part-{p:05d}.json", _handed(_unfinished(out), p)
    if note.is_file():
        kept = json.loads(note.read_text())
        return PartFile(**kept["file"]), kept["both"]
    entries = np.fromfile(handed, entry_type(len(placed.owner), edges.kind is not None))
    try:
        arrays, both = part_arrays(p, parts, entries, placed.owner, symmetrize)
    except DirectionsDiffer as error:
        raise ValueError(error.sentence(edges.kind or "conductance", edges.name)) from None
    arrays["component"] = placed.component[arrays["nodes"]]
    with whole_file(out / name) as temporary:
        save_file(arrays, temporary, metadata={"part": f"{p} of {placed.graph}"})  # a single entry, as their order is random
    made = PartFile(name, file_digest(out / name), len(arrays["nodes"]), len(arrays["halo"]), len(arrays["column"]))
    with whole_file(note) as temporary:
        temporary.write_text(json.dumps({"file": asdict(made), "both": both}))
    handed.unlink()
    return made, both


def file_digest(path: Path) -> str:
    """Compute the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
