"""The default encoding: learned functions of the Laplacian, read at nodes, edges and pairs, with spectra kept or not."""

import copy
import subprocess
import sys

import networkx as nx
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric import typing
from torch_geometric.data import Batch, Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput
from torch_geometric.utils import to_undirected

from ohmformer import native
from ohmformer.encoding import AddLinearTransformerPE, AddSpectrum, LinearTransformerPE
from ohmformer.encoding.norm import RunningNorm
from ohmformer.encoding.spectra import Spectra
from tests.encoding.molecules import batch_of, fuzzed, molecules, relabelled

ALL = ("nodes", "edges", "pairs")


def trained(**options) -> LinearTransformerPE:
    """An encoder whose channels interact and whose norms have seen molecules, in evaluation."""
    model = LinearTransformerPE(16, read=ALL, **options)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in (model.value, model.query, model.key, model.scalars):
            weight += 0.05 / model.pace * torch.randn(weight.shape, generator=draw)
        model.train()(batch_of(molecules(100)))
    return model.eval()


def functions_of(data: Data, model: LinearTransformerPE) -> torch.Tensor:
    """Every channel's matrix p(N) by LAPACK, in float64."""
    n = data.num_nodes or 0
    weight = torch.ones(data.edge_index.shape[1]) if data.edge_weight is None else data.edge_weight  # pyright: ignore
    a = torch.zeros(n, n, dtype=torch.float64).index_put(tuple(data.edge_index), weight.double(), accumulate=True)  # pyright: ignore
    l = torch.diag(a.sum(1)) - a
    d = torch.full((n,), float(l.diagonal().max())) if model.laplacian == "combinatorial" else l.diagonal()
    values, vectors = torch.linalg.eigh(l / (d[:, None] * d).sqrt())
    f = torch.ones(16, n, dtype=torch.float64)
    scale = torch.ones(16, 1, dtype=torch.float64)
    for layer in model.double()._layers():
        unit = f / f.norm(dim=1, keepdim=True)
        k = (layer.product[:, None] * unit.square()).sum(0)
        f = layer.skip * f + layer.value[:, None] * (layer.gram * values + layer.phi * k) * f
    model.float()
    return torch.einsum("iw,cw,jw->ijc", vectors, f * scale, vectors)


@pytest.mark.parametrize("laplacian", ["normalized", "combinatorial"])
def test_nodes_edges_and_pairs_are_entries_of_learned_functions_of_the_laplacian(laplacian):
    model = trained(norm=None, laplacian=laplacian)
    data = molecules(40)[-1].clone()
    half = data.edge_index.shape[1] // 2
    key = data.edge_index.sort(dim=0).values.unique(dim=1, return_inverse=True)[1]
    data.edge_weight = 0.5 + torch.rand(half, generator=torch.Generator().manual_seed(0))[key]
    with torch.no_grad():
        nodes, edges, pairs = model(data)
        truth = functions_of(data, model).float()
    u, v = data.edge_index
    torch.testing.assert_close(nodes, truth.diagonal().T, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(edges, truth[u, v], atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(pairs[0], truth, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("library", ["off", None])
def test_renumbered_nodes_move_nodes_edges_and_pairs_and_change_nothing(library):
    model = trained()
    graphs = [*molecules(300), *(g for g in map(fuzzed, range(60)) if g.edge_weight is None and g.num_nodes)]
    graphs = [
        Data(x=g.x, edge_index=torch.cat([g.edge_index, g.edge_index.flip(0)], 1), num_nodes=g.num_nodes) for g in graphs
    ]
    renamed = [relabelled(data, seed) for seed, data in enumerate(graphs)]
    plain, shuffled = batch_of(graphs), batch_of(data for data, _ in renamed)
    order = torch.cat([number + start for (_, number), start in zip(renamed, plain.ptr, strict=False)])
    slot = torch.cat([number for _, number in renamed])
    with torch.no_grad(), native.used(library or native.available()[-1] if native.available() else "off"):
        a, b = model(plain), model(shuffled)
    assert float((a[0] - b[0][order]).abs().max()) < 1e-5
    assert float((a[1] - b[1]).abs().max()) < 1e-5
    owner, place = plain.batch, torch.arange(len(plain.batch)) - plain.ptr[plain.batch]
    u = torch.arange(len(owner))
    v = plain.ptr[owner] + (u * 7) % plain.ptr.diff()[owner]
    moved = b[2][owner, slot[u], slot[v]]
    assert float((a[2][owner, place[u], place[v]] - moved).abs().max()) < 1e-5


def test_kept_spectra_give_the_same_answers_and_gradients():
    graphs = [*molecules(50), Data(edge_index=torch.zeros(2, 0, dtype=torch.long), x=torch.ones(1, 5), num_nodes=1)]
    plain, kept = batch_of(graphs), batch_of(AddSpectrum()(data.clone()) for data in graphs)
    assert len(kept.spectrum_vectors) == sum(data.num_nodes**2 for data in graphs)
    for library in ("off", *native.available()[-1:]):
        found = []
        for batch in (plain, kept):
            model = LinearTransformerPE(16, read=ALL)
            with native.used(library):
                out = model(batch)
                torch.stack([x.square().mean() for x in out]).sum().backward()
            found.append([*out, model.value.grad, model.scalars.grad, model.edge_readout.grad])  # pyright: ignore
        for x, y in zip(*found, strict=True):
            torch.testing.assert_close(x, y, atol=1e-5, rtol=1e-3)


def test_gradients_of_weights_are_those_of_differences():
    edges = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])
    model = LinearTransformerPE(2, read=("nodes", "edges"), norm=None, hidden=3, groups=3).double().requires_grad_(False)
    weight = torch.tensor([1.0, 2.0, 0.5, 1.5, 0.7], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda w: model(edges, w), weight)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda b: setattr(b, "edge_index", b.edge_index[:, 2:]), "other edges, weights or Laplacian"),
        (lambda b: setattr(b, "edge_weight", torch.arange(1.0, 1 + b.num_edges)), "other edges, weights or Laplacian"),
        (lambda b: setattr(b, "spectrum_vectors", b.spectrum_vectors[:-1]), "other edges, weights or Laplacian"),
        (lambda b: setattr(b, "batch", b.batch.flip(0)), "expected batch in ascending order"),
    ],
)
def test_spectra_of_other_graphs_and_unsorted_batches_are_refused_in_one_sentence(change, words):
    batch = batch_of(AddSpectrum()(data.clone()) for data in molecules(8))
    model = LinearTransformerPE(4)
    model(batch)
    change(batch)
    with pytest.raises(RuntimeError, match=words):
        model(batch)


def test_spectra_of_another_laplacian_or_number_of_nodes_are_refused():
    batch = batch_of(AddSpectrum("combinatorial")(data.clone()) for data in molecules(8))
    LinearTransformerPE(4, laplacian="combinatorial")(batch)
    with pytest.raises(RuntimeError, match="other edges, weights or Laplacian"):
        LinearTransformerPE(4)(batch)
    with pytest.raises(ValueError, match="expected the spectra of 3 nodes, got those of"):
        LinearTransformerPE(4)(batch, num_nodes=3)
    with pytest.raises(ValueError, match="expected degrees='gram' with kept spectra"):
        LinearTransformerPE(4, degrees="l1")(batch)


class _NoHostReads(TorchDispatchMode):
    """Refuses every operation by which the host learns a number that a device has computed."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "_to_copy_cpu"), name
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("library", ["off", None])
def test_with_kept_spectra_nothing_is_asked_of_the_device_to_encode_and_to_train(library):
    graphs = molecules(8)
    batch, width = batch_of(AddSpectrum()(data.clone()) for data in graphs), max(data.num_nodes or 0 for data in graphs)
    model = LinearTransformerPE(16, read=ALL)
    with native.used(library) if library else torch.enable_grad():
        with _NoHostReads():
            found = model(batch, width=width)
            torch.stack([x.square().sum() for x in found]).sum().backward()
        for x, y in zip(found, model.eval()(batch), strict=True):
            torch.testing.assert_close(x, y)
    with pytest.raises(AssertionError), _NoHostReads():
        model(batch_of(molecules(8)))


def test_pairs_are_padded_as_told_and_a_width_too_small_is_refused():
    batch, model = (
        batch_of(AddSpectrum()(data.clone()) for data in molecules(8)),
        LinearTransformerPE(4, read="pairs").eval(),
    )
    plain = model(batch)
    wide = model(batch, width=plain.shape[1] + 3)
    assert torch.equal(wide[:, :-3, :-3], plain)
    assert not bool(wide[:, -3:].any() or wide[:, :, -3:].any())
    with pytest.raises(RuntimeError, match="expected width= at least the nodes of the largest graph"):
        model(batch, width=plain.shape[1] - 1)


def test_the_bound_on_the_largest_graph_holds_and_is_sharp_for_graphs_of_one_size():
    for sizes in ([1], [7, 7, 7], [1, 2, 9], [30, 1, 1, 1, 1], [0, 4]):
        start = torch.tensor([0, *sizes]).cumsum(0)
        owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        spectra = Spectra.arrange(torch.zeros(sum(sizes)), torch.zeros(sum(n * n for n in sizes)), start, owner)
        assert max(sizes) <= spectra.widest() <= sum(sizes)
        if len(set(sizes)) == 1:
            assert spectra.widest() == sizes[0]


COMPILED = """
import torch
from torch_geometric import typing
from torch_geometric.data import Batch, Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput
from torch_geometric.utils import to_undirected
from ohmformer.encoding import AddSpectrum, LinearTransformerPE
rings = [torch.stack([torch.arange(n), (torch.arange(n) + 1) % n]) for n in (5, 9)]
batch = Batch.from_data_list([AddSpectrum()(Data(edge_index=r, num_nodes=r.shape[1])) for r in rings])
given = batch.edge_index, None, batch.batch, batch.num_nodes, torch.ones(14, 3)
try:
    torch.compile(LinearTransformerPE(16), backend="aot_eager", fullgraph=True)(*given)
except Exception as error:
    assert "use AddSpectrum" in str(error), error
else:
    raise AssertionError("compiled as one graph without kept spectra")
for phi0, options in {"walks": {}, "random": {}, "index": {"max_nodes": 9}, "features": {"in_features": 3}}.items():
    model = LinearTransformerPE(16, phi0=phi0, **options).eval()
    torch.testing.assert_close(torch.compile(model, backend="aot_eager")(*given), model(*given))
model = LinearTransformerPE(16, read=("nodes", "edges", "pairs"))
kept = batch.spectrum_values, batch.spectrum_vectors, batch.spectrum_check
compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
found = compiled(*given, None, kept, 9)
sum(x.square().sum() for x in found).backward()
for x, y in zip(found, model.eval()(batch), strict=True):
    torch.testing.assert_close(x, y, atol=1e-4, rtol=1e-4)
assert float(model.scalars.grad.abs().sum()) > 0
program = torch.export.export(model, (*given, None, kept, 9))
for x, y in zip(program.module()(*given, None, kept, 9), model(batch), strict=True):
    torch.testing.assert_close(x, y, atol=1e-4, rtol=1e-4)
try:
    torch.export.export(LinearTransformerPE(16), given)
except ValueError as error:
    assert "use AddSpectrum" in str(error), error
else:
    raise AssertionError("exported without kept spectra")
"""


def test_compiled_gives_the_same_answers_with_kept_spectra_as_one_graph_with_gradients():
    """In a process of its own: torch cannot trace through the type checks of the tests."""
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", COMPILED], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("name", ["n_id", "input_id"])
def test_a_sampled_subgraph_warns(name):
    data = molecules(3)[-1].clone()
    data[name] = torch.arange(data.num_nodes)
    with pytest.warns(UserWarning, match="the encoding of a sampled subgraph"):
        LinearTransformerPE(4)(data)


class _OneHop(BaseSampler):
    """The seeds and up to three neighbours of each, for ``NeighborLoader``: PyG's own sampler is in packages of its own."""

    def __init__(self, data: Data) -> None:
        assert data.edge_index is not None
        self.edge_index = data.edge_index

    def sample_from_edges(self, index, neg_sampling=None):
        """Sample nothing: nodes are asked for."""
        raise NotImplementedError

    def sample_from_nodes(self, index: NodeSamplerInput, **_: object) -> SamplerOutput:
        """Sample edges that lead to the seeds."""
        draw = torch.Generator().manual_seed(int(index.node[0]))
        into = [(self.edge_index[1] == seed).nonzero()[:, 0] for seed in index.node]
        edge = torch.cat([e[torch.randperm(len(e), generator=draw)[:3]] for e in into])
        others = self.edge_index[0, edge]
        node = torch.cat([index.node, others[~torch.isin(others, index.node)].unique()])
        place = {int(n): i for i, n in enumerate(node)}
        row, col = (torch.tensor([place[int(n)] for n in ends]) for ends in self.edge_index[:, edge])
        return SamplerOutput(node=node, row=row, col=col, edge=edge, batch=None, metadata=(index.input_id, index.time))


@pytest.mark.parametrize("own", [True, False], ids=["sampler of PyG", "sampler of this test"])
def test_batches_of_a_neighbor_loader_take_the_encoding_of_the_whole_graph_along(own: bool):
    if own and not (typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE):
        pytest.skip("PyG's NeighborLoader samples by pyg-lib or torch-sparse, neither is installed")
    draw = torch.Generator().manual_seed(0)
    around, far = torch.arange(200), torch.randint(0, 200, (2, 300), generator=draw)
    pairs = torch.cat([torch.stack([around, (around + 1) % 200]), far[:, far[0] != far[1]]], dim=1)
    model = LinearTransformerPE(4).eval()
    whole = AddLinearTransformerPE(model, "pe")(Data(edge_index=torch.cat([pairs, pairs.flip(0)], 1), num_nodes=200))
    loader = NeighborLoader(whole, num_neighbors=[3], batch_size=20, neighbor_sampler=None if own else _OneHop(whole))  # pyright: ignore[reportArgumentType]
    seen = 0
    for batch in loader:
        seen += batch.batch_size
        assert torch.equal(batch.pe, whole.pe[batch.n_id])
        batch.edge_index = to_undirected(batch.edge_index)
        with pytest.warns(UserWarning, match="encode the whole graph once"):
            alone = model(batch)
        assert float((alone.detach() - batch.pe).abs().max()) > 0.01
    assert seen == 200


def test_a_model_in_bfloat16_rounds_its_weights_and_its_answers_and_nothing_between():
    batch = batch_of(AddSpectrum()(data.clone()) for data in molecules(20))
    rounded = copy.deepcopy(trained()).bfloat16()
    with torch.no_grad():
        answers = [m(batch) for m in (rounded, copy.deepcopy(rounded).float())]
    for x, y in zip(*answers, strict=True):
        assert x.dtype == torch.bfloat16
        torch.testing.assert_close(x.float(), y, atol=0, rtol=2**-8)


def test_the_norm_sees_the_same_numbers_in_training_and_evaluation():
    draw = torch.Generator().manual_seed(0)
    norm, seen = RunningNorm(3, momentum=None), []
    for _ in range(5):
        x = 3 + 2 * torch.randn(50, 3, generator=draw)
        out = norm(x)
        seen.append(x)
        assert torch.equal(norm.eval()(x), out)
        norm.train()
    means, variances = (torch.stack(y).mean(0) for y in zip(*((x.mean(0), x.var(0)) for x in seen), strict=True))
    torch.testing.assert_close(norm.mean, means)
    torch.testing.assert_close(norm.variance, variances)
    norm(torch.zeros(0, 3))
    norm(torch.zeros(1, 3))
    torch.testing.assert_close(norm.mean, means)


def test_a_pace_slows_a_step_of_adam_and_changes_no_answer():
    batch, steps = batch_of(molecules(20)), []
    models = [LinearTransformerPE(16, norm=None, pace=pace) for pace in (1, 0.1, None)]
    answers = [model(batch) for model in models]
    for model, answer in zip(models, answers, strict=True):
        torch.testing.assert_close(answer, answers[0], atol=1e-6, rtol=0)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        before = model._weights().detach()[:, 0]  # linear in one of the parameters, of which some have no gradient at first
        answer.sin().sum().backward()
        optimizer.step()
        steps.append((model._weights().detach()[:, 0] - before).abs().median())
    torch.testing.assert_close(torch.stack(steps) / steps[0], torch.tensor([1, 0.1, 0.1]), atol=0.002, rtol=0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"read": "rings"}, "expected read among nodes, edges, pairs"),
        ({"read": ("nodes", "nodes")}, "expected read among"),
        ({"read": "edges", "phi0": "random"}, "expected read='nodes' with phi0='random'"),
        ({"evolve": True}, "expected evolve=False with phi0='walks'"),
        ({"norm": "batch"}, "expected norm among running, None"),
        ({"pace": 0.0}, "expected a finite pace > 0 with phi0='walks', and 1 elsewhere, got 0.0"),
        ({"pace": 0.5, "phi0": "random"}, "expected a finite pace > 0 with phi0='walks', and 1 elsewhere, got 0.5"),
        ({"laplacian": "signless"}, "expected laplacian among normalized, combinatorial"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        LinearTransformerPE(4, **options)


def test_pyg_collates_and_separates_spectra_of_any_sizes():
    graphs = [AddSpectrum()(data.clone()) for data in molecules(8)]
    again = Batch.from_data_list(graphs).to_data_list()
    for data, other in zip(graphs, again, strict=True):
        assert torch.equal(data.spectrum_vectors, other.spectrum_vectors)


def test_a_checkpoint_of_another_shape_is_refused_in_one_sentence():
    inside = torch.nn.ModuleDict({"pe": LinearTransformerPE(16)})
    inside.load_state_dict(inside.state_dict())
    other = torch.nn.ModuleDict({"pe": LinearTransformerPE(16, groups=3)})
    with pytest.raises(
        ValueError, match=r"expected pe.scalars of shape \(16, 8\) for LinearTransformerPE\(dim=16.*got \(3, 8\): make"
    ):
        inside.load_state_dict(other.state_dict())


def changed_ones(data: Data):
    """The same graph without one edge, with one other edge, and with one other weight, for every edge in turn."""
    assert data.edge_index is not None
    assert data.edge_weight is not None
    u, v = data.edge_index
    for i in range(0, data.num_edges, 7):
        here = ((u == u[i]) & (v == v[i])) | ((u == v[i]) & (v == u[i]))
        other = data.clone()
        other.edge_index, other.edge_weight = data.edge_index[:, ~here], data.edge_weight[~here]
        yield other
        other = data.clone()
        other.edge_weight = torch.where(here, 1.1 * data.edge_weight, data.edge_weight)
        yield other
        far = int((u[i] + 31) % data.num_nodes)  # pyright: ignore[reportOperatorIssue]
        if far not in u[v == u[i]] and far != v[i]:
            other = data.clone()
            other.edge_index = torch.where(here & (data.edge_index == v[i]), far, data.edge_index)
            yield other


@pytest.mark.parametrize("nodes", [60, 390])
@pytest.mark.parametrize("library", ["off", None])
def test_stored_spectra_of_a_graph_with_one_other_edge_or_weight_are_refused(nodes, library):
    graph = nx.gnp_random_graph(nodes, 6 / nodes, seed=0)
    edges = torch.tensor(list(graph.edges())).t()
    weight = 0.5 + torch.rand(edges.shape[1], generator=torch.Generator().manual_seed(0))
    index, weight = torch.cat([edges, edges.flip(0)], dim=1), torch.cat([weight, weight])
    data = AddSpectrum()(Data(edge_index=index, edge_weight=weight, num_nodes=nodes))
    model, order = (
        LinearTransformerPE(4, norm=None),
        torch.randperm(index.shape[1], generator=torch.Generator().manual_seed(1)),
    )
    with torch.no_grad(), native.used(library or native.available()[-1]):
        for same in ((index[:, order], weight[order]), (edges, weight[: edges.shape[1]]), (index, 300 * weight.double())):
            other = data.clone()
            other.edge_index, other.edge_weight = same
            torch.testing.assert_close(model(other), model(data), rtol=0, atol=0)
        for other in changed_ones(data):
            with pytest.raises(RuntimeError, match="expected the spectra of these graphs"):
                model(other)


@pytest.mark.parametrize("library", ["off", None])
def test_arguments_of_another_length_than_stored_spectra_are_refused(library):
    index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    kept = AddSpectrum()(Data(edge_index=index, num_nodes=3))
    spectrum = kept.spectrum_values, kept.spectrum_vectors, kept.spectrum_check
    with native.used(library or native.available()[-1]):
        for weight in (torch.ones(0), torch.ones(3), torch.ones(4, 2)):
            with pytest.raises(ValueError, match=r"expected one edge_weight per edge, shape \(4,\), got"):
                LinearTransformerPE(4)(index, weight, spectrum=spectrum)
        with pytest.raises(ValueError, match=r"expected batch of shape \(3,\), got \(2,\)"):
            LinearTransformerPE(4)(index, batch=torch.zeros(2).long(), spectrum=spectrum)
