import pytest
import torch

from ohmformer.experiments.molecules.backbone import EdgeFeatures
from ohmformer.experiments.molecules.batches import Split
from ohmformer.experiments.molecules.config import RunConfig
from ohmformer.experiments.molecules.graph_transformer import GraphTransformer, paper_parameters
from ohmformer.experiments.molecules.model import MoleculeModel
from ohmformer.experiments.molecules.norm import ResidualNorm
from tests.experiments.molecules.reference import transcribed


def test_batches_hold_every_bond_in_both_directions_sorted_by_target(split: Split):
    batch = split.take(torch.tensor([3, 0, 7]))
    assert torch.equal(batch.source[batch.back], batch.target)
    assert torch.equal(batch.target[batch.back], batch.source)
    assert bool((batch.target.diff() >= 0).all())
    assert torch.equal(batch.first_edge, torch.searchsorted(batch.target, torch.arange(len(batch.atom))))
    assert torch.equal(batch.owner[batch.source], batch.owner[batch.target])


def test_the_fast_layers_and_their_gradients_are_the_paper_s(split: Split, device):
    draw = torch.Generator().manual_seed(1)
    torch.manual_seed(1)
    model = GraphTransformer(16, heads=4, layers=3).to(device)
    batch = split.take(torch.arange(len(split))).to(device)
    h, gradient = (torch.randn(len(batch.atom), 16, generator=draw).to(device) for _ in range(2))
    e = torch.randn(len(batch.bond), 16, generator=draw).to(device)
    results = []
    for run in (
        lambda h, e: model.run(h, EdgeFeatures(e), batch.edges, batch.owner),
        lambda h, e: transcribed(model, h, e, batch),
    ):
        model.zero_grad()
        inputs = h.clone().requires_grad_(), e.clone().requires_grad_()
        out = run(*inputs)
        out.backward(gradient)
        grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        results.append((out.detach(), grads | {"h": inputs[0].grad, "e": inputs[1].grad}))
    (fast, fast_grads), (plain, plain_grads) = results
    assert torch.allclose(fast, plain, atol=2e-5)
    assert fast_grads.keys() == plain_grads.keys() == {*dict(model.named_parameters()), "h", "e"}
    for name, grad in plain_grads.items():
        assert torch.allclose(fast_grads[name], grad, atol=2e-4, rtol=1e-3), name


def test_residual_norm_is_torch_s_batch_norm_of_the_sum(device):
    torch.manual_seed(0)
    ours, theirs = ResidualNorm(5).to(device), torch.nn.BatchNorm1d(5).to(device)
    for training in (True, True, False):
        ours.train(training)
        theirs.train(training)
        x, y = torch.randn(7, 5).to(device), torch.randn(7, 5).to(device)
        assert torch.allclose(ours(x, y), theirs(x + y), atol=1e-6)
    for name, value in theirs.state_dict().items():
        assert torch.allclose(ours.state_dict()[name], value), name


@pytest.mark.parametrize(("dataset", "count", "atoms", "columns"), [("zinc", 800_771, 20, 6), ("qm9", 799_747, 15, 3)])
def test_parameter_counts_explain_the_paper_s(dataset: str, count: int, atoms: int, columns: int):
    parts = paper_parameters(dataset)
    assert sum(parts.values()) == count
    config = RunConfig(encoding="lappe", width=128, readout="paper", columns=columns)
    ours = MoleculeModel(config, atoms, 38).parameter_counts()["parameters"]
    assert ours == count - parts["never used"] - parts["last layer's edges, never read"]
    without = MoleculeModel(RunConfig(encoding="none", width=128, readout="paper"), atoms, 38).parameter_counts()[
        "parameters"
    ]
    assert ours - without == 128 * (columns + 1)  # the paper prints 891 for ZINC, where it is 896
