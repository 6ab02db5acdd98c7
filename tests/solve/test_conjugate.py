"""Engine conjugate: answers without a look beforehand, and a random demand that says what they are worth."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

import ohmformer as ohm
from ohmformer import Graph, native
from ohmformer.graph.memory import remembered
from ohmformer.solve.engines.conjugate import steps_taken
from ohmformer.solve.scaled import Scaled, extreme_eigenvalues
from tests.solve.test_solve import random_graph
from tests.strategies import demands_for

needs_kernels = pytest.mark.skipif(native.active() is None, reason="the plan names it where there are kernels")


def true_error(graph: Graph, phi: torch.Tensor, psi: torch.Tensor) -> float:
    """``|phi - phi*|_L / |phi*|_L`` of the worst column, by the dense pseudoinverse."""
    laplacian = graph.laplacian()
    right = torch.linalg.pinv(laplacian, hermitian=True) @ psi
    energy = ((phi - right) * (laplacian @ (phi - right))).sum(0) / (right * psi).sum(0)
    return float(energy.clamp(min=0).sqrt().max())


def joined(weak: float) -> Graph:
    """Two graphs that expand, and an edge of a large resistance between them."""
    one = random_graph(700, 4000)
    pairs = torch.cat([one.edge_index, one.edge_index + 700, torch.tensor([[0], [700]])], dim=1)
    return Graph.from_edges(pairs.t(), resistance=torch.cat([one.resistance, one.resistance, torch.tensor([weak]).double()]))


@needs_kernels
@pytest.mark.parametrize("demands", [1, 3])
def test_few_demands_on_graphs_that_expand_are_off_by_no_more_than_they_say(demands):
    for seed in range(4):
        graph = random_graph(600 + 200 * seed, 5000, seed=seed)
        psi = demands_for(graph, k=demands)
        answer = ohm.potentials(graph, psi, tol=10.0 ** -(4 + 2 * seed))
        assert answer.method == "conjugate"
        true = true_error(graph, answer.value, psi)
        assert answer.error is not None
        assert true <= answer.error <= 100 * true


@needs_kernels
@pytest.mark.parametrize("weak", [1e2, 1e4, 1e6])
def test_a_part_that_hangs_on_by_little_and_has_no_demand_is_not_overlooked(weak):
    graph = joined(weak)
    psi = torch.zeros(graph.num_nodes, 1, dtype=torch.float64)
    psi[3], psi[400] = 1.0, -1.0
    answer = ohm.potentials(graph, psi)
    assert answer.error is not None
    assert answer.error >= true_error(graph, answer.value, psi)
    blind = ohm.potentials(graph, psi, method="conjugate")
    assert blind.error is None or blind.error >= true_error(graph, blind.value, psi)


@needs_kernels
def test_what_the_random_demand_shows_is_what_lanczos_finds_and_is_kept():
    graph = random_graph(3000, 15_000)
    first = ohm.potentials(graph, demands_for(graph, k=1))
    ends, lanczos = remembered(graph, "ends"), extreme_eigenvalues(Scaled.of(graph))
    assert ends.separated
    assert ends.spectrum.lmin == pytest.approx(lanczos.spectrum.lmin, rel=0.1)
    assert ends.spectrum.lmax == pytest.approx(lanczos.spectrum.lmax, rel=0.05)
    again = ohm.potentials(graph, demands_for(graph, k=1))
    assert remembered(graph, "ends") is ends
    assert again.spectrum == first.spectrum
    assert "layers at a condition number" in str(again.plan)


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("demands", [1, 20])
def test_it_can_be_asked_for_with_any_number_of_demands_and_without_kernels(kernels, demands):
    graph = random_graph(500, 2500)
    psi = demands_for(graph, k=demands)
    with nullcontext() if kernels else native.used("off"):
        answer = ohm.potentials(graph, psi, method="conjugate", tol=1e-10)
    assert answer.method == "conjugate"
    assert answer.residual <= 1e-10
    assert answer.error is not None
    assert true_error(graph, answer.value, psi) <= answer.error


@needs_kernels
@pytest.mark.parametrize("demands", [1, 3])
def test_communities_cost_a_few_steps_and_not_another_engine(demands):
    graph = joined(3e3)
    psi = demands_for(graph, k=demands)
    first, again = (ohm.potentials(graph, psi, tol=1e-8) for _ in range(2))
    for answer in (first, again):
        assert answer.method == "conjugate"
        assert answer.error is not None
        assert true_error(graph, answer.value, psi) <= answer.error
    assert first.spectrum is not None
    assert first.spectrum.condition > 1e5
    assert first.layers < 60  # layers of chebyshev for the whole interval: thousands
    assert abs(steps_taken(graph, 1e-8) - first.layers) <= 2
    assert steps_taken(graph, 1e-4) < 0.7 * first.layers
    assert again.plan is not None
    assert again.plan.parts[0].predicted < ohm.plan(graph, demands=demands, method="elimination").parts[0].predicted


@needs_kernels
def test_residuals_that_fall_slowly_end_it_and_the_next_question_does_not_try_it_again():
    node = torch.arange(6000)
    pairs = torch.stack([node.repeat_interleave(12), (node[:, None] + torch.arange(1, 13)).flatten() % 6000])
    graph = Graph.from_edges(pairs.t())
    first, again = (ohm.potentials(graph, demands_for(graph, k=1), tol=1e-8) for _ in range(2))
    assert "conjugate gradients were ended" in str(first.plan)
    assert "conjugate gradients were ended" not in str(again.plan)
    assert steps_taken(graph, 1e-8) == 0


@needs_kernels
def test_progress_ends_it_with_what_there_is():
    graph = random_graph(3000, 15_000)
    heard = []
    answer = ohm.potentials(
        graph, demands_for(graph, k=1), tol=1e-12, progress=lambda steps, left: heard.append(left) or steps > 12
    )
    assert (answer.method, answer.stopped, answer.note) == ("conjugate", True, "stopped early")
    assert 1e-12 < answer.residual < 1
    assert heard[-1] < heard[0]
    assert remembered(graph, "ends") is None


@pytest.mark.parametrize("seed", range(100, 130))
def test_more_demands_than_fit_beside_the_random_one_are_solved_or_refused_in_a_sentence(seed):
    draw = np.random.default_rng(seed)
    nodes = int(draw.integers(4, 9))
    pairs = [pair for pair in draw.integers(0, nodes, (int(1.5 * nodes), 2)).tolist() if pair[0] != pair[1]]
    graph = Graph.from_edges(pairs, resistance=10.0 ** draw.uniform(-9, 9, len(pairs)), num_nodes=nodes)
    refused = "nothing"
    try:
        answer = ohm.effective_resistance(graph, "edges", method="conjugate")
        assert answer.residual <= 1e-6 or (answer.error is not None and answer.error <= 1e-6)  # or limited by rounding
    except ValueError as error:
        refused = str(error)
    assert refused == "nothing" or "conjugate reaches" in refused
