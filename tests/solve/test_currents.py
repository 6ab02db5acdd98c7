"""Currents between many pairs against LAPACK, networkx's current-flow betweenness, and each other."""

from itertools import combinations

import networkx as nx
import numpy as np
import pytest
import torch

import ohmformer as ohm
from ohmformer import Graph, exact
from ohmformer.solve import currents
from tests.solve.test_selected import grid_pairs, random_pairs, weighted

SMALL = weighted(30, random_pairs(30, 25, seed=1))
TWO = Graph.from_edges([(0, 1), (1, 2), (3, 4)])
RANDOM = np.random.default_rng(0).integers(0, 30, (12, 2))


def by_lapack(graph: Graph, demands: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Flow, throughput and resistance of every column of demands."""
    phi = exact.pinv(graph) @ demands
    flow = (phi[graph.edge_index[0]] - phi[graph.edge_index[1]]) / graph.resistance[:, None]
    through = torch.zeros_like(phi)
    for j, (u, v) in enumerate(graph.edge_index.t().tolist()):
        through[u] += flow[j].abs() / 2
        through[v] += flow[j].abs() / 2
    return flow, through + demands.abs() / 2, (phi * demands).sum(0)


def units(nodes: int, sources: list[list[int]], targets: list[list[int]]) -> torch.Tensor:
    demands = torch.zeros(nodes, len(sources), dtype=torch.float64)
    for column, (source, target) in enumerate(zip(sources, targets, strict=True)):
        for node in source:
            demands[node, column] += 1 / len(source)
        for node in target:
            demands[node, column] -= 1 / len(target)
    return demands


def test_currents_of_each_pair_and_their_sums_are_those_of_lapack(monkeypatch):
    sources, targets = RANDOM.T
    flow, through, between = by_lapack(SMALL, units(30, sources[:, None].tolist(), targets[:, None].tolist()))
    each = ohm.current_flow(SMALL, sources, targets, each=True, tol=1e-10)
    for most in (currents.MOST, 0):  # by places, and pair by pair
        monkeypatch.setattr(currents, "MOST", most)
        total = ohm.current_flow(SMALL, sources, targets, tol=1e-10)
        torch.testing.assert_close(total.edges, flow.abs().sum(1), rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(total.nodes, through.sum(1), rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(total.resistance, between, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(each.edges, flow, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(each.nodes, through, rtol=1e-8, atol=1e-8)
    assert torch.equal(each.resistance.round(decimals=8), total.resistance.round(decimals=8))


def test_every_pair_of_focal_nodes_is_the_sum_over_pairs():
    focal = [3, 17, 8, 25, 11]
    pairs = list(combinations(focal, 2))
    together = ohm.current_flow(SMALL, focal, tol=1e-10)
    one_by_one = ohm.current_flow(SMALL, [s for s, _ in pairs], [t for _, t in pairs], tol=1e-10)
    for name in ("edges", "nodes", "resistance"):
        torch.testing.assert_close(getattr(together, name), getattr(one_by_one, name), rtol=1e-8, atol=1e-8)


def test_networkx_has_the_same_betweenness():
    graph = nx.random_regular_graph(3, 14, seed=2)
    answer = ohm.current_flow(graph, list(graph), tol=1e-10)
    n = len(graph)
    through = (answer.nodes - (n - 1)) * 2 / ((n - 1) * (n - 2))  # without the ends of pairs
    expected = nx.current_flow_betweenness_centrality(graph)
    np.testing.assert_allclose(through, [expected[v] for v in graph], rtol=1e-7)
    subset = nx.edge_current_flow_betweenness_centrality_subset(graph, [0, 1], [5, 6], normalized=False)
    found = ohm.current_flow(graph, [0, 0, 1, 1], [5, 6, 5, 6], tol=1e-10).edges
    for (u, v), value in zip(graph.edges, found.tolist(), strict=True):
        assert subset.get((u, v), subset.get((v, u))) == pytest.approx(value / 4, rel=1e-7)  # networkx halves twice


def test_regions_share_the_current_and_one_target_serves_all():
    sources = [[0, 1, 2], [5], [7, 9]]
    flow, through, between = by_lapack(SMALL, units(30, sources, [[20, 21]] * 3))
    answer = ohm.current_flow(SMALL, [{0, 1, 2}, 5, torch.tensor([7, 9])], [[20, 21]], tol=1e-10)
    torch.testing.assert_close(answer.edges, flow.abs().sum(1), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(answer.nodes, through.sum(1), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(answer.resistance, between, rtol=1e-8, atol=1e-8)
    named = ohm.current_flow([("a", "b"), ("b", "c")], ["a", "b"], "c")
    assert named.resistance.tolist() == pytest.approx([2.0, 1.0])
    assert named.labels == ["a", "b", "c"]


def test_a_large_grid_is_answered_in_slices_as_by_single_solves(monkeypatch):
    graph = weighted(40 * 40, grid_pairs(40))
    monkeypatch.setattr(currents, "CELLS", 1000)
    focal = [0, 39, 1560, 1599, 820]
    answer = ohm.current_flow(graph, focal, tol=1e-9)
    total = torch.zeros(graph.num_edges, dtype=torch.float64)
    for s, t in combinations(focal, 2):
        total += ohm.electric_flow(graph, {s: 1.0, t: -1.0}, tol=1e-9).flow[:, 0].abs()
    torch.testing.assert_close(answer.edges, total, rtol=1e-5, atol=1e-6)
    assert answer.residual <= 1e-9


def test_gradients_of_sums_currents_and_resistances():
    graph = weighted(7, random_pairs(7, 5, seed=3))

    def ask(resistance: torch.Tensor, **options) -> tuple[torch.Tensor, ...]:
        moved = Graph(graph.edge_index, resistance, graph.batch)
        answer = ohm.current_flow(moved, [0, 3, 6], tol=1e-12, **options)
        return answer.edges, answer.nodes, answer.resistance

    start = graph.resistance.clone().requires_grad_()
    assert torch.autograd.gradcheck(ask, start, fast_mode=True)
    assert torch.autograd.gradcheck(lambda r: ask(r, each=True), start, fast_mode=True)


@pytest.mark.parametrize("panel", [64, 2])
def test_pairs_of_different_graphs_share_solves_and_are_answered_as_one_by_one(monkeypatch, panel):
    monkeypatch.setattr(currents, "PANEL", panel)
    graphs = [weighted(n, random_pairs(n, n, seed=n)) for n in (7, 30, 12, 5)]
    batch, first = Graph.collate(graphs), [0, 7, 37, 49]
    of, *ends = zip(*[(1, 0, 3), (3, 4, 0), (0, 6, 2), (1, 20, 29), (0, 1, 1), (1, 5, 3), (1, 2, 0), (0, 3, 4)], strict=True)
    sources, targets = ([first[graph] + node for graph, node in zip(of, x, strict=True)] for x in ends)
    widths = []
    kept = currents.apply_in_turn
    monkeypatch.setattr(
        currents, "apply_in_turn", lambda g, panels, r: kept(g, (widths.append(p.shape[1]) or p for p in panels), r)
    )
    total = ohm.current_flow(batch, sources, targets, tol=1e-10)
    one = Graph.from_edges(batch.edge_index.t(), resistance=batch.resistance)
    assert sum(widths) == 4  # as many as the second graph has pairs
    flow, through, between = by_lapack(one, units(54, [[x] for x in sources], [[x] for x in targets]))
    torch.testing.assert_close(total.edges, flow.abs().sum(1), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(total.nodes, through.sum(1), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(total.resistance, between, rtol=1e-8, atol=1e-8)


def test_a_batch_takes_numbers_of_the_whole_batch():
    graphs = [weighted(n * n, grid_pairs(n), seed=n) for n in (3, 4)]
    both = ohm.current_flow(Graph.collate(graphs), [0, 9], [8, 24], tol=1e-10)
    alone = [ohm.current_flow(g, [0], [n], tol=1e-10) for g, n in zip(graphs, (8, 15), strict=True)]
    torch.testing.assert_close(both.edges, torch.cat([a.edges for a in alone]), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(both.resistance, torch.cat([a.resistance for a in alone]), rtol=1e-7, atol=0)


def test_a_pair_of_one_node_has_no_current():
    answer = ohm.current_flow(SMALL, [4, 4], [4, 9])
    alone = ohm.current_flow(SMALL, [4], [9])
    assert float(answer.resistance[0]) == pytest.approx(0, abs=1e-12)
    torch.testing.assert_close(answer.nodes, alone.nodes, rtol=0, atol=1e-6)
    none = ohm.current_flow(SMALL, [], [])
    assert (none.method, none.edges.abs().sum(), len(none.resistance)) == ("none", 0, 0)


BAD = {
    "across": (lambda: ohm.current_flow(TWO, [0, 1], [2, 4]), "every pair, node 1 and node 4 are in different components"),
    "focal across": (lambda: ohm.current_flow(TWO, [0, 3]), "node 0 and node 3 are in different"),
    "region across": (lambda: ohm.current_flow(TWO, [[0, 3]], [1]), "the region of node 0 and node 1 are in different"),
    "counts": (lambda: ohm.current_flow(TWO, [0, 1, 2], [0, 1]), "as many targets as sources, or one, got 2 for 3"),
    "unknown": (lambda: ohm.current_flow([("a", "b")], ["a"], ["x"]), "expected a node of the graph, got 'x'"),
    "overlap": (lambda: ohm.current_flow(TWO, [[0, 1]], [[1, 2]]), "both have node 1"),
    "empty region": (lambda: ohm.current_flow(TWO, [[]], [1]), "at least one node in a region"),
    "focal twice": (lambda: ohm.current_flow(TWO, [0, 1, 0]), "every source once"),
    "tolerance": (lambda: ohm.current_flow(TWO, [0], [1], tol=0.0), "tolerance in"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_one_sentence(name: str):
    call, sentence = BAD[name]
    with pytest.raises(ValueError, match=sentence):
        call()


def test_each_is_refused_where_it_would_not_fit(monkeypatch):
    monkeypatch.setattr(currents, "MOST", 100)
    with pytest.raises(ValueError, match="30 nodes x 12 pairs"):
        ohm.current_flow(SMALL, *RANDOM.T, each=True)


def test_more_pairs_than_can_be_listed_are_refused_before_anything_is_done():
    graph = Graph.from_edges([(i, i + 1) for i in range(39_999)])
    with pytest.raises(ValueError, match=r"expected at most 134217728 pairs of sources, got 799980000"):
        ohm.current_flow(graph, range(40_000))


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("regions", [False, True])
def test_a_pair_with_equal_ends_has_no_error(each, regions):
    ends = ([[0, 1], 0, 2], [[0, 1], 2, 2]) if regions else ([0, 0], [0, 2])
    answer = ohm.current_flow([(0, 1), (1, 2)], *ends, each=each)
    flows = answer.value if each else answer.value[:, None]
    np.testing.assert_allclose(flows.sum(1), [1.0, 1.0])
    assert answer.error is not None
    assert answer.error < 1e-6
