"""The web server of the explorer."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ohmformer.apps.explorer.trained import Trained
from ohmformer.graph.extras import require

if TYPE_CHECKING:
    from werkzeug.serving import BaseWSGIServer


def listen(checkpoints: Sequence[Path], host: str = "127.0.0.1", port: int = 0) -> BaseWSGIServer:
    """Open the server's socket; ``serve_forever`` then answers. A ValueError if a checkpoint or the address is no good."""
    serving = require("werkzeug.serving", "explorer")
    require("dash", "explorer")
    from ohmformer.apps.explorer.app import make_app

    models = [Trained.load(path) for path in checkpoints]
    app = make_app({model.name: model for model in models})
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # not a line per request
    try:
        return serving.make_server(host, port, app.server, threaded=True)
    except (OSError, SystemExit) as error:  # werkzeug raises SystemExit if the port is taken
        raise ValueError(f"expected to listen on {host}:{port}, which is taken or not allowed") from error
