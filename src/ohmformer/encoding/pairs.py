"""Resistance and heat between pairs of nodes as an attention bias, dense-batched as by PyG's ``to_dense_batch``."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

import ohmformer as ohm
from ohmformer.graph import Graph


def pairwise(
    edge_index: Int[Tensor, "2 edges"],
    edge_weight: Tensor | None = None,
    batch: Int[Tensor, " nodes"] | None = None,
    num_nodes: int | None = None,
    *,
    times: Sequence[int | float] = (0.5, 2),
) -> Float[Tensor, "graphs width width features"]:
    """Return ``1 / (1 + R_uv)``, 0 between components, and ``exp(-s L)_uv`` for each of ``times``; zeros on padding.

    ``edge_index`` lists every edge in both directions or every edge once, ``edge_weight`` holds conductances. The result is
    computed on the CPU in float64 and moved to the device of ``edge_index``.

    >>> pairwise(torch.tensor([[0, 1], [1, 0]]), num_nodes=3, times=[1])[0, :, :, 0]
    tensor([[1.0000, 0.5000, 0.0000],
            [0.5000, 1.0000, 0.0000],
            [0.0000, 0.0000, 1.0000]])
    """
    if batch is None:
        nodes = num_nodes if num_nodes is not None else int(edge_index.max()) + 1 if edge_index.numel() else 0
        batch = torch.zeros(nodes, dtype=torch.long, device=edge_index.device)
    data = SimpleNamespace(edge_index=edge_index, num_nodes=len(batch), batch=batch)
    graph = Graph.from_pyg(data, conductance=edge_weight).to("cpu", torch.float64)
    real = graph.mask[:, :, None] & graph.mask[:, None, :]
    closeness = torch.where(real, 1 / (1 + ohm.effective_resistance(graph, "all").value.padded()), 0.0)
    features = [closeness, *(ohm.heat_kernel(graph, float(s)).value.padded() * real for s in times)]
    return torch.stack(features, dim=-1).float().to(edge_index.device)


class PairwiseBias(nn.Module):
    """Compute a bias for every attention head, ``(graphs, heads, width, width)``, linear in the features of node pairs.

    It is added to the attention scores. Its input, from :func:`pairwise`, can be computed once and stored.
    """

    def __init__(self, heads: int, features: int = 3) -> None:
        super().__init__()
        self.mix = nn.Linear(features, heads, bias=False)
        nn.init.zeros_(self.mix.weight)

    def forward(self, features: Float[Tensor, "graphs width width features"]) -> Float[Tensor, "graphs heads width width"]:
        """Return the bias; it is zero until trained, so that adding it to a trained model changes nothing at first."""
        return self.mix(features).permute(0, 3, 1, 2)
