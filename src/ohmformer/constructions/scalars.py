"""The efficient model with blocks that are multiples of the identity, evaluated on eigenvalues: training from a lemma.

**Why multiples of the identity are enough.** Demands are independent, and as likely as their negatives. Permuting demands,
or flipping their signs, changes neither the data nor the loss, so at weights that commute with such changes the expected
gradient commutes with them too; and a matrix that commutes with all permutations and sign flips is a multiple of the
identity. The constructions have such blocks, and similarities of features (``W^Q``, ``W^K`` on Phi) that are zero, where
their gradient is zero. So gradient descent from a construction stays within ten numbers per layer, whatever the number of
demands.

**Why eigenvalues are enough.** With such blocks the state is ``p(L) psi`` and ``q(L) psi``, and ``G`` a function of ``L``:

    [p; q] <- (I + W_R) [p; q] + g W_V [p; q],     g <- (1 + alpha_R + alpha_V g)^2 g,  divided by its sum over the spectrum

on each eigenvalue, with 2 x 2 matrices ``W_R`` and ``W_V``. The norm of Phi only scales p and q together and cancels in the
loss; demands are isotropic, so in the eigenbasis they are Gaussian numbers, of which the loss needs the squares alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer.transformer.blocks import INCIDENCE, Coefficient, Head, Layer, Program, similarity
from ohmformer.transformer.normalize import Normalization

DEMAND, ANSWER = "demand", "answer"
PAIRS = ((DEMAND, DEMAND), (DEMAND, ANSWER), (ANSWER, DEMAND), (ANSWER, ANSWER))
WIDTH = 10
"""Numbers per layer: W_R by ``PAIRS``, W_V by ``PAIRS``, alpha_R, alpha_V; ``alpha_Q = alpha_K = 1`` without loss."""

ON_GRAM = [4, 5, 6, 7, 9]
"""Indices of the numbers that multiply ``G``."""


def response(
    scalars: Float[Tensor, "*batch layers 10"],
    eigenvalues: Float[Tensor, "*graphs m"],
    *,
    normalize_incidence: bool,
    up_to_scale: bool = True,
) -> Float[Tensor, "*out m"]:
    """Evaluate ``q`` after the last layer at nonzero eigenvalues; ``up_to_scale`` allows a positive factor per graph."""
    rows = [row[..., None].unbind(-2) for row in scalars.unbind(-2)]
    return _respond(rows, eigenvalues, normalize_incidence, up_to_scale)


def response_and_jacobian(
    scalars: Float[Tensor, "seeds layers 10"],
    eigenvalues: Float[Tensor, "seeds graphs m"],
    *,
    normalize_incidence: bool,
    up_to_scale: bool = True,
) -> tuple[Float[Tensor, "seeds graphs m"], Float[Tensor, "seeds graphs m parameters"]]:
    """Compute responses and their derivatives, with the norms of Phi held constant.

    If B is not normalised, eigenvalues do not interact: with a copy of the scalars for each of them, one backward pass is
    enough. If it is, they interact through its norm: there is a copy per graph, and a backward pass per eigenvalue.
    """
    graphs, m = eigenvalues.shape[-2:]
    copies = 1 if normalize_incidence else m
    leaves = [x[:, None, None].repeat(1, graphs, copies).requires_grad_() for x in scalars.flatten(1).unbind(-1)]
    rows = [leaves[i : i + WIDTH] for i in range(0, len(leaves), WIDTH)]
    answer = _respond(rows, eigenvalues, normalize_incidence, up_to_scale)

    def derivatives(of: Tensor) -> Tensor:
        """Differentiate by all scalars; the last layer's alphas act on a B that is not used, so theirs are zero."""
        return torch.stack(torch.autograd.grad(of.sum(), leaves, retain_graph=True, materialize_grads=True), dim=-1)

    parts = answer.split(1, dim=-1) if normalize_incidence else [answer]
    return answer.detach(), torch.cat([derivatives(part) for part in parts], dim=-2)


def _respond(rows: Sequence[Sequence[Tensor]], eigenvalues: Tensor, normalize_incidence: bool, up_to_scale: bool) -> Tensor:
    """Evaluate the layers, each given as ten tensors that broadcast with the eigenvalues."""
    g, p, q = eigenvalues, torch.ones_like(eigenvalues), torch.zeros_like(eigenvalues)
    for l, (r00, r01, r10, r11, v00, v01, v10, v11, a_r, a_v) in enumerate(rows):
        p, q = p + (r00 + g * v00) * p + (r01 + g * v01) * q, q + (r10 + g * v10) * p + (r11 + g * v11) * q
        if up_to_scale:
            size = (p.square() + q.square()).sum(-1, keepdim=True).detach().rsqrt()
            p, q = p * size, q * size
        if l < len(rows) - 1:
            g = (1 + a_r + a_v * g).square() * g
            if normalize_incidence:
                g = g / g.sum(-1, keepdim=True)
    return q


def loss(
    answer: Float[Tensor, "*seeds graphs m"],
    target: Float[Tensor, "*#seeds graphs m"],
    squares: Float[Tensor, "*#seeds graphs demands m"],
    *,
    up_to_scale: bool = True,
) -> Float[Tensor, "*seeds"]:
    """Compute the loss of responses, ``mean |h c / |h c| - t c / |t c||^2``, for demands of squared coefficients ``c^2``.

    Squares summed over the demands of a graph give the Frobenius loss. Without ``up_to_scale`` it is the squared relative
    error, ``mean |h c - t c|^2 / |t c|^2``.
    """
    h, t = answer[..., None, :], target[..., None, :]
    size_h, size_t = ((squares * x.square()).sum(-1, keepdim=True).sqrt() for x in (h, t))
    size_h = size_h if up_to_scale else size_t
    return (squares * (h / size_h - t / size_t).square()).sum(-1).mean(dim=(-2, -1))


def to_program(scalars: Float[Tensor, "layers 10"], normalization: Normalization) -> Program:
    """Convert to a program: an efficient Transformer for any number of nodes, edges and demands."""

    def layer(row: list[float]) -> Layer:
        skip: dict[tuple[str, str], Coefficient] = dict(zip(PAIRS, row[:4], strict=True))
        value: dict[tuple[str, str], Coefficient] = dict(zip(PAIRS, row[4:8], strict=True))
        pair = (INCIDENCE, INCIDENCE)
        return Layer((Head(value | {pair: row[9]}, **similarity(INCIDENCE)),), skip | {pair: row[8]})

    blocks = {INCIDENCE: "edges", DEMAND: "demands", ANSWER: "demands"}
    return Program(blocks, [layer(row) for row in scalars.tolist()], normalization)


def from_program(program: Program) -> Float[Tensor, "layers 10"]:
    """Extract the numbers of a construction with two blocks, the input and the answer, and one head per layer."""
    _, demand, answer = program.blocks
    pairs = [(t, s) for t in (demand, answer) for s in (demand, answer)]

    def row(layer: Layer) -> list[float]:
        (head,) = layer.heads
        return [
            *(_number(layer.skip.get(x, 0.0)) for x in pairs),
            *(_number(head.value.get(x, 0.0)) for x in pairs),
            0.0,
            0.0,
        ]

    return torch.tensor([row(layer) for layer in program.layers], dtype=torch.float64)


def _number(coefficient: Coefficient) -> float:
    if not isinstance(coefficient, int | float):
        raise ValueError("expected blocks that are multiples of the identity, got a diagonal or a matrix")
    return float(coefficient)
