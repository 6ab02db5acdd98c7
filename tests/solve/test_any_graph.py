"""Any graph at all: disconnected, isolated nodes, duplicates, self-loops, resistances over sixteen orders of magnitude."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ohmformer as ohm
from ohmformer import Graph


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@st.composite
def anything(draw) -> Graph:
    """Disconnected, isolated nodes, duplicates, self-loops, resistances from 1e-8 to 1e8."""
    n = draw(st.integers(1, 14))
    node = st.integers(0, n - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=25))
    power = st.floats(-8, 8)
    resistance = [10.0 ** draw(power) for _ in edges]
    return Graph.from_edges(edges, num_nodes=n, resistance=resistance)


@settings(max_examples=100)
@given(anything())
def test_no_graph_gives_nan_or_an_error_but_that_of_the_principal_root(g):
    ask_everything(g)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(anything())
def test_no_graph_of_a_thousand_gives_nan_or_an_error_but_that_of_the_principal_root(g):
    ask_everything(g)


def ask_everything(g: Graph) -> None:
    psi = g.center(torch.randn(g.num_nodes, 2, generator=generator(), dtype=torch.float64))
    x = torch.randn(g.num_nodes, 2, generator=generator(), dtype=torch.float64)
    for ask in (
        lambda: ohm.potentials(g, psi, center=True),
        lambda: ohm.electric_flow(g, psi, center=True),
        lambda: ohm.effective_resistance(g),
        lambda: ohm.effective_resistance(g, "all"),
        lambda: ohm.kirchhoff_index(g),
        lambda: ohm.resistive_embedding(g, 4),
        lambda: ohm.heat_kernel(g, 0.5, x),
        lambda: ohm.eigenvectors(g, 20),
    ):
        check(ask())
    refusal = ""
    try:
        check(ohm.resistive_embedding(g))
    except ValueError as error:
        refusal = str(error)
    assert not refusal or "reaches" in refusal  # the principal root is LAPACK's where resistances range far


def check(answer: ohm.Answer) -> None:
    assert not torch.isnan(answer.value).any()
    assert np.isfinite(answer.residual)


@pytest.mark.parametrize("nodes", [0, 1, 2])
def test_graphs_without_edges_are_answered(nodes):
    g = Graph.from_edges([], num_nodes=nodes)
    zero = torch.zeros(nodes, 1, dtype=torch.float64)
    assert ohm.potentials(g, zero).value.tolist() == zero.tolist()
    assert ohm.effective_resistance(g).value.shape == (0,)
    assert ohm.effective_resistance(g, "all").value.shape == (nodes, nodes)
    assert ohm.eigenvectors(g, 2).value.shape == (nodes, 2)
    assert ohm.pinv_diagonal(g).value.tolist() == ohm.current_flow_closeness(g).value.tolist() == [0.0] * nodes
    assert ohm.harmonic(g, range(nodes), [2.0] * nodes).value.shape == (nodes, 1)
    assert ohm.sparsify(g, 0.5).graph.num_nodes == nodes
    assert float(ohm.kirchhoff_index(g).value) == (0.0 if nodes < 2 else float("inf"))
    torch.testing.assert_close(ohm.heat_kernel(g, 1.0).value, torch.eye(nodes, dtype=torch.float64))


@pytest.mark.parametrize(("resistance", "dtype"), [(5e307, torch.float64), (9e37, torch.float32)])
def test_resistances_that_overflow_their_dtype_are_refused_not_taken_for_other_components(resistance, dtype):
    edges = [(i, i + 1) for i in range(9)]
    path = Graph.from_edges(
        edges, num_nodes=11, resistance=torch.full((9,), resistance, dtype=dtype)
    )  # and an isolated node
    questions = [
        lambda: ohm.effective_resistance(path, "all"),
        lambda: ohm.effective_resistance(Graph.collate([path, path]), "all"),
        lambda: ohm.kirchhoff_index(Graph.from_edges(edges, resistance=path.resistance)),
        lambda: ohm.kron_reduce(path, [0, 9, 10]),
    ]
    for question in questions:
        with pytest.raises(ValueError, match="expected resistances between connected nodes, and their sums, of at most"):
            question()
    with pytest.raises(ValueError, match=r"expected resistances|reaches inf"):
        ohm.effective_resistance(path, [(0, 9)])
    near = ohm.kron_reduce(path, [0, 3, 10]).graph
    assert near.resistance.tolist() == pytest.approx([3 * resistance])
    assert near.num_components == 2
