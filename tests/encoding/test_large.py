"""Functions of N on graphs too large for eigenvectors: exact where walks stay near, else estimates with a stated error."""

import networkx as nx
import pytest
import torch
from torch_geometric.data import Batch, Data

from ohmformer import native
from ohmformer.encoding import LinearTransformerPE, engines, large
from tests.encoding.molecules import molecules, relabelled

BOTH = ("nodes", "edges")


def data_of(graph: nx.Graph) -> Data:
    """Every edge in both directions."""
    graph = nx.convert_node_labels_to_integers(graph)
    edges = torch.tensor(list(graph.edges())).t()
    return Data(edge_index=torch.cat([edges, edges.flip(0)], dim=1), num_nodes=graph.number_of_nodes())


def awkward() -> Data:
    """A grid and a ring apart, some single nodes, weights over three orders of magnitude, and a self-loop."""
    graph = nx.disjoint_union_all([nx.grid_2d_graph(15, 20), nx.cycle_graph(150), nx.empty_graph(5)])
    data = data_of(graph)
    half = graph.number_of_edges()
    weight = 10 ** (3 * torch.rand(half, generator=torch.Generator().manual_seed(0)))
    index = torch.cat([data.edge_index, torch.tensor([[7], [7]])], dim=1)  # pyright: ignore[reportArgumentType]
    return Data(edge_index=index, edge_weight=torch.cat([weight, weight, torch.ones(1)]), num_nodes=data.num_nodes)


GRAPHS = {
    "ring": lambda: data_of(nx.cycle_graph(450)),
    "road": lambda: data_of(nx.random_geometric_graph(500, 0.06, seed=1)),
    "tree": lambda: data_of(nx.random_labeled_tree(450, seed=1)),
    "random 4-regular": lambda: data_of(nx.random_regular_graph(4, 450, seed=1)),
    "awkward": awkward,
}


def moved(by: float = 0.05, **options) -> LinearTransformerPE:
    """An encoder whose channels interact."""
    model = LinearTransformerPE(16, norm=None, **options).eval()
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in (model.value, model.query, model.key, model.scalars):
            weight += by / model.pace * torch.randn(weight.shape, generator=draw)
    return model


def by_lapack(model: LinearTransformerPE, data: Data, monkeypatch: pytest.MonkeyPatch):
    """The same function from eigenvectors."""
    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(engines, "SPECTRA_UP_TO", 10**9)
        return model(data)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("options", [{}, {"phi0": "diagonal"}, {"laplacian": "combinatorial"}], ids=str)
def test_large_graphs_whose_walks_stay_near_are_encoded_as_by_eigenvectors(name, options, monkeypatch):
    data, model = GRAPHS[name](), moved(read=BOTH, **options)
    with torch.no_grad():
        found = model(data)
    for x, y in zip(found, by_lapack(model, data, monkeypatch), strict=True):
        assert float((x - y).abs().max()) < 1e-5 * float(y.abs().max().clamp(min=1))


NARROW = {
    "random 20": lambda: data_of(nx.gnp_random_graph(401, 20 / 401, seed=0)),
    "random 6": lambda: data_of(nx.gnp_random_graph(401, 6 / 401, seed=1)),
    "random 10-regular": lambda: data_of(nx.random_regular_graph(10, 402, seed=0)),
    "preferential": lambda: data_of(nx.barabasi_albert_graph(401, 6, seed=0)),
}


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("options", [{"by": 0.3}, {"by": 0.0, "phi0": "diagonal", "loops": 9}], ids=str)
def test_models_that_grow_outside_the_spectrum_are_encoded_as_by_eigenvectors(name, options, monkeypatch):
    data, model = NARROW[name](), moved(read=BOTH, **options)
    with torch.no_grad():
        found = model(data)
    for x, y in zip(found, by_lapack(model, data, monkeypatch), strict=True):
        assert float((x - y).abs().max()) < 1e-5 * float(y.abs().max().clamp(min=1))


@pytest.mark.parametrize("name", ["random 6", "preferential"])
def test_what_a_polynomial_cannot_follow_is_part_of_the_stated_error(name, monkeypatch):
    data, model = NARROW[name](), LinearTransformerPE(8, norm=None, phi0="diagonal", loops=40).eval()
    with torch.no_grad():
        error = (model(data) - by_lapack(model, data, monkeypatch)).square().mean(0).sqrt()
        stated = model.standard_error(data)
    assert float(stated.max()) > 0
    assert bool((error < 3 * stated + 1e-5).all())


def test_kernels_and_torch_agree_and_double_precision_goes_further(monkeypatch):
    data, model = GRAPHS["road"](), moved(read=BOTH)
    with torch.no_grad():
        found = model(data)
        with native.used("off"):
            plain = model(data)
            double = model.double()(data)
    for x, y in zip(found, plain, strict=True):
        torch.testing.assert_close(x, y, atol=5e-6, rtol=0)
    for x, y in zip(double, by_lapack(model, data, monkeypatch), strict=True):
        torch.testing.assert_close(x, y, atol=1e-7, rtol=0)


def test_gradients_of_weights_are_those_through_eigenvectors(monkeypatch):
    data, found = GRAPHS["road"](), []
    for most in (400, 10**9):
        monkeypatch.setattr(engines, "SPECTRA_UP_TO", most)
        model = moved(read=BOTH)
        torch.stack([x.square().mean() for x in model(data)]).sum().backward()
        found.append([model.value.grad, model.query.grad, model.scalars.grad])
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, atol=1e-6, rtol=1e-3)


def test_small_and_large_graphs_of_a_batch_are_encoded_as_alone():
    graphs = [*molecules(3), GRAPHS["tree"](), *molecules(2), GRAPHS["ring"]()]
    graphs = [Data(edge_index=g.edge_index, num_nodes=g.num_nodes) for g in graphs]
    model = moved(read=BOTH)
    with torch.no_grad():
        nodes, edges = model(Batch.from_data_list([*graphs]))
        alone = [model(data) for data in graphs]
    torch.testing.assert_close(nodes, torch.cat([x for x, _ in alone]), atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(edges, torch.cat([x for _, x in alone]), atol=2e-6, rtol=1e-5)


def test_renumbered_nodes_of_a_large_graph_move_and_nothing_else_changes():
    data, model = GRAPHS["road"](), moved(read=BOTH)
    data.x = torch.zeros(500, 1)
    other, number = relabelled(data, 3)
    with torch.no_grad():
        (nodes, edges), (nodes_too, edges_too) = model(data), model(other)
    assert float((nodes - nodes_too[number]).abs().max()) < 1e-5
    assert float((edges - edges_too).abs().max()) < 1e-5


@pytest.fixture
def estimated(monkeypatch):
    """Nothing is exact but walks of two steps."""
    local = large._local
    monkeypatch.setattr(large, "_local", lambda rows, steps, **rest: local(rows, steps, **rest) if len(steps) <= 2 else None)


@pytest.mark.parametrize("library", ["off", None])
def test_estimates_are_as_far_from_the_truth_as_their_stated_error(library, estimated, monkeypatch):
    data, model = data_of(nx.gnm_random_graph(700, 3500, seed=0)), moved(read=BOTH)
    truth = by_lapack(model, data, monkeypatch)
    with torch.no_grad(), native.used(library or native.available()[-1]):
        found, stated = model(data), model.standard_error(data)
        assert all(torch.equal(x, y) for x, y in zip(found, model(data), strict=True))
    error = (found[0] - truth[0]).square().mean(0).sqrt()
    assert float(stated.max()) > 1e-3
    seen = stated > 1e-5
    assert bool(((error / stated)[seen] > 0.6).all())
    assert bool(((error / stated)[seen] < 1.6).all())
    of_edges = (found[1] - truth[1]).square().mean(0).sqrt()
    assert bool((of_edges < 1.5 * stated + 1e-6).all())
    half = len(found[1]) // 2
    torch.testing.assert_close(found[1][:half], found[1][half:], atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", NARROW)
def test_estimates_of_a_model_that_grows_outside_the_spectrum_are_finite(name, monkeypatch):
    data, model = NARROW[name](), moved(0.3, read=BOTH)
    truth = by_lapack(model, data, monkeypatch)[0]
    monkeypatch.setattr(large, "EXACT", 0.0)
    with torch.no_grad():
        error, stated = (model(data)[0] - truth).square().mean(0).sqrt(), model.standard_error(data)
    assert bool((error < 2 * stated + 1e-4).all())


def test_the_mean_of_estimates_of_many_seeds_is_the_truth(estimated, monkeypatch):
    data, model = data_of(nx.gnm_random_graph(450, 2500, seed=0)), moved()
    truth = by_lapack(model, data, monkeypatch)
    estimates = []
    with torch.no_grad():
        for seed in range(20):
            model.seed = seed
            estimates.append(model(data))
    one, mean = ((x - truth).square().mean(0).sqrt() for x in (estimates[0], torch.stack(estimates).mean(0)))
    assert bool((mean < 0.4 * one + 1e-5).all())  # 1 / sqrt(20) of it, and some


def test_few_eigenvalues_are_all_found(estimated, monkeypatch):
    data, model = data_of(nx.complete_multipartite_graph(150, 150, 150)), moved()
    with torch.no_grad():
        found = model(data)
    assert float((found - by_lapack(model, data, monkeypatch)).abs().max()) < 1e-3
    assert float(model.standard_error(data).max()) < 1e-3


def test_an_exact_encoding_has_no_error():
    assert float(moved().standard_error(GRAPHS["ring"]()).abs().max()) == 0


def test_all_pairs_and_gradients_of_weights_have_a_limit_that_is_named(monkeypatch):
    monkeypatch.setattr(engines, "MOST_NODES", 440)
    data = GRAPHS["ring"]()
    with pytest.raises(ValueError, match="expected graphs of at most 440 nodes for read='pairs', got one of 450"):
        LinearTransformerPE(4, read="pairs")(data)
    weight = torch.ones(data.num_edges, requires_grad=True)
    with pytest.raises(ValueError, match="for gradients of edge_weight, got one of 450"):
        LinearTransformerPE(4)(data.edge_index, weight)


def test_many_nodes_without_edges_are_encoded_and_trained():
    model = LinearTransformerPE(4, read=BOTH)
    nodes, edges = model(torch.zeros(2, 0, dtype=torch.long), num_nodes=500)
    assert bool(nodes.isfinite().all())
    assert edges.shape == (0, 4)
    nodes.square().sum().backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())
