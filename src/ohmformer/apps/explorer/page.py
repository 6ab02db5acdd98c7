"""The page: what is on it, and in which order. How it looks is in ``assets/``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import dcc, html

from ohmformer.apps.explorer.drawing import LONGEST_NAME, MOST_EDGES, MOST_NODES, OHMS
from ohmformer.apps.explorer.methods import TASKS, explained
from ohmformer.apps.explorer.presets import FAMILIES, LONGEST_SMILES, OTHERS
from ohmformer.apps.explorer.state import MOST_LAYERS
from ohmformer.apps.explorer.uploads import LONGEST_OPTIONS, MOST_BYTES

CIRCUITS = ("circuit", "circuit-beside")
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
            html.Button("Undo", id="undo", title="Ctrl-Z, or the browser's Back", disabled=True),
            html.Button("Redo", id="redo", title="Ctrl-Shift-Z, or the browser's Forward", disabled=True),
            html.Button("Copy link", id="copy", title="A link that restores this page"),
            html.Button("Page", id="export", title="Download one HTML file that plays all layers, without a server"),
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
            html.Button("Add node", id="add", title="Add a node to the right of the others; in Draw, a click places one"),
            html.Button("Clear", id="clear", title="Remove every node"),
            html.Span(id="hint", className="hint"),
        ],
        className="tools",
    )
    hosts = [
        html.Figure([html.Figcaption(id=f"{name}-name"), html.Div(id=name)], hidden=i > 0) for i, name in enumerate(CIRCUITS)
    ]
    layer = dcc.Input(id="layer", type="range", min=0, max=1, step=1, value=0, className="slider")
    player = html.Div(
        [
            html.Button("Play", id="play", **_named("Play the layers")),
            html.Label([html.Span("Layer", className="unseen"), layer], className="slide"),
            html.Output(id="layer-label", className="layer-label"),
            dcc.Checklist(id="truth", options=[{"label": "exact answer", "value": "exact"}], value=[], className="toggle"),
        ],
        className="player",
    )
    return html.Section(
        [
            tools,
            html.Div(hosts, id="circuits"),
            html.Div(id="message", role="status"),
            html.Div(id="editor"),
            html.Div(id="legend"),
            player,
            html.Div(id="explained", className="explain"),
        ],
        className="stage card",
        **_named("The circuit"),
    )


def explanations(methods: list[str], task: str) -> list[html.P]:
    """Say of each construction what it is: its name, a layer in one line, and a few words; none for an empty name."""
    told = (explained(task, method) for method in methods if method)
    return [
        html.P([html.B(label), " ", html.Span(update, className="formula"), html.Br(), says]) for label, update, says in told
    ]


def _controls() -> html.Section:
    graphs = _pills("graph", {**FAMILIES, **OTHERS}, "grid", "Graph")
    size = _number("size", "Nodes")
    smiles = html.Label(
        ["SMILES", dcc.Input(id="smiles", type="text", debounce=True, maxLength=LONGEST_SMILES, spellCheck=False)],
        id="smiles-row",
    )
    upload = html.Div(
        [
            dcc.Upload("Choose or drop a file", id="upload", className="upload"),
            html.Label(
                [
                    "Options of ohmformer solve",
                    dcc.Input(id="options", type="text", debounce=True, maxLength=LONGEST_OPTIONS, spellCheck=False),
                ]
            ),
            html.P(
                [
                    "Edge lists, GraphML, Matrix Market, SciPy, MATPOWER. A column called resistance, ohm, conductance or "
                    "siemens is read; for another one, give an option such as ",
                    html.Code("--resistance COLUMN"),
                    ".",
                ],
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
                [_number("time", "Time s"), _number("which", "Number")],
                className="row",
            ),
            html.H2("Construction"), _pills("method", {}, None, "Construction", column=True),
            html.Div(_number("layers", "Depth"), className="row"),
            html.H2("Beside it"), _pills("beside", {}, "", "Beside it", column=True),
        ],
        className="controls card",
        **_named("Settings"),
    )  # fmt: skip


def _charts() -> html.Section:
    every = html.Div(
        id="values", tabIndex="0", role="region", **_named("Values of every node")
    )  # it scrolls, so keys must reach it
    return html.Section(
        [
            html.Div([html.H2("Answer"), html.Div(id="readout")], className="card"),
            html.Div([html.H2("Error against layer"), html.Div(id="errors")], className="card"),
            html.Details([html.Summary("Every node"), every], className="card", open=True),
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


def _number(name: str, label: str) -> html.Label:
    """A field for a number. The server says what is out of range: a browser that knew the range would send nothing."""
    return html.Label([label, dcc.Input(id=name, type="number", step="any", debounce=True)], id=f"{name}-row")


def _named(label: str) -> dict[str, Any]:
    """Name an element for screen readers."""
    return {"aria-label": label}
