"""How commands end on bad input or a missing package: one sentence on standard error, exit code 2."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer


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
