"""How commands end on bad input or a missing package: one sentence on standard error, exit code 2."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import typer

Command = TypeVar("Command", bound=Callable[..., None])


@contextmanager
def one_sentence(*expected: type[Exception]) -> Iterator[None]:
    """End the command with exit code 2 and the sentence of an expected error: a ValueError, a missing package, or these."""
    try:
        yield
    except (ValueError, ImportError, *expected) as error:
        from ohmformer.graph.extras import MissingPackage

        if isinstance(error, ImportError) and not isinstance(error, MissingPackage):
            raise
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None


def check_packages(command: Command) -> Command:
    """Wrap a command so that it names a missing optional package before it does any work."""

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
