"""What every construction is: weights, the iteration they implement, and a bound beside them."""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer import exact
from ohmformer.graph import Graph, Spectrum
from ohmformer.transformer.blocks import INCIDENCE, Layout, Program
from ohmformer.transformer.dense import LinearTransformer
from ohmformer.transformer.efficient import EfficientTransformer
from ohmformer.transformer.trace import Trace

MOST_LAYERS = 10_000_000


class Runnable(ABC):
    """Weights for any depth, and how to run them as the efficient or as the dense Transformer."""

    statement: ClassVar[str]
    """The statement of the paper that this implements, or "ours"."""
    answer: ClassVar[str]
    """Name of the block that holds the answer."""

    @abstractmethod
    def program(self, layers: int) -> Program:
        """Return the weights of ``layers`` layers, block by block."""

    def efficient(self, layers: int, *, dtype: torch.dtype = torch.float64) -> EfficientTransformer:
        """Build the parameter-efficient model; its size does not depend on the graph."""
        return EfficientTransformer(self.program(check_layers(layers)), dtype)

    def dense(self, layers: int, graph: Graph, demands: int, *, dtype: torch.dtype = torch.float64) -> LinearTransformer:
        """Build the paper's dense model, for graphs padded like ``graph`` and a number of demands."""
        program = self.program(check_layers(layers))
        return LinearTransformer.of(program, self.layout(program, graph, demands), dtype)

    def layout(self, program: Program, graph: Graph, demands: int) -> Layout:
        """Return the position of each block in the dense model's tokens."""
        return program.layout(nodes=graph.width, edges=graph.incidence().shape[-1], demands=demands)

    def run_blocks(
        self, graph: Graph, blocks: Mapping[str, Tensor], layers: int, model: str = "efficient", *, trace: bool = True
    ) -> Trace:
        """Run the model from given blocks; returns the state after every layer, or without ``trace`` after the last."""
        if model == "efficient":
            efficient = self.efficient(layers, dtype=graph.dtype).to(graph.device).requires_grad_(False)
            if trace:
                return efficient(graph.laplacian(), blocks, trace=True)
            return Trace([efficient(graph.laplacian(), blocks)])
        if model != "dense":
            raise ValueError(f"expected model='efficient' or 'dense', got {model!r}")
        columns = next((x.shape[-1] for x in blocks.values()), 0)
        dense = self.dense(layers, graph, columns, dtype=graph.dtype).to(graph.device).requires_grad_(False)
        tokens = dense.layout.pack({INCIDENCE: graph.incidence(), **blocks})
        return dense(tokens, trace=True) if trace else Trace([dense.layout.unpack(dense(tokens))])


@dataclass(frozen=True)
class Construction(Runnable):
    """A function of the Laplacian, ``f(L)``, computed layer by layer, for all graphs whose spectrum lies in an interval.

    Subclasses define ``f``, the weights that compute it, the same iteration in matrix algebra, and a bound on the error.
    Errors are in the operator norm: ``|answer - f(L) psi| <= error_bound |psi|``.
    """

    spectrum: Spectrum

    takes_signals: ClassVar[bool] = True
    """True: the answer is ``f(L) psi`` for given columns psi. False: the state is n x n and the answer is ``f(L)``."""

    @abstractmethod
    def f(self, x: Tensor) -> Tensor:
        """Evaluate ``f`` at eigenvalues."""

    @property
    def at_zero(self) -> float:
        """The value of ``f`` on the null space of ``L``; if it is 0, signals must sum to zero on each component."""
        return 0.0

    @property
    def size(self) -> float:
        """The largest ``|f|`` on the spectrum, by which errors are divided to make them relative."""
        interval = torch.linspace(self.spectrum.lmin, self.spectrum.lmax, 2, dtype=torch.float64)
        return max(float(self.f(interval).abs().max()), abs(self.at_zero))

    @abstractmethod
    def inputs(self, graph: Graph, signals: Float[Tensor, "*graphs width demands"]) -> dict[str, Tensor]:
        """Return the blocks before the first layer. Constructions with an n x n state ignore ``signals``."""

    @abstractmethod
    def plain(
        self,
        laplacian: Float[Tensor, "*graphs width width"],
        blocks: Mapping[str, Tensor],
        layers: int,
    ) -> Iterator[Tensor]:
        """Yield the answer after each layer by matrix algebra, from the same blocks; the Transformer must equal it."""

    @abstractmethod
    def error_bound(self, layers: int) -> float:
        """Bound the operator norm of ``answer - f(L)``; raise a ValueError if the condition of the bound is violated."""

    @property
    def min_layers(self) -> int:
        """The least depth at which :meth:`error_bound` holds; beyond it, the bound decreases with depth."""
        return 0

    def layers_for(self, eps: float) -> int:
        """Return the least depth whose bound is at most ``eps``."""
        if not 0 < eps < math.inf:
            raise ValueError(f"expected a positive error eps, got {eps!r}")
        low = high = self.min_layers
        while self.error_bound(high) > eps:
            low, high = high + 1, 2 * high + 1
            if high > MOST_LAYERS:
                raise ValueError(f"{type(self).__name__} needs more than {MOST_LAYERS} layers for an error of {eps:g}")
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.error_bound(middle) <= eps else (middle + 1, high)
        return high

    def rounding(self, layers: int, nodes: int, dtype: torch.dtype = torch.float64) -> float:
        """Bound the floating-point error: ``8 eps (layers + nodes)`` times size times amplification.

        A product of length ``nodes`` has a relative error of at most ``nodes eps``; the amplification bounds how much a
        perturbation of the state grows until it reaches the answer.
        """
        return 8 * torch.finfo(dtype).eps * (layers + nodes) * self.size * self.amplification(layers)

    def amplification(self, layers: int) -> float:
        """Bound the growth of a perturbation until it reaches the answer; by default the condition number."""
        return self.spectrum.condition

    def target(self, graph: Graph) -> Float[Tensor, "*graphs width width"]:
        """Compute ``f(L)`` by LAPACK."""
        return exact.apply(graph, self.f, at_zero=self.at_zero)

    @overload
    def run(
        self,
        graph: Graph,
        signals: Tensor | None = None,
        *,
        layers: int,
        model: str = "efficient",
        center: bool = False,
        trace: Literal[False] = False,
    ) -> Tensor: ...
    @overload
    def run(
        self,
        graph: Graph,
        signals: Tensor | None = None,
        *,
        layers: int,
        model: str = "efficient",
        center: bool = False,
        trace: Literal[True],
    ) -> Trace: ...
    def run(
        self,
        graph: Graph,
        signals: Tensor | None = None,
        *,
        layers: int,
        model: str = "efficient",
        center: bool = False,
        trace: bool = False,
    ) -> Tensor | Trace:
        """Build the model, run it, and return the answer.

        With ``signals`` of shape ``(nodes, k)`` the answer is ``f(L) signals``, of the same shape; without, it is the
        matrix ``f(L)``. ``center=True`` subtracts the mean over each component first. ``trace=True`` returns the blocks
        after every layer instead.
        """
        if signals is not None:
            signals = graph.check_signals(signals) if self.at_zero else graph.check_demands(signals, center=center)
        answer, states = self.answer_to(graph, signals, layers=layers, model=model, trace=trace)
        return answer if states is None else states

    def answer_to(
        self,
        graph: Graph,
        signals: Float[Tensor, "nodes k"] | None,
        *,
        layers: int,
        model: str = "efficient",
        trace: bool = False,
    ) -> tuple[Tensor, Trace | None]:
        """Run the model on checked signals; return the answer and, with ``trace``, the blocks after every layer."""
        everything = graph.identity if self.at_zero else graph.projector
        psi = everything() if signals is None else graph.pad(signals)
        states = self.run_blocks(graph, self.inputs(graph, psi), layers, model, trace=trace)
        answer = states.final[self.answer]
        if signals is not None:
            answer = graph.unpad(answer if self.takes_signals else answer @ psi)
        return answer, states if trace else None


def check_layers(layers: int) -> int:
    """Return ``layers`` as an integer, or raise a ValueError if it is negative or not a whole number."""
    try:
        depth = operator.index(layers)
    except TypeError:
        depth = -1
    if depth < 0:
        raise ValueError(f"expected a number of layers >= 0, got {layers!r}")
    return depth


def decay(x: float, exponent: int | float) -> float:
    """Compute ``(1 - x) ** exponent`` for ``0 <= x <= 1``, accurately for small x and exponents of any size."""
    if x >= 1:
        return 0.0 if exponent else 1.0
    return math.exp(max(exponent * math.log1p(-x), -746.0))


def capped_power(base: int, exponent: int) -> float:
    """Compute ``base ** exponent`` as a float, at most about 1e300."""
    return float(base) ** min(exponent, int(300 / math.log10(base)))


def check_step(step: float, spectrum: Spectrum, name: str) -> float:
    """Return ``step`` if the bound of gradient descent holds for it, or raise a ValueError."""
    if not 0 < step * spectrum.lmax <= 1:
        raise ValueError(f"{name} needs a step in (0, 1/lmax] = (0, {1 / spectrum.lmax:.6g}], got {step!r}")
    return step
