"""Every construction of a function of the Laplacian: error below its bound, depth for a wanted error, numbers to reach."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ohmformer import Graph, Spectrum, exact
from ohmformer.constructions import (
    Chebyshev,
    ChebyshevCubing,
    Construction,
    CubedHeat,
    GradientDescent,
    NewtonSchulzRoot,
    PowerSeriesRoot,
    SeededHeat,
    SpectralFilter,
    Squaring,
    TaylorHeat,
)
from ohmformer.graph.families import family
from tests.strategies import demands_for, graphs

S = 0.4
BUILD = {
    "gradient descent": GradientDescent,
    "short steps": lambda spectrum: GradientDescent(spectrum, step=0.3 / spectrum.lmax),
    "chebyshev": Chebyshev,
    "squaring": Squaring,
    "chebyshev cubing": ChebyshevCubing,
    "power series root": PowerSeriesRoot,
    "newton-schulz root": lambda spectrum: NewtonSchulzRoot(spectrum, scaled=False),
    "scaled newton-schulz root": NewtonSchulzRoot,
    "taylor heat": lambda spectrum: TaylorHeat(spectrum, S),
    "cubed heat": lambda spectrum: CubedHeat(spectrum, S),
    "seeded heat": lambda spectrum: SeededHeat(spectrum, S),
    "filter": lambda spectrum: SpectralFilter(spectrum, lambda x: np.sqrt(x) / (1 + x)),
    "filter with null space": lambda spectrum: SpectralFilter(spectrum, lambda x: np.cos(x / 3), null=True),
}
NAMES = sorted(BUILD)


def independent_truth(name: str, laplacian: np.ndarray) -> np.ndarray:
    """f(L) without any of our code."""
    if "heat" in name:
        return scipy.linalg.expm(-S * laplacian)
    if name == "filter with null space":
        values, vectors = np.linalg.eigh(laplacian)
        return (vectors * np.cos(values / 3)) @ vectors.T
    inverse = np.linalg.pinv(laplacian, hermitian=True, rcond=1e-10)
    if "root" in name:
        null = np.eye(len(laplacian)) - laplacian @ inverse
        return np.real(scipy.linalg.sqrtm(inverse + null)) - null
    if name == "filter":
        values, vectors = np.linalg.eigh(laplacian)
        values = np.where(values > 1e-10 * values.max(), values, 0)
        return (vectors * (np.sqrt(values) / (1 + values))) @ vectors.T
    return inverse


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=12)
@given(g=graphs(largest=8), depth=st.integers(0, 12))
def test_error_is_below_its_bound(device, name, g, depth):
    g = g.to(device)
    construction: Construction = BUILD[name](exact.spectrum(g))
    layers = max(depth, construction.min_layers)
    answer = construction.run(g, layers=layers)
    error = np.linalg.norm(answer.cpu().numpy() - construction.target(g).cpu().numpy(), 2)
    assert error <= construction.error_bound(layers) + construction.rounding(layers, g.num_nodes)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=12)
@given(g=graphs(largest=8))
def test_answer_converges_to_an_independent_truth(device, name, g):
    g = g.to(device)
    construction = BUILD[name](exact.spectrum(g))
    eps = 1e-7 * construction.size
    layers = construction.layers_for(eps)
    error = np.linalg.norm(
        construction.run(g, layers=layers).cpu().numpy() - independent_truth(name, g.laplacian().cpu().numpy()), 2
    )
    assert error <= eps + construction.rounding(layers, g.num_nodes)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=12)
@given(g=graphs(largest=8))
def test_signals_give_the_matrix_applied_to_them(device, name, g):
    g = g.to(device)
    construction = BUILD[name](exact.spectrum(g))
    psi = demands_for(g)
    layers = max(6, construction.min_layers)
    answer = construction.run(g, psi, layers=layers)
    matrix = construction.run(g, layers=layers)
    torch.testing.assert_close(answer, matrix @ psi, rtol=1e-9, atol=1e-9 * float(matrix.abs().max()))


@pytest.mark.parametrize("name", NAMES)
def test_batches_equal_their_graphs_one_by_one(device, name):
    parts = [
        family(f, n, generator=torch.Generator().manual_seed(n), spread=1.0).to(device)
        for f, n in (("path", 4), ("csl", 9), ("star", 5))
    ]
    together = Graph.collate([*parts, Graph.from_edges([], num_nodes=2).to(device)])
    construction = BUILD[name](exact.spectrum(together))
    psi = demands_for(together)
    layers = max(7, construction.min_layers)
    answer = construction.run(together, psi, layers=layers)
    rows = psi.split([g.num_nodes for g in (*parts, Graph.from_edges([], num_nodes=2))])
    for g, mine, got in zip(parts, rows, answer.split([len(r) for r in rows]), strict=False):
        torch.testing.assert_close(got, construction.run(g, mine, layers=layers), rtol=1e-10, atol=1e-12)
    assert torch.isfinite(answer).all()


@pytest.mark.parametrize("name", NAMES)
def test_layers_for_is_the_least_depth_whose_bound_suffices(name):
    construction = BUILD[name](Spectrum(0.3, 5.0))
    for eps in (1.0, 1e-2, 1e-6, 1e-10):
        layers = construction.layers_for(eps)
        assert construction.error_bound(layers) <= eps
        if layers > construction.min_layers:
            assert construction.error_bound(layers - 1) > eps


@pytest.mark.parametrize("name", NAMES)
def test_float32_runs_in_float32(device, name):
    g = family("csl", 9, generator=torch.Generator().manual_seed(0)).to(device, torch.float32)
    construction = BUILD[name](exact.spectrum(g))
    layers = construction.layers_for(1e-4 * construction.size)
    answer = construction.run(g, demands_for(g).float(), layers=layers)
    assert answer.dtype == torch.float32
    truth = construction.target(g).double() @ demands_for(g)
    size = construction.size * float(demands_for(g).norm())
    error = 1e-4 * size + construction.rounding(layers, g.num_nodes, torch.float32) * float(demands_for(g).norm())
    assert float((answer.double() - truth).norm()) <= error


@pytest.mark.parametrize("name", NAMES)
def test_depth_far_beyond_need_does_no_harm(device, name):
    g = family("erdos-renyi", 10, generator=torch.Generator().manual_seed(0), spread=1.0).to(device)
    construction = BUILD[name](exact.spectrum(g))
    needed = construction.layers_for(1e-12 * construction.size)
    layers = needed + (8 if not construction.takes_signals else 2000)
    error = float((construction.run(g, layers=layers) - construction.target(g)).norm())
    assert error <= 1e-12 * construction.size + 4 * construction.rounding(layers, 10)


@pytest.mark.parametrize("layers", [30, 100, 400])
@pytest.mark.parametrize("scaled", [False, True])
def test_newton_schulz_stays_where_it_has_converged(device, layers, scaled):
    g = family("ring", 10, generator=torch.Generator()).to(device)
    root = NewtonSchulzRoot(exact.spectrum(g), scaled=scaled)
    error = float((root.run(g, layers=layers) - root.target(g)).norm())
    assert error <= root.error_bound(layers) + root.rounding(layers, 10) <= 1e-10


def test_extreme_depths_and_spectra_give_a_bound_rather_than_an_overflow():
    wide = Spectrum(1e-17, 1.0)
    assert Squaring(Spectrum(0.1, 1.0)).error_bound(5000) == 0
    assert ChebyshevCubing(Spectrum(0.1, 1.0)).error_bound(5000) == 0
    assert Squaring(wide).layers_for(1e-3) < 100
    assert TaylorHeat(Spectrum(1.0, 1000.0), 1.0).error_bound(500) == math.inf
    assert TaylorHeat(Spectrum(1.0, 1000.0), 1.0).layers_for(1e-6) < 3000
    assert CubedHeat(Spectrum(1.0, 4.0), 1.0).error_bound(1000) < 1e-100
    assert SeededHeat(Spectrum(1.0, 4.0), 1.0).error_bound(1000) < 1e-10


@pytest.mark.parametrize(
    ("function", "spectrum", "null"),
    [
        (lambda x: 1 / (1 + x), Spectrum(1.0, 2000.0), True),
        (lambda x: 1 / x, Spectrum(0.01, 10.0), False),
        (lambda x: np.exp(-x), Spectrum(1e-3, 1e3), True),
        (lambda x: x - 3, Spectrum(3.0, 3.0), False),
        (np.log, Spectrum(1.0, 1.0), False),
        (np.zeros_like, Spectrum(0.5, 4.0), True),
        (lambda x: np.cos(32 * np.arccos(np.clip((x - 4.25) / 3.75, -1, 1))), Spectrum(0.5, 8.0), False),
        (lambda x: np.exp(-(((x - 4.1234) / 0.02) ** 2)), Spectrum(0.5, 8.0), True),
    ],
    ids=["wide", "inverse", "steep", "point", "log at a point", "zero", "aliased by 64 samples", "bump"],
)
def test_filters_of_all_kinds_are_resolved(function, spectrum, null):
    compiled = SpectralFilter(spectrum, function, null=null)
    layers = compiled.layers_for(1e-9 * max(compiled.size, 1e-300) + 1e-12)
    low, high = compiled.interval
    x = np.linspace(low, high, 2001)
    got = np.polynomial.chebyshev.chebval((2 * x - low - high) / (high - low), compiled.coefficients[: layers + 1])
    assert np.abs(got - function(x)).max() <= compiled.error_bound(layers) + 1e-12 * (1 + compiled.size)
    assert np.isfinite(compiled.rounding(layers, 10))


def test_running_without_a_trace_keeps_one_state(device):
    g = Graph.from_edges([(0, 1), (1, 2)]).to(device)
    construction = Chebyshev(exact.spectrum(g))
    states = construction.run_blocks(g, construction.inputs(g, g.projector()), 50, trace=False)
    assert len(states.states) == 1
    torch.testing.assert_close(states.final["potential"], construction.run(g, layers=50, trace=True).final["potential"])


# ------------------------------------------------------------------------------------------------ numbers to reach


@pytest.fixture(params=["ring-22", "path-11", "grid-36", "erdos-renyi-30", "barbell-9"])
def hard(request, device) -> Graph:
    name, nodes = request.param.rsplit("-", 1)
    g = family(name, int(nodes), generator=torch.Generator().manual_seed(0), spread=0.5 if name == "erdos-renyi" else 0.0)
    assert 5 <= exact.spectrum(g).condition <= 50
    return g.to(device)


def relative_error(construction: Construction, g: Graph, layers: int) -> float:
    return (
        float(torch.linalg.matrix_norm(construction.run(g, layers=layers) - construction.target(g), 2)) / construction.size
    )


def at_fifty(g: Graph) -> Spectrum:
    """The graph's spectrum widened to a condition number of 50: depth and weights are what they would be there."""
    spectrum = exact.spectrum(g)
    return Spectrum(spectrum.lmax / 50, spectrum.lmax)


def test_chebyshev_reaches_1e_10_in_100_layers_at_condition_50(hard):
    assert Chebyshev(at_fifty(hard)).layers_for(1e-10 * 50 / at_fifty(hard).lmax) <= 100
    assert relative_error(Chebyshev(at_fifty(hard)), hard, 100) <= 1e-10


def test_squaring_reaches_1e_10_in_12_layers_at_condition_50(hard):
    spectrum = at_fifty(hard)
    assert Squaring(spectrum).layers_for(1e-10 / spectrum.lmin) <= 12
    assert relative_error(Squaring(spectrum), hard, 12) <= 1e-10


def test_chebyshev_cubing_reaches_1e_10_in_6_layers_at_condition_50(hard):
    spectrum = at_fifty(hard)
    assert ChebyshevCubing(spectrum).layers_for(1e-10 / spectrum.lmin) <= 6
    assert relative_error(ChebyshevCubing(spectrum), hard, 6) <= 1e-10


def test_newton_schulz_reaches_1e_12_in_12_layers_at_condition_50(hard):
    spectrum = at_fifty(hard)
    plain = NewtonSchulzRoot(spectrum, scaled=False)
    assert plain.layers_for(1e-12 / math.sqrt(spectrum.lmin)) <= 12
    assert relative_error(plain, hard, 12) <= 1e-12


def test_scaled_newton_schulz_reaches_1e_12_in_8_layers_at_condition_50(hard):
    spectrum = at_fifty(hard)
    assert NewtonSchulzRoot(spectrum).layers_for(1e-12 / math.sqrt(spectrum.lmin)) <= 8
    assert relative_error(NewtonSchulzRoot(spectrum), hard, 8) <= 1e-12


@pytest.mark.parametrize("reach", [0.01, 1.0, 5.0, 20.0])
def test_seeded_heat_reaches_1e_9_in_7_layers_up_to_reach_20(hard, reach):
    spectrum = exact.spectrum(hard)
    heat = SeededHeat(spectrum, reach / spectrum.lmax)
    assert heat.layers_for(1e-9) <= 7
    assert relative_error(heat, hard, heat.layers_for(1e-9)) <= 1e-9
    assert relative_error(heat, hard, 9) <= 1e-9


def test_lemmas_2_3_and_5_hold_as_printed_where_their_conditions_do(device):
    for seed in range(6):
        g = family("erdos-renyi", 9, generator=torch.Generator().manual_seed(seed), spread=2.0).to(device)
        spectrum = exact.spectrum(g)
        for construction in (
            PowerSeriesRoot(spectrum),
            TaylorHeat(spectrum, 0.2),
            CubedHeat(spectrum, 0.2),
            Squaring(spectrum),
        ):
            start = {"TaylorHeat": math.ceil(8 * 0.2 * spectrum.lmax), "PowerSeriesRoot": 1}
            least = max(start.get(type(construction).__name__, 0), construction.min_layers)
            for layers in range(least, least + 6):
                error = float(torch.linalg.matrix_norm(construction.run(g, layers=layers) - construction.target(g), 2))
                assert error <= construction.printed_bound(layers) + construction.rounding(layers, 9)
                assert construction.error_bound(layers) <= construction.printed_bound(layers) * (1 + 1e-12)


def test_gradients_reach_the_demands(device):
    g = Graph.from_edges([(0, 1), (1, 2), (2, 0)], resistance=[1.0, 2.0, 3.0]).to(device)
    chebyshev = Chebyshev(exact.spectrum(g))
    psi = demands_for(g).requires_grad_()
    chebyshev.run(g, psi, layers=chebyshev.layers_for(1e-13))[0].sum().backward()
    assert psi.grad is not None
    # demands live in the range of L, and so does their gradient
    torch.testing.assert_close(g.center(psi.grad), exact.pinv(g)[0][:, None].expand_as(psi), rtol=1e-9, atol=1e-12)


def test_gradients_reach_the_resistances(device):
    """d/dr of the effective resistance of an edge's ends, by Rayleigh: the squared current through the edge."""
    r = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, device=device, requires_grad=True)
    g = Graph.from_edges(torch.tensor([(0, 1), (1, 2), (2, 0)], device=device), resistance=r)
    psi = torch.tensor([[1.0], [0.0], [-1.0]], dtype=torch.float64, device=device)
    phi = Chebyshev(exact.spectrum(g)).run(g, psi, layers=60)
    (psi * phi).sum().backward()
    with torch.no_grad():
        from ohmformer.graph import circuit

        current = circuit.flow(g, exact.potentials(g, psi))[:, 0]
    torch.testing.assert_close(r.grad, current.square(), rtol=1e-9, atol=1e-12)
