"""Many molecules in flat arrays: read from SMILES by several processes, saved in a file that is mapped, never unpickled.

>>> table, bad = from_smiles(["CCO", "not a molecule", "c1ccccc1", "C"])
>>> len(table), table.labels, [row for row, _ in bad]
(2, ('C', 'O'), [1, 3])
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ohmformer.experiments.molecules.features import Described, describe_all
from ohmformer.graph.extras import require
from ohmformer.graph.files import whole_file
from ohmformer.graph.ragged import Spans

FORMAT = "ohmformer molecules 1"
CHUNK = 200
"""Number of molecules per task of a process."""
LOGP, ACCESSIBILITY, RING, NETWORKX_RING = range(4)
"""Columns of :attr:`MoleculeTable.parts`."""

Progress = Callable[[int], None]
Bad = list[tuple[int, str]]
"""Rows of the input that are not molecules, with the reason."""


@dataclass(frozen=True)
class MoleculeTable:
    """Molecules of a file, each bond once; :attr:`nodes` and :attr:`bonds` give the rows of each molecule."""

    atom: Int[Tensor, " nodes"]
    """The label of every atom, as an index into ``labels``."""
    ends: Int[Tensor, "2 bonds"]
    """The two atoms of every bond, numbered within the molecule."""
    bond: Int[Tensor, " bonds"]
    """The label of every bond, as an index into :data:`~ohmformer.experiments.molecules.features.BONDS`."""
    node_start: Int[Tensor, " molecules_and_end"]
    bond_start: Int[Tensor, " molecules_and_end"]
    parts: Float[Tensor, "molecules parts"]
    """The values that determine the target: logP, accessibility, longest ring, networkx's longest ring; or one column."""
    row: Int[Tensor, " molecules"]
    """The row of every molecule in its file."""
    labels: tuple[str, ...]
    """Labels of atoms, sorted."""

    def __len__(self) -> int:
        return len(self.node_start) - 1

    @cached_property
    def nodes(self) -> Spans:
        """The atoms of each molecule."""
        return Spans(self.node_start)

    @cached_property
    def bonds(self) -> Spans:
        """The bonds of each molecule."""
        return Spans(self.bond_start)

    @property
    def sizes(self) -> Int[Tensor, " molecules"]:
        """The number of atoms of every molecule."""
        return self.nodes.counts

    def rows(self, which: Int[Tensor, " chosen"]) -> MoleculeTable:
        """Return the selected molecules, in the given order."""
        nodes, bonds = self.nodes.rows(which), self.bonds.rows(which)
        return replace(
            self, atom=self.atom[nodes], ends=self.ends[:, bonds], bond=self.bond[bonds],
            node_start=self.nodes.select(which).start, bond_start=self.bonds.select(which).start,
            parts=self.parts[which], row=self.row[which],
        )  # fmt: skip

    def relabelled(self, labels: Sequence[str]) -> tuple[MoleculeTable, list[str]]:
        """Re-index atom labels to another list; missing labels are returned, and their atoms get ``len(labels)``."""
        place = {label: i for i, label in enumerate(labels)}
        used = set(self.atom.unique().tolist())
        new = torch.tensor([place.get(label, len(labels)) for label in self.labels], dtype=self.atom.dtype)
        missing = [label for i, label in enumerate(self.labels) if i in used and label not in place]
        return replace(self, atom=new[self.atom.long()], labels=tuple(labels)), missing

    def renumbered(self, permutation: Int[Tensor, " nodes"]) -> MoleculeTable:
        """Renumber the atoms of every molecule: atom i becomes atom ``permutation[i]``."""
        first = self.nodes.first
        atom = torch.empty_like(self.atom).scatter(0, first[self.nodes.owner] + permutation, self.atom)
        return replace(self, atom=atom, ends=permutation.to(self.ends.dtype)[self.ends.long() + first[self.bonds.owner]])

    def save(self, path: Path) -> Path:
        """Write a safetensors file atomically."""
        tensors = {f.name: getattr(self, f.name).contiguous() for f in fields(self) if f.name != "labels"}
        with whole_file(path) as temporary:
            temporary.write_bytes(save(tensors, {"format": FORMAT, "labels": json.dumps(self.labels)}))
        return path

    @classmethod
    def load(cls, path: Path) -> MoleculeTable:
        """Read a file written by :meth:`save`, mapped into memory."""
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != FORMAT:
                    raise ValueError(f"expected {FORMAT!r} in {path.name}, got {metadata.get('format')!r}")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(f"expected processed molecules in {path.name}: {error}") from error
        return cls(**tensors, labels=tuple(json.loads(metadata["labels"])))

    @classmethod
    def of(cls, found: Described) -> MoleculeTable:
        """Convert molecules read by :func:`~ohmformer.experiments.molecules.features.describe_all`."""
        arrays = {
            name: torch.from_numpy(getattr(found, name)) for name in ("atom", "node_start", "bond_start", "parts", "row")
        }
        bonds = torch.from_numpy(found.bonds)
        return cls(**arrays, ends=bonds[:, :2].T.contiguous(), bond=bonds[:, 2].contiguous(), labels=found.labels)

    @classmethod
    def join(cls, tables: Sequence[MoleculeTable]) -> MoleculeTable:
        """Concatenate several tables, over the union of their labels."""
        labels = sorted({label for table in tables for label in table.labels})
        tables = [table.relabelled(labels)[0] for table in tables]

        def starts(name: str) -> Tensor:
            return Spans.of(torch.cat([getattr(table, name).diff() for table in tables])).start

        flat = {name: torch.cat([getattr(t, name) for t in tables]) for name in ("atom", "bond", "parts", "row")}
        ends = torch.cat([t.ends for t in tables], dim=1)
        return cls(**flat, ends=ends, node_start=starts("node_start"), bond_start=starts("bond_start"), labels=tuple(labels))


# ---------------------------------------------------------------------------------------------------- from SMILES


def from_smiles(
    smiles: Iterable[str],
    *,
    targets: Sequence[float] | None = None,
    as_written: bool = False,
    workers: int = 1,
    progress: Progress | None = None,
) -> tuple[MoleculeTable, Bad]:
    """Read many SMILES; return the molecules and the rows that could not be read.

    ``targets`` replace the parts of the penalised logP; ``as_written`` keeps stereo marks and the order of atoms.
    """
    require("rdkit", "molecules")
    chunks = _chunks(smiles)
    tables: list[MoleculeTable] = []
    bad: Bad = []
    for found in _results(chunks, workers, partial(describe_all, as_written=as_written)):
        tables.append(MoleculeTable.of(found))
        bad += found.bad
        if progress:
            progress(sum(map(len, tables)) + len(bad))
    if not any(map(len, tables)):
        raise ValueError(f"expected molecules as SMILES, got none in {len(bad)} lines" + (f": {bad[0][1]}" if bad else ""))
    table = MoleculeTable.join(tables)
    if targets is not None:
        table = replace(table, parts=torch.tensor(targets, dtype=torch.float64)[table.row].float()[:, None])
    return table, bad


def _chunks(smiles: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    rest, first = iter(smiles), 0
    while chunk := list(itertools.islice(rest, CHUNK)):
        yield first, chunk
        first += len(chunk)


def _results(
    chunks: Iterator[tuple[int, list[str]]], workers: int, read: Callable[[int, list[str]], Described]
) -> Iterator[Described]:
    """Read the chunks in several processes, in order, few at a time; this process works too while the others start."""
    if workers <= 1:
        yield from itertools.starmap(read, chunks)
        return
    with ProcessPoolExecutor(workers - 1, multiprocessing.get_context("forkserver")) as pool:
        waiting: deque[Future[Described]] = deque()
        while True:
            busy = sum(not result.done() for result in waiting)
            waiting += [pool.submit(read, *chunk) for chunk in itertools.islice(chunks, max(0, 2 * workers - 1 - busy))]
            while waiting and waiting[0].done():
                yield waiting.popleft().result()
            if (own := next(chunks, None)) is None:
                break
            waiting.append(Future())
            waiting[-1].set_result(read(*own))
        yield from (result.result() for result in waiting)
