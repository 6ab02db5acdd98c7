"""The layers of engine ``chebyshev`` in C: directions in eight bits, residuals in float64.

Chebyshev's construction updates the potentials by one direction per layer, ``d_{l+1} = (omega - 1) d_l + omega r_l`` with
``r = gamma (psi - N x)``. Most of a layer's time is spent fetching rows of the vectors that N multiplies, so directions are
rounded to bytes: with 64 demands a row is one cache line, which also encodes its scale. The same rounded numbers are added
to ``x`` and, multiplied by N, subtracted from ``r``; the equation for ``r`` holds for any directions, so rounding them
affects the convergence but not the solution. A row is off by at most 5 % of its norm (56 numbers by half a level, the eight
that encode the scale by one, the largest number being at least 100 levels), and the next round corrects this.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer import native
from ohmformer.constructions.electric import Chebyshev
from ohmformer.solve.engines.base import Watch
from ohmformer.solve.scaled import RowBlocks

LIMITS = native.KERNELS["ohm_direction"].limits
WIDTHS = LIMITS["demands"] // 2, LIMITS["demands"]
"""Numbers of demands supported by the kernels."""


def padded(demands: int) -> int:
    """Return how many columns the layers use for ``demands`` demands; the additional ones are zero."""
    return next(width for width in WIDTHS if demands <= width)


def one_round(
    step: RowBlocks, state: Float[Tensor, "3 nodes k"], construction: Chebyshev, layers: int, watch: Watch
) -> tuple[Float[Tensor, "nodes k"], int]:
    """Run a round as :func:`.chebyshev.chebyshev_round`; the state becomes residual, sum of directions, and directions."""
    nodes, columns = state.shape[1:]
    residual, total, spare = state
    residual.mul_(construction.gamma)
    total.zero_()
    directions = spare.view(-1).view(torch.int8)[: 2 * nodes * columns].view(2, nodes, columns)
    directions[1].zero_()
    matrix = step.matrix.crow_indices(), step.matrix.col_indices(), step.matrix.values()
    done = 0
    try:
        for omega in construction.omegas(layers):
            new, old = directions[done % 2], directions[1 - done % 2]
            due = (layers - done) % 2 == 1  # two directions are added at once, the last time in the last layer
            for first, last in step.spans(old):
                native.call(
                    "ohm_direction", first, last, columns // 8, omega, *matrix, old, new, residual, total if due else None
                )
            done += 1
            if done % 10 == 0 and watch(done):
                break
    except KeyboardInterrupt:  # between two layers
        watch.stopped = True
    return total, done
