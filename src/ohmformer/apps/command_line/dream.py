"""``ohmformer dream``: how much of electric flow does a trained model hold?"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ohmformer.apps.command_line.errors import one_sentence
from ohmformer.apps.command_line.progress import progress

if TYPE_CHECKING:
    from rich.console import Console


def dream(
    what: Annotated[
        str,
        typer.Argument(
            help="A run of ohmformer learn, a folder of runs of ohmformer train or reproduce, or MODULE:FUNCTION that "
            "returns your model and a list of PyG graphs."
        ),
    ],
    layer: Annotated[list[str] | None, typer.Option(help="Your model: names of submodules; found out unless given.")] = None,
    seeds: Annotated[int, typer.Option(help="Splits of the graphs into those to fit on and those to judge by.")] = 3,
    molecules: Annotated[int, typer.Option(help="Folder of runs: how many test molecules.")] = 400,
    smiles: Annotated[Path | None, typer.Option(help="Folder of runs: where the files of molecules are, if needed.")] = None,
    kept: Annotated[Path, typer.Option(help="Where finished parts are kept; an interrupted command goes on there.")] = Path(
        "runs/dream"
    ),
    out: Annotated[
        Path | None, typer.Option(help="Folder for table and pictures; results unless given (a run's own).")
    ] = None,
) -> None:
    """Probe the node states of every layer of a trained model, with controls; or examine a run of ohmformer learn."""
    with one_sentence(OSError):
        import torch
        from rich.console import Console

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        console, path = Console(stderr=True), Path(what)
        if ":" in what and not path.exists():
            paths = _own_model(what, layer, seeds, kept, out or Path("results"))
        elif path.is_dir() and any(path.glob("*/result.json")) and not (path / "checkpoint.safetensors").exists():
            paths = _folder_of_runs(path, molecules, seeds, smiles, kept, out or Path("results"))
        else:
            from ohmformer.experiments.learn.checkpoint import load
            from ohmformer.experiments.learn.probe import write

            paths = write(load(path), out if out is not None else path if path.is_dir() else path.parent)
        _show(paths, console)


def _own_model(what: str, layers: list[str] | None, seeds: int, kept: Path, out: Path) -> list[Path]:
    """Probe the model returned by a function."""
    from ohmformer.experiments.dream import probe

    module, _, name = what.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        function: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"expected MODULE:FUNCTION that can be imported from here, got {what!r} ({error})") from error
    finally:
        sys.path.pop(0)
    wanted = f"expected {what} to be a function without arguments that returns a model and a list of graphs"
    if not _needs_nothing(function):
        raise ValueError(f"{wanted}, it cannot be called without arguments")
    made = function()
    if not isinstance(made, tuple) or len(made) != 2:
        raise ValueError(f"{wanted}, it returns {type(made).__name__}")
    with progress("probing") as show:
        found = probe(*made, layers=layers, seeds=seeds, folder=kept / what.replace(":", "-"), progress=show)
    return found.save(out)


def _needs_nothing(function: Any) -> bool:
    """Tell whether this is a function that can be called without arguments."""
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        return False
    return True


def _folder_of_runs(runs: Path, molecules: int, seeds: int, smiles: Path | None, kept: Path, out: Path) -> list[Path]:
    """Probe all finished runs of a folder."""
    from ohmformer.experiments.dream.study import run_study, write
    from ohmformer.graph.extras import require
    from ohmformer.native import machine

    require("lightning", "train")
    with progress("probing") as show:
        found = run_study(runs, kept, molecules=molecules, seeds=seeds, smiles=smiles, progress=show)
    note = f"`ohmformer dream {runs.name} --molecules {molecules} --seeds {seeds}`, {len(found)} runs, {machine.one_line()}."
    return write(found, out, note)


def _show(paths: list[Path], console: Console) -> None:
    for path in paths:
        console.print(f"dream: {path}")
    typer.echo(paths[0].read_text(encoding="utf-8"))
