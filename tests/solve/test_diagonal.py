"""The diagonal of L^+, closeness, spanning trees and the Kirchhoff index against LAPACK, networkx, fractions, formulas."""

from fractions import Fraction
from itertools import combinations

import networkx as nx
import numpy as np
import pytest
import torch

import ohmformer as ohm
from ohmformer import Graph, exact, native
from tests.solve.test_estimates import no_factor, random_graph, two_parts  # noqa: F401
from tests.solve.test_selected import random_pairs


def test_the_diagonal_is_lapacks_on_graphs_of_all_sizes_and_batches():
    parts = [
        Graph.from_edges([(0, 1), (1, 2), (0, 1)]),
        Graph.from_edges([], num_nodes=2),
        random_graph(600, 900),
        two_parts(),
    ]
    truth = [exact.pinv(part).diagonal() for part in parts]
    for part, wanted in zip(parts, truth, strict=True):
        answer = ohm.pinv_diagonal(part, tol=1e-9)
        torch.testing.assert_close(answer.value, wanted, rtol=1e-9, atol=1e-14)
        assert answer.method == "selected inversion"
        assert answer.residual <= 1e-9
        torch.testing.assert_close(ohm.pinv_diagonal(part, method="elimination").value, wanted, rtol=1e-4, atol=1e-6)
    batch = ohm.pinv_diagonal(Graph.collate(parts))
    torch.testing.assert_close(batch.value, torch.cat(truth), rtol=1e-9, atol=1e-14)


def test_planted_diagonals():
    n = 1000
    complete = ohm.pinv_diagonal(Graph.from_edges(np.stack(np.triu_indices(60, 1), axis=1))).value
    np.testing.assert_allclose(complete, 59 / 60**2, rtol=1e-12)
    cycle = ohm.pinv_diagonal(Graph.from_edges([(i, (i + 1) % n) for i in range(n)])).value
    np.testing.assert_allclose(cycle, (n**2 - 1) / (12 * n), rtol=1e-10)
    star = ohm.pinv_diagonal(Graph.from_edges([(0, i) for i in range(1, n)])).value
    np.testing.assert_allclose(star[0], (n - 1) / n**2, rtol=1e-10)
    np.testing.assert_allclose(star[1:], 1 - 1 / n - 1 / n**2, rtol=1e-10)


@pytest.mark.parametrize("eps", [0.3, 0.05])
def test_an_estimated_diagonal_is_within_eps_on_every_seed(eps, no_factor):  # noqa: F811
    for graph in (random_graph(700, 4000), two_parts()):
        truth = exact.pinv(graph).diagonal()
        kept = truth > 1e-12
        for seed in range(4):
            answer = ohm.pinv_diagonal(graph, eps=eps, seed=seed)
            assert "random projections" in answer.note
            assert torch.equal(answer.value > 0, kept)  # all but isolated nodes
            assert answer.error is not None
            assert float((answer.value[kept] / truth[kept] - 1).abs().max()) <= answer.error <= 1.01 * eps
        far = ohm.current_flow_closeness(graph, eps=eps).value[kept]
        assert float((far / ohm.current_flow_closeness(graph, method="elimination").value[kept] - 1).abs().max()) <= eps / (
            1 - eps
        )


def test_graphs_beyond_all_pairs_and_factors_are_estimated_without_eps(no_factor, monkeypatch):  # noqa: F811
    for name in ("DENSE", "SMALL"):
        monkeypatch.setattr(f"ohmformer.solve.diagonal.{name}", 400)
    monkeypatch.setattr("ohmformer.solve.diagonal.DEFAULT_EPS", 0.1)
    graph = random_graph(700, 4000)
    truth = exact.pinv(graph).diagonal()
    assert float((ohm.pinv_diagonal(graph).value / truth - 1).abs().max()) <= 0.1
    index = ohm.kirchhoff_index(graph)
    assert "random signs" in index.note
    assert index.error is not None
    assert index.error <= 0.11
    assert float(index.value) == pytest.approx(700 * float(truth.sum()), rel=index.error)
    learned = Graph.from_edges(graph.edge_index.t(), resistance=graph.resistance.clone().requires_grad_())
    for question in (ohm.pinv_diagonal, ohm.kirchhoff_index):
        with pytest.raises(ValueError, match="expected resistances without gradient"):
            question(learned)


def test_closeness_is_networkxs_component_by_component():
    one, other = nx.karate_club_graph(), nx.barabasi_albert_graph(500, 2, seed=0)
    theirs = [nx.current_flow_closeness_centrality(g, weight="weight") for g in (one, other)]
    both = nx.Graph()
    for name, part in (("club", one), ("tree", other)):
        both.add_nodes_from((name, v) for v in part)
        both.add_weighted_edges_from(((name, u), (name, v), w) for u, v, w in part.edges(data="weight", default=1))
    both.add_node("alone")
    answer = ohm.current_flow_closeness(both, conductance="weight")
    assert answer.labels is not None
    found = dict(zip(answer.labels, answer.value.tolist(), strict=True))
    assert found.pop("alone") == 0
    for name, part in zip(("club", "tree"), theirs, strict=True):
        for node, value in part.items():
            assert found[name, node] == pytest.approx(value, rel=1e-9)


def test_spanning_tree_marginals_are_counted_trees():
    """All spanning trees of a weighted multigraph, listed, in fractions."""
    ends = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 2), (0, 1), (1, 4)]
    weights = [Fraction(k, 3) for k in (1, 2, 5, 1, 7, 2, 4, 3)]
    total, having = Fraction(0), [Fraction(0)] * len(ends)
    for chosen in combinations(range(len(ends)), 4):
        tree = nx.MultiGraph([ends[j] for j in chosen])
        if len(tree) == 5 and nx.is_tree(tree):
            weight = Fraction(1)
            for j in chosen:
                weight *= weights[j]
            total += weight
            for j in chosen:
                having[j] += weight
    answer = ohm.spanning_tree_marginals(Graph.from_edges(ends, conductance=[float(w) for w in weights]), tol=1e-10)
    np.testing.assert_allclose(answer.value, [float(x / total) for x in having], rtol=1e-9)


def test_marginals_add_up_to_fosters_number():
    for graph in (random_graph(3000, 4000), two_parts()):
        answer = ohm.spanning_tree_marginals(graph, tol=1e-11)
        assert float(answer.value.sum()) == pytest.approx(graph.num_nodes - graph.num_components, rel=1e-9)
        above = 1e-9 if native.active() is None else 1e-12  # edge by edge they are as good as tol, by a factor exact
        assert bool((answer.value <= 1 + above).all())


@pytest.mark.parametrize("connected", [True, False])
def test_gradients_pass_gradcheck(connected):
    pairs = random_pairs(8, 8, seed=4) if connected else np.array([(0, 1), (1, 2), (2, 0), (4, 5), (5, 6), (6, 4), (5, 7)])
    r = (torch.rand(len(pairs), dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.5).requires_grad_()
    for question in (ohm.pinv_diagonal, ohm.current_flow_closeness, ohm.spanning_tree_marginals):
        assert torch.autograd.gradcheck(
            lambda x, ask=question: ask(Graph.from_edges(pairs, num_nodes=9, resistance=x)).value, r
        )


def test_the_kirchhoff_index_of_a_large_graph_has_the_gradient_of_lapacks():
    graph = random_graph(500, 300)
    resistance = graph.resistance.clone().requires_grad_()
    learned = Graph.from_edges(graph.edge_index.t(), resistance=resistance)
    answer = ohm.kirchhoff_index(learned)
    assert answer.method == "selected inversion"
    (found,) = torch.autograd.grad(answer.value, resistance)
    inverse, (u, v) = exact.pinv(graph), graph.edge_index
    truth = 500 * (inverse[u] - inverse[v]).square().sum(1) / graph.resistance.square()
    torch.testing.assert_close(found, truth, rtol=1e-8, atol=0)


def test_bad_eps_is_refused():
    for question in (ohm.pinv_diagonal, ohm.current_flow_closeness, ohm.spanning_tree_marginals, ohm.kirchhoff_index):
        with pytest.raises(ValueError, match=r"expected eps in \(0, 1\), got 0.0"):
            question([(0, 1), (1, 2)], eps=0.0)


@pytest.mark.parametrize("nodes", [3, 30])
def test_an_index_that_needs_more_random_signs_than_nodes_is_exact(nodes):
    answer = ohm.kirchhoff_index([(i, (i + 1) % nodes) for i in range(nodes)], eps=1e-9)
    assert float(answer.value) == pytest.approx(nodes * (nodes**2 - 1) / 12, rel=1e-9)
    assert "exact" in answer.note
    assert answer.error is not None
    assert answer.error < 1e-9
