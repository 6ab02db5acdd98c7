"""Electric flow, ``L^+ psi``: Lemma 1, Lemma 4, and two constructions that need far fewer layers.

| construction | layers for relative error eps | state |
|---|---|---|
| :class:`GradientDescent` (Lemma 1) | kappa log(1/eps) | n x 2k |
| :class:`Chebyshev` (ours) | sqrt(kappa)/2 log(2/eps) | n x 3k |
| :class:`Squaring` (Lemma 4) | 1 + log2(kappa log(1/eps)) | n x 3n |
| :class:`ChebyshevCubing` (ours) | 1 + log3(sqrt(kappa)/2 log(2/eps)) | n x 3n |

kappa = lmax / lmin. In the paper the input of Lemma 4 is the Laplacian; here a first layer computes it from the incidence
matrix, so all four read the graph from ``B`` alone, and ``Squaring`` at depth L + 1 is the paper's Lemma 4 at depth L.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ohmformer.constructions.base import Construction, capped_power, check_layers, check_step, decay
from ohmformer.graph import Graph
from ohmformer.transformer.blocks import INCIDENCE, Head, Layer, Program, similarity


class _Inverse(Construction):
    """Constructions of the inverse of the Laplacian, ``f(x) = 1/x``."""

    def f(self, x: Tensor) -> Tensor:
        """Evaluate ``1/x``."""
        return torch.reciprocal(x)


@dataclass(frozen=True)
class GradientDescent(_Inverse):
    """Lemma 1: one step of gradient descent on ``phi^T L phi / 2 - phi^T psi`` per layer, from ``phi = 0``.

        phi <- phi - delta (L phi - psi)

    ``step`` is delta, by default 1/lmax.
    """

    step: float | None = None

    statement: ClassVar[str] = "Lemma 1"
    answer: ClassVar[str] = "potential"

    def __post_init__(self) -> None:
        check_step(self.delta, self.spectrum, "Lemma 1")

    @property
    def delta(self) -> float:
        """The step size."""
        return 1 / self.spectrum.lmax if self.step is None else self.step

    def program(self, layers: int) -> Program:
        """``W^V = -delta`` on the potential, ``W^Q^T W^K = I`` on the incidence, ``W^R = delta``, demand to potential."""
        layer = Layer(
            heads=(Head(value={("potential", "potential"): -self.delta}, **similarity(INCIDENCE)),),
            skip={("potential", "demand"): self.delta},
        )
        return Program({INCIDENCE: "edges", "demand": "demands", "potential": "demands"}, [layer] * check_layers(layers))

    def inputs(self, graph: Graph, signals: Tensor) -> dict[str, Tensor]:
        """Start from the demands; potentials start at zero."""
        return {"demand": signals}

    def plain(self, laplacian: Tensor, blocks: Mapping[str, Tensor], layers: int) -> Iterator[Tensor]:
        """Yield the potentials after each step of gradient descent."""
        psi = blocks["demand"]
        phi = torch.zeros_like(psi)
        for _ in range(layers):
            phi = phi - self.delta * (laplacian @ phi - psi)
            yield phi

    def error_bound(self, layers: int) -> float:
        """``(1 - delta lmin)^L / lmin``, attained at lmin, and at most ``exp(-delta L lmin) / lmin``.

        The error is ``(I - delta L)^L L^+ psi``, and ``(1 - delta x)^L / x`` falls in x on (0, 1/delta].
        """
        return decay(self.delta * self.spectrum.lmin, check_layers(layers)) / self.spectrum.lmin

    def printed_bound(self, layers: int) -> float:
        """As printed, ``exp(-delta L lmin / 2) / sqrt(lmin)``: false for lmin < 1 (see the errata)."""
        lmin = self.spectrum.lmin
        return math.exp(-self.delta * check_layers(layers) * lmin / 2) / math.sqrt(lmin)


@dataclass(frozen=True)
class Chebyshev(_Inverse):
    """Ours: the Chebyshev semi-iteration, whose error polynomial is the smallest possible on ``[lmin, lmax]``.

        phi_{l+1} = omega_l (phi_l + gamma (psi - L phi_l)) + (1 - omega_l) phi_{l-1}

    with ``gamma = 2/(lmin + lmax)``, ``q = (lmax - lmin)/(lmax + lmin)``, ``omega_0 = 1``, ``omega_1 = 1/(1 - q^2/2)`` and
    ``omega_{l+1} = 1/(1 - q^2 omega_l / 4)``. One more block holds the previous iterate.
    """

    statement: ClassVar[str] = "ours"
    answer: ClassVar[str] = "potential"

    @property
    def gamma(self) -> float:
        """The step size, ``2/(lmin + lmax)``."""
        return 2 / (self.spectrum.lmin + self.spectrum.lmax)

    def omegas(self, layers: int) -> list[float]:
        """Compute ``omega_0, omega_1, ...``, one per layer."""
        square = contraction(self.spectrum.condition) ** 2
        omegas: list[float] = []
        for l in range(layers):
            omegas.append(1.0 if l == 0 else 1 / (1 - square * (0.5 if l == 1 else omegas[-1] / 4)))
        return omegas

    def program(self, layers: int) -> Program:
        """``W^V = -omega gamma`` on the potentials; ``W^R`` mixes demand, potential and the previous potential."""
        blocks = {INCIDENCE: "edges", "demand": "demands", "previous": "demands", "potential": "demands"}
        return Program(blocks, [self._layer(omega) for omega in self.omegas(check_layers(layers))])

    def _layer(self, omega: float) -> Layer:
        return Layer(
            heads=(Head(value={("potential", "potential"): -omega * self.gamma}, **similarity(INCIDENCE)),),
            skip={
                ("potential", "potential"): omega - 1,
                ("potential", "previous"): 1 - omega,
                ("potential", "demand"): omega * self.gamma,
                ("previous", "potential"): 1.0,
                ("previous", "previous"): -1.0,
            },
        )

    def inputs(self, graph: Graph, signals: Tensor) -> dict[str, Tensor]:
        """Start from the demands; potentials start at zero."""
        return {"demand": signals}

    def plain(self, laplacian: Tensor, blocks: Mapping[str, Tensor], layers: int) -> Iterator[Tensor]:
        """Yield the potentials after each step of the semi-iteration."""
        psi = blocks["demand"]
        before = phi = torch.zeros_like(psi)
        for omega in self.omegas(layers):
            before, phi = phi, omega * (phi + self.gamma * (psi - laplacian @ phi)) + (1 - omega) * before
            yield phi

    def error_bound(self, layers: int) -> float:
        """``1 / (lmin T_L(1/q)) <= 2 rho^L / lmin`` with ``rho = (sqrt(kappa) - 1)/(sqrt(kappa) + 1)``.

        The error is ``T_L(m(L)) / T_L(1/q) L^+ psi`` where m maps ``[lmin, lmax]`` onto ``[-1, 1]``.
        """
        return inverse_chebyshev(check_layers(layers), self.spectrum.condition) / self.spectrum.lmin


class _MatrixInverse(_Inverse):
    """Constructions whose state is n x n and whose answer is ``L^+`` itself."""

    takes_signals: ClassVar[bool] = False
    answer: ClassVar[str] = "pinv"
    blocks: ClassVar[Mapping] = {INCIDENCE: "edges", "identity": "nodes", "residual": "nodes", "pinv": "nodes"}

    @property
    @abstractmethod
    def start(self) -> float:
        """The step size tau of the first residual ``I-hat - tau L``."""

    def first(self) -> Layer:
        """Build the layer that computes the first residual from the incidence: ``R <- R - tau L R`` with ``R = I-hat``."""
        return Layer(heads=(Head(value={("residual", "residual"): -self.start}, **similarity(INCIDENCE)),))

    def inputs(self, graph: Graph, signals: Tensor) -> dict[str, Tensor]:
        """Start from ``I``, ``I-hat`` and ``tau I-hat``; the projection keeps the null space at zero in all layers."""
        projector = graph.projector()
        return {"identity": graph.identity(), "residual": projector, "pinv": self.start * projector}


@dataclass(frozen=True)
class Squaring(_MatrixInverse):
    """Lemma 4, corrected: ``delta prod_l (I + R^(2^l)) = delta sum of the first 2^L powers of R``, ``R = I-hat - delta L``.

        X <- X + R X,    R <- R R

    The similarity matrix is ``R I^T``, for which a block holds the identity. ``step`` is delta, by default 1/lmax.
    """

    step: float | None = None

    statement: ClassVar[str] = "Lemma 4"

    def __post_init__(self) -> None:
        check_step(self.start, self.spectrum, "Lemma 4")

    @property
    def start(self) -> float:
        """The step size."""
        return 1 / self.spectrum.lmax if self.step is None else self.step

    def program(self, layers: int) -> Program:
        """``W^V = I`` on residual and answer, ``W^R = -I`` on the residual (as printed, the answer is updated with R^2)."""
        square = Layer(
            heads=(
                Head(value={("residual", "residual"): 1.0, ("pinv", "pinv"): 1.0}, **similarity("residual", "identity")),
            ),
            skip={("residual", "residual"): -1.0},
        )
        return Program(self.blocks, [self.first(), *[square] * (layers - 1)] if check_layers(layers) else [])

    def plain(self, laplacian: Tensor, blocks: Mapping[str, Tensor], layers: int) -> Iterator[Tensor]:
        """Yield ``X`` after each squaring."""
        x, r = blocks["pinv"], blocks["residual"] - self.start * laplacian
        for l in range(layers):
            if l > 0:
                x, r = x + r @ x, r @ r
            yield x

    def error_bound(self, layers: int) -> float:
        """``(1 - delta lmin)^(2^(L-1)) / lmin``: the powers from 2^(L-1) on are missing."""
        squarings = max(check_layers(layers) - 1, 0)
        return decay(self.start * self.spectrum.lmin, capped_power(2, squarings)) / self.spectrum.lmin

    def printed_bound(self, layers: int) -> float:
        """As printed, ``exp(-delta 2^(L-1) lmin) / lmin``: holds for the corrected weights."""
        lmin = self.spectrum.lmin
        return math.exp(-self.start * capped_power(2, max(check_layers(layers) - 1, 0)) * lmin) / lmin


@dataclass(frozen=True)
class ChebyshevCubing(_MatrixInverse):
    """Ours: the Chebyshev polynomial of degree ``3^L``, one composition with ``T_3(x) = 4 x^3 - 3 x`` per layer.

    Let ``R_l = T_m(M) / t_l`` be the residual polynomial of degree ``m = 3^l``, with M the Laplacian mapped to [-1, 1],
    ``t_l = T_m(1/q)`` and ``u_l = 3 / (4 t_l^2)``. As ``T_3m = T_3(T_m)``, the cube that attention computes suffices:

        R <- (R^3 - u R) / (1 - u),    X <- X + (R^2 X + R X) / (1 - u)

    keeps ``L X = I-hat - R``. Two heads: ``R R^T`` on R and X, and ``R I^T`` on X.
    """

    statement: ClassVar[str] = "ours"

    @property
    def start(self) -> float:
        """The step size, ``2/(lmin + lmax)``."""
        return 2 / (self.spectrum.lmin + self.spectrum.lmax)

    def offsets(self, layers: int) -> list[float]:
        """Compute ``u_l`` for each cubing layer: ``u_0 = 3 q^2 / 4``, then ``u <- u^3 / (9 (1 - u)^2)``."""
        offsets: list[float] = []
        for l in range(layers):
            offsets.append(
                0.75 * contraction(self.spectrum.condition) ** 2
                if l == 0
                else offsets[-1] ** 3 / (9 * (1 - offsets[-1]) ** 2)
            )
        return offsets

    def program(self, layers: int) -> Program:
        """The weights of the update above; the first layer computes the residual from the incidence matrix."""
        cubes = [self._layer(u) for u in self.offsets(check_layers(layers) - 1)]
        return Program(self.blocks, [self.first(), *cubes] if layers else [])

    @staticmethod
    def _layer(u: float) -> Layer:
        by = 1 / (1 - u)
        return Layer(
            heads=(
                Head(value={("residual", "residual"): by, ("pinv", "pinv"): by}, **similarity("residual")),
                Head(value={("pinv", "pinv"): by}, **similarity("residual", "identity")),
            ),
            skip={("residual", "residual"): -1 - u * by},
        )

    def plain(self, laplacian: Tensor, blocks: Mapping[str, Tensor], layers: int) -> Iterator[Tensor]:
        """Yield ``X`` after each composition with T_3."""
        x, r = blocks["pinv"], blocks["residual"] - self.start * laplacian
        if layers:
            yield x
        for u in self.offsets(layers - 1):
            square = r @ r
            x, r = x + (square @ x + r @ x) / (1 - u), (square @ r - u * r) / (1 - u)
            yield x

    def error_bound(self, layers: int) -> float:
        """``1 / (lmin T_m(1/q)) <= 2 rho^m / lmin`` with ``m = 3^(L-1)``."""
        return (
            inverse_chebyshev(capped_power(3, max(check_layers(layers) - 1, 0)), self.spectrum.condition)
            / self.spectrum.lmin
        )


def contraction(condition: float) -> float:
    """Compute ``q = (kappa - 1)/(kappa + 1)``: the spectrum, scaled to be centred at 1, is ``[1 - q, 1 + q]``."""
    return (condition - 1) / (condition + 1)


def inverse_chebyshev(degree: int | float, condition: float) -> float:
    """Compute ``1 / T_degree(1/q) = 2 rho^degree / (1 + rho^(2 degree))``, ``rho = (sqrt(kappa) - 1)/(sqrt(kappa) + 1)``."""
    shrunk = decay(2 / (math.sqrt(condition) + 1), degree)
    return 2 * shrunk / (1 + shrunk**2)
