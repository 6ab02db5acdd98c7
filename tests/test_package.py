"""What a user meets first: a light import, a README that tells the truth, and a public surface that is small."""

import re
import subprocess
import sys
from pathlib import Path

import ohmformer
from ohmformer import Spectrum
from ohmformer.constructions import (
    Chebyshev,
    ChebyshevCubing,
    CubedHeat,
    GradientDescent,
    NewtonSchulzRoot,
    PowerSeriesRoot,
    SeededHeat,
    Squaring,
    TaylorHeat,
)

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


def _row(text: str, label: str) -> list[int]:
    found = re.search(rf"\| {re.escape(label)} \|([\d |]+)\|", text)
    assert found, label
    return [int(cell) for cell in found.group(1).split("|") if cell.strip()]


def test_the_readme_opens_with_the_two_commands():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert lines[2:6] == ["```", "make demo", "make test", "```"]
