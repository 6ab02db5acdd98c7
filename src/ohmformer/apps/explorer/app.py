"""The Dash application: one callback on the server, the rest in the browser (``assets/explorer.js``).

Dash shows React text only, so names are escaped; a policy sent with every answer forbids the browser to load anything from
elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from dash import ClientsideFunction, Dash, Input, Output, ctx, no_update
from dash import State as Held
from flask import Response, request

from ohmformer.apps.explorer.export import standalone
from ohmformer.apps.explorer.methods import METHODS, TASKS, TRAINED, explained
from ohmformer.apps.explorer.page import explanations, page
from ohmformer.apps.explorer.presets import FAMILIES
from ohmformer.apps.explorer.state import State, integer
from ohmformer.apps.explorer.trained import Trained
from ohmformer.apps.explorer.turns import first_state, turn, with_graph
from ohmformer.apps.explorer.uploads import read_upload
from ohmformer.apps.explorer.view import answered

MOST_REQUEST = 1_000_000
"""Bytes of a request; a file of the largest size in base64, and a state, are less."""
SORRY = "Something went wrong on this page's side, and nothing was changed. The window it was started from says more."
INDEX = """<!DOCTYPE html>
<html lang="en">
  <head>{%metas%}<title>{%title%}</title>{%favicon%}{%css%}</head>
  <body>{%app_entry%}<div>{%config%}{%scripts%}{%renderer%}</div></body>
</html>"""
log = logging.getLogger(__name__)

CONTROLS = ("graph", "size", "smiles", "task", "time", "which", "method", "beside", "layers")
"""Controls by the name of what they set, in the order in which they are applied."""
ROWS = ("size", "smiles", "upload", "time", "which")
"""Rows that are there only when they mean something."""


def make_app(trained: Mapping[str, Trained] | None = None) -> Dash:
    """Build the Dash application, with trained checkpoints by name."""
    known = dict(trained or {})
    app = Dash(
        "ohmformer",
        title="ohmformer explorer",
        update_title="",
        assets_folder=str(Path(__file__).parent / "assets"),
        serve_locally=True,
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
        index_string=INDEX,
    )
    app.layout = page()
    app.server.config["MAX_CONTENT_LENGTH"] = MOST_REQUEST

    @app.callback(
        output={
            "state": Output("state", "data"),
            "answer": Output("answer", "data"),
            "link": Output("link", "data"),
            "message": Output("message", "children"),
            "values": {name: Output(name, "value") for name in CONTROLS},
            "rows": {name: Output(f"{name}-row", "hidden") for name in ROWS},
            "methods": Output("method", "options"),
            "besides": Output("beside", "options"),
            "fixed": Output("layers", "disabled"),
            "texts": {name: Output(name, "children") for name in ("asks", "explained")},
        },
        inputs={
            "values": {name: Input(name, "value") for name in CONTROLS},
            "event": Input("event", "data"),
            "file": Input("file", "data"),
            "query": Input("url", "search"),
            "held": Held("state", "data"),
            "layer": Held("layer", "value"),
        },
    )
    def change(values: dict[str, Any], event: Any, file: Any, query: Any, held: Any, layer: Any) -> dict[str, Any]:
        done = {"event": event, "file": file}.get(str(ctx.triggered_id))
        return respond(Request(values, str(ctx.triggered_id), done, query, held, layer), known)

    @app.server.get("/export.html")
    def export() -> Response:
        try:
            with torch.inference_mode():
                return Response(standalone(State.from_query(request.query_string.decode()), known), mimetype="text/html")
        except ValueError as error:
            return Response(sentence(error), 400, mimetype="text/plain")

    _connect_browser(app)
    _forbid_elsewhere(app)
    return app


@dataclass(frozen=True)
class Request:
    """A request of the browser; nothing in it is trusted."""

    values: Mapping[str, Any]
    """The values of all controls."""
    trigger: str
    """The component that triggered the request."""
    done: Any
    """The event, if the trigger was the picture (``event``) or a file (``file``)."""
    query: Any
    held: Any
    """The state before; None when the page is opened."""
    layer: Any


def respond(request: Request, trained: Mapping[str, Trained]) -> dict[str, Any]:
    """Compute what the page shows next; on an error it shows a message and keeps its state."""
    state, answer, message = None, None, ""
    try:
        with torch.inference_mode():
            try:
                state = _held(request)
                if state is None or request.trigger == "url":  # opened, or the browser went back or forward
                    state = _opened(request.query, trained)
                elif request.trigger == "file":
                    state, message = _read(state, request.done, trained)
                else:
                    state = _turned(state, request, trained)
            except ValueError as error:
                message = sentence(error)
            state = state or first_state(trained)
            try:
                answer = answered(state, trained)
            except ValueError as error:
                message = message or sentence(error)
    except Exception:  # a defect of ours: it is logged, and the page says so and keeps what it shows
        log.exception("the page could not answer %s", request.trigger)
        state, message = state or first_state({}), SORRY
    page = {"state": state.as_json(), "answer": answer, "link": state.query(), "message": message}
    return {**page, **_controls(state, request.values, trained)}


def _turned(state: State, request: Request, trained: Mapping[str, Trained]) -> State:
    """Apply everything that was changed to the state: controls that differ from it, and the picture or the file.

    All controls are compared, not only the last one touched, so that nothing is lost when two are set in quick succession.
    """
    before = _values(state)
    changed = [name for name in CONTROLS if request.values.get(name) != before[name]]
    for name in changed:
        state = turn(state, name, request.values.get(name), trained)
    return turn(state, request.trigger, request.done, trained) if request.trigger == "event" else state


def _read(state: State, file: Any, trained: Mapping[str, Trained]) -> tuple[State, str]:
    """Show the graph of a file; a remark on how it was read comes with it."""
    if not isinstance(file, dict):
        raise ValueError("expected a file, got something else")
    drawing, remark = read_upload(*(str(file.get(name) or "") for name in ("filename", "contents", "options")))
    return with_graph(state, drawing, "upload", trained), sentence(remark) if remark else ""


def sentence(error: ValueError | str) -> str:
    """Format a message as a sentence."""
    text = str(error).splitlines()[0][:300] if str(error) else "That did not work."
    return text[0].upper() + text[1:] + ("" if text[-1] in ".!?" else ".")


def _held(request: Request) -> State | None:
    """Read the state that the browser holds, with the layer of its slider; None if it has none yet."""
    if request.held is None:
        return None
    state = State.from_json(request.held)
    try:
        return replace(state, layer=min(max(integer(float(request.layer)), 0), state.last))
    except (TypeError, ValueError, OverflowError):
        return state


def _opened(query: Any, trained: Mapping[str, Trained]) -> State:
    return State.from_query(query) if isinstance(query, str) and query.strip("?") else first_state(trained)


def _values(state: State) -> dict[str, Any]:
    """Compute the values of all controls from a state."""
    own = {name: getattr(state, name) for name in CONTROLS if name not in ("graph", "size")}
    return {"graph": state.origin, "size": len(state.drawing.names), **own}


def _controls(state: State, values: Mapping[str, Any], trained: Mapping[str, Trained]) -> dict[str, Any]:
    """Set every control whose value differs from the state; the others are left alone, as somebody may be typing."""
    learned = [TRAINED + name for name, model in trained.items() if state.task in model.tasks]
    options = [*METHODS[state.task], *learned]
    here = {
        "size": state.origin in FAMILIES,
        "smiles": state.origin == "molecule",
        "upload": state.origin == "upload",
        "time": state.task == "heat",
        "which": state.task == "eigenvector",
    }
    return {
        "values": {n: no_update if n in values and values[n] == v else v for n, v in _values(state).items()},
        "rows": {name: not here[name] for name in ROWS},
        "methods": [{"label": explained(state.task, m)[0], "value": m} for m in options],
        "besides": [
            {"label": "nothing", "value": ""},
            *({"label": explained(state.task, m)[0], "value": m} for m in options if m != state.method),
        ],
        "fixed": state.method.startswith(TRAINED),
        "texts": {"asks": TASKS[state.task].says, "explained": explanations([state.method, state.beside], state.task)},
    }


def _connect_browser(app: Dash) -> None:
    """Register what runs in the browser alone: drawing, sliding, playing, links, downloads, the size of a file."""

    def browser(name: str, *arguments: Any) -> None:
        app.clientside_callback(ClientsideFunction("explorer", name), *arguments)

    browser("receive", Output("layer", "max"), Output("layer", "value"), Input("answer", "data"), Held("state", "data"))
    browser("draw", Input("state", "data"), Input("answer", "data"), Input("layer", "value"), Input("truth", "value"),
            Input("tool", "value"), Input("theme", "data"), Held("link", "data"))  # fmt: skip
    browser(
        "file", Output("file", "data"), Input("upload", "contents"), Input("options", "value"), Held("upload", "filename")
    )
    browser("answered", Input("state", "data"))
    for button in ("play", "copy", "picture", "json", "clear", "undo", "redo", "add", "export"):
        browser(button, Input(button, "n_clicks"))


def _forbid_elsewhere(app: Dash) -> None:
    """Send a content security policy: everything from this server, no script but its own."""
    scripts = " ".join(app.csp_hashes())
    policy = (
        f"default-src 'self'; script-src 'self' {scripts}; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )

    @app.server.after_request
    def add_policy(response: Any) -> Any:
        response.headers["Content-Security-Policy"] = policy
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response
