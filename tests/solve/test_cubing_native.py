"""Small graphs in compiled code: the resistances of LAPACK, the certificates and gradients of torch, on any batch."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ohmformer as ohm
from ohmformer import Graph, native
from ohmformer.solve.engines import small_compiled
from tests.solve.test_any_graph import anything, ask_everything
from tests.solve.test_solve import random_graph
from tests.strategies import demands_for, graphs

pytestmark = pytest.mark.skipif(native.active() is None, reason="needs native kernels")


@pytest.fixture
def batches(monkeypatch):
    """The batches that compiled code has taken."""
    taken, work = [], small_compiled.invert

    def counted(graph, *rest):
        taken.append(graph)
        return work(graph, *rest)

    monkeypatch.setattr(small_compiled, "invert", counted)
    return taken


def path(n: int) -> Graph:
    return Graph.from_edges([(i, i + 1) for i in range(n - 1)], num_nodes=n)


def complete(n: int) -> Graph:
    return Graph.from_edges([(i, j) for i in range(n) for j in range(i)], num_nodes=n)


def resistances(g: Graph) -> np.ndarray:
    """All pairs by LAPACK's pseudo-inverse."""
    x = np.linalg.pinv(g.laplacian().numpy(), rcond=1e-12, hermitian=True)
    between = x.diagonal()[:, None] + x.diagonal()[None, :] - 2 * x
    label = g.components.numpy()
    return np.where(label[:, None] == label[None, :], between, np.inf)


def check_all_pairs(parts: list[Graph], tol: float = 1e-9) -> None:
    answer = ohm.effective_resistance(Graph.collate(parts), "all", tol=tol)
    assert answer.residual <= tol
    assert answer.value.shape == (len(parts), *[max(g.num_nodes for g in parts)] * 2)
    for g, ours in zip(parts, answer.value.numpy(), strict=True):
        n, truth = g.num_nodes, resistances(g)
        finite = np.isfinite(truth)
        assert np.array_equal(np.isfinite(ours[:n, :n]), finite)
        scale = float(truth[finite].max(initial=0.0))
        np.testing.assert_allclose(ours[:n, :n][finite], truth[finite], rtol=0, atol=1e-6 * scale)
        assert not ours[n:].any()
        assert not ours[:, n:].any()
        assert not ours.diagonal().any()


@settings(max_examples=60)
@given(st.lists(graphs(), min_size=1, max_size=5))
def test_all_pairs_are_lapacks_on_any_batch(parts):
    check_all_pairs(parts)


@settings(max_examples=60)
@given(anything())
def test_no_graph_gives_nan_or_an_undocumented_error(g):
    ask_everything(g)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 13, 24, 31, 32, 33, 47, 63, 64])
@pytest.mark.parametrize("kind", ["path", "complete", "random"])
def test_every_size_is_exact_where_there_are_few_entries_and_where_there_are_many(n, kind, batches):
    one = {"path": path, "complete": complete, "random": lambda n: random_graph(n, 2 * n)}[kind](n)
    check_all_pairs([one, path(3), one], tol=1e-8)
    assert len(batches) == 1


def test_empty_graphs_and_nodes_without_edges_are_answered(batches):
    check_all_pairs(
        [
            Graph.from_edges([], num_nodes=0),
            Graph.from_edges([(0, 1), (3, 4)], num_nodes=6),
            Graph.from_edges([], num_nodes=2),
        ]
    )
    nothing = ohm.effective_resistance(Graph.collate([Graph.from_edges([], num_nodes=0)]), "all")
    assert nothing.value.shape == (1, 0, 0)
    assert len(batches) == 2


def test_edges_need_not_be_in_the_order_of_their_graphs(batches):
    g = Graph.collate([random_graph(12, 20), path(9), random_graph(30, 40, seed=1)])
    order = torch.randperm(g.num_edges, generator=torch.Generator().manual_seed(0))
    mixed = replace(g, edge_index=g.edge_index[:, order], resistance=g.resistance[order])
    torch.testing.assert_close(
        ohm.effective_resistance(mixed, "all").value, ohm.effective_resistance(g, "all").value, rtol=0, atol=1e-9
    )
    assert len(batches) == 2


def test_certificates_are_those_of_torch(batches):
    parts = [random_graph(n, 2 * n, seed=n) for n in range(5, 60)]
    for tol in (1e-3, 1e-6, 1e-10):
        ours = ohm.effective_resistance(Graph.collate(parts), "all", tol=tol)
        with native.used("off"):
            theirs = ohm.effective_resistance(Graph.collate(parts), "all", tol=tol)
        assert (ours.method, ours.bound, ours.spectrum) == (theirs.method, theirs.bound, theirs.spectrum)
        assert ours.layers <= theirs.layers + 1
        assert max(ours.residual, theirs.residual) <= tol
    assert len(batches) >= 3


def test_the_residual_is_measured():
    g = random_graph(40, 60)
    found = ohm.effective_resistance(Graph.collate([g]), "all", tol=1e-7)
    inverse = ohm.potentials(Graph.collate([g]), torch.eye(40, dtype=torch.float64) - 1 / 40, tol=1e-7)
    laplacian, degree = g.laplacian().numpy(), g.laplacian().numpy().diagonal()
    worst = np.linalg.norm(np.eye(40) - 1 / 40 - laplacian @ inverse.value.numpy(), axis=0).max()
    spread = np.sqrt(degree.max() / degree.min())
    assert worst <= 2 * spread * max(found.residual, 40 * np.finfo(float).eps * degree.max())


def test_ill_conditioned_and_large_graphs_stay_with_torch(batches):
    far = Graph.from_edges([(0, 1), (1, 2), (2, 3)], resistance=[1.0, 1e9, 1.0])
    assert ohm.effective_resistance(Graph.collate([far]), "all").value[0, 0, 3] == pytest.approx(1e9 + 2)
    check_all_pairs([random_graph(65, 100), path(3)], tol=1e-8)
    doubled = Graph.from_edges([(0, 1)] * (small_compiled.EDGES + 1))
    assert ohm.effective_resistance(Graph.collate([doubled]), "all").value[0, 0, 1] == pytest.approx(1 / 2049)
    assert batches == []
    most = Graph.from_edges([(0, 1), (1, 2)] * (small_compiled.EDGES // 2))
    assert ohm.effective_resistance(Graph.collate([most]), "all").value[0, 0, 2] == pytest.approx(2 / 1024)
    assert len(batches) == 1


def test_potentials_edges_and_gradients_are_those_of_torch(batches):
    g = Graph.collate([random_graph(20, 30), random_graph(33, 50, parts=2), path(7)])
    psi, found = demands_for(g), []
    for context in (native.used("off"), nullcontext()):
        with context:
            resistance = g.resistance.clone().requires_grad_()
            graph = replace(g, resistance=resistance)
            edges, pairs = (ohm.effective_resistance(graph, p, tol=1e-9).value for p in ("edges", "all"))
            phi = ohm.potentials(graph, psi, tol=1e-9).value
            total = edges.square().sum() + pairs[pairs.isfinite()].square().sum() + phi.square().sum()
            total.backward()
            found.append((edges.detach(), phi.detach(), resistance.grad))
    for torchs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-6, atol=1e-7 * float(torchs.abs().max()))
    assert len(batches) >= 3


def test_the_number_of_threads_does_not_change_a_bit():
    g = Graph.collate([random_graph(n, 2 * n, seed=n) for n in range(5, 60)])
    before, answers = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            answers.append(ohm.effective_resistance(replace(g), "all").value)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])
