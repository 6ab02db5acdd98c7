"""Long work can be stopped, by what progress answers or by Ctrl-C, and gives the best so far with its residual."""

import ctypes
import re
import signal
from contextlib import suppress

import pytest
import torch

import ohmformer as ohm
from ohmformer import Graph, exact, native
from ohmformer.encoding import LinearTransformerPE
from ohmformer.native import KERNELS, loader
from tests.solve.test_solve import few_demands_by, random_graph
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
    by = few_demands_by(large) if method == "auto" else method
    assert (answer.method, answer.stopped, answer.note) == (by, True, "stopped early")
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

    answer = ohm.effective_resistance(g, eps=0.003, progress=stop)
    assert answer.stopped
    done = int(re.findall(r"from (\d+) random projections", answer.note)[0])
    assert 250 < done < 400
    assert float((answer.value / g.resistance).sum()) == pytest.approx(g.num_nodes - 1, rel=0.05)  # Foster's theorem
    some = torch.arange(0, g.num_edges, 450)
    truth = ohm.effective_resistance(g, g.edge_index.t()[some]).value
    assert float((answer.value[some] / truth - 1).abs().max()) < 5 * (2 / done) ** 0.5  # five standard deviations


def test_a_kirchhoff_index_that_is_stopped_says_how_good_it_is(large):
    answer = ohm.kirchhoff_index(large, eps=2e-3, progress=lambda signs, residual: signs >= 64)
    assert answer.stopped
    assert "from 64 random signs" in answer.note
    assert answer.error is not None
    assert answer.error > 2e-3
    truth = float(ohm.kirchhoff_index(large).value)
    assert float(answer.value) == pytest.approx(truth, rel=answer.error)


def test_an_embedding_that_is_stopped_lacks_the_columns_not_begun(large):
    dim = 600
    answer = ohm.resistive_embedding(large, dim, method="chebyshev", progress=lambda layers, residual: layers > 20)
    assert answer.stopped
    assert answer.value.shape == (1500, dim)
    assert answer.residual == 1.0
    assert answer.value[:, 0].any()
    assert not answer.value[:, -1].any()


@pytest.fixture(scope="module")
def grid():
    node = torch.arange(300 * 300).view(300, 300)
    pairs = [torch.stack([a.flatten(), b.flatten()], 1) for a, b in ((node[:, :-1], node[:, 1:]), (node[:-1], node[1:]))]
    return Graph.from_edges(torch.cat(pairs))


def demand(g):
    psi = torch.zeros(g.num_nodes, 1, dtype=torch.float64)
    psi[0], psi[-1] = 1.0, -1.0
    return psi


@pytest.fixture
def interrupted(monkeypatch):
    """Presses Ctrl-C while a kernel runs on its thread."""
    if native.active() is None:
        pytest.skip("no kernels")
    monkeypatch.setattr(loader, "OFTEN", 0.001)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
    pressed, work = [], loader.Library._run_beside

    def during(name):
        def run(library, function, values):
            if function.func.__name__ != name or pressed:
                return work(library, function, values)
            with native.polled(lambda: pressed.append(name) or signal.raise_signal(signal.SIGINT)):
                return work(library, function, values)

        monkeypatch.setattr(loader.Library, "_run_beside", run)
        return pressed

    yield during
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("kernel", "ask"),
    [
        ("ohm_order", ohm.effective_resistance),
        ("ohm_pattern", ohm.effective_resistance),
        ("ohm_factorise", lambda g: ohm.potentials(g, demand(g), method="direct")),
        ("ohm_select", ohm.effective_resistance),
        ("ohm_eliminate", lambda g: ohm.potentials(g, demand(g))),
        ("ohm_conjugate", lambda g: ohm.potentials(g, demand(g), tol=1e-10)),
    ],
)
def test_ctrl_c_reaches_a_kernel_on_its_way_and_the_next_question_is_answered(grid, interrupted, kernel, ask):
    ohm.forget(grid)
    pressed = interrupted(kernel)
    with suppress(KeyboardInterrupt):
        assert ask(grid).stopped
    assert pressed == [kernel]
    assert ohm.potentials(grid, demand(grid), tol=1e-9).residual < 1e-9


def test_every_long_kernel_ends_early_when_it_is_told_to(monkeypatch):
    if native.active() is None:
        pytest.skip("no kernels")
    flag, work = ctypes.c_int32(0), loader.Library.call
    ended = set()

    def call(library, name, *values):
        work(library, name, *values)
        if KERNELS[name].long:
            copies = [x.clone() if isinstance(x, torch.Tensor) else x for x in values]
            flag.value = 1
            library.functions.stop_when(ctypes.byref(flag))
            try:
                with pytest.raises(native.Stopped):
                    work(library, name, *copies)
            finally:
                library.functions.stop_when(None)
            ended.add(name)

    monkeypatch.setattr(loader.Library, "call", call)
    g = random_graph(700, 2500)
    ohm.potentials(g, demands_for(g), method="elimination")
    ohm.effective_resistance(g, method="direct")
    both = torch.cat([g.edge_index, g.edge_index.flip(0)], dim=1)
    LinearTransformerPE(4)(both, num_nodes=g.num_nodes)
    assert ended == {name for name, kernel in KERNELS.items() if kernel.long}


def test_progress_can_stop_a_factorisation(grid, monkeypatch):
    if native.active() is None:
        pytest.skip("no kernels")
    monkeypatch.setattr(loader, "OFTEN", 0.001)
    ohm.forget(grid)
    answer = ohm.potentials(grid, demand(grid), method="direct", progress=lambda layers, residual: True)
    assert (answer.stopped, answer.residual, answer.layers) == (True, 1.0, 0)
    assert ohm.potentials(grid, demand(grid), method="direct").residual < 1e-6


def test_after_ctrl_c_the_other_graphs_of_a_batch_are_not_begun(large):
    batch = Graph.collate([large, random_graph(5000, 20_000), random_graph(5001, 20_000)])
    told = []

    def interrupt(layers, residual):
        told.append(layers)
        raise KeyboardInterrupt

    answer = ohm.potentials(batch, demands_for(batch), method="chebyshev", tol=1e-9, progress=interrupt)
    assert (answer.stopped, answer.residual, told) == (True, 1.0, [10])
    assert not answer.value[large.num_nodes :].any()
