"""Harmonic functions against SciPy's Dirichlet solve, exact fractions, and the maximum principle."""

from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as sla
import torch

import ohmformer as ohm
from ohmformer import Graph
from ohmformer.graph.families import disjoint, family
from ohmformer.solve import dirichlet
from tests.solve.test_selected import grid_pairs, weighted

PATH = [("a", "b"), ("b", "c"), ("c", "d")]
TWO = Graph.from_edges([(0, 1), (1, 2), (3, 4)])


def by_scipy(graph: Graph, fixed: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The Dirichlet problem by a sparse LU of the free rows of L."""
    laplacian = sp.csr_array(graph.sparse_laplacian().to_dense().numpy())
    free = np.setdiff1d(np.arange(graph.num_nodes), fixed)
    found = np.empty((graph.num_nodes, values.shape[1]))
    found[fixed] = values
    right = -laplacian[free][:, fixed] @ values
    found[free] = sla.splu(laplacian[free][:, free].tocsc()).solve(right)
    return found


def drawn(graph: Graph, count: int, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.choice(graph.num_nodes, count, replace=False), draw.normal(size=(count, k))


@pytest.mark.parametrize("side", [5, 15, 40])
def test_potentials_are_as_near_to_scipys_as_the_residual_says(side: int):
    graph = weighted(side * side, grid_pairs(side), orders=2)
    fixed, values = drawn(graph, 5, 3)
    answer = ohm.harmonic(graph, fixed, values)
    true = by_scipy(graph, fixed, values)
    off = np.abs(answer.value.numpy() - true).max(0) / np.ptp(values, axis=0)
    assert off.max() <= answer.residual + 1e-12 <= 2e-6
    np.testing.assert_array_equal(answer.value.numpy()[fixed], values)


def test_gamblers_ruin_in_fractions():
    probability = ohm.harmonic(nx.path_graph(11), [0, 10], [0.0, 1.0], tol=1e-12).value[:, 0]
    exact = [Fraction(i, 10) for i in range(11)]
    assert max(abs(Fraction(x) - y) for x, y in zip(probability.tolist(), exact, strict=True)) < 1e-12


@pytest.mark.parametrize("orders", [4, 10, 20])
def test_the_maximum_principle_holds_to_the_residual_however_far_conductances_range(orders: int):
    graph = weighted(20 * 20, grid_pairs(20), orders=orders, seed=orders)
    fixed, _ = drawn(graph, 12, 1, orders)
    answer = ohm.harmonic(graph, fixed, np.eye(3)[np.arange(12) % 3])
    assert answer.residual <= 1e-6
    assert -answer.residual <= float(answer.value.min())
    assert float(answer.value.max()) <= 1 + answer.residual
    assert float((answer.value.sum(1) - 1).abs().max()) <= 3 * answer.residual
    assert answer.method == dirichlet.METHOD or orders == 4


def test_twenty_orders_of_conductances_in_fractions():
    graph = weighted(25, grid_pairs(5), orders=40, seed=7)
    matrix = [[Fraction(0)] * 25 for _ in range(25)]
    for (u, v), r in zip(graph.edge_index.t().tolist(), graph.resistance.tolist(), strict=True):
        for a, b in ((u, v), (v, u)):
            matrix[a][b] -= 1 / Fraction(r)
            matrix[a][a] += 1 / Fraction(r)
    free = [i for i in range(25) if i not in (0, 24)]
    rows = [[matrix[i][j] for j in free] + [-matrix[i][24]] for i in free]
    for at in range(len(free)):  # Gauss and Jordan
        rows[at] = [x / rows[at][at] for x in rows[at]]
        for other in range(len(free)):
            if other != at:
                rows[other] = [x - rows[other][at] * y for x, y in zip(rows[other], rows[at], strict=True)]
    answer = ohm.harmonic(graph, [0, 24], [0.0, 1.0])
    error = answer.error or 0.0
    for i, row in zip(free, rows, strict=True):
        assert abs(Fraction(float(answer.value[i])) - row[-1]) <= error  # the largest value is one


def test_gradients_in_values_and_resistances():
    graph = family("ring", 6, generator=torch.Generator().manual_seed(0), spread=1.0)
    fixed, values = drawn(graph, 2, 2)

    def potentials(values: torch.Tensor, resistance: torch.Tensor) -> torch.Tensor:
        moved = Graph(graph.edge_index, resistance, graph.batch)
        return ohm.harmonic(moved, fixed, values, tol=1e-12).value

    inputs = torch.as_tensor(values).requires_grad_(), graph.resistance.clone().requires_grad_()
    assert torch.autograd.gradcheck(potentials, inputs)


def test_a_batch_is_answered_as_its_graphs_are():
    graphs = [weighted(side * side, grid_pairs(side), seed=side) for side in (3, 8, 22)]
    batch, first = Graph.collate(graphs), np.cumsum([0, 9, 64])
    fixed, values = [0, 8], np.array([[0.0, 1.0], [2.0, -1.0]])
    everywhere = np.concatenate([np.array(fixed) + start for start in first])
    together = ohm.harmonic(batch, everywhere, np.tile(values, (3, 1)), tol=1e-10).value.split([9, 64, 484])
    for graph, part in zip(graphs, together, strict=True):
        alone = ohm.harmonic(graph, fixed, values, tol=1e-10).value
        torch.testing.assert_close(part, alone, rtol=0, atol=4e-10)


def test_labels_mappings_masks_and_repeated_nodes():
    asked = {"a": [0.0, 1.0], "d": [3.0, 1.0]}
    answer = ohm.harmonic(PATH, asked)
    assert answer.labels == ["a", "b", "c", "d"]
    torch.testing.assert_close(answer.value[:, 0], torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64))
    np.testing.assert_array_equal(answer.value[:, 1], 1.0)  # a constant is exact
    again = ohm.harmonic(PATH, ["a", "d", "a"], [[0.0, 1.0], [3.0, 1.0], [0.0, 1.0]])
    assert torch.equal(again.value, answer.value)
    mask = torch.tensor([True, False, False, True])
    masked = ohm.harmonic(nx.path_graph(4), mask, list(asked.values()))
    torch.testing.assert_close(masked.value, answer.value)


def test_the_type_of_the_graph_comes_back_and_wider_values_widen_it():
    graph = weighted(64, grid_pairs(8)).to(dtype=torch.float32)
    fixed, values = drawn(graph, 4, 1)
    assert ohm.harmonic(graph, fixed, values.astype(np.float32)).value.dtype == torch.float32
    assert ohm.harmonic(graph, fixed, values).value.dtype == torch.float64
    with torch.inference_mode():
        assert ohm.harmonic(graph, fixed, values).residual < 1e-6


def test_where_all_nodes_are_fixed_nothing_is_solved():
    answer = ohm.harmonic(TWO, range(5), range(5))
    assert (answer.method, answer.residual, answer.value.flatten().tolist()) == ("none", 0.0, [0.0, 1.0, 2.0, 3.0, 4.0])


def test_components_without_a_fixed_node_are_refused_or_nan():
    with pytest.raises(ValueError, match=r"fixed node on every component, that of node 3 \(2 nodes\) has none"):
        ohm.harmonic(TWO, [0], [1.0])
    value = ohm.harmonic(TWO, [0], [1.0], partial=True).value.flatten()
    assert value[:3].tolist() == [1.0, 1.0, 1.0]
    assert value[3:].isnan().all()
    assert ohm.harmonic(TWO, [], [], partial=True).value.isnan().all()


def test_a_repeated_question_finds_the_grounded_graph_and_a_changed_graph_does_not():
    graph = weighted(900, grid_pairs(30))
    fixed, values = drawn(graph, 4, 1)
    first = ohm.harmonic(graph, fixed, values).value
    network = dirichlet._grounded(graph, torch.as_tensor(fixed))
    ohm.harmonic(graph, fixed, 2 * values)
    assert dirichlet._grounded(graph, torch.as_tensor(fixed)) is network
    graph.resistance[0] *= 1000
    changed = ohm.harmonic(graph, fixed, values)
    assert float((changed.value - first).abs().max()) > 1e-3
    np.testing.assert_allclose(changed.value, by_scipy(graph, fixed, values), atol=1e-5)


def test_progress_can_stop_it():
    graph = weighted(60 * 60, grid_pairs(60))
    fixed, values = drawn(graph, 2, 1)
    stopped = ohm.harmonic(graph, fixed, values, method="chebyshev", progress=lambda *_: True)
    assert stopped.stopped
    assert stopped.residual > 1e-6


def test_a_tolerance_out_of_reach_is_said():
    graph = disjoint(weighted(400, grid_pairs(20), orders=12), weighted(25, grid_pairs(5)))
    with pytest.raises(ValueError, match=r"asked for a residual of 1.0e-15, but .* reaches"):
        ohm.harmonic(graph, [0, 399, 401], [0.0, 1.0, 2.0], tol=1e-15)


BAD = {
    "contradiction": (lambda: ohm.harmonic(PATH, ["a", "b", "a"], [0.0, 1.0, 2.0]), "node 'a' has 0.0 and 2.0"),
    "contradiction by columns": (lambda: ohm.harmonic(TWO, [3, 0, 3], [[0, 1], [0, 0], [0, 2]]), r"node 3 has \[0.0, 1.0\]"),
    "unknown node": (lambda: ohm.harmonic(PATH, {"x": 1.0}), "expected a node of the graph, got 'x'"),
    "number outside": (lambda: ohm.harmonic(TWO, np.array([0, 5]), [0.0, 1.0]), "0..4, got 5"),
    "negative number": (lambda: ohm.harmonic(TWO, torch.tensor([0, -1]), [0.0, 1.0]), "0..4, got -1"),
    "fractions for nodes": (lambda: ohm.harmonic(TWO, np.array([0.5]), [0.0]), "expected node numbers"),
    "one name": (lambda: ohm.harmonic(PATH, "ad", [0.0, 1.0]), "expected a list of nodes, got 'ad'"),
    "no values": (lambda: ohm.harmonic(PATH, ["a"]), "expected values"),
    "values twice": (lambda: ohm.harmonic(PATH, {"a": 1.0}, [1.0]), "beside a mapping"),
    "too few values": (lambda: ohm.harmonic(PATH, ["a", "d"], [1.0]), r"shape \(2, k\), got \(1,\)"),
    "NaN": (lambda: ohm.harmonic(PATH, ["a", "d"], [1.0, np.nan]), "finite real values"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_one_sentence(name: str):
    call, sentence = BAD[name]
    with pytest.raises(ValueError, match=sentence) as error:
        call()
    assert "\n" not in str(error.value)
