"""Spectra by the native kernel, several graphs side by side in vector lanes, against LAPACK."""

import pytest
import torch
from torch_geometric.data import Data

from ohmformer import native
from ohmformer.encoding.inputs import read_pairs
from ohmformer.encoding.spectra import Spectra
from tests.encoding.molecules import batch_of, fuzzed, molecules


def spectra(data, dtype: torch.dtype) -> Spectra:
    weight, batch = data.edge_weight if "edge_weight" in data else None, getattr(data, "batch", None)
    return Spectra.of(read_pairs(data.edge_index, weight, batch, data.num_nodes, l1=False, dtype=torch.float64), dtype)


def check(data) -> None:
    """Eigenvalues are LAPACK's, eigenvectors orthonormal, and both make the same matrix, to the rounding of float32."""
    ours = spectra(data, torch.float32)
    with native.used("off"):
        truth = spectra(data, torch.float64)
    for first, last in zip(ours.start.tolist(), ours.start.tolist()[1:], strict=False):
        n = last - first
        if not n:
            continue
        begin = int(ours.offset[first])
        parts = [
            (s.values[first:last].double(), s.vectors[begin : begin + n * n].view(n, n).double()) for s in (ours, truth)
        ]
        (values, vectors), (wanted, theirs) = parts
        torch.testing.assert_close(values.sort().values, wanted, atol=5e-7, rtol=0)
        torch.testing.assert_close(vectors.mT @ vectors, torch.eye(n, dtype=torch.float64), atol=5e-7, rtol=0)
        torch.testing.assert_close((vectors * values) @ vectors.mT, (theirs * wanted) @ theirs.mT, atol=5e-7, rtol=0)


@pytest.mark.parametrize("library", native.available())
def test_small_graphs_have_lapack_s_spectra_whatever_their_sizes_symmetries_and_weights(library, monkeypatch):
    called = []
    monkeypatch.setattr(native, "call", lambda *x, real=native.call: (called.append(x[0]), real(*x))[1])
    with native.used(library):
        batch = batch_of(molecules(200))
        check(batch)
        order = torch.randperm(batch.num_edges, generator=torch.Generator().manual_seed(0))
        batch.edge_index = batch.edge_index[:, order]
        check(batch)
        for seed in range(80):
            check(fuzzed(seed))
    small = sum((fuzzed(seed).num_nodes or 0) <= 64 for seed in range(80))
    assert called.count("ohm_eigen") == 2 + small  # larger graphs are left to LAPACK


@pytest.mark.parametrize("library", native.available())
def test_nodes_without_edges_do_not_drown_in_rounding(library):
    """What rounding leaves of their zeros shrinks from one reflection to the next, until its square is below any number."""
    draw = torch.Generator().manual_seed(0)
    with native.used(library):
        check(fuzzed(457))
        for edges in range(1, 9):
            graphs = [
                Data(edge_index=torch.randint(0, 48, (2, edges), generator=draw).sort(dim=0).values, num_nodes=48)
                for _ in range(40)
            ]
            check(batch_of(graphs))
