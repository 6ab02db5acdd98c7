"""Orthonormal columns by attention: Lemma 8, its k heads in parallel, and Newton-Schulz.

Each class orthonormalises a block of k columns in place by its own stack of layers;
:mod:`ohmformer.constructions.eigenvectors` inserts them between the steps of subspace iteration.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer.constructions.base import Runnable, check_layers
from ohmformer.transformer.blocks import INCIDENCE, Head, Layer, Program, similarity
from ohmformer.transformer.normalize import NONE, Normalization

VECTORS = "vectors"
UNIT_COLUMNS = Normalization(features="columns", only=(VECTORS,))
"""Section 4: every column of the vectors is divided by its norm after every layer."""


@dataclass(frozen=True)
class Orthogonalization(Runnable):
    """Layers that make ``k`` columns orthonormal, in rounds; the program may end within a round."""

    k: int

    answer: ClassVar[str] = VECTORS
    normalization: ClassVar[Normalization] = UNIT_COLUMNS

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"expected k >= 1 columns, got {self.k}")

    @property
    @abstractmethod
    def round(self) -> list[Layer]:
        """The layers of one round."""

    @abstractmethod
    def step(self, phi: Float[Tensor, "*graphs nodes k"], index: int) -> Float[Tensor, "*graphs nodes k"]:
        """Apply layer ``index`` of a round in plain matrix algebra."""

    def program(self, layers: int) -> Program:
        """Return rounds, repeated and truncated to ``layers`` layers."""
        period = self.round or [Layer()]
        stack = [period[l % len(period)] for l in range(check_layers(layers))]
        return Program({INCIDENCE: "edges", VECTORS: self.k}, stack, self.normalization)

    def plain(self, phi: Float[Tensor, "*graphs nodes k"], layers: int) -> Iterator[Tensor]:
        """Yield the columns after each layer."""
        period = max(len(self.round), 1)
        for l in range(layers):
            phi = self.step(phi, l % period)
            yield phi

    def error_bound(self, layers: int, smallest: float | None = None) -> float:
        """``|Phi^T Phi - I| = 0`` after k layers, up to rounding; there is no bound before.

        ``smallest`` is the smallest singular value at the start, on which only :class:`NewtonSchulz` depends.
        """
        if check_layers(layers) < self.k:
            raise ValueError(f"{self.statement} needs k = {self.k} layers to orthogonalise k columns, got {layers}")
        return 0.0

    def layers_for(self, eps: float, smallest: float | None = None) -> int:
        """Return the least depth whose bound is at most ``eps``."""
        return self.k


@dataclass(frozen=True)
class GramSchmidt(Orthogonalization):
    """Lemma 8, k layers: column i loses its projections onto all columns j > i, which must already be orthonormal.

        phi_i <- normalise(phi_i - sum over j > i of <phi_i, phi_j> phi_j)

    So the layers run from the last column to the first, an order that the paper does not specify but that matters.
    """

    statement: ClassVar[str] = "Lemma 8"

    @property
    def round(self) -> list[Layer]:
        """One layer per column, the last column first."""
        return [single_index(i, self.k) for i in range(self.k - 1, -1, -1)]

    def step(self, phi: Tensor, index: int) -> Tensor:
        """Orthogonalise column ``k - 1 - index`` to those after it."""
        i = self.k - 1 - index
        column, later = phi[..., :, i : i + 1], phi[..., :, i + 1 :]
        column = column - later @ (later.mT @ column)
        return unit_columns(torch.cat([phi[..., :, :i], column, later], dim=-1))


@dataclass(frozen=True)
class ParallelGramSchmidt(Orthogonalization):
    """The k layers of Lemma 8 as k parallel heads of one layer, which the paper mentions in passing.

        Phi <- normalise(Phi (I - T)),   T the part of Phi^T Phi below its diagonal

    All heads read the *old* columns, so one layer is not exact. But the last column is correct after one layer, the one
    before it after two, and so on: k layers are exact for any start (k - 1 if its columns have unit norm). If the columns
    are orthonormal up to E, one layer leaves an error of order E^2, so a single layer suffices between two steps of
    subspace iteration.
    """

    statement: ClassVar[str] = "section 4"

    @property
    def round(self) -> list[Layer]:
        """One layer; the last column needs no head."""
        heads = tuple(head for i in range(self.k - 1) for head in single_index(i, self.k).heads)
        return [Layer(heads)]

    def step(self, phi: Tensor, index: int) -> Tensor:
        """Orthogonalise all columns at once, each to the old ones after it."""
        gram = phi.mT @ phi
        return unit_columns(phi - phi @ torch.tril(gram, diagonal=-1))


@dataclass(frozen=True)
class NewtonSchulz(Orthogonalization):
    """Ours: ``Phi <- 1.5 Phi - 0.5 Phi Phi^T Phi``, one head and one layer for all columns, towards the nearest isometry.

    Every singular value follows ``g <- g (3 - g^2)/2`` towards 1, if it starts in (0, 1]. The columns keep their span but
    become *some* orthonormal basis of it, while Gram-Schmidt also preserves the span of the last m columns for every m.
    """

    rounds: int = 6
    """Number of layers between two steps of subspace iteration."""

    statement: ClassVar[str] = "ours"
    normalization: ClassVar[Normalization] = NONE

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds < 1:
            raise ValueError(f"expected at least one round of Newton-Schulz, got {self.rounds}")

    @property
    def round(self) -> list[Layer]:
        """The same layer, repeated."""
        layer = Layer(heads=(Head(value={(VECTORS, VECTORS): -0.5}, **similarity(VECTORS)),), skip={(VECTORS, VECTORS): 0.5})
        return [layer] * self.rounds

    def step(self, phi: Tensor, index: int) -> Tensor:
        """Apply one step of Newton-Schulz."""
        return 1.5 * phi - 0.5 * phi @ (phi.mT @ phi)

    def error_bound(self, layers: int, smallest: float | None = None) -> float:
        """``1 - g^2`` after ``g <- g (3 - g^2)/2`` from ``smallest``, for singular values in ``[smallest, 1]``.

        In terms of the defect ``e = 1 - g^2`` itself that is ``e <- e^2 (3 + e)/4``.
        """
        if smallest is None or not 0 < smallest <= 1 + 1e-12:
            raise ValueError(f"Newton-Schulz needs singular values in (0, 1], got a smallest one of {smallest!r}")
        g, defect = smallest, max(1 - smallest**2, 0.0)
        for _ in range(check_layers(layers)):
            g = g * (3 - g * g) / 2
            # near 1 the defect is more accurate than g, near 0 g is more accurate
            defect = defect**2 * (3 + defect) / 4 if defect < 0.5 else 1 - g * g
        return defect

    def layers_for(self, eps: float, smallest: float | None = None) -> int:
        """Return the least depth whose bound is at most ``eps``."""
        if not eps > 0:
            raise ValueError(f"expected a positive error eps, got {eps!r}")
        layers = 0
        while self.error_bound(layers, smallest) > eps:
            layers += 1
        return layers


def single_index(i: int, k: int) -> Layer:
    """Build Lemma 8's layer that makes column i orthogonal to later ones; ``W^V = -A``, ``W^Q^T W^K = H``, ``W^R = 0``."""
    if not 0 <= i < k:
        raise ValueError(f"expected a column index in 0..{k - 1}, got {i}")
    only = tuple(-1.0 if j == i else 0.0 for j in range(k))
    later = tuple(1.0 if j > i else 0.0 for j in range(k))
    return Layer(heads=(Head(value={(VECTORS, VECTORS): only}, **similarity(VECTORS, by=later)),))


def unit_columns(phi: Float[Tensor, "*graphs nodes k"]) -> Float[Tensor, "*graphs nodes k"]:
    """Divide columns by their norms, as the model does."""
    return UNIT_COLUMNS.scale_features({VECTORS: phi})[VECTORS]
