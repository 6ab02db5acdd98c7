"""The two models with matrices, as they are trained: weights of several seeds stacked, the forward pass written for speed.

Every weight has the seeds as its first axis and the layers as its second; seeds are independent. The formulas are those of
:class:`~ohmformer.transformer.dense.LinearTransformer` and :class:`~ohmformer.transformer.efficient.EfficientTransformer`
with one head, which ``trained_model`` builds from the trained weights (and the tests compare with).
For speed, ``W^K^T W^Q`` is one matrix; similarity, value and skip are one product with concatenated weights; the graphs of
all seeds are one batch; the efficient model stores only the Gram matrix of B, and the derivatives of a layer are written
by hand (``layer.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer.constructions import scalars
from ohmformer.experiments.learn.checkpoint import Checkpoint
from ohmformer.experiments.learn.layer import dense_layer, layer, unit_blocks, unit_norm, unit_trace
from ohmformer.experiments.learn.tasks import EIGENVECTORS, Problems
from ohmformer.transformer.blocks import INCIDENCE, Blocks, Coefficient, Head, Layer, Layout, Program
from ohmformer.transformer.dense import LinearTransformer
from ohmformer.transformer.efficient import EfficientTransformer
from ohmformer.transformer.normalize import Normalization
from ohmformer.transformer.trace import Trace

Weights = Mapping[str, Tensor]
"""``value``, ``query``, ``key``, ``skip``: (seeds, layers, features, features); efficient: ``alphas`` (seeds, layers, 4),
which are alpha_V, alpha_Q, alpha_K, alpha_R; eigenvectors: ``start`` (seeds, nodes, 2 nodes), the trained Phi_0."""
MATRICES = ("value", "query", "key", "skip")
START = "start"
PHI = "phi"
AT_ONCE = 500
"""Number of graphs computed together."""


def dense_answer(
    weights: Weights, batch: Problems, normalization: Normalization
) -> Float[Tensor, "seeds graphs nodes demands"]:
    """Run the dense model: ``X <- X + X M X^T X W_V^T + X W_R^T``, M = W_K^T W_Q, X = [B | Phi], then normalise."""
    phi = features(weights, batch)
    seeds, graphs, _, _ = phi.shape
    edges, h = batch.incidence.shape[-1], weights["value"].shape[-1]
    x = torch.cat([batch.incidence, phi], dim=-1).flatten(0, 1)
    whole = (normalization.incidence == "frobenius", normalization.features == "frobenius")
    for together in _side_by_side(weights):
        x = unit_blocks(dense_layer(x, together), edges, whole)
    return x[..., h - phi.shape[-1] // 2 :].unflatten(0, (seeds, graphs))


def efficient_answer(
    weights: Weights, batch: Problems, normalization: Normalization
) -> Float[Tensor, "seeds graphs nodes demands"]:
    """Run the efficient model (see ``transformer/efficient.py``).

    ``S = alpha_K alpha_Q G + Phi M Phi^T``, ``Phi <- Phi + S Phi W_V^T + Phi W_R^T``, ``G <- A G A^T`` with
    ``A = (1 + alpha_R) I + alpha_V S``.
    """
    phi = features(weights, batch)
    _, graphs, _, width = phi.shape
    phi, gram = phi.flatten(0, 1), batch.gram.flatten(0, 1)
    alpha_v, alpha_q, alpha_k, alpha_r = weights["alphas"].repeat_interleave(graphs, 0)[..., None, None].unbind(2)
    seen, stay = alpha_k * alpha_q, 1 + alpha_r
    for l, together in enumerate(_side_by_side(weights)):
        phi, gram = layer(phi, gram, together, seen[:, l], alpha_v[:, l], stay[:, l])
        phi = unit_norm(phi, (1, 2) if normalization.features == "frobenius" else (1,))
        if normalization.incidence == "frobenius":
            gram = unit_trace(gram)
    return phi[..., width // 2 :].unflatten(0, (-1, graphs))


ANSWERS: dict[str, Callable[[Weights, Problems, Normalization], Tensor]] = {
    "dense": dense_answer,
    "efficient": efficient_answer,
}


def loss_and_gradients(
    model: str,
    weights: Weights,
    batch: Problems,
    normalization: Normalization,
    loss: Callable[[Tensor, Tensor], Tensor],
    depth: int | None = None,
) -> tuple[Float[Tensor, " seeds"], dict[str, Tensor]]:
    """Compute the loss of every seed and the gradient of its log, in batches small enough for the cache.

    ``depth`` is the number of layers to run, all of them unless given; gradients of the others are zero.
    """
    leaves = {name: w.detach().requires_grad_() for name, w in weights.items()}
    active = {name: w if name == START else w[:, :depth] for name, w in leaves.items()}
    graphs, seeds = batch.gram.shape[1], batch.gram.shape[0]
    losses, gradients = torch.zeros(seeds, dtype=batch.gram.dtype), [torch.zeros_like(w) for w in leaves.values()]
    for piece in batch.split(max(AT_ONCE // seeds, 1)):
        part = loss(ANSWERS[model](active, piece, normalization), piece.target) * (piece.gram.shape[1] / graphs)
        losses += part.detach()
        for total, g in zip(gradients, torch.autograd.grad(part.sum(), list(leaves.values())), strict=True):
            total += g
    by_seed = [g / losses.view(-1, *[1] * (g.ndim - 1)) for g in gradients]
    return losses, dict(zip(leaves, by_seed, strict=True))


def features(weights: Weights, batch: Problems) -> Float[Tensor, "seeds graphs nodes width"]:
    """Return Phi_0: the demands and as many zero columns for the answers, or the trained start."""
    if batch.demands is not None:
        return torch.cat([batch.demands, torch.zeros_like(batch.demands)], dim=-1)
    return weights[START][:, None].expand(-1, batch.gram.shape[1], -1, -1)


def random_weights(
    model: str, layers: int, edges: int, nodes: int, start: bool, generator: torch.Generator
) -> dict[str, Tensor]:
    """Draw Gaussian W^Q and W^K of one seed, deviation 0.1; alpha_Q and alpha_K near 1, so that B has an effect.

    W^V and W^R are zero: every layer starts as the identity on features, whatever the depth.
    """
    width = 2 * nodes + (edges if model == "dense" else 0)
    shape = (layers, width, width)
    weights = {name: torch.zeros(shape) for name in MATRICES}
    weights |= {name: 0.1 * torch.randn(shape, generator=generator) for name in ("query", "key")}
    if model == "efficient":
        weights["alphas"] = torch.tensor([0.0, 1.0, 1.0, 0.0]) + 0.1 * torch.randn(layers, 4, generator=generator)
    if start:
        weights[START] = torch.randn(nodes, 2 * nodes, generator=generator) / nodes**0.5
    return weights


def trained_program(run: Checkpoint, seed: int) -> Program:
    """Convert one seed's trained weights to a float64 program with blocks demand and answer, or phi for eigenvectors."""
    setting, weights = run.setting, run.weights
    if setting.scalars:
        return scalars.to_program(weights["scalars"][seed, 0], setting.normalization)
    matrices = [weights[name][seed].double() for name in MATRICES]
    nodes, edges = setting.nodes, matrices[0].shape[-1] - 2 * setting.nodes
    widths = {PHI: 2 * nodes} if setting.task == EIGENVECTORS else {scalars.DEMAND: nodes, scalars.ANSWER: nodes}
    layout = Layout(({INCIDENCE: edges} if setting.model == "dense" else {}) | widths)

    def blocks(i: int, l: int) -> Blocks:
        found: dict[tuple[str, str], Coefficient] = {
            (t, s): matrices[i][l, layout[t], layout[s]] for t in layout.widths for s in layout.widths
        }
        return found if edges else found | {(INCIDENCE, INCIDENCE): float(weights["alphas"][seed, l, i])}

    layers = [Layer((Head(blocks(0, l), blocks(1, l), blocks(2, l)),), blocks(3, l)) for l in range(setting.layers)]
    return Program({INCIDENCE: edges or "edges", **widths}, layers, setting.normalization)


def trained_model(run: Checkpoint, seed: int) -> EfficientTransformer | LinearTransformer:
    """Build the library's model with the trained weights of one seed, in float64."""
    program = trained_program(run, seed)
    if run.setting.model == "efficient":
        return EfficientTransformer(program).requires_grad_(False)
    return LinearTransformer.of(program, program.layout(nodes=0, edges=0, demands=0)).requires_grad_(False)


def run_model(
    model: EfficientTransformer | LinearTransformer,
    incidence: Float[Tensor, "*graphs nodes edges"],
    blocks: dict[str, Tensor],
) -> Trace:
    """Run either model from given blocks; return all blocks after every layer."""
    if isinstance(model, EfficientTransformer):
        return model(incidence @ incidence.mT, blocks, trace=True)
    return model(model.layout.pack({INCIDENCE: incidence, **blocks}), trace=True)


def _side_by_side(weights: Weights) -> tuple[Tensor, ...]:
    """Concatenate the weights of each layer: ``[W_K^T W_Q | W_V^T | I + W_R^T]``, (seeds, features, 3 features)."""
    kept = torch.eye(weights["skip"].shape[-1], dtype=weights["skip"].dtype) + weights["skip"].mT
    return torch.cat([weights["key"].mT @ weights["query"], weights["value"].mT, kept], dim=-1).unbind(1)
