"""Whether this code repeats stored trainings: their first epochs are trained again and compared with the stored history.

A run depends on its configuration alone, to the last digit on one kind of processor. So where the first epochs are the same,
the stored result is that of this code too; where they differ, the run has to be trained again.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from measure import RESULTS, write_table
from ohmformer.experiments.molecules.config import RunConfig
from ohmformer.experiments.molecules.data import RunData
from ohmformer.experiments.molecules.sources import tables
from ohmformer.experiments.molecules.training import train

ERRORS = ("train", "valid")


class Enough(Exception):
    """Raised after as many epochs as are compared."""


def first_epochs(config: RunConfig, epochs: int) -> list[dict[str, Any]]:
    """The history of the first epochs of a run, trained now."""
    history: list[dict[str, Any]] = []

    def collect(row: dict[str, int | float], total: int) -> None:
        history.append(row)
        if len(history) == epochs:
            raise Enough

    with tempfile.TemporaryDirectory() as folder, suppress(Enough):
        train(config, RunData(config, tables(config)), Path(folder), progress=collect)
    return history


def difference(folder: Path, epochs: int) -> float:
    """The largest difference of errors in training and validation between a stored history and one trained now."""
    with (folder / "history.csv").open() as file:
        stored = list(csv.DictReader(file))[:epochs]
    now = first_epochs(RunConfig.of(json.loads((folder / "config.json").read_text())), epochs)
    return max(abs(float(a[name]) - float(b[name])) for a, b in zip(stored, now, strict=True) for name in ERRORS)


def main() -> None:
    """Train, print, and write results/NAME-repeated.md, NAME being that of the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=RESULTS / "zinc12k", help="folder of runs, each with its history")
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for path in sorted(options.folder.glob("*/history.csv")):
        found = difference(path.parent, options.epochs)
        rows.append([path.parent.name, "to the last digit" if found == 0 else f"{found:.1e}"])
        print(*rows[-1], flush=True)
    header = ["run", f"first {options.epochs} epochs repeated"]
    notes = "Largest difference of an error, in training or validation."
    write_table(
        f"{options.folder.name}-repeated", f"Stored runs of {options.folder.name}, repeated", header, rows, notes=notes
    )


if __name__ == "__main__":
    main()
