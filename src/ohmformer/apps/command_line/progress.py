"""A progress bar on standard error: what is being done, how much, for how long, and for how long still."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress(
    words: str, *, quiet: bool = False, predicted: float | None = None
) -> Iterator[Callable[[int, int | None, str], None]]:
    """Show a progress bar while a ``with`` block runs on a terminal; yield a function of steps done, all steps, label.

    The time left is estimated from the rate of steps or, if their number is unknown, from the ``predicted`` seconds.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class Done(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(f"{task.completed:.0f}" + (f" of {task.total:.0f}" if task.total else ""))

    class TimeLeft(ProgressColumn):
        def render(self, task: Any) -> Text:
            left = task.time_remaining if task.total else time_left(predicted, task.elapsed or 0.0)
            return Text("" if left is None else f"about {clock(left)} left")

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), Done(), TimeElapsedColumn(), TimeLeft()
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task(words, total=None)
        yield lambda done, steps, words: bar.update(task, completed=done, total=steps, description=words)


@contextmanager
def show_progress(unit: str, predicted: float | None = None) -> Iterator[Callable[[int, float], None]]:
    """Show a bar like :func:`progress` for a solver, which reports the number of units done and the residual."""
    with progress(unit, predicted=predicted) as show:
        yield lambda done, residual: show(done, None, f"{unit}, residual {residual:.1e}")


def on_terminal() -> bool:
    """Return whether standard error is a terminal."""
    from rich.console import Console

    return Console(stderr=True).is_terminal


def time_left(predicted: float | None, elapsed: float) -> float | None:
    """Return the remaining predicted seconds; None without a prediction or if it is exceeded."""
    if predicted is None or not math.isfinite(predicted) or elapsed > predicted:
        return None
    return predicted - elapsed


def clock(seconds: float) -> str:
    """Format seconds for readers.

    >>> clock(4.2), clock(75.0), clock(7400.0)
    ('5 s', '1:15 min', '2:03 h')
    """
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}:{rest:02d} min" if minutes < 60 else "{}:{:02d} h".format(*divmod(minutes, 60))
