"""``D^-1/2 N^+ D^-1/2`` of many scaled Laplacians ``N = D^-1/2 L D^-1/2`` of one width, to a residual asked for.

The layers are those of :class:`~ohmformer.constructions.ChebyshevCubing` in float32, followed by a few of
:class:`~ohmformer.constructions.Squaring`'s in float64 with recomputed residuals, ``X <- X + X (P - N X)``, each of which
squares the error. The depth follows from proved bounds on the spectrum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ohmformer.constructions.electric import ChebyshevCubing, inverse_chebyshev
from ohmformer.graph import Spectrum
from ohmformer.solve.scaled import LARGEST

MOST_SQUARINGS = 8


@dataclass(frozen=True)
class ScaledBlock:
    """Scaled Laplacians of graphs padded to one width, with data of their nodes; all zero on padding."""

    connected: bool
    """Whether all graphs are connected, so that ``label`` is not needed."""
    n: Float[Tensor, "graphs width width"]
    degree: Float[Tensor, "graphs width"]
    root: Float[Tensor, "graphs width"]
    """``D^-1/2``, zero where the degree is zero."""
    null: Float[Tensor, "graphs width"]
    """Spans the null space of N on every component."""
    label: Int[Tensor, "graphs width"]
    """The component of every node; distinct for different components of a graph."""

    def projector(self) -> Float[Tensor, "graphs width width"]:
        """Return P, the projection on the range of N."""
        onto = self.null[:, :, None] * -self.null[:, None, :]
        if not self.connected:
            onto *= self.label[:, :, None] == self.label[:, None, :]
        onto.diagonal(dim1=-2, dim2=-1).add_(self.degree > 0)
        return onto

    def longest_column(self, left: Float[Tensor, "graphs width width"]) -> float:
        """Compute the largest column norm of ``D^1/2 left D^-1/2``: with ``left = P - N X``, the residual of L."""
        squares = (self.degree[:, None, :] @ left.square())[:, 0, :] * self.root.square()
        return math.sqrt(float(squares.max())) if squares.numel() else 0.0


def in_float32(lmin: Any) -> Any:
    """Return whether layers may run in float32, given one or more smallest eigenvalues; rounding is ``eps kappa``."""
    return torch.finfo(torch.float32).eps * LARGEST < 0.1 * lmin


@dataclass(frozen=True)
class Depth:
    """The depth of an inversion: layers of cubing in ``dtype``, then squarings."""

    cubing: ChebyshevCubing
    depth: int
    squarings: int
    dtype: torch.dtype
    tol: float
    bound: float
    """Bound on the residual of every demand relative to its norm, proved in exact arithmetic."""

    @classmethod
    def of(cls, lmin: float, spread: float, tol: float) -> Depth:
        """Find the smallest depth that gives a residual of ``tol``.

        Args:
            lmin: lower bound on the nonzero eigenvalues of N.
            spread: ``sqrt(max degree / min degree)`` within a graph, the effect of scaling on the norm of a residual.
            tol: the residual to reach.
        """
        cubing = ChebyshevCubing(Spectrum(lmin, LARGEST))
        goal, condition = tol / (2 * spread), cubing.spectrum.condition
        # at least one squaring in float64: rounding in float32 leaves a residual of about eps kappa, negligible when squared
        dtype = torch.float32 if in_float32(lmin) else torch.float64
        squarings = int(dtype == torch.float32)
        while squarings < MOST_SQUARINGS and goal ** (0.5**squarings) < torch.finfo(dtype).eps * condition:
            squarings += 1
        depth = cubing.layers_for(goal ** (0.5**squarings) / lmin)
        left = inverse_chebyshev(3.0 ** max(depth - 1, 0), condition)
        return cls(cubing, depth, squarings, dtype, tol, spread * left ** (2**squarings))


def invert_(scaled: ScaledBlock, plan: Depth) -> tuple[float, int]:
    """Replace N by ``D^-1/2 N^+ D^-1/2``; return its residual (``longest_column``) and the number of squarings."""
    n, root, squarings, dtype = scaled.n, scaled.root, plan.squarings, plan.dtype
    onto = scaled.projector()
    x = _cube(plan.cubing, n.to(dtype), onto.to(dtype), plan.depth).double()
    left = torch.baddbmm(onto, n, x, alpha=-1.0)
    for _ in range(squarings):
        x += x.to(dtype) @ left.to(dtype)
        left = torch.baddbmm(onto, n, x, alpha=-1.0)
    residual = scaled.longest_column(left)
    while residual > plan.tol and squarings < MOST_SQUARINGS:
        better = torch.baddbmm(x, x, left)
        left = torch.baddbmm(onto, n, better, alpha=-1.0)
        now = scaled.longest_column(left)
        if not now < residual / 2:
            break
        x, residual, squarings = better, now, squarings + 1
    torch.add(x, x.mT, out=n).mul_(0.5 * root[:, :, None]).mul_(root[:, None, :])
    return residual, squarings


def _cube(cubing: ChebyshevCubing, n: Tensor, onto: Tensor, layers: int) -> Tensor:
    """Run the layers of the construction on ``N`` and P; the second needs no product for X, the last none for R.

    ``R <- (R^2 - u) R / (1 - u)`` and ``X <- (R^2 + R + 1 - u) X / (1 - u)``: scalars are added to diagonals and merged into
    products.
    """
    r, x = torch.sub(onto, n, alpha=cubing.start), onto * cubing.start  # not in place: in float64 it is the caller's P
    offsets = cubing.offsets(layers - 1)
    for l, u in enumerate(offsets):
        by = 1 / (1 - u)
        square = r @ r
        both = square + r
        if l == 0:
            x.add_(both, alpha=by * cubing.start)
        else:
            both.diagonal(dim1=-2, dim2=-1).add_(1 - u)
            x = torch.baddbmm(x, both, x, beta=0, alpha=by)
        if l + 1 < len(offsets):
            square.diagonal(dim1=-2, dim2=-1).sub_(u)
            r = torch.baddbmm(r, square, r, beta=0, alpha=by)
    return x
