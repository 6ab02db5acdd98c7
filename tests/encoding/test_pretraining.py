"""Pretraining: the loss falls, a stopped run goes on, and the shipped model is worth its name."""

from itertools import islice

import pytest
import torch

from ohmformer.encoding import LinearTransformerPE
from ohmformer.encoding.pretrain import (
    GraphTable,
    Settings,
    evaluate,
    pretrain,
    start_as_subspace_iteration,
    subspace_iteration,
)
from ohmformer.experiments.molecules import bonds, read_smiles
from tests.apps.running import run
from tests.encoding.molecules import ZINC, molecules

ZINC_TEST = ZINC.with_name("zinc_test.smi.gz")


def as_pairs(count):
    return [(d.num_nodes, [(u, v) for u, v in d.edge_index.t().tolist() if u < v]) for d in molecules(count)]


SHIPPED = {"zinc": 9, "zinc-27": 27}


@pytest.mark.parametrize(("name", "layers"), SHIPPED.items())
def test_shipped_models_load_by_name(name, layers):
    model = LinearTransformerPE.from_pretrained(name)
    assert model.groups * model.loops == layers


def test_the_shipped_model_is_better_than_subspace_iteration_of_the_same_depth():
    """On molecules of another kind; ``zinc-27`` is worse there (results/pretraining.md)."""
    table = GraphTable.of([g for g in as_pairs(689) if g[0] >= 16], "eigenvectors", 6)
    plain = evaluate(lambda e, **k: subspace_iteration(e, layers=9, k=6, columns=8, **k), table)
    assert float(evaluate(LinearTransformerPE.from_pretrained("zinc"), table).mean()) < float(plain.mean())


@pytest.mark.skipif(not ZINC_TEST.exists(), reason="set OHMFORMER_DATA to a folder with zinc_test.smi.gz")
@pytest.mark.parametrize(("name", "layers"), SHIPPED.items())
def test_on_zinc_they_are_better_in_the_mean(name, layers):
    """On molecules that they were not trained on."""
    table = GraphTable.of([bonds(s) for s in islice(read_smiles(ZINC_TEST), 500)], "eigenvectors", 6)
    plain = evaluate(lambda e, **k: subspace_iteration(e, layers=layers, k=6, columns=8, **k), table)
    assert float(evaluate(LinearTransformerPE.from_pretrained(name), table).mean()) < float(plain.mean())


def test_training_starts_at_the_layers_of_subspace_iteration():
    model = LinearTransformerPE(6, norm=None, phi0="random", groups=9, loops=1)
    start_as_subspace_iteration(model)
    for layer in model._layers():
        assert layer.skip.item() == pytest.approx(2, abs=0.1)
        assert (layer.value * layer.gram).tolist() == pytest.approx([-1.0] * 8, abs=0.2)


def test_last_layers_are_those_of_another_model():
    short, long = (LinearTransformerPE(6, norm=None, phi0="random", groups=n, loops=1, seed=n) for n in (2, 5))
    start_as_subspace_iteration(long, short)
    assert torch.equal(long.value[3:], short.value)
    assert torch.equal(long.readout, short.readout)
    with pytest.raises(ValueError, match=r"expected last layers with dim=6, hidden=8, loops=1 and at most 2 groups, got"):
        start_as_subspace_iteration(short, long)


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
    again = ("pretrain", source, "--out", tmp_path / "longer", *options, "--groups", 3, "--last", out)
    assert run(*again).exit_code == 0
    assert LinearTransformerPE.from_pretrained(tmp_path / "longer").groups == 3
    assert "expected --last with eigenvectors and random starts" in run(*again, "--targets", "multi").output
