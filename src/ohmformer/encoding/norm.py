"""Normalise the columns of an encoding by running means and spreads, in training as in evaluation."""

from __future__ import annotations

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

EPS = 1e-4
"""Added to the variance, so that rounding is at most multiplied by 100: a walk of one step never returns, its column is zero
but for rounding. Columns of walks differ by 0.013 to 0.11 among ZINC's atoms."""


class RunningNorm(nn.Module):
    """``(x - mean) / sqrt(variance + eps)`` with running statistics of the batches so far, over all processes.

    Unlike a batch norm it divides by the running statistics in training, too, after they have seen the batch. So training
    and evaluation see the same numbers, and a learned encoding cannot run away from statistics that lag behind it. They are
    means over the first batches, then they move by ``momentum`` towards every batch; with ``momentum=None`` they stay means.
    """

    def __init__(self, columns: int, momentum: float | None = 0.01, eps: float = EPS) -> None:
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.mean: Tensor
        self.variance: Tensor
        self.batches: Tensor
        self.register_buffer("mean", torch.zeros(columns))
        self.register_buffer("variance", torch.full((columns,), 1 - eps))  # before the first batch x stays as it is
        self.register_buffer("batches", torch.zeros(()))

    def reset_running_stats(self) -> None:
        """Forget all batches."""
        self.mean.zero_()
        self.variance.fill_(1 - self.eps)
        self.batches.zero_()

    def forward(self, x: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        """Normalise x; in training first move the statistics."""
        if self.training:
            self.see(x.detach().flatten(0, -2))
        return (x - self.mean.to(x.dtype)) * self.scale(x.dtype)

    def scale(self, dtype: torch.dtype) -> Float[Tensor, " columns"]:
        """Return what columns are multiplied by."""
        return (self.variance.to(dtype) + self.eps).rsqrt()

    @torch.no_grad()
    def see(self, x: Float[Tensor, "rows columns"]) -> None:
        """Move mean and variance towards those of a batch; fewer than two rows have no variance and change nothing."""
        rows = _over_processes(torch.full((), float(len(x)), device=x.device, dtype=x.dtype))
        mean = _over_processes(x.sum(0)) / rows.clamp(min=1)
        variance = _over_processes((x - mean).square().sum(0)) / (rows - 1).clamp(min=1)
        real = (rows > 1).to(self.batches)
        self.batches.add_(real)
        step = real / self.batches.clamp(min=1)
        step = step if self.momentum is None else torch.maximum(step, self.momentum * real)
        self.mean.lerp_(mean.to(self.mean), step.to(self.mean))
        self.variance.lerp_(variance.to(self.variance), step.to(self.variance))


def _over_processes(x: Tensor) -> Tensor:
    """Sum x over all processes, in place; a single process keeps its own."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(x)
    return x
