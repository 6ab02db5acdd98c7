"""Normalise the columns of an encoding by running means and spreads, in training as in evaluation."""

from __future__ import annotations

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

EPS = 1e-4
"""Added to the variance, so that rounding errors are multiplied by at most 100: the column of the walk of one step, which
never returns, is zero up to rounding. Columns of walks differ by 0.013 to 0.11 among ZINC's atoms.
"""


class RunningNorm(nn.Module):
    """Normalise by ``(x - mean) / sqrt(variance + eps)`` with running statistics of the batches so far, over all processes.

    Unlike batch norm it divides by the running statistics in training too, after updating them with the batch. So training
    and evaluation use the same numbers, and a learned encoding cannot drift away from statistics that lag behind it. The
    statistics are averages over the first batches, then move by ``momentum`` towards every batch; with ``momentum=None``
    they remain averages.
    """

    def __init__(self, columns: int, momentum: float | None = 0.01, eps: float = EPS) -> None:
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.mean: Tensor
        self.variance: Tensor
        self.batches: Tensor
        self.register_buffer("mean", torch.zeros(columns))
        self.register_buffer("variance", torch.full((columns,), 1 - eps))  # x is unchanged before the first batch
        self.register_buffer("batches", torch.zeros(()))

    def reset_running_stats(self) -> None:
        """Reset the statistics."""
        self.mean.zero_()
        self.variance.fill_(1 - self.eps)
        self.batches.zero_()

    def forward(self, x: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        """Normalise x, in training after updating the statistics."""
        if self.training:
            self.see(x.detach().flatten(0, -2))
        return (x - self.mean.to(x.dtype)) * self.scale(x.dtype)

    def scale(self, dtype: torch.dtype) -> Float[Tensor, " columns"]:
        """Return the factor of every column."""
        return (self.variance.to(dtype) + self.eps).rsqrt()

    @torch.no_grad()
    def see(self, x: Float[Tensor, "rows columns"]) -> None:
        """Move mean and variance towards those of a batch; a batch with fewer than two rows changes nothing."""
        rows = sum_over_processes(torch.full((), float(len(x)), device=x.device, dtype=x.dtype))
        mean = sum_over_processes(x.sum(0)) / rows.clamp(min=1)
        variance = sum_over_processes((x - mean).square().sum(0)) / (rows - 1).clamp(min=1)
        real = (rows > 1).to(self.batches)
        self.batches.add_(real)
        step = real / self.batches.clamp(min=1)
        step = step if self.momentum is None else torch.maximum(step, self.momentum * real)
        self.mean.lerp_(mean.to(self.mean), step.to(self.mean))
        self.variance.lerp_(variance.to(self.variance), step.to(self.variance))


def sum_over_processes(x: Tensor) -> Tensor:
    """Sum x over all processes in place; with a single process return it unchanged."""
    if several_processes():
        dist.all_reduce(x)
    return x


def several_processes() -> bool:
    """Return whether this process is one of several that train together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
