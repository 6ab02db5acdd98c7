"""``ohmformer explore``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ohmformer.apps.command_line.errors import one_sentence


def explore(
    checkpoint: Annotated[
        list[Path] | None, typer.Option(help="A trained checkpoint, or the folder of a run; can be given several times.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than your own computer's are your decision.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8050,
) -> None:
    """Open a page to draw a graph and watch a Transformer solve it, layer by layer."""
    with one_sentence(OSError):
        import torch

        from ohmformer.apps.explorer.server import listen

        torch.set_num_threads(1)  # the matrices have about a hundred rows
        server = listen(checkpoint or [], host, port)
    typer.echo(f"http://{host}:{server.server_port}/ shows the explorer; Ctrl-C ends it.", err=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        typer.echo("ended", err=True)
