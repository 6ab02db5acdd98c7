"""Graphs with negative resistances: solved by L D L^T with the inertia, refused by everything else."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

import ohmformer as ohm
from ohmformer import Graph, native
from ohmformer.solve.plan import METHODS
from tests.solve.test_solve import random_graph


def signed_graph(nodes: int, edges: int, seed: int) -> Graph:
    positive = random_graph(nodes, edges, seed=seed)
    sign = np.where(np.random.default_rng(seed).random(positive.num_edges) < 0.2, -1.0, 1.0)
    r = positive.resistance.numpy() * sign
    return Graph.from_edges(positive.edge_index.t(), num_nodes=nodes, resistance=r, signed=True)


@pytest.mark.parametrize(("nodes", "edges"), [(6, 9), (60, 150), (500, 1100)])
@pytest.mark.parametrize("kernels", ["on", "off"])
def test_potentials_and_inertia_are_those_of_lapack(nodes: int, edges: int, kernels: str) -> None:
    if kernels == "on" and native.active() is None:
        pytest.skip("no native kernels in use")
    graph = signed_graph(nodes, edges, seed=nodes)
    psi = torch.randn(nodes, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    psi = graph.center(psi)
    with native.used("off") if kernels == "off" else nullcontext():
        answer = ohm.potentials(graph, psi, tol=1e-9)
    matrix = graph.laplacian().numpy()
    values = np.linalg.eigvalsh(matrix)
    small = 1e-10 * np.abs(values).max()
    assert (answer.method, answer.residual <= 1e-9) == ("LDL^T", True)
    assert answer.inertia == ((values > small).sum(), (values < -small).sum(), (np.abs(values) <= small).sum())
    truth = np.linalg.pinv(matrix, hermitian=True, rcond=1e-11) @ psi.numpy()
    condition = np.abs(values).max() / np.sort(np.abs(values))[1]
    np.testing.assert_allclose(answer.value, truth, rtol=0, atol=1e-9 * condition * np.abs(truth).max())


def test_components_and_batches_have_a_zero_eigenvalue_each() -> None:
    one = Graph.from_edges([(0, 1), (1, 2), (3, 4)], num_nodes=6, resistance=[1.0, -2.0, -3.0], signed=True)
    batch = Graph.collate([one, Graph.from_edges([(0, 1)])])
    psi = [1.0, 0.0, -1.0, 2.0, -2.0, 0.0, 1.0, -1.0]
    answer = ohm.electric_flow(batch, psi)
    assert answer.inertia == (2, 2, 4)
    torch.testing.assert_close(answer.flow[:, 0], torch.tensor([1.0, 1.0, 2.0, 1.0], dtype=torch.float64))
    assert [g.signed for g in batch.split()] == [True, True]
    assert batch.select(torch.tensor([0])).signed


def test_a_pivot_of_zero_is_solved_with_pivots_and_without_inertia() -> None:
    """The nodes of degree two, which are eliminated first, have conductances that add up to zero."""
    triangles = [(0, 1), (0, 2), (1, 2), (0, 3), (0, 4), (3, 4)]
    graph = Graph.from_edges(triangles, conductance=[1.0, 1.0, -1.0, 2.0, 2.0, -2.0], signed=True)
    psi = torch.tensor([1.0, -2.0, 0.5, 1.0, -0.5], dtype=torch.float64)
    answer = ohm.potentials(graph, psi)
    assert (answer.method, answer.inertia) == ("pivoted LU", None)
    truth = torch.linalg.pinv(graph.laplacian(), hermitian=True) @ psi
    torch.testing.assert_close(answer.value[:, 0], truth, rtol=0, atol=1e-12)


def test_a_laplacian_that_is_singular_beyond_its_components_is_refused() -> None:
    parallel = Graph.from_edges([(0, 1), (0, 1), (1, 2)], resistance=[2.0, -2.0, 1.0], signed=True)
    with pytest.raises(ValueError, match="expected a Laplacian with one zero eigenvalue per component"):
        ohm.potentials(parallel, [1.0, -1.0, 0.0])


@pytest.mark.parametrize("wanted", ["demands", "resistances"])
def test_gradients_go_through_the_factor(wanted: str) -> None:
    graph = signed_graph(6, 9, seed=6)
    psi = graph.center(torch.randn(6, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    if wanted == "demands":
        given = psi.clone().requires_grad_()
        assert torch.autograd.gradcheck(lambda x: ohm.potentials(graph, x, center=True, tol=1e-9).value, (given,))
        return
    given = graph.resistance.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda r: ohm.potentials(replace(graph, resistance=r), psi, tol=1e-9).value, (given,))


GRAPH = Graph.from_edges([(0, 1), (1, 2), (2, 0)], resistance=[1.0, 2.0, -3.0], signed=True)
DEMAND = [1.0, 0.0, -1.0]


@pytest.mark.parametrize("method", [m for m in METHODS if m not in ("auto", "direct")])
def test_other_engines_refuse_signed_graphs_in_a_sentence(method: str) -> None:
    with pytest.raises(ValueError, match="expected positive resistances, edge 2 has -3; a signed graph has potentials"):
        ohm.potentials(GRAPH, DEMAND, method=method)


@pytest.mark.parametrize(
    "ask",
    [
        lambda g: ohm.effective_resistance(g),
        lambda g: ohm.effective_resistance(g, "all"),
        lambda g: ohm.kirchhoff_index(g),
        lambda g: ohm.resistive_embedding(g),
        lambda g: ohm.heat_kernel(g),
        lambda g: ohm.eigenvectors(g, 1),
        lambda g: ohm.potentials(g, DEMAND, trace=True),
        lambda g: g.incidence(),
        lambda g: g.spectral_bounds(),
    ],
)
def test_other_questions_refuse_signed_graphs_in_a_sentence(ask) -> None:
    with pytest.raises(ValueError, match="expected positive resistances, edge 2 has -3"):
        ask(GRAPH)


def test_signs_are_only_taken_where_they_are_announced() -> None:
    with pytest.raises(ValueError, match="expected every resistance positive and finite, edge 0 has -1"):
        Graph.from_edges([(0, 1)], resistance=[-1.0])
    with pytest.raises(ValueError, match="expected every resistance finite and not zero, edge 0 has 0"):
        Graph.from_edges([(0, 1)], resistance=[0.0], signed=True)
    assert not Graph.from_edges([(0, 1)], resistance=[1.0], signed=True).signed
