"""Run the layers on eigenvalues: where every node is its own demand and B is fixed, channels stay functions of N.

Channel c starts as the identity and is ``p_c(N)`` after every layer, and ``K = sum_c W_QK,c p_c(N)^2`` is a function of N
too. So a layer acts on scalars, ``p <- p (skip + value (gram lambda + phi sum_c product_c p_c^2))``, then divides by the
norm; eigenvectors are not needed. There are many small layers, so gradients are written by hand: with autograd they would
take most of the time.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from ohmformer import native
from ohmformer.encoding.dynamics import TINY
from ohmformer.encoding.kernels import supports


def on_spectrum(
    values: Float[Tensor, " nodes"],
    start: Int[Tensor, " graphs_and_end"],
    owner: Int[Tensor, " nodes"],
    weights: Float[Tensor, "layers rows channels"],
    after_first: Float[Tensor, " graphs"] | None = None,
    *,
    restore: bool = False,
    count: Float[Tensor, " nodes"] | None = None,
) -> Float[Tensor, "nodes channels"]:
    """Return ``p_c`` on every eigenvalue of N after all layers; those of graph g begin at ``start[g]``, ``owner`` names g.

    The returned channels have the norm of the identity, whatever the graph. With ``restore`` they are multiplied by the
    norms that the layers divided by, so that a channel that computes a random walk gives return probabilities rather than
    multiples of them. Eigenvalues are multiplied by ``after_first`` from the second layer on. ``count`` is the multiplicity
    of each eigenvalue in norms, 1 by default.
    """
    # a copy, because torch.compile rejects the same tensor twice
    later = values.clone() if after_first is None else values * after_first.to(values).index_select(0, owner)
    channels = weights.shape[2]
    run: Any = _TorchLayers
    if count is None and supports("ohm_on_spectrum", (values, weights), (values, later), channels=channels):
        run = _NativeLayers
        missing = native.KERNELS["ohm_on_spectrum"].limits["channels"] - channels
        weights = pad(weights, (0, missing)) if missing else weights
    return run.apply(values, later, start, owner, weights, restore, count)[:, :channels]


def weights_of(
    value: Float[Tensor, "layers channels"],
    product: Float[Tensor, "layers channels"],
    gram: Float[Tensor, " layers"],
    phi: Float[Tensor, " layers"],
    skip: Float[Tensor, " layers"],
) -> Float[Tensor, "layers rows channels"]:
    """Return four rows of weights per layer, which multiplies p by ``one + lambda seen + (p^2 . summed) pulled``.

    They are ``seen = gram value``, ``pulled = phi value``, ``one = skip`` and ``summed = product``; see
    :class:`dynamics.Layer`.
    """
    return torch.stack([gram[:, None] * value, phi[:, None] * value, skip[:, None].expand_as(value), product], dim=1)


class _NativeLayers(torch.autograd.Function):
    """Run the layers in C, graph by graph in the L1 cache; backward recomputes them, so that no state is stored."""

    @staticmethod
    def forward(
        ctx: Any, first: Tensor, later: Tensor, start: Tensor, owner: Tensor, weights: Tensor, restore: bool, _: None
    ) -> Tensor:
        arrays = first.contiguous(), later.contiguous(), start.contiguous(), weights.contiguous()
        library = native.active()
        assert library is not None
        out = first.new_empty(len(first), weights.shape[2])
        library.call("ohm_on_spectrum", len(start) - 1, len(weights), int(restore), *arrays, out)
        ctx.save_for_backward(*arrays)
        ctx.restore, ctx.library = restore, library
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        first, later, start, weights = ctx.saved_tensors
        arrays, found = (first, later, start, weights, gradients[0].contiguous()), torch.empty_like(weights)
        ctx.library.call("ohm_on_spectrum_backward", len(start) - 1, len(weights), int(ctx.restore), *arrays, found)
        return None, None, None, None, found, None, None


class _TorchLayers(torch.autograd.Function):
    """The layers in torch: ``p <- q / |q|`` with ``q = p m``, ``m = one + lambda seen + s pulled``, ``s = p^2 . summed``."""

    @staticmethod
    def forward(
        ctx: Any,
        first: Tensor,
        later: Tensor,
        start: Tensor,
        owner: Tensor,
        weights: Tensor,
        restore: bool,
        count: Tensor | None,
    ) -> Tensor:
        channels, none = weights.shape[2], first.new_zeros(len(start) - 1, weights.shape[2])
        sizes = start.diff().to(first) if count is None else none[:, 0].index_add(0, owner, count)
        scale, often = sizes.sqrt()[:, None], 1 if count is None else count[:, None]
        p = (1 / scale.clamp(min=1)).index_select(0, owner).expand(-1, channels).contiguous()
        kept = []
        for l, (seen, pulled, one, summed) in enumerate(weights.unbind()):
            s = (p.square() @ summed)[:, None]
            m = torch.addcmul(one, (later if l else first)[:, None], seen).addcmul_(s, pulled)
            q = p * m
            square = none.index_add(0, owner, q.square() * often).clamp(min=0) + TINY
            inverse = square.rsqrt().index_select(0, owner)
            kept += [p, s, m, inverse]
            p = q * inverse
            scale = scale * square.sqrt() if restore else scale
        out = p * scale.expand_as(none).index_select(0, owner)
        ctx.save_for_backward(first, later, owner, weights, scale, p, out, *kept)
        ctx.restore, ctx.often = restore, often
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        first, later, owner, weights, scale, p, out, *kept = ctx.saved_tensors
        none = first.new_zeros(len(scale), weights.shape[2])
        g = gradients[0] * scale.expand_as(none).index_select(0, owner)

        def over_graphs(x: Tensor) -> Tensor:
            return none.index_add(0, owner, x)

        norms = over_graphs(gradients[0] * out) if ctx.restore else none  # the gradient of every restored norm
        d_first, d_later, d_weights = torch.zeros_like(first), torch.zeros_like(later), []
        for l in reversed(range(len(weights))):
            before, s, m, inverse = kept[4 * l : 4 * l + 4]
            seen, pulled, _, summed = weights[l]
            of_q = (g + ctx.often * p * (norms - over_graphs(g * p)).index_select(0, owner)) * inverse
            of_m, values = of_q * before, later if l else first
            of_s = of_m @ pulled
            d_weights += [torch.stack([values @ of_m, s[:, 0] @ of_m, of_m.sum(0), of_s @ before.square()])]
            d_values = of_m @ seen
            d_first, d_later = (d_first, d_later + d_values) if l else (d_first + d_values, d_later)
            g = of_q * m + 2 * before * of_s[:, None] * summed
            p = before
        return d_first, d_later, None, None, torch.stack(d_weights[::-1]), None, None
