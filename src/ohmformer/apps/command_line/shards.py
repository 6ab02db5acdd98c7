"""``ohmformer shard``, and ``ohmformer solve`` about a folder of shards, in the processes that ``torchrun`` starts."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ohmformer.apps.command_line.errors import one_sentence
from ohmformer.apps.command_line.progress import progress
from ohmformer.apps.command_line.questions import Task

if TYPE_CHECKING:
    from ohmformer.solve.answer import Answer
    from ohmformer.solve.distributed import Shard

USES: dict[Task, tuple[str, ...]] = {
    Task.resistance: ("--pair", "--pairs", "--eps", "--seed"),
    Task.potentials: ("--from", "--to", "--demands"),
    Task.heat: ("--from", "--s"),
    Task.embedding: ("--k", "--s", "--seed"),
    Task.eigenvectors: ("--k", "--seed"),
}
"""The tasks supported on shards, with the flags that affect each."""
VARIABLES = {"SLURM_PROCID": "RANK", "SLURM_NTASKS": "WORLD_SIZE", "SLURM_LOCALID": "LOCAL_RANK"}
"""Slurm's names for the variables of ``torchrun``."""
GRACE = 20.0
"""Seconds that a process continues after SIGTERM, which ``torchrun`` sends when another process is lost, to report which."""


def shard(
    edges: Annotated[
        Path, typer.Argument(help="Edges: .npz, .parquet, .csv, .tsv or .txt, the last three packed by gzip or not.")
    ],
    parts: Annotated[int, typer.Option(help="How many parts: one for each process that will solve.")],
    out: Annotated[Path, typer.Option(help="Folder to write: a file for each part, and manifest.json.")],
    partition: Annotated[str, typer.Option(help="metis, stream, ranges, or auto.")] = "auto",
    nodes: Annotated[int | None, typer.Option(help="How many nodes, if the last ones have no edge.")] = None,
    resistance: Annotated[str | None, typer.Option(help="Column (name or number) or array with resistances.")] = None,
    conductance: Annotated[str | None, typer.Option(help="The same for conductances.")] = None,
    unit: Annotated[bool, typer.Option("--unit", help="One ohm for every edge, whatever the file holds.")] = False,
    source: Annotated[str | None, typer.Option(help="Column that edges run from, if its name is unusual.")] = None,
    target: Annotated[str | None, typer.Option(help="Column that edges run to.")] = None,
    sep: Annotated[str | None, typer.Option(help="Between columns: ',' ';' tab space or one character.")] = None,
    header: Annotated[
        bool | None, typer.Option("--header/--no-header", help="Whether the first line names columns, if it is unclear.")
    ] = None,
    symmetrize: Annotated[bool, typer.Option("--symmetrize", help="Merge edges listed in both directions.")] = False,
) -> None:
    """Cut a graph into parts, one for each process that will hold it; the same command resumes an interrupted run."""
    with one_sentence(OSError), progress("reading") as show:
        from ohmformer.solve.distributed import edge_file
        from ohmformer.solve.distributed import shard as run

        stream = edge_file(
            edges, resistance=resistance, conductance=conductance, unit=unit, source=source, target=target, sep=sep,
            header=header,
        )  # fmt: skip
        made = run(
            stream, out, parts, partition=partition, nodes=nodes, symmetrize=symmetrize,
            progress=lambda words, done, of: show(done, of, words),
        )  # fmt: skip
    if made.both and not symmetrize:
        words = "pair stands" if made.both == 1 else "pairs stand"
        typer.echo(
            f"note: {made.both} {words} in both directions and count as parallel edges; --symmetrize merges", err=True
        )
    if made.loops:
        typer.echo(f"note: {made.loops} edges from a node to itself were left out", err=True)
    cut = made.cut / max(made.edges, 1)
    typer.echo(
        f"{made.nodes} nodes and {made.edges} edges in {len(made.files)} parts in {out}, by {made.partition}, {cut:.1%} of "
        f"the edges between parts; solve with: torchrun --nproc-per-node {len(made.files)} -m ohmformer solve {out}"
    )


def solve_shards(folder: Path, task: Task, given: Mapping[str, Any], out: Path | None) -> None:
    """Answer a question about shards; every process of the group runs this."""
    with _process_group() as rank:
        import torch

        from ohmformer.solve import distributed
        from ohmformer.solve.distributed.sharding import Manifest

        Manifest.read(folder)  # before the flags: the folder may hold anything
        _check_flags(task, given, out)
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        held = distributed.Shard.load(folder)
        answer = _ask(held, task, given, out)
        if rank == 0:
            error = "" if answer.error is None else f", error {answer.error:.1e} ({answer.error_kind})"
            note = f"; {answer.note}" if answer.note else ""
            typer.echo(f"{answer.method}, {answer.layers} layers, residual {answer.residual:.1e}{error}{note}", err=True)
            if out is not None:
                typer.echo(f"answer: {out}", err=True)


def _check_flags(task: Task, given: Mapping[str, Any], out: Path | None) -> None:
    if task not in USES:
        raise ValueError(f"expected a task among {', '.join(USES)} for shards, got {task}")
    for flag, value in given.items():
        if flag == "--sep" and given["--pairs"] is not None:
            continue
        if value not in (None, False) and flag not in (*USES[task], "--tol"):
            raise ValueError(f"expected no {flag} for --task {task} of shards, which uses {', '.join(USES[task])}")
    if out is None and not (task == Task.resistance and (given["--pair"] or given["--pairs"])):
        raise ValueError("expected --out FOLDER for the answer's files, got none")


def _ask(held: Shard, task: Task, given: Mapping[str, Any], out: Path | None) -> Answer:
    import numpy as np
    import torch

    from ohmformer.solve import distributed

    def tell(words: str) -> None:
        typer.echo(words, err=True)

    tol, seed = given["--tol"] or 1e-6, given["--seed"] or 0
    k = 6 if given["--k"] is None else given["--k"]
    if task == Task.eigenvectors:
        return distributed.eigenvectors(held, k, tol=tol, seed=seed, out=out, tell=tell)
    if task == Task.embedding:
        if given["--s"] is None:
            return distributed.resistive_embedding(held, k, seed=seed, tol=tol, out=out, tell=tell)
        return distributed.heat_embedding(held, k, given["--s"], seed=seed, tol=tol, out=out, tell=tell)
    if task == Task.resistance and not (given["--pair"] or given["--pairs"]):
        eps = 0.1 if given["--eps"] is None else given["--eps"]
        return distributed.edge_resistances(held, eps, seed=seed, tol=given["--tol"], out=out, tell=tell)
    if task == Task.resistance:
        pairs = _pairs(given, held.manifest.nodes)
        found = distributed.resistances(held, pairs, tol=tol, out=out, tell=tell)
        if held.group.rank == 0:
            from ohmformer.apps.command_line.printing import print_table

            ends, ohms = np.array(pairs), found.value.cpu().numpy()
            finite = np.where(np.isfinite(ohms), ohms, 0.0)
            off = {} if found.error is None else {"resistance": min(found.error, 0.5) * finite}
            print_table({"u": ends[:, 0], "v": ends[:, 1], "resistance": ohms}, off)
        return found
    signals = torch.zeros(len(held.nodes), 1, dtype=torch.float64)
    for flag, amount in (("--from", 1.0), ("--to", -1.0)):
        if given[flag] is not None:
            signals[held.places(torch.tensor([_Numbers(held.manifest.nodes).number(given[flag])]))[0]] += amount
    if task == Task.heat:
        if given["--from"] is None:
            raise ValueError("expected --from NODE for --task heat, got none")
        return distributed.heat(held, 0.5 if given["--s"] is None else given["--s"], signals, tol=tol, out=out, tell=tell)
    if given["--demands"] is not None:
        demands = _demands(given["--demands"], held)
        try:
            return distributed.potentials(held, demands, tol=tol, out=out, tell=tell)
        except ValueError as error:
            how = f"subtract its mean on each component from that column of {given['--demands']}"
            raise ValueError(str(error).replace("center them to subtract the mean", how)) from None
    if given["--from"] is None or given["--to"] is None:
        raise ValueError("expected --from NODE and --to NODE, or --demands FILE, for --task potentials, got less")
    return distributed.potentials(held, signals, tol=tol, out=out, tell=tell)


@dataclass(frozen=True)
class _Numbers:
    """The nodes of shards, whose names are their numbers."""

    count: int

    @property
    def labels(self) -> _Numbers:
        return self

    def __contains__(self, label: object) -> bool:
        return isinstance(label, str) and label.isdecimal() and int(label) < self.count

    def number(self, label: str) -> int:
        if label not in self:
            raise ValueError(f"expected a node from 0 to {self.count - 1}, got {label!r}")
        return int(label)


def _pairs(given: Mapping[str, Any], nodes: int) -> list[tuple[int, int]]:
    """Return the pairs of ``--pair`` and ``--pairs``."""
    from ohmformer.graph.files import read_pairs

    numbers = _Numbers(nodes)
    found = [tuple(json.loads(pair)) for pair in given["--pair"] or []]
    for pair in found:
        if len(pair) != 2:
            raise ValueError(f"expected two nodes after --pair, got {', '.join(pair) or 'none'}")
    if given["--pairs"] is not None:
        found += read_pairs(given["--pairs"], numbers, sep=given["--sep"])
    return [(numbers.number(u), numbers.number(v)) for u, v in found]


def _demands(path: Path, held: Shard) -> Any:
    """Return this process's rows of an array of all nodes in a .npy file, without reading the whole file."""
    import numpy as np
    import torch

    try:
        whole = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):
        raise ValueError(f"expected an array of nodes x demands as numpy.save writes it, {path} is none") from None
    if whole.ndim == 1:
        whole = whole[:, None]
    if whole.ndim != 2 or len(whole) != held.manifest.nodes:
        raise ValueError(f"expected a row for each of {held.manifest.nodes} nodes in {path}, got an array of {whole.shape}")
    return torch.as_tensor(whole[held.nodes.cpu().numpy()], dtype=torch.float64)


@contextmanager
def _process_group() -> Iterator[int]:
    """Join the process group that a launcher has set in the environment, or run alone; yield the rank and report errors."""
    import torch
    import torch.distributed as dist

    for theirs, ours in VARIABLES.items():
        if ours not in os.environ and theirs in os.environ and "MASTER_ADDR" in os.environ:
            os.environ[ours] = os.environ[theirs]
    many = int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ
    rank = int(os.environ["RANK"]) if many else 0
    if many:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, lambda *_: Timer(GRACE, os._exit, (143,)).start())
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    from ohmformer.solve.distributed import ProcessLost

    try:
        if rank == 0:
            with one_sentence(OSError):
                yield rank
        else:
            yield rank
    except ProcessLost as lost:
        if rank == min(set(range(int(os.environ["WORLD_SIZE"]))) - set(lost.ranks)):
            typer.echo(f"error: {lost}; what was finished is kept, and the same command goes on from there", err=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(2)
    except (ValueError, OSError):
        raise typer.Exit(2) from None  # process 0 has reported the error
    finally:
        if many and dist.is_initialized():
            dist.destroy_process_group()
