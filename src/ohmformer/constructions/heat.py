"""The heat kernel ``exp(-s L)``: Lemma 3, Lemma 5, and cubing from a better seed.

| construction | layers for error eps | state |
|---|---|---|
| :class:`TaylorHeat` (Lemma 3) | about e s lmax + log(1/eps) | n x 2k |
| :class:`CubedHeat` (Lemma 5) | 1 + log3(1/eps), and s lmax <= 3^(L-1) | n x n |
| :class:`SeededHeat` (ours) | 7 for s lmax = 20 and eps = 1e-10 | n x 3n |

As for Lemma 4, a first layer computes the seed from the incidence matrix: ``CubedHeat`` at depth L + 1 is the paper's
Lemma 5 at depth L.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ohmformer.constructions.base import Construction, capped_power, check_layers
from ohmformer.graph import Graph
from ohmformer.transformer.blocks import INCIDENCE, Head, Layer, Program, similarity


@dataclass(frozen=True)
class _Heat(Construction):
    """Constructions of the heat kernel at time ``s > 0``, ``f(x) = exp(-s x)``."""

    s: float

    answer: ClassVar[str] = "kernel"

    def __post_init__(self) -> None:
        if not 0 < self.s < math.inf:
            raise ValueError(f"the heat kernel needs s > 0, got {self.s!r}")

    def f(self, x: Tensor) -> Tensor:
        """Evaluate ``exp(-s x)``."""
        return torch.exp(-self.s * x)

    @property
    def at_zero(self) -> float:
        """1, as heat is conserved on the null space."""
        return 1.0

    @property
    def reach(self) -> float:
        """The largest exponent, ``s lmax``, which determines depth and bounds."""
        return self.s * self.spectrum.lmax


@dataclass(frozen=True)
class TaylorHeat(_Heat):
    """Lemma 3: the power series of ``exp(-s L)``, one term per layer.

        kernel <- kernel + term,    term <- -s/(l+1) L term

    The paper stores ``L^l psi`` and multiplies by ``(-s)^l / l!`` at the output; here the term itself is stored, which gives
    the same answer and does not overflow.
    """

    statement: ClassVar[str] = "Lemma 3"

    def program(self, layers: int) -> Program:
        """``W^V = -s/(l+1)`` and ``W^R = -1`` on the term, ``W^R = 1`` from term to kernel."""

        def layer(l: int) -> Layer:
            return Layer(
                heads=(Head(value={("term", "term"): -self.s / (l + 1)}, **similarity(INCIDENCE)),),
                skip={("term", "term"): -1.0, ("kernel", "term"): 1.0},
            )

        blocks = {INCIDENCE: "edges", "term": "demands", "kernel": "demands"}
        return Program(blocks, [layer(l) for l in range(check_layers(layers))])

    def inputs(self, graph: Graph, signals: Tensor) -> dict[str, Tensor]:
        """Start from the signals as the zeroth term."""
        return {"term": signals}

    def plain(self, laplacian: Tensor, blocks: Mapping[str, Tensor], layers: int) -> Iterator[Tensor]:
        """Yield the partial sums of the series."""
        term = blocks["term"]
        kernel = torch.zeros_like(term)
        for l in range(layers):
            kernel = kernel + term
            term = (-self.s / (l + 1)) * (laplacian @ term)
            yield kernel

    def error_bound(self, layers: int) -> float:
        """``(s lmax)^L / L!``, Lagrange's remainder; no condition, and far below the printed bound."""
        logarithm = check_layers(layers) * math.log(self.reach) - math.lgamma(layers + 1)
        return math.inf if logarithm > 709 else math.exp(logarithm)

    def printed_bound(self, layers: int) -> float:
        """As printed, ``2^(-L + 8 s lmax + 1)`` for ``8 s lmax <= L``: holds."""
        if 8 * self.reach > check_layers(layers):
            raise ValueError(f"Lemma 3's printed bound needs 8 s lmax <= layers, got {8 * self.reach:.4g} > {layers}")
        return 2.0 ** (-layers + 8 * self.reach + 1)

    @property
    def min_layers(self) -> int:
        """The depth from which on terms decrease, ``s lmax`` rounded up."""
        return math.ceil(self.reach)

    def amplification(self, layers: int) -> float:
        """``exp(s lmax)``: alternating terms of this size cancel."""
        return math.exp(min(self.reach, 700.0))


@dataclass(frozen=True)
class CubedHeat(_Heat):
    """Lemma 5: ``(I - s L / 3^c)^(3^c)`` by cubing c times.

        kernel <- kernel^3      after a first layer,  kernel <- kernel - s 3^-c L kernel  from  kernel = I

    The state is the kernel itself, n x n.
    """

    statement: ClassVar[str] = "Lemma 5"
    takes_signals: ClassVar[bool] = False

    def seed(self, layers: int) -> int:
        """Return the number of layers that build the seed, a Taylor polynomial of degree ``2 seed - 1``; the others cube."""
        return 1

    def program(self, layers: int) -> Program:
        """``W^V = I, W^Q^T W^K = I, W^R = -I`` in every layer but the first."""
        if check_layers(layers) == 0:
            return Program({INCIDENCE: "edges", "kernel": "nodes"}, [])
        tau = self.s / 3 ** (layers - 1)
        first = Layer(heads=(Head(value={("kernel", "kernel"): -tau}, **similarity(INCIDENCE)),))
        return Program({INCIDENCE: "edges", "kernel": "nodes"}, [first, *[_CUBE] * (layers - 1)])

    def inputs(self, graph: Graph, signals: Tensor) -> dict[str, Tensor]:
        """Start from the identity."""
        return {"kernel": graph.identity()}

    def plain(self, laplacian: Tensor, blocks: Mapping[str, Tensor], layers: int) -> Iterator[Tensor]:
        """Yield the kernel after each cubing."""
        kernel = blocks["kernel"]
        for l in range(layers):
            kernel = kernel - self.s / 3 ** (layers - 1) * laplacian if l == 0 else kernel @ kernel @ kernel
            yield kernel

    def error_bound(self, layers: int) -> float:
        """``C exp(-x (C-1)/C) (x/C)^(q+1) / (q+1)!`` maximised over x (:func:`cubing_bound`), C = 3^c, q the seed's degree.

        Needs ``s lmax <= 3^c z``, z the zero of the seed (1 for Lemma 5).
        """
        if check_layers(layers) == 0:
            return 1.0  # the answer is the identity or zero, exp(-s x) is in (0, 1]
        seed = self.seed(layers)
        limit = capped_power(3, layers - seed) * first_zero(2 * seed - 1)
        if self.reach > limit:
            raise ValueError(f"{self.statement} needs s lmax <= {limit:.4g} at {layers} layers, got {self.reach:.4g}")
        return cubing_bound(self.reach, 2 * seed - 1, layers - seed)

    def printed_bound(self, layers: int) -> float:
        """As printed, ``3^(1-c) s^2 lmax^2`` for ``s lmax <= 3^c``, c = layers - 1 >= 0: holds."""
        if check_layers(layers) < 1 or self.reach > capped_power(3, layers - 1):
            raise ValueError(f"Lemma 5 needs s lmax <= 3^(layers - 1), got {self.reach:.4g} at {layers} layers")
        return 3 / capped_power(3, layers - 1) * self.reach**2

    @property
    def min_layers(self) -> int:
        """The least depth at which the seed is positive on the spectrum."""
        layers = 1
        while self.reach > capped_power(3, layers - self.seed(layers)) * first_zero(2 * self.seed(layers) - 1):
            layers += 1
        return layers

    def amplification(self, layers: int) -> float:
        """``3^c``: a relative error of the seed is multiplied by the power it is raised to."""
        return capped_power(3, layers - self.seed(layers)) if layers else 1.0


@dataclass(frozen=True)
class SeededHeat(CubedHeat):
    """Ours: cubing from the Taylor polynomial of degree ``2 j - 1`` of ``exp(-s L / 3^c)``, j + c layers in all.

        first layer         generator <- -tau L,   kernel <- I/(m-1)! + generator/m!         (m = 2 j - 1, tau = s / 3^c)
        j - 1 layers        kernel <- I/i! + generator/(i+1)! + generator^2 kernel           (i = m-3, m-5, ..., 0)
        c layers            kernel <- kernel^3

    Attention raises the degree of the seed by two per layer. Every depth uses the split j + c with the smallest bound,
    float64 rounding included, so the bound alone decreases with depth only down to about 1e-15.
    """

    statement: ClassVar[str] = "ours"

    def seed(self, layers: int) -> int:
        """Choose the j with the smallest bound, rounding included."""
        return _best_seed(self.reach, layers)

    def program(self, layers: int) -> Program:
        """The weights of the update above."""
        blocks = {INCIDENCE: "edges", "identity": "nodes", "generator": "nodes", "kernel": "nodes"}
        if check_layers(layers) == 0:
            return Program(blocks, [])
        j = self.seed(layers)
        tau, m = self.s / 3 ** (layers - j), 2 * j - 1
        first = Layer(
            heads=(
                Head(
                    value={("generator", "identity"): -tau, ("kernel", "identity"): -tau / math.factorial(m)},
                    **similarity(INCIDENCE),
                ),
            ),
            skip={("kernel", "identity"): 1 / math.factorial(m - 1)},
        )
        steps = [_horner(i) for i in range(m - 3, -1, -2)]
        return Program(blocks, [first, *steps, *[_CUBE] * (layers - j)])

    def inputs(self, graph: Graph, signals: Tensor) -> dict[str, Tensor]:
        """Start from the identity; the kernel starts at zero, so that the tiny last coefficient is not added to a one."""
        return {"identity": graph.identity()}

    def plain(self, laplacian: Tensor, blocks: Mapping[str, Tensor], layers: int) -> Iterator[Tensor]:
        """Yield the kernel after each layer: Horner's rule in steps of two, then cubing."""
        if layers == 0:
            return
        identity, j = blocks["identity"], self.seed(layers)
        generator, m = -self.s / 3 ** (layers - j) * laplacian, 2 * j - 1
        kernel = identity / math.factorial(m - 1) + generator / math.factorial(m)
        yield kernel
        for i in range(m - 3, -1, -2):
            kernel = identity / math.factorial(i) + generator / math.factorial(i + 1) + generator @ generator @ kernel
            yield kernel
        for _ in range(layers - j):
            kernel = kernel @ kernel @ kernel
            yield kernel


_CUBE = Layer(heads=(Head(value={("kernel", "kernel"): 1.0}, **similarity("kernel")),), skip={("kernel", "kernel"): -1.0})
"""``kernel <- kernel kernel^T kernel``."""


def cubing_bound(reach: float, degree: int, cubings: int) -> float:
    """Bound the error of ``p(x/C)^C`` against ``exp(-x)`` for ``0 <= x <= reach``, p Taylor's seed of odd degree q, C = 3^c.

    For odd q, ``0 <= exp(-y) - p(y) <= y^(q+1)/(q+1)!`` while p is positive. As
    ``|a^C - b^C| <= C max(a, b)^(C-1) |a - b|``, the error is at most ``C exp(-x (C-1)/C) (x/C)^(q+1) / (q+1)!``,
    which is largest at ``x = (q+1) C/(C-1)``.
    """
    times, order = capped_power(3, cubings), degree + 1
    x = reach if times == 1 else min(reach, order * times / (times - 1))
    return times * math.exp(-x * (times - 1) / times) * (x / times) ** order / math.factorial(order)


@lru_cache
def first_zero(degree: int) -> float:
    """Return the only real zero of the Taylor polynomial of ``exp(-y)`` of odd degree, which is positive below it."""
    roots = np.roots([(-1) ** i / math.factorial(i) for i in range(degree, -1, -1)])
    return float(roots[np.abs(roots.imag).argmin()].real)


@lru_cache
def _horner(i: int) -> Layer:
    """Build the layer of a Horner step of degree two: ``K <- G^2 K + I / i! + G / (i + 1)!``."""
    return Layer(
        heads=(Head(value={("kernel", "kernel"): 1.0}, **similarity("generator")),),
        skip={
            ("kernel", "kernel"): -1.0,
            ("kernel", "identity"): 1 / math.factorial(i),
            ("kernel", "generator"): 1 / math.factorial(i + 1),
        },
    )


def _best_seed(reach: float, layers: int) -> int:
    """Return the number of seed layers with the smallest bound plus rounding whose condition holds; 1 if there is none."""
    return min(range(1, min(max(layers, 1), 10) + 1), key=lambda j: _bound_with_rounding(reach, j, layers - j))


def _bound_with_rounding(reach: float, j: int, cubings: int) -> float:
    if reach > capped_power(3, cubings) * first_zero(2 * j - 1):
        return math.inf
    return cubing_bound(reach, 2 * j - 1, cubings) + capped_power(3, cubings) * np.finfo(np.float64).eps
