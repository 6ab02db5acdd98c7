"""The native kernels give the answers of appendix E and of torch, and are used wherever they support the input."""

import pytest
import torch
from torch_geometric.data import Data

from ohmformer import native
from ohmformer.encoding import LinearTransformerPE, engines
from tests.encoding.molecules import batch_of, fuzzed, molecules
from tests.encoding.reference import reference

pytestmark = pytest.mark.skipif(native.active() is None, reason="needs the native library")
STARTS = [{"phi0": "features", "in_features": 5}, {"phi0": "random"}, {"phi0": "index", "max_nodes": 40}]


def both(model, data):
    """The encoding by default and by torch alone, and how often the kernel was called."""
    x = data.x if model.phi0 == "features" else None
    arguments = data.edge_index, data.edge_weight, getattr(data, "batch", None), data.num_nodes, x
    calls, run = [], engines.run_layers

    def counted(*positional, **named):
        calls.append(1)
        return run(*positional, **named)

    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "run_layers", counted)
        ours = model(*arguments)
        with native.used("off"):
            return ours, model(*arguments), len(calls)


@pytest.mark.parametrize("evolve", [False, True])
@pytest.mark.parametrize("start", STARTS)
def test_native_answers_are_those_of_torch(start, evolve):
    batch = batch_of(molecules(300)[-200:])
    order = torch.randperm(batch.edge_index.shape[1], generator=torch.Generator().manual_seed(0))
    batch.edge_index = batch.edge_index[:, order]
    model = LinearTransformerPE(6, seed=1, evolve=evolve, **start).eval()
    ours, in_float32, calls = both(model, batch)
    assert calls == 1
    if start["phi0"] == "random":  # drawn in the model's own precision
        return torch.testing.assert_close(ours, in_float32, atol=2e-5, rtol=0)
    # where B evolves rounding grows, on one molecule to 1.5e-5: in C to one side of the truth, in torch to the other
    truth = both(model.double(), batch)[1]
    for found in (ours, in_float32):
        torch.testing.assert_close(found.double(), truth, atol=2e-5, rtol=0)


@pytest.mark.parametrize("evolve", [False, True])
def test_native_answers_are_finite_and_those_of_torch_on_any_graph(evolve):
    model = LinearTransformerPE(6, evolve=evolve, **STARTS[1]).eval()
    for data in (fuzzed(seed) for seed in range(60)):
        ours, wanted, calls = both(model, data)
        assert calls == (data.num_nodes <= 64 or not evolve)
        assert ours.isfinite().all()
        if data.edge_weight is None:  # weights over twelve decades leave float32 no digit to compare
            torch.testing.assert_close(ours, wanted, atol=1e-3, rtol=0)


def weighted(seed: int, nodes: int) -> Data:
    """A graph with parallel edges and conductances between 0.05 and 20, every edge in both directions."""
    draw = torch.Generator().manual_seed(seed)
    index = torch.randint(0, nodes, (2, 2 * nodes), generator=draw).sort(dim=0).values
    index = index[:, index[0] != index[1]]
    index = torch.cat([index, index[:, :3]], dim=1)
    weight = torch.exp(6 * torch.rand(index.shape[1], generator=draw) - 3)
    return Data(edge_index=torch.cat([index, index.flip(0)], 1), edge_weight=weight.repeat(2), num_nodes=nodes)


@pytest.mark.parametrize("hidden", [8, 5])
@pytest.mark.parametrize(("evolve", "nodes"), [(False, 9), (False, 40), (False, 300), (True, 9), (True, 40), (True, 64)])
def test_native_answers_of_weighted_graphs_are_those_of_appendix_e(evolve, nodes, hidden):
    for seed in range(3):
        data = weighted(seed, nodes)
        options = {"phi0": "index", "max_nodes": nodes, "evolve": evolve, "hidden": hidden, "seed": seed}
        model = LinearTransformerPE(hidden, **options).eval()
        with torch.no_grad():
            model.readout.copy_(torch.eye(hidden))
            ours, _, calls = both(model, data)
            truth = reference(model, data, model.get_parameter("table").double())
        assert calls == 1
        torch.testing.assert_close(ours.double(), truth, atol=1e-4, rtol=0)


def test_doubling_one_edge_s_weight_changes_native_answers():
    data = weighted(0, 20)
    model = LinearTransformerPE(6, phi0="random").eval()
    before, _, _ = both(model, data)
    assert data.edge_weight is not None
    data.edge_weight[[0, len(data.edge_weight) // 2]] *= 2
    after, wanted, calls = both(model, data)
    assert calls == 1
    assert float((after - before).abs().max()) > 1e-3
    torch.testing.assert_close(after, wanted, atol=2e-5, rtol=0)


def test_a_hub_of_thousands_of_edges_is_encoded_as_by_torch():
    leaves = torch.arange(1, 20_001)
    star = Data(edge_index=torch.stack([torch.zeros_like(leaves), leaves]).repeat(1, 2), num_nodes=20_001)
    ours, wanted, calls = both(LinearTransformerPE(6, phi0="random").eval(), star)
    torch.testing.assert_close(ours, wanted, atol=1e-4, rtol=0)
    assert calls == 1


@pytest.mark.parametrize("options", [{"hidden": 9}, {"degrees": "l1"}, {"phi0": "diagonal"}])
def test_what_the_kernel_does_not_support_goes_through_torch(options):
    assert both(LinearTransformerPE(6, **{"phi0": "random", **options}).eval(), batch_of(molecules(5)))[2] == 0


def test_a_kernel_is_taken_up_to_its_limits(monkeypatch):
    batch = batch_of(molecules(5))
    model = LinearTransformerPE(6, phi0="random").eval()
    assert both(model, batch)[2] == 1
    for name, most in (("edges", batch.num_edges - 1), ("nodes", int(batch.ptr.diff().max()) - 1), ("channels", 7)):
        limits = {**native.KERNELS["ohm_encode"].limits, name: most}
        kernel = type("Kernel", (), {"limits": limits})
        monkeypatch.setitem(native.KERNELS, "ohm_encode", kernel)
        assert both(model, batch)[2] == 0
        monkeypatch.undo()


def test_gradients_go_through_torch():
    batch = batch_of(molecules(5))
    model = LinearTransformerPE(6, phi0="random")
    model(batch.edge_index, batch=batch.batch).sum().backward()
    assert model.value.grad is not None
    assert float(model.value.grad.abs().sum()) > 0
