"""Resistances estimated from short walks and random projections, against LAPACK and the distribution they claim."""

import networkx as nx
import numpy as np
import pytest
import torch
from scipy import stats

import ohmformer as ohm
from ohmformer import Graph, exact, native
from ohmformer.solve import factor
from ohmformer.solve.projections import FAILURE, _Noise, excess, interval, projections
from ohmformer.solve.walks import Walks


def random_graph(nodes: int, edges: int, seed: int = 0) -> Graph:
    """Conductances over four orders of e, a tree and more edges, some of them parallel."""
    draw = np.random.default_rng(seed)
    tree = np.stack([(draw.random(nodes - 1) * np.arange(1, nodes)).astype(int), np.arange(1, nodes)], axis=1)
    more = draw.integers(0, nodes, (edges, 2))
    pairs = np.concatenate([tree, more[more[:, 0] != more[:, 1]], tree[:20]])
    return Graph.from_edges(pairs, num_nodes=nodes, conductance=np.exp(draw.uniform(-2, 2, len(pairs))))


def two_parts() -> Graph:
    """Two random graphs, a pair and isolated nodes."""
    one, other = random_graph(300, 1500, seed=3), random_graph(200, 600, seed=4)
    pairs = torch.cat([one.edge_index, other.edge_index + 300, torch.tensor([[500], [501]])], dim=1)
    resistance = torch.cat([one.resistance, other.resistance, torch.ones(1, dtype=torch.float64)])
    return Graph.from_edges(pairs.t(), num_nodes=505, resistance=resistance)


GRAPHS = {
    "random": lambda: random_graph(600, 3000),
    "Barabasi-Albert": lambda: Graph.from_edges(np.array(nx.barabasi_albert_graph(600, 4, seed=0).edges())),
    "grid": lambda: Graph.from_networkx(nx.convert_node_labels_to_integers(nx.grid_2d_graph(21, 22))),
    "two parts": two_parts,
    "complete": lambda: Graph.from_edges(np.stack(np.triu_indices(300, 1), axis=1)),
}


@pytest.fixture(params=GRAPHS)
def graph(request) -> Graph:
    return GRAPHS[request.param]()


def by_lapack(graph: Graph) -> torch.Tensor:
    inverse, (u, v) = exact.pinv(graph), graph.edge_index
    return inverse[u, u] + inverse[v, v] - 2 * inverse[u, v]


def modes(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues of A = I - N but for those of the null space, and D^-1/2 times their eigenvectors."""
    laplacian = graph.laplacian().numpy()
    degree = laplacian.diagonal()
    root = np.where(degree > 0, degree, np.inf) ** -0.5
    value, vector = np.linalg.eigh(np.diag((degree > 0) * 1.0) - root[:, None] * laplacian * root)
    kept = (value < 1 - 1e-9) & ((vector * (degree > 0)[:, None]) ** 2).sum(0).round(6).astype(bool)
    return value[kept], (root[:, None] * vector)[:, kept]


@pytest.mark.parametrize("reach", [1, 2, 3])
@pytest.mark.parametrize("in_c", [True, False])
def test_walks_and_what_they_leave_are_the_resistance(graph, reach, in_c):
    library = native.active()
    if in_c and library is None:
        pytest.skip("needs a library")
    with native.used(library.name if in_c and library else "off"):
        found = Walks(graph).local_part(graph.edge_index, reach)
    value, vector = modes(graph)
    rest = np.polynomial.Polynomial(found.filter)(value) ** 2 / (1 - value)
    u, v = graph.edge_index.numpy()
    total = found.between.numpy() + (vector[u] - vector[v]) ** 2 @ rest
    np.testing.assert_allclose(total, by_lapack(graph).numpy(), rtol=1e-6)  # walks are added up in float32
    own = found.own.numpy() + vector**2 @ rest
    np.testing.assert_allclose(own, vector**2 @ (1 / (1 - value)), rtol=2e-6, atol=1e-7 * own.max())
    squared = np.polynomial.Polynomial(found.filter)(value) ** 2
    assert found.share == pytest.approx(squared.sum() / len(value), rel=1e-4, abs=1e-9)
    assert squared.sum() <= (value ** (2 * len(found.filter) - 2)).sum() * (1 + 1e-6)  # the plain series leaves more


def test_any_pairs_have_a_local_part():
    graph = two_parts()
    draw = np.random.default_rng(1)
    u, v = torch.as_tensor(draw.integers(0, 300, (2, 400)))
    found = Walks(graph).local_part(torch.stack([u, v]), 3)
    value, vector = modes(graph)
    rest = (vector[u] - vector[v]) ** 2 @ (np.polynomial.Polynomial(found.filter)(value) ** 2 / (1 - value))
    truth = exact.effective_resistance(graph)[u, v]
    np.testing.assert_allclose(found.between.numpy() + rest, truth.numpy(), rtol=1e-6, atol=1e-8)


def test_the_interval_is_that_of_chi_squared():
    low, high = interval(64, 1000)
    assert low == pytest.approx(stats.chi2.ppf(FAILURE / 2000, 64) / 64, rel=1e-9)
    assert high == pytest.approx(stats.chi2.isf(FAILURE / 2000, 64) / 64, rel=1e-9)


@pytest.mark.parametrize(("eps", "share"), [(0.1, 1.0), (0.3, 0.5), (0.1, 0.05), (0.01, 0.02)])
def test_as_many_projections_as_it_takes_for_a_value_within_eps_of_both_ends(eps, share):
    count = projections(eps, 1000, share)
    for probes, within in ((count, True), (count - 1, False)):
        low, high = interval(probes, 1000)
        assert bool((1 - eps) * (1 - share + share / low) <= (1 + eps) * (1 - share + share / high)) is within
        assert bool(share * excess(eps, probes, 1000) <= eps * (1 - share)) is within


def test_noise_has_the_covariance_of_the_laplacian_and_is_the_same_in_c_and_numpy():
    graph = random_graph(40, 60)
    noise = _Noise(graph, seed=5)
    drawn = torch.cat([noise(4096) for _ in range(10)], dim=1)
    covariance, truth = drawn @ drawn.mT / drawn.shape[1], graph.laplacian()
    scale = truth.diagonal().sqrt()
    deviation = (covariance - truth) / (scale[:, None] * scale) * drawn.shape[1] ** 0.5  # of variance at most two
    assert float(deviation.abs().max()) < 5 * 2**0.5
    assert float(deviation.abs().mean()) > 0.5
    with native.used("off"):
        again = _Noise(graph, seed=5)
        torch.testing.assert_close(again(7), drawn[:, :7], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(again(3), drawn[:, 8:11], rtol=1e-12, atol=1e-12)
        assert not torch.equal(_Noise(graph, seed=6)(7), drawn[:, :7])


@pytest.fixture
def no_factor(monkeypatch):
    monkeypatch.setattr(factor, "BEARABLE", factor.Limits(10, 10.0, 10.0))


@pytest.mark.parametrize("eps", [0.5, 0.1, 0.03])
def test_estimates_are_within_eps_on_every_seed(graph, eps, no_factor):
    truth = by_lapack(graph)
    for seed in range(4):
        answer = ohm.effective_resistance(graph, eps=eps, seed=seed)
        assert float((answer.value / truth - 1).abs().max()) <= eps
        assert answer.residual <= 1e-3 * eps
        if "estimated" in answer.note:
            assert f"within {eps:g}, all of a graph's with probability 0.99" in answer.note
            assert not torch.equal(answer.value, ohm.effective_resistance(graph, eps=eps, seed=seed + 100).value)


def test_what_is_projected_is_distributed_as_chi_squared(no_factor):
    """One edge on many seeds: 64 projections of a remainder that is a few per cent."""
    graph, seeds, edge = random_graph(600, 3000), 60, 17
    found = Walks(graph).local_part(graph.edge_index, 2)
    rest = float(by_lapack(graph)[edge] - found.between[edge])
    estimates = []
    for seed in range(seeds):
        answer = ohm.effective_resistance(graph, eps=0.4, seed=seed)
        assert "from 64 random projections of what walks of up to 3 steps leave" in answer.note
        estimates.append(64 * (float(answer.value[edge]) - float(found.between[edge])) / rest)
    assert stats.kstest(estimates, stats.chi2(64).cdf).pvalue > 0.01


def test_edges_that_projections_leave_unsure_are_solved_for(no_factor):
    """A ring hangs on a random graph: its edges see only themselves, and walks tell little of them."""
    core, ring = random_graph(900, 6000), np.array([(899 + i, 900 + i) for i in range(40)] + [(939, 899)])
    pairs = np.concatenate([core.edge_index.t().numpy(), ring])
    resistance = torch.cat([core.resistance, torch.ones(len(ring), dtype=torch.float64)])
    graph = Graph.from_edges(pairs, num_nodes=940, resistance=resistance)
    answer = ohm.effective_resistance(graph, eps=0.1)
    assert "solved for instead" in answer.note
    np.testing.assert_allclose(answer.value[-len(ring) :], 40 / 41, rtol=1e-3)
    assert float((answer.value / by_lapack(graph) - 1).abs().max()) <= 0.1


def test_pairs_across_components_are_infinite_and_a_node_is_at_no_distance_from_itself(no_factor):
    graph = two_parts()
    draw = torch.Generator().manual_seed(0)
    pairs = torch.randint(0, 505, (600, 2), generator=draw)
    pairs[:5, 1] = pairs[:5, 0]
    truth = exact.effective_resistance(graph)[pairs[:, 0], pairs[:, 1]]
    answer = ohm.effective_resistance(graph, pairs, eps=0.2)
    assert "random projections" in answer.note
    assert torch.equal(answer.value.isinf(), truth.isinf())
    assert (answer.value[:5] == 0).all()
    kept = truth.isfinite() & (truth > 0)
    assert float((answer.value[kept] / truth[kept] - 1).abs().max()) <= 0.2


def test_a_batch_is_estimated_graph_by_graph(no_factor):
    parts = [random_graph(500, 2500, seed=1), Graph.from_edges([(0, 1), (1, 2)]), random_graph(700, 4000, seed=2)]
    answer = ohm.effective_resistance(Graph.collate(parts), eps=0.1)
    truth = torch.cat([by_lapack(part) for part in parts])
    assert float((answer.value / truth - 1).abs().max()) <= 0.1
    assert "random projections" in answer.note


def test_without_eps_a_graph_beyond_all_pairs_and_factors_is_estimated(no_factor, monkeypatch):
    monkeypatch.setattr("ohmformer.solve.resistance.DEFAULT_EPS", 0.1)
    monkeypatch.setattr("ohmformer.solve.resistance.DENSE", 400)
    graph = random_graph(700, 4000)
    answer = ohm.effective_resistance(graph)
    assert "a factor would be too large, and eps was not given: estimated within 0.1" in answer.note
    assert float((answer.value / by_lapack(graph) - 1).abs().max()) <= 0.1
    learned = Graph.from_edges(graph.edge_index.t(), resistance=graph.resistance.clone().requires_grad_())
    solved = ohm.effective_resistance(learned)
    assert solved.value.requires_grad
    torch.testing.assert_close(solved.value.detach(), by_lapack(graph), rtol=1e-4, atol=0)


def test_resistances_far_below_the_potentials_are_estimated_within_eps():
    tiny = 1e-18
    grid = [(40 * i + j, 40 * (i + a) + j + 1 - a) for i in range(40) for j in range(40) for a in (0, 1) if i + a < 40]
    grid = [(u, v) for u, v in grid if v % 40 or v == u + 40]
    corners = [[150 * c + 7, *range(1600 + 5 * c, 1605 + 5 * c)] for c in range(10)]
    rings = [(ring[j], ring[(j + 1) % 6]) for ring in corners for j in range(6)]
    graph = Graph.from_edges(grid + rings, resistance=[1.0] * len(grid) + [tiny] * len(rings))
    for seed in range(3):
        found = ohm.effective_resistance(graph, grid + rings, eps=0.5, seed=seed)
        assert "estimated within" in found.note
        np.testing.assert_allclose(found.value[-60:] / tiny, 5 / 6, rtol=0.5)
        assert found.error is not None
        assert float((found.value[-60:] / tiny * 6 / 5 - 1).abs().max()) <= found.error
