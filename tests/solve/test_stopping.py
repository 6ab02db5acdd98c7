"""Long work can be stopped, by what progress answers or by Ctrl-C, and gives the best so far with its residual."""

import pytest
import torch

import ohmformer as ohm
from ohmformer import exact
from ohmformer.solve.projections import projections
from tests.solve.test_solve import random_graph
from tests.strategies import demands_for


@pytest.fixture(scope="module")
def large():
    return random_graph(1500, 6000)


def test_progress_can_stop_the_work_and_gets_the_best_so_far(large):
    told = []

    def stop(layers, residual):
        told.append((layers, residual))
        return True

    answer = ohm.potentials(large, demands_for(large), tol=1e-9, method="chebyshev", progress=stop)
    assert told == [(10, 1.0)]
    assert answer.stopped
    assert answer.layers == 10
    assert 1e-9 < answer.residual < 1e-2


@pytest.mark.parametrize("method", ["auto", "chebyshev"])
def test_ctrl_c_returns_the_best_so_far_with_its_residual(large, method):
    def interrupt(layers, residual):
        if layers >= 20:
            raise KeyboardInterrupt

    psi = demands_for(large)
    answer = ohm.potentials(large, psi, tol=1e-12, method=method, progress=interrupt)
    assert (answer.method, answer.stopped, answer.note) == ("chebyshev", True, "stopped early")
    left = (psi - large.laplacian() @ answer.value).norm(dim=0) / psi.norm(dim=0)
    assert answer.residual == pytest.approx(float(left.max()), rel=1e-6)
    assert 1e-12 < answer.residual < 1e-2


@pytest.fixture(scope="module")
def pairs():
    return torch.randint(0, 1500, (300, 2), generator=torch.Generator().manual_seed(0))


def test_pairs_hear_of_the_layers_of_all_their_solves_together(large, pairs):
    told = []
    answer = ohm.effective_resistance(large, pairs, progress=lambda layers, residual: told.append(layers))
    assert told == sorted(told)
    assert told[-1] > 2 * answer.layers  # three solves, of 128 pairs at most
    truth = exact.effective_resistance(large)[pairs[:, 0], pairs[:, 1]]
    torch.testing.assert_close(answer.value, truth, rtol=1e-5, atol=1e-8)


def test_pairs_that_were_not_begun_are_zero_with_a_residual_of_one(large, pairs):
    layers = ohm.effective_resistance(large, pairs).layers
    stopped = ohm.effective_resistance(large, pairs, progress=lambda done, residual: done > layers + 5)
    assert stopped.stopped
    assert (stopped.residual, stopped.method) == (1.0, "chebyshev")
    truth = exact.effective_resistance(large)[pairs[:, 0], pairs[:, 1]]
    torch.testing.assert_close(stopped.value[:128], truth[:128], rtol=1e-5, atol=1e-8)
    assert (stopped.value[256:] == 0).all()


@pytest.mark.parametrize("how", ["answer", "ctrl-c"])
def test_an_estimate_that_is_stopped_is_made_of_the_projections_done(how):
    g = random_graph(6000, 18_000)

    def stop(done, residual):
        if done > 250 and how == "ctrl-c":
            raise KeyboardInterrupt
        return done > 250

    assert projections(0.2, g.num_edges) > 400
    answer = ohm.effective_resistance(g, eps=0.2, progress=stop)
    assert answer.stopped
    done = int(answer.note.split()[2])
    assert 250 < done < 400
    assert float((answer.value / g.resistance).sum()) == pytest.approx(g.num_nodes - 1, rel=0.05)  # Foster's theorem
    some = torch.arange(0, g.num_edges, 450)
    truth = ohm.effective_resistance(g, g.edge_index.t()[some]).value
    assert float((answer.value[some] / truth - 1).abs().max()) < 5 * (2 / done) ** 0.5  # five standard deviations


def test_a_kirchhoff_index_that_is_stopped_says_how_good_it_is(large):
    answer = ohm.kirchhoff_index(large, eps=1e-4, progress=lambda signs, residual: signs >= 64)
    assert answer.stopped
    assert "from 64 random signs" in answer.note
    error = float(answer.note.split()[2])
    truth = float(ohm.kirchhoff_index(large).value)
    assert float(answer.value) == pytest.approx(truth, rel=5 * error)


def test_an_embedding_that_is_stopped_lacks_the_columns_not_begun(large):
    dim = 600
    answer = ohm.resistive_embedding(large, dim, progress=lambda layers, residual: layers > 20)
    assert answer.stopped
    assert answer.value.shape == (1500, dim)
    assert answer.residual == 1.0
    assert answer.value[:, 0].any()
    assert not answer.value[:, -1].any()
