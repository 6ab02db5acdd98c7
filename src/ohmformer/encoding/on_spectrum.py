"""Run the layers on eigenvalues: where every node is its own demand and B is fixed, channels stay functions of N.

Channel c starts as the identity and is ``p_c(N)`` after every layer, and ``K = sum_c W_QK,c p_c(N)^2`` is a function of N
too. So a layer acts on numbers, ``p <- p (skip + value (gram lambda + phi sum_c product_c p_c^2))``, then divides by the
norm; no weight of a layer touches eigenvectors. Layers are many and small, so gradients are written out by hand: autograd's
would take most of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from ohmformer import native
from ohmformer.encoding.dynamics import TINY, Layer
from ohmformer.encoding.kernels import supports


def spectral_layers(
    seen: Float[Tensor, "graphs width width"],
    real: Bool[Tensor, "graphs width"],
    layers: Sequence[Layer],
    after_first: Float[Tensor, " graphs"] | None = None,
) -> Float[Tensor, "graphs width channels"]:
    """Return the diagonals of all channels after all layers: ``p_c`` weighted by the squares of the eigenvectors.

    Args:
        seen: N of every graph, zero on padding.
        real: where there are nodes rather than padding.
        layers: the weights.
        after_first: what multiplies N from the second layer on.
    """
    largest = pad(seen.diagonal(dim1=1, dim2=2), (0, 1)).amax(dim=1, keepdim=True)
    above = 1 + 2 * largest  # N <= 2 diag(N), so eigenvalues of padding come after all others
    values, vectors = (x.to(seen) for x in eigh(seen + torch.diag_embed(above * ~real)))
    return vectors.square() @ on_spectrum(values, real.sum(1), layers, after_first)


def eigh(matrices: Float[Tensor, "graphs width width"]) -> tuple[Tensor, Tensor]:
    """Return eigenvalues and eigenvectors in float64, by LAPACK on the CPU where the device has no float64 (MPS)."""
    return torch.linalg.eigh((matrices.cpu() if matrices.device.type == "mps" else matrices).double())


def on_spectrum(
    values: Float[Tensor, "graphs width"],
    sizes: Int[Tensor, " graphs"],
    layers: Sequence[Layer],
    after_first: Float[Tensor, " graphs"] | None = None,
    *,
    restore: bool = False,
) -> Float[Tensor, "graphs width channels"]:
    """Return ``p_c`` on every eigenvalue of N after all layers.

    At the end channels have the norm of the identity, whatever the graph. With ``restore`` they are multiplied by the norms
    that the layers divided by, so that a channel that computes a random walk gives return probabilities and not multiples of
    them. Eigenvalues are multiplied by ``after_first`` from the second layer on.
    """
    value, product = (torch.stack([getattr(layer, name) for layer in layers]) for name in ("value", "product"))
    gram, phi, skip = (_column([getattr(layer, name) for layer in layers], value) for name in ("gram", "phi", "skip"))
    later = values if after_first is None else values * after_first[:, None]
    channels = value.shape[1]
    of_squares = product[:, :, None] * (phi * value)[:, None]
    rest = torch.stack([gram * value, skip.expand_as(value)], dim=1)
    run: Any = _TorchLayers
    if supports("ohm_on_spectrum", (values, value), (values, later), channels=channels):
        run = _NativeLayers
        missing = native.KERNELS["ohm_on_spectrum"].limits["channels"] - channels  # their weights are zero: they stay zero
        of_squares, rest = pad(of_squares, (0, missing, 0, missing)), pad(rest, (0, missing))
    out = run.apply(values, later, sizes, torch.cat([of_squares, rest], dim=1), restore)
    return out[:, :, :channels]


def _column(numbers: list[Any], like: Tensor) -> Float[Tensor, "layers 1"]:
    """Stack one number of every layer, plain or differentiated, into a column."""
    return (torch.stack(numbers).to(like) if isinstance(numbers[0], Tensor) else like.new_tensor(numbers))[:, None]


class _NativeLayers(torch.autograd.Function):
    """The layers in C, graph by graph in the first cache; backwards computes them again, so that nothing is kept."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, later: Tensor, sizes: Tensor, weights: Tensor, restore: bool) -> Tensor:
        arrays = first.contiguous(), later.contiguous(), sizes.contiguous(), weights.contiguous()
        library = native.active()
        assert library is not None
        out = first.new_empty(*first.shape, weights.shape[2])
        library.call("ohm_on_spectrum", *first.shape, len(weights), int(restore), *arrays, out)
        ctx.save_for_backward(*arrays)
        ctx.restore, ctx.library = restore, library
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        first, later, sizes, weights = ctx.saved_tensors
        arrays, found = (first, later, sizes, weights, gradients[0].contiguous()), torch.empty_like(weights)
        ctx.library.call("ohm_on_spectrum_backward", *first.shape, len(weights), int(ctx.restore), *arrays, found)
        return None, None, None, found, None


class _TorchLayers(torch.autograd.Function):
    """The layers in torch: ``p <- q / |q|`` with ``q = p m``, ``m = (p^2, lambda, 1) W``, W ``(channels + 2, channels)``."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, later: Tensor, sizes: Tensor, weights: Tensor, restore: bool) -> Tensor:
        channels = weights.shape[2]
        real = torch.arange(first.shape[1], device=first.device) < sizes[:, None]
        scale = sizes.to(first).sqrt()[:, None]
        p = (real / scale.clamp(min=1))[:, :, None].expand(-1, -1, channels).contiguous()
        seen = torch.ones(*first.shape, channels + 2, dtype=first.dtype, device=first.device)
        kept = []
        for l, w in enumerate(weights):
            _see(seen, p, first if l == 0 else later if l == 1 else None)
            m = seen @ w
            q = p * m
            square = q.square().sum(1, keepdim=True).add_(TINY)
            inverse = square.rsqrt()
            kept += [p, m, inverse]
            p = q.mul_(inverse)
            scale = scale * square[:, 0].sqrt() if restore else scale
        out = p * scale[:, None]
        ctx.save_for_backward(first, later, weights, scale, p, out, *kept)
        ctx.restore = restore
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        first, later, weights, scale, p, out, *kept = ctx.saved_tensors
        g, channels = gradients[0] * scale[:, None], weights.shape[2]
        norms = (
            (gradients[0] * out).sum(1, keepdim=True) if ctx.restore else 0.0
        )  # the gradient of every norm that is restored
        d_first, d_later, d_weights = torch.zeros_like(first), torch.zeros_like(later), torch.empty_like(weights)
        seen = torch.ones(*first.shape, channels + 2, dtype=first.dtype, device=first.device)
        for l in reversed(range(len(weights))):
            before, m, inverse = kept[3 * l : 3 * l + 3]
            of_q = g.addcmul_(p, norms - (g * p).sum(1, keepdim=True)).mul_(inverse)
            of_m = of_q * before
            _see(seen, before, first if l == 0 else later)
            torch.mm(seen.flatten(0, 1).mT, of_m.flatten(0, 1), out=d_weights[l])
            of_seen = of_m @ weights[l].mT
            (d_first if l == 0 else d_later).add_(of_seen[:, :, channels])
            g = of_q.mul_(m).addcmul_(before, of_seen[:, :, :channels], value=2.0)
            p = before
        return d_first, d_later, None, d_weights, None


def _see(seen: Tensor, p: Tensor, values: Tensor | None) -> None:
    """Write ``p^2``, and eigenvalues if given, into ``(p^2, lambda, 1)``."""
    torch.mul(p, p, out=seen[:, :, : p.shape[2]])
    if values is not None:
        seen[:, :, p.shape[2]] = values
