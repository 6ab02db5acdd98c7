"""Engine chebyshev in C: answers and layers of torch's, residuals to the last bit, on any graph."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

import ohmformer as ohm
from ohmformer import Graph, exact, native
from ohmformer.constructions import Chebyshev
from ohmformer.solve import plan
from ohmformer.solve.engines import chebyshev_native
from ohmformer.solve.engines.base import Part, Problem, Watch
from ohmformer.solve.engines.chebyshev import ChebyshevEngine, chebyshev_round
from ohmformer.solve.scaled import Scaled, extreme_eigenvalues
from tests.solve.test_solve import random_graph
from tests.strategies import demands_for

pytestmark = pytest.mark.skipif(native.active() is None, reason="needs the native kernels")


@pytest.fixture(autouse=True)
def from_small_graphs_on(monkeypatch):
    monkeypatch.setattr(plan, "NATIVE_NODES", 600)


@pytest.fixture
def rounds(monkeypatch):
    """The numbers of columns of the rounds that ran in C."""
    taken, work = [], chebyshev_native.one_round

    def counted(step, state, *rest):
        taken.append(state.shape[2])
        return work(step, state, *rest)

    monkeypatch.setattr(chebyshev_native, "one_round", counted)
    return taken


def in_c(step, state, construction, layers):
    """One round in C."""
    return chebyshev_native.one_round(step, state, construction, layers, Watch(None))[0]


def solve(g: Graph, psi: torch.Tensor, tol: float, progress=None) -> ohm.Answer:
    """Potentials by the engine, its layers in C whatever the plan says."""
    part = Part(None, "chebyshev", True, torch.float32, 64, "test")
    return ChebyshevEngine().run(Problem(g, psi, tol, part, progress))


def relative_residual(g: Graph, psi: torch.Tensor, phi: torch.Tensor) -> float:
    """Of the worst demand, by SciPy."""
    left = psi.numpy() - csr_array(g.laplacian().numpy()) @ phi.numpy()
    return float((np.linalg.norm(left, axis=0) / np.linalg.norm(psi.numpy(), axis=0)).max())


@pytest.mark.parametrize(("k", "panels"), [(5, []), (17, [32]), (32, [32]), (40, [64]), (64, [64]), (100, [64, 64])])
@pytest.mark.parametrize("parts", [1, 3])
def test_potentials_are_lapacks_for_any_number_of_demands(k, panels, parts, rounds):
    g = random_graph(1500, 6000, parts=parts)
    psi = demands_for(g, k=k)
    answer = ohm.potentials(g, psi, tol=1e-6, method="chebyshev")
    truth = exact.potentials(g, psi)
    assert answer.residual <= 1e-6
    assert answer.residual == pytest.approx(relative_residual(g, psi, answer.value), rel=1e-3)
    torch.testing.assert_close(answer.value, truth, rtol=0, atol=1e-5 * float(truth.abs().max()))
    assert rounds == panels


@pytest.mark.parametrize("kind", ["normal", "one node each"])
def test_eight_bits_take_no_more_layers_than_float32(kind):
    g = random_graph(1200, 6000)
    scaled = Scaled.of(g)
    psi = demands_for(g, k=64) if kind == "normal" else g.center(torch.eye(1200, dtype=torch.float64)[:, :64])
    b = scaled.root * psi
    construction = Chebyshev(extreme_eigenvalues(scaled).spectrum)
    step = scaled.step(construction.gamma, torch.float32)

    def residual(layers: int, one_round=chebyshev_native.one_round) -> float:
        x = one_round(step, b.float().repeat(3, 1, 1), construction, layers, Watch(None))[0].double()
        return float(((b - scaled.times(x)).norm(dim=0) / b.norm(dim=0)).max())

    for layers in (1, 2, 7, 12, 19):
        assert residual(layers) <= 1.05 * residual(layers, chebyshev_round) + torch.finfo(torch.float32).eps
    assert residual(60) <= 1e-6  # some per cent off in every layer, and nothing of it stays


@pytest.mark.parametrize("columns", [32, 64])
def test_a_row_of_any_size_is_off_by_at_most_five_per_cent_of_its_norm_and_nothing_stays_nothing(columns):
    n = 1000
    g = random_graph(n, 4000)
    construction = Chebyshev(ohm.Spectrum(0.2, 2.0))
    step = Scaled.of(g).step(construction.gamma, torch.float32)
    draw = torch.Generator().manual_seed(0)
    size = 10.0 ** torch.empty(n, 1).uniform_(-15, 2, generator=draw)
    uneven = 10.0 ** torch.empty(n, columns).uniform_(-6, 0, generator=draw)
    demand = size * uneven * torch.randn(n, columns, generator=draw)
    demand[::7] = 0.0
    demand[:, 1::5] = 0.0
    found = in_c(step, demand.repeat(3, 1, 1), construction, 1)  # the first direction: gamma psi
    wanted = construction.gamma * demand
    assert ((found - wanted).norm(dim=1) <= 0.05 * wanted.norm(dim=1)).all()
    assert (found[wanted == 0] == 0).all()


def test_a_direction_beyond_the_largest_scale_is_only_shorter():
    g = random_graph(1000, 4000)
    construction = Chebyshev(ohm.Spectrum(0.2, 2.0))
    step = Scaled.of(g).step(construction.gamma, torch.float32)
    demand = torch.randn(1000, 64, generator=torch.Generator().manual_seed(1)) * 1e6
    found = in_c(step, demand.repeat(3, 1, 1), construction, 1)
    assert (found.norm(dim=1) < demand.norm(dim=1)).all()
    assert (torch.cosine_similarity(found, demand, dim=1) > 0.99).all()


def test_residuals_are_those_of_double_precision_for_any_part_of_the_demands():
    g = random_graph(900, 3000, seed=1)
    scaled = Scaled.of(g)
    dense = g.laplacian().numpy()
    for k in (1, 5, 16, 21, 64):
        phi, psi = torch.randn(2, 900, k + 7, generator=torch.Generator().manual_seed(k), dtype=torch.float64)
        for part in (slice(0, k), slice(3, 3 + k)):
            ours = scaled.residual(psi[:, part], phi[:, part], in_c=True)
            truth = psi[:, part].numpy() - dense @ phi[:, part].numpy()
            np.testing.assert_allclose(ours.numpy(), truth, rtol=0, atol=1e-12 * np.abs(dense).max() * 900)


@settings(max_examples=15)
@given(seed=st.integers(0, 2**20), decades=st.sampled_from([0, 1, 2]), k=st.sampled_from([20, 33, 64]))
def test_any_graph_and_any_demands_are_answered_to_the_tolerance(seed, decades, k):
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(600, 900)), int(rng.integers(600, 4000))
    hub = np.stack([np.zeros(300, dtype=np.int64), rng.integers(0, n, 300)], axis=1)
    edges = np.concatenate([rng.integers(0, n, (m, 2)), hub])  # with loops, duplicates, isolated nodes, many components
    g = Graph.from_edges(edges, num_nodes=n, resistance=10.0 ** rng.uniform(-decades, decades, len(edges)))
    psi = demands_for(g, k=k, seed=seed) * torch.as_tensor(10.0 ** rng.uniform(-20, 20, k))
    psi[:, 1] = 0.0
    solved = solve(g, psi, 1e-5)
    assert solved.value.isfinite().all()
    left = psi - g.laplacian() @ solved.value
    worst = float((left.norm(dim=0) / psi.norm(dim=0).clamp(min=1e-290)).max())
    assert worst <= 1.01e-5


def test_the_number_of_threads_does_not_change_a_bit():
    g = random_graph(1500, 6000)
    psi = demands_for(g, k=64)
    before, answers = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            scaled = Scaled.of(g)
            construction = Chebyshev(ohm.Spectrum(0.2, 2.0))
            step = scaled.step(construction.gamma, torch.float32)
            answers.append(in_c(step, psi.float().repeat(3, 1, 1), construction, 15))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])


def test_it_can_be_stopped_and_says_how_far_it_got(rounds):
    g = random_graph(1500, 6000)
    psi = demands_for(g, k=64)
    stopped = solve(g, psi, 1e-6, progress=lambda layers, residual: layers >= 10)
    assert rounds == [64]
    assert (stopped.stopped, stopped.layers) == (True, 10)
    assert 1e-6 < stopped.residual < 0.1
    assert stopped.residual == pytest.approx(relative_residual(g, psi, stopped.value), rel=1e-6)


def test_deep_rounds_and_small_graphs_stay_with_torch(rounds):
    side = 30
    node = np.arange(side * side).reshape(side, side)
    edges = np.concatenate(
        [np.stack([node[:-1].ravel(), node[1:].ravel()], 1), np.stack([node[:, :-1].ravel(), node[:, 1:].ravel()], 1)]
    )
    for g in (Graph.from_edges(edges), random_graph(500, 2000)):
        answer = ohm.potentials(g, demands_for(g, k=64), tol=1e-6, method="chebyshev")
        assert answer.residual <= 1e-6
    assert rounds == []


def test_gradients_are_those_of_torch():
    g = random_graph(700, 3000)
    psi = demands_for(g, k=20)
    slopes = []
    for wanted in ("off", None):
        with native.used(wanted) if wanted else nullcontext():
            resistance = g.resistance.clone().requires_grad_()
            graph = replace(g, resistance=resistance)
            ohm.potentials(graph, psi, tol=1e-8).value.square().sum().backward()
            slopes.append(resistance.grad)
    torch.testing.assert_close(slopes[0], slopes[1], rtol=0, atol=1e-5 * float(slopes[0].abs().max()))
