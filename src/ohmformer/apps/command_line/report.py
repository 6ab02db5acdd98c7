"""``ohmformer report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ohmformer.apps.command_line.errors import one_sentence


def report(
    results: Annotated[Path, typer.Option(help="Folder with tables and figures.")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="Folder with verification, pictures and trainings.")] = Path("runs"),
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("runs/report.html"),
) -> None:
    """Write everything that was proved and measured to one self-contained HTML page."""
    with one_sentence(OSError):
        if out.suffix.lower() not in (".html", ".htm"):
            raise ValueError(f"expected an output file of type .html, got {out.name}")
        from ohmformer import __version__
        from ohmformer.apps.report.page import page
        from ohmformer.apps.report.sections import sections
        from ohmformer.graph.files import check_writable, write_text
        from ohmformer.native import machine

        check_writable(out)
        for folder in (results, runs):
            if not folder.is_dir():
                typer.echo(f"note: there is no folder {folder}", err=True)
        parts = sections(results, runs)
        lead = (
            "<p>A linear Transformer that sees a graph only through its incidence matrix solves electric flow, resistances, "
            "heat and eigenvectors by weights one can write down. This page puts what was proved beside what was measured."
            f'</p><p class="quiet">ohmformer {__version__}, {machine.today()}</p>'
        )
        write_text(out, page("ohmformer: proved and measured", lead, parts))
    for command in (command for part in parts for command in part.missing):
        typer.echo(f"not in the report yet: {command}", err=True)
    typer.echo(f"report: {out}")
