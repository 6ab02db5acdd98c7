"""Graphs, targets and losses against independent transcriptions."""

import math

import pytest
import torch

from ohmformer import exact
from ohmformer.experiments.learn.graphs import GraphDistribution
from ohmformer.experiments.learn.setting import Setting, seconds
from ohmformer.experiments.learn.tasks import (
    FUNCTIONS,
    LOSSES,
    TASKS,
    demand_loss,
    draw,
    eigenvector_losses,
    frobenius_loss,
    generator,
)
from ohmformer.graph import Graph


def graph_of(incidence: torch.Tensor) -> Graph:
    """The graph of an incidence matrix, read off its columns."""
    columns = [column for column in incidence.T if bool((column != 0).any())]
    edges = [(int(column.argmin()), int(column.argmax())) for column in columns]
    resistance = [1 / float(column.max()) ** 2 for column in columns]
    return Graph.from_edges(edges, num_nodes=len(incidence), resistance=resistance)


@pytest.mark.parametrize("name", ["csl", "fc", "grid", "erdos-renyi", "tree"])
def test_a_batch_is_graphs_of_the_family_with_resistances_in_range(name):
    distribution = GraphDistribution(name, 10)
    for incidence in distribution.incidence(20, generator(0, 0)):
        graph = graph_of(incidence)
        assert graph.num_components == 1
        assert bool(((graph.resistance >= math.exp(-2)) & (graph.resistance <= math.exp(2))).all())
        torch.testing.assert_close(graph.laplacian(), incidence @ incidence.T)


def test_csl_has_two_topologies_of_20_edges_and_fc_one_of_45():
    assert GraphDistribution("csl").patterns.shape == (2, 10, 20)
    assert GraphDistribution("fc").patterns.shape == (1, 10, 45)


def test_log_resistances_are_uniform():
    incidence = GraphDistribution("fc").incidence(400, generator(0, 0))
    logs = -2 * incidence.amax(dim=1).log()  # of the positive entry of every column
    assert abs(float(logs.mean())) < 0.05
    assert abs(float(logs.var()) - 4 / 3) < 0.05


def test_fresh_at_every_step_and_the_same_for_the_same_step():
    first, again, later, other = (
        GraphDistribution("csl").incidence(4, generator(*key)) for key in ((0, 0), (0, 0), (0, 1), (1, 0))
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, later)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("task", FUNCTIONS)
def test_targets_are_the_exact_functions_up_to_scale(task):
    batch = draw(task, GraphDistribution("csl"), [generator(0, 0), generator(1, 0)], 5, torch.float64)
    assert batch.demands is not None
    for seed in range(2):
        for i in range(5):
            graph = graph_of(batch.incidence[seed, i])
            f = {"electric": exact.pinv, "resistive": exact.sqrt_pinv, "heat": lambda g: exact.heat(g, 0.5)}[task]
            answer = f(graph) @ batch.demands[seed, i]
            torch.testing.assert_close(answer / answer.norm(), batch.target[seed, i])


def test_losses_are_the_papers_formulas_written_out():
    draws = torch.Generator().manual_seed(0)
    answer, target = (torch.randn(3, 6, 4, generator=draws, dtype=torch.float64) for _ in range(2))
    per_demand, per_matrix = [], []
    each = torch.zeros(4, dtype=torch.float64)
    for phi, truth in zip(answer, target, strict=True):
        per_matrix.append(((phi / phi.norm() - truth / truth.norm()) ** 2).sum())
        for i in range(4):
            a, b = phi[:, i] / phi[:, i].norm(), truth[:, i] / truth[:, i].norm()
            per_demand.append(((a - b) ** 2).sum())
            each[i] += min(((a - b) ** 2).sum(), ((a + b) ** 2).sum()) / 3
    torch.testing.assert_close(demand_loss(answer, target), torch.stack(per_demand).mean())
    torch.testing.assert_close(frobenius_loss(answer, target), torch.stack(per_matrix).mean())
    unit = target / target.norm(dim=-2, keepdim=True)
    torch.testing.assert_close(eigenvector_losses(answer, unit), each)


def test_losses_of_eigenvectors_ignore_signs_and_losses_of_functions_ignore_scale():
    batch = draw("eigenvectors", GraphDistribution("csl"), [generator(0, 0)], 3, torch.float64)
    signs = torch.tensor([1.0, -1.0] * 5, dtype=torch.float64)
    for name in ("1-5", "1-10"):
        assert float(LOSSES[name](signs * batch.target, batch.target)) < 1e-25
    for name in ("demand", "frobenius"):
        assert float(LOSSES[name](7.0 * batch.target, batch.target)) < 1e-25


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"task": "magnetic"}, "expected task among electric"),
        ({"task": "heat", "model": "softmax"}, "expected model among efficient, dense"),
        ({"task": "heat", "loss": "1-5"}, "expected loss among demand, frobenius"),
        ({"task": "eigenvectors", "loss": "demand"}, "expected loss among 1-5, 1-10"),
        ({"task": "eigenvectors", "nodes": 8}, "expected at least 10 nodes"),
        ({"task": "heat", "layers": 0}, "expected layers >= 1, got 0"),
        ({"task": "heat", "graphs": "snark"}, "expected a family among"),
        ({"task": "heat", "spread": -1.0}, "expected a spread"),
        ({"task": "heat", "first_seed": -1}, "expected a seed >= 0"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_with_one_message(wrong, message):
    with pytest.raises(ValueError, match=message):
        Setting(**wrong)


def test_budgets_are_read_with_their_units_or_refused():
    assert [seconds(text) for text in ("40s", "5m", "1h", "12")] == [40.0, 300.0, 3600.0, 12.0]
    for text in ("", "soon", "-3s", "nan"):
        with pytest.raises(ValueError, match="expected a budget"):
            seconds(text)


def test_names_of_settings_tell_them_apart():
    settings = [Setting(task, seeds=seeds, layers=layers) for task in TASKS for seeds in (1, 3) for layers in (1, 2)]
    assert len({setting.name for setting in settings}) == len(settings)
