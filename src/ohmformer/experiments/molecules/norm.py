"""Batch norm of a sum, with its gradient written by hand, over the rows of all processes."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ohmformer.encoding.norm import several_processes, sum_over_processes


class _ResidualNorm(torch.autograd.Function):
    """Batch norm of ``x + y`` with statistics over the rows of all processes; also returns mean, variance and row count."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, float]:
        z = x + y
        count = _count(len(z), z.device)
        mean = sum_over_processes(z.sum(0)).div_(count)
        z.sub_(mean)
        variance = sum_over_processes(torch.mul(z, z).sum(0)).div_(count)
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
        both = sum_over_processes(torch.stack([g_bias, slope])) / ctx.count
        g_x = torch.addcmul(-both[0] * scale, g, scale).addcmul_(z, both[1] * inverse * scale, value=-1)
        return g_x, g_x if ctx.needs_input_grad[1] else None, slope, g_bias, None


def _count(rows: int, device: torch.device) -> float:
    """Return the number of rows of all processes, at least 1 because it is a divisor."""
    every = float(sum_over_processes(torch.tensor(float(rows), device=device))) if several_processes() else float(rows)
    return max(1.0, every)


class ResidualNorm(nn.BatchNorm1d):
    """Compute ``batch_norm(x + y)``; otherwise as ``nn.BatchNorm1d``, or ``nn.SyncBatchNorm`` with several processes."""

    def forward(self, x: Float[Tensor, "rows width"], y: Tensor) -> Float[Tensor, "rows width"]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Normalise the sum; y may be anything that can be added to x if it needs no gradient."""
        if not self.training:
            assert self.running_mean is not None
            assert self.running_var is not None
            scale = self.weight * (self.running_var + self.eps).rsqrt()
            return torch.addcmul(self.bias - self.running_mean * scale, x + y, scale)
        out, mean, variance, rows = _ResidualNorm.apply(x, y, self.weight, self.bias, self.eps)  # pyright: ignore[reportGeneralTypeIssues]
        self._update_running_statistics(mean, variance, rows)
        return out

    @torch.no_grad()
    def _update_running_statistics(
        self, mean: Float[Tensor, " width"], variance: Float[Tensor, " width"], rows: float
    ) -> None:
        """Move the running mean and variance towards those of a batch; a single row changes nothing."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        if rows < 2:
            return
        self.num_batches_tracked.add_(1)
        momentum = self.momentum if self.momentum is not None else 1 / int(self.num_batches_tracked)
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(variance * (rows / (rows - 1)), momentum)
