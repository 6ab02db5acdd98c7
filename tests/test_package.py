"""What a user meets first: a light import, a README that tells the truth, and a public surface that is small."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

import ohmformer
from ohmformer import Spectrum, exact
from ohmformer.constructions import (
    Chebyshev,
    ChebyshevCubing,
    CubedHeat,
    GradientDescent,
    NewtonSchulzRoot,
    PowerSeriesRoot,
    SeededHeat,
    SpectralFilter,
    Squaring,
    TaylorHeat,
)
from ohmformer.families import family

ROOT = Path(__file__).parents[1]


def test_the_core_imports_no_chemistry_training_or_web_packages():
    code = """
import sys, torch, ohmformer as ohm
g = ohm.Graph.from_edges([(0, 1), (1, 2)])
ohm.constructions.Chebyshev(g.spectral_bounds()).run(g, torch.tensor([1.0, 0.0, -1.0]), layers=20)
heavy = "torch_geometric lightning rdkit datamol ray dash plotly matplotlib networkx typer rich".split()
print(sorted(set(heavy) & set(sys.modules)))
"""
    # torch itself may bring networkx
    brought = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert brought.strip() in ("[]", "['networkx']")


def test_the_public_surface_is_what_it_says():
    assert len(ohmformer.__all__) <= 30
    for name in ohmformer.__all__:
        assert getattr(ohmformer, name).__doc__


def test_the_depths_in_the_readme_are_those_of_the_bounds():
    text = (ROOT / "README.md").read_text()
    columns = {
        "Lemma 1, gradient descent": GradientDescent,
        "ours, Chebyshev": Chebyshev,
        "Lemma 4, squaring (corrected)": Squaring,
        "ours, Chebyshev cubing": ChebyshevCubing,
        "Lemma 2, power series": PowerSeriesRoot,
        "ours, scaled Newton-Schulz": NewtonSchulzRoot,
    }
    for label, construction in columns.items():
        built = [construction(Spectrum(1 / kappa, 1.0)) for kappa in (10, 50, 1000)]
        assert _row(text, label) == [c.layers_for(1e-10 * c.size) for c in built]
    heat = {"Lemma 3, power series": TaylorHeat, "Lemma 5, cubing": CubedHeat, "ours, cubing from a seed": SeededHeat}
    for label, construction in heat.items():
        assert _row(text, label) == [construction(Spectrum(0.1, 1.0), s).layers_for(1e-10) for s in (1.0, 20.0, 100.0)]


def test_what_the_readme_says_of_float64():
    g = family("ring", 12, generator=torch.Generator())
    spectrum = exact.spectrum(g)

    def error(construction, layers: int) -> float:
        gap = construction.run(g, layers=layers) - construction.target(g)
        return float(torch.linalg.matrix_norm(gap, 2)) / construction.size

    for build in (GradientDescent, Chebyshev, Squaring, ChebyshevCubing, PowerSeriesRoot, NewtonSchulzRoot):
        built = build(spectrum)
        assert error(built, built.layers_for(1e-15 * built.size)) <= 1e-15 * spectrum.condition + 1e-15
    s = 100 / spectrum.lmax
    assert error(TaylorHeat(spectrum, s), 291) > 1
    assert 1e-9 < error(CubedHeat(spectrum, s), 21) < 1e-6
    assert error(SeededHeat(spectrum, s), 7) <= 1e-10
    series = SpectralFilter(spectrum, lambda x: np.exp(-s * x), null=True)
    assert error(series, series.layers_for(1e-10)) <= 2e-10


def _row(text: str, label: str) -> list[int]:
    found = re.search(rf"\| {re.escape(label)} \|([\d |]+)\|", text)
    assert found, label
    return [int(cell) for cell in found.group(1).split("|") if cell.strip()]


def test_the_readme_opens_with_the_two_commands():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert lines[2:6] == ["```", "make demo", "make test", "```"]
