"""The principal square root of ``L^+``, whose rows embed the resistance metric (Fact 1): Lemma 2 and Newton-Schulz.

| construction | layers for relative error eps | state |
|---|---|---|
| :class:`PowerSeriesRoot` (Lemma 2) | kappa log(1/eps) | n x 2k |
| :class:`NewtonSchulzRoot` (ours) | about 1 + log(kappa)/2 + log2 log(1/eps) | n x 2n |
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ohmformer.constructions.base import Construction, check_layers, decay
from ohmformer.graph import Graph
from ohmformer.transformer.blocks import INCIDENCE, Head, Layer, Program, similarity

CONVERGED = 4e-16
"""The distance from 1 at which Newton-Schulz counts as converged."""


class _Root(Construction):
    """Constructions of the square root of the inverse, ``f(x) = x^-1/2``."""

    answer: ClassVar[str] = "root"

    def f(self, x: Tensor) -> Tensor:
        """Evaluate ``x^-1/2``."""
        return torch.rsqrt(x)


@dataclass(frozen=True)
class PowerSeriesRoot(_Root):
    """Lemma 2: ``sqrt(L^+) = sum_l alpha_l (I - delta L)^l I-hat``, ``alpha_l = sqrt(delta) binom(2l, l) / 4^l``.

        root <- root + alpha_l power,    power <- power - delta L power

    with ``delta = 1/lmax``; the power starts as the demands.
    """

    statement: ClassVar[str] = "Lemma 2"

    @property
    def delta(self) -> float:
        """The step size."""
        return 1 / self.spectrum.lmax

    def coefficients(self, layers: int) -> Iterator[float]:
        """Compute ``alpha_0 .. alpha_{layers-1}`` by ``alpha_l = alpha_{l-1} (2l - 1) / (2l)``."""
        alpha = math.sqrt(self.delta)
        for l in range(layers):
            yield alpha
            alpha *= (2 * l + 1) / (2 * l + 2)

    def program(self, layers: int) -> Program:
        """``W^V = -delta`` on the power, ``W^R = alpha_l`` from power to root."""

        def layer(alpha: float) -> Layer:
            return Layer(
                heads=(Head(value={("power", "power"): -self.delta}, **similarity(INCIDENCE)),),
                skip={("root", "power"): alpha},
            )

        blocks = {INCIDENCE: "edges", "power": "demands", "root": "demands"}
        return Program(blocks, [layer(alpha) for alpha in self.coefficients(check_layers(layers))])

    def inputs(self, graph: Graph, signals: Tensor) -> dict[str, Tensor]:
        """Start from the demands as the zeroth power."""
        return {"power": signals}

    def plain(self, laplacian: Tensor, blocks: Mapping[str, Tensor], layers: int) -> Iterator[Tensor]:
        """Yield the partial sums of the series."""
        term = blocks["power"]
        root = torch.zeros_like(term)
        for alpha in self.coefficients(layers):
            root = root + alpha * term
            term = term - self.delta * (laplacian @ term)
            yield root

    def error_bound(self, layers: int) -> float:
        """``alpha_L (1 - delta lmin)^L / (delta lmin)``: the missing terms against a geometric series."""
        l = check_layers(layers)
        alpha = math.sqrt(self.delta) * math.exp(math.lgamma(2 * l + 1) - 2 * math.lgamma(l + 1) - l * math.log(4))
        return alpha * decay(self.delta * self.spectrum.lmin, l) / (self.delta * self.spectrum.lmin)

    def printed_bound(self, layers: int) -> float:
        """As printed, ``exp(-L lmin/lmax) / (lmin sqrt(L/lmax))``, for L >= 1: holds."""
        if check_layers(layers) < 1:
            raise ValueError("Lemma 2's printed bound needs at least 1 layer, got 0")
        lmin, lmax = self.spectrum.lmin, self.spectrum.lmax
        return math.exp(-layers * lmin / lmax) / (lmin * math.sqrt(layers / lmax))


@dataclass(frozen=True)
class NewtonSchulzRoot(_Root):
    """Ours: the coupled Newton-Schulz iteration, two heads, which computes ``Y -> sqrt(L)`` and ``Z -> sqrt(L^+)`` together.

        Y <- a Y - b Y (Z Y),    Z <- a Z - b Z (Y Z)

    from ``Y = L / sqrt(lmax)`` (which the first layer computes from the incidence matrix) and ``Z = I-hat / sqrt(lmax)``. On
    an eigenvalue both follow ``g <- a g - b g^3`` from ``g = sqrt(x / lmax)`` towards 1. With ``scaled`` each layer's a, b
    give the cubic closest to 1 on the interval known to contain g; otherwise a, b = 3/2, 1/2 throughout.

    Once g is 1 up to rounding the remaining layers do nothing: on the null space of L, g = 0 is an unstable fixed point,
    where rounding errors would grow by a factor a in every layer.
    """

    scaled: bool = True

    statement: ClassVar[str] = "ours"
    takes_signals: ClassVar[bool] = False

    def schedule(self, layers: int) -> list[tuple[float, float]]:
        """Compute ``(a, b)`` for each of the layers after the first, until g has converged to rounding."""
        return [(a, b) for a, b, *_ in self._intervals(layers)][1:]

    def _intervals(self, layers: int) -> Iterator[tuple[float, float, float, float]]:
        """Yield ``(a, b, low, high)`` for each layer: its coefficients, and an interval that contains g after it.

        The first layer only computes ``Y``.
        """
        low, high = 1 / math.sqrt(self.spectrum.condition), 1.0
        yield math.nan, math.nan, low, high
        for _ in range(layers - 1):
            if max(1 - low, high - 1) <= CONVERGED:
                return
            if self.scaled:
                # the best odd cubic on [low, high] takes equal values 1 - E at both ends and 1 + E at its maximum, which
                # is at sqrt(s/3): Chebyshev's equioscillation
                s = low * low + low * high + high * high
                b = 2 / (2 / 3 * s * math.sqrt(s / 3) + low * high * (low + high))
                a = b * s
                low, high = b * low * high * (low + high), 2 / 3 * a * math.sqrt(s / 3)
            else:
                a, b = 1.5, 0.5
                low, high = low * (3 - low * low) / 2, 1.0
            yield a, b, low, high

    def program(self, layers: int) -> Program:
        """Head 1 has similarity ``Z Y^T`` and value Z, head 2 ``Y Z^T`` and Y; ``W^R = a - 1`` on both."""
        first = Layer(heads=(Head(value={("square_root", "root"): 1.0}, **similarity(INCIDENCE)),))

        def layer(a: float, b: float) -> Layer:
            return Layer(
                heads=(
                    Head(value={("root", "root"): -b}, **similarity("root", "square_root")),
                    Head(value={("square_root", "square_root"): -b}, **similarity("square_root", "root")),
                ),
                skip={("root", "root"): a - 1, ("square_root", "square_root"): a - 1},
            )

        blocks = {INCIDENCE: "edges", "square_root": "nodes", "root": "nodes"}
        live = [first, *(layer(a, b) for a, b in self.schedule(layers))] if check_layers(layers) else []
        return Program(blocks, live + [Layer()] * (layers - len(live)))

    def inputs(self, graph: Graph, signals: Tensor) -> dict[str, Tensor]:
        """Start from ``Z = I-hat / sqrt(lmax)``; ``Y`` starts at zero."""
        return {"root": graph.projector() / math.sqrt(self.spectrum.lmax)}

    def plain(self, laplacian: Tensor, blocks: Mapping[str, Tensor], layers: int) -> Iterator[Tensor]:
        """Yield ``Z`` after each step of the coupled iteration."""
        z = blocks["root"]
        y = laplacian / math.sqrt(self.spectrum.lmax)
        if layers:
            yield z
        schedule = self.schedule(layers)
        for a, b in schedule:
            y, z = a * y - b * (y @ z) @ y, a * z - b * (z @ y) @ z
            yield z
        for _ in range(layers - 1 - len(schedule)):
            yield z

    def error_bound(self, layers: int) -> float:
        """``max |1 - g| / sqrt(lmin)`` over the interval of g, as ``Z = g / sqrt(x)`` on an eigenvalue x."""
        *_, (_, _, low, high) = self._intervals(max(check_layers(layers), 1))
        return max(1 - low, high - 1) / math.sqrt(self.spectrum.lmin)

    def amplification(self, layers: int) -> float:
        """The condition number, or the growth of rounding errors on the null space if that is larger."""
        return max(self.spectrum.condition, math.prod(a for a, _ in self.schedule(layers)))
