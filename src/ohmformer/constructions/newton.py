"""Levenberg-Marquardt for the scalars: the loss is a sum of squares in a few dozen numbers.

One step, on new graphs, for all seeds at once:

    (H + damping diag H) d = -gradient,    H = J^T M J

where J is the Jacobian of the responses h and M the Gauss-Newton matrix of the loss in h, both per graph. A step is accepted
if it lowers the loss on the same graphs; otherwise the damping is increased and the step repeated. (Accepting steps by their
loss on other graphs was tried: it is safer at the end but much slower before. Larger batches at the end do the same.)
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer.constructions.scalars import loss, response, response_and_jacobian

TRIES = 8
SHRINK, GROW = 1 / 3, 4.0
LEAST, MOST = 1e-9, 1e6


def step(
    scalars: Float[Tensor, "seeds layers 10"],
    damping: Float[Tensor, " seeds"],
    eigenvalues: Float[Tensor, "seeds graphs m"],
    target: Float[Tensor, "seeds graphs m"],
    squares: Float[Tensor, "seeds graphs demands m"],
    *,
    normalize_incidence: bool,
    up_to_scale: bool = True,
) -> tuple[Float[Tensor, "seeds layers 10"], Float[Tensor, " seeds"], Float[Tensor, " seeds"]]:
    """Take one step; return new scalars, new damping, and the loss before the step."""
    how = {"normalize_incidence": normalize_incidence, "up_to_scale": up_to_scale}
    answer, jacobian = response_and_jacobian(scalars, eigenvalues, **how)
    hessian, gradient = _normal_equations(answer, jacobian, target, squares, up_to_scale)
    before = loss(answer, target, squares, up_to_scale=up_to_scale)
    diagonal = hessian.diagonal(dim1=-2, dim2=-1)
    diagonal = torch.diag_embed(diagonal + 1e-9 * diagonal.amax(-1, keepdim=True))
    moved, damping = scalars.clone(), damping.clone()
    waiting = torch.arange(len(scalars), device=scalars.device)
    for _ in range(TRIES):
        matrix = hessian[waiting] + damping[waiting, None, None] * diagonal[waiting]
        direction = torch.linalg.solve_ex(matrix, -gradient[waiting, :, None])[0]
        candidate = scalars[waiting] + direction.view_as(scalars[waiting])
        answer = response(candidate[:, None], eigenvalues[waiting], **how)
        after = loss(answer, target[waiting], squares[waiting], up_to_scale=up_to_scale)
        better = after < before[waiting]  # False if the step led to NaN
        moved[waiting[better]] = candidate[better]
        damping[waiting] = (damping[waiting] * torch.where(better, SHRINK, GROW)).clamp(LEAST, MOST)
        waiting = waiting[~better]
        if not len(waiting):
            break
    return moved, damping, before


def _normal_equations(
    answer: Float[Tensor, "seeds graphs m"],
    jacobian: Float[Tensor, "seeds graphs m parameters"],
    target: Float[Tensor, "seeds graphs m"],
    squares: Float[Tensor, "seeds graphs demands m"],
    up_to_scale: bool = True,
) -> tuple[Float[Tensor, "seeds parameters parameters"], Float[Tensor, "seeds parameters"]]:
    """Compute the Gauss-Newton matrix and half the gradient, summed over graphs and demands.

    For one demand let ``N = |h c|``, ``T = |t c|`` and ``a = c^2 h / N^2``. With respect to h the residual's Jacobian gives
    ``M = diag(c^2) / N^2 - a a^T`` and the gradient ``a cos - c^2 t / (N T)``. For the relative error they are
    ``diag(c^2) / T^2`` and ``c^2 (h - t) / T^2``.
    """
    h, t = answer[..., None, :], target[..., None, :]
    size_h, size_t = ((squares * x.square()).sum(-1, keepdim=True).sqrt() for x in (h, t))
    flat = jacobian.flatten(1, 2)
    if not up_to_scale:
        weights = squares / size_t.square()
        slope = (weights * (h - t)).sum(-2)
        return flat.mT @ (weights.sum(-2)[..., None] * jacobian).flatten(1, 2), (flat.mT @ slope.flatten(1)[..., None])[
            ..., 0
        ]
    cosine = (squares * h * t).sum(-1, keepdim=True) / (size_h * size_t)
    a = squares * h / size_h.square()
    middle = torch.diag_embed((squares / size_h.square()).sum(-2)) - a.mT @ a
    slope = (a * cosine - squares * t / (size_h * size_t)).sum(-2)
    return flat.mT @ (middle @ jacobian).flatten(1, 2), (flat.mT @ slope.flatten(1)[..., None])[..., 0]
