"""A prepared solver answers as the questions do, works before it is asked, and edits edges without a new factor."""

import gc
import inspect
import re
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

import ohmformer as ohm
from ohmformer import Graph, exact, native, solve
from ohmformer.graph.memory import bytes_kept, remembered
from ohmformer.solve import certificate, factor
from ohmformer.solve.engines.direct import EDITED
from tests.solve.test_solve import random_graph
from tests.strategies import demands_for


@pytest.fixture
def solver():
    """Of a small graph in three components, one of them a single node, with parallel edges and bridges; by its factor."""
    edges = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (3, 4), (5, 6), (6, 7), (7, 5)]
    return ohm.prepare(Graph.from_edges(edges, resistance=np.arange(1.0, 10.0), num_nodes=9), method="direct")


def check(solver, rtol=1e-11):
    """The edited solver against LAPACK on a graph of its own that was built from the edges."""
    g = Graph(solver.graph.edge_index, solver.graph.resistance.detach(), solver.graph.batch)
    psi = demands_for(g)
    answer = solver.potentials(psi, method="direct", tol=1e-10)
    truth = exact.potentials(g, psi)
    torch.testing.assert_close(answer.value, truth, rtol=rtol, atol=rtol * float(truth.abs().max()))
    left = (psi - g.laplacian() @ answer.value).norm(dim=0) / psi.norm(dim=0)
    assert max(answer.residual, float(left.max())) < 1e-10
    assert remembered(solver.graph, EDITED) is not None
    assert remembered(solver.graph, "factor") is None


def test_every_question_is_a_method_with_its_own_signature_and_docstring():
    for name in solve.__all__:
        function = getattr(solve, name)
        if inspect.isfunction(function) and name != "prepare":
            method = getattr(solve.Solver, name)
            assert method.__doc__ == function.__doc__
            assert list(inspect.signature(method).parameters) == list(inspect.signature(function).parameters)


def test_answers_are_those_of_the_questions_with_labels():
    edges = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")]
    solver = ohm.prepare(edges, resistance=[1.0, 2.0, 3.0, 4.0])
    demand = {"a": 1.0, "d": -1.0}
    found = solver.electric_flow(demand)
    assert found.labels == solver.labels == ["a", "b", "c", "d"]
    assert torch.equal(found.flow, ohm.electric_flow(edges, demand, resistance=[1.0, 2.0, 3.0, 4.0]).flow)
    assert float(solver.kirchhoff_index().value) == pytest.approx(float(exact.effective_resistance(solver.graph).sum() / 2))
    with pytest.raises(ValueError, match="expected a tolerance in"):
        solver.potentials(demand, tol=2.0)
    with pytest.raises(ValueError, match="expected a tolerance in"):
        ohm.prepare(edges, tol=2.0)


@pytest.mark.parametrize("method", ["direct", "elimination"])
def test_what_can_be_done_before_a_demand_is_known_is_done(method, monkeypatch):
    g = random_graph(600, 1800)
    solver = ohm.prepare(g, method=method)
    assert bytes_kept(g) > 0
    monkeypatch.setattr(factor, "factorise", None)
    monkeypatch.setattr("ohmformer.solve.engines.elimination.eliminate", None)
    psi = demands_for(g)
    torch.testing.assert_close(
        solver.potentials(psi, method=method, tol=1e-10).value, exact.potentials(g, psi), rtol=1e-6, atol=1e-8
    )
    assert method in repr(solver)
    assert "MB kept" in repr(solver)


def test_a_kept_factor_is_used_by_questions_that_name_no_method():
    g = random_graph(600, 900)
    assert ohm.prepare(g, method="direct").potentials(demands_for(g)).method == "direct"


def test_edges_are_added_removed_and_given_another_resistance(solver):
    check(solver.add_edge(0, 3, 0.5))
    check(solver.add_edge(0, 1, 0.5))  # in parallel
    check(solver.remove_edge(0, 1))
    check(solver.remove_edge(1, 0))
    check(solver.reweight_edge(3, 2, 100.0))
    check(solver.edit(add=[(0, 4, 1.0), (5, 7, 2.0)], remove=[(1, 2), 4], reweight=[(0, 9.0), (5, 6, 1e-3)]))
    assert solver.graph.num_edges == 9
    assert remembered(solver.graph, EDITED) is None


def test_edges_that_stay_keep_their_order_and_those_added_come_last(solver):
    edited = solver.edit(add=[(8, 0, 2.5)], remove=[1], reweight=[(3, 0.25)]).graph
    assert edited.edge_index.t().tolist() == [[0, 1], [2, 0], [2, 3], [3, 4], [3, 4], [5, 6], [6, 7], [7, 5], [8, 0]]
    assert edited.resistance.tolist() == [1, 3, 0.25, 5, 6, 7, 8, 9, 2.5]


def test_a_bridge_that_is_removed_splits_a_component_and_one_that_is_added_joins_two(solver):
    split = solver.remove_edge(2, 3)
    assert split.graph.num_components == 4
    check(split)
    check(split.edit(remove=[(0, 1), (1, 2)]))  # a node on its own
    joined = solver.add_edge(4, 5, 2.0)
    assert joined.graph.num_components == 2
    check(joined)
    check(joined.add_edge(8, 0, 1e-3))
    check(joined.edit(remove=[(2, 3)], add=[(0, 6, 3.0)]))  # splits one, joins two others
    assert float(split.effective_resistance([(0, 4)], method="direct").value) == torch.inf


def test_edits_that_take_each_other_back_leave_nothing(solver):
    back = solver.remove_edge(2, 3).add_edge(2, 3, 4.0)
    check(back)
    assert not remembered(back.graph, EDITED).changes
    psi, there = demands_for(solver.graph), solver.reweight_edge(2, 3, 1e6)
    values = [x.potentials(psi, method="direct").value for x in (solver, there.reweight_edge(2, 3, 4.0))]
    assert torch.equal(*values)


def test_random_edits_in_a_row_are_right():
    rng = np.random.default_rng(0)
    for nodes in range(4, 24):
        edges = rng.integers(0, nodes, (2 * nodes, 2))
        g = Graph.from_edges(edges, resistance=10 ** rng.uniform(-1, 1, len(edges)), num_nodes=nodes)
        solver = ohm.prepare(g, method="direct")
        for _ in range(6):
            u, v = rng.choice(nodes, 2, replace=False).tolist()
            gone, other = rng.choice(solver.graph.num_edges, 2, replace=False).tolist()
            new = (10 ** rng.uniform(-1, 1, 2)).tolist()
            solver = solver.edit(add=[(u, v, new[0])], remove=[gone], reweight=[(other, new[1])])
            check(solver, rtol=1e-9)


def test_edits_over_many_orders_of_magnitude_are_as_right_as_a_new_factor_and_say_how_right():
    rng = np.random.default_rng(1)
    carried = 0
    for _ in range(60):
        nodes = int(rng.integers(3, 12))
        edges = rng.integers(0, nodes, (2 * nodes, 2))
        g = Graph.from_edges(edges, resistance=10 ** rng.uniform(-7, 7, len(edges)), num_nodes=nodes)
        solver = ohm.prepare(g, method="direct")
        for _ in range(3):
            u, v = rng.choice(nodes, 2, replace=False).tolist()
            gone = int(rng.integers(solver.graph.num_edges))
            solver = solver.edit(add=[(u, v, float(10 ** rng.uniform(-7, 7)))], remove=[gone])
            carried += remembered(solver.graph, EDITED) is not None
            psi = demands_for(solver.graph)
            found = solver.potentials(psi, method="direct", tol=1e-6)
            truth = ohm.potentials(replace(solver.graph), psi, method="direct", tol=1e-6)
            tail, head = solver.graph.edge_index
            c = 1 / solver.graph.resistance[:, None]
            energy = [(c * (x[tail] - x[head]).square()).sum(0).sqrt() for x in (found.value - truth.value, truth.value)]
            wrong = float(torch.where(energy[1] > 0, energy[0] / energy[1], 0.0).max())
            assert found.error is not None
            assert truth.error is not None
            assert wrong <= found.error + truth.error + 1e-15
            assert found.error <= 1e-6
    assert carried > 100


def test_after_many_edits_a_new_factor_is_made(solver, monkeypatch):
    monkeypatch.setattr("ohmformer.solve.edits.EDITS", 2)
    twice = solver.add_edge(0, 3).add_edge(0, 4)
    check(twice)
    often = twice.add_edge(1, 3)
    assert remembered(often.graph, EDITED) is None
    assert remembered(often.graph, "factor") is not None
    check(often.add_edge(1, 4))


def test_an_edit_whose_digits_cancel_is_answered_by_a_new_factor():
    path = ohm.prepare(Graph.from_edges([(0, 1), (1, 2)], resistance=[1.0, 1e-14]), method="direct")
    edited = path.edit(remove=[1], add=[(1, 2, 1e3)])  # 1e14 - 1e14 + 1e-3
    psi = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64)
    answer = edited.potentials(psi, method="direct", tol=1e-9)
    assert float(answer.value[0] - answer.value[2]) == pytest.approx(1001.0, rel=1e-9)
    assert remembered(edited.graph, "factor") is not None


def test_a_batch_and_its_parts_can_be_edited():
    batch = Graph.collate([random_graph(5, 8), random_graph(450, 900), random_graph(7, 9)])
    solver = ohm.prepare(batch).edit(add=[(0, 3, 2.0), (5, 20, 1.0)], remove=[0])
    psi = demands_for(solver.graph)
    found = solver.potentials(psi, tol=1e-10).value
    parts = zip(solver.graph.split(), solver.graph.nodes.split(psi), strict=True)
    truth = torch.cat([exact.potentials(g, mine) for g, mine in parts])
    torch.testing.assert_close(found, truth, rtol=1e-6, atol=1e-8)
    with pytest.raises(ValueError, match="got nodes of two graphs of a batch"):
        solver.add_edge(0, 5)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"remove": [(0, 4)]}, "expected one edge between 0 and 4, got none"),
        ({"remove": [(4, 3)]}, "expected one edge between 4 and 3, got 2: name one of them by its number, 4, 5"),
        ({"remove": [9]}, "expected an edge number in 0..8, got 9"),
        ({"remove": [0, (1, 0)]}, "expected every edge to be removed or given another resistance once, got one twice"),
        ({"remove": [(0, 12)]}, "expected node numbers in 0..8, got 12"),
        ({"add": [(0, 1)]}, "expected (node, node, resistance), got (0, 1)"),
        ({"add": [(3, 3, 1.0)]}, "expected an edge between two different nodes of a graph, got a self-loop"),
        ({"add": [(0, 1, -1.0)]}, "expected a positive and finite resistance, got -1.0"),
        ({"reweight": [(0, 1, float("nan"))]}, "expected a positive and finite resistance, got nan"),
        ({"reweight": [0]}, "expected (node, node, resistance) or (edge number, resistance), got 0"),
    ],
)
def test_an_edit_that_makes_no_sense_is_refused_in_the_users_words(solver, edit, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        solver.edit(**edit)


def test_gradients_through_a_prepared_solver_and_after_edits_pass_gradcheck():
    g = random_graph(8, 14, seed=2)
    psi = demands_for(g)

    def ask(resistance, new, demand):
        solver = ohm.prepare(replace(g, resistance=resistance), method="direct")
        edited = solver.edit(add=[(0, 5, new)], remove=[2], reweight=[(0, 2 * new)])
        assert remembered(edited.graph, EDITED) is not None
        both = [s.potentials(demand, center=True, method="direct", tol=1e-12).value for s in (solver, edited)]
        return torch.cat(both)

    new = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    r = g.resistance.clone().requires_grad_()
    assert torch.autograd.gradcheck(ask, (r, new, psi.clone().requires_grad_()))


def test_threads_edit_and_ask_one_solver_at_once():
    g = random_graph(500, 1200)
    solver, psi = ohm.prepare(g, method="direct"), demands_for(g)
    barrier = threading.Barrier(6)

    def ask(number):
        barrier.wait()
        edited = solver.remove_edge(*g.edge_index[:, number].tolist()) if number % 2 else solver.edit(remove=[number])
        fresh = Graph(edited.graph.edge_index, edited.graph.resistance, edited.graph.batch)
        found, truth = edited.potentials(psi, tol=1e-9).value, exact.potentials(fresh, psi)
        return float((found - truth).norm() / truth.norm())

    with ThreadPoolExecutor(6) as pool:
        assert max(pool.map(ask, [101, 0, 103, 2, 105, 4])) < 1e-8


def test_a_solver_in_inference_mode_can_be_asked_outside():
    g = random_graph(500, 1200)
    psi = demands_for(g)
    with torch.inference_mode():
        solver = ohm.prepare(g, method="direct").add_edge(0, 9, 0.5)
        inside = solver.potentials(psi).value.clone()
    torch.testing.assert_close(solver.potentials(psi).value, inside)


def test_a_solver_goes_without_the_collector():
    solver = ohm.prepare(random_graph(500, 1200), method="direct").add_edge(0, 9, 0.5)
    solver.potentials(demands_for(solver.graph))
    gone = weakref.ref(solver.graph)
    gc.collect()
    gc.disable()
    try:
        del solver
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("in_c", [True, False])
def test_an_approximate_factor_goes_on_to_precondition_the_edited_graph(in_c, monkeypatch):
    g = random_graph(600, 1200)
    edges = g.edge_index.t().tolist()
    with nullcontext() if in_c else native.used("off"):
        solver = edited = ohm.prepare(g, method="elimination")
        with monkeypatch.context() as patch:
            patch.setattr("ohmformer.solve.engines.elimination.eliminate", None)  # no new factor
            for i in range(4):
                weaker, stronger = [(j, 1e3) for j in range(3 * i + 1)], [(j, 1e-3) for j in range(20, 21 + i)]
                edited = solver.edit(add=[(i, 300 + i, 0.1)], remove=[edges[50 + i], edges[60]], reweight=weaker + stronger)
                psi = demands_for(edited.graph)
                answer, truth = edited.potentials(psi, method="elimination", tol=1e-9), exact.potentials(edited.graph, psi)
                wrong = certificate.energy_norm(edited.graph, answer.value - truth)
                assert answer.error is not None
                assert float((wrong / certificate.energy_norm(edited.graph, truth)).max()) <= answer.error <= 1e-6
            twice = edited.edit(reweight=[(j, 2.0) for j in range(100, 110)])
            assert twice.potentials(demands_for(twice.graph), method="elimination").residual <= 1e-6
        monkeypatch.setattr("ohmformer.solve.engines.elimination.eliminate", None)
        with pytest.raises(TypeError):  # after more edits a new one is made
            twice.edit(reweight=[(j, 3.0) for j in range(200, 220)])


def test_an_approximate_factor_goes_on_after_a_split_but_not_if_components_are_joined():
    tail, head = random_graph(300, 900).edge_index
    edges = torch.stack(
        [torch.cat([tail, tail + 300, torch.tensor([0])]), torch.cat([head, head + 300, torch.tensor([300])])]
    )
    whole = ohm.prepare(Graph.from_edges(edges.t(), num_nodes=600), method="elimination")
    split = whole.edit(remove=[edges.shape[1] - 1])
    assert split.graph.num_components == 2
    for solver, kept in ((split, 1), (split.add_edge(5, 400), 0)):
        found = remembered(solver.graph, ("approximate factor", native.active() is not None))
        assert found.edits == kept
        psi = demands_for(solver.graph)
        answer = solver.potentials(psi, method="elimination", tol=1e-9)
        torch.testing.assert_close(answer.value, exact.potentials(solver.graph, psi), rtol=1e-5, atol=1e-7)
