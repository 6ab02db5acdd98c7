"""Sparsified graphs against eigenvalues of the pencil by LAPACK."""

import networkx as nx
import numpy as np
import pytest
import scipy.linalg
import torch

import ohmformer as ohm
from ohmformer import Graph
from ohmformer.graph.families import disjoint
from ohmformer.solve import sparsification
from tests.solve.test_selected import graph_of, grid_pairs, weighted


def dense_graph(nodes: int, degree: int, seed: int = 0) -> Graph:
    """Random pairs with resistances over two orders of magnitude, on a ring, so that it is connected."""
    draw = np.random.default_rng(seed)
    pairs = draw.integers(0, nodes, (nodes * degree // 2, 2))
    ring = np.stack([np.arange(nodes), np.roll(np.arange(nodes), 1)], axis=1)
    pairs = np.concatenate([ring, pairs[pairs[:, 0] != pairs[:, 1]]])
    return graph_of(nodes, pairs, 10 ** draw.uniform(-1, 1, len(pairs)))


def true_distance(graph: Graph, sample: Graph) -> float:
    """From the generalised eigenvalues of both Laplacians, with null vectors moved to one."""
    one, other = graph.laplacian().numpy(), sample.laplacian().numpy()
    kernel = float(one.diagonal().mean()) * (np.eye(graph.num_nodes) - graph.projector().numpy())
    ratios = scipy.linalg.eigh(other + kernel, one + kernel, eigvals_only=True)
    return float(np.abs(ratios - 1).max())


@pytest.mark.parametrize("eps", [0.4, 0.8])
@pytest.mark.parametrize("seed", range(3))
def test_small_graphs_are_as_near_as_is_said(eps: float, seed: int):
    graph = dense_graph(80, 70)
    answer = ohm.sparsify(graph, eps, seed=seed)
    assert answer.residual == pytest.approx(true_distance(graph, answer.graph), rel=1e-6)
    assert answer.residual <= eps
    assert answer.graph.num_edges <= 0.9 * graph.num_edges
    assert torch.equal(graph.edge_index[:, answer.kept], answer.graph.edge_index)


@pytest.mark.parametrize("seed", range(3))
def test_lanczos_says_no_less_than_the_distance(seed: int):
    graph = dense_graph(500, 120)
    answer = ohm.sparsify(graph, 0.8, seed=seed)
    true = true_distance(graph, answer.graph)
    assert true <= answer.residual <= 0.8
    assert answer.residual <= true + 0.2  # what Lanczos may lack, at most eps / 15 of energies up to 1.8, twice
    assert "Lanczos" in answer.note
    assert answer.graph.num_edges < 0.75 * graph.num_edges


def test_errors_of_linear_systems_do_not_grow_with_lanczos_steps():
    graph = dense_graph(1000, 100)
    answer = ohm.sparsify(graph, 0.5)
    true = true_distance(graph, answer.graph)
    assert true <= answer.residual <= true + 0.15
    assert answer.graph.num_edges < 0.7 * graph.num_edges


def test_energies_are_right_on_average(monkeypatch):
    """Over many samples of one size, the mean Laplacian is the given one."""
    graph = dense_graph(20, 19)
    monkeypatch.setattr(sparsification, "_distance", lambda *_: (0.0, 0, False))
    samples = torch.stack([ohm.sparsify(graph, 0.6, seed=seed).graph.laplacian() for seed in range(150)])
    spread = samples.std(0) / np.sqrt(150)
    assert float((samples[0] != graph.laplacian()).double().mean()) > 0.3
    assert ((samples.mean(0) - graph.laplacian()).abs() <= 5 * spread + 1e-12).all()


def test_bridges_stay_and_components_are_kept_apart():
    graph = disjoint(dense_graph(60, 55), dense_graph(50, 45, seed=1))
    bridged = Graph(
        torch.cat([graph.edge_index, torch.tensor([[0], [60]])], dim=1),
        torch.cat([graph.resistance, torch.tensor([100.0], dtype=torch.float64)]),
        graph.batch,
    )
    answer = ohm.sparsify(bridged, 0.8)
    assert bridged.num_edges - 1 in answer.kept.tolist()
    assert answer.graph.resistance[-1] == pytest.approx(100.0)
    apart = ohm.sparsify(graph, 0.8)
    assert torch.equal(apart.graph.components, graph.components)
    assert true_distance(graph, apart.graph) <= 0.8


def test_trees_and_grids_come_back_unchanged():
    for graph in (weighted(400, grid_pairs(20)), Graph.from_networkx(nx.random_labeled_tree(50, seed=0))):
        answer = ohm.sparsify(graph, 0.5)
        assert answer.graph is graph
        assert (answer.method, answer.residual, answer.note) == ("none", 0.0, "sampling would not pay")


def test_the_same_seed_gives_the_same_graph_and_batches_are_sampled_graph_by_graph():
    graphs = [dense_graph(60, 55, seed=1), Graph.from_edges([(0, 1)]), dense_graph(70, 60, seed=2)]
    one, other = (ohm.sparsify(graphs[0], 0.8, seed=s).kept for s in (5, 6))
    assert torch.equal(one, ohm.sparsify(graphs[0], 0.8, seed=5).kept)
    assert not torch.equal(one, other)
    batch = Graph.collate(graphs)
    answer = ohm.sparsify(batch, 0.8, seed=5)
    alone = [ohm.sparsify(g, 0.8, seed=5 + i).graph for i, g in enumerate(graphs)]
    for part, graph in zip(answer.graph.split(), alone, strict=True):
        assert torch.equal(part.edge_index, graph.edge_index)
        assert torch.equal(part.resistance, graph.resistance)
    ends = batch.edge_index[:, answer.kept]
    assert torch.equal(ends, answer.graph.edge_index)


def test_gradients_go_through_the_weights_of_edges_that_stay():
    graph = dense_graph(60, 55)
    moved = Graph(graph.edge_index, graph.resistance.clone().requires_grad_(), graph.batch)
    answer = ohm.sparsify(moved, 0.8)
    answer.graph.resistance.sum().backward()
    expected = torch.zeros(graph.num_edges, dtype=torch.float64)
    expected[answer.kept] = (answer.graph.resistance / graph.resistance[answer.kept]).detach()
    torch.testing.assert_close(moved.resistance.grad, expected)


def test_gradients_pass_gradcheck_where_the_probabilities_do_not_change():
    graph = dense_graph(30, 28)
    chosen = ohm.sparsify(graph, 0.9).kept
    assert len(chosen) < 0.9 * graph.num_edges

    def ask(scale: torch.Tensor) -> torch.Tensor:
        answer = ohm.sparsify(Graph(graph.edge_index, scale * graph.resistance, graph.batch), 0.9)
        assert torch.equal(answer.kept, chosen)
        return answer.graph.resistance

    assert torch.autograd.gradcheck(ask, torch.tensor(1.3, dtype=torch.float64, requires_grad=True))


def test_labels_come_back_and_progress_stops():
    complete = nx.relabel_nodes(nx.complete_graph(40), {i: str(i) for i in range(40)})
    assert ohm.sparsify(complete, 0.9).labels == [str(i) for i in range(40)]
    graph = dense_graph(500, 120)
    stopped = ohm.sparsify(graph, 0.8, progress=lambda *_: True)
    assert stopped.stopped
    assert stopped.graph is graph


@pytest.mark.parametrize("eps", [0.0, -0.1, 1.0, float("nan")])
def test_eps_outside_zero_and_one_is_refused(eps: float):
    with pytest.raises(ValueError, match=r"expected eps in \(0, 1\)"):
        ohm.sparsify([(0, 1)], eps)


def test_an_empty_batch_stays_empty():
    none = Graph.collate([Graph.from_edges([(0, 1)])]).select(torch.tensor([], dtype=torch.long))
    answer = ohm.sparsify(none, 0.5)
    assert (answer.graph.num_graphs, len(answer.kept)) == (0, 0)
