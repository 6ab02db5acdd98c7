"""What the page shows is what the library proves: values beside LAPACK, errors below bounds, weights by named blocks."""

import json
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import scipy.linalg
import torch

from ohmformer.apps.explorer.compute import Solution, solve, solve_beside
from ohmformer.apps.explorer.methods import METHODS
from ohmformer.apps.explorer.presets import drawn, preset
from ohmformer.apps.explorer.state import State
from ohmformer.apps.explorer.trained import Trained
from ohmformer.apps.explorer.turns import first_state, turn, with_graph
from ohmformer.apps.explorer.view import answered, shown
from ohmformer.apps.explorer.weights import CELLS, drawn_weights
from ohmformer.experiments.learn.setting import Setting
from ohmformer.experiments.learn.train import train
from ohmformer.graph import Graph

FIRST = first_state({})
EVERY = [(task, method) for task, methods in METHODS.items() for method in methods]


def asked(name: str, nodes: int, task: str, method: str) -> State:
    state = with_graph(FIRST, preset(name, nodes), name, {})
    state = turn(turn(state, "task", task, {}), "method", method, {})
    for j in range(0, len(state.drawing.edges), 3):
        state = turn(state, "event", {"kind": "set-ohm", "edge": j, "ohm": 0.5 + j}, {})
    return state


def laplacian(state: State) -> np.ndarray:
    """By networkx, which knows nothing of us."""
    graph = nx.MultiGraph()
    graph.add_nodes_from(range(len(state.drawing.names)))
    for (u, v), ohm in zip(state.drawing.edges, state.drawing.ohms, strict=True):
        graph.add_edge(u, v, weight=1 / ohm)
    return nx.laplacian_matrix(graph).toarray().astype(float)


def truth(state: State) -> np.ndarray:
    matrix = laplacian(state)
    n, a = len(matrix), state.source
    if state.task == "electric":
        psi = np.zeros(n)
        for node, ampere in state.currents:
            psi[node] = ampere
        return np.linalg.pinv(matrix) @ psi
    if state.task == "resistance":
        inverse = np.linalg.pinv(matrix)
        return np.diag(inverse) + inverse[a, a] - 2 * inverse[a]
    if state.task == "heat":
        return scipy.linalg.expm(-state.time * matrix)[a]
    vectors = np.linalg.eigh(matrix)[1]
    return vectors[:, -state.which if state.method == "largest" else state.which]


@pytest.mark.parametrize(("task", "method"), EVERY)
def test_the_exact_answer_is_the_truth_and_errors_stay_below_their_bounds(task, method):
    for name, nodes in (("barbell", 11), ("tree", 14)):
        state = asked(name, nodes, task, method)
        found, true = solve(state, {}), truth(state)
        exact = found.exact.numpy()
        sign = np.sign(exact @ true) if task == "eigenvector" else 1.0
        np.testing.assert_allclose(exact, sign * true, atol=1e-9 * np.abs(true).max())
        assert len(found.errors) == len(found.bounds) == len(found.values) == state.layers + 1
        pairs = [(e, b) for e, b in zip(found.errors, found.bounds, strict=True) if b is not None]
        assert pairs or method == "learned"
        assert all(e <= b for e, b in pairs)
        if state.layers < 200 and task != "eigenvector" and method != "learned":
            far = np.abs(found.values[-1].numpy() - true).max() / np.abs(true).max()
            assert far <= 1e-2


@pytest.mark.parametrize(("task", "method"), EVERY)
def test_errors_are_what_they_say(task, method):
    state = asked("grid", 12, task, method)
    found, true = solve(state, {}), truth(state)
    if task == "eigenvector":
        values = np.linalg.eigvalsh(laplacian(state))
        expected = values[-1] if method == "largest" else values[1]
        assert found.readout.exact == pytest.approx(expected)
        return
    order = np.inf if task == "resistance" else 2
    gaps = [np.linalg.norm(v - true, order) / np.linalg.norm(true, order) for v in found.values.numpy()]
    np.testing.assert_allclose(found.errors, gaps, rtol=1e-6, atol=1e-11)


@pytest.mark.parametrize("method", sorted(METHODS["eigenvector"]))
@pytest.mark.parametrize(("name", "nodes", "which"), [("path", 25, 1), ("ring", 12, 3), ("tree", 14, 2), ("csl", 20, 2)])
def test_the_sine_is_that_of_the_vector_shown_and_no_eigenvalue_lies_below_the_smallest(name, nodes, which, method):
    state = turn(with_graph(FIRST, preset(name, nodes), name, {}), "task", "eigenvector", {})
    state = turn(turn(state, "method", method, {}), "which", which, {})
    found = solve(state, {})
    values, vectors = np.linalg.eigh(laplacian(state))
    value = values[-which if method == "largest" else which]
    space = vectors[:, np.abs(values - value) < 1e-9]
    shown = found.values.numpy() / np.linalg.norm(found.values.numpy(), axis=1, keepdims=True)
    sines = np.linalg.norm(shown - shown @ space @ space.T, axis=1)
    np.testing.assert_allclose(found.errors, sines, atol=1e-9)
    assert all(e <= b for e, b in zip(found.errors, found.bounds, strict=True) if b is not None)
    assert min(found.readout.now) >= values[1] * (1 - 1e-9)


def test_two_constructions_side_by_side_each_have_their_own_depth():
    state = turn(FIRST, "beside", "cubing", {})
    second = solve_beside(state, {})
    assert second is not None
    alone = solve(turn(FIRST, "method", "cubing", {}), {})
    torch.testing.assert_close(second.values, alone.values)
    assert len(second.errors) < len(solve(state, {}).errors)
    fixed = turn(state, "layers", 3, {})
    both = solve(fixed, {}), solve_beside(fixed, {})
    assert [len(found.errors) for found in both if found] == [4, 4]
    assert solve_beside(FIRST, {}) is None


@pytest.mark.parametrize("task", ["electric", "resistance"])
def test_what_is_learned_on_copies_is_better_than_the_lemma_at_its_depth(task):
    state = turn(turn(turn(FIRST, "task", task, {}), "method", "learned", {}), "beside", "gradient-descent", {})
    second = solve_beside(turn(state, "layers", state.layers, {}), {})
    assert second is not None
    learned = solve(state, {})
    assert len(learned.errors) == len(second.errors) == 10
    assert learned.errors[-1] < 0.1 * second.errors[-1]
    assert not any(learned.bounds)
    weights = drawn_weights(learned.program)
    assert len(weights["order"]) == 9


def test_repeated_eigenvalues_are_found_as_a_space():
    state = turn(with_graph(FIRST, preset("ring", 12), "ring", {}), "task", "eigenvector", {})
    state = turn(state, "method", "through-pinv", {})
    found = solve(state, {})
    assert found.errors[-1] < 1e-3
    matrix, v = laplacian(state), found.exact.numpy()
    np.testing.assert_allclose(matrix @ v, found.readout.exact * v, atol=1e-9)
    np.testing.assert_allclose(found.values[-1].numpy(), v, atol=1e-3)


@pytest.mark.parametrize("task", sorted(METHODS))
def test_disconnected_graphs_are_ordinary(task):
    graph = Graph.from_edges([(0, 1), (1, 2), (3, 4)], num_nodes=6)
    drawing = drawn(graph, list("abcdef"), [(100.0 * i, 0.0) for i in range(6)])
    state = turn(with_graph(FIRST, drawing, "upload", {}), "task", task, {})
    found = solve(state, {})
    if task == "resistance":
        assert found.exact.isinf().tolist() == [False] * 3 + [True] * 3
        assert found.values[-1].isinf().tolist() == [False] * 3 + [True] * 3
    assert json.dumps(shown(state, found, method=""), allow_nan=False)


def test_a_lonely_node_and_an_empty_field_are_answered():
    alone = with_graph(FIRST, drawn(Graph.from_edges([], num_nodes=1), ["a"], [(0.0, 0.0)]), "drawn", {})
    for task in ("resistance", "heat"):
        assert solve(turn(alone, "task", task, {}), {}).errors[-1] < 1e-3
    for task, message in (("electric", "No current yet"), ("eigenvector", "one of the 0 eigenvectors")):
        with pytest.raises(ValueError, match=message):
            solve(turn(alone, "task", task, {}), {})
    with pytest.raises(ValueError, match="at least one node"):
        solve(turn(FIRST, "event", {"kind": "clear"}, {}), {})


def test_unbalanced_current_says_what_is_missing():
    with pytest.raises(ValueError, match=r"1 A in and 0 A out: click where it leaves"):
        solve(replace(FIRST, currents=((0, 1.0),)), {})
    with pytest.raises(ValueError, match=r"0 A in and 2 A out: click where it enters"):
        solve(replace(FIRST, currents=((0, -2.0),)), {})


def test_the_weights_shown_are_those_of_the_construction():
    found = solve(turn(turn(FIRST, "method", "chebyshev", {}), "layers", 3, {}), {})
    weights = drawn_weights(found.program)
    assert list(weights["blocks"]) == ["incidence", "demand", "previous", "potential"]
    assert set(weights["blocks"].values()) == {CELLS}
    assert weights["order"] == [0, 1, 2]
    value, _, _, skip = weights["layers"][0]
    assert (value["name"], skip["name"]) == ("V", "R")
    layer = found.program.layers[0]
    assert value["blocks"] == [
        ["potential", "potential", pytest.approx(layer.heads[0].value["potential", "potential"], 1e-5)]
    ]
    assert len(skip["blocks"]) == len(layer.skip)


# ---------------------------------------------------------------------------------------------------- trained


def trained(tmp_path, **setting) -> Trained:
    chosen = Setting(seeds=1, batch=100, **setting)
    train(chosen, steps=40 if chosen.scalars else 1, folder=tmp_path)
    return Trained.load(tmp_path)


def ask_trained(model: Trained, task: str, **more) -> Solution:
    state = turn(with_graph(FIRST, preset("csl", 10), "csl", {}), "task", task, {})
    state = turn(replace(state, **more), "method", "trained:" + model.name, {model.name: model})
    assert state.layers == model.layers
    found = solve(state, {model.name: model})
    assert json.dumps(shown(state, found, method=""), allow_nan=False)
    assert found.bounds == [None] * (model.layers + 1)
    return found


def test_a_trained_checkpoint_answers_where_it_was_trained(tmp_path):
    model = trained(tmp_path, task="electric", layers=3, init="construction")
    found = ask_trained(model, "electric")
    assert found.errors[-1] < 0.1 < found.errors[1]
    assert ask_trained(model, "resistance").errors[-1] < 0.1
    beside = replace(turn(FIRST, "graph", "csl", {}), beside="trained:" + model.name)
    answer = answered(beside, {model.name: model})
    assert answer["method"].startswith("Lemma 1")
    assert answer["beside"]["method"] == "Trained · " + model.name
    assert answer["beside"]["layers"] == 3
    assert list(drawn_weights(found.program)["blocks"]) == ["incidence", "demand", "answer"]


@pytest.mark.parametrize("model", ["efficient", "dense"])
def test_trained_matrices_are_shown_in_full(tmp_path, model):
    loaded = trained(tmp_path, task="heat", layers=2, model=model)
    found = ask_trained(loaded, "heat", time=0.5)
    weights = drawn_weights(found.program)
    assert weights["blocks"] == {"incidence": 20 if model == "dense" else CELLS, "demand": 10, "answer": 10}
    blocks = {(t, s): c for t, s, c in weights["layers"][0][0]["blocks"]}
    matrix = loaded.run.weights["value"][0, 0]
    corner = torch.tensor(blocks["answer", "demand"])
    torch.testing.assert_close(corner, matrix[-10:, -20:-10], rtol=1e-4, atol=1e-6)


def test_trained_eigenvectors_are_shown_beside_the_nearest(tmp_path):
    model = trained(tmp_path, task="eigenvectors", layers=2, model="efficient")
    found = ask_trained(model, "eigenvector", which=2)
    assert found.values.shape == (3, 10)
    assert len(found.errors) == 3


def test_what_a_checkpoint_cannot_do_is_refused_with_one_message(tmp_path):
    model = trained(tmp_path, task="heat", layers=1, model="dense")
    known = {model.name: model}
    state = turn(with_graph(FIRST, preset("csl", 10), "csl", {}), "task", "heat", {})
    state = replace(state, method="trained:" + model.name)
    with pytest.raises(ValueError, match=r"s = 0.5 that the checkpoint was trained for, got 1"):
        solve(state, known)
    with pytest.raises(ValueError, match=r"20 edges, as in training, got 9"):
        solve(turn(replace(state, drawing=preset("path", 10)), "time", 0.5, known), known)
    with pytest.raises(ValueError, match="task heat for"):
        solve(replace(state, task="electric"), known)
    with pytest.raises(ValueError, match="--checkpoint"):
        solve(state, {})
