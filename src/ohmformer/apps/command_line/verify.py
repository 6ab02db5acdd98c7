"""``ohmformer verify``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ohmformer.apps.command_line.errors import one_sentence
from ohmformer.apps.command_line.progress import progress

if TYPE_CHECKING:
    from ohmformer.verify import Verification


def verify(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    seed: Annotated[int, typer.Option(help="Which random graphs and starts.")] = 0,
    out: Annotated[Path | None, typer.Option(help="JSON file to write too, for the report.")] = None,
) -> None:
    """Check every lemma and construction on 44 graphs: the bounds, and the Transformer against plain iteration."""
    if out is not None:
        from ohmformer.graph.files import check_writable

        with one_sentence(OSError):
            check_writable(out)
    import torch

    from ohmformer.verify import verify as run

    torch.set_num_threads(1)  # the matrices have about a dozen rows: threads would only wait for each other
    with progress("verifying") as show:
        result = run(seed, progress=lambda done, total, name: show(done, total, f"verifying {name:<28}"))
    text = json.dumps(result.as_dict(), indent=2)
    if as_json:
        typer.echo(text)
    else:
        _print_verification(result)
    if out is not None:
        from ohmformer.graph.files import write_text

        write_text(out, text + "\n")
    if not result.holds:
        raise typer.Exit(1)


def _print_verification(result: Verification) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    title = f"{result.graphs} graphs, seed {result.seed}: the worst of all graphs and depths"
    table = Table(title=title, box=None, padding=(0, 1, 0, 0), pad_edge=False, title_justify="left")
    for name in ("construction", "statement"):
        table.add_column(name, no_wrap=True)
    for name in ("depth", "error", "bound", "ratio", "plain", "dense", "bad"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in result.rows:
        table.add_row(
            row.construction, row.statement, str(row.layers), f"{row.error:.1e}", f"{row.bound:.1e}",
            f"{row.ratio:.3f}", f"{row.plain:.0e}", f"{row.dense:.0e}", str(row.violations),
            style=None if row.violations == 0 else "bold red",
        )  # fmt: skip
    console.print(table)
    console.print(
        "error, bound: the worst graph at the greatest depth, relative.  ratio: error over bound, the worst of all depths, "
        "rounding counted into the bound.  plain: Transformer against plain iteration.  dense: dense against efficient.",
        style="dim",
    )
    for check in result.violated[:20]:
        console.print(f"violated: {check}", style="red")
    verdict = "0 violations" if result.holds else f"{len(result.violated)} violations"
    console.print(f"{verdict} in {sum(row.checks for row in result.rows)} checks", style="bold")
