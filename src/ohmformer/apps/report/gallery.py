"""The gallery: every construction with its update, its weights as pictures, its bound, and its error against the bound.

Descriptions come from the docstrings of the constructions, weights from their programs, errors from running them on one
graph, so that none of it can go out of date. The documentation and the report show the same exhibits.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch

from ohmformer import exact
from ohmformer.apps.report.charts import Curve, draw_curves
from ohmformer.apps.report.svg import MUTED, NEGATIVE, POSITIVE, draw_layer
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
from ohmformer.graph.families import Named, family
from ohmformer.transformer.blocks import Layer, Program
from ohmformer.verify import check_eigenvectors, check_function

SEED = 4
HEAT_TIME = 0.5
SETUP = """\
import numpy as np
import torch
import ohmformer as ohm
from ohmformer.constructions import *
from ohmformer.graph.families import family

graph = family("csl", 10, generator=torch.Generator().manual_seed(4), spread=2.0)
spectrum = ohm.exact.spectrum(graph)
"""
"""The beginning of every exhibit's code."""


def gallery_graph() -> Graph:
    """Make the graph that everything is measured on: circular skip links, ten nodes, the paper's resistances."""
    return family("csl", 10, generator=torch.Generator().manual_seed(SEED), spread=2.0)


@dataclass(frozen=True)
class Point:
    """The error of a construction at one depth, and its bounds."""

    layers: int
    error: float
    bound: float | None
    """None where there is no bound."""
    printed: float | None
    """The bound as the paper prints it, where it differs."""


@dataclass(frozen=True)
class Exhibit:
    """One construction in the gallery."""

    slug: str
    title: str
    task: str
    construction: Runnable
    code: str
    """How to build it, after :data:`SETUP`."""
    depths: tuple[int, ...]

    @property
    def statement(self) -> str:
        """The statement of the paper, or "ours"."""
        part = self.construction.multiply if isinstance(self.construction, SubspaceIteration) else self.construction
        return part.statement

    @property
    def update(self) -> str:
        """What a layer does, as Markdown."""
        built = self.construction
        if isinstance(built, SubspaceIteration):
            return "\n\n".join(_prose(x) for x in (SubspaceIteration, type(built.multiply), type(built.orthogonalize)))
        return _prose(type(built))

    @property
    def weights(self) -> str:
        """Which weights do it, as Markdown; empty where the update says it all."""
        built = self.construction
        if isinstance(built, SubspaceIteration):
            return _prose(type(built.multiply).layer)
        words = _prose(type(built).round if isinstance(built, Orthogonalization) else type(built).program)
        return "" if words.startswith("See the class") else words

    @property
    def bound(self) -> str:
        """The error bound, as Markdown."""
        return _prose(type(self.construction).error_bound)  # pyright: ignore[reportAttributeAccessIssue]

    @cached_property
    def points(self) -> list[Point]:
        """Errors and bounds by depth, on :func:`gallery_graph`."""
        return [_measure(self.construction, layers) for layers in self.depths]

    def pictures(self) -> Iterator[tuple[str, str]]:
        """Draw the weights of every kind of layer at the greatest depth: which layers, and their matrices as SVG."""
        program = self.construction.program(self.depths[-1])
        for words, layer in kinds_of_layers(program):
            yield words, draw_layer(layer, list(program.blocks))

    def plot(self) -> str:
        """Draw error against depth, with the bounds, as an HTML image."""
        points = self.points
        printed = [(p.layers, p.printed) for p in points if p.printed is not None]
        bound = [(p.layers, p.bound) for p in points if p.bound is not None]
        curves = [
            Curve("printed bound", printed, {"color": MUTED, "linestyle": ":"}),
            Curve(
                "bound", bound, {"color": NEGATIVE, "linewidth": 5, "alpha": 0.45}
            ),  # wide and pale, below what is measured
            Curve("measured", [(p.layers, p.error) for p in points], {"color": POSITIVE, "marker": "o", "markersize": 4}),
        ]
        return draw_curves(curves, f"{self.title}: error against layers, with its bound")


DEEP = (*range(0, 20, 2), *range(20, 101, 8))
MIDDLE = (*range(0, 12), *range(12, 61, 6))
STEEP = tuple(range(1, 11))
SHORT = tuple(range(0, 7))


@cache
def exhibits() -> tuple[Exhibit, ...]:
    """List all exhibits, in the order of the paper's tasks."""
    spectrum = exact.spectrum(gallery_graph())
    electric, root, heat = "electric flow, L⁺ψ", "square root, √L⁺", "heat kernel, exp(−sL)"
    columns, log, s = "orthonormal columns", np.log, HEAT_TIME

    def iteration(slug: str, title: str, multiply: Laplacian, orthogonalize: Orthogonalization, steps: int) -> Exhibit:
        solver = SubspaceIteration(multiply, orthogonalize)
        parts = f"{type(multiply).__name__}(spectrum), {type(orthogonalize).__name__}({orthogonalize.k})"
        depths = tuple(solver.layers(n) for n in range(0, steps + 1, steps // 12))
        return Exhibit(slug, title, "eigenvectors", solver, f"SubspaceIteration({parts})", depths)

    def show(slug: str, title: str, task: str, built: Runnable, arguments: str, depths: tuple[int, ...]) -> Exhibit:
        return Exhibit(slug, title, task, built, f"{type(built).__name__}({arguments})", depths)

    return (
        show("gradient-descent", "Gradient descent", electric, GradientDescent(spectrum), "spectrum", DEEP),
        show("squaring", "Squaring", electric, Squaring(spectrum), "spectrum", STEEP),
        show("chebyshev", "Chebyshev", electric, Chebyshev(spectrum), "spectrum", MIDDLE),
        show("chebyshev-cubing", "Chebyshev cubing", electric, ChebyshevCubing(spectrum), "spectrum", STEEP[:7]),
        show("power-series-root", "Power series of the root", root, PowerSeriesRoot(spectrum), "spectrum", DEEP),
        show("newton-schulz-root", "Newton-Schulz root", root, NewtonSchulzRoot(spectrum), "spectrum", STEEP),
        show("taylor-heat", "Power series of the heat kernel", heat, TaylorHeat(spectrum, s), "spectrum, 0.5", MIDDLE),
        show("cubed-heat", "Cubed heat", heat, CubedHeat(spectrum, s), "spectrum, 0.5", STEEP),
        show("seeded-heat", "Cubing from a seed", heat, SeededHeat(spectrum, s), "spectrum, 0.5", STEEP),
        show("spectral-filter", "Any filter", "any f(L)", SpectralFilter(spectrum, log), "spectrum, np.log", MIDDLE),
        iteration("top-eigenvectors", "Top eigenvectors", Laplacian(spectrum), GramSchmidt(2), 36),
        iteration("bottom-eigenvectors", "Bottom eigenvectors", Shifted(spectrum), GramSchmidt(3), 60),
        iteration("through-pinv", "Bottom eigenvectors through L⁺", ThroughPinv(spectrum), NewtonSchulz(2), 24),
        show("gram-schmidt", "Gram-Schmidt", columns, GramSchmidt(4), "4", SHORT),
        show("parallel-gram-schmidt", "Gram-Schmidt in parallel heads", columns, ParallelGramSchmidt(4), "4", SHORT),
        show("newton-schulz", "Newton-Schulz", columns, NewtonSchulz(4), "4", tuple(range(0, 13))),
    )


def kinds_of_layers(program: Program) -> Iterator[tuple[str, Layer]]:
    """Find the first layer of every pattern of nonzero blocks, with the numbers of all layers of that pattern."""
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


def _measure(construction: Runnable, layers: int) -> Point:
    """Measure error and bound as ``ohmformer verify`` does: relative to the answer's size, or the sine of an angle."""
    named = Named("gallery", gallery_graph())
    if isinstance(construction, Orthogonalization):
        return _measure_columns(construction, layers)
    if isinstance(construction, SubspaceIteration):
        check = check_eigenvectors("", construction, named, layers, SEED)
        return Point(layers, check.error, check.bound, None)
    assert isinstance(construction, Construction)
    check = check_function("", construction, named, layers) if layers >= construction.min_layers else None
    if check is None:
        answer = construction.run(named.graph, layers=layers)
        error = float(torch.linalg.matrix_norm(answer - construction.target(named.graph), 2)) / construction.size
        return Point(layers, error, None, None)
    return Point(layers, check.error, check.bound, _printed(construction, layers))


def _printed(construction: Construction, layers: int) -> float | None:
    """Evaluate the paper's bound, relative, where it has one and its condition holds."""
    bound = getattr(construction, "printed_bound", None)
    try:
        return None if bound is None or construction.statement == "ours" else bound(layers) / construction.size
    except ValueError:
        return None


def _measure_columns(construction: Orthogonalization, layers: int) -> Point:
    """Measure ``|Phi^T Phi - I|``, starting from Gaussian columns of norm at most one."""
    graph, k = gallery_graph(), construction.k
    columns = torch.randn(graph.num_nodes, k, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64)
    columns = columns / torch.linalg.matrix_norm(columns, 2)
    answer = construction.run_blocks(graph, {construction.answer: columns}, layers, trace=False).final[construction.answer]
    error = float(torch.linalg.matrix_norm(answer.mT @ answer - torch.eye(k, dtype=torch.float64), 2))
    if isinstance(construction, NewtonSchulz):
        return Point(layers, error, construction.error_bound(layers, float(torch.linalg.svdvals(columns)[-1])), None)
    assert isinstance(construction, GramSchmidt | ParallelGramSchmidt)
    return Point(layers, error, construction.error_bound(layers) if layers >= k else None, None)


def _prose(thing: object) -> str:
    """Convert a docstring to Markdown, without doctests and Sphinx's roles."""
    text = (inspect.getdoc(thing) or "").split("\n>>>")[0]
    return re.sub(r":(?:class|func|meth|mod|data|attr):(?=`)", "", text).strip()
