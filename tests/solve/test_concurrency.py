"""Threads, forked workers, inference mode and Ctrl-C are normal: right answers, or a clean KeyboardInterrupt."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

import ohmformer as ohm
from ohmformer import Graph, exact, native
from ohmformer.solve.engines import chebyshev, chebyshev_native
from tests.solve.test_solve import random_graph
from tests.strategies import demands_for


def test_ten_threads_asking_different_questions_at_once_get_the_answers_of_lapack():
    parts = [random_graph(n, 3 * n, seed=n) for n in (20, 40, 60, 90, 450, 600, 700, 30, 50, 500)]
    barrier = threading.Barrier(len(parts))

    def ask(number: int) -> float:
        g = parts[number]
        psi, truth = demands_for(g, k=20), exact.effective_resistance(g)
        barrier.wait()
        worst = 0.0
        for repeat in range(4):
            with native.used("off") if (number + repeat) % 3 == 0 else threading.Lock():
                phi = ohm.potentials(g, psi, tol=1e-9).value
                pairs = ohm.effective_resistance(g, [(0, 1), (2, 5)], tol=1e-9).value
                heat = ohm.heat_kernel(g, 0.2, psi).value
            exact_phi = exact.potentials(g, psi)
            worst = max(
                worst,
                float((phi - exact_phi).norm() / exact_phi.norm()),
                float((pairs - torch.stack([truth[0, 1], truth[2, 5]])).abs().max()),
                float((heat - exact.heat(g, 0.2) @ psi).norm() / psi.norm()),
            )
        return worst

    with ThreadPoolExecutor(len(parts)) as pool:
        assert max(pool.map(ask, range(len(parts)))) < 1e-5


class IndexedByTensors(TorchDispatchMode):
    """Collects the sizes of results of ``x[i]``, which torch shares among its threads unless they are small."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.take.default):
            self.sizes.append(result.numel())
        return result


@pytest.mark.skipif(native.active() is None, reason="torch alone uses its threads")
def test_questions_about_a_batch_of_small_graphs_never_wait_for_threads_of_torch_to_index():
    batch = Graph.collate([random_graph(10 + i % 30, 60, seed=i) for i in range(400)])
    demand = batch.center(torch.randn(batch.num_nodes, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    assert batch.num_edges > 3 * 4096
    for ask in (
        lambda: ohm.effective_resistance(replace(batch)),
        lambda: ohm.effective_resistance(replace(batch), "all"),
        lambda: ohm.potentials(replace(batch), demand),
    ):
        with IndexedByTensors() as seen:
            ask()
        assert max(seen.sizes, default=0) < 4096


class Resistances(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> torch.Tensor:
        return ohm.effective_resistance(random_graph(20 + i, 60, seed=i), [(0, 1)], tol=1e-9).value


def test_forked_dataloader_workers_answer():
    ohm.effective_resistance([(0, 1), (1, 2)])  # libraries are loaded before the fork
    found = torch.cat(list(DataLoader(Resistances(), num_workers=2, batch_size=1, multiprocessing_context="fork"))).flatten()
    truth = [exact.effective_resistance(random_graph(20 + i, 60, seed=i))[0, 1] for i in range(8)]
    torch.testing.assert_close(found, torch.stack(truth), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("nodes", [30, 700])
def test_in_inference_mode_answers_are_the_same_and_the_graph_can_be_trained_on_afterwards(nodes):
    g = random_graph(nodes, 3 * nodes)
    psi = demands_for(g)
    with torch.inference_mode():
        inside = ohm.potentials(g, psi, tol=1e-9).value.clone()
        ohm.effective_resistance(g, [(0, 1)])
    resistance = g.resistance.clone().requires_grad_()
    for graph in (g, replace(g, resistance=resistance)):
        outside = ohm.potentials(graph, psi, tol=1e-9)
        torch.testing.assert_close(outside.value.detach(), inside, rtol=1e-7, atol=1e-9)
    outside.value.square().sum().backward()
    assert resistance.grad is not None
    assert resistance.grad.isfinite().all()


@pytest.fixture
def interrupted(monkeypatch):
    """Makes the layers of Chebyshev raise KeyboardInterrupt, from the given call on."""

    def from_call(first: int) -> None:
        calls = 0

        def broken(*arguments):
            nonlocal calls
            calls += 1
            if calls >= first:
                raise KeyboardInterrupt
            return work(*arguments)

        work = chebyshev.chebyshev_round
        for module, name in ((chebyshev, "chebyshev_round"), (chebyshev_native, "one_round")):
            monkeypatch.setattr(module, name, broken)

    return from_call


def test_ctrl_c_while_gradients_are_computed_is_raised_and_leaves_no_gradient(interrupted):
    g = random_graph(700, 3000)
    resistance = g.resistance.clone().requires_grad_()
    answer = ohm.potentials(replace(g, resistance=resistance), demands_for(g), tol=1e-5, method="chebyshev")
    interrupted(1)
    with pytest.raises(KeyboardInterrupt):
        answer.value.square().sum().backward()
    assert resistance.grad is None


def test_ctrl_c_in_a_forward_pass_that_records_gradients_is_raised(interrupted):
    g = random_graph(700, 3000)
    interrupted(1)
    with pytest.raises(KeyboardInterrupt):
        ohm.potentials(replace(g, resistance=g.resistance.clone().requires_grad_()), demands_for(g), method="chebyshev")
    stopped = ohm.potentials(g, demands_for(g), method="chebyshev")
    assert stopped.stopped


@pytest.mark.parametrize("nodes", [30, 700])
def test_an_answer_is_freed_without_the_collector(nodes):
    g = random_graph(nodes, 3 * nodes)
    graph = replace(g, resistance=g.resistance.clone().requires_grad_())
    gc.collect()
    gc.disable()
    try:
        answer = ohm.potentials(graph, demands_for(g))
        kept = weakref.ref(answer.value)
        answer.value.sum().backward()
        del answer
        assert kept() is None
    finally:
        gc.enable()


def test_resistances_changed_in_place_are_noticed():
    g = random_graph(700, 3000)
    psi = demands_for(g)
    before = ohm.potentials(g, psi, tol=1e-9).value
    g.resistance.mul_(2.0)
    torch.testing.assert_close(ohm.potentials(g, psi, tol=1e-9).value, 2 * before, rtol=1e-6, atol=1e-9)
    assert isinstance(g, Graph)
