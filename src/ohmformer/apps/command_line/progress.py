"""One progress bar for all commands, on standard error: what is being done, how much of it, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
