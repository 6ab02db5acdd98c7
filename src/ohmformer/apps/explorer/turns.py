"""The actions of a user: each function turns one state into the next, or raises a ValueError that the page shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ohmformer.apps.explorer.compute import proposed_layers
from ohmformer.apps.explorer.drawing import Drawing
from ohmformer.apps.explorer.methods import METHODS
from ohmformer.apps.explorer.presets import FAMILIES, molecule, preset
from ohmformer.apps.explorer.state import State, integer, number
from ohmformer.apps.explorer.trained import Trained
from ohmformer.graph.places import Place

AMPERE = 1.0
"""The current that one click injects, in ampere."""


def first_state(trained: Mapping[str, Trained]) -> State:
    """Make the state of a newly opened page: a grid, current from corner to corner, Lemma 1."""
    return with_graph(State(preset("grid", 25), "grid"), preset("grid", 25), "grid", trained)


def turn(state: State, what: str, value: Any, trained: Mapping[str, Trained]) -> State:
    """Apply one action, a control set or an event in the picture, to a state."""
    if what == "event":
        after = _on_picture(state, value)
        if after.proposed and (after.drawing.edges, after.drawing.ohms) != (state.drawing.edges, state.drawing.ohms):
            return with_depth(after, trained)
        return after
    if what == "graph":
        if value == "molecule":
            return with_graph(state, molecule(state.smiles), value, trained)
        if value in ("upload", "drawn"):
            return replace(state, origin=value)
        return with_graph(state, preset(str(value), max(len(state.drawing.names), 2)), str(value), trained)
    if what == "size":
        if state.origin not in FAMILIES:
            raise ValueError("expected a family of graphs to set the number of nodes of, this is a graph of its own")
        return with_graph(state, preset(state.origin, integer(value)), state.origin, trained)
    if what == "smiles":
        text = str(value or "").strip()
        return with_graph(replace(state, smiles=text), molecule(text), "molecule", trained)
    if what == "task":
        methods = METHODS.get(str(value), {})
        method = state.method if state.method in methods else next(iter(methods), "")
        beside = state.beside if state.beside in methods and state.beside != method else ""
        return with_depth(replace(state, task=str(value), method=method, beside=beside), trained)
    if what == "method":
        return with_depth(replace(state, method=str(value), beside=state.beside if state.beside != value else ""), trained)
    if what == "beside":
        after = replace(state, beside=str(value or ""))
        return replace(after, layer=after.last)
    if what == "layers":
        layers = integer(value)
        after = replace(state, layers=layers, layer=0, proposed=False)
        return replace(after, layer=after.last if state.layer >= state.layers else min(state.layer, after.last))
    if what == "time":
        return with_depth(replace(state, time=number(value)), trained)
    if what == "which":
        return with_depth(replace(state, which=integer(value)), trained)
    raise ValueError(f"expected something the page has, got {what!r}")


def with_graph(state: State, drawing: Drawing, origin: str, trained: Mapping[str, Trained]) -> State:
    """Show another graph: one ampere from its first node to a farthest one, and the proposed depth."""
    far = farthest(drawing)
    currents = ((0, AMPERE), (far, -AMPERE)) if far else ()
    which = min(state.which, max(len(drawing.names) - 1, 1))
    return with_depth(replace(state, drawing=drawing, origin=origin, currents=currents, source=0, which=which), trained)


def with_depth(state: State, trained: Mapping[str, Trained]) -> State:
    """Set the proposed depth, shown after its last layer."""
    layers = proposed_layers(state, trained)
    after = replace(state, layers=layers, layer=0, proposed=True)
    return replace(after, layer=after.last)


def farthest(drawing: Drawing) -> int:
    """Find the node farthest from node 0 within its component; 0 if it is alone."""
    neighbours: dict[int, list[int]] = {}
    for u, v in drawing.edges:
        neighbours.setdefault(u, []).append(v)
        neighbours.setdefault(v, []).append(u)
    seen, last = {0}, [0]
    while True:
        ring = sorted({v for u in last for v in neighbours.get(u, ())} - seen)
        if not ring:
            return last[-1]
        seen.update(ring)
        last = ring


# ---------------------------------------------------------------------------------------------------- on the picture


def _on_picture(state: State, event: Any) -> State:
    kind = event.get("kind") if isinstance(event, dict) else None
    if kind in ON_DRAWING:
        drawing = ON_DRAWING[kind](state.drawing, event)
        return replace(state, drawing=drawing, origin=state.origin if kind in ("set-ohm", "move") else "drawn")
    if kind not in EVENTS:
        raise ValueError(f"expected an event among {', '.join([*EVENTS, *ON_DRAWING])}, got something else")
    return EVENTS[kind](state, event)


def _tap_node(state: State, event: dict[str, Any]) -> State:
    """Put current in or out, or move the source.

    A node that carries current loses it. Otherwise it takes what is missing to balance, or one ampere.
    """
    node = integer(event.get("node"))
    state.drawing.name(node)
    if state.task == "eigenvector":
        return state
    if state.task != "electric":
        return replace(state, source=node)
    currents = dict(state.currents)
    if node in currents:
        del currents[node]
    else:
        surplus = round(sum(currents.values()), 9)
        currents[node] = -surplus if surplus else AMPERE
    return replace(state, currents=tuple(currents.items()))


def _set_current(state: State, event: dict[str, Any]) -> State:
    node, ampere = integer(event.get("node")), number(event.get("ampere"))
    currents = {**dict(state.currents), node: ampere}
    return replace(state, currents=tuple((i, a) for i, a in currents.items() if a))


def _drop_node(state: State, event: dict[str, Any]) -> State:
    node = integer(event.get("node"))
    drawing = state.drawing.drop_node(node)
    currents = tuple((i - (i > node), a) for i, a in state.currents if i != node)
    source = 0 if state.source == node else state.source - (state.source > node)
    return replace(state, drawing=drawing, origin="drawn", currents=currents, source=source)


def _clear(state: State, event: dict[str, Any]) -> State:
    return replace(state, drawing=Drawing((), (), (), ()), origin="drawn", currents=(), source=0)


def _place(event: dict[str, Any]) -> Place:
    return round(number(event.get("x")), 1), round(number(event.get("y")), 1)


def _add_node(drawing: Drawing, event: dict[str, Any]) -> Drawing:
    return drawing.add_node(_place(event) if "x" in event else None)


EVENTS: dict[str, Callable[[State, dict[str, Any]], State]] = {
    "tap-node": _tap_node,
    "set-current": _set_current,
    "drop-node": _drop_node,
    "clear": _clear,
}
"""What can be done to the picture, by name."""
ON_DRAWING: dict[str, Callable[[Drawing, dict[str, Any]], Drawing]] = {
    "set-ohm": lambda drawing, event: drawing.with_ohm(integer(event.get("edge")), number(event.get("ohm"))),
    "move": lambda drawing, event: drawing.with_place(integer(event.get("node")), _place(event)),
    "add-node": _add_node,
    "add-edge": lambda drawing, event: drawing.add_edge(integer(event.get("from")), integer(event.get("to"))),
    "drop-edge": lambda drawing, event: drawing.drop_edge(integer(event.get("edge"))),
}
"""What can be done to the picture and changes nothing but the drawing."""
