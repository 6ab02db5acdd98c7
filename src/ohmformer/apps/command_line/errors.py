"""How commands end on bad input or a missing package: one sentence on standard error, in flags, and exit code 2."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand

Command = TypeVar("Command", bound=Callable[..., None])

CODES = {
    0: "success",
    1: "`ohmformer verify` found a bound that does not hold, or the program failed",
    2: "a file, an option or a package is not as expected; standard error says what in one line (after the usage, if an "
    "option is unknown or has none of its choices), and nothing is written",
    3: "`ohmformer solve` was stopped by Ctrl-C when solving had begun; the best answer so far is printed, with its "
    "certificate",
    130: "another command, or `ohmformer solve` before solving had begun, was stopped by Ctrl-C; commands that can resume "
    "continue when the same command is given again",
}
"""Exit codes of all commands."""
FLAGS: ContextVar[tuple[str, ...]] = ContextVar("flags", default=())
"""The flags of the running command."""


@contextmanager
def one_sentence(*expected: type[Exception]) -> Iterator[None]:
    """End the command with exit code 2 and the message of a ValueError, a missing package or an ``expected`` error."""
    try:
        yield
    except (ValueError, ImportError, *expected) as error:
        from ohmformer.graph.extras import MissingPackage

        if isinstance(error, ImportError) and not isinstance(error, MissingPackage):
            raise
        typer.echo(f"error: {' '.join(in_flags(str(error), FLAGS.get()).split())}", err=True)
        raise typer.Exit(2) from None


def in_flags(text: str, flags: Collection[str]) -> str:
    """Replace argument names in an error message of the library by the command's flags of the same name.

    >>> in_flags("expected tol_of='residual', got 'error'; pass a larger tol", ["--tol", "--tol-of"])
    "expected --tol-of residual, got 'error'; pass a larger --tol"
    """

    def flag(found: re.Match[str]) -> str:
        name = f"--{found['name'].replace('_', '-')}"
        if name not in flags:
            return found[0]
        value = found["text"] if found["text"] is not None else found["bare"]
        negated = f"--no-{name[2:]}"
        return name if value == "True" else negated if value == "False" else f"{name} {value}".rstrip()

    text = re.sub(r"\b(?P<name>[a-z]\w*)=(?:'(?P<text>[^']*)'|(?P<bare>[\w.+-]*))", flag, text)
    return re.sub(r"\ba larger (?=tol\b)", "a larger --", text) if "--tol" in flags else text


class FlagCommand(TyperCommand):
    """A command that sets :data:`FLAGS` while it runs, for :func:`in_flags`."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        token = FLAGS.set(tuple(name for option in self.params for name in option.opts))
        try:
            return super().invoke(ctx)
        finally:
            FLAGS.reset(token)


def check_packages(command: Command) -> Command:
    """Wrap a command so that it reports a missing optional package before doing any work."""

    @wraps(command)
    def checked(**given: Any) -> None:
        from ohmformer.graph.extras import MissingPackage, check_command, check_extra

        try:
            if given.get("cluster") is not None:
                check_extra("cluster")
            if "table2" in (given.get("figures") or ()):
                check_extra("train")
            check_command(command.__name__)
            command(**given)
        except MissingPackage as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from None

    return checked  # pyright: ignore[reportReturnType]
