"""``ohmformer learn`` and ``reproduce``."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ohmformer.apps.command_line.errors import one_sentence
from ohmformer.apps.command_line.progress import progress

if TYPE_CHECKING:
    from rich.console import Console

    from ohmformer.experiments.learn.train import Progress, Result

RUNS = Path("runs/learn")
TABLES = ("table2", "table2-zinc", "table2-qm9", "zinc12k", "zinc12k-pairs", "csl")
"""Choices of ``reproduce`` other than figures."""


def learn(
    task: Annotated[str, typer.Option(help="electric, resistive, heat or eigenvectors.")] = "electric",
    graphs: Annotated[str, typer.Option(help="csl, fc, or any family of the core.")] = "csl",
    model: Annotated[str, typer.Option(help="efficient or dense.")] = "efficient",
    layers: Annotated[int, typer.Option(help="Depth.")] = 3,
    init: Annotated[str, typer.Option(help="random, or construction: start near the task's lemma.")] = "construction",
    loss: Annotated[str, typer.Option(help="demand or frobenius; eigenvectors: 1-10 or 1-5.")] = "",
    seeds: Annotated[int, typer.Option(help="How many seeds, trained side by side.")] = 3,
    first_seed: Annotated[int, typer.Option(help="The first of them.")] = 0,
    nodes: Annotated[int, typer.Option(help="Nodes of a graph.")] = 10,
    spread: Annotated[float, typer.Option(help="Resistances are exp(U[-spread, spread]).")] = 2.0,
    batch: Annotated[int, typer.Option(help="Graphs a step and seed; 0 chooses.")] = 0,
    normalize: Annotated[str, typer.Option(help="paper, or features: leave B as it is.")] = "",
    budget: Annotated[str | None, typer.Option(help="How long to train: 40s, 5m, 1h.")] = None,
    steps: Annotated[int | None, typer.Option(help="Or how many steps.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint, if there is one.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/learn/NAME unless given.")] = None,
    every: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print nothing but the result, as JSON.")] = False,
) -> None:
    """Train one setting and report both log losses on 4,000 new random graphs."""
    with one_sentence(OSError):
        if steps is not None and budget is not None:
            raise ValueError("expected either --steps or --budget, got both")
        import torch
        from rich.console import Console

        from ohmformer.experiments.learn.setting import Setting, seconds
        from ohmformer.experiments.learn.train import train
        from ohmformer.graph.files import check_folder, write_text

        torch.set_num_threads(1)  # the matrices have about a dozen rows: threads would only wait for each other
        setting = Setting(task, graphs, model, layers, init, loss, seeds, first_seed, nodes, spread, batch, normalize)
        if steps is None and budget is None:
            budget = "40s"
        folder = out if out is not None else RUNS / setting.name
        check_folder(folder)
        console = Console(stderr=True, quiet=as_json)
        console.print(f"{setting.name}: {seeds} seeds from {first_seed} on, checkpoint in {folder}")
        with progress("training", quiet=as_json) as show:
            result = train(
                setting, steps=steps, budget=None if budget is None else seconds(budget), folder=folder, resume=resume,
                watch=lambda at: show(at.step, at.steps, _describe(at)), every=every,
            )  # fmt: skip
        text = json.dumps(result.as_dict(), indent=2)
        write_text(folder / "result.json", text + "\n")
        _print_result(result, console)
        typer.echo(text)


def reproduce(
    figures: Annotated[
        list[str] | None,
        typer.Argument(help="fig1, fig2, fig3 (all three), table2, table2-zinc, table2-qm9, zinc12k, zinc12k-pairs, csl."),
    ] = None,
    preset: Annotated[str, typer.Option(help="quick, standard, settled or paper.")] = "quick",
    data: Annotated[str, typer.Option(help="table2: zinc, qm9, or as for ohmformer train.")] = "zinc",
    smiles: Annotated[Path | None, typer.Option(help="table2: folder of NAME_valid and NAME_test files.")] = None,
    encoding: Annotated[list[str] | None, typer.Option(help="Tables: which; all of the table's unless given.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Tables: how many; 2 for table2, else 3 (5 folds).")] = None,
    setting: Annotated[list[str] | None, typer.Option("--set", help="Tables: change a field of all runs.")] = None,
    cluster: Annotated[str | None, typer.Option(help="Address of a Ray cluster, or local to start one here.")] = None,
    workers: Annotated[int, typer.Option(help="Processes on this machine.")] = 2,
    runs: Annotated[Path, typer.Option(help="Where results of single settings are kept.")] = Path("runs/reproduce"),
    out: Annotated[Path, typer.Option(help="Where pictures and tables go.")] = Path("results"),
) -> None:
    """Train and draw Figures 1, 2 and 3, or the tables on molecules; finished training runs are not repeated."""
    tables = [name for name in figures or [] if name in TABLES]
    if tables:
        from ohmformer.apps.command_line.molecules import benchmark, table2

        with one_sentence(OSError):
            _check_folders(runs, out)
            for name in tables:
                where = {"runs": runs / name, "out": out, "workers": workers, "smiles": smiles}
                if name == "table2":
                    table2(data, preset, encoding, 2 if seeds is None else seeds, setting or [], **where)
                else:
                    benchmark(name, encoding, seeds, setting or [], **where)
        figures = [name for name in figures or [] if name not in tables]
        if not figures:
            return
    with one_sentence(OSError):
        _check_folders(runs, out)
        from rich.console import Console

        from ohmformer.experiments.learn import figures as drawing
        from ohmformer.experiments.learn.sweep import run_all
        from ohmformer.native import machine

        wanted = {name: drawing.jobs(name, preset) for name in figures or drawing.PANELS}
        console = Console(stderr=True)

        def draw(results: dict) -> list[str]:
            """Draw what there is of every figure, also while other settings are still being trained."""
            paths = []
            for name, jobs in wanted.items():
                if found := {job: results[job] for job in jobs if job in results}:
                    part = "" if len(found) == len(set(jobs)) else f", {len(found)} of {len(set(jobs))} settings so far"
                    note = f"`ohmformer reproduce {name} --preset {preset}`{part}, {machine.one_line()}."
                    paths += [f"{name}: {path}" for path in drawing.write(name, preset, found, out, note)]
            return paths

        with progress("settings") as show:

            def finished(name: str, results: dict, total: int) -> None:
                show(len(results), total, f"{name or 'settings':<52}")
                draw(results)

            every = [job for jobs in wanted.values() for job in jobs]
            results = run_all(every, runs / preset, cluster=cluster, workers=workers, watch=finished)
        for line in draw(results):
            console.print(line)
        console.print(f"`ohmformer report --results {out}` puts them on one page, beside the authors' numbers")


def _check_folders(*folders: Path) -> None:
    from ohmformer.graph.files import check_folder

    for folder in folders:
        check_folder(folder)


def _describe(at: Progress) -> str:
    """Format the progress of training: loss, log loss, graphs per second."""
    log = sum(math.log(x) if x > 0 else math.nan for x in at.loss) / len(at.loss)
    rate = at.samples * len(at.loss) / max(at.seconds, 1e-9)
    return f"training: loss {sum(at.loss) / len(at.loss):.3e}, log {log:.3f}, {rate:,.0f} graphs/s"


def _print_result(result: Result, console: Console) -> None:
    for name, values in result.losses.items():
        if name.startswith("log_"):
            each = ", ".join(f"{value:.3f}" for value in values)
            console.print(f"{name:<14} {result.mean(name):8.3f}   ({each})")
    console.print(f"{result.steps} steps, {result.samples} graphs a seed, {result.seconds:.1f} s")
