"""What answers say of their errors, against 50-digit arithmetic."""

import math
from contextlib import AbstractContextManager, nullcontext

import mpmath
import numpy as np
import pytest
import torch

import ohmformer as ohm
from ohmformer import Graph, native
from ohmformer.graph import circuit
from ohmformer.solve import certificate, pairwise
from ohmformer.solve.factor import prepared
from tests.solve.true_errors import (
    by_elimination,
    draw_graph,
    resistances_by_cholesky,
    true_error,
    true_potentials,
    true_resistance,
    true_resistances,
)

FLOOR = 1e-15


def kernels(wanted: bool) -> AbstractContextManager[None]:
    return nullcontext() if wanted else native.used("off")


def ratio(graph: Graph, psi: torch.Tensor) -> float:
    """Of reported and true error, or of the floor; at least one, or the report is wrong."""
    answer = ohm.potentials(graph, psi)
    assert torch.isfinite(answer.value).all()
    assert answer.error is not None
    true = true_error(graph, answer.value, psi)
    assert answer.error >= true, (answer.method, answer.error, true)
    return answer.error / max(true, FLOOR)


def resistance_ratio(graph: Graph) -> float:
    """The same for the resistances of all edges."""
    answer = ohm.effective_resistance(graph)
    right = true_resistances(graph, graph.edge_index.t().numpy())
    true = float(np.abs(answer.value.numpy() / right - 1).max())
    assert answer.error is not None
    assert answer.error >= true, (answer.method, answer.error, true)
    return answer.error / max(true, FLOOR)


def test_errors_of_random_graphs_are_never_below_the_true_ones():
    ratios = [ratio(*draw_graph(seed, largest=60)) for seed in range(60)]
    assert np.quantile(ratios, 0.95) <= 100


def test_errors_of_resistances_are_never_below_the_true_ones():
    ratios = [resistance_ratio(draw_graph(seed, largest=300)[0]) for seed in range(0, 240, 7)]
    assert np.quantile(ratios, 0.95) <= 100


def test_true_resistances_are_those_of_cholesky_in_eighty_digits():
    for seed in (0, 9, 21):
        graph = draw_graph(seed, largest=30)[0]
        matrix, ends = resistances_by_cholesky(graph), graph.edge_index.t().numpy()
        right = matrix[tuple(ends.T)]
        assert float(np.abs(true_resistances(graph, ends) / right - 1).max()) < 1e-16
        u, v = ends[0].tolist()
        assert abs(float(mpmath.mpf(float(matrix[u, v])) / true_resistance(graph, u, v) - 1)) < 3e-16


@pytest.mark.slow
def test_errors_of_two_thousand_random_graphs_are_never_below_the_true_ones():
    ratios = [ratio(*draw_graph(seed)) for seed in range(2000)]
    assert np.quantile(ratios, 0.95) <= 100


def test_refined_potentials_are_those_of_elimination_in_fifty_digits():
    graph, psi = draw_graph(3, largest=12)
    refined, exact = true_potentials(graph, psi[:, 0]), by_elimination(graph, psi[:, 0])
    differences = [(a - b) for a, b in zip(refined, exact, strict=True)]
    from_ground = {c: differences[i] for i, c in enumerate(graph.components.tolist())}
    scale = max(abs(x) for x in exact)
    assert all(abs(d - from_ground[c]) < 1e-24 * scale for d, c in zip(differences, graph.components.tolist(), strict=True))


@pytest.mark.parametrize("method", ["squaring", "chebyshev", "cubing", "elimination", "direct"])
@pytest.mark.parametrize("in_c", [True, False])
def test_every_engine_reports_an_error_above_the_true_one(method, in_c):
    graph, psi = draw_graph(4, largest=12)
    graph = Graph(graph.edge_index, graph.resistance ** (1 / 20), graph.batch)
    with kernels(in_c):
        answer = ohm.potentials(graph, psi, method=method, tol=1e-5)
    assert answer.error_kind == ("estimate" if method in ("chebyshev", "elimination") else "bound")
    assert answer.error is not None
    assert true_error(graph, answer.value, psi) <= answer.error


@pytest.mark.parametrize("method", ["auto", "chebyshev", "cubing", "elimination", "direct"])
@pytest.mark.parametrize("nodes", [12, 500])
def test_a_tolerance_of_the_error_is_kept(method, nodes):
    draw = torch.Generator().manual_seed(nodes)
    edges = torch.cat(
        [torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)]).T, torch.randint(nodes, (nodes, 2), generator=draw)]
    )
    graph = Graph.from_edges(
        edges, num_nodes=nodes, resistance=10 ** (2 * torch.rand(len(edges), generator=draw, dtype=torch.float64))
    )
    psi = graph.center(torch.randn(nodes, 2, generator=draw, dtype=torch.float64))
    exact = ohm.potentials(graph, psi, method="direct").value
    for tol in (1e-4, 1e-8):
        answer = ohm.potentials(graph, psi, tol=tol, tol_of="error", method=method)
        assert answer.error is not None
        assert answer.error <= tol
        wrong = certificate.energy_norm(graph, answer.value - exact) / certificate.energy_norm(graph, exact)
        assert float(wrong.max()) <= tol


def test_an_error_that_float64_cannot_reach_is_refused_with_what_it_reaches():
    graph = Graph.from_edges([(0, 1), (1, 2), (2, 3)], resistance=[1e-10, 1e10, 1.0])
    psi = [1.0, 0.0, -1.0, 0.0]
    answer = ohm.potentials(graph, psi)
    assert answer.error is not None
    assert answer.residual > 1e-6
    with pytest.raises(ValueError, match=r"asked for an error of 1.0e-15, but direct reaches \d"):
        ohm.potentials(graph, psi, tol=1e-15, tol_of="error")
    with pytest.raises(ValueError, match="expected tol_of='residual' or 'error', got 'energy'"):
        ohm.potentials(graph, psi, tol_of="energy")


@pytest.mark.skipif(native.active() is None, reason="needs native kernels")
@pytest.mark.parametrize("width", [1, 3, 16, 37])
def test_an_answer_that_is_measured_on_the_way_is_worth_what_it_is_measured_to_be_afterwards(width):
    some = [draw_graph(seed, largest=300)[0] for seed in range(4)]
    graph = Graph.collate([*some, Graph.from_edges([(0, 1), (3, 4), (3, 4)], num_nodes=6)])
    psi = graph.center(torch.randn(graph.num_nodes, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    factor = prepared(graph)
    assert factor is not None
    phi, sums = factor.answer(psi, graph)
    now = certificate.measure(graph, phi, psi)
    left = [certificate.sum_over_graphs(graph, x.square()) for x in (now.uncentred, psi)]
    for found, expected in zip(
        sums.unbind(1), (left[0], now.energy, left[1], factor.energy(now.uncentred, graph)), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(phi, graph.center(factor.solve(psi)), rtol=1e-12, atol=1e-14 * float(phi.abs().max()))
    assert float(graph.component_means(phi).abs().max()) <= 1e-15 * float(phi.abs().max())


@pytest.mark.parametrize("in_c", [True, False])
def test_residuals_are_summed_without_loss(in_c):
    if in_c and native.active() is None:
        pytest.skip("no native kernels in use")
    graph, psi = draw_graph(0, largest=40)
    phi = ohm.potentials(graph, psi).value
    with kernels(in_c):
        left = certificate.measure(graph, phi, psi).uncentred
    tail, head = graph.edge_index
    drop, weight = phi[tail] - phi[head], graph.resistance[:, None]
    flow = drop * (1 / weight) if in_c else drop / weight
    for node in range(graph.num_nodes):
        for k in range(psi.shape[1]):
            out, into = flow[tail == node, k].tolist(), flow[head == node, k].tolist()
            exact = math.fsum([float(psi[node, k]), *(-f for f in out), *into])
            size = sum(map(abs, (*out, *into))) + abs(float(psi[node, k]))
            assert abs(float(left[node, k]) - exact) <= 4e-16 * abs(exact) + 1e-30 * size


@pytest.mark.parametrize("in_c", [True, False])
@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 11])
def test_resistances_by_elimination_of_pairs_are_right_to_rounding_over_twenty_orders(nodes, in_c):
    rng = np.random.default_rng(nodes)
    edges = [(int(rng.integers(i)), i) for i in range(1, nodes)] + rng.integers(0, nodes, (nodes, 2)).tolist()
    graph = Graph.from_edges(edges, num_nodes=nodes + 1, resistance=10.0 ** rng.uniform(-10, 10, len(edges)))
    with kernels(in_c):
        found = pairwise.all_pairs(graph)[0]
    assert found.diagonal().tolist() == [0.0] * (nodes + 1)
    assert torch.isinf(found[-1, :-1]).all()
    for u in range(nodes):
        for v in range(u):
            right = true_resistance(graph, u, v)
            assert abs(float(mpmath.mpf(float(found[u, v])) / right - 1)) <= pairwise.error_bound(nodes)


def test_gradients_of_resistances_by_elimination_are_right():
    resistance = torch.tensor([1.0, 2.0, 3e7, 4.0, 5e7], dtype=torch.float64, requires_grad=True)
    edges = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)]

    def ask(r: torch.Tensor) -> torch.Tensor:
        answer = ohm.effective_resistance(Graph.from_edges(edges, resistance=r), "all")
        assert answer.method == "elimination of pairs"
        return answer.value

    assert torch.autograd.gradcheck(ask, resistance, eps=1e-7, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("asked", [{}, {"tol_of": "error"}])
def test_resistances_of_all_pairs_that_would_cancel_are_eliminated_without_subtractions(asked):
    ohms = torch.ones(449, dtype=torch.float64)
    ohms[100] = 1e-14
    path = Graph.from_edges([(i, i + 1) for i in range(449)], resistance=ohms)
    answer = ohm.effective_resistance(path, "all", **asked)
    assert answer.value[100, 101] == pytest.approx(1e-14, rel=answer.error)
    assert answer.error is not None
    assert answer.error < 1e-10
    place = torch.cat([torch.zeros(1).double(), ohms.cumsum(0)])
    half = (place[:, None] - place).abs() / -2
    inverse = half - half.mean(0) - half.mean(1, keepdim=True) + half.mean()
    cancelled = circuit.resistance_from_pinv(path, inverse)
    off = abs(float(cancelled[100, 101]) / 1e-14 - 1)
    assert off > 1e-3
    assert certificate.resistance_error(path, inverse, cancelled, 0.0) >= off
    cancelled[100, 101] = 0.0
    assert certificate.resistance_error(path, inverse, cancelled, 0.0) == math.inf


@pytest.mark.parametrize("seed", range(5))
def test_bounds_include_the_rounding_of_answers_to_float32(seed):
    draw = np.random.default_rng(seed)
    pairs = np.concatenate(
        [np.stack([np.arange(11), np.arange(1, 12)], 1), np.sort(draw.permuted(np.arange(12)).reshape(6, 2), 1)]
    )
    graph = Graph.from_edges(pairs, resistance=torch.as_tensor(draw.uniform(0.1, 10, 17), dtype=torch.float32))
    right = true_resistances(graph.to(dtype=torch.float64), pairs).astype(np.float64)
    for answer, truth in (
        (ohm.effective_resistance(graph, "edges"), right),
        (ohm.effective_resistance(graph, pairs), right),
        (ohm.spanning_tree_marginals(graph), right / graph.resistance.double().numpy()),
    ):
        assert answer.value.dtype == torch.float32
        gap = np.abs(answer.value.double().numpy() - truth) / truth
        assert answer.error is not None
        assert gap.max() <= answer.error < 1e-5
    index = ohm.kirchhoff_index(graph)
    every = np.stack(np.triu_indices(12, 1), 1)
    whole = float(true_resistances(graph.to(dtype=torch.float64), every).sum())
    assert index.error is not None
    assert abs(float(index.value) - whole) / whole <= index.error < 1e-5


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("tol_of", ["residual", "error"])
def test_inverses_that_overflow_are_refused_when_cubing_is_asked_for(batched, tol_of):
    ring = Graph.from_edges([(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)], resistance=[1e-10, 1e10, 1.0, 1e-10, 1e10])
    graph = Graph.collate([ring, ring]) if batched else ring
    for pairs in ("all", "edges"):
        with pytest.raises(ValueError, match="cubing reaches inf"):
            ohm.effective_resistance(graph, pairs, method="cubing", tol_of=tol_of)
    with pytest.raises(ValueError, match="cubing reaches inf"):
        ohm.kirchhoff_index(graph, method="cubing")


def test_errors_by_a_factor_in_float32_are_never_below_the_true_ones():
    path = Graph.from_edges([(0, 1), (1, 2), (2, 3)], resistance=torch.ones(3))
    demands = [torch.tensor([[-1.7], [-0.6], [-1.4], [-1.1]])]
    demands += [torch.randn(4, 1, generator=torch.Generator().manual_seed(seed)) for seed in range(100)]
    for given in demands:
        psi = path.center(given)
        answer = ohm.potentials(path, psi, center=True, method="direct")
        assert answer.error is not None
        assert true_error(path, answer.value, path.center(psi).double()) <= answer.error


def test_a_tiny_demand_on_a_component_of_large_resistance_is_centred_by_its_own_size():
    resistance = [1e-20] * 69 + [1e20]
    graph = Graph.from_edges([(i, i + 1) for i in range(69)] + [(70, 71)], resistance=resistance)
    psi = torch.zeros(72, 1, dtype=torch.float64)
    psi[0], psi[69], psi[70] = 1.0, -1.0, 2e-16
    answer = ohm.potentials(graph, psi)
    np.testing.assert_allclose(answer.value[70:, 0], [5e3, -5e3])  # 1e-16 through 1e20
    assert answer.error is not None
    assert true_error(graph, answer.value, psi, exact=0) <= answer.error


@pytest.mark.parametrize("method", ["auto", "direct"])
def test_errors_of_flows_include_their_rounding_to_float32(method):
    for seed in range(100):
        draw = torch.Generator().manual_seed(seed)
        graph = Graph.from_edges([(0, 1), (1, 2), (2, 3), (0, 3)], resistance=torch.rand(4, generator=draw) + 0.1)
        psi = torch.randn(4, 1, generator=draw)
        psi -= psi.mean()
        answer = ohm.electric_flow(graph, psi, center=True, method=method)
        right = by_elimination(graph, graph.check_demands(psi, center=True)[:, 0])
        with mpmath.workdps(50):
            weight = [mpmath.mpf(r) for r in graph.resistance.tolist()]
            true = [(right[u] - right[v]) / r for u, v, r in zip(*graph.edge_index.tolist(), weight, strict=True)]
            found = answer.flow[:, 0].tolist()
            off = mpmath.fsum(r * (x - y) ** 2 for r, x, y in zip(weight, true, found, strict=True))
            size = mpmath.fsum(r * x**2 for r, x in zip(weight, true, strict=True))
            assert answer.error is not None
            assert mpmath.sqrt(off / size) <= answer.error
