"""``ohmformer train``, and ``ohmformer reproduce table2`` and the benchmarks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ohmformer.apps.command_line.errors import one_sentence
from ohmformer.apps.command_line.progress import progress

RUNS = Path("runs/molecules")


def train(
    data: Annotated[
        str, typer.Option(help="drugs, zinc12k, zinc, zinc22k, qm9, moses, aqsol, csl, or a file with SMILES.")
    ] = "drugs",
    encoding: Annotated[
        str, typer.Option(help="none, lappe, rwse, rrwp, ..., lt-diagonal, lt-pairs, lt-all-pairs.")
    ] = "lt-diagonal",
    preset: Annotated[str, typer.Option(help="quick, standard, best, gine, gps, csl, paper or notebook.")] = "quick",
    backbone: Annotated[str | None, typer.Option(help="gt, gps or gine; the preset's unless given.")] = None,
    smiles: Annotated[Path | None, typer.Option(help="Folder of NAME_train, NAME_valid and NAME_test files.")] = None,
    column: Annotated[str, typer.Option(help="Column of a table that holds the SMILES.")] = "smiles",
    setting: Annotated[list[str] | None, typer.Option("--set", help="Change a field of the run: --set epochs=10.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of runs.")] = RUNS,
    devices: Annotated[int, typer.Option(help="Processes on this machine.")] = 1,
    workers: Annotated[int, typer.Option(help="Processes that read SMILES.")] = os.cpu_count() or 1,
) -> None:
    """Train a model that predicts a number per molecule; run the command again to resume after an interruption."""
    with one_sentence(OSError):
        from ohmformer.experiments.molecules import config as configs

        chosen = {} if backbone is None else {"backbone": backbone}
        run = configs.preset(preset, data, encoding, **chosen, **configs.changes(setting or []))
        folder = out / run.name
        answer = run_in(run, folder, smiles=smiles, column=column, devices=devices, workers=workers)
    for part, labels in answer["unseen_labels"].items():
        typer.echo(f"{part} molecules have atoms unseen in training, {', '.join(labels)}: these get no label", err=True)
    typer.echo(
        f"test error {answer['test']:.4f} ({answer['test_relabelled']:.4f} with atoms renumbered), "
        f"validation {answer['valid']:.4f} in epoch {answer['best_epoch']}; "
        f"{answer['encoding_parameters']} of {answer['parameters']} parameters in the encoding; {folder}"
    )


def benchmark(
    name: str, encodings: list[str] | None, seeds: int | None, setting: list[str], *, runs: Path, out: Path, workers: int,
    smiles: Path | None,
) -> None:  # fmt: skip
    """Train the encodings of a named table; separate processes may train different encodings."""
    from ohmformer.experiments.molecules.table2 import BENCHMARKS

    table, where = BENCHMARKS[name], {"runs": runs, "out": out, "smiles": smiles, "workers": workers}
    every, count = table.encodings, table.seeds if seeds is None else seeds
    table2(table.data, table.preset, encodings or [*every], count, setting, **where, name=name, shown=every)


def table2(
    data: str,
    preset: str,
    encodings: list[str] | None,
    seeds: int,
    setting: list[str],
    *,
    runs: Path,
    out: Path,
    smiles: Path | None,
    workers: int,
    name: str | None = None,
    shown: Sequence[str] = (),
) -> None:
    """Train the runs of Table 2 one by one; the table and figure are rewritten after every run.

    ``name`` is the name of the table, by default given by data and preset; finished runs of the encodings ``shown`` are
    included too.
    """
    from ohmformer.experiments.molecules import config as configs
    from ohmformer.experiments.molecules import table2 as tables
    from ohmformer.graph.extras import require
    from ohmformer.native import machine

    require("matplotlib", "train")
    wanted = tables.grid(data, encodings or tables.GRID, seeds, preset, **configs.changes(setting))
    if not wanted:
        raise ValueError(f"expected at least one seed, got {seeds}")
    paths: tuple[Path, ...] = ()
    others = tables.grid(data, shown, seeds, preset, **configs.changes(setting))
    names = {run.name for run in (*wanted, *others)}
    command = f"table2 --data {data} --preset {preset}" if name is None else name
    note = " ".join([f"ohmformer reproduce {command}", *(f"--set {x}" for x in setting)])
    name = name or f"table2-{Path(data).name.split('.')[0]}-{preset}"
    for i, run in enumerate(wanted, 1):
        typer.echo(f"{i} of {len(wanted)}: {run.name}", err=True)
        run_in(run, runs / run.name, smiles=smiles, workers=workers)
        there = [found for found in tables.finished(runs) if found.config.name in names]
        paths = tables.write(there, out, name=name, note=f"`{note}`, {machine.one_line()}.")
    typer.echo(f"{name}: {', '.join(str(path) for path in paths)}", err=True)


def run_in(run, folder: Path, *, smiles: Path | None, column: str = "smiles", devices: int = 1, workers: int = 1) -> dict:
    """Read the data of a run and train it, with progress on standard error."""
    import logging

    import torch

    from ohmformer.experiments.molecules.data import RunData
    from ohmformer.experiments.molecules.sources import tables
    from ohmformer.experiments.molecules.training import check_same_run
    from ohmformer.experiments.molecules.training import train as fit
    from ohmformer.graph.extras import require

    require("tensorboard", "train")
    check_same_run(run, folder)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    with progress("reading molecules") as show:

        def read(molecules: int) -> None:
            show(molecules, None, "reading molecules")

        def trained(row: dict[str, int | float], epochs: int) -> None:
            note = f"training: error {row['train']:.4f}, validation {row['valid']:.4f}, {row['seconds']:.1f} s an epoch"
            show(int(row["epoch"]) + 1, epochs, note)

        found = tables(run, smiles=smiles, column=column, workers=workers, progress=read)
        show(0, run.epochs, "training")
        return fit(run, RunData(run, found), folder, devices=devices, progress=trained)
