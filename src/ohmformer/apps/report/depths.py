"""Tables of how many layers each construction needs by its bound, the paper's lemmas beside ours."""

from __future__ import annotations

from ohmformer import constructions as built
from ohmformer.graph import Spectrum
from ohmformer.graph.text_table import markdown_table

ERROR = 1e-10
CONDITIONS = (10, 50, 1000)
REACHES = (1, 20, 100)
INVERSES = {
    ("L⁺ψ", "Lemma 1, gradient descent"): built.GradientDescent,
    ("L⁺ψ", "ours, Chebyshev"): built.Chebyshev,
    ("L⁺", "Lemma 4, squaring (corrected)"): built.Squaring,
    ("L⁺", "ours, Chebyshev cubing"): built.ChebyshevCubing,
    ("√L⁺ψ", "Lemma 2, power series"): built.PowerSeriesRoot,
    ("√L⁺", "ours, scaled Newton-Schulz"): built.NewtonSchulzRoot,
}
HEAT = {
    ("exp(−sL)ψ", "Lemma 3, power series"): built.TaylorHeat,
    ("exp(−sL)", "Lemma 5, cubing"): built.CubedHeat,
    ("exp(−sL)", "ours, cubing from a seed"): built.SeededHeat,
}


def depth_tables() -> str:
    """Return two Markdown tables: depth against the condition number, and for heat against ``s lmax``."""
    inverses = [
        [task, name, *(str(_depth(build(Spectrum(1 / kappa, 1.0)))) for kappa in CONDITIONS)]
        for (task, name), build in INVERSES.items()
    ]
    heat = [
        [task, name, *(str(_depth(build(Spectrum(0.1, 1.0), float(reach)))) for reach in REACHES)]
        for (task, name), build in HEAT.items()
    ]
    return "\n\n".join(
        [
            markdown_table(["task", "construction", *(f"κ = {kappa}" for kappa in CONDITIONS)], inverses),
            markdown_table(["task", "construction", *(f"s λmax = {reach}" for reach in REACHES)], heat),
        ]
    )


def _depth(construction) -> int:
    return construction.layers_for(ERROR * construction.size)
