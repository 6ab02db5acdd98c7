"""Eigenvectors by subspace iteration: Lemma 6, Corollary 7, and faster ways for both halves of a step.

Each step multiplies k columns by a matrix whose leading eigenvectors are wanted, once or several times (mentioned in section
4 of the paper), then orthonormalises them:

| multiply by | finds | as |
|---|---|---|
| :class:`Laplacian` | the top k | Lemma 6 |
| :class:`Shifted`, ``mu I - L`` | the bottom k, the null space included | Corollary 7, corrected |
| :class:`ThroughPinv`, ``L^+`` | the bottom k without the null space, at a far better ratio | ours (the paper mentions it) |

Orthogonalisation is any of :mod:`ohmformer.constructions.orthogonalize`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer import exact
from ohmformer.constructions.base import MOST_LAYERS, Runnable, check_layers
from ohmformer.constructions.electric import ChebyshevCubing
from ohmformer.constructions.orthogonalize import VECTORS, NewtonSchulz, Orthogonalization, ParallelGramSchmidt
from ohmformer.graph import Graph, Spectrum
from ohmformer.transformer.blocks import INCIDENCE, Head, Layer, Program, similarity


@dataclass(frozen=True)
class Laplacian:
    """Multiply by ``L``, or by ``L / lmax`` if the orthogonalisation requires a contraction."""

    spectrum: Spectrum

    statement: ClassVar[str] = "Lemma 6"
    prefix: ClassVar[Program | None] = None

    def scale(self, contract: bool) -> float:
        """Return the factor on the product: one over the norm of the matrix if it must be a contraction, else 1."""
        return 1 / self.spectrum.lmax if contract else 1.0

    def layer(self, scale: float) -> Layer:
        """``Phi <- scale L Phi``: W^V = scale, W^R = -1 (and 0 on the incidence block, where the paper prints I)."""
        head = Head(value={(VECTORS, VECTORS): scale}, **similarity(INCIDENCE))
        return Layer(heads=(head,), skip={(VECTORS, VECTORS): -1.0})

    def plain(self, laplacian: Tensor, blocks: Mapping[str, Tensor]) -> Iterator[Tensor]:
        """Yield the matrix, or its successive approximations if several layers compute it."""
        yield laplacian

    def image(self, eigenvalues: Tensor) -> Tensor:
        """Map eigenvalues of ``L`` to those of the multiplying matrix, here ``L`` itself."""
        return eigenvalues


@dataclass(frozen=True)
class Shifted(Laplacian):
    """Multiply by ``mu I - L`` with ``mu >= lmax``, by default ``mu = lmax``."""

    mu: float | None = None

    statement: ClassVar[str] = "Corollary 7"

    def __post_init__(self) -> None:
        if not self.shift >= self.spectrum.lmax * (1 - 1e-12):
            raise ValueError(f"Corollary 7 needs mu >= lmax = {self.spectrum.lmax:.6g}, got {self.mu!r}")

    @property
    def shift(self) -> float:
        """The shift mu, by default ``lmax``."""
        return self.spectrum.lmax if self.mu is None else self.mu

    def scale(self, contract: bool) -> float:
        """Return the factor on the product: one over mu if it must be a contraction, else 1."""
        return 1 / self.shift if contract else 1.0

    def layer(self, scale: float) -> Layer:
        """``Phi <- scale (mu Phi - L Phi)``: W^V = -scale, W^R = scale mu - 1 (the printed W^V = +I gives mu I + L)."""
        head = Head(value={(VECTORS, VECTORS): -scale}, **similarity(INCIDENCE))
        return Layer(heads=(head,), skip={(VECTORS, VECTORS): scale * self.shift - 1})

    def plain(self, laplacian: Tensor, blocks: Mapping[str, Tensor]) -> Iterator[Tensor]:
        """Yield the matrix ``mu I - L``."""
        yield self.shift * torch.eye(laplacian.shape[-1], dtype=laplacian.dtype, device=laplacian.device) - laplacian

    def image(self, eigenvalues: Tensor) -> Tensor:
        """Map eigenvalues of ``L`` to those of ``mu I - L``."""
        return self.shift - eigenvalues


@dataclass(frozen=True)
class ThroughPinv(Laplacian):
    """Multiply by ``L^+``, which the first layers compute (:class:`ChebyshevCubing`) to a relative error ``eps``."""

    eps: float = 1e-12

    statement: ClassVar[str] = "ours"

    @property
    def inverse(self) -> ChebyshevCubing:
        """The construction of ``L^+``."""
        return ChebyshevCubing(self.spectrum)

    @property
    def depth(self) -> int:
        """Number of layers that compute ``L^+``."""
        return self.inverse.layers_for(self.eps / self.spectrum.lmin)

    @property
    def prefix(self) -> Program:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The layers that compute ``L^+``."""
        return self.inverse.program(self.depth)

    def scale(self, contract: bool) -> float:
        """Return the factor on the product: lmin, just below one over the norm, if it must be a contraction, else 1."""
        return self.spectrum.lmin / (1 + self.eps) if contract else 1.0

    def layer(self, scale: float) -> Layer:
        """``Phi <- scale L^+ Phi``, with similarity ``L^+ I^T``."""
        head = Head(value={(VECTORS, VECTORS): scale}, **similarity("pinv", "identity"))
        return Layer(heads=(head,), skip={(VECTORS, VECTORS): -1.0})

    def plain(self, laplacian: Tensor, blocks: Mapping[str, Tensor]) -> Iterator[Tensor]:
        """Yield approximations of ``L^+``: polynomials in L, so their eigenvectors are exact for any eps."""
        yield from self.inverse.plain(laplacian, blocks, self.depth)

    def image(self, eigenvalues: Tensor) -> Tensor:
        """Map eigenvalues of ``L`` to those of ``L^+``."""
        return torch.where(eigenvalues > 0, 1 / eigenvalues, 0.0)


@dataclass(frozen=True)
class Gap:
    """Quantities that determine the error of subspace iteration: two ratios of eigenvalues, and the angle of the start."""

    ratio: float
    """Eigenvalue k+1 over eigenvalue k of the multiplying matrix."""
    tangent: float
    """Tangent of the largest angle between the start and the wanted eigenspace."""
    condition: float = 1.0
    """Eigenvalue 1 over eigenvalue k: how ill-conditioned the columns become in a step."""


@dataclass(frozen=True)
class Eigenspace:
    """The wanted eigenspace from LAPACK: an orthonormal basis, and the ratios of :class:`Gap`."""

    basis: Float[Tensor, "nodes k"]
    ratio: float
    condition: float


@dataclass(frozen=True)
class SubspaceIteration(Runnable):
    """Algorithm 1 of the paper, ``Phi <- orthonormalise(M^p Phi)``, for any of the matrices M above.

    Most layers are spent on orthogonalisation, so ``products`` p > 1 saves layers: a step has p + q layers instead of 1 + q
    and reduces the error by ``ratio^p``. In return, the columns become ill-conditioned by ``condition^p`` before they are
    orthonormalised, which amplifies rounding errors and must be compensated by Newton-Schulz.

    >>> from ohmformer.constructions import GramSchmidt
    >>> path = Graph.from_edges([(0, 1), (1, 2), (2, 3)])
    >>> top = SubspaceIteration(Laplacian(exact.spectrum(path)), GramSchmidt(2))
    >>> vectors = top.run(path, top.start(path, seed=0), layers=top.layers(steps=40))
    >>> torch.round((vectors.mT @ path.laplacian() @ vectors).diagonal(), decimals=4)
    tensor([3.4142, 2.0000], dtype=torch.float64)
    """

    multiply: Laplacian
    orthogonalize: Orthogonalization
    products: int = 1

    answer: ClassVar[str] = VECTORS

    def __post_init__(self) -> None:
        if self.products < 1:
            raise ValueError(f"expected at least 1 product in a step, got {self.products}")

    @property
    def k(self) -> int:
        """Number of eigenvectors."""
        return self.orthogonalize.k

    @property
    def scale(self) -> float:
        """The factor on the product, chosen so that Newton-Schulz starts from singular values in (0, 1]."""
        return self.multiply.scale(contract=isinstance(self.orthogonalize, NewtonSchulz))

    @property
    def period(self) -> int:
        """Number of layers of a step, for multiplication and orthogonalisation."""
        return self.products + len(self.orthogonalize.round)

    @property
    def preparation(self) -> int:
        """Number of layers before the first step."""
        return len(self.multiply.prefix.layers) if self.multiply.prefix else 0

    def layers(self, steps: int) -> int:
        """Return the number of layers of ``steps`` whole steps."""
        return self.preparation + steps * self.period

    def steps(self, layers: int) -> int:
        """Return the number of multiplications at a given depth, which alone determines the span of the columns."""
        whole, rest = divmod(max(check_layers(layers) - self.preparation, 0), self.period)
        return whole * self.products + min(rest, self.products)

    def program(self, layers: int) -> Program:
        """Return the weights of the preparation and of steps, truncated to ``layers`` layers."""
        prefix = self.multiply.prefix or Program({INCIDENCE: "edges"}, [])
        period = [*[self.multiply.layer(self.scale)] * self.products, *self.orthogonalize.round]
        rest = max(check_layers(layers) - len(prefix.layers), 0)
        steps = Program({VECTORS: self.k}, [period[l % len(period)] for l in range(rest)], self.orthogonalize.normalization)
        whole = prefix.then(steps)
        return Program(whole.blocks, whole.layers[:layers], whole.normalization)

    def start(self, graph: Graph, seed: int) -> Float[Tensor, "*graphs width k"]:
        """Draw Gaussian columns, orthonormalised by LAPACK; in the range of ``L`` if the null space is not wanted."""
        keeps_null = isinstance(self.multiply, Shifted)
        most = int((graph.graph_sizes if keeps_null else graph.ranks).min()) if graph.num_graphs else 0
        if self.k > most:
            raise ValueError(f"expected k <= {most} eigenvectors of the smallest graph here, got {self.k}")
        draw = torch.randn(graph.num_nodes, self.k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        draw = draw.to(graph.device, graph.dtype)
        return torch.linalg.qr(graph.pad(draw if keeps_null else graph.center(draw))).Q

    def inputs(self, graph: Graph, start: Tensor) -> dict[str, Tensor]:
        """Return the blocks before the first layer: the columns, and the inputs of the preparation."""
        prepared = self.multiply.inverse.inputs(graph, start) if isinstance(self.multiply, ThroughPinv) else {}
        return {**prepared, VECTORS: start}

    def plain(self, laplacian: Tensor, blocks: Mapping[str, Tensor], layers: int) -> Iterator[Tensor]:
        """Yield the columns after each layer of Algorithm 1, computed by matrix algebra."""
        phi = blocks[VECTORS]
        *_, matrix = self.multiply.plain(laplacian, blocks)
        for _ in range(min(layers, self.preparation)):
            phi = self._normalize(phi)
            yield phi
        for l in range(layers - self.preparation):
            if l % self.period < self.products:
                phi = self._normalize(self.scale * (matrix @ phi))
            else:
                phi = self.orthogonalize.step(phi, l % self.period - self.products)
            yield phi

    def _normalize(self, phi: Tensor) -> Tensor:
        return self.orthogonalize.normalization.scale_features({VECTORS: phi})[VECTORS]

    def run(self, graph: Graph, start: Tensor, *, layers: int, model: str = "efficient") -> Float[Tensor, "*graphs width k"]:
        """Run ``layers`` layers; return the columns, with Gram-Schmidt the leading eigenvector of the matrix first."""
        states = self.run_blocks(graph, self.inputs(graph, start), layers, model, trace=False)
        return states.final[VECTORS].flip(-1)

    # ------------------------------------------------------------------------------------------------ bound

    def error_bound(self, layers: int, gap: Gap) -> float:
        """Bound the sine of the largest angle between columns and eigenspace: ``ratio^t tangent`` for t products, at most 1.

        The classical bound for subspace iteration: the span after t products is ``M^t span(Phi_0)``.
        """
        if not 0 <= gap.ratio < 1:
            raise ValueError(f"{self.multiply.statement} needs an eigenvalue ratio in [0, 1), got {gap.ratio!r}")
        unequal = gap.condition**self.products
        if isinstance(self.orthogonalize, NewtonSchulz) and 1.5**self.orthogonalize.rounds < unequal:
            power = "" if self.products == 1 else f", to the power {self.products},"
            raise ValueError(
                f"{self.orthogonalize.rounds} rounds of Newton-Schulz make up for a ratio of eigenvalue 1 to k{power} of at "
                f"most {1.5**self.orthogonalize.rounds:.4g}, got {unequal:.4g}"
            )
        return min(1.0, gap.ratio ** self.steps(layers) * gap.tangent)

    def layers_for(self, eps: float, gap: Gap) -> int:
        """Return the depth of the least number of whole steps whose bound is at most ``eps``."""
        if not eps > 0:
            raise ValueError(f"expected a positive error eps, got {eps!r}")
        self.error_bound(0, gap)
        if eps >= min(1.0, gap.tangent):
            return 0
        products = 1 if gap.ratio == 0 else max(1, math.ceil(math.log(eps / gap.tangent) / math.log(gap.ratio)))
        steps = math.ceil(products / self.products)
        if self.layers(steps) > MOST_LAYERS:
            raise ValueError(f"{self.multiply.statement} needs more than {MOST_LAYERS} layers for an angle of {eps:g}")
        return self.layers(steps)

    def rounding(self, gap: Gap, nodes: int, dtype: torch.dtype = torch.float64) -> float:
        """Bound the effect of floating-point errors on the sine of the angle.

        A step has a relative error of ``8 eps (nodes + layers per step)``, larger by ``condition^products`` for the smallest
        column; the errors of all steps form a geometric series in ``ratio``. A single layer of parallel heads leaves columns
        far from orthogonal if they were so before, so each column may contribute a factor of its own.
        """
        loss = gap.condition ** (self.products * (self.k if isinstance(self.orthogonalize, ParallelGramSchmidt) else 1))
        return 8 * torch.finfo(dtype).eps * (nodes + self.period) * loss / (1 - gap.ratio)

    def eigenspace(self, graph: Graph) -> Eigenspace:
        """Compute the wanted eigenspace of a single graph by LAPACK."""
        if graph.batched:
            raise ValueError(f"expected a single graph, got a batch of {graph.num_graphs}; see Graph.split")
        values, vectors = (x[0] for x in exact.decompose(graph))
        if not isinstance(self.multiply, Shifted):
            values, vectors = values[values > 0], vectors[:, values > 0]
        image = self.multiply.image(values)
        if self.k > len(image):
            raise ValueError(f"expected k <= {len(image)} eigenvectors of this graph, got {self.k}")
        order = image.argsort(descending=True)
        image = image[order]
        basis = vectors[:, order[: self.k]].to(graph.device, graph.dtype)
        if image[self.k - 1] <= 64 * len(values) * torch.finfo(torch.float64).eps * image[0]:
            return Eigenspace(basis, 1.0, math.inf)  # the k-th eigenvalue is zero, and so are all that follow
        ratio = 0.0 if len(image) == self.k else float(image[self.k] / image[self.k - 1])
        if isinstance(self.multiply, ThroughPinv):
            ratio *= (1 + self.multiply.eps) / (1 - self.multiply.eps)
        return Eigenspace(basis, ratio, float(image[0] / image[self.k - 1]))

    def gap(self, graph: Graph, start: Float[Tensor, "nodes k"]) -> Gap:
        """Compute the gap of a single graph and the angle of a start, by LAPACK."""
        wanted = self.eigenspace(graph)
        return Gap(wanted.ratio, tangent(wanted.basis, start), wanted.condition)


def tangent(basis: Float[Tensor, "nodes k"], columns: Float[Tensor, "nodes k"]) -> float:
    """Compute the tangent of the largest angle between the span of orthonormal ``basis`` and the span of ``columns``."""
    q = torch.linalg.qr(columns).Q
    inside = basis.mT @ q
    return float(torch.linalg.matrix_norm(torch.linalg.solve(inside.mT, (q - basis @ inside).mT), 2))


def sine(basis: Float[Tensor, "nodes k"], columns: Float[Tensor, "nodes k"]) -> float:
    """Compute the sine of the largest angle between the span of orthonormal ``basis`` and the span of ``columns``."""
    q = torch.linalg.qr(columns).Q
    return float(torch.linalg.matrix_norm(q - basis @ (basis.mT @ q), 2))
