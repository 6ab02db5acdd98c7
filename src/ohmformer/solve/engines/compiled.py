"""The sparse engine by the kernels ``ohm_direction`` and ``ohm_residual``: directions in eight bits, residuals in float64.

Chebyshev's construction moves the potentials by a direction a layer, ``d_{l+1} = (omega - 1) d_l + omega r_l`` with
``r = gamma (psi - N x)``. Most of a layer's time goes into fetching rows of what N is multiplied with, so the directions are
rounded to bytes: with 64 demands a row is one line of the cache, and its scale is hidden in it. The same rounded numbers
are added to ``x`` and taken through N off ``r``; the equation for ``r`` holds whatever the directions are, so that rounding
them bends the path and not the answer. A row is off by at most 5 % of its norm (56 numbers by half a level, the eight that
carry the scale by one, the largest number being at least 100 levels), and what that spoils is solved for along with all else
that is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer import native
from ohmformer.constructions.electric import Chebyshev

if TYPE_CHECKING:
    from ohmformer.solve.engines.sparse import RowBlocks

WIDTHS = 32, 64
"""Numbers of demands that layers are written for."""
FEWEST = 2**15
"""Nodes from which on it pays."""
DEEPEST = 64
"""Layers of a round up to which it pays: rounding costs more the deeper it is, here up to 1.5 times the residual."""


def pays(nodes: int, device: torch.device) -> bool:
    """Whether compiled code is there, and of use for graphs of this size."""
    return native.active() is not None and nodes >= FEWEST and device.type == "cpu"


def padded(demands: int) -> int:
    """How many columns to make of some demands, the others zero: as few as the source takes, unless they are very few."""
    return next((width for width in WIDTHS if WIDTHS[0] // 2 < demands <= width), demands)


def takes(step: RowBlocks, state: Float[Tensor, "3 nodes k"], layers: int) -> bool:
    """Whether compiled code is of use and written for these layers."""
    return (
        pays(state.shape[1], state.device)
        and state.shape[2] in WIDTHS
        and layers <= DEEPEST
        and step.matrix.dtype == state.dtype == torch.float32
        and step.matrix.crow_indices().dtype == torch.int32
        and state.is_contiguous()
    )


def _csr(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return matrix.crow_indices(), matrix.col_indices(), matrix.values()


def chebyshev_round(
    step: RowBlocks,
    state: Float[Tensor, "3 nodes k"],
    construction: Chebyshev,
    layers: int,
    tell: Callable[[int], bool] | None = None,
) -> tuple[Float[Tensor, "nodes k"], int]:
    """As :func:`sparse.chebyshev_round`; of the state it makes residual, sum of directions, and directions."""
    nodes, columns = state.shape[1:]
    residual, total, spare = state
    residual.mul_(construction.gamma)
    total.zero_()
    directions = spare.view(-1).view(torch.int8)[: 2 * nodes * columns].view(2, nodes, columns)
    directions[1].zero_()
    matrix, done = _csr(step.matrix), 0
    try:
        for omega in construction.omegas(layers):
            new, old = directions[done % 2], directions[1 - done % 2]
            due = (layers - done) % 2 == 1  # two directions are added at once, the last time in the last layer
            native.call("ohm_direction", nodes, columns // 8, omega, *matrix, old, new, residual, total if due else None)
            done += 1
            if tell and done % 10 == 0 and tell(done):
                break
    except KeyboardInterrupt:  # between two layers
        pass
    return total, done


def left_(
    out: Float[Tensor, "nodes k"], laplacian: Tensor, psi: Float[Tensor, "nodes k"], phi: Float[Tensor, "nodes k"]
) -> bool:
    """``psi - L phi`` in float64 into ``out``, or False where compiled code is of no use or not written for these arrays."""
    nodes, demands = psi.shape
    written_for = (
        pays(nodes, psi.device)
        and out.dtype == psi.dtype == phi.dtype == laplacian.dtype == torch.float64
        and laplacian.crow_indices().dtype == torch.int32
        and psi.stride() == phi.stride()
        and psi.stride(1) == 1
        and out.is_contiguous()
    )
    if written_for:
        native.call("ohm_residual", nodes, demands, psi.stride(0), *_csr(laplacian), phi, psi, out)
    return written_for
