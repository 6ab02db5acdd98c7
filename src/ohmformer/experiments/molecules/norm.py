"""Batch norm of a sum, with its gradient by hand, over the rows of all processes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn


class _ResidualNorm(torch.autograd.Function):
    """Batch norm of ``x + y`` by mean and variance of all processes' rows; also returns these and the number of rows."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, float]:
        z = x + y
        count = _count(len(z), z.device)
        mean = over_processes(z.sum(0)).div_(count)
        z.sub_(mean)
        variance = over_processes(torch.mul(z, z).sum(0)).div_(count)
        inverse = (variance + eps).rsqrt_()
        ctx.save_for_backward(z, weight, inverse)
        ctx.mark_non_differentiable(mean, variance)
        ctx.count = count
        return torch.addcmul(bias, z, weight * inverse), mean, variance, count

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        z, weight, inverse = ctx.saved_tensors
        g = gradients[0]
        assert g is not None
        g_bias = g.sum(0)
        slope = torch.mul(g, z).sum(0).mul_(inverse)
        # d z = weight inverse (g - mean g - z inverse mean(g z inverse))
        scale = weight * inverse
        both = over_processes(torch.stack([g_bias, slope])) / ctx.count
        g_x = torch.addcmul(-both[0] * scale, g, scale).addcmul_(z, both[1] * inverse * scale, value=-1)
        return g_x, g_x if ctx.needs_input_grad[1] else None, slope, g_bias, None


def over_processes(x: Tensor) -> Tensor:
    """The sum over all processes, for one process x itself."""
    if _several():
        dist.all_reduce(x)
    return x


def _several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _count(rows: int, device: torch.device) -> float:
    """The rows of all processes, at least one so that it can be divided by."""
    every = float(over_processes(torch.tensor(float(rows), device=device))) if _several() else float(rows)
    return max(1.0, every)


def over_all_rows(
    mean: Float[Tensor, " width"], squares: Float[Tensor, " width"], rows: int
) -> tuple[Float[Tensor, " width"], Float[Tensor, " width"], float]:
    """Mean, sum of squared deviations and number of all processes' rows, from those of this one's."""
    count = _count(rows, mean.device)
    if not _several():
        return mean, squares, count
    everywhere = over_processes(mean * rows) / count
    apart = mean - everywhere
    return everywhere, over_processes(torch.addcmul(squares, apart, apart, value=rows)), count


class ResidualNorm(nn.BatchNorm1d):
    """``batch_norm(x + y)``; all else is as in ``nn.BatchNorm1d``, or ``nn.SyncBatchNorm`` with several processes."""

    def forward(self, x: Float[Tensor, "rows width"], y: Tensor) -> Float[Tensor, "rows width"]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The normalised sum; y without a gradient may be anything that can be added."""
        if not self.training:
            assert self.running_mean is not None
            assert self.running_var is not None
            scale = self.weight * (self.running_var + self.eps).rsqrt()
            return torch.addcmul(self.bias - self.running_mean * scale, x + y, scale)
        out, mean, variance, rows = _ResidualNorm.apply(x, y, self.weight, self.bias, self.eps)  # pyright: ignore[reportGeneralTypeIssues]
        self.note(mean, variance, rows)
        return out

    @torch.no_grad()
    def note(self, mean: Float[Tensor, " width"], variance: Float[Tensor, " width"], rows: float) -> None:
        """Take what a batch has into the running statistics."""
        assert self.running_mean is not None
        assert self.running_var is not None
        if momentum := self.momentum_of(rows):
            self.running_mean.lerp_(mean, momentum)
            self.running_var.lerp_(variance * (rows / (rows - 1)), momentum)

    def momentum_of(self, rows: float) -> float:
        """How far the running statistics are to go towards those of the next batch; of a single row nothing can be said."""
        assert self.num_batches_tracked is not None
        if rows < 2:
            return 0.0
        self.num_batches_tracked.add_(1)
        return self.momentum if self.momentum is not None else 1 / int(self.num_batches_tracked)
