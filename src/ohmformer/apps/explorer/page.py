"""The page: what is on it, and in which order. How it looks is in ``assets/``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import dcc, html

from ohmformer.apps.explorer.drawing import LONGEST_NAME, MOST_EDGES, MOST_NODES, OHMS
from ohmformer.apps.explorer.methods import TASKS
from ohmformer.apps.explorer.presets import FAMILIES, LONGEST_SMILES, OTHERS
from ohmformer.apps.explorer.state import LONGEST_TIME, MOST_LAYERS
from ohmformer.apps.explorer.uploads import MOST_BYTES

TOOLS = {"probe": "Probe", "draw": "Draw", "erase": "Erase"}
LIMITS = (
    f"Limits: {MOST_NODES} nodes, {MOST_EDGES} edges, {MOST_LAYERS} layers, {OHMS[0]:g} to {OHMS[1]:g} Ω, names of "
    f"{LONGEST_NAME} characters, files of {MOST_BYTES // 1000} kB. Nothing leaves this computer."
)


def page() -> html.Div:
    """Lay out the page, empty."""
    return html.Div(
        [
            dcc.Location(id="url", refresh=False),
            *(dcc.Store(id=name) for name in ("state", "answer", "link", "event", "file", "theme")),
            _header(),
            html.Main([_stage(), _controls(), _charts(), _weights()]),
            html.Footer(LIMITS),
        ],
        id="page",
    )


def _header() -> html.Header:
    links = html.Div(
        [
            html.Button("Copy link", id="copy", title="A link that restores this page"),
            html.Button("Picture", id="picture", title="Download the circuit as PNG"),
            html.Button("JSON", id="json", title="Download graph, question and every layer's answer as JSON"),
        ],
        className="actions",
    )
    about = html.P("A linear Transformer solves a circuit, layer by layer, with weights one can write down.")
    return html.Header([html.Div([html.H1("ohmformer"), about]), links])


def _stage() -> html.Section:
    """Lay out the circuit and the controls of the animation."""
    tools = html.Div(
        [
            _pills("tool", TOOLS, "probe", "Tool"),
            html.Button("Clear", id="clear", title="Remove every node"),
            html.Span(id="hint", className="hint"),
        ],
        className="tools",
    )
    player = html.Div(
        [
            html.Button("Play", id="play", **_named("Play the layers")),
            dcc.Input(id="layer", type="range", min=0, max=1, step=1, value=0, className="slider"),
            html.Output(id="layer-label", className="layer-label"),
            dcc.Checklist(id="truth", options=[{"label": "exact answer", "value": "exact"}], value=[], className="toggle"),
        ],
        className="player",
    )
    return html.Section(
        [
            html.Div(id="message", role="status"),
            tools,
            html.Div(id="circuit"),
            html.Div(id="editor"),
            html.Div(id="legend"),
            player,
            html.Div([html.P(id="update"), html.P(id="says")], className="explain"),
        ],
        className="stage card",
        **_named("The circuit"),
    )


def _controls() -> html.Section:
    graphs = _pills("graph", {**FAMILIES, **OTHERS}, "grid", "Graph")
    size = _number("size", "Nodes", 2, MOST_NODES, 1)
    smiles = html.Label(
        ["SMILES", dcc.Input(id="smiles", type="text", debounce=True, maxLength=LONGEST_SMILES, spellCheck=False)],
        id="smiles-row",
    )
    upload = html.Div(
        [
            dcc.Upload("Choose or drop an edge list", id="upload", className="upload"),
            html.P(
                "Lines such as a,b in .csv, .tsv or .txt; resistances in a third column if the first line reads "
                "source,target,resistance (or conductance).",
                className="hint",
            ),
        ],
        id="upload-row",
    )
    return html.Section(
        [
            html.H2("Graph"), graphs, html.Div([size, smiles, upload], className="row"),
            html.H2("Question"), _pills("task", {name: task.label for name, task in TASKS.items()}, "electric", "Question"),
            html.P(id="asks", className="hint"),
            html.Div(
                [_number("time", "Time s", 0.001, LONGEST_TIME, "any"), _number("which", "Number", 1, MOST_NODES, 1)],
                className="row",
            ),
            html.H2("Construction"), _pills("method", {}, None, "Construction", column=True),
            html.Div(_number("layers", "Depth", 1, MOST_LAYERS, 1), className="row"),
        ],
        className="controls card",
        **_named("Settings"),
    )  # fmt: skip


def _charts() -> html.Section:
    return html.Section(
        [
            html.Div([html.H2("Answer"), html.Div(id="readout")], className="card"),
            html.Div([html.H2("Error against layer"), html.Div(id="errors")], className="card"),
            html.Details([html.Summary("Every node"), html.Div(id="values")], className="card", open=True),
        ],
        className="charts",
        **_named("Answer, error and values"),
    )


def _weights() -> html.Section:
    return html.Section(
        [html.H2("Weights of this layer", id="weights-title"), html.Div(id="weights")],
        className="weights card",
        **_named("Weights"),
    )


def _pills(name: str, options: Mapping[str, Any], value: str | None, label: str, *, column: bool = False) -> html.Div:
    choices = [{"label": text, "value": key} for key, text in options.items()]
    radio = dcc.RadioItems(id=name, options=choices, value=value, className=f"pills{' column' if column else ''}")
    return html.Div(radio, role="group", **_named(label))


def _number(name: str, label: str, low: int | float, high: int | float, step: int | float | str) -> html.Label:
    field = dcc.Input(id=name, type="number", min=low, max=high, step=step, debounce=True)
    return html.Label([label, field], id=f"{name}-row")


def _named(label: str) -> dict[str, Any]:
    """Name an element for screen readers."""
    return {"aria-label": label}
