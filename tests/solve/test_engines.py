"""Every engine and every implementation of it against LAPACK, on one grid of graphs."""

from typing import Any

import numpy as np
import pytest
import torch

import ohmformer as ohm
from ohmformer import Graph, exact, native
from ohmformer.graph.families import family
from ohmformer.graph.ragged import Matrices
from ohmformer.solve.answer import EigenAnswer
from ohmformer.solve.costs import SMALL, Limits
from ohmformer.solve.engines import ENGINES, TRANSFORMERS, Problem
from ohmformer.solve.engines.base import Part
from ohmformer.solve.plan import make_plan
from tests.solve.test_solve import random_graph
from tests.strategies import demands_for
from tests.test_benchmarks import QUESTIONS

TOL = 1e-8


def torus() -> Graph:
    node = np.arange(400).reshape(20, 20)
    edges = [np.stack([node.ravel(), np.roll(node, 1, axis).ravel()], 1) for axis in (0, 1)]
    return Graph.from_edges(np.concatenate(edges), resistance=np.random.default_rng(0).uniform(0.5, 2, 800))


GRAPHS = {
    "path": family("path", 12, generator=torch.Generator().manual_seed(0)),
    "dense": family("complete", 30, generator=torch.Generator().manual_seed(1), spread=1.0),
    "torus": torus(),
    "two components and isolated nodes": Graph.from_edges([(0, 1), (1, 2), (2, 0), (4, 5)], num_nodes=8),
    "parallel edges": Graph.from_edges([(0, 1), (0, 1), (1, 2)], resistance=[1.0, 2.0, 3.0]),
    "random, 700 nodes": random_graph(700, 3000),
    "batch": Graph.collate([random_graph(n, 2 * n, seed=n) for n in (5, 17, 60, 130)]),
}
VARIANTS = [
    *((name, False) for name in ENGINES),
    ("cubing", True),
    ("chebyshev", True),
    ("conjugate", True),
    ("elimination", True),
]


def part(engine: str, in_c: bool) -> Part:
    return Part(None, engine, in_c, torch.float32, 64, "test")


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize(("engine", "in_c"), VARIANTS)
def test_every_engine_and_implementation_gives_the_potentials_of_lapack(graph, engine, in_c, device):
    g = GRAPHS[graph].to(device)
    if in_c and (native.active() is None or device.type != "cpu"):
        pytest.skip("no native kernels in use")
    limits = native.KERNELS["ohm_invert"].limits
    if in_c and engine == "cubing" and g.width > limits["nodes"]:
        pytest.skip("beyond the limits of the kernel")
    psi = demands_for(g, k=5)
    problem = Problem(g, psi, TOL, part(engine, in_c))
    assert ENGINES[engine].supports(problem) is None
    answer = ENGINES[engine].run(problem)
    truth = exact.potentials(g, psi)
    assert answer.residual <= TOL
    condition = exact.spectrum(g).condition
    torch.testing.assert_close(answer.value, truth, rtol=0, atol=condition * TOL * float(truth.abs().max()))


@pytest.mark.parametrize("engine", TRANSFORMERS)
def test_constructions_as_engines_give_the_potentials_of_lapack(engine, device):
    g = GRAPHS["parallel edges"].to(device)
    psi = demands_for(g, k=5)
    answer = TRANSFORMERS[engine].run(Problem(g, psi, TOL, part(engine, False), trace=True))
    torch.testing.assert_close(answer.value, exact.potentials(g, psi), rtol=0, atol=1e-6)
    assert answer.trace is not None
    assert answer.bound is not None
    assert len(answer.trace) == answer.layers
    assert answer.bound <= TOL
    assert answer.residual <= answer.bound + 1e-14


def test_an_engine_says_what_it_expects():
    many = Graph.from_edges([(0, 1)], num_nodes=8001)
    problem = Problem(many, torch.zeros(8001, 1, dtype=torch.float64), 1e-6, part("cubing", False))
    assert ENGINES["cubing"].supports(problem) == "expected at most 8000 nodes for method='cubing', got 8001"
    with pytest.raises(ValueError, match="expected at most 8000 nodes for a Transformer with method='squaring', got 8001"):
        ohm.potentials(many, {0: 1.0, 1: -1.0}, method="squaring")


def numbers(answer: Any) -> torch.Tensor:
    """The numbers of an answer of any kind that do not depend on signs of eigenvectors."""
    value = answer.eigenvalues if isinstance(answer, EigenAnswer) else answer.value
    return value.entries if isinstance(value, Matrices) else value.resistance if isinstance(value, Graph) else value


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_question_stays_on_its_device_and_is_answered_as_on_the_cpu(question, device):
    g = GRAPHS["batch"]
    psi = demands_for(g, k=2)
    found, here = (numbers(QUESTIONS[question](x, psi.to(x.device))) for x in (g.to(device), g))
    assert found.device.type == device.type
    torch.testing.assert_close(
        found.cpu(), here, rtol=1e-4, atol=1e-4 * float(here[here.isfinite()].abs().max()), equal_nan=True
    )


def test_the_plan_names_an_engine_and_a_reason_for_every_graph_of_a_batch():
    batch = Graph.collate(
        [random_graph(20, 30), random_graph(900, 4000), random_graph(100, 300), random_graph(5000, 20_000)]
    )
    made = ohm.plan(batch, demands=3)
    kernels = native.active() is not None
    beyond_the_kernel = "direct" if kernels else "cubing"
    large = "conjugate" if kernels else "chebyshev"
    assert [made.of(i).engine for i in range(4)] == ["cubing", large, beyond_the_kernel, large]
    assert made.of(0).native == kernels
    assert made.of(3) is not made.of(1)
    assert all(made.of(i).reason for i in range(4))
    assert str(made).count("\n") == len(made.parts)


def test_the_plan_is_part_of_the_answer_and_says_what_answered():
    path = family("path", 20 * SMALL, generator=torch.Generator().manual_seed(0))
    assert ohm.plan(path).parts[0].engine == ("direct" if native.active() is None else "elimination")
    answer = ohm.potentials(path, demands_for(path))
    expected = "direct" if native.active() is None else "elimination"
    assert answer.method == expected
    assert answer.plan is not None
    assert [part.engine for part in answer.plan.parts] == [expected]
    assert "layers at a condition number" in answer.plan.parts[0].reason
    assert answer.note == answer.plan.parts[0].reason
    assert ohm.plan(path, demands=64).parts[0].engine == "direct"


@pytest.mark.parametrize("graph", ["dense", "torus", "random, 700 nodes", "batch"])
def test_answers_say_what_was_predicted_and_what_it_took(graph):
    g = GRAPHS[graph]
    answer = ohm.potentials(g, demands_for(g, k=3))
    assert answer.plan is not None
    assert answer.seconds is not None
    assert 0 < sum(part.took or 0.0 for part in answer.plan.parts) <= answer.seconds
    if native.active() is not None:
        assert all(0 < part.predicted < 1 for part in answer.plan.parts)
    assert "took" in str(answer.plan)
    assert "predicted" in str(ohm.plan(g))
    assert "took" not in str(ohm.plan(g))


@pytest.mark.parametrize("method", ["auto", "chebyshev", "conjugate", "elimination", "direct", "cubing"])
def test_more_of_anything_is_predicted_to_take_longer(method):
    if native.active() is None:
        pytest.skip("without kernels factors are not predicted")
    small, large = random_graph(300, 900), random_graph(3000, 9000)
    costs = [ohm.plan(g, demands=k, method=method).parts[0].predicted for g, k in ((small, 1), (large, 1), (large, 100))]
    assert costs[0] < costs[1]
    assert costs[1] < costs[2] or (method == "cubing" and costs[1] == costs[2])  # an inverse answers for any demands


def test_auto_takes_the_engine_of_the_smallest_prediction():
    if native.active() is None:
        pytest.skip("without kernels factors are not predicted")
    path = family("path", 900, generator=torch.Generator().manual_seed(0))
    for g in (random_graph(700, 3000), random_graph(2000, 2100), path):
        for k in (1, 64):
            others = [
                ohm.plan(g, demands=k, method=m).parts[0].predicted
                for m in ("chebyshev", "conjugate", "elimination", "direct")
            ]
            assert ohm.plan(g, demands=k).parts[0].predicted <= min(others)  # now that all is known of the graph


def test_a_factor_that_does_not_fit_is_refused_in_a_sentence_or_left_to_another_engine(monkeypatch):
    if native.active() is None:
        pytest.skip("SuperLU has its own limits")
    g = random_graph(900, 3000)
    psi, none = demands_for(g), Limits(entries=1000, work=1e3, work_in_python=1e3)
    monkeypatch.setattr("ohmformer.solve.factor.BEARABLE", none)
    monkeypatch.setattr("ohmformer.solve.engines.direct.that_fits", lambda: none)
    with pytest.raises(
        ValueError, match="expected a factor of at most 1000 entries for method='direct', half of the memory"
    ):
        ohm.potentials(g, psi, method="direct")
    assert ohm.potentials(g, psi).method in ("conjugate", "elimination")


def test_a_plan_does_not_solve(monkeypatch):
    for engine in set(map(type, [*ENGINES.values(), *TRANSFORMERS.values()])):
        monkeypatch.setattr(engine, "run", lambda *_: pytest.fail("solved"))
    for g in GRAPHS.values():
        assert make_plan(g, 1, 1e-6).parts


def test_mps_is_refused_with_the_reason():
    class OnMPS(Graph):
        @property
        def device(self) -> torch.device:
            return torch.device("mps")

    g = GRAPHS["path"]
    with pytest.raises(ValueError, match="MPS has no float64"):
        make_plan(OnMPS(g.edge_index, g.resistance, g.batch), 1, 1e-6)
