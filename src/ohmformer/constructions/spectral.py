"""Any function of the Laplacian, compiled to weights by its Chebyshev series."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from numpy.polynomial.chebyshev import chebval
from scipy.fft import dct
from torch import Tensor

from ohmformer.constructions.base import Construction, check_layers
from ohmformer.graph import Graph
from ohmformer.transformer.blocks import INCIDENCE, Head, Layer, Program, similarity

MOST_SAMPLES = 2**14


@dataclass(frozen=True)
class SpectralFilter(Construction):
    """Ours: ``f(L) psi`` for any smooth f on ``[lmin, lmax]``, one term of the Chebyshev series per layer.

        T_{l+1} = 2 M T_l - T_{l-1},   answer <- answer + c_{l+1} T_{l+1}

    where ``M = (2 L - lmin - lmax)/(lmax - lmin)`` is the Laplacian mapped to [-1, 1] and ``f = sum_l c_l T_l``. With
    ``null=True`` the series is fitted on ``[0, lmax]``, so that f also acts on the null space and signals may have any mean.

    >>> from ohmformer import Graph, Spectrum
    >>> g = Graph.from_edges([(0, 1), (1, 2)])
    >>> low_pass = SpectralFilter(Spectrum(1.0, 3.0), lambda x: 1 / (1 + x), null=True)
    >>> low_pass.run(g, torch.tensor([1.0, 0.0, 0.0]), layers=low_pass.layers_for(1e-9))
    tensor([[0.6250],
            [0.2500],
            [0.1250]], dtype=torch.float64)
    """

    function: Callable[[np.ndarray], np.ndarray]
    """The function f, for float64 arrays."""
    null: bool = False

    statement: ClassVar[str] = "ours"
    answer: ClassVar[str] = "answer"

    def __post_init__(self) -> None:
        noise = np.finfo(np.float64).eps * self.amplification(len(self.coefficients))  # computes the series, to fail early
        if noise > 1e-3:
            raise ValueError(
                f"expected an f whose series survives rounding on the null space, it would be off by {noise:.1e}; "
                "pass null=True to fit it there too"
            )

    def f(self, x: Tensor) -> Tensor:
        """Evaluate the given function."""
        return torch.as_tensor(self.function(x.numpy()))

    @property
    def at_zero(self) -> float:
        """``f(0)`` with ``null=True``."""
        return float(self.function(np.zeros(1))[0]) if self.null else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The interval on which f is fitted, widened if it is almost a point."""
        low, high = (0.0 if self.null else self.spectrum.lmin), self.spectrum.lmax
        return low, max(high, low * (1 + 1e-3))

    @cached_property
    def _series(self) -> tuple[np.ndarray, float]:
        """Return ``c_l`` down to rounding level, and the largest distance found between the whole series and f.

        Samples are doubled until the last quarter of the coefficients is noise *and* the series agrees with f at a thousand
        other points and at both ends. Noise is the effect on f of rounding its argument, ``eps (max |f| + max |x f'|)``.
        Sampling may miss features narrower than a thousandth of the interval.
        """
        low, high = self.interval
        between = np.cos(np.pi * (np.arange(1000) * 0.6180339887498949 % 1))  # golden ratio: not close to any grid
        between = np.append(between, [-1.0, 1.0])
        samples = 64
        while samples <= MOST_SAMPLES:
            points = np.cos(np.pi * (np.arange(samples) + 0.5) / samples)
            values, elsewhere = self._sample(points), self._sample(between)
            c = np.asarray(dct(values)) / samples
            c[0] /= 2
            slope = np.abs(np.diff(values) / np.diff(points)).max() * (high + low) / (high - low)
            noise = 8 * np.finfo(np.float64).eps * (np.abs(values).max() + slope)
            gap = float(np.abs(chebval(between, c) - elsewhere).max())
            if np.abs(c[-samples // 4 :]).max() <= noise and gap <= 100 * noise:
                keep = int(np.nonzero(np.abs(c) > noise)[0].max(initial=1)) + 1
                return c[:keep], gap + float(np.abs(c[keep:]).sum())
            samples *= 2
        raise ValueError(
            f"expected a smooth f on [{low:.6g}, {high:.6g}], "
            f"its Chebyshev series has not died away after {MOST_SAMPLES} terms"
        )

    def _sample(self, points: np.ndarray) -> np.ndarray:
        """Evaluate f at points of [-1, 1], mapped to the interval."""
        low, high = self.interval
        values = np.asarray(self.function((high - low) / 2 * points + (high + low) / 2), dtype=np.float64)
        if values.shape != points.shape or not np.isfinite(values).all():
            raise ValueError(f"expected f to be finite on [{low:.6g}, {high:.6g}] and to keep the shape of its input")
        return values

    @property
    def coefficients(self) -> np.ndarray:
        """The coefficients of the Chebyshev series of f."""
        return self._series[0]

    @property
    def size(self) -> float:
        """Sum of ``|c_l|``, an upper bound on ``|f|``."""
        return float(np.abs(self.coefficients).sum())

    def recurrence(self, layers: int) -> Iterator[tuple[float, float, float, float]]:
        """Yield ``(c, first, a, b)`` of each layer: ``T_new = a T + b L T - T_old``, ``answer += first T + c T_new``."""
        low, high = self.interval
        c = self.coefficients
        for l in range(min(layers, len(c) - 1)):
            factor = 1.0 if l == 0 else 2.0
            a, b = -factor * (high + low) / (high - low), factor * 2 / (high - low)
            yield float(c[l + 1]), (float(c[0]) if l == 0 else 0.0), a, b

    def program(self, layers: int) -> Program:
        """The recurrence of the class; attention reads ``current`` once and writes to ``current`` and ``answer``.

        Layers beyond the series do nothing: T_l grows without bound outside the interval, where rounding may be.
        """

        def layer(c: float, first: float, a: float, b: float) -> Layer:
            return Layer(
                heads=(Head(value={("current", "current"): b, ("answer", "current"): c * b}, **similarity(INCIDENCE)),),
                skip={
                    ("current", "current"): a - 1,
                    ("current", "previous"): -1.0,
                    ("previous", "current"): 1.0,
                    ("previous", "previous"): -1.0,
                    ("answer", "current"): first + c * a,
                    ("answer", "previous"): -c,
                },
            )

        blocks = {INCIDENCE: "edges", "previous": "demands", "current": "demands", "answer": "demands"}
        stack = [layer(*step) for step in self.recurrence(check_layers(layers))]
        return Program(blocks, stack + [Layer()] * (layers - len(stack)))

    def inputs(self, graph: Graph, signals: Tensor) -> dict[str, Tensor]:
        """Start from ``T_0``, the signal."""
        return {"current": signals}

    def plain(self, laplacian: Tensor, blocks: Mapping[str, Tensor], layers: int) -> Iterator[Tensor]:
        """Yield the partial sums of the series."""
        current = blocks["current"]
        previous = answer = torch.zeros_like(current)
        for c, first, a, b in self.recurrence(layers):
            answer = answer + first * current
            current, previous = a * current + b * (laplacian @ current) - previous, current
            answer = answer + c * current
            yield answer
        for _ in range(layers - len(self.coefficients) + 1):
            yield answer

    def error_bound(self, layers: int) -> float:
        """``sum over l > L of |c_l|``, as ``|T_l| <= 1`` on the interval; all of them before the first layer.

        The largest distance found between the whole series and f, which is rounding, is added.
        """
        missing = self.coefficients[check_layers(layers) + 1 if layers else 0 :]
        return float(np.abs(missing).sum()) + self._series[1]

    def amplification(self, layers: int) -> float:
        """``sum_l |c_l| T_l(x_0)`` over ``sum_l |c_l|`` times depth, x_0 >= 1 being where M has the null space.

        On the interval the recurrence is neutrally stable: errors of earlier layers grow at most linearly. On the null
        space, which lies outside unless ``null=True``, rounding grows with the Chebyshev polynomials.
        """
        low, high = self.interval
        c = np.abs(self.coefficients[: layers + 1])
        with np.errstate(over="ignore"):
            grown = np.cosh(math.acosh((high + low) / (high - low)) * np.arange(len(c)))
        return max(layers, 1) * float((c * grown).sum() / max(c.sum(), 1e-300))
