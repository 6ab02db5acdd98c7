"""Probes on models whose answer is known."""

import math

import pytest
import torch

from ohmformer.constructions import scalars
from ohmformer.experiments.learn import checkpoint, probe
from ohmformer.experiments.learn.checkpoint import Checkpoint
from ohmformer.experiments.learn.setting import Setting
from ohmformer.experiments.learn.start import _matrices, lemma
from ohmformer.experiments.learn.tasks import FUNCTIONS
from ohmformer.experiments.learn.train import evaluate, initial_state, train


def lemma_as(model: str, task: str = "electric", layers: int = 3) -> Checkpoint:
    """A lemma laid into matrices."""
    setting = Setting(task, model=model, layers=layers, seeds=1, normalize="features" if task == "heat" else "paper")
    numbers = scalars.from_program(lemma(setting).program(layers)).float()
    built = _matrices(numbers, model, setting.distribution.edges, setting.nodes)
    return Checkpoint(setting, {f"weights.{name}": w[None] for name, w in built.items()}, 0, 1, 0.0)


@pytest.mark.parametrize("task", FUNCTIONS)
@pytest.mark.parametrize("model", ["dense", "efficient"])
def test_a_lemma_laid_into_matrices_is_at_no_distance_from_itself(model, task):
    run = lemma_as(model, task)
    distance = probe.lemma_distance(run, 0, graphs=10)
    assert distance.log_prediction < -20  # its weights are rounded to float32
    assert distance.sensitivity > 1 - 1e-6
    assert distance.weights < 1e-5
    assert distance.identity_share > 1 - 1e-6


@pytest.mark.parametrize("task", FUNCTIONS)
def test_the_response_of_a_lemma_is_its_polynomial(task):
    run = lemma_as("dense", task)
    response = probe.spectral_response(run, 0, graphs=10)
    construction = lemma(run.setting)
    assert response.unexplained < 1e-10
    ones = torch.ones_like(response.eigenvalues)[..., None]
    given = "demand" if task == "electric" else "power" if task == "resistive" else "term"
    *_, plain = construction.plain(torch.diag_embed(response.eigenvalues), {given: ones}, run.setting.layers)
    plain = plain[..., 0]
    scale = (plain * response.target).sum(-1, keepdim=True) / plain.square().sum(-1, keepdim=True)
    torch.testing.assert_close(response.gains, scale * plain, rtol=1e-4, atol=1e-5)


def test_weights_that_differ_by_symmetries_are_at_no_distance():
    setting = Setting("electric", layers=3, init="construction", seeds=1)
    reference = scalars.from_program(lemma(setting).program(3))
    m, n, moves = probe._layer_maps(reference)
    draws = torch.Generator().manual_seed(0)
    bases = torch.eye(2, dtype=torch.float64) + 0.2 * torch.randn(4, 2, 2, generator=draws, dtype=torch.float64)
    bases[0] = torch.tensor([[1.0, 0.3], [0.0, 1.2]])
    bases[-1] = torch.diag(torch.tensor([1.0, 2.5], dtype=torch.float64))
    inverse = torch.linalg.inv(bases[:-1])
    turned = torch.cat(
        [
            (bases[1:] @ m @ inverse - torch.eye(2, dtype=torch.float64)).flatten(1),
            (bases[1:] @ n @ inverse).flatten(1),
            1.3 * moves - torch.tensor([1.0, 0.0], dtype=torch.float64),
        ],
        dim=1,
    )
    values = torch.rand(5, 9, generator=draws, dtype=torch.float64)
    answers = [scalars.response(x, values, normalize_incidence=True) for x in (reference, turned)]
    unit = [x / x.norm(dim=-1, keepdim=True) for x in answers]
    torch.testing.assert_close(unit[0], unit[1])
    assert float((turned - reference).norm() / reference.norm()) > 0.1
    assert probe.weight_distance(turned, reference) < 1e-4


def test_looping_zero_times_changes_nothing_and_looping_a_lemma_is_a_deeper_lemma():
    run = lemma_as("efficient", layers=2)
    assert evaluate(probe.looped(run, 1, 0), 50) == evaluate(run, 50)
    deeper, built = evaluate(probe.looped(run, 2, 2), 50), evaluate(lemma_as("efficient", layers=6), 50)
    assert math.isclose(deeper["log_demand"][0], built["log_demand"][0], rel_tol=1e-5)


def test_training_makes_the_response_fit(tmp_path):
    setting = Setting("resistive", layers=2, init="construction", seeds=1, batch=100)
    before = Checkpoint(setting, initial_state(setting), 0, 1, 0.0)
    train(setting, steps=30, folder=tmp_path)
    errors = [probe.spectral_response(run, 0, graphs=50).error for run in (before, checkpoint.load(tmp_path))]
    assert errors[1] < 0.2 * errors[0]


def test_the_command_writes_pictures_and_a_table(tmp_path):
    from typer.testing import CliRunner

    from ohmformer.apps.command_line.main import app

    train(Setting("electric", layers=2, init="construction", seeds=1, batch=50), steps=10, folder=tmp_path / "functions")
    train(Setting("eigenvectors", layers=2, seeds=1, batch=20), steps=3, folder=tmp_path / "vectors")
    for name in ("functions", "vectors"):
        result = CliRunner().invoke(app, ["dream", str(tmp_path / name)])
        assert result.exit_code == 0, result.output
        assert {"probe.md", "probe.svg", "probe.png", checkpoint.FILE} == {p.name for p in (tmp_path / name).iterdir()}
    result = CliRunner().invoke(app, ["dream", str(tmp_path / "nothing")])
    assert result.exit_code == 2
