"""One HTML file of a state: the graph, the question and the answer after every layer, played without a server or network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from ohmformer.apps.explorer.methods import TASKS, explained
from ohmformer.apps.explorer.state import State
from ohmformer.apps.explorer.trained import Trained
from ohmformer.apps.explorer.view import answered

SCRIPTS = ("assets/circuit.js", "assets/chart.js", "assets/panels.js", "assets/player.js", "standalone.js")
"""What of the page is needed to watch; what changes a graph is left out."""


def standalone(state: State, trained: Mapping[str, Trained], *, title: str | None = None) -> str:
    """Write the page of a state as one HTML file; a ValueError if its question has no answer."""
    answer, task = answered(state, trained), TASKS[state.task]
    here = files("ohmformer.apps.explorer")
    explanations = [(name, *explained(state.task, name)) for name in filter(None, (state.method, state.beside))]
    return Template(here.joinpath("standalone.html").read_text(encoding="utf-8")).substitute(
        title=escape(title or f"{task.label}, layer by layer"),
        asks=escape(task.says),
        explained="".join(
            f"<p><b>{escape(label)}</b> <span class='formula'>{escape(update)}</span><br>{escape(says)}</p>"
            for _, label, update, says in explanations
        ),
        style=here.joinpath("assets/explorer.css").read_text(encoding="utf-8"),
        data=_embedded({"state": state.as_json(), "answer": answer}),
        scripts="\n".join(here.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS),
    )


def _embedded(data: Any) -> str:
    """Write JSON that can stand in a script element: no ``<`` that could end it."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
