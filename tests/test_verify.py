import json

import pytest
import torch
from typer.testing import CliRunner

from ohmformer import verify as module
from ohmformer.apps.command_line.main import app
from ohmformer.constructions import Chebyshev, GradientDescent, NewtonSchulzRoot, SubspaceIteration
from ohmformer.graph.families import Named, zoo
from ohmformer.transformer import EfficientTransformer

NAMES = ("ring-8-weighted", "barbell-8", "ring+path+node-weighted")


def few(device=None):
    return [Named(named.name, named.graph.to(device)) for named in zoo(1) if named.name in NAMES]


@pytest.fixture(scope="module")
def result(device) -> module.Verification:
    return module.verify(1, graphs=few(device))


def test_nothing_is_violated(result):
    assert result.holds
    assert result.graphs == 3
    assert all(row.violations == 0 for row in result.rows)


def test_every_construction_is_verified(result):
    assert {row.statement for row in result.rows} >= {
        "Lemma 1", "Lemma 2", "Lemma 3", "Lemma 4", "Lemma 5", "Lemma 6", "Corollary 7", "Lemma 8", "ours",
    }  # fmt: skip
    assert len(result.rows) == 25


def test_transformer_equals_plain_iteration_and_dense_equals_efficient_to_1e_10(result):
    assert max(row.plain for row in result.rows) <= 1e-10
    assert max(row.dense for row in result.rows) <= 1e-10


def test_progress_is_told_graph_by_graph():
    told = []
    module.verify(0, graphs=few()[:1], progress=lambda *step: told.append(step))
    assert told == [(0, 1, "ring-8-weighted"), (1, 1, "done")]


def without_projection(self, g, psi):
    return {"root": g.identity() / self.spectrum.lmax**0.5}


@pytest.mark.parametrize(
    ("broken", "blamed"),
    [
        pytest.param(
            lambda patch: patch.setattr(GradientDescent, "error_bound", GradientDescent.printed_bound),
            {"gradient descent", "lemma 1, molecules"},
            id="the paper's bound of Lemma 1",
        ),
        pytest.param(
            lambda patch: patch.setattr(Chebyshev, "omegas", lambda self, layers: [1.01] * layers),
            {"chebyshev"},
            id="a wrong coefficient",
        ),
        pytest.param(
            lambda patch: patch.setattr(NewtonSchulzRoot, "inputs", without_projection),
            {"newton-schulz root", "scaled newton-schulz"},
            id="an input without projection",
        ),
        pytest.param(
            lambda patch: patch.setattr(SubspaceIteration, "steps", lambda self, layers: 2 * layers),
            {"top k", "bottom k", "top k, parallel heads", "top k, newton-schulz", "top k, 3 products",
             "bottom k through L+", "lemma 6, molecules"},
            id="an eigenvector bound that promises too much",
        ),
    ],
)  # fmt: skip
def test_a_planted_mistake_is_found(monkeypatch, broken, blamed):
    broken(monkeypatch)
    result = module.verify(1, graphs=few()[:2])
    assert not result.holds
    assert {check.construction for check in result.violated} <= blamed
    assert result.violated


def test_a_transformer_that_is_not_its_algorithm_is_found(monkeypatch):
    forward = EfficientTransformer.forward

    def slightly_off(self, gram, features, **options):
        return forward(self, gram * (1 + 1e-8), features, **options)

    monkeypatch.setattr(EfficientTransformer, "forward", slightly_off)
    result = module.verify(1, graphs=few()[:1])
    assert not result.holds
    assert any(check.plain > 1e-10 and check.dense > 1e-10 for check in result.violated)


def test_nan_is_a_violation():
    nan = float("nan")
    for error, plain, dense in ((nan, 0.0, 0.0), (0.0, nan, 0.0), (0.0, 0.0, nan)):
        check = module.Check("c", "s", "g", 1, error=error, bound=1.0, rounding=0.0, plain=plain, dense=dense)
        assert not check.holds


# ------------------------------------------------------------------------------------------------ command line


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def small_zoo(monkeypatch):
    threads = torch.get_num_threads()
    monkeypatch.setattr(module, "zoo", lambda seed: few()[:1])
    yield
    torch.set_num_threads(threads)


def test_verify_prints_json_and_nothing_else(small_zoo):
    outcome = run("verify", "--json", "--seed", "5")
    assert outcome.exit_code == 0
    data = json.loads(outcome.stdout)
    assert (data["seed"], data["violations"], data["holds"], len(data["rows"])) == (5, 0, True, 25)
    assert set(data["rows"][0]) >= {"construction", "layers", "error", "bound", "ratio", "plain", "dense"}


def test_verify_prints_a_table_that_fits_eighty_columns(small_zoo):
    outcome = run("verify")
    assert outcome.exit_code == 0
    assert "0 violations" in outcome.stdout
    assert max(map(len, outcome.stdout.splitlines())) <= 80
    assert "…" not in outcome.stdout
    for word in ("gradient descent", "bottom k through L+", "Corollary 7"):
        assert word in outcome.stdout


def test_verify_exits_with_1_if_anything_is_violated(small_zoo, monkeypatch):
    monkeypatch.setattr(GradientDescent, "error_bound", GradientDescent.printed_bound)
    outcome = run("verify")
    assert outcome.exit_code == 1
    assert "violated" in outcome.stdout


def test_demo_solves_a_circuit_and_leaves_a_picture(tmp_path):
    outcome = run("demo", "--out", str(tmp_path / "runs"))
    assert outcome.exit_code == 0, outcome.output
    # the same bridge by networkx
    import networkx as nx

    from ohmformer.graph.draw import wheatstone

    graph, *_ = wheatstone()
    expected = nx.resistance_distance(nx.Graph(graph.to_networkx()), 0, 5, weight="resistance")
    assert f"{expected:.6f} ohm" in " ".join(outcome.stdout.split())
    files = list((tmp_path / "runs").iterdir())
    assert [f.name for f in files] == ["circuit.png"]
    assert files[0].read_bytes().startswith(b"\x89PNG")
