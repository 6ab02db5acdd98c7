"""Functions of the Laplacian at the front door: heat, filters, roots and eigenvectors are those of SciPy and LAPACK."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ohmformer as ohm
from ohmformer import Graph, exact
from ohmformer.graph.families import family
from tests.solve.test_solve import generator, random_graph
from tests.strategies import graphs


@pytest.fixture(scope="module")
def large(device) -> Graph:
    return random_graph(1200, 6000).to(device)


@given(g=graphs(), s=st.sampled_from([0.01, 0.5, 3.0]))
@settings(max_examples=15)
def test_heat_is_scipys_expm(device, g, s):
    g = g.to(device)
    truth = scipy.linalg.expm(-s * g.laplacian().cpu().numpy())
    answer = ohm.heat_kernel(g, s, tol=1e-9)
    off = np.linalg.norm(answer.value.cpu().numpy() - truth, 2)
    assert answer.error is not None
    assert off <= answer.error + 1e-11  # SciPy's own
    assert off <= (answer.bound or 0.0) + 1e-11
    heat = torch.as_tensor(truth).to(device)
    x = torch.randn(g.num_nodes, 2, generator=generator(), dtype=torch.float64).to(g.device)
    torch.testing.assert_close(ohm.heat_kernel(g, s, x, tol=1e-9).value, heat @ x, atol=1e-7, rtol=1e-7)


def test_heat_of_an_extreme_graph_is_right_and_says_how():
    g = Graph.from_edges([(0, 1), (1, 2), (2, 3)], resistance=[1e-14, 1.0, 1e-3])
    answer = ohm.heat_kernel(g, 0.5)
    assert answer.method == "lapack"
    assert "when a layer was added" in answer.note
    truth = scipy.linalg.expm(
        -0.5 * Graph.from_edges([(0, 1), (1, 2), (2, 3)], resistance=[1e-6, 1.0, 1e-3]).laplacian().numpy()
    )
    np.testing.assert_allclose(
        answer.value.cpu().numpy(), truth, atol=1e-5
    )  # 1e-6 is as good as 1e-14 to a part in a million


def test_heat_on_a_large_graph_is_lapacks(large):
    x = torch.randn(1200, 2, generator=generator(), dtype=torch.float64).to(large.device)
    answer = ohm.heat_kernel(large, 0.3, x, tol=1e-8)
    assert answer.method == "chebyshev series"
    assert float((answer.value - exact.heat(large, 0.3) @ x).norm()) <= 1e-7 * float(x.norm())
    assert answer.residual <= 1e-8


@given(g=graphs())
@settings(max_examples=15)
def test_spectral_filter_is_f_of_the_laplacian(device, g):
    g = g.to(device)
    x = torch.randn(g.num_nodes, 2, generator=generator(), dtype=torch.float64).to(g.device)
    answer = ohm.spectral_filter(g, lambda t: 1 / (1 + t), x, tol=1e-9)
    torch.testing.assert_close(
        answer.value,
        torch.linalg.solve(torch.eye(g.num_nodes).to(g.resistance) + g.laplacian(), x),
        atol=1e-7,
        rtol=1e-7,
    )


@pytest.mark.parametrize("method", ["seeded", "cubing", "taylor", "series", "direct"])
def test_heat_by_every_method_is_scipys_expm(method, device):
    g = family("erdos-renyi", 12, generator=generator(), spread=1.0).to(device)
    x = torch.randn(12, 2, generator=generator(), dtype=torch.float64).to(g.device)
    truth = torch.as_tensor(scipy.linalg.expm(-0.2 * g.laplacian().cpu().numpy())).to(device) @ x
    answer = ohm.heat_kernel(g, 0.2, x, tol=1e-5, method=method, trace=method != "direct")
    assert float((answer.value - truth).norm(dim=0).max()) <= 1e-5 * float(x.norm(dim=0).max())
    assert (answer.trace is None) == (method == "direct")


@pytest.mark.parametrize("method", ["newton-schulz", "power-series", "direct"])
def test_the_principal_root_by_every_method(method, device):
    g = family("erdos-renyi", 10, generator=generator(), spread=0.5).to(device)
    answer = ohm.resistive_embedding(g, tol=1e-6, method=method)
    torch.testing.assert_close(answer.value, exact.sqrt_pinv(g), rtol=0, atol=1e-6)
    assert answer.bound is None or answer.residual <= answer.bound + 1e-9


@pytest.mark.parametrize("which", ["smallest", "largest"])
def test_lanczos_and_subspace_iteration_find_lapacks_eigenvectors(which, device):
    g = random_graph(600, 1500).to(device)
    truth = ohm.eigenvectors(g, 3, which, method="direct").value
    lanczos = ohm.eigenvectors(g, 3, which, method="lanczos")
    assert lanczos.method.startswith("lanczos")
    assert lanczos.residual <= 1e-6
    torch.testing.assert_close((truth.mT @ lanczos.value).abs(), torch.eye(3).to(truth), rtol=0, atol=1e-4)
    g = family("barbell", 12, generator=generator()).to(device)
    truth = ohm.eigenvectors(g, 1, which, method="direct").value
    subspace = ohm.eigenvectors(g, 1, which, method="subspace", trace=True, tol=1e-7)
    assert subspace.trace is not None
    assert len(subspace.trace) == subspace.layers
    assert abs(float((truth * subspace.value).sum())) == pytest.approx(1.0, abs=1e-6)


def test_eigenvectors_of_a_long_path_go_through_a_factorisation(device):
    n = 3000
    g = Graph.from_edges(np.stack([np.arange(n - 1), np.arange(1, n)], axis=1)).to(device)
    answer = ohm.eigenvectors(g, 2, tol=1e-9)
    assert answer.method == "lanczos through direct"
    expected = np.cos(np.pi * (np.arange(n) + 0.5) / n) * np.sqrt(2 / n)
    assert abs(float(answer.value[:, 0].cpu() @ torch.as_tensor(expected))) == pytest.approx(1.0, abs=1e-8)


@given(g=graphs())
@settings(max_examples=15)
def test_eigenvectors_are_eigenvectors(device, g):
    g = g.to(device)
    answer = ohm.eigenvectors(g, 3)
    assert answer.value.shape == (g.num_nodes, 3)
    assert answer.residual < 1e-10


@pytest.mark.parametrize("trace", [False, True])
def test_a_filter_that_is_zero_gives_zeros(trace):
    found = ohm.spectral_filter([(0, 1), (1, 2)], lambda x: 0 * x, [1.0, 2.0, 0.5], trace=trace)
    assert found.value.tolist() == [[0.0], [0.0], [0.0]]
    assert found.error == found.residual == 0.0


def test_heat_of_which_no_sample_but_that_at_zero_is_left_is_not_taken_for_zero():
    path = [(i, i + 1) for i in range(600)]
    for asked in ({"laplacian": "normalized"}, {"method": "series"}):
        with pytest.raises(ValueError, match="expected a smooth f on"):
            ohm.heat_kernel(path, 1e12, [1.0] + [0.0] * 600, **asked)  # pyright: ignore[reportArgumentType]


def path_spectrum(nodes: int) -> list[float]:
    """The eigenvalues of a path, ascending."""
    return [2 - 2 * math.cos(math.pi * j / nodes) for j in range(nodes)]


def spider(legs: int, length: int) -> Graph:
    starts = [1 + i * length for i in range(legs)]
    return Graph.from_edges([(0, s) for s in starts] + [(s + j, s + j + 1) for s in starts for j in range(length - 1)])


@pytest.mark.parametrize(("legs", "k"), [(100, 20), (70, 40)])
def test_lanczos_finds_all_copies_of_a_spiders_eigenvalues(legs, k):
    length = 3000 // legs
    spectrum = sorted(2 - 2 * math.cos(math.pi * (2 * j - 1) / (2 * length + 1)) for j in range(1, length + 1))  # of one leg
    found = ohm.eigenvectors(spider(legs, length), k, method="lanczos")
    np.testing.assert_allclose(found.eigenvalues, [spectrum[0]] * k, rtol=1e-7)
    found = ohm.eigenvectors(spider(legs, length), k, "largest", method="lanczos")
    np.testing.assert_allclose(found.eigenvalues[1:], [spectrum[-1]] * (k - 1), rtol=1e-9)
    torch.testing.assert_close(found.vectors.mT @ found.vectors, torch.eye(k, dtype=torch.float64))


@pytest.mark.parametrize(("k", "which"), [(8, "largest"), (40, "largest"), (20, "smallest")])
def test_lanczos_finds_all_copies_of_the_eigenvalues_of_equal_components(k, which):
    paths = Graph.from_edges([(30 * i + j, 30 * i + j + 1) for i in range(100) for j in range(29)])
    found = ohm.eigenvectors(paths, k, which)
    np.testing.assert_allclose(found.eigenvalues, [path_spectrum(30)[-1 if which == "largest" else 1]] * k, rtol=1e-7)


def test_lanczos_finds_all_copies_of_the_eigenvalues_of_a_hypercube_and_of_a_torus():
    cube = Graph.from_edges([(i, i ^ (1 << b)) for i in range(4096) for b in range(12) if not i >> b & 1])
    found = ohm.eigenvectors(cube, 12, "largest")
    np.testing.assert_allclose(found.eigenvalues, [24.0] + [22.0] * 11, rtol=1e-9)
    torus = Graph.from_edges(
        [(50 * i + j, 50 * ((i + a) % 50) + (j + 1 - a) % 50) for i in range(50) for j in range(50) for a in (0, 1)]
    )
    ring = [2 - 2 * math.cos(2 * math.pi * j / 50) for j in range(50)]
    found = ohm.eigenvectors(torus, 8)
    np.testing.assert_allclose(found.eigenvalues, sorted(x + y for x in ring for y in ring)[1:9], rtol=1e-7)
