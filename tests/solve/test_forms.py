"""Questions accept graphs, demands and pairs as people have them, and answer with their labels."""

from collections.abc import Hashable, Sequence

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Batch, Data

import ohmformer as ohm
from ohmformer import Graph
from ohmformer.solve import Plan

EDGES = [(0, 1), (1, 2), (2, 0), (2, 3)]
OHMS = [1.0, 2.0, 3.0, 4.0]
TRUTH = torch.tensor([5 / 6, 8 / 6, 9 / 6, 4.0], dtype=torch.float64)  # r beside the two others in a row; a bridge


def networkx_graph(labels: Sequence[Hashable] = "abcd") -> nx.Graph:
    g = nx.Graph()
    g.add_nodes_from(labels)
    for (u, v), r in zip(EDGES, OHMS, strict=True):
        g.add_edge(labels[u], labels[v], ohm=r)
    return g


def pyg_data() -> Data:
    index = torch.tensor(EDGES).t()
    both = torch.cat([index, index.flip(0)], dim=1)
    return Data(edge_index=both, ohm=torch.tensor(OHMS * 2, dtype=torch.float64), num_nodes=4)


def scipy_matrix() -> scipy.sparse.coo_array:
    (u, v), c = np.array(EDGES).T, 1 / np.array(OHMS)
    return scipy.sparse.coo_array((np.concatenate([c, c]), (np.concatenate([u, v]), np.concatenate([v, u]))), shape=(4, 4))


def resistances(answer: ohm.Answer, order: list[int] | None = None) -> None:
    value = answer.value if order is None else answer.value[order]
    torch.testing.assert_close(value, TRUTH, rtol=1e-6, atol=1e-6)


def test_a_networkx_graph_is_answered_with_its_labels():
    answer = ohm.effective_resistance(networkx_graph(), resistance="ohm")
    found = {frozenset(edge): r for edge, r in zip(networkx_graph().edges, answer.value.tolist(), strict=True)}
    for (u, v), r in zip(EDGES, TRUTH.tolist(), strict=True):
        assert found[frozenset(("abcd"[u], "abcd"[v]))] == pytest.approx(r)
    assert answer.labels == list("abcd")
    pairs = ohm.effective_resistance(networkx_graph(), [("a", "b"), ("c", "d")], resistance="ohm")
    torch.testing.assert_close(pairs.value, TRUTH[[0, 3]], rtol=1e-6, atol=1e-6)


def test_pyg_data_scipy_matrices_and_edge_lists_are_answered():
    resistances(ohm.effective_resistance(pyg_data(), EDGES, resistance="ohm"))
    resistances(ohm.effective_resistance(scipy_matrix(), EDGES, conductance="entries"))
    resistances(ohm.effective_resistance(EDGES, resistance=OHMS))
    resistances(ohm.effective_resistance(np.array(EDGES), resistance=np.array(OHMS)))
    named = ohm.effective_resistance([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")], resistance=OHMS)
    resistances(named)
    assert named.labels == ["a", "b", "c", "d"]
    batch = Batch.from_data_list([pyg_data(), pyg_data()])
    assert len(ohm.effective_resistance(batch, "all", resistance="ohm").value) == 2


def test_demands_are_lists_or_mappings_from_labels():
    truth = ohm.potentials(Graph.from_edges(EDGES, resistance=OHMS), torch.tensor([1.0, 0.0, 0.0, -1.0])).value
    for graph, demands in (
        (EDGES, [1.0, 0.0, 0.0, -1.0]),
        (EDGES, {0: 1.0, 3: -1.0}),
        ([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")], {"a": 1.0, "d": -1.0}),
    ):
        torch.testing.assert_close(ohm.potentials(graph, demands, resistance=OHMS).value, truth)


def test_numbers_in_a_list_keep_all_their_digits():
    third = ohm.potentials([(0, 1)], [1 / 3, -1 / 3], tol=1e-12).value[:, 0]
    torch.testing.assert_close(third, torch.tensor([1 / 6, -1 / 6], dtype=torch.float64), rtol=1e-12, atol=0)


def test_a_demand_of_a_wider_type_is_not_rounded():
    narrow = Graph.from_edges(EDGES).to(dtype=torch.float32)
    demand = torch.tensor([1.0, 0.0, 0.0, -1.0])
    assert ohm.potentials(narrow, demand, tol=1e-4).value.dtype == torch.float32
    wide = ohm.potentials(narrow, demand.double(), tol=1e-12)
    assert wide.value.dtype == torch.float64
    assert wide.residual <= 1e-12


def test_every_question_takes_every_form():
    questions = [
        lambda g, **w: ohm.potentials(g, [1.0, 0.0, 0.0, -1.0], **w),
        lambda g, **w: ohm.electric_flow(g, [1.0, 0.0, 0.0, -1.0], **w),
        lambda g, **w: ohm.effective_resistance(g, "all", **w),
        lambda g, **w: ohm.kirchhoff_index(g, **w),
        lambda g, **w: ohm.resistive_embedding(g, **w),
        lambda g, **w: ohm.heat_kernel(g, 0.5, [1.0, 0.0, 0.0, 0.0], **w),
        lambda g, **w: ohm.eigenvectors(g, 2, **w),
        lambda g, **w: ohm.spectral_filter(g, np.exp, [1.0, 0.0, 0.0, 0.0], **w),
        lambda g, **w: ohm.plan(g, **w),
    ]
    for ask in questions:
        for graph, weights in (
            (Graph.from_edges(EDGES, resistance=OHMS), {}),
            (networkx_graph(range(4)), {"resistance": "ohm"}),
            (pyg_data(), {"resistance": "ohm"}),
            (scipy_matrix(), {"conductance": "entries"}),
            (EDGES, {"resistance": OHMS}),
        ):
            answer = ask(graph, **weights)
            assert answer.parts if isinstance(answer, Plan) else answer.residual <= 1e-6


@pytest.mark.parametrize(
    ("graph", "options", "message"),
    [
        (7, {}, "expected a Graph, a networkx graph, .* got int"),
        ("edges.csv", {}, "expected a Graph, .* got str"),
        ([(0, 1), (1,)], {}, r"an edge is a pair of nodes, got \(1,\)"),
        ([([0], [1])], {}, "nodes that can be compared and hashed"),
        (scipy_matrix(), {}, "whose values are not all one, got neither"),
        (scipy_matrix(), {"conductance": "weight"}, 'expected resistance="entries" or conductance="entries"'),
        (Graph.from_edges(EDGES), {"resistance": OHMS}, "expected no resistance= or conductance= beside a Graph"),
        (EDGES, {"pairs": [(0, 9)]}, r"expected node numbers in 0\.\.3, got 9"),
        (EDGES, {"pairs": [("a", "b")]}, r"expected node numbers in 0\.\.3, got 'a'"),
        (EDGES, {"pairs": [3]}, "expected pairs of nodes, got 3"),
        (EDGES, {"pairs": "some"}, "expected pairs='edges', 'all' or a list of pairs, got 'some'"),
    ],
)
def test_what_is_no_graph_or_no_pair_is_refused_with_what_was_expected(graph, options, message):
    with pytest.raises(ValueError, match=message):
        ohm.effective_resistance(graph, **options)


def test_demands_that_are_no_numbers_or_on_no_node_are_refused():
    with pytest.raises(ValueError, match="expected numbers on the nodes, got list"):
        ohm.potentials(EDGES, ["a", "b", "c", "d"])
    with pytest.raises(ValueError, match=r"expected node numbers in 0\.\.3, got 'x'"):
        ohm.potentials(EDGES, {"x": 1.0})
    with pytest.raises(TypeError, match="unexpected keyword argument 'tolerance'"):
        ohm.electric_flow(EDGES, [1.0, 0.0, 0.0, -1.0], tolerance=1e-3)


@pytest.mark.parametrize("chosen", [[True, False], [np.True_, np.False_]])
def test_booleans_in_a_list_are_not_taken_for_node_numbers(chosen):
    edges = [(0, 1)]
    for question in (
        lambda: ohm.kron_reduce(edges, chosen),
        lambda: ohm.harmonic(edges, chosen, [0.0, 1.0]),
        lambda: ohm.effective_resistance(edges, [chosen]),
    ):
        with pytest.raises(ValueError, match=r"expected node numbers in 0\.\.1, got (np\.)?True"):
            question()
    assert ohm.kron_reduce(edges, torch.tensor([True, False])).kept.tolist() == [0]  # a mask


@pytest.mark.parametrize("dtype", [float, int, bool])
def test_entries_of_a_sparse_matrix_that_are_stored_twice_are_added_before_they_are_called_one(dtype):
    rows, columns = [0, 0, 1, 1, 1, 2], [1, 1, 0, 0, 2, 1]
    twice = scipy.sparse.coo_array((np.ones(6, dtype=dtype), (rows, columns)), shape=(3, 3))
    for matrix in (twice, scipy.sparse.csr_array((twice.data, [1, 1, 0, 0, 2, 1], [0, 2, 5, 6]), shape=(3, 3))):
        with pytest.raises(ValueError, match="a matrix whose values are not all one"):
            ohm.effective_resistance(matrix)
        assert matrix.nnz == 6
    counted = ohm.effective_resistance(twice.astype(float), conductance="entries")
    np.testing.assert_allclose(counted.value, [0.5, 1.0])
