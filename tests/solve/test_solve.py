"""The front door: right answers, honest certificates, gradients, and no surprise on any graph."""

from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ohmformer as ohm
from ohmformer import Graph, exact, native
from ohmformer.constructions import Chebyshev
from ohmformer.graph import circuit
from ohmformer.graph.families import family
from ohmformer.solve import scaled as sparse
from ohmformer.solve.engines.base import Watch
from ohmformer.solve.engines.chebyshev import chebyshev_round
from ohmformer.solve.plan import SMALL
from tests.strategies import connected, demands_for, graphs


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_graph(n: int, m: int, seed: int = 0, parts: int = 1) -> Graph:
    """m random edges over a random tree on each of ``parts`` equal components, conductances exp(U[-1, 1])."""
    rng = np.random.default_rng(seed)
    size = n // parts
    block = rng.integers(0, parts, m) * size
    extra = np.stack([block + rng.integers(0, size, m), block + rng.integers(0, size, m)], axis=1)
    child = np.concatenate([np.arange(1, size) + p * size for p in range(parts)])
    parent = (child // size) * size + (rng.random(len(child)) * (child % size)).astype(np.int64)
    edges = np.concatenate([extra, np.stack([parent, child], axis=1)])
    return Graph.from_edges(edges, num_nodes=n, conductance=np.exp(rng.uniform(-1, 1, len(edges))))


@pytest.fixture(scope="module")
def large(device) -> Graph:
    return random_graph(1200, 6000).to(device)


def test_current_put_in_runs_downhill():
    """Two resistors in a row, one ampere put in at the first node: potentials fall by r I, current runs along the edges."""
    g = ohm.Graph.from_edges([(0, 1), (2, 1)], resistance=[2.0, 3.0])
    answer = ohm.electric_flow(g, torch.tensor([1.0, 0.0, -1.0]))
    torch.testing.assert_close(answer.flow[:, 0], torch.tensor([1.0, -1.0], dtype=torch.float64), atol=1e-6, rtol=0)
    drop = answer.potential[:, 0] - answer.potential[2, 0]
    torch.testing.assert_close(drop, torch.tensor([5.0, 3.0, 0.0], dtype=torch.float64), atol=1e-5, rtol=0)


@pytest.mark.parametrize("method", ["auto", "cubing", "chebyshev", "direct"])
@settings(max_examples=15)
@given(g=graphs())
def test_potentials_are_lapacks_by_every_method(device, method, g):
    g = g.to(device)
    psi = demands_for(g)
    answer = ohm.potentials(g, psi, tol=1e-8, method=method)
    truth = torch.as_tensor(np.linalg.pinv(g.laplacian().cpu().numpy(), hermitian=True, rcond=1e-10)).to(device) @ psi
    lmin = exact.spectrum(g).lmin
    assert float((answer.value - truth).norm(dim=0).max()) <= 2e-8 / lmin * float(psi.norm(dim=0).max()) + 1e-10
    assert answer.residual <= 1e-8


@given(g=graphs())
@settings(max_examples=15)
def test_the_residual_is_the_residual_and_below_its_bound(device, g):
    g = g.to(device)
    psi = demands_for(g)
    answer = ohm.potentials(g, psi, tol=1e-4)
    measured = float(((psi - g.laplacian() @ answer.value).norm(dim=0) / psi.norm(dim=0).clamp(min=1e-300)).max())
    assert answer.residual == pytest.approx(measured, rel=1e-3, abs=1e-12)
    assert answer.bound is not None
    assert answer.spectrum is not None
    single = torch.finfo(torch.float32).eps * answer.spectrum.condition  # what rounding leaves before the last squaring
    assert answer.residual <= answer.bound + single**2 + 1e-11
    assert answer.bound <= 1e-4


def few_demands_by(graph: Graph) -> str:
    """The engine for few demands on a graph that expands."""
    return "conjugate" if native.active() is not None and graph.device.type == "cpu" else "chebyshev"


def test_large_graphs_go_through_the_sparse_engine(large):
    psi = demands_for(large, k=5)
    answer = ohm.potentials(large, psi, tol=1e-7)
    assert (answer.method, answer.bound) == ("chebyshev", None)
    assert answer.residual <= 1e-7
    laplacian = large.laplacian()
    assert float(((psi - laplacian @ answer.value).norm(dim=0) / psi.norm(dim=0)).max()) <= 1.01e-7
    truth = exact.potentials(large, psi)
    torch.testing.assert_close(answer.value, truth, rtol=1e-5, atol=1e-6 * float(truth.abs().max()))


def test_memory_of_huge_pages_gives_the_same_answers(monkeypatch):
    large = random_graph(1200, 6000)
    psi = demands_for(large, k=3)
    mapped, make = [], sparse.mmap.mmap
    monkeypatch.setattr(sparse, "HUGE", 100)
    monkeypatch.setattr(sparse.mmap, "mmap", lambda *size, **flags: mapped.append(size) or make(*size, **flags))
    answer = ohm.potentials(large, psi, tol=1e-9)
    assert mapped
    truth = exact.potentials(large, psi)
    torch.testing.assert_close(answer.value, truth, rtol=1e-7, atol=1e-8 * float(truth.abs().max()))


def test_disconnected_large_graphs_are_solved_per_component(device):
    g = random_graph(1500, 6000, parts=3).to(device)
    assert g.num_components == 3
    psi = demands_for(g, k=2)
    answer = ohm.potentials(g, psi)
    assert answer.method == few_demands_by(g)
    torch.testing.assert_close(answer.value, exact.potentials(g, psi), rtol=1e-4, atol=1e-4)
    assert float(g.component_means(answer.value).abs().max()) < 1e-12


def test_the_sparse_engine_runs_the_layers_of_the_transformer(large):
    scaled = sparse.Scaled.of(large)
    construction = Chebyshev(sparse.extreme_eigenvalues(scaled).spectrum)
    b = scaled.root * demands_for(large, k=3)
    normalised = scaled.root * large.laplacian() * scaled.root.mT
    model = construction.efficient(17).requires_grad_(False)
    truth = model(normalised, {"demand": b})["potential"]
    for dtype, rtol in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        step = scaled.step(construction.gamma, dtype)
        fast = chebyshev_round(step, b.to(dtype).repeat(3, 1, 1), construction, 17, Watch(None))[0].double()
        torch.testing.assert_close(fast, truth, rtol=0, atol=rtol * float(truth.abs().max()))


def test_lanczos_finds_the_ends_of_the_spectrum_from_outside(large):
    scaled = sparse.Scaled.of(large)
    values = np.linalg.eigvalsh((scaled.root * large.laplacian() * scaled.root.mT).cpu().numpy())
    found = sparse.extreme_eigenvalues(scaled)
    assert found.separated
    assert 0.5 * values[1] <= found.spectrum.lmin <= values[1]
    assert values[-1] <= found.spectrum.lmax <= sparse.LARGEST


def test_a_long_path_falls_back_and_says_why(device):
    n = 20_000
    g = Graph.from_edges(np.stack([np.arange(n - 1), np.arange(1, n)], axis=1)).to(device)
    psi = torch.zeros(n, dtype=torch.float64)
    psi[0], psi[-1] = 1.0, -1.0
    answer = ohm.potentials(g, psi)
    assert answer.method == ("elimination" if native.active() and device.type == "cpu" else "direct")
    assert "would take more than" in answer.note
    assert float(answer.value[0, 0] - answer.value[-1, 0]) == pytest.approx(n - 1, rel=1e-6)


def test_asking_for_more_than_floats_give_says_what_can_be_reached():
    g = Graph.from_edges([(0, 1), (1, 2), (2, 3)], resistance=[1e-8, 1e8, 1.0])
    with pytest.raises(ValueError, match=r"asked for a residual of 1.0e-15, but .* reaches \d"):
        ohm.potentials(g, torch.tensor([1.0, 0.0, 0.0, -1.0]), tol=1e-15)


@pytest.mark.parametrize("method", ["gradient-descent", "squaring", "chebyshev", "cubing"])
@settings(max_examples=8)
@given(g=connected())
def test_every_construction_answers_by_name_and_keeps_its_states(device, method, g):
    g = g.to(device)
    psi = demands_for(g)
    answer = ohm.potentials(g, psi, tol=1e-5, method=method, trace=True)
    assert answer.method == method
    assert answer.trace is not None
    assert len(answer.trace) == answer.layers
    assert answer.bound is not None
    assert answer.residual <= answer.bound + 1e-9
    truth = exact.potentials(g, psi)
    assert float((answer.value - truth).norm()) <= 2e-5 / exact.spectrum(g).lmin * float(psi.norm()) + 1e-10


def test_a_graph_asked_twice_is_prepared_once_and_again_when_its_resistances_change(large):
    r = large.resistance.clone()
    g = Graph(large.edge_index, r, large.batch)
    psi = demands_for(g)
    ohm.potentials(g, psi)
    before = sparse.prepared(g)[0]
    assert sparse.prepared(g)[0] is before
    r.mul_(2.0)
    torch.testing.assert_close(ohm.potentials(g, psi, tol=1e-9).value, exact.potentials(g, psi), rtol=1e-6, atol=1e-7)


# ------------------------------------------------------------------------------------------------ flow and resistance


@given(g=graphs())
@settings(max_examples=15)
def test_electric_flow_meets_its_demands_at_the_least_energy(device, g):
    g = g.to(device)
    psi = demands_for(g)
    answer = ohm.electric_flow(g, psi, tol=1e-9)
    torch.testing.assert_close(circuit.divergence(g, answer.flow), psi, atol=1e-7, rtol=1e-7)
    truth = exact.potentials(g, psi)
    torch.testing.assert_close(answer.energy, (psi * truth).sum(0), rtol=1e-6, atol=1e-8)


@given(g=connected())
@settings(max_examples=15)
def test_resistances_of_all_pairs_edges_and_given_pairs_are_networkxs(device, g):
    g = g.to(device)
    theirs: Any = nx.resistance_distance(g.to_networkx(), weight="resistance")
    expected = torch.tensor([[theirs[u][v] for v in range(g.num_nodes)] for u in range(g.num_nodes)]).to(g.resistance)
    everything = ohm.effective_resistance(g, "all", tol=1e-9).value
    torch.testing.assert_close(everything, expected, rtol=1e-6, atol=1e-8)
    u, v = g.edge_index
    torch.testing.assert_close(ohm.effective_resistance(g, tol=1e-9).value, expected[u, v], rtol=1e-6, atol=1e-8)
    pairs = torch.tensor([[0, 1], [2, 2], [3, 0]])
    some = ohm.effective_resistance(g, pairs, tol=1e-9).value
    torch.testing.assert_close(some, expected[pairs[:, 0], pairs[:, 1]], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("seed", range(4))
def test_resistances_over_many_decades_are_lapacks(seed, device):
    """Badly conditioned enough for cubing to work in float64 throughout."""
    rng = np.random.default_rng(seed)
    chain, links = [(i, i + 1) for i in range(11)], rng.integers(0, 12, (8, 2)).tolist()
    g = Graph.from_edges(chain + links, num_nodes=12, resistance=10.0 ** rng.uniform(-5, 5, 19)).to(device)
    answer = ohm.effective_resistance(g, "all", method="cubing")
    gap = (answer.value - exact.effective_resistance(g)).abs()
    assert float(gap.max()) <= 1e-6 * float(answer.value.max())


def test_resistance_between_components_is_infinite(device):
    g = Graph.from_edges([(0, 1), (2, 3)], num_nodes=5).to(device)
    pairs = torch.tensor([[0, 1], [0, 2], [4, 4], [4, 0]])
    assert ohm.effective_resistance(g, pairs).value.tolist() == pytest.approx([1.0, np.inf, 0.0, np.inf])
    assert torch.isinf(ohm.effective_resistance(g, "all").value[0, 4])


def test_large_pairs_equal_dense_ones(large):
    pairs = torch.tensor([[0, 1], [5, 1100], [17, 17]])
    truth = exact.effective_resistance(large)
    got = ohm.effective_resistance(large, pairs, tol=1e-9)
    assert got.method == few_demands_by(large)
    torch.testing.assert_close(got.value, truth[pairs[:, 0], pairs[:, 1]], rtol=1e-6, atol=1e-9)


def test_projected_resistances_are_within_eps_and_seeded(large):
    truth = exact.effective_resistance(large)[large.edge_index[0], large.edge_index[1]]
    estimate = ohm.effective_resistance(large, eps=0.3, seed=1)
    assert float((estimate.value / truth - 1).abs().max()) < 0.3
    again = ohm.effective_resistance(large, eps=0.3, seed=1)
    assert torch.equal(estimate.value, again.value)


@given(st.lists(connected(), min_size=1, max_size=4))
@settings(max_examples=15)
def test_the_kirchhoff_index_is_networkxs(parts):
    batch = Graph.collate(parts)
    theirs = [nx.effective_graph_resistance(g.to_networkx(), weight="resistance") for g in parts]
    assert ohm.kirchhoff_index(batch, tol=1e-9).value.tolist() == pytest.approx(theirs, rel=1e-6)
    assert float(ohm.kirchhoff_index(parts[0], tol=1e-9).value) == pytest.approx(theirs[0], rel=1e-6)


def test_the_kirchhoff_index_of_a_disconnected_graph_is_infinite():
    assert float(ohm.kirchhoff_index(Graph.from_edges([(0, 1)], num_nodes=3)).value) == np.inf


def test_the_estimated_kirchhoff_index_is_within_its_error(large):
    truth = large.num_nodes * float(exact.pinv(large).trace())
    estimate = ohm.kirchhoff_index(large, eps=0.01, seed=3)
    assert float(estimate.value) == pytest.approx(truth, rel=estimate.error)
    assert "random signs" in estimate.note


def test_embedding_distances_are_resistances(device):
    g = family("erdos-renyi", 12, generator=generator(), spread=1.0).to(device)
    rows = ohm.resistive_embedding(g)
    torch.testing.assert_close(
        torch.cdist(rows.value, rows.value).square(), exact.effective_resistance(g), atol=1e-9, rtol=1e-9
    )
    assert rows.residual < 1e-10
    projected = ohm.resistive_embedding(g, dim=3000).value
    assert projected.shape == (12, 3000)
    ratio = torch.cdist(projected, projected).square() / (exact.effective_resistance(g) + torch.eye(12).to(g.resistance))
    off = ~torch.eye(12, dtype=torch.bool).to(device)
    assert float((ratio[off] - 1).abs().max()) < 0.15


# ------------------------------------------------------------------------------------------------ batches and gradients


def test_a_batch_equals_its_graphs_one_by_one(device):
    parts = [
        family(name, n, generator=generator(n), spread=1.0).to(device)
        for name, n in (("path", 5), ("csl", 9), ("star", 30), ("ring", 17))
    ]
    parts.append(Graph.from_edges([], num_nodes=1).to(device))
    together = Graph.collate(parts)
    psi = demands_for(together)
    answer = ohm.potentials(together, psi, tol=1e-10)
    one_by_one = [
        ohm.potentials(g, rows, tol=1e-10).value
        for g, rows in zip(parts, psi.split([g.num_nodes for g in parts]), strict=True)
    ]
    torch.testing.assert_close(answer.value, torch.cat(one_by_one), rtol=1e-7, atol=1e-9)
    resistance = ohm.effective_resistance(together, "all", tol=1e-10).value
    torch.testing.assert_close(resistance.padded(), exact.effective_resistance(together), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("method", ["cubing", "chebyshev", "conjugate", "direct"])
def test_gradients_by_the_adjoint_pass_gradcheck(method, device):
    edges = [(0, 1), (1, 2), (2, 0), (2, 3), (4, 5)]
    r = torch.tensor([1.0, 2.0, 0.5, 1.5, 3.0], dtype=torch.float64, device=device, requires_grad=True)
    psi = demands_for(Graph.from_edges(edges).to(device), k=2).requires_grad_()

    def run(r, psi):
        g = Graph.from_edges(edges, resistance=r)
        return ohm.potentials(g, g.center(psi), tol=1e-13 if method != "chebyshev" else 1e-12, method=method).value

    assert torch.autograd.gradcheck(run, (r, psi), eps=1e-5, atol=1e-6)


def test_adjoint_gradients_equal_unrolled_ones(device):
    r = torch.tensor([1.0, 2.0, 0.5, 1.5], dtype=torch.float64, device=device, requires_grad=True)
    edges = [(0, 1), (1, 2), (2, 0), (2, 3)]
    gradients = []
    for unrolled in (False, True):
        g = Graph.from_edges(edges, resistance=r)
        psi = demands_for(g, k=2)
        phi = Chebyshev(exact.spectrum(g)).run(g, psi, layers=200) if unrolled else ohm.potentials(g, psi, tol=1e-13).value
        gradients.append(torch.autograd.grad(phi[:, 0].square().sum() + phi[1, 1], r)[0])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-8, atol=1e-10)


def test_gradient_of_a_resistance_is_the_squared_current():
    r = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    g = Graph.from_edges([(0, 1), (1, 2), (2, 0)], resistance=r)
    ohm.effective_resistance(g, torch.tensor([[0, 2]]), tol=1e-12).value.sum().backward()
    current = circuit.flow(g, exact.potentials(g, torch.tensor([1.0, 0.0, -1.0]))).detach()[:, 0]
    assert r.grad is not None
    torch.testing.assert_close(r.grad, current.square(), rtol=1e-8, atol=1e-10)


def test_gradients_of_small_resistances_pass_gradcheck(device):
    edges = [(0, 1), (1, 2), (2, 0), (2, 3), (4, 5), (1, 2)]
    r = torch.tensor([1.0, 2.0, 0.5, 1.5, 3.0, 0.7], dtype=torch.float64, device=device, requires_grad=True)

    def all_pairs(r):
        value = ohm.effective_resistance(Graph.from_edges(edges, resistance=r), "all", tol=1e-12).value
        return value[torch.isfinite(value)]

    def on_edges(r):
        return ohm.effective_resistance(Graph.from_edges(edges, resistance=r), tol=1e-12).value

    assert torch.autograd.gradcheck(all_pairs, (r,), eps=1e-5, atol=1e-6)
    assert torch.autograd.gradcheck(on_edges, (r,), eps=1e-5, atol=1e-6)


def test_a_float32_graph_gets_float32_answers(device):
    g = family("csl", 12, generator=generator(), spread=1.0).to(device)
    single = g.to(dtype=torch.float32)
    answer = ohm.effective_resistance(single, "all", tol=1e-4)
    assert answer.value.dtype == torch.float32
    torch.testing.assert_close(answer.value.double(), exact.effective_resistance(g), rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda g: ohm.potentials(g, torch.ones(3)), "sums to 3 on component 0"),
        (lambda g: ohm.potentials(g, torch.ones(2)), r"shape \(3, k\), got \(2,\)"),
        (lambda g: ohm.potentials(g, torch.zeros(3), tol=0.0), r"tolerance in \(0, 1\), got 0.0"),
        (lambda g: ohm.potentials(g, torch.zeros(3), method="magic"), "got 'magic'"),
        (lambda g: ohm.effective_resistance(g, "some"), "got 'some'"),
        (lambda g: ohm.effective_resistance(g, torch.tensor([[0, 3]])), "0..2, got 0..3"),
        (lambda g: ohm.effective_resistance(g, torch.tensor([0, 1])), r"shape \(pairs, 2\)"),
        (lambda g: ohm.effective_resistance(g, eps=2.0), r"eps in \(0, 1\), got 2.0"),
        (lambda g: ohm.resistive_embedding(g, dim=0), "dim >= 1, got 0"),
        (lambda g: ohm.heat_kernel(g, 0.0), "s > 0, got 0.0"),
        (lambda g: ohm.eigenvectors(g, 0), "k >= 1 eigenvectors, got 0"),
        (lambda g: ohm.eigenvectors(g, 1, "middle"), "got 'middle'"),
    ],
)
def test_wrong_questions_are_refused_in_one_sentence(ask, message):
    with pytest.raises(ValueError, match=message):
        ask(Graph.from_edges([(0, 1), (1, 2)]))


def test_small_and_large_meet(device):
    """The same graph just above and just below the size at which the engine changes."""
    g = random_graph(SMALL, 5 * SMALL).to(device)
    psi = demands_for(g, k=2)
    cubing, chebyshev = (ohm.potentials(g, psi, tol=1e-9, method=m).value for m in ("cubing", "chebyshev"))
    torch.testing.assert_close(cubing, chebyshev, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("method", ["auto", "chebyshev", "conjugate", "elimination", "direct"])
@pytest.mark.parametrize("size", [1e-290, 1e-165, 1e160, 1e290])
def test_demands_of_any_size_are_answered_alike(method, size):
    graph = random_graph(450, 3000)
    psi = demands_for(graph, k=2)
    psi[:, 1] *= size
    answer = ohm.potentials(graph, psi, method=method, tol=1e-8)
    sizes = torch.tensor([1.0, size], dtype=torch.float64)
    right = torch.linalg.pinv(graph.laplacian(), hermitian=True) @ (psi / sizes)
    assert answer.residual <= 1e-8
    assert answer.error is not None
    assert answer.error > 0
    torch.testing.assert_close(answer.value / sizes, right, rtol=0, atol=1e-6 * float(right.abs().max()))


def test_a_demand_on_one_graph_of_a_batch_may_be_tiny():
    pair = Graph.from_edges([(0, 1)])
    answer = ohm.potentials(Graph.collate([pair, pair]), [1e-200, -1e-200, 1.0, -1.0])
    assert answer.value[:, 0].tolist() == pytest.approx([5e-201, -5e-201, 0.5, -0.5], rel=1e-12)
