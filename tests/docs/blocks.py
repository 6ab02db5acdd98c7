"""Code blocks of Markdown pages, and how they are run: python in one namespace a page, bash beside the command line.

Every fence names its language. A block is run unless the line before it is a comment: ``<!-- slow: reason -->`` leaves it
to ``make test-slow``, ``<!-- not run: reason -->`` leaves it out.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RUN = {"python", "pycon", "bash"}
LANGUAGES = RUN | {"text", "yaml"}
FENCE = re.compile(r"^(?:<!-- (?P<mark>slow|not run): .+ -->\n)?```(?P<language>.*)\n(?P<code>(?:.*\n)*?)```$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    code: str
    mark: str
    line: int


def blocks(text: str) -> list[Block]:
    """All fenced blocks of a page."""
    return [
        Block(m["language"], m["code"], m["mark"] or "", text.count("\n", 0, m.start()) + 1) for m in FENCE.finditer(text)
    ]


def run_page(text: str, name: str, *, slow: bool = False) -> int:
    """Run the blocks of a page in the current folder, in their order; how many were run."""
    names: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    for block in blocks(text):
        if block.mark == "not run" or (block.mark == "slow" and not slow):
            continue
        if block.language == "pycon":
            run_doctest(block, name, names)
        elif block.language == "python":
            exec(compile(block.code, f"{name}:{block.line}", "exec"), names)
        elif block.language == "bash":
            run_bash(block.code)
        else:
            continue
        count += 1
    return count


def run_doctest(block: Block, name: str, names: dict[str, Any]) -> None:
    """What follows ``>>>`` must print what stands below it; names are kept for the next block."""
    test = doctest.DocTestParser().get_doctest(block.code, names, name, name, block.line)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE, verbose=False)
    printed: list[str] = []
    runner.run(test, out=printed.append, clear_globs=False)
    names.update(test.globs)
    assert not runner.failures, "".join(printed)


def run_bash(code: str) -> None:
    """Lines that call ``ohmformer`` run in this process, which has everything imported; the others run in bash."""
    rest: list[str] = []
    for line in re.sub(r"\\\n\s*", "", code).splitlines():
        if line.startswith("ohmformer "):
            _bash(rest)
            rest = []
            run_ohmformer(shlex.split(line, comments=True)[1:])
        else:
            rest.append(line)
    _bash(rest)


def run_ohmformer(arguments: list[str]) -> str:
    """A command of the library; what it printed to standard output."""
    from typer.testing import CliRunner

    from ohmformer.apps.command_line.main import app

    done = CliRunner().invoke(app, arguments)
    if "--cluster" in arguments and "ray" in sys.modules:
        sys.modules["ray"].shutdown()  # as the end of its process would
    assert done.exit_code == 0, f"ohmformer {shlex.join(arguments)}: {done.output}{done.exception!r}"
    return done.stdout


def _bash(lines: list[str]) -> None:
    script = "\n".join(lines).strip()
    if not script:
        return
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(["bash", "-euc", script + "\n"], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
