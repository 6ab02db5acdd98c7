import math
from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from torch_geometric.data import Batch, Data

from ohmformer import Graph, exact, native
from ohmformer.graph.families import FAMILIES, disjoint, family, zoo
from tests.strategies import graphs


def triangle(**weights) -> Graph:
    return Graph.from_edges([(0, 1), (1, 2), (2, 0)], **weights)


@given(graphs())
def test_laplacian_is_incidence_times_its_transpose(device, g):
    g = g.to(device)
    b = g.incidence()
    torch.testing.assert_close(g.laplacian(), b @ b.T)
    torch.testing.assert_close(g.sparse_laplacian().to_dense(), b @ b.T)


@given(graphs())
def test_laplacian_equals_networkx(device, g):
    g = g.to(device)
    theirs = nx.laplacian_matrix(_with_conductance(g), weight="conductance").toarray()
    np.testing.assert_allclose(g.laplacian().cpu().numpy(), theirs, rtol=1e-12, atol=1e-12)


def _with_conductance(g: Graph) -> nx.MultiGraph:
    other = g.to_networkx()
    for _, _, data in other.edges(data=True):
        data["conductance"] = 1 / data["resistance"]
    return other


@given(graphs())
def test_projector_is_the_projection_onto_the_range_of_the_laplacian(device, g):
    g = g.to(device)
    laplacian, p = g.laplacian().cpu().numpy(), g.projector().cpu().numpy()
    u, s, _ = np.linalg.svd(laplacian)
    inside = u[:, s > 1e-9 * s.max()]
    np.testing.assert_allclose(p, inside @ inside.T, atol=1e-9)
    x = torch.randn(g.num_nodes, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)
    torch.testing.assert_close(g.center(x), g.projector() @ x)


@given(graphs())
def test_spectral_bounds_enclose_every_nonzero_eigenvalue(device, g):
    g = g.to(device)
    values = np.linalg.eigvalsh(g.laplacian().cpu().numpy())
    values = values[g.num_components :]
    bounds = g.spectral_bounds()
    assert bounds.lmin <= values.min() * (1 + 1e-9)
    assert bounds.lmax >= values.max() * (1 - 1e-9)


def test_spectral_bounds_are_exact_on_one_edge():
    bounds = Graph.from_edges([(0, 1)], resistance=[4.0]).spectral_bounds()
    assert (bounds.lmin, bounds.lmax) == (0.5, 0.5)


def test_spectral_bounds_take_the_least_of_parallel_resistances_whatever_their_order():
    for resistance in ([1.0, 9.0], [9.0, 1.0]):
        g = Graph.from_edges([(0, 1), (1, 0)], resistance=resistance)
        assert g.spectral_bounds().lmin <= exact.spectrum(g).lmin


# ------------------------------------------------------------------------------------------------ special graphs


def test_parallel_edges_add_conductance_and_stay_edges():
    g = Graph.from_edges([(0, 1), (1, 0)], resistance=[1.0, 3.0])
    assert g.num_edges == 2
    assert g.laplacian()[0, 0] == pytest.approx(1 + 1 / 3)


def test_self_loops_are_dropped_and_counted():
    g = Graph.from_edges([(0, 0), (0, 1), (1, 1)], resistance=[1.0, 2.0, 3.0])
    assert (g.num_edges, g.self_loops_dropped, g.resistance.tolist()) == (1, 2, [2.0])
    assert "self_loops_dropped=2" in repr(g)


@pytest.mark.parametrize("nodes", [0, 1, 3])
def test_graphs_without_edges_are_ordinary(device, nodes):
    g = Graph.from_edges([], num_nodes=nodes).to(device)
    assert (g.num_components, g.num_edges) == (nodes, 0)
    assert g.laplacian().shape == (nodes, nodes)
    assert g.incidence().shape == (nodes, 0)
    assert exact.pinv(g).abs().sum() == 0
    torch.testing.assert_close(exact.heat(g, 1.0).cpu(), torch.eye(nodes, dtype=torch.float64))
    assert not exact.eigenvectors(g, 2).mask.any()
    assert g.spectral_bounds().condition == 1


def test_isolated_nodes_are_components_of_their_own(device):
    g = Graph.from_edges([(0, 1)], num_nodes=3).to(device)
    assert g.num_components == 2
    assert g.projector()[2].abs().sum() == 0


# ------------------------------------------------------------------------------------------------ converters


def test_conductance_is_one_over_resistance():
    torch.testing.assert_close(
        triangle(conductance=[1.0, 2.0, 4.0]).laplacian(), triangle(resistance=[1.0, 0.5, 0.25]).laplacian()
    )


def test_pyg_pairs_are_folded_to_single_edges(device):
    index = torch.tensor([[0, 1, 1, 2, 2], [1, 0, 2, 1, 2]])
    data = Data(edge_index=index, num_nodes=4, edge_weight=torch.tensor([2.0, 2.0, 4.0, 4.0, 9.0]))
    g = Graph.from_pyg(data.to(device), conductance="edge_weight")
    assert (g.num_nodes, g.num_edges, g.self_loops_dropped, g.dtype) == (4, 2, 1, torch.float32)
    expected = Graph.from_edges([(0, 1), (1, 2)], num_nodes=4, conductance=[2.0, 4.0])
    torch.testing.assert_close(g.laplacian().double().cpu(), expected.laplacian())


def test_pyg_batches_keep_their_graphs_apart(device):
    ring = torch.tensor([[0, 1, 1, 2, 2, 0], [1, 0, 2, 1, 0, 2]])
    edge = torch.tensor([[0, 1], [1, 0]])
    batch: Any = Batch.from_data_list([Data(edge_index=ring, num_nodes=3), Data(edge_index=edge, num_nodes=2)])
    g = Graph.from_pyg(batch.to(device))
    assert (g.batched, g.num_graphs, g.graph_sizes.tolist()) == (True, 2, [3, 2])
    torch.testing.assert_close(g.laplacian()[0].cpu(), triangle().laplacian())


def test_pyg_data_with_a_batch_vector_need_not_be_a_batch():
    index = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
    g = Graph.from_pyg(Data(edge_index=index, num_nodes=4, batch=torch.tensor([0, 0, 1, 1])))
    assert (g.batched, g.num_graphs) == (True, 2)


def test_scipy_integers_are_summed_as_numbers():
    matrix = sp.coo_array((np.array([200, 200, 200, 200], dtype=np.uint8), ([0, 0, 1, 1], [1, 1, 0, 0])), shape=(2, 2))
    assert Graph.from_scipy(matrix, entries="conductance").resistance.tolist() == [1 / 400]


@given(graphs())
def test_centred_demands_are_accepted(device, g):
    g = g.to(device)
    x = 1e6 * torch.randn(g.num_nodes, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)
    for psi in (g.center(x), g.center(x).float(), (x - g.component_means(x)[g.components]).cpu().numpy()):
        checked = g.check_demands(psi)
        assert float(g.component_means(checked).abs().max()) <= 1e-9


@given(graphs())
def test_components_are_those_of_networkx_numbered_by_their_first_nodes(g):
    for name in {"off", *native.available()[-1:]}:
        with native.used(name):
            found = replace(g).components.tolist()
        parts = sorted(nx.connected_components(nx.MultiGraph(g.to_networkx())), key=min)
        assert found == [next(i for i, part in enumerate(parts) if node in part) for node in range(g.num_nodes)]


@pytest.mark.parametrize("width", [1, 5, 16, 37])
def test_demands_are_added_up_without_loss(width):
    rng = np.random.default_rng(width)
    g = Graph.from_edges([(i, i + 1) for i in range(19_999) if i != 7_000])
    psi = np.concatenate([np.full((3_500, width), 0.1), np.full((3_501, width), -0.1)])  # partial sums are far from zero
    psi = np.concatenate([psi, rng.standard_normal((12_999, width))])
    psi[3_500], psi[-1] = 0.0, 0.0
    psi[-1] = [-math.fsum(column) for column in psi[7_001:].T]
    assert torch.equal(g.check_demands(psi), torch.as_tensor(psi))  # not centred: the sums are zero to rounding
    psi[-1, -1] += 1e-6
    with pytest.raises(ValueError, match=f"demand {width - 1} sums to 1e-06 on component 1"):
        g.check_demands(psi)
    psi[12, 0] = np.nan
    with pytest.raises(ValueError, match="expected finite numbers on the nodes"):
        g.check_demands(psi)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_demands_on_one_graph_of_a_batch_excuse_nothing_on_another(dtype):
    g = Graph.collate([Graph.from_edges([(0, 1), (1, 2)])] * 2).to(dtype=dtype)
    large = 0.1 / torch.finfo(dtype).eps
    assert g.check_demands([large, -large, 0.0, 1.0, 0.0, -1.0]).shape == (6, 1)
    with pytest.raises(ValueError, match="demand 0 sums to 1 on component"):
        g.check_demands([large, -large, 0.0, 1.0, 0.0, 0.0])


@pytest.mark.parametrize("seed", range(5))
def test_means_may_be_subtracted_from_demands_that_are_almost_equal_on_a_small_component(seed):
    rng = np.random.default_rng(seed)
    g = Graph.from_edges([*((i, i + 1) for i in range(998)), (999, 1000)])
    psi = rng.standard_normal((1001, 64))
    psi[999:] = 1 + 1e-9 * psi[999:]
    for nodes in (slice(0, 999), slice(999, None)):
        psi[nodes] -= psi[nodes].mean(0)
    assert g.check_demands(psi).shape == (1001, 64)


def test_demands_may_be_lists():
    assert Graph.from_edges([(0, 1)]).check_demands([1.0, -1.0]).tolist() == [[1.0], [-1.0]]


def test_pyg_multi_edges_are_kept(device):
    index = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0]])
    g = Graph.from_pyg(Data(edge_index=index, num_nodes=2).to(device), resistance=torch.tensor([1.0, 2.0, 2.0, 1.0]))
    assert sorted(g.resistance.tolist()) == [1.0, 2.0]


@pytest.mark.parametrize("kind", [nx.Graph, nx.MultiGraph])
def test_networkx_graphs_keep_the_order_of_their_nodes(kind):
    other = kind()
    other.add_nodes_from(["c", "a", "b"])
    other.add_edge("a", "b", ohm=2.0)
    other.add_edge("b", "c", ohm=5.0)
    g = Graph.from_networkx(other, resistance="ohm")
    assert g.laplacian()[0, 0] == pytest.approx(0.2)
    assert g.laplacian()[1, 1] == pytest.approx(0.5)


@given(graphs())
def test_scipy_matrices_round_trip(device, g):
    g = g.to(device)
    laplacian = g.laplacian().cpu().numpy()
    adjacency = sp.csr_array(np.diag(np.diag(laplacian)) - laplacian)
    torch.testing.assert_close(Graph.from_scipy(adjacency, entries="conductance").laplacian(), g.laplacian().cpu())
    unit = Graph.from_scipy(adjacency, entries="unit")
    assert set(unit.resistance.tolist()) == {1.0}


@given(graphs())
def test_networkx_round_trip(device, g):
    g = g.to(device)
    torch.testing.assert_close(
        Graph.from_networkx(g.to_networkx(), resistance="resistance").laplacian(), g.laplacian().cpu()
    )


def test_collate_and_split_are_inverse(device):
    parts = [named.graph.to(device) for named in zoo(0)[:6]]
    together = Graph.collate(parts)
    for one, other in zip(together.split(), parts, strict=True):
        assert torch.equal(one.edge_index, other.edge_index)
        assert torch.equal(one.resistance, other.resistance)
    for i, part in enumerate(parts):
        n = part.num_nodes
        torch.testing.assert_close(together.laplacian()[i, :n, :n], part.laplacian())
        torch.testing.assert_close(together.projector()[i, :n, :n], part.projector())
    torch.testing.assert_close(together.incidence() @ together.incidence().mT, together.laplacian())
    x = torch.arange(together.num_nodes, dtype=torch.float64, device=device)[:, None]
    assert torch.equal(together.unpad(together.pad(x)), x)


def test_pad_carries_gradients(device):
    together = Graph.collate([triangle(), Graph.from_edges([(0, 1)])]).to(device)
    x = torch.ones(5, 2, device=device, requires_grad=True)
    together.pad(x).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad.cpu(), torch.ones(5, 2))


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_families_are_connected_seeded_and_simple(name):
    draw = [family(name, 12, generator=torch.Generator().manual_seed(3), spread=2.0) for _ in range(2)]
    assert torch.equal(draw[0].edge_index, draw[1].edge_index)
    assert torch.equal(draw[0].resistance, draw[1].resistance)
    assert draw[0].num_components == 1
    pairs = draw[0].edge_index.sort(dim=0).values
    assert torch.unique(pairs, dim=1).shape == pairs.shape
    assert draw[0].resistance.log().abs().max() <= 2


def test_the_zoo_has_forty_graphs_and_disconnected_ones():
    graphs = zoo(0)
    assert len(graphs) >= 40
    assert len({named.name for named in graphs}) == len(graphs)
    assert any(named.graph.num_components > 2 for named in graphs)


def test_disjoint_is_one_graph():
    g = disjoint(triangle(), triangle())
    assert (g.batched, g.num_components, g.num_graphs) == (False, 2, 1)


def test_edges_in_a_list_are_put_where_their_weights_are(device):
    r = torch.tensor([1.0, 2.0], dtype=torch.float64).to(device).requires_grad_()
    for edges in ([(0, 1), (1, 2)], torch.tensor([[0, 1], [1, 2]])):
        g = Graph.from_edges(edges, resistance=r)
        assert {x.device.type for x in (g.edge_index, g.resistance, g.batch)} == {device.type}
    g.laplacian().diagonal().sum().backward()
    assert r.grad is not None
    assert r.grad.device.type == device.type


@pytest.mark.parametrize("edges", [[(0, 1), (1, 2), (2, 3)], [(0, 1), (2, 3)]])
def test_a_vector_is_centred_like_a_column(edges):
    graph = Graph.from_edges(edges, num_nodes=5 if len(edges) == 2 else 4)
    x = torch.arange(1.0, graph.num_nodes + 1, dtype=torch.float64)
    means = {3: [2.5] * 4, 2: [1.5, 1.5, 3.5, 3.5, 5.0]}[len(edges)]
    torch.testing.assert_close(graph.center(x), x - torch.tensor(means, dtype=torch.float64), rtol=0, atol=1e-15)
    assert torch.equal(graph.center(x[:, None])[:, 0], graph.center(x))
