"""Batches of mixed sizes: right for every graph, ragged, and never padded to the widest."""

import subprocess
import sys

import pytest
import torch

import ohmformer as ohm
from ohmformer import Graph, exact, native
from ohmformer.graph.ragged import Matrices
from tests.solve.test_solve import random_graph
from tests.strategies import demands_for
from tests.test_benchmarks import BENCHMARKS, QUESTIONS


@pytest.fixture
def parts(device) -> list[Graph]:
    sizes = [(7, 9), (30, 40), (600, 2400), (12, 20), (90, 300), (450, 500)]
    drawn = [random_graph(n, m, seed=n) for n, m in sizes]
    return [g.to(device) for g in (*drawn, Graph.from_edges([], num_nodes=3), Graph.from_edges([(0, 1)]))]


@pytest.fixture
def batch(parts) -> Graph:
    return Graph.collate(parts)


def test_potentials_of_a_mixed_batch_are_lapacks(parts, batch):
    psi = demands_for(batch, k=2)
    answer = ohm.potentials(batch, psi, tol=1e-9)
    truth = torch.cat([exact.potentials(g, x) for g, x in zip(parts, batch.nodes.split(psi), strict=True)])
    torch.testing.assert_close(answer.value, truth, rtol=0, atol=1e-6 * float(truth.abs().max()))
    assert "cubing" in answer.method
    assert answer.plan is not None
    assert len(answer.plan.parts) > 1


def test_all_pairs_edges_and_given_pairs_of_a_mixed_batch_are_lapacks(parts, batch):
    truth = [exact.effective_resistance(g) for g in parts]
    found = ohm.effective_resistance(batch, "all", tol=1e-9).value
    for ours, theirs in zip(found.split(), truth, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    edges = ohm.effective_resistance(batch, tol=1e-9).value
    first = batch.graph_offsets[batch.edge_graph]
    u, v = batch.edge_index - first
    of_edges = torch.stack([truth[g][a, b] for g, a, b in zip(batch.edge_graph, u, v, strict=True)])
    torch.testing.assert_close(edges, of_edges, rtol=1e-6, atol=1e-7)
    offsets = batch.graph_offsets.tolist()
    pairs = [
        (offsets[2], offsets[2] + 5),
        (offsets[0], offsets[0] + 1),
        (offsets[0], offsets[1]),
        (offsets[6], offsets[6] + 1),
    ]
    some = ohm.effective_resistance(batch, pairs, tol=1e-9).value
    assert some.tolist() == pytest.approx([float(truth[2][0, 5]), float(truth[0][0, 1]), torch.inf, torch.inf], rel=1e-6)


def test_heat_eigenvectors_roots_and_sums_of_a_mixed_batch_are_lapacks(parts, batch):
    for ours, g in zip(ohm.heat_kernel(batch, 0.3).value.split(), parts, strict=True):
        torch.testing.assert_close(ours, exact.heat(g, 0.3), rtol=0, atol=1e-5)
    x = demands_for(batch, k=2)
    heated = batch.nodes.split(ohm.heat_kernel(batch, 0.3, x).value)
    for ours, g, signal in zip(heated, parts, batch.nodes.split(x), strict=True):
        torch.testing.assert_close(ours, exact.heat(g, 0.3) @ signal, rtol=0, atol=1e-4)
    answer = ohm.eigenvectors(batch, 3)
    for values, vectors, g in zip(answer.eigenvalues, batch.nodes.split(answer.vectors), parts, strict=True):
        truth = exact.eigenvectors(g, 3)
        torch.testing.assert_close(values[truth.mask], truth.values[truth.mask], rtol=1e-9, atol=0)
        assert values[~truth.mask].isnan().all()
        left = g.laplacian() @ vectors - vectors * values.nan_to_num()
        assert float(left.abs().max()) < 1e-9
    small = [g for g in parts if g.num_nodes <= 400]
    for root, g in zip(ohm.resistive_embedding(Graph.collate(small)).value.split(), small, strict=True):
        torch.testing.assert_close(root @ root, exact.pinv(g), rtol=0, atol=1e-5)
    sums = ohm.kirchhoff_index(batch).value
    connected = [float(exact.effective_resistance(g).sum()) / 2 for g in parts]
    assert sums.tolist() == pytest.approx(connected, rel=1e-5)


def test_gradients_of_a_mixed_batch_are_those_of_its_graphs(parts):
    small = [parts[0], parts[2], parts[3]]
    r = [g.resistance.clone().requires_grad_() for g in small]
    graphs = [Graph(g.edge_index, x, g.batch) for g, x in zip(small, r, strict=True)]
    together = Graph.collate(graphs)
    psi = demands_for(together)
    ohm.potentials(together, psi, tol=1e-10).value.square().sum().backward()
    ours = [x.grad.clone() for x in r]
    for x, g, demand in zip(r, graphs, together.nodes.split(psi), strict=True):
        x.grad = None
        ohm.potentials(g, demand, tol=1e-10).value.square().sum().backward()
    for mine, x in zip(ours, r, strict=True):
        torch.testing.assert_close(mine, x.grad, rtol=1e-5, atol=1e-7)


def test_padded_matrices_are_refused_where_they_would_take_too_much(batch):
    found = ohm.effective_resistance(batch, "all").value
    assert found.padded_bytes == len(found) * 600**2 * 8
    with pytest.raises(ValueError, match=r"these take 0.0215 GiB instead of the 0.00426 they take now"):
        found.padded(most_bytes=10**6)
    assert found.padded().shape == (8, 600, 600)
    torch.testing.assert_close(Matrices.unpad(found.padded(), found.sizes).entries, found.entries)


PEAKS = """
import torch
from mixed_batch import QUESTIONS, demand, parts_and_batch, peak_memory
torch.set_num_threads(1)
batch = parts_and_batch()[-1]
for question, ask in QUESTIONS.items():
    print(peak_memory(lambda: ask(batch, demand(batch))), question)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_every_question_about_999_molecules_and_one_graph_of_2000_nodes_takes_less_than_a_gigabyte():
    run = subprocess.run([sys.executable, "-c", PEAKS], cwd=BENCHMARKS, capture_output=True, text=True, check=True)
    megabytes = {line.split(" ", 1)[1]: float(line.split(" ", 1)[0]) for line in run.stdout.splitlines()}
    assert list(megabytes) == list(QUESTIONS)
    assert max(megabytes.values()) < 1000, megabytes


def test_one_pair_in_every_graph_is_planned_as_one_demand_on_the_large_one():
    line, large = Graph.from_edges([(i, i + 1) for i in range(4)]), random_graph(600, 2400, seed=0)
    batch = Graph.collate([*[line] * 40, large])
    answer = ohm.effective_resistance(batch, [*((5 * i, 5 * i + 4) for i in range(40)), (200, 201)])
    one, many = (ohm.plan(large, demands=demands).parts[0].engine for demands in (1, 40))
    assert native.active() is None or one != many
    assert answer.plan is not None
    assert answer.plan.of(40).engine == one
    expected = torch.cat([torch.full((40,), 4.0), exact.effective_resistance(large)[0, 1:2]])
    torch.testing.assert_close(answer.value, expected.to(answer.value), rtol=1e-9, atol=0)
