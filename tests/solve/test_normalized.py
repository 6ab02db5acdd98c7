"""The normalised Laplacian at the front door: heat, filters and eigenvectors against SciPy and networkx."""

import networkx as nx
import numpy as np
import pytest
import scipy.sparse.linalg as sla
import torch
from scipy.linalg import expm

import ohmformer as ohm
from ohmformer.graph import Graph


def grid(side: int) -> nx.Graph:
    """A grid with conductances between 0.5 and 2, beside a path and a single node."""
    graph = nx.disjoint_union_all([nx.grid_2d_graph(side, side), nx.path_graph(3), nx.empty_graph(1)])
    draw = np.random.default_rng(0)
    nx.set_edge_attributes(graph, {edge: draw.uniform(0.5, 2) for edge in graph.edges}, "weight")
    return graph


def matrix(graph: nx.Graph) -> np.ndarray:
    return nx.normalized_laplacian_matrix(graph).toarray()


@pytest.mark.parametrize("batched", [False, True])
def test_heat_is_the_matrix_exponential_of_the_normalised_laplacian(batched):
    graph = grid(4)
    truth = expm(-0.7 * matrix(graph))
    asked = ohm.graph.labelled.as_graph(graph, conductance="weight").graph
    if batched:
        asked = Graph.collate([asked, asked])
    found = ohm.heat_kernel(asked, 0.7, laplacian="normalized").value
    for value in found.split() if batched else [found]:
        np.testing.assert_allclose(value, truth, atol=1e-12)
    signals = torch.eye(20, 3, dtype=torch.float64).repeat(1 + batched, 1)
    moved = ohm.heat_kernel(asked, 0.7, signals, laplacian="normalized", tol=1e-9)
    np.testing.assert_allclose(moved.value[-20:], truth[:, :3], atol=1e-8)
    assert moved.residual <= 1e-9


def test_filters_are_functions_of_the_normalised_laplacian_with_gradients_of_weights():
    graph = grid(3)
    values, vectors = np.linalg.eigh(matrix(graph))
    signal = np.linspace(-1, 1, 13)[:, None]
    found = ohm.spectral_filter(
        graph, lambda x: 1 / (1 + x), signal, laplacian="normalized", conductance="weight", tol=1e-10
    )
    np.testing.assert_allclose(found.value, vectors / (1 + values) @ vectors.T @ signal, atol=1e-9)
    edges, x = torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.tensor([[1.0], [0.0], [0.0]], dtype=torch.float64)
    weight = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64, requires_grad=True)
    heat = lambda r: ohm.heat_kernel(Graph.from_edges(edges.T.tolist(), resistance=r), 0.5, laplacian="normalized").value @ x  # noqa: E731
    assert torch.autograd.gradcheck(heat, weight)


@pytest.mark.parametrize("which", ["smallest", "largest"])
def test_eigenvectors_are_those_of_networkx_and_their_null_space_is_left_out(which):
    graph = grid(5)
    truth = np.linalg.eigvalsh(matrix(graph))
    wanted = truth[3:7] if which == "smallest" else truth[::-1][:4]
    found = ohm.eigenvectors(graph, 4, which, laplacian="normalized", conductance="weight")
    np.testing.assert_allclose(found.eigenvalues, wanted, atol=1e-12)
    vectors = np.asarray(list(found.value.values())) if isinstance(found.value, dict) else found.value.numpy()
    np.testing.assert_allclose(matrix(graph) @ vectors, vectors * wanted, atol=1e-10)
    assert found.residual < 1e-10


def test_eigenvectors_of_a_large_graph_by_lanczos_are_those_of_scipy():
    graph = grid(50)
    asked = ohm.graph.labelled.as_graph(graph, conductance="weight").graph
    truth = nx.normalized_laplacian_matrix(graph).tocsc()
    low = np.sort(sla.eigsh(truth, k=8, sigma=-1e-3)[0])[3:7]  # three components, three zeros
    high = np.sort(sla.eigsh(truth, k=3, which="LA")[0])[::-1]
    smallest = ohm.eigenvectors(asked, 4, laplacian="normalized")
    np.testing.assert_allclose(smallest.eigenvalues, low, atol=1e-8)
    assert smallest.method.startswith("lanczos through")
    largest = ohm.eigenvectors(asked, 3, "largest", laplacian="normalized")
    np.testing.assert_allclose(largest.eigenvalues, high, atol=1e-8)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda g: ohm.heat_kernel(g, laplacian="signless"), "expected laplacian among combinatorial, normalized, got"),
        (lambda g: ohm.heat_kernel(g, laplacian="normalized", method="taylor"), "expected a method among auto, direct"),
        (lambda g: ohm.eigenvectors(g, laplacian="normalized", method="subspace"), "expected a method among auto, direct"),
        (lambda g: ohm.eigenvectors(g, laplacian="normalized", trace=True), "expected trace=False with laplacian"),
        (
            lambda g: ohm.spectral_filter(g, np.exp, np.zeros(3), null=False, laplacian="normalized"),
            "expected null=True with laplacian='normalized'",
        ),
    ],
)
def test_what_the_normalised_laplacian_does_not_have_is_refused_in_one_sentence(ask, words):
    with pytest.raises(ValueError, match=words):
        ask(nx.path_graph(3))
