"""Layers on eigenvalues: channels that start as the identity stay functions of N, where B stays what it is.

``K = sum_c W_QK,c p_c(N)^2`` is a function of N too, so a layer acts on numbers, ``p <- p (skip + value (gram lambda + phi
sum_c product_c p_c^2))``, then over its norm; no weight of a layer touches eigenvectors. Layers are many and small, so that
gradients are by hand: autograd's would be most of the time.
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

LANES = native.KERNELS["ohm_on_spectrum"].limits["channels"]
"""Channels that the kernel works on, those that are not used padded with zeros."""


def spectral_layers(
    seen: Float[Tensor, "graphs width width"],
    real: Bool[Tensor, "graphs width"],
    layers: Sequence[Layer],
    after_first: Float[Tensor, " graphs"] | None = None,
) -> Float[Tensor, "graphs width channels"]:
    """The diagonals of the channels that start as the identity, where B stays what it is.

    Channel c is then a function of N, ``p_c(N)``: its diagonal is read out with the squares of the eigenvectors.
    """
    above = 1 + 2 * pad(seen.diagonal(dim1=1, dim2=2), (0, 1)).amax(
        dim=1, keepdim=True
    )  # N <= 2 diag(N): where padding goes
    values, vectors = (x.to(seen) for x in torch.linalg.eigh((seen + torch.diag_embed(above * ~real)).double()))
    return vectors.square() @ on_spectrum(values, real.sum(1), layers, after_first)


def on_spectrum(
    values: Float[Tensor, "graphs width"],
    sizes: Int[Tensor, " graphs"],
    layers: Sequence[Layer],
    after_first: Float[Tensor, " graphs"] | None = None,
    *,
    restore: bool = False,
) -> Float[Tensor, "graphs width channels"]:
    """``p_c`` on every eigenvalue of N after all layers.

    At the end channels have the norm of the identity, whatever the graph. With ``restore`` they are multiplied by the norms
    that the layers divided by: a channel that walks then gives return probabilities, not multiples of them. Eigenvalues are
    multiplied by ``after_first`` from the second layer on.
    """
    value, product = (torch.stack([getattr(layer, name) for layer in layers]) for name in ("value", "product"))
    gram, phi, skip = (_column([getattr(layer, name) for layer in layers], value) for name in ("gram", "phi", "skip"))
    later = values if after_first is None else values * after_first[:, None]
    channels, compiled = value.shape[1], _compiles(values, later, value)
    of_squares = product[:, :, None] * (phi * value)[:, None]
    rest = torch.stack([gram * value, skip.expand_as(value)], dim=1)
    if compiled:  # channels whose weights are zero stay zero
        more = LANES - channels
        of_squares, rest = pad(of_squares, (0, more, 0, more)), pad(rest, (0, more))
    weights = torch.cat([of_squares, rest], dim=1)
    out = (_Compiled if compiled else _Layers).apply(values, later, sizes, weights, restore)
    assert isinstance(out, Tensor)
    return out[:, :, :channels]


def _column(numbers: list[Any], like: Tensor) -> Float[Tensor, "layers 1"]:
    """One number of every layer."""
    return (torch.stack(numbers).to(like) if isinstance(numbers[0], Tensor) else like.new_tensor(numbers))[:, None]


def _compiles(values: Tensor, later: Tensor, value: Tensor) -> bool:
    """Whether compiled code is there and written for this: float32 on the CPU, eigenvalues that are given."""
    given = not (torch.is_grad_enabled() and (values.requires_grad or later.requires_grad))
    plain = values.device.type == "cpu" and values.dtype == value.dtype == torch.float32
    return native.active() is not None and given and plain and value.shape[1] <= LANES


class _Compiled(torch.autograd.Function):
    """``on_spectrum.c``: graph by graph in the first cache; forwards once more on the way back, so that nothing is kept."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, later: Tensor, sizes: Tensor, weights: Tensor, restore: bool) -> Tensor:
        arrays = first.contiguous(), later.contiguous(), sizes.contiguous(), weights.contiguous()
        out = first.new_empty(*first.shape, LANES)
        ctx.library = library = native.active()
        assert library is not None
        library.call("ohm_on_spectrum", *first.shape, len(weights), int(restore), *arrays, out)
        ctx.save_for_backward(*arrays)
        ctx.restore = restore
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        first, later, sizes, weights = ctx.saved_tensors
        arrays, found = (first, later, sizes, weights, gradients[0].contiguous()), torch.empty_like(weights)
        ctx.library.call("ohm_on_spectrum_backward", *first.shape, len(weights), int(ctx.restore), *arrays, found)
        return None, None, None, found, None


class _Layers(torch.autograd.Function):
    """A layer is ``q / |q|`` with ``q = p m``, ``m = (p^2, lambda, 1) W``, W the weights, ``(channels + 2, channels)``."""

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
        norms = (gradients[0] * out).sum(1, keepdim=True) if ctx.restore else 0.0  # what every norm gets from being restored
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
    """Put ``p^2`` and eigenvalues, unless they are there, into ``(p^2, lambda, 1)``."""
    torch.mul(p, p, out=seen[:, :, : p.shape[2]])
    if values is not None:
        seen[:, :, p.shape[2]] = values
