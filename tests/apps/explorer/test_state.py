"""The page's state comes back from its permalink as it was, and whatever else comes back is refused with one message."""

import base64
import json
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ohmformer.apps.explorer.drawing import MOST_EDGES, MOST_NODES, Drawing
from ohmformer.apps.explorer.methods import METHODS
from ohmformer.apps.explorer.presets import FAMILIES, molecule, preset
from ohmformer.apps.explorer.state import State
from ohmformer.apps.explorer.turns import first_state, turn

FIRST = first_state({})


@given(
    st.sampled_from(sorted(FAMILIES)),
    st.integers(5, 30),
    st.sampled_from([(task, method) for task, methods in METHODS.items() for method in methods]),
    st.integers(1, 200),
    st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=4),
)
def test_a_permalink_restores_the_state(name, nodes, question, layers, ohms):
    task, method = question
    state = turn(turn(replace(FIRST, origin=name), "size", nodes, {}), "task", task, {})
    state = turn(turn(state, "method", method, {}), "layers", layers, {})
    for j, ohm in enumerate(ohms):
        state = turn(state, "event", {"kind": "set-ohm", "edge": j, "ohm": ohm}, {})
    state = turn(state, "event", {"kind": "move", "node": 2, "x": 7.0, "y": -3.0}, {})
    state = replace(state, layer=layers // 2)
    assert State.from_query(state.query()) == state
    assert State.from_query("?" + state.query()) == state
    assert State.from_json(json.loads(json.dumps(state.as_json()))) == state


def test_the_layer_of_a_link_can_be_changed_by_hand():
    query = FIRST.query().replace(f"layer={FIRST.layer}", "layer=7")
    assert State.from_query(query).layer == 7
    assert State.from_query(query.replace("layer=7", "layer=99999")).layer == FIRST.layers
    assert State.from_query(query.replace("layer=7", "layer=x")).layer == FIRST.layer


def test_the_largest_graph_fits_into_a_link():
    n = MOST_NODES
    edges = [(u, v) for u in range(n) for v in range(u)][:MOST_EDGES]
    drawing = Drawing(
        tuple(f"a rather long name {i:03}" for i in range(n)),
        tuple((0.1 * i * i, -3.7 * i) for i in range(n)),
        tuple(edges),
        tuple(1 + 0.1234567 * j for j in range(len(edges))),
    )
    state = replace(FIRST, drawing=drawing, origin="upload")
    assert State.from_query(state.query()) == state


def packed(data: object) -> str:
    text = data if isinstance(data, bytes) else json.dumps(data).encode()
    return "v=1&state=" + base64.urlsafe_b64encode(zlib.compress(text)).rstrip(b"=").decode()


GOOD = FIRST.as_json()
BAD = {
    "another version": "v=2&state=abc",
    "nothing": "v=1",
    "no base64": "v=1&state=%%%",
    "not deflated": "v=1&state=" + base64.urlsafe_b64encode(b"hello there").decode(),
    "cut off": FIRST.query()[:-20],
    "too long": "v=1&state=" + "A" * 70_000,
    "a bomb": "v=1&state=" + base64.urlsafe_b64encode(zlib.compress(b"[" * 10_000_000)).decode(),
    "deep nesting": packed(b"[" * 90_000),
    "no JSON": packed(b"{nodes"),
    "not UTF-8": packed(b'"\xff\xfe"'),
    "a list": packed([]),
    "nodes that are no rows": packed({**GOOD, "nodes": [1, 2]}),
    "a name that is a number": packed({**GOOD, "nodes": [[1, 0, 0]]}),
    "a place that is NaN": packed({**GOOD, "nodes": [["a", float("nan"), 0]]}),
    "an edge to nowhere": packed({**GOOD, "edges": [[0, 99, 1]]}),
    "an edge to itself": packed({**GOOD, "edges": [[0, 0, 1]]}),
    "half a node": packed({**GOOD, "edges": [[0, 1.5, 1]]}),
    "a negative resistance": packed({**GOOD, "edges": [[0, 1, -1]]}),
    "a truth for a number": packed({**GOOD, "edges": [[0, 1, True]]}),
    "too many nodes": packed({**GOOD, "nodes": [[str(i), 0, 0] for i in range(501)]}),
    "too many edges": packed({**GOOD, "edges": [[0, 1, 1]] * 2001}),
    "an unknown task": packed({**GOOD, "task": "divination"}),
    "another task's construction": packed({**GOOD, "method": "taylor"}),
    "too deep": packed({**GOOD, "layers": 201}),
    "a layer beyond": packed({**GOOD, "layer": 10_000}),
    "a huge number": packed({**GOOD, "layer": 10**400}),
    "current nowhere": packed({**GOOD, "currents": [[99, 1]]}),
    "two currents": packed({**GOOD, "currents": [[0, 1], [0, -1]]}),
    "no source": packed({**GOOD, "source": -1}),
    "endless time": packed({**GOOD, "time": float("inf")}),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_a_link_that_is_not_ours_is_refused_with_one_message(case):
    with pytest.raises(ValueError, match=r"expected|whole") as caught:
        State.from_query(BAD[case])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_drawing_and_erasing_lead_back():
    state = turn(FIRST, "event", {"kind": "clear"}, {})
    assert state.drawing == Drawing((), (), (), ())
    for x in range(4):
        state = turn(state, "event", {"kind": "add-node", "x": 100.0 * x, "y": 0.0}, {})
    for u, v in ((0, 1), (1, 2), (2, 3)):
        state = turn(state, "event", {"kind": "add-edge", "from": u, "to": v}, {})
    assert state.drawing.edges == ((0, 1), (1, 2), (2, 3))
    for node in (0, 3):
        state = turn(state, "event", {"kind": "tap-node", "node": node}, {})
    assert state.currents == ((0, 1.0), (3, -1.0))
    shorter = turn(state, "event", {"kind": "drop-node", "node": 1}, {})
    assert shorter.drawing.names == ("0", "2", "3")
    assert shorter.drawing.edges == ((1, 2),)
    assert shorter.currents == ((0, 1.0), (2, -1.0))
    again = turn(shorter, "event", {"kind": "add-node", "x": 0.0, "y": 9.0}, {})
    assert again.drawing.names == ("0", "2", "3", "1")
    assert turn(again, "event", {"kind": "drop-edge", "edge": 0}, {}).drawing.edges == ()


def test_a_click_puts_in_what_is_missing_and_takes_out_what_is_there():
    state = replace(FIRST, currents=())
    for node, expected in ((3, {3: 1.0}), (8, {3: 1.0, 8: -1.0}), (3, {8: -1.0}), (5, {8: -1.0, 5: 1.0})):
        state = turn(state, "event", {"kind": "tap-node", "node": node}, {})
        assert dict(state.currents) == expected
    state = turn(state, "event", {"kind": "set-current", "node": 5, "ampere": 2.5}, {})
    state = turn(state, "event", {"kind": "tap-node", "node": 9}, {})
    assert dict(state.currents) == {8: -1.0, 5: 2.5, 9: -1.5}


def test_the_depth_follows_the_graph_until_it_is_set():
    weaker = turn(FIRST, "event", {"kind": "set-ohm", "edge": 0, "ohm": 500.0}, {})
    assert weaker.layers != FIRST.layers
    fixed = turn(FIRST, "layers", 12, {})
    assert turn(fixed, "event", {"kind": "set-ohm", "edge": 0, "ohm": 500.0}, {}).layers == 12


WRONG = {
    "unknown control": ("colour", "red"),
    "unknown event": ("event", {"kind": "explode"}),
    "no event": ("event", None),
    "node out of range": ("event", {"kind": "tap-node", "node": 25}),
    "no node": ("event", {"kind": "tap-node"}),
    "edge out of range": ("event", {"kind": "set-ohm", "edge": 40, "ohm": 1}),
    "no resistance": ("event", {"kind": "set-ohm", "edge": 0, "ohm": None}),
    "zero resistance": ("event", {"kind": "set-ohm", "edge": 0, "ohm": 0}),
    "edge twice": ("event", {"kind": "add-edge", "from": 0, "to": 1}),
    "edge to itself": ("event", {"kind": "add-edge", "from": 0, "to": 0}),
    "place at infinity": ("event", {"kind": "move", "node": 0, "x": float("inf"), "y": 0}),
    "too much current": ("event", {"kind": "set-current", "node": 0, "ampere": 1e9}),
    "too many nodes": ("size", 501),
    "too few nodes": ("size", 1),
    "half a node": ("size", 2.5),
    "no number": ("size", None),
    "unknown graph": ("graph", "moebius"),
    "no molecule": ("smiles", "this is no molecule"),
    "empty molecule": ("smiles", ""),
    "long molecule": ("smiles", "C" * 301),
    "unknown task": ("task", "dream"),
    "unknown construction": ("method", "magic"),
    "too deep": ("layers", 1000),
    "no depth": ("layers", 0),
    "negative time": ("time", -1),
    "no construction beside": ("beside", "magic"),
}


@pytest.mark.parametrize("case", sorted(WRONG))
def test_what_cannot_be_done_is_refused_with_one_message(case):
    what, value = WRONG[case]
    with pytest.raises(ValueError, match="expected") as caught:
        turn(FIRST, what, value, {})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.parametrize("nodes", [5, 12, 50, 80, 500])
def test_no_two_nodes_of_a_preset_are_drawn_on_each_other(name, nodes):
    if name in ("erdos-renyi", "barbell") and nodes == 500:
        with pytest.raises(ValueError, match="at most 2000 edges"):
            preset(name, nodes)
        return
    places = preset(name, nodes).places
    nearest = min((a - c) ** 2 + (b - d) ** 2 for i, (a, b) in enumerate(places) for c, d in places[:i])
    assert nearest**0.5 > (45 if nodes < 500 else 20)  # nodes of crowded pictures are drawn smaller


@pytest.mark.parametrize("name", ["barbell", "erdos-renyi"])
def test_a_preset_with_too_many_edges_is_refused_before_places_are_looked_for(name, monkeypatch):
    monkeypatch.setattr("ohmformer.apps.explorer.presets.least_stress", lambda graph: pytest.fail("looked for places"))
    with pytest.raises(ValueError, match="expected at most 2000 edges"):
        preset(name, MOST_NODES)


def test_a_molecule_is_its_heavy_atoms_and_bonds():
    pytest.importorskip("rdkit")
    drawing = molecule("OCC")
    assert drawing.names == ("C1", "C2", "O3")
    assert drawing.edges == ((0, 1), (1, 2))
