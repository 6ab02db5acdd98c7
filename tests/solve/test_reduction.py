"""Kron reduction against LAPACK's Schur complements, exact fractions, and potentials of the whole graph."""

from fractions import Fraction

import numpy as np
import pytest
import torch

import ohmformer as ohm
from ohmformer import Graph, exact, native
from ohmformer.graph.families import disjoint
from ohmformer.solve import factor
from tests.solve.test_selected import graph_of, grid_pairs, random_pairs, weighted

GRAPHS = {
    "random": lambda: weighted(120, random_pairs(120, 150, seed=1)),
    "grid": lambda: weighted(144, grid_pairs(12)),
    "tree": lambda: weighted(100, random_pairs(100, 0, seed=3)),
    "disconnected": lambda: disjoint(weighted(49, grid_pairs(7)), weighted(30, random_pairs(30, 20, seed=2))),
}


@pytest.fixture(params=["off", *native.available()[-1:]])
def implementation(request):
    """NumPy, and C where there is a library."""
    with native.used(request.param):
        yield


def schur(graph: Graph, keep: np.ndarray) -> np.ndarray:
    """The Schur complement by LAPACK, on components with a kept node."""
    matrix = graph.laplacian().numpy()
    component = graph.components.numpy()
    others = np.setdiff1d(np.nonzero(np.isin(component, component[keep]))[0], keep)
    inner = np.linalg.solve(matrix[np.ix_(others, others)], matrix[np.ix_(others, keep)])
    return matrix[np.ix_(keep, keep)] - matrix[np.ix_(keep, others)] @ inner


@pytest.mark.parametrize("kept", [1, 2, 9, 60])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_reduced_laplacian_is_the_schur_complement(name: str, kept: int, implementation):
    graph = GRAPHS[name]()
    keep = np.random.default_rng(kept).choice(graph.num_nodes, kept, replace=False)
    answer = ohm.kron_reduce(graph, keep)
    np.testing.assert_array_equal(answer.kept, keep)
    expected = schur(graph, keep)
    found = answer.graph.laplacian().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-12 * float(graph.laplacian().max()))
    assert answer.residual < 1e-14
    assert (answer.graph.edge_index[0] < answer.graph.edge_index[1]).all()


def test_potentials_of_kept_nodes_are_those_of_the_whole_graph_on_a_large_grid():
    graph = weighted(60 * 60, grid_pairs(60), orders=3)
    keep = np.random.default_rng(0).choice(3600, 40, replace=False)
    reduced = ohm.kron_reduce(graph, keep).graph
    pairs = torch.randint(0, 40, (20, 2), generator=torch.Generator().manual_seed(0))
    small = ohm.effective_resistance(reduced, pairs, tol=1e-12).value
    whole = ohm.effective_resistance(graph, torch.as_tensor(keep)[pairs], tol=1e-10).value
    torch.testing.assert_close(small, whole, rtol=1e-8, atol=0)


def test_chains_of_a_road_network_are_contracted_into_single_edges():
    """Nodes between junctions go, and an edge has the resistance of its chain: nothing is filled in."""
    side, steps = 30, 4
    pairs = grid_pairs(side)
    chains, count = [], side * side
    for u, v in pairs.tolist():
        inner = list(range(count, count + steps - 1))
        chains += zip([u, *inner], [*inner, v], strict=True)
        count += steps - 1
    resistance = np.random.default_rng(0).uniform(1, 2, len(chains))
    graph = graph_of(count, np.array(chains), resistance)
    reduced = ohm.kron_reduce(graph, np.arange(side * side)).graph
    assert reduced.num_edges == len(pairs)
    found = dict(zip(map(tuple, reduced.edge_index.t().tolist()), reduced.resistance.tolist(), strict=True))
    for (u, v), total in zip(pairs.tolist(), resistance.reshape(-1, steps).sum(1), strict=True):
        assert found[u, v] == pytest.approx(total, rel=1e-14)


def test_conductances_over_forty_orders_are_right_to_rounding(implementation):
    """Against elimination in fractions, which LAPACK's subtractions would be far from."""
    draw = np.random.default_rng(5)
    pairs = random_pairs(14, 16, seed=5)
    resistance = 10 ** draw.uniform(-20, 20, len(pairs))
    joined = [[Fraction(0)] * 14 for _ in range(14)]
    for (u, v), r in zip(pairs.tolist(), resistance.tolist(), strict=True):
        joined[u][v] += 1 / Fraction(r)
        joined[v][u] += 1 / Fraction(r)
    for j in range(4, 14):
        total = sum(joined[j][:4] + joined[j][j + 1 :])
        for a in [*range(4), *range(j + 1, 14)]:
            for b in [*range(4), *range(j + 1, 14)]:
                if a != b:
                    joined[a][b] += joined[a][j] * joined[j][b] / total
    reduced = ohm.kron_reduce(graph_of(14, pairs, resistance), [0, 1, 2, 3]).graph
    assert reduced.num_edges == sum(joined[a][b] > 0 for a in range(4) for b in range(a))
    for (a, b), r in zip(reduced.edge_index.t().tolist(), reduced.resistance.tolist(), strict=True):
        assert r == pytest.approx(float(1 / joined[a][b]), rel=1e-14)


def test_gradients_in_resistances(implementation):
    graph = weighted(9, random_pairs(9, 8, seed=4))

    def reduced(resistance: torch.Tensor) -> torch.Tensor:
        return ohm.kron_reduce(Graph(graph.edge_index, resistance, graph.batch), [4, 0, 7]).graph.resistance

    assert torch.autograd.gradcheck(reduced, graph.resistance.clone().requires_grad_())


def test_gradients_on_a_grid_are_those_of_lapack():
    graph = weighted(100, grid_pairs(10))
    keep = torch.tensor([3, 57, 88, 20, 45])
    weight = torch.randn(10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one = Graph(graph.edge_index, graph.resistance.clone().requires_grad_(), graph.batch)
    (ohm.kron_reduce(one, keep).graph.resistance * weight).sum().backward()
    two = Graph(graph.edge_index, graph.resistance.clone().requires_grad_(), graph.batch)
    dense, others = two.laplacian(), torch.tensor([i for i in range(100) if i not in keep.tolist()])
    inner = torch.linalg.solve(dense[others][:, others], dense[others][:, keep])
    complement = dense[keep][:, keep] - dense[keep][:, others] @ inner
    a, b = torch.triu_indices(5, 5, 1)
    (-1 / complement[a, b] * weight).sum().backward()
    torch.testing.assert_close(one.resistance.grad, two.resistance.grad, rtol=1e-8, atol=1e-8)


def test_a_batch_is_reduced_graph_by_graph_and_labels_come_back():
    graphs = [weighted(side * side, grid_pairs(side), seed=side) for side in (3, 5)]
    answer = ohm.kron_reduce(Graph.collate(graphs), [12, 0, 30, 8, 9])
    assert answer.kept.tolist() == [0, 8, 12, 30, 9]
    parts = [ohm.kron_reduce(graphs[0], [0, 8]).graph, ohm.kron_reduce(graphs[1], [3, 21, 0]).graph]
    for part, alone in zip(answer.graph.split(), parts, strict=True):
        torch.testing.assert_close(part.laplacian(), alone.laplacian())
    named = ohm.kron_reduce([("a", "b"), ("b", "c"), ("x", "y")], ["c", "a"])
    assert named.labels == ["c", "a"]
    assert named.graph.resistance.tolist() == [2.0]
    assert "1 components without a kept node are gone" in named.note


def test_keeping_every_node_keeps_the_graph_with_parallel_edges_merged():
    graph = Graph.from_edges([(0, 1), (1, 0), (1, 2)], resistance=[1.0, 1.0, 2.0])
    reduced = ohm.kron_reduce(graph, range(3)).graph
    torch.testing.assert_close(reduced.laplacian(), graph.laplacian())
    assert reduced.num_edges == 2


def test_resistances_between_all_kept_pairs_are_exact(implementation):
    graph = weighted(80, random_pairs(80, 60, seed=9), orders=4)
    keep = [5, 70, 33, 12]
    reduced = ohm.kron_reduce(graph, keep).graph
    torch.testing.assert_close(
        exact.effective_resistance(reduced), exact.effective_resistance(graph)[keep][:, keep], rtol=1e-9, atol=1e-12
    )


BAD = {
    "outside": (lambda: ohm.kron_reduce([(0, 1), (1, 2)], [0, 3]), "0..2, got 3"),
    "unknown": (lambda: ohm.kron_reduce([("a", "b")], ["c"]), "expected a node of the graph, got 'c'"),
    "none": (lambda: ohm.kron_reduce([(0, 1)], []), "at least one node to keep"),
    "twice": (lambda: ohm.kron_reduce([("a", "b")], ["b", "a", "b"]), "got node 'b' twice"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_one_sentence(name: str):
    call, sentence = BAD[name]
    with pytest.raises(ValueError, match=sentence):
        call()


def test_a_factor_that_does_not_fit_is_refused_before_it_is_made(monkeypatch):
    monkeypatch.setattr("ohmformer.solve.reduction.BEARABLE", factor.Limits(100, 1e3, 1e3))
    monkeypatch.setattr(factor, "BEARABLE", factor.Limits(100, 1e3, 1e3))
    monkeypatch.setattr(factor, "factorise", lambda *_: pytest.fail("it was made"))
    with pytest.raises(ValueError, match=r"at most 100 numbers .* keeping 2 of 400 nodes takes more"):
        ohm.kron_reduce(weighted(400, grid_pairs(20)), [0, 1])


def test_nodes_without_edges_are_eliminated_too():
    answer = ohm.kron_reduce(Graph.from_edges([(0, 1)], num_nodes=3, resistance=[2.0]), [0, 1])
    assert answer.graph.edge_index.flatten().tolist() in ([0, 1], [1, 0])
    assert answer.graph.resistance.tolist() == pytest.approx([2.0])
