"""One small graph and kept spectra go through few kernels, which answer as the general code does, or leave it to it."""

from typing import cast

import networkx as nx
import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from ohmformer import native
from ohmformer.encoding import (
    AddEdgeHeat,
    AddEdgeResistance,
    AddEigenvectorPE,
    AddHeatDiagonalPE,
    AddLinearTransformerPE,
    AddRelativeEncoding,
    AddResistancePE,
    AddSpectrum,
    LinearTransformerPE,
    pe,
    relative,
    transforms,
)
from ohmformer.encoding.norm import RunningNorm
from ohmformer.encoding.small_graphs import conductances, spectrum
from tests.encoding.molecules import batch_of, fuzzed, molecules
from tests.encoding.test_reads import trained

pytestmark = pytest.mark.skipif(native.active() is None, reason="needs the native library")


def truth(data: Data) -> np.ndarray:
    """The conductances between all nodes, each edge once, by networkx."""
    assert data.edge_index is not None
    pairs = data.edge_index.t().tolist()
    weights = [1.0] * len(pairs) if data.edge_weight is None else data.edge_weight.double().tolist()
    graph = nx.MultiGraph()
    graph.add_nodes_from(range(data.num_nodes or 0))
    both = any(u < v for u, v in pairs) and any(u > v for u, v in pairs)
    graph.add_edges_from(
        (u, v, {"weight": w}) for (u, v), w in zip(pairs, weights, strict=True) if u < v or (not both and u > v)
    )
    return nx.to_numpy_array(graph, weight="weight") if len(graph) else np.zeros((0, 0))


def test_conductances_of_any_small_graph_are_those_of_networkx():
    taken = 0
    for data in (fuzzed(seed) for seed in range(200)):
        found = conductances(data.edge_index, data.edge_weight, data.num_nodes)
        if found is not None:
            taken += 1
            np.testing.assert_allclose(found.numpy(), truth(data), rtol=1e-12)
    assert taken > 120  # the others are too large, or have parallel edges of different weights


@pytest.mark.parametrize(
    ("edges", "weight"),
    [
        ([(0, 1), (1, 0), (1, 2)], None),
        ([(0, 1), (1, 0), (0, 1)], None),
        ([(0, 5)], None),
        ([(0, -1)], None),
        ([(0, 1), (1, 0)], [1.0, 2.0]),
        ([(0, 1), (1, 2)], [1.0, -1.0]),
        ([(0, 1), (1, 2)], [1.0, float("nan")]),
        ([(0, 1), (1, 2)], [1.0, float("inf")]),
        ([(0, 1), (1, 2)], [1.0, 1e-300]),
        ([(0, 1), (1, 2)], [1.0, 1.0, 1.0]),
    ],
)
def test_lists_that_are_not_plainly_right_are_left_to_the_general_code(edges, weight):
    given = None if weight is None else torch.tensor(weight, dtype=torch.float64)
    assert conductances(torch.tensor(edges).t(), given, 3) is None


def test_what_kernels_are_not_written_for_is_left_to_the_general_code():
    edges = torch.tensor([[0, 1], [1, 2]])
    assert conductances(edges, None, 64) is not None
    assert conductances(edges, None, 65) is None
    assert conductances(edges, None, None) is None
    assert conductances(edges.int(), None, 3) is None
    assert conductances(edges, torch.ones(2, requires_grad=True), 3) is None
    with native.used("off"):
        assert conductances(edges, None, 3) is None


@pytest.mark.parametrize("laplacian", ["normalized", "combinatorial"])
def test_spectra_of_one_graph_are_those_of_lapack(laplacian):
    for data in (fuzzed(seed) for seed in range(80)):
        matrix = conductances(data.edge_index, data.edge_weight, data.num_nodes)
        if matrix is None or not len(matrix):
            continue
        degree = matrix.sum(1)
        wanted = torch.diag(degree) - matrix
        if laplacian == "normalized":
            root = torch.where(degree > 0, degree, 1.0).rsqrt()
            wanted = root[:, None] * wanted * root
        values, vectors, unit = spectrum(matrix, laplacian)
        scale = float(wanted.abs().max()) or 1.0
        exact = torch.linalg.eigvalsh(wanted)
        torch.testing.assert_close(values.double() * unit / scale, exact / scale, atol=3e-7, rtol=0)
        v = vectors.double().view(len(matrix), -1)
        torch.testing.assert_close(v * values.double() * unit @ v.mT / scale, wanted / scale, atol=3e-6, rtol=0)


FIXED = [
    AddSpectrum(), AddSpectrum("combinatorial"), AddEigenvectorPE(3, sign="absolute"), AddHeatDiagonalPE(), AddEdgeHeat(),
    AddResistancePE(), AddEdgeResistance(), AddRelativeEncoding("walks"), AddRelativeEncoding("heat"),
    AddRelativeEncoding("resistance"), AddLinearTransformerPE(LinearTransformerPE(7)),
    AddLinearTransformerPE(LinearTransformerPE(16, read="edges", laplacian="combinatorial")),
]  # fmt: skip


@pytest.mark.parametrize("transform", FIXED, ids=lambda transform: repr(transform)[:60])
def test_one_graph_is_encoded_as_by_the_general_code(transform, monkeypatch):
    """Which is that of batches, taken where there are no kernels."""

    def refuse(*_: object, **__: object):
        raise AssertionError("expected one small graph to be read by a kernel")

    for data in (*molecules(8), *(g for g in map(fuzzed, range(30)) if g.num_nodes and g.edge_weight is None)):
        with native.used("off"):
            wanted = transform(data.clone())
        if (data.num_nodes or 0) <= 64:
            with monkeypatch.context() as patch:
                for module, name in (
                    (pe, "read_pairs"),
                    (transforms, "read_pairs"),
                    (relative, "read_pairs"),
                    (transforms, "graph_of"),
                ):
                    patch.setattr(module, name, refuse)
                found = transform(data.clone())
            for name in set(wanted.keys()) - {"spectrum_vectors", "eigenvector_pe"}:  # which have no basis of their own
                torch.testing.assert_close(found[name], wanted[name], atol=2e-5, rtol=1e-5)


def test_zero_weights_and_weights_over_twelve_decades_of_one_graph_are_those_of_the_general_code():
    model = LinearTransformerPE(16, read=("nodes", "edges"), norm=None).eval()
    for data in (g for g in map(fuzzed, range(60)) if g.edge_weight is not None and 0 < (g.num_nodes or 0) <= 64):
        data.edge_weight[data.edge_weight < 1e-4] = 0.0
        with torch.no_grad():
            found = model(data)
            with native.used("off"):
                wanted = model(data)
        for x, y in zip(found, wanted, strict=True):
            torch.testing.assert_close(x, y, atol=2e-5, rtol=0)


@pytest.mark.parametrize("reads", ["nodes", "edges", ("edges", "nodes")])
@pytest.mark.parametrize(("hidden", "dim"), [(16, 16), (5, 3), (5, 9), (16, 20)])
def test_encodings_and_gradients_of_kept_spectra_are_those_of_torch(reads, hidden, dim):
    batch = batch_of(AddSpectrum()(g.clone()) for g in molecules(60)[-40:])
    models = [LinearTransformerPE(dim, read=reads, hidden=hidden, groups=4, norm=norm, seed=3) for norm in (None, "running")]
    for model in models:
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
        found = []
        for library in (native.active(), None):
            model.zero_grad()
            for norm in model.norms.values():
                cast(RunningNorm, norm).reset_running_stats()
            with native.used("off" if library is None else library.name):
                out = model.train()(batch)
                sums = [x.sin().sum() for x in (out if isinstance(out, tuple) else (out,))]
                torch.stack(sums).sum().backward()
                with torch.no_grad():
                    still = model.eval()(batch)
            rows = [*(out if isinstance(out, tuple) else (out,)), *(still if isinstance(still, tuple) else (still,))]
            slopes = [p.grad for p in model.parameters() if p.grad is not None]
            found.append([*rows, *(slope / max(float(slope.norm()), 1e-6) for slope in slopes)])
        for x, y in zip(*found, strict=True):
            torch.testing.assert_close(x, y, atol=2e-4, rtol=1e-4)


def test_edges_in_any_order_and_graphs_without_nodes_are_encoded_as_by_torch():
    graphs = [AddSpectrum()(g.clone()) for g in molecules(6)]
    batch = batch_of(graphs)
    order = torch.randperm(batch.num_edges, generator=torch.Generator().manual_seed(0))
    model = trained()
    with torch.no_grad():
        wanted = model(batch)
        batch.edge_index = batch.edge_index[:, order]
        found = model(batch)
    torch.testing.assert_close(found[0], wanted[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(found[1], wanted[1][order], atol=1e-6, rtol=0)
    empty = AddSpectrum()(Data(edge_index=torch.zeros(2, 0, dtype=torch.long), num_nodes=0))
    alone = AddSpectrum()(Data(edge_index=torch.zeros(2, 0, dtype=torch.long), num_nodes=1))
    both = LinearTransformerPE(16, read=("nodes", "edges"))
    assert [tuple(x.shape) for x in both(batch_of([empty, graphs[0].cpu(), alone]))][1] == (graphs[0].num_edges, 16)
