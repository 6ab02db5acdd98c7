"""What a user meets first: a light import, a README that tells the truth, and a public surface that is small."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

import ohmformer
from ohmformer import exact
from ohmformer._moved import MOVED
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
from ohmformer.graph.families import family


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


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_modules_are_found_under_their_old_names_with_a_warning(old, new):
    sys.modules.pop(f"ohmformer.{old}", None)
    spec = import_module(f"ohmformer.{new}").__spec__
    with pytest.warns(DeprecationWarning, match=f"ohmformer.{old} has moved to ohmformer.{new}"):
        found = import_module(f"ohmformer.{old}")
    assert found is import_module(f"ohmformer.{new}")
    assert found.__spec__ is spec


def test_what_the_gallery_says_of_float64():
    g = family("ring", 12, generator=torch.Generator())
    spectrum = exact.spectrum(g)

    def error(construction, layers: int) -> float:
        gap = construction.run(g, layers=layers) - construction.target(g)
        return float(torch.linalg.matrix_norm(gap, 2)) / construction.size

    for build in (GradientDescent, Chebyshev, Squaring, ChebyshevCubing, PowerSeriesRoot, NewtonSchulzRoot):
        built = build(spectrum)
        # a product of length n rounds by n eps, and layers that contract by 1 - 1/kappa add up to kappa of these
        rounding = g.num_nodes * torch.finfo(torch.float64).eps * spectrum.condition
        assert error(built, built.layers_for(1e-15 * built.size)) <= 1e-15 + rounding
    s = 100 / spectrum.lmax
    assert error(TaylorHeat(spectrum, s), 291) > 1
    assert 1e-9 < error(CubedHeat(spectrum, s), 21) < 1e-6
    assert error(SeededHeat(spectrum, s), 7) <= 1e-10
    series = SpectralFilter(spectrum, lambda x: np.exp(-s * x), null=True)
    assert error(series, series.layers_for(1e-10)) <= 2e-10


def test_the_citation_names_the_version():
    text = (Path(__file__).parents[1] / "CITATION.cff").read_text()
    assert f"\nversion: {ohmformer.__version__}\n" in text
