"""Linear Transformers that solve graph problems: verify the lemmas, ask a graph in a file, or train one."""

from __future__ import annotations

from typing import Annotated

import typer

from ohmformer.apps.command_line import learn as learning
from ohmformer.apps.command_line.demo import demo
from ohmformer.apps.command_line.dream import dream
from ohmformer.apps.command_line.encode import encode, pretrain
from ohmformer.apps.command_line.errors import CODES, FlagCommand, check_packages
from ohmformer.apps.command_line.explore import explore
from ohmformer.apps.command_line.molecules import train
from ohmformer.apps.command_line.report import report
from ohmformer.apps.command_line.shards import shard
from ohmformer.apps.command_line.solve import SolveCommand, solve
from ohmformer.apps.command_line.verify import verify

app = typer.Typer(
    no_args_is_help=True,
    help=__doc__,
    pretty_exceptions_show_locals=False,
    epilog="Exit codes: " + "; ".join(f"{code}: {words}" for code, words in CODES.items()) + ".",
)
app.command(cls=SolveCommand)(check_packages(solve))
for _command in (
    shard, encode, pretrain, train, explore, verify, demo, learning.learn, learning.reproduce, dream, report,
):  # fmt: skip
    app.command(cls=FlagCommand)(check_packages(_command))


def _print_version(wanted: bool) -> bool:
    """Print versions and exit if the flag is given."""
    if not wanted:
        return False
    from importlib.metadata import version

    from ohmformer import __version__, native

    typer.echo(f"ohmformer {__version__}, torch {version('torch')}\n{native.describe()}")
    raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print versions and native kernels.")
    ] = False,
) -> None:
    """Linear Transformers that solve graph problems: verify the lemmas, ask a graph in a file, or train one."""


if __name__ == "__main__":
    app()
