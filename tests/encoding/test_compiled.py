"""Compiled inference gives the answers of torch, on any graph, and is used only where it can be."""

import shutil

import pytest
import torch
from torch_geometric.data import Data

from ohmformer import native
from ohmformer.encoding import LinearTransformerPE
from ohmformer.encoding import compiled as engine
from tests.encoding.molecules import batch_of, fuzzed, molecules

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
STARTS = [{"phi0": "features", "in_features": 5}, {"phi0": "random"}, {"phi0": "index", "max_nodes": 40}]


@pytest.fixture
def compiled():
    with native.used():
        yield


def both(model, data):
    """By compiled code, which must have been used, and by torch."""
    x = data.x if model.phi0 == "features" else None
    arguments = data.edge_index, data.edge_weight, getattr(data, "batch", None), data.num_nodes, x
    calls, encode = [], engine.encode

    def counted(*positional, **named):
        calls.append(1)
        return encode(*positional, **named)

    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "encode", counted)
        ours = model(*arguments)
        with native.used(False):
            return ours, model(*arguments), len(calls)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("evolve", [False, True])
@pytest.mark.parametrize("start", STARTS)
def test_compiled_answers_are_those_of_torch(start, evolve):
    batch = batch_of(molecules(300)[-200:])
    order = torch.randperm(batch.edge_index.shape[1], generator=torch.Generator().manual_seed(0))
    batch.edge_index = batch.edge_index[:, order]
    ours, wanted, calls = both(LinearTransformerPE(6, seed=1, evolve=evolve, **start).eval(), batch)
    torch.testing.assert_close(ours, wanted, atol=2e-5, rtol=0)
    assert calls == 1


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("evolve", [False, True])
def test_compiled_answers_are_finite_and_those_of_torch_on_any_graph(evolve):
    model = LinearTransformerPE(6, evolve=evolve, **STARTS[1]).eval()
    for data in (fuzzed(seed) for seed in range(60)):
        ours, wanted, calls = both(model, data)
        assert calls == (data.num_nodes <= 64 or not evolve)
        assert ours.isfinite().all()
        if data.edge_weight is None:  # weights over twelve decades leave float32 no digit to compare
            torch.testing.assert_close(ours, wanted, atol=1e-3, rtol=0)


@pytest.mark.usefixtures("compiled")
def test_a_hub_of_thousands_of_edges_is_no_matter():
    leaves = torch.arange(1, 20_001)
    star = Data(edge_index=torch.stack([torch.zeros_like(leaves), leaves]).repeat(1, 2), num_nodes=20_001)
    ours, wanted, calls = both(LinearTransformerPE(6, phi0="random").eval(), star)
    torch.testing.assert_close(ours, wanted, atol=1e-4, rtol=0)
    assert calls == 1


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("options", [{"hidden": 5}, {"degrees": "l1"}, {"phi0": "diagonal"}])
def test_what_the_source_is_not_written_for_goes_through_torch(options):
    assert both(LinearTransformerPE(6, **{"phi0": "random", **options}).eval(), batch_of(molecules(5)))[2] == 0


@pytest.mark.usefixtures("compiled")
def test_gradients_go_through_torch():
    batch = batch_of(molecules(5))
    model = LinearTransformerPE(6, phi0="random")
    model(batch.edge_index, batch=batch.batch).sum().backward()
    assert model.value.grad is not None
    assert float(model.value.grad.abs().sum()) > 0


def test_it_is_used_only_when_asked_for():
    model = LinearTransformerPE(6, phi0="random").eval()
    assert both(model, batch_of(molecules(5)))[2] == 0
    native.enable()
    assert both(model, batch_of(molecules(5)))[2] == 1
    native.disable()
    assert both(model, batch_of(molecules(5)))[2] == 0


def test_a_missing_compiler_is_one_sentence(monkeypatch):
    native._compiled.cache_clear()
    monkeypatch.setenv("CC", "false")
    with pytest.raises(OSError, match=r"expected false to compile sparse\.c, small\.c, .* and on_spectrum\.c"):
        native.enable()
    monkeypatch.setenv("CC", "")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(OSError, match="expected a C compiler"):
        native.enable()
