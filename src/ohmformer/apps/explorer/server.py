"""The page behind an address: checkpoints read, the socket opened, before anything is promised."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from werkzeug.serving import BaseWSGIServer, make_server

from ohmformer.apps.explorer.trained import Trained


def listen(checkpoints: Sequence[Path], host: str = "127.0.0.1", port: int = 0) -> BaseWSGIServer:
    """A server that listens already; its ``serve_forever`` answers. A ValueError if a file or the address is no good."""
    try:
        from ohmformer.apps.explorer.app import make_app
    except ImportError as error:
        raise ValueError("expected Dash to be installed for the page, it is not: pip install ohmformer[explorer]") from error
    models = [Trained.load(path) for path in checkpoints]
    app = make_app({model.name: model for model in models})
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # not a line per request
    try:
        return make_server(host, port, app.server, threaded=True)
    except (OSError, SystemExit) as error:  # werkzeug leaves by SystemExit if the port is taken
        raise ValueError(f"expected to listen on {host}:{port}, which is taken or not allowed") from error
