"""Tables of how many layers each construction needs by its bound, the paper's lemmas beside ours."""

from __future__ import annotations

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
from ohmformer.graph import Spectrum

ERROR = 1e-10
CONDITIONS = (10, 50, 1000)
REACHES = (1, 20, 100)
INVERSES = {
    ("L⁺ψ", "Lemma 1, gradient descent"): GradientDescent,
    ("L⁺ψ", "ours, Chebyshev"): Chebyshev,
    ("L⁺", "Lemma 4, squaring (corrected)"): Squaring,
    ("L⁺", "ours, Chebyshev cubing"): ChebyshevCubing,
    ("√L⁺ψ", "Lemma 2, power series"): PowerSeriesRoot,
    ("√L⁺", "ours, scaled Newton-Schulz"): NewtonSchulzRoot,
}
HEAT = {
    ("exp(−sL)ψ", "Lemma 3, power series"): TaylorHeat,
    ("exp(−sL)", "Lemma 5, cubing"): CubedHeat,
    ("exp(−sL)", "ours, cubing from a seed"): SeededHeat,
}


def depth_tables() -> str:
    """Write two Markdown tables: depth against the condition number, and for heat against ``s lmax``."""
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


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    """Write a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
