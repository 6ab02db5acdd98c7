import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ohmformer import Graph, exact
from ohmformer.constructions import (
    Gap,
    GramSchmidt,
    Laplacian,
    NewtonSchulz,
    ParallelGramSchmidt,
    Shifted,
    SubspaceIteration,
    ThroughPinv,
)
from ohmformer.constructions.eigenvectors import sine
from ohmformer.constructions.orthogonalize import VECTORS, single_index
from ohmformer.graph.families import family
from ohmformer.transformer import COLUMNS, INCIDENCE, EfficientTransformer, Program
from tests.strategies import connected


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def columns(n: int, k: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, k, generator=generator(seed), dtype=torch.float64)


def weighted(seed: int = 0, n: int = 12) -> Graph:
    return family("erdos-renyi", n, generator=generator(seed), spread=2.0)


SOLVERS = {
    "lemma 6": (Laplacian, GramSchmidt),
    "corollary 7": (Shifted, GramSchmidt),
    "parallel heads": (Laplacian, ParallelGramSchmidt),
    "newton-schulz": (Laplacian, NewtonSchulz),
    "through the inverse": (ThroughPinv, NewtonSchulz),
    "through the inverse, gram-schmidt": (ThroughPinv, GramSchmidt),
}


@pytest.mark.parametrize("name", sorted(SOLVERS))
@settings(max_examples=15)
@given(g=connected(largest=9), k=st.integers(1, 3), steps=st.integers(0, 8), products=st.integers(1, 3))
def test_angle_is_below_its_bound(device, name, g, k, steps, products):
    g = g.to(device)
    multiply, orthogonalize = SOLVERS[name]
    solver = SubspaceIteration(multiply(exact.spectrum(g)), orthogonalize(k), products)
    wanted = solver.eigenspace(g)
    assume(wanted.ratio <= 0.99)  # else the eigenspace is not separated, and the bound has nothing to say
    if orthogonalize is NewtonSchulz:
        rounds = max(6, math.ceil(products * math.log(wanted.condition) / math.log(1.5)))
        solver = SubspaceIteration(solver.multiply, NewtonSchulz(k, rounds), products)
    start = solver.start(g, seed=1)
    gap = solver.gap(g, start)
    layers = solver.layers(steps)
    found = solver.run(g, start, layers=layers)
    assert sine(wanted.basis, found) <= solver.error_bound(layers, gap) + solver.rounding(gap, g.num_nodes)


def test_several_products_before_one_orthogonalisation_reach_the_same_angle_in_fewer_layers():
    g = weighted(3)
    once, thrice = (SubspaceIteration(Laplacian(exact.spectrum(g)), GramSchmidt(2), products) for products in (1, 3))
    start = once.start(g, seed=0)
    gap = once.gap(g, start)
    assert thrice.layers_for(1e-9, gap) < 0.6 * once.layers_for(1e-9, gap)
    for solver in (once, thrice):
        layers = solver.layers_for(1e-9, gap)
        assert sine(solver.eigenspace(g).basis, solver.run(g, start, layers=layers)) <= 1e-9 + solver.rounding(gap, 12)
    *_, plain = thrice.plain(g.laplacian(), thrice.inputs(g, start), thrice.layers(4) + 2)  # within a step, too
    torch.testing.assert_close(thrice.run(g, start, layers=thrice.layers(4) + 2), plain.flip(-1))
    assert [thrice.steps(layers) for layers in range(7)] == [0, 1, 2, 3, 3, 3, 4]
    with pytest.raises(ValueError, match="expected at least 1 product in a step, got 0"):
        SubspaceIteration(once.multiply, GramSchmidt(2), 0)
    with pytest.raises(ValueError, match="to the power 3"):
        SubspaceIteration(once.multiply, NewtonSchulz(2, 1), 3).error_bound(10, Gap(0.5, 1.0, 1.4))


@pytest.mark.parametrize("name", sorted(SOLVERS))
def test_eigenspace_is_numpys_to_1e_8_at_the_depth_that_layers_for_says(device, name):
    multiply, orthogonalize = SOLVERS[name]
    g = weighted(3).to(device)
    solver = SubspaceIteration(multiply(exact.spectrum(g)), orthogonalize(2))
    start = solver.start(g, seed=0)
    gap = solver.gap(g, start)
    found = solver.run(g, start, layers=solver.layers_for(1e-9, gap))
    _, vectors = np.linalg.eigh(g.laplacian().cpu().numpy())
    chosen = {"lemma 6": [-1, -2], "corollary 7": [0, 1], "parallel heads": [-1, -2], "newton-schulz": [-1, -2]}
    truth = torch.as_tensor(vectors[:, chosen.get(name, [1, 2])])
    assert sine(truth.to(device), found) <= 1e-8


def test_gram_schmidt_finds_each_eigenvector_and_in_order(device):
    g = weighted(1).to(device)
    solver = SubspaceIteration(Laplacian(exact.spectrum(g)), GramSchmidt(3))
    found = solver.run(g, solver.start(g, seed=0), layers=solver.layers(600))
    truth = torch.as_tensor(np.linalg.eigh(g.laplacian().cpu().numpy())[1][:, [-1, -2, -3]].copy())
    torch.testing.assert_close((found.cpu().T @ truth).abs(), torch.eye(3, dtype=torch.float64), atol=1e-6, rtol=0)


def test_bottom_k_through_the_inverse_needs_far_fewer_layers_than_corollary_7(device):
    g = family("grid", 36, generator=generator()).to(device)
    spectrum = exact.spectrum(g)
    shifted = SubspaceIteration(Shifted(spectrum), NewtonSchulz(3))  # constant, and the two of the first level
    through = SubspaceIteration(ThroughPinv(spectrum), NewtonSchulz(2))
    depth = [s.layers_for(1e-8, s.gap(g, s.start(g, seed=0))) for s in (shifted, through)]
    assert depth[1] * 4 < depth[0]


def test_newton_schulz_and_gram_schmidt_span_the_same_space_after_every_step(device):
    g = weighted(2).to(device)
    k = 4
    by_rows = SubspaceIteration(Laplacian(exact.spectrum(g)), GramSchmidt(k))
    at_once = SubspaceIteration(Laplacian(exact.spectrum(g)), NewtonSchulz(k))
    start = by_rows.start(g, seed=0)
    for steps in (1, 5, 20):
        a = by_rows.run(g, start, layers=by_rows.layers(steps))
        b = at_once.run(g, start, layers=at_once.layers(steps))
        assert sine(torch.linalg.qr(a).Q, b) <= 1e-9


@given(st.integers(2, 6), st.integers(0, 50))
def test_lemma_8_in_descending_order_is_qr(device, k, seed):
    phi = columns(9, k, seed)
    out = _orthogonalize(GramSchmidt(k), phi.to(device), k).cpu()
    # LAPACK's QR of the columns in reverse order, up to sign
    q = torch.linalg.qr(phi.flip(-1)).Q.flip(-1)
    torch.testing.assert_close((out.T @ q).abs(), torch.eye(k, dtype=torch.float64), atol=1e-9, rtol=0)


def test_lemma_8_is_a_layer_that_moves_one_column_only(device):
    phi = columns(7, 4).to(device)
    phi = phi / phi.norm(dim=0)
    program = Program({INCIDENCE: "edges", VECTORS: 4}, [single_index(1, 4)], COLUMNS)
    none = torch.zeros(7, 7, dtype=torch.float64, device=device)
    out = EfficientTransformer(program).to(device)(none, {VECTORS: phi})[VECTORS]
    expected = phi.clone()
    expected[:, 1] -= sum((phi[:, 1] @ phi[:, j]) * phi[:, j] for j in (2, 3))
    expected[:, 1] /= expected[:, 1].norm()
    torch.testing.assert_close(out, expected)


@given(st.integers(1, 6), st.integers(0, 50))
def test_parallel_heads_are_exact_after_k_layers(device, k, seed):
    out = _orthogonalize(ParallelGramSchmidt(k), columns(9, k, seed).to(device), k).cpu()
    torch.testing.assert_close(out.T @ out, torch.eye(k, dtype=torch.float64), atol=1e-8, rtol=0)


def test_parallel_heads_square_a_small_defect_in_one_layer():
    q = torch.linalg.qr(columns(12, 5)).Q
    defects = []
    for size in (1e-2, 1e-3):
        start = q + size * columns(12, 5, seed=1)
        out = _orthogonalize(ParallelGramSchmidt(5), start / start.norm(dim=0), 1)
        defects.append(float(torch.linalg.matrix_norm(out.T @ out - torch.eye(5, dtype=torch.float64), 2)))
    assert defects[1] < defects[0] / 50  # tenth the error in, a hundredth out


@given(st.integers(1, 6), st.integers(0, 50))
def test_newton_schulz_defect_is_below_its_bound_and_reaches_the_polar_factor(device, k, seed):
    phi = columns(9, k, seed)
    phi = phi / torch.linalg.matrix_norm(phi, 2)
    u, s, vh = torch.linalg.svd(phi, full_matrices=False)
    solver = NewtonSchulz(k)
    smallest = float(s[-1])
    for layers in (0, 1, 4, solver.layers_for(1e-12, smallest)):
        out = _orthogonalize(solver, phi.to(device), layers).cpu()
        defect = float(torch.linalg.matrix_norm(out.T @ out - torch.eye(k, dtype=torch.float64), 2))
        assert defect <= solver.error_bound(layers, smallest) + 1e-13
    torch.testing.assert_close(out, u @ vh, atol=1e-10, rtol=0)


def _orthogonalize(construction, phi: torch.Tensor, layers: int) -> torch.Tensor:
    g = Graph.from_edges([], num_nodes=len(phi)).to(phi.device)
    return construction.run_blocks(g, {VECTORS: phi}, layers).final[VECTORS]


def test_subspace_iteration_runs_on_batches(device):
    parts = [weighted(seed, n).to(device) for seed, n in ((0, 6), (1, 9))]
    together = Graph.collate(parts)
    solver = SubspaceIteration(Laplacian(exact.spectrum(together)), GramSchmidt(2))
    found = solver.run(together, solver.start(together, seed=0), layers=solver.layers(400))
    for i, g in enumerate(parts):
        truth = exact.eigenvectors(g, 2, "largest").vectors
        assert sine(truth, found[i, : g.num_nodes]) <= 1e-6


def test_a_bound_needs_a_gap():
    solver = SubspaceIteration(Laplacian(exact.spectrum(weighted())), GramSchmidt(2))
    with pytest.raises(ValueError, match=r"ratio in \[0, 1\), got 1.0"):
        solver.error_bound(10, Gap(1.0, 1.0))


def test_newton_schulz_refuses_a_bound_that_its_rounds_cannot_keep(device):
    """Eigenvalues 2000 to 1: six rounds make up for 11 only, twenty for 3,325."""
    g = Graph.from_edges([(0, 1), (1, 2), (2, 3), (3, 4)], conductance=[1000.0, 1.0, 20.0, 1.0]).to(device)
    few, many = (SubspaceIteration(Laplacian(exact.spectrum(g)), NewtonSchulz(3, rounds)) for rounds in (6, 20))
    start = many.start(g, seed=0)
    gap = many.gap(g, start)
    with pytest.raises(ValueError, match="6 rounds of Newton-Schulz make up for"):
        few.error_bound(10, gap)
    layers = many.layers_for(1e-6, gap)
    assert sine(many.eigenspace(g).basis, many.run(g, start, layers=layers)) <= 1e-6 + many.rounding(gap, 5)


def test_an_eigenvalue_of_zero_is_no_gap(device):
    g = family("complete", 4, generator=generator()).to(device)
    solver = SubspaceIteration(Shifted(exact.spectrum(g)), GramSchmidt(2))
    assert solver.eigenspace(g).ratio == 1.0
    with pytest.raises(ValueError, match="ratio"):
        solver.error_bound(5, solver.gap(g, solver.start(g, seed=0)))


def test_more_columns_than_eigenvectors_are_refused():
    edge = Graph.from_edges([(0, 1)])
    together = Graph.collate([edge, family("path", 5, generator=generator())])
    with pytest.raises(ValueError, match="k <= 1 eigenvectors of the smallest graph here, got 2"):
        SubspaceIteration(Laplacian(exact.spectrum(together)), GramSchmidt(2)).start(together, seed=0)
    with pytest.raises(ValueError, match="single graph, got a batch of 2"):
        SubspaceIteration(Laplacian(exact.spectrum(together)), GramSchmidt(1)).eigenspace(together)


def test_newton_schulz_depth_is_found_from_the_smallest_singular_values():
    assert NewtonSchulz(2).layers_for(1e-6, 1e-12) == pytest.approx(math.log(1e12) / math.log(1.5), abs=8)
