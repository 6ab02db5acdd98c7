"""The forward passes that are trained are those of the library's models, and of the paper."""

import pytest
import torch
from torch import Tensor

from ohmformer.constructions import newton, scalars
from ohmformer.experiments.learn import start
from ohmformer.experiments.learn.checkpoint import Checkpoint
from ohmformer.experiments.learn.models import ANSWERS, features
from ohmformer.experiments.learn.setting import Setting
from ohmformer.experiments.learn.start import initial_weights, lemma
from ohmformer.experiments.learn.tasks import EIGENVECTORS, FUNCTIONS, Problems, demand_loss, draw, generator
from ohmformer.experiments.learn.train import answers
from ohmformer.transformer.efficient import EfficientTransformer
from ohmformer.transformer.normalize import FROBENIUS

SETTINGS = [
    Setting("electric", model="dense", layers=3, seeds=2),
    Setting("heat", graphs="fc", model="dense", layers=2, seeds=2, normalize="features"),
    Setting("eigenvectors", model="dense", layers=3, seeds=2),
    Setting("resistive", layers=4, seeds=2),
    Setting("heat", layers=2, seeds=2, normalize="features"),
    Setting("eigenvectors", graphs="fc", layers=3, seeds=2),
]


def well_inside(setting: Setting) -> dict[str, Tensor]:
    """Initial weights, without the zeros that would hide an error."""
    draw = torch.Generator().manual_seed(7)
    weights = {name: w.double() for name, w in initial_weights(setting).items()}
    for name in ("value", "skip"):
        weights[name] += 0.1 * torch.randn(weights[name].shape, generator=draw, dtype=torch.float64)
    return weights


def in_float64(setting: Setting) -> tuple[dict[str, Tensor], Problems]:
    weights = well_inside(setting)
    generators = [generator(seed, 0) for seed in setting.all_seeds]
    return weights, draw(setting.task, setting.distribution, generators, 3, torch.float64)


def transcription(setting: Setting, weights: dict[str, Tensor], seed: int, incidence: Tensor, phi: Tensor) -> Tensor:
    """The paper's dynamics to the letter: Z is features x nodes, the efficient model has its blocks written out."""
    edges, width = incidence.shape[1], phi.shape[1]
    z = torch.cat([incidence, phi], dim=1).T
    for l in range(setting.layers):
        value, query, key, skip = (weights[name][seed, l] for name in ("value", "query", "key", "skip"))
        if setting.model == "efficient":
            alphas = weights["alphas"][seed, l]
            value, query, key, skip = (
                torch.block_diag(a * torch.eye(edges, dtype=torch.float64), w)
                for a, w in zip(alphas, (value, query, key, skip), strict=True)
            )
        z = z + value @ z @ z.T @ query.T @ key @ z + skip @ z
        top, bottom = z[:edges], z[edges:]
        if setting.normalize == "paper":
            top = top / top.norm()
        bottom = bottom / (bottom.norm(dim=1, keepdim=True) if setting.task == EIGENVECTORS else bottom.norm())
        z = torch.cat([top, bottom])
    return z[edges + width // 2 :].T


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
def test_training_runs_the_papers_dynamics(setting):
    weights, batch = in_float64(setting)
    fast = ANSWERS[setting.model](weights, batch, setting.normalization)
    phi = features(weights, batch)
    for seed in range(setting.seeds):
        for i in range(3):
            direct = transcription(setting, weights, seed, batch.incidence[seed, i], phi[seed, i])
            torch.testing.assert_close(fast[seed, i], direct, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
def test_training_runs_the_librarys_models(setting):
    weights, batch = in_float64(setting)
    fast = ANSWERS[setting.model](weights, batch, setting.normalization)
    run = Checkpoint(setting, {f"weights.{name}": w for name, w in weights.items()}, 0, 1, 0.0)
    for seed in range(setting.seeds):
        demands = None if batch.demands is None else batch.demands[seed, None]
        own = Problems(batch.incidence[seed, None], batch.gram[seed, None], demands, batch.target[seed, None])
        torch.testing.assert_close(answers(run, seed, own), fast[seed], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("task", FUNCTIONS)
@pytest.mark.parametrize("graphs", ["csl", "fc"])
def test_scalars_on_eigenvalues_are_the_efficient_transformer(task, graphs):
    setting = Setting(task, graphs, layers=4, init="construction")
    numbers = initial_weights(setting)["scalars"][0, 0]
    batch = draw(task, setting.distribution, [generator(5, 0)], 4, torch.float64)
    assert batch.demands is not None
    model = EfficientTransformer(scalars.to_program(numbers, setting.normalization))
    answer = model(batch.gram[0], {scalars.DEMAND: batch.demands[0]})[scalars.ANSWER]
    values, vectors = torch.linalg.eigh(batch.gram[0])
    values, vectors = values[:, 1:], vectors[..., 1:]
    normalize = setting.normalization.incidence == "frobenius"
    response = scalars.response(numbers, values, normalize_incidence=normalize)
    spectral = vectors @ (response[..., None] * (vectors.mT @ batch.demands[0]))
    size = spectral.norm(dim=(1, 2), keepdim=True) / answer.norm(dim=(1, 2), keepdim=True)
    torch.testing.assert_close(spectral, size * answer, rtol=1e-8, atol=1e-10)
    squares = (vectors.mT @ batch.demands[0]).mT.square()
    loss = scalars.loss(response, FUNCTIONS[task](values), squares)
    torch.testing.assert_close(loss, demand_loss(answer, batch.target[0]), rtol=1e-8, atol=1e-14)


@pytest.mark.parametrize("task", FUNCTIONS)
def test_a_lemma_survives_the_way_through_scalars(task):
    setting = Setting(task, layers=3, init="construction")
    construction = lemma(setting)
    numbers = scalars.from_program(construction.program(3))
    batch = draw(task, setting.distribution, [generator(0, 0)], 2, torch.float64)
    assert batch.demands is not None
    model = EfficientTransformer(scalars.to_program(numbers, construction.program(3).normalization))
    answer = model(batch.gram[0], {scalars.DEMAND: batch.demands[0]})[scalars.ANSWER]
    given = "demand" if task == "electric" else "power" if task == "resistive" else "term"
    *_, plain = construction.plain(batch.gram[0], {given: batch.demands[0]}, 3)
    torch.testing.assert_close(answer, plain)


@pytest.mark.parametrize("normalize", [True, False])
def test_gauss_newton_agrees_with_automatic_differentiation(normalize):
    setting = Setting("electric", layers=3, init="construction", seeds=1)
    numbers = initial_weights(setting)["scalars"][:, 0]
    values = torch.linalg.eigvalsh(draw("electric", setting.distribution, [generator(0, 0)], 6, torch.float64).gram)[..., 1:]
    squares = torch.randn(1, 6, 10, 9, generator=generator(0, 1), dtype=torch.float64).square()
    target = 1 / values
    answer, jacobian = scalars.response_and_jacobian(numbers, values, normalize_incidence=normalize)
    _, half = newton._normal_equations(answer, jacobian, target, squares)
    x = numbers.clone().requires_grad_()
    response = scalars.response(x[:, None], values, normalize_incidence=normalize)
    (gradient,) = torch.autograd.grad(scalars.loss(response, target, squares).sum(), x)
    torch.testing.assert_close(2 * half / 60, gradient.flatten(1), rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("model", ["dense", "efficient"])
def test_a_layer_starts_as_the_identity_so_that_adding_one_changes_no_answer(model):
    setting = Setting("eigenvectors", model=model, layers=5, seeds=1)
    weights = {name: w.double() for name, w in initial_weights(setting).items()}
    batch = draw(setting.task, setting.distribution, [generator(0, 0)], 3, torch.float64)
    answer = ANSWERS[model](weights, batch, setting.normalization)[0]
    given = weights["start"][0, :, setting.nodes :]
    torch.testing.assert_close(answer, (given / given.norm(dim=0)).expand_as(answer))


@pytest.mark.parametrize("model", ["dense", "efficient"])
def test_corollary_7_with_its_orthogonalisation_is_one_formula_a_layer(model):
    setting = Setting("eigenvectors", model=model, layers=1, seeds=1, init="construction")
    built = {name: w[None].double() for name, w in start._corollary_7(setting).items()}
    built["start"] = torch.randn(1, 10, 20, generator=generator(0, 0), dtype=torch.float64)
    built["start"] /= built["start"].norm(dim=1, keepdim=True)
    batch = draw(setting.task, setting.distribution, [generator(3, 0)], 1, torch.float64)
    answer = ANSWERS[model](built, batch, setting.normalization)[0, 0]
    laplacian, phi = batch.gram[0, 0], built["start"][0, :, 10:]
    lmax = start.sampled_spectrum(setting.distribution).lmax
    for i in range(10):
        expected = phi[:, i] - laplacian @ phi[:, i] / lmax
        for j in range(10):
            if j != i:
                expected = expected - (1 - j / 10) * phi[:, j] * (phi[:, j] @ phi[:, i])
        torch.testing.assert_close(answer[:, i], expected / expected.norm(), rtol=1e-6, atol=1e-6)


def test_from_a_lemma_the_expected_gradient_of_full_matrices_is_a_multiple_of_the_identity_in_every_block():
    """What ``scalars.py`` argues by symmetry, measured: off-diagonal parts shrink as the square root of the graphs."""
    setting = Setting("electric", layers=2, seeds=1, init="construction", model="dense")
    numbers = scalars.from_program(lemma(setting).program(2)).float()
    built = {name: w[None].double() for name, w in start._matrices(numbers, "efficient", 20, 10).items()}
    spread = []
    for graphs in (200, 12800):
        weights = {name: w.clone().requires_grad_() for name, w in built.items()}
        batch = draw("electric", setting.distribution, [generator(0, 0)], graphs, torch.float64)
        loss = demand_loss(ANSWERS["efficient"](weights, batch, FROBENIUS), batch.target).sum()
        gradients = dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))
        assert float(gradients["query"].abs().max()) == 0.0
        assert float(gradients["key"].abs().max()) == 0.0
        blocks = gradients["value"][0].view(2, 2, 10, 2, 10).permute(0, 1, 3, 2, 4)
        mean = blocks.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None] * torch.eye(10, dtype=torch.float64)
        spread.append(float((blocks - mean).norm() / blocks.norm()))
    assert spread[1] < spread[0] / 4  # 8 in expectation
