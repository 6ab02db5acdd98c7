"""Timing side by side, and a table that says where its numbers come from."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from ohmformer import native
from ohmformer.native import machine

RESULTS = Path(__file__).parents[1] / "results"


def kernels(wanted: bool) -> AbstractContextManager[None]:
    """The kernels of this process inside the ``with``, or torch alone."""
    return nullcontext() if wanted else native.used("off")


def side_by_side(
    candidates: dict[str, Callable[[], object]], *, repeats: int, in_a_row: int = 1, warmup: int = 0
) -> dict[str, float]:
    """Median seconds of each candidate, taken in turns so that all see the same moods of the machine.

    Each turn waits until the threads of the library that ran last have left their busy loops. Short things are run
    ``in_a_row`` times after ``warmup`` that do not count, as they would be over a dataset.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, run in candidates.items():
            time.sleep(0.3)
            for _ in range(warmup):
                run()
            for _ in range(in_a_row):
                start = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def megabytes(what: str) -> float:
    """A line of the kernel about the memory of this process alone: VmRSS is what it takes now, VmHWM the peak."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{what}:")[2].split()[0]) / 1024


def write_table(name: str, title: str, header: list[str], rows: list[list[str]], *, notes: str = "") -> Path:
    """``results/<name>.md``: a table with command, commit, machine and date."""
    lines = [f"# {title}", "", provenance(), "", f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    if notes:
        lines += ["", notes]
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.md"
    temporary = path.with_suffix(".tmp")
    temporary.write_text("\n".join(lines) + "\n")
    temporary.replace(path)
    return path


def provenance() -> str:
    """Command, commit, machine and date, as one paragraph."""
    arguments = " ".join(Path(x).name if "/" in x else x for x in sys.argv[1:])
    command = f"python benchmarks/{Path(sys.argv[0]).name} {arguments}".strip()
    return (
        f"`{command}`, {machine.commit()}, "
        f"{machine.today()}, {machine.processor()}, {os.cpu_count()} cores, "
        f"{torch.get_num_threads()} threads, Python {platform.python_version()}, torch {torch.__version__}."
    )
