"""Pretraining: the loss falls, a stopped run goes on, and the shipped model is worth its name."""

from itertools import islice

import pytest
import torch

from ohmformer.encoding import (
    LinearTransformerPE,
)
from ohmformer.encoding.pretrain import POWER, GraphTable, Settings, evaluate, power_mean, pretrain, subspace_iteration
from ohmformer.experiments.molecules import bonds, read_smiles
from tests.apps.running import run
from tests.encoding.molecules import ZINC, molecules

ZINC_TEST = ZINC.with_name("zinc_test.smi.gz")


def as_pairs(count):
    return [(d.num_nodes, [(u, v) for u, v in d.edge_index.t().tolist() if u < v]) for d in molecules(count)]


def test_the_shipped_model_is_better_than_subspace_iteration_of_the_same_depth():
    table = GraphTable.of([g for g in as_pairs(689) if g[0] >= 16], "eigenvectors", 6)
    model = LinearTransformerPE.from_pretrained("zinc")
    plain = evaluate(lambda e, **k: subspace_iteration(e, layers=9, k=6, columns=8, **k), table)
    assert model.groups * model.loops == 9
    assert float(evaluate(model, table).mean()) < float(plain.mean())


@pytest.mark.skipif(not ZINC_TEST.exists(), reason="set OHMFORMER_DATA to a folder with zinc_test.smi.gz")
def test_on_zinc_it_is_better_on_every_eigenvector():
    """On molecules that it was not trained on."""
    table = GraphTable.of([bonds(s) for s in islice(read_smiles(ZINC_TEST), 500)], "eigenvectors", 6)
    plain = evaluate(lambda e, **k: subspace_iteration(e, layers=9, k=6, columns=8, **k), table)
    assert bool((evaluate(LinearTransformerPE.from_pretrained("zinc"), table) < plain).all())


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-6])
def test_small_losses_go_on_being_learned(size):
    """In float32 their 32nd powers are zero, and so would be the gradient."""
    losses = (size * torch.tensor([1.0, 0.9, 0.5])).requires_grad_()
    mean = power_mean(losses)
    truth = (losses.detach().double() ** POWER).mean() ** (1 / POWER)
    assert mean.item() == pytest.approx(truth.item(), rel=1e-5)
    (slope,) = torch.autograd.grad(mean, losses)
    expected = (losses.detach().double() / truth) ** (POWER - 1) / 3
    torch.testing.assert_close(slope.double(), expected, rtol=1e-4, atol=1e-12)


@pytest.mark.parametrize("targets", ["eigenvectors", "multi"])
def test_pretraining_lowers_the_loss(targets):
    table = GraphTable.of(as_pairs(200), targets, 3)
    model = LinearTransformerPE(3, phi0="random" if targets == "eigenvectors" else "diagonal")
    first = pretrain(model, table, Settings(targets, epochs=1, batch=50, lr=0.0))
    assert pretrain(model, table, Settings(targets, epochs=6, batch=50, lr=0.02)) < first


@pytest.mark.parametrize("targets", ["eigenvectors", "multi"])
def test_pretraining_that_was_stopped_goes_on_to_the_same_bits(tmp_path, targets):
    table = GraphTable.of(as_pairs(60), targets, 3)
    settings = Settings(targets, epochs=4, batch=20)

    def fresh():
        return LinearTransformerPE(3, phi0="random" if targets == "eigenvectors" else "diagonal", groups=2, loops=1)

    def stop(done, steps, loss):
        if done == 8:
            raise KeyboardInterrupt

    torch.manual_seed(1)
    whole, stopped, resumed = fresh(), fresh(), fresh()
    loss = pretrain(whole, table, settings)
    with pytest.raises(KeyboardInterrupt):
        pretrain(stopped, table, settings, progress=stop, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="got other settings; remove it to begin anew"):
        pretrain(fresh(), table, Settings(targets, epochs=5, batch=20), checkpoint=tmp_path)
    seen = []
    assert pretrain(resumed, table, settings, progress=lambda *x: seen.append(x[0]), checkpoint=tmp_path) == loss
    assert seen == list(range(7, 13))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}


def test_pretrain_writes_a_model_that_loads(tmp_path):
    source = tmp_path / "m.smi"
    source.write_text("\n".join(["CCCCCCCO", "c1ccccc1CCO", "CC(=O)NCCCC"] * 4))
    out = tmp_path / "model"
    options = ("--first", 9, "--validate", 3, "--epochs", 2, "--batch", 3, "--groups", 2, "--dim", 3)
    result = run("pretrain", source, "--out", out, *options)
    assert result.exit_code == 0, result.output
    assert LinearTransformerPE.from_pretrained(out).groups == 2
