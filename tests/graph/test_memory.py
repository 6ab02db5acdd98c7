"""What is worked out about a graph is kept until the graph is gone or its resistances change, in bounded memory."""

import gc
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array

import ohmformer as ohm
from ohmformer import Graph, exact, native
from ohmformer.graph import memory
from ohmformer.graph.labelled import as_graph
from ohmformer.graph.memory import bytes_kept, forget, recall, some_graphs
from ohmformer.solve.engines import elimination
from tests.solve.test_solve import random_graph
from tests.strategies import demands_for


@pytest.fixture
def g():
    return random_graph(500, 1500)


def test_it_is_made_once_and_again_after_resistances_changed_in_place(g):
    made = []

    def make():
        made.append(float(g.resistance[0]))
        return len(made)

    assert [recall(g, "n", make) for _ in range(3)] == [1, 1, 1]
    assert recall(g, "edges", lambda: 7, weighted=False) == 7
    g.resistance[0] *= 2
    assert recall(g, "edges", lambda: 8, weighted=False) == 7
    assert recall(g, "n", make) == 2
    assert recall(g, "n", make, fits=lambda found: found > 2) == 3
    assert made[1] == 2 * made[0]
    forget(g)
    assert recall(g, "n", make) == 4


def test_proved_bounds_follow_resistances_changed_in_place(g):
    before = g.spectral_bounds()
    g.resistance.mul_(4.0)
    assert g.spectral_bounds().lmin == pytest.approx(before.lmin / 4)
    assert g.spectral_bounds().lmax == pytest.approx(before.lmax / 4)


def test_ten_threads_make_it_once(g):
    made, barrier = [], threading.Barrier(10)

    def ask(_):
        barrier.wait()
        return recall(g, "slow", lambda: made.append(sum(range(10**6))) or object())

    with ThreadPoolExecutor(10) as pool:
        assert len(set(map(id, pool.map(ask, range(10))))) == 1
    assert len(made) == 1


def test_an_error_or_ctrl_c_while_it_is_made_leaves_nothing_behind(g):
    def broken():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recall(g, "n", broken)
    assert recall(g, "n", lambda: 1) == 1


@pytest.mark.parametrize("method", ["chebyshev", "elimination", "direct"])
def test_it_goes_with_the_graph_without_the_collector(method):
    g = random_graph(500, 1500)
    gc.collect()
    gc.disable()
    try:
        ohm.potentials(g, demands_for(g), method=method)
        ohm.effective_resistance(g)
        assert bytes_kept(g) > 0
        gone = weakref.ref(g)
        del g
        assert gone() is None
    finally:
        gc.enable()


def test_no_more_than_the_limit_is_kept_and_the_graph_asked_about_longest_ago_goes_first(monkeypatch):
    graphs = [random_graph(500, 1500, seed=i) for i in range(4)]
    forget()
    monkeypatch.setattr(memory, "MOST", 2500)
    for g in graphs[:3]:
        recall(g, "array", lambda: np.zeros(100))
    recall(graphs[0], "array", list)
    assert [bytes_kept(g) for g in graphs] == [800, 800, 800, 0]
    recall(graphs[3], "array", lambda: torch.zeros(100, dtype=torch.float64))
    assert [bytes_kept(g) for g in graphs] == [800, 0, 800, 800]


def test_answers_are_right_when_kernels_are_switched_on_and_off(g):
    psi = demands_for(g)
    truth = exact.potentials(g, psi)
    for name in ("off", *native.available()[-1:], "off", *native.available()[-1:]):
        with native.used(name):
            for method in ("elimination", "direct"):
                phi = ohm.potentials(g, psi, method=method, tol=1e-10).value
                assert float((phi - truth).norm() / truth.norm()) < 1e-7
            found = ohm.effective_resistance(g, method="direct", tol=1e-9).value
            torch.testing.assert_close(found, exact.effective_resistance(g)[tuple(g.edge_index)], rtol=1e-9, atol=0)


def forms(g: Graph):
    tail, head = g.edge_index.numpy()
    r = g.resistance.numpy()
    both = np.concatenate([tail, head]), np.concatenate([head, tail])
    yield g.edge_index.t().tolist(), {"resistance": r.tolist()}
    yield g.edge_index.t().clone(), {"resistance": r}
    yield coo_array((np.concatenate([r, r]), both), shape=(g.num_nodes,) * 2).tocsr(), {"resistance": "entries"}
    yield g.to_networkx(), {"resistance": "resistance"}


@pytest.mark.parametrize("form", range(4))
def test_a_graph_in_another_form_is_found_again_by_its_content(form):
    pairs = torch.unique(random_graph(450, 1300).edge_index.sort(dim=0).values, dim=1).t()
    g = Graph.from_edges(pairs, resistance=1 + torch.rand(len(pairs), dtype=torch.float64), num_nodes=450)
    forget()
    given, weights = list(forms(g))[form]
    first = as_graph(given, **weights).graph
    assert as_graph(given, **weights).graph is first
    if form < 2:
        assert as_graph(given, resistance=2 * np.array(weights["resistance"])).graph is not first
    forget()
    assert as_graph(given, **weights).graph is not first


def test_only_the_last_few_graphs_in_other_forms_are_kept():
    lists = [random_graph(450, 1300, seed=i).edge_index.t() for i in range(memory.FEW + 1)]
    first = as_graph(lists[0]).graph
    kept = [weakref.ref(as_graph(edges).graph) for edges in lists[1:]]
    assert all(k() is not None for k in kept)
    assert as_graph(lists[0]).graph is not first


def test_resistances_that_are_learned_are_never_taken_from_an_earlier_graph():
    edges = random_graph(450, 1300).edge_index.t()
    r = torch.ones(len(edges), dtype=torch.float64)
    as_graph(edges, resistance=r)
    learned = as_graph(edges, resistance=r.clone().requires_grad_()).graph
    assert learned.resistance.requires_grad


def test_the_large_graphs_of_a_batch_keep_their_factor_between_questions(monkeypatch):
    batch = Graph.collate([random_graph(20, 40), random_graph(600, 2000), random_graph(450, 900)])
    psi = demands_for(batch)
    made = []
    work = elimination.eliminate
    monkeypatch.setattr(elimination, "eliminate", lambda *a, **k: made.append(a) or work(*a, **k))
    ask = lambda: ohm.potentials(batch, psi, method="elimination", tol=1e-9).value  # noqa: E731
    first = ask()
    number = len(made)
    assert torch.equal(ask(), first)
    assert len(made) == number
    which = torch.tensor([1])
    assert some_graphs(batch, which) is some_graphs(batch, which)
    with torch.inference_mode():
        assert torch.equal(ohm.potentials(batch, psi, method="elimination", tol=1e-9).value, first)
    batch.resistance.mul_(2.0)
    torch.testing.assert_close(ask(), 2 * first, rtol=1e-6, atol=1e-9)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_of_a_fork_does_not_wait_for_a_lock_that_a_thread_of_its_parent_held(g):
    begun, end = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: recall(g, "slow", lambda: (begun.set(), end.wait(60))))
    thread.start()
    begun.wait(60)
    child = os.fork()
    if child == 0:
        os._exit(recall(g, "fast", lambda: 7))
    end.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
