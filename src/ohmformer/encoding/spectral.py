"""Run the ``diagonal`` start with B fixed on eigenvalues that are computed once, for graphs that are trained on many times.

Every channel starts at a multiple of the identity, and a layer maps functions of N to functions of N, so a channel is
``U p(lambda) U^T`` throughout: the layers act on ``p`` alone, one number per eigenvalue instead of one per pair of nodes.
With the eigenvectors kept, a training step costs little more than reading off the answers: ``(U p U^T)_uu`` for every node,
and, as an encoding of edges, ``(U p U^T)_uv``.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ohmformer.encoding.inputs import SmallGraphs, read_pairs
from ohmformer.encoding.on_spectrum import on_spectrum
from ohmformer.encoding.pe import LinearTransformerPE


def spectra(
    edges: Int[Tensor, "2 edges"], batch: Int[Tensor, " nodes"]
) -> tuple[Float[Tensor, "graphs width"], Float[Tensor, "nodes width"]]:
    """Return the eigenvalues of every graph's N, ascending, and every node's row of eigenvectors, padded with zeros."""
    pairs = read_pairs(edges, None, batch, len(batch), l1=False, dtype=torch.float64)
    graphs = SmallGraphs.of(pairs)
    values = torch.zeros(pairs.graph.num_graphs, pairs.graph.width)
    vectors = torch.zeros(len(batch) + 1, pairs.graph.width)
    for block in graphs.layout.blocks:
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
    """Return ``p`` of every channel on every eigenvalue after all layers, see :mod:`ohmformer.encoding.on_spectrum`."""
    if model.phi0 != "diagonal" or model.evolve or model.degrees != "gram":
        raise ValueError(f"expected phi0='diagonal' with B fixed and Gram degrees, got {model.config}")
    return on_spectrum(values, sizes, model._layers(), restore=restore)
