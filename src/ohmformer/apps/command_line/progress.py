"""What all commands print: a progress bar on standard error (what is being done, how much, for how long), and a table."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


@contextmanager
def progress(words: str, *, quiet: bool = False) -> Iterator[Callable[[int, int | None, str], None]]:
    """Show a bar while a ``with`` block runs on a terminal; yields a function of steps done, all steps, and words."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task(words, total=None)
        yield lambda done, steps, words: bar.update(task, completed=done, total=steps, description=words)


def print_table(table: Mapping[str, np.ndarray]) -> None:
    """Print columns as CSV, quoted where they need it, numbers with nine digits."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(table)
    for row in zip(*(column.tolist() for column in table.values()), strict=True):
        writer.writerow(f"{cell + 0.0:.9g}" if isinstance(cell, float) else cell for cell in row)
