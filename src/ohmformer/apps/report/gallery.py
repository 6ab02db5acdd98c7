"""The gallery: every construction with its update, its weights as tables, its bound, and its error against the bound.

Descriptions are taken from the docstrings of the constructions, weights from their programs, errors from running them on one
graph, so that none of it can become outdated. The documentation and the report show the same exhibits.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch

from ohmformer import exact
from ohmformer.apps.report.charts import Curve, draw_curves
from ohmformer.apps.report.weights import MUTED, NEGATIVE, POSITIVE, layer_tables
from ohmformer.constructions import (
    Chebyshev,
    ChebyshevCubing,
    Construction,
    CubedHeat,
    GradientDescent,
    GramSchmidt,
    Laplacian,
    NewtonSchulz,
    NewtonSchulzRoot,
    Orthogonalization,
    ParallelGramSchmidt,
    PowerSeriesRoot,
    SeededHeat,
    Shifted,
    SpectralFilter,
    Squaring,
    SubspaceIteration,
    TaylorHeat,
    ThroughPinv,
)
from ohmformer.constructions.base import Runnable
from ohmformer.graph import Graph
from ohmformer.graph.families import family
from ohmformer.transformer.blocks import Layer, Program
from ohmformer.verify import Trial, prepare

SEED = 4
SETUP = """\
import numpy as np
import torch
import ohmformer as ohm
from ohmformer.constructions import *
from ohmformer.graph.families import family

graph = family("csl", 10, generator=torch.Generator().manual_seed(4), spread=2.0)
spectrum = ohm.exact.spectrum(graph)
"""
"""The common first lines of every exhibit's code."""


def gallery_graph() -> Graph:
    """Return the graph used for all measurements: circular skip links, ten nodes, the paper's resistances."""
    return family("csl", 10, generator=torch.Generator().manual_seed(SEED), spread=2.0)


@dataclass(frozen=True)
class Point:
    """The error of a construction at one depth, and its bounds."""

    layers: int
    error: float
    bound: float | None
    """The error bound, or None."""
    printed: float | None
    """The bound as printed in the paper, if it differs."""


@dataclass(frozen=True)
class Exhibit:
    """One construction in the gallery."""

    slug: str
    title: str
    task: str
    construction: Runnable
    code: str
    """The code that builds it, after :data:`SETUP`."""
    depths: tuple[int, ...]

    @cached_property
    def _trial(self) -> Trial:
        return prepare(self.construction, gallery_graph(), SEED)

    @property
    def statement(self) -> str:
        """The lemma or other statement in the paper, or "ours"."""
        return self._trial.statement

    @property
    def update(self) -> str:
        """The update of a layer, as Markdown."""
        built = self.construction
        if isinstance(built, SubspaceIteration):
            return "\n\n".join(_prose(x) for x in (SubspaceIteration, type(built.multiply), type(built.orthogonalize)))
        return _prose(type(built))

    @property
    def weights(self) -> str:
        """The weights that implement it, as Markdown; empty if they follow from the update."""
        built = self.construction
        if isinstance(built, SubspaceIteration):
            return _prose(type(built.multiply).layer)
        words = _prose(type(built).round if isinstance(built, Orthogonalization) else type(built).program)
        return "" if words.startswith("The weights of the update above") else words

    @property
    def bound(self) -> str:
        """The error bound, as Markdown."""
        return _prose(type(self.construction).error_bound)  # pyright: ignore[reportAttributeAccessIssue]

    @cached_property
    def points(self) -> list[Point]:
        """Errors and bounds by depth on :func:`gallery_graph`."""
        return [_measure(self._trial, layers) for layers in self.depths]

    def pictures(self) -> Iterator[tuple[str, str]]:
        """Yield each kind of layer at the greatest depth: the layers it describes, and their weight matrices as tables."""
        program = self.construction.program(self.depths[-1])
        for words, layer in kinds_of_layers(program):
            yield words, layer_tables(layer, list(program.blocks))

    def plot(self) -> str:
        """Plot error against depth, with the bounds, as an HTML image."""
        points = self.points
        printed = [(p.layers, p.printed) for p in points if p.printed is not None]
        bound = [(p.layers, p.bound) for p in points if p.bound is not None]
        curves = [
            Curve("printed bound", printed, {"color": MUTED, "linestyle": ":"}),
            Curve(
                "bound", bound, {"color": NEGATIVE, "linewidth": 5, "alpha": 0.45}
            ),  # wide and pale, below the measured curve
            Curve("measured", [(p.layers, p.error) for p in points], {"color": POSITIVE, "marker": "o", "markersize": 4}),
        ]
        return draw_curves(curves, f"{self.title}: error against layers, with its bound")


DEEP = (*range(0, 20, 2), *range(20, 101, 8))
MIDDLE = (*range(0, 12), *range(12, 61, 6))
STEEP = tuple(range(1, 11))
SHORT = tuple(range(0, 7))
STEPS = range(0, 25, 2)
ELECTRIC, ROOT, HEAT = "electric flow, L⁺ψ", "square root, √L⁺", "heat kernel, exp(−sL)"
VECTORS, COLUMNS = "eigenvectors", "orthonormal columns"
SHOWN: tuple[tuple[str, str, str, list[tuple[Any, ...]], Sequence[int]], ...] = (
    ("gradient-descent", "Gradient descent", ELECTRIC, [(GradientDescent, "spectrum")], DEEP),
    ("squaring", "Squaring", ELECTRIC, [(Squaring, "spectrum")], STEEP),
    ("chebyshev", "Chebyshev", ELECTRIC, [(Chebyshev, "spectrum")], MIDDLE),
    ("chebyshev-cubing", "Chebyshev cubing", ELECTRIC, [(ChebyshevCubing, "spectrum")], STEEP[:7]),
    ("power-series-root", "Power series of the root", ROOT, [(PowerSeriesRoot, "spectrum")], DEEP),
    ("newton-schulz-root", "Newton-Schulz root", ROOT, [(NewtonSchulzRoot, "spectrum")], STEEP),
    ("taylor-heat", "Power series of the heat kernel", HEAT, [(TaylorHeat, "spectrum", 0.5)], MIDDLE),
    ("cubed-heat", "Cubed heat", HEAT, [(CubedHeat, "spectrum", 0.5)], STEEP),
    ("seeded-heat", "Cubing from a seed", HEAT, [(SeededHeat, "spectrum", 0.5)], STEEP),
    ("spectral-filter", "Any filter", "any f(L)", [(SpectralFilter, "spectrum", "np.log")], MIDDLE),
    ("top-eigenvectors", "Top eigenvectors", VECTORS, [(Laplacian, "spectrum"), (GramSchmidt, 2)], range(0, 37, 3)),
    ("bottom-eigenvectors", "Bottom eigenvectors", VECTORS, [(Shifted, "spectrum"), (GramSchmidt, 3)], range(0, 61, 5)),
    ("through-pinv", "Bottom eigenvectors through L⁺", VECTORS, [(ThroughPinv, "spectrum"), (NewtonSchulz, 2)], STEPS),
    ("gram-schmidt", "Gram-Schmidt", COLUMNS, [(GramSchmidt, 4)], SHORT),
    ("parallel-gram-schmidt", "Gram-Schmidt in parallel heads", COLUMNS, [(ParallelGramSchmidt, 4)], SHORT),
    ("newton-schulz", "Newton-Schulz", COLUMNS, [(NewtonSchulz, 4)], tuple(range(0, 13))),
)  # fmt: skip
"""Slug, title, task, class and arguments, and depths; for eigenvectors both parts of the iteration, with depths in steps."""


@cache
def exhibits() -> tuple[Exhibit, ...]:
    """Build all exhibits, with the code that builds them."""
    values = {"spectrum": exact.spectrum(gallery_graph()), "np.log": np.log}
    shown = []
    for slug, title, task, calls, depths in SHOWN:
        code = ", ".join(f"{kind.__name__}({', '.join(map(str, arguments))})" for kind, *arguments in calls)
        parts = [kind(*(values.get(x, x) for x in arguments)) for kind, *arguments in calls]
        if task == VECTORS:
            built, code = SubspaceIteration(*parts), f"SubspaceIteration({code})"
            depths = [built.layers(steps) for steps in depths]
        else:
            (built,) = parts
        shown.append(Exhibit(slug, title, task, built, code, tuple(depths)))
    return tuple(shown)


def kinds_of_layers(program: Program) -> Iterator[tuple[str, Layer]]:
    """Yield the first layer of every pattern of nonzero blocks, with the numbers of all layers of that pattern."""
    found: dict[tuple, list[int]] = {}
    for number, layer in enumerate(program.layers, 1):
        heads = tuple((tuple(h.value), tuple(h.query), tuple(h.key)) for h in layer.heads)
        found.setdefault((heads, tuple(layer.skip)), []).append(number)
    for numbers in found.values():
        layer = program.layers[numbers[0] - 1]
        if layer.heads or layer.skip:
            yield _which(numbers, program), layer


def _which(numbers: list[int], program: Program) -> str:
    """Describe which layers share a pattern: ``layers 2 to 9; coefficients differ, these are layer 2's``."""
    first, last = numbers[0], numbers[-1]
    if len(numbers) == 1:
        return f"layer {first}"
    gapless = numbers == list(range(first, last + 1))
    words = f"layers {first} to {last}" if gapless else f"layers {first}, {numbers[1]}, … {last}"
    if len(numbers) == len(program.layers):
        words = "every layer"
    alike = len({id(program.layers[n - 1]) for n in numbers}) == 1
    return words if alike else f"{words}; coefficients differ, these are layer {first}'s"


def _measure(trial: Trial, layers: int) -> Point:
    """Measure error and bound as ``ohmformer verify``: relative to the size of the answer, or the sine of an angle."""
    built = trial.construction
    error = trial.error(built.run_blocks(trial.graph, trial.blocks, layers, trace=False).final[built.answer])
    bound = printed = None
    try:
        if not isinstance(built, Construction):
            bound = trial.bound(layers)
        elif layers >= built.min_layers:
            bound = trial.bound(layers)
            if trial.statement != "ours":
                printed = getattr(built, "printed_bound")(layers) / built.size  # noqa: B009
    except ValueError:  # the assumption of a bound does not hold
        pass
    return Point(layers, error, bound, printed)


def _prose(thing: object) -> str:
    """Convert a docstring to Markdown, without doctests and Sphinx roles."""
    text = (inspect.getdoc(thing) or "").split("\n>>>")[0]
    return re.sub(r":(?:class|func|meth|mod|data|attr):(?=`)", "", text).strip()
