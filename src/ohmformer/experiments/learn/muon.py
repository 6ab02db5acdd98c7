"""The Muon optimiser: steps along the orthogonal factor of the momentum, for every seed and layer.

    m <- 0.95 m + g,    W <- W - rate U V^T    where  g + 0.95 m = U S V^T

The factor is computed by five Newton-Schulz iterations, which linear attention could do as well (Bernstein and Newhouse
2024; Jordan et al. 2024). The scalars alpha and the trained start Phi_0, which do not map features to features, are updated
by Adam. All gradients of a seed are jointly clipped to norm 1. The rate rises for a twentieth of the steps and then falls
linearly to zero.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

RATE = 0.008
ADAM_RATES = {"alphas": 0.01, "start": 0.005}
MOMENTUM = 0.95
BETAS = (0.9, 0.99)
WARMUP = 0.05
QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of ``a x + b x^3 + c x^5``, which maps singular values above about 0.01 to near 1 in five iterations."""


def initial_moments(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the initial state of the optimiser, by name."""
    first = {f"first.{name}": torch.zeros_like(w) for name, w in weights.items()}
    second = {f"second.{name}": torch.zeros_like(w) for name, w in weights.items() if name in ADAM_RATES}
    return first | second


def update(
    weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor], moments: Mapping[str, Tensor], step: int, steps: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Perform step ``step`` (from 0) of ``steps``; return the new weights and the new state of the optimiser."""
    schedule = min((step + 1) / (WARMUP * steps), 1.0) * (1 - step / steps)
    gradients = _clipped(gradients)
    new_weights: dict[str, Tensor] = {}
    new_moments: dict[str, Tensor] = {}
    for name, g in gradients.items():
        if name in ADAM_RATES:
            first = torch.lerp(g, moments[f"first.{name}"], BETAS[0])
            second = torch.lerp(g.square(), moments[f"second.{name}"], BETAS[1])
            corrected = [m / (1 - beta ** (step + 1)) for m, beta in zip((first, second), BETAS, strict=True)]
            direction = ADAM_RATES[name] * corrected[0] / (corrected[1].sqrt() + 1e-8)
            new_moments |= {f"first.{name}": first, f"second.{name}": second}
        else:
            first = torch.add(g, moments[f"first.{name}"], alpha=MOMENTUM)
            direction = RATE * orthogonal_factor(torch.add(g, first, alpha=MOMENTUM))
            new_moments[f"first.{name}"] = first
        new_weights[name] = weights[name] - schedule * direction
    return new_weights, new_moments


def orthogonal_factor(x: Float[Tensor, "*batch rows columns"]) -> Float[Tensor, "*batch rows columns"]:
    """Approximate ``U V^T`` of ``x = U S V^T``; the result has singular values from 0.7 to 1.2."""
    a, b, c = QUINTIC
    x = x / (x.square().sum(dim=(-2, -1), keepdim=True).sqrt() + 1e-20)
    for _ in range(5):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x


def _clipped(gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Clip the joint gradient norm of every seed to at most 1; non-finite gradients become zero."""
    square = sum(g.square().flatten(1).sum(1) for g in gradients.values())
    assert isinstance(square, Tensor)
    factor = torch.where(square.isfinite(), square.clamp(min=1.0).rsqrt(), 0.0)
    return {name: torch.nan_to_num(g, 0.0, 0.0, 0.0) * factor.view(-1, *[1] * (g.ndim - 1)) for name, g in gradients.items()}
