"""The ``diagonal`` start with B fixed, on eigenvalues: the same numbers as the layers give, for graphs that are met often.

Every channel starts at a multiple of the identity, and a layer maps functions of N to functions of N, so a channel is
``U p(lambda) U^T`` throughout: the layers act on ``p`` alone, one number per eigenvalue instead of one per pair of nodes.
With the eigenvectors kept, a training step costs as much as reading the answers off. Besides every node's own answer it may
read what a node's demand leaves at its neighbours, ``(U p U^T)_uv``, an encoding of edges.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ohmformer.encoding.dynamics import TINY
from ohmformer.encoding.inputs import SmallGraphs, read_pairs
from ohmformer.encoding.pe import LinearTransformerPE


def spectra(
    edges: Int[Tensor, "2 edges"], batch: Int[Tensor, " nodes"]
) -> tuple[Float[Tensor, "graphs width"], Float[Tensor, "nodes width"]]:
    """Eigenvalues of every graph's N, ascending, and every node's row of the eigenvectors; zero beyond a graph's size."""
    pairs = read_pairs(edges, None, batch, len(batch), l1=False, dtype=torch.float64)
    graphs = SmallGraphs.of(pairs)
    values = torch.zeros(pairs.graph.num_graphs, pairs.graph.width)
    vectors = torch.zeros(len(batch) + 1, pairs.graph.width)
    for block in graphs.buckets.blocks:
        real = block.node >= 0
        # padding goes above the spectrum, which ends at 2
        value, vector = torch.linalg.eigh(block.of(graphs.buffer) + torch.diag_embed(3.0 * ~real))
        kept = torch.arange(value.shape[1]) < real.sum(1, keepdim=True)
        most = min(value.shape[1], values.shape[1])
        values[block.which, :most] = (value * kept)[:, :most].float()
        vectors[block.node, :most] = (vector * kept[:, None])[:, :, :most].float()
    return values, vectors[:-1]


def channels(
    model: LinearTransformerPE,
    values: Float[Tensor, "graphs width"],
    sizes: Int[Tensor, " graphs"],
    *,
    restore: bool = False,
) -> Float[Tensor, "graphs width hidden"]:
    """``p`` of every channel on every eigenvalue after all layers.

    As they leave the model, channels have the norm of the identity, whatever the graph. With ``restore`` they are multiplied
    by the norms that the layers divided by: a channel that walks then gives return probabilities, not multiples of them.
    """
    if model.phi0 != "diagonal" or model.evolve or model.degrees != "gram":
        raise ValueError(f"expected phi0='diagonal' with B fixed and Gram degrees, got {model.config}")
    real = (torch.arange(values.shape[1], device=values.device) < sizes[:, None]).to(values)
    scale = sizes.to(values).sqrt()[:, None, None]
    p = (real[:, :, None] / scale).expand(-1, -1, model.hidden)
    for layer in model._layers():
        # p <- p (skip + value (gram lambda + phi sum_c product_c p_c^2)), then over its norm
        similarity = torch.stack([values, p.square() @ layer.product], dim=2)
        weight = torch.stack([layer.value * layer.gram, layer.value * layer.phi])
        p = p * (similarity @ weight + layer.skip)
        square = p.square().sum(1, keepdim=True).add(TINY)
        p = p * square.rsqrt()
        if restore:
            scale = scale * square.sqrt()
    return p * scale
