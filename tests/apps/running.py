"""Commands in this process. ``CliRunner`` makes all commands anew for every call, which takes longer than most of them."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from typer.main import get_command

from ohmformer.apps.command_line.main import app

COMMAND: Any = get_command(app)


@dataclass(frozen=True)
class Outcome:
    """How a command has ended; ``error`` is an exception that nobody caught."""

    exit_code: int
    stdout: str
    stderr: str
    error: BaseException | None = None

    @property
    def output(self) -> str:
        """Everything that was printed."""
        return self.stdout + self.stderr


def run(*arguments: Any, stdin: bytes = b"") -> Outcome:
    """Run ``ohmformer`` with some arguments."""
    out, err, error = io.StringIO(), io.StringIO(), None
    with redirect_stdout(out), redirect_stderr(err), patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))):
        try:
            COMMAND.main([str(x) for x in arguments], prog_name="ohmformer")
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except Exception as raised:
            code, error = 1, raised
    return Outcome(code, out.getvalue(), err.getvalue(), error)
