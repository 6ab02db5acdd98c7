"""Pairs of nodes as an attention bias: closeness by resistance and by heat, dense-batched as PyG's ``to_dense_batch``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch_geometric.data import Data

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
    """``1 / (1 + R_uv)``, which is 0 between components, and ``exp(-s L)_uv`` for each of ``times``; zeros on padding.

    >>> pairwise(torch.tensor([[0, 1], [1, 0]]), num_nodes=3, times=[1])[0, :, :, 0]
    tensor([[1.0000, 0.5000, 0.0000],
            [0.5000, 1.0000, 0.0000],
            [0.0000, 0.0000, 1.0000]])
    """
    data = Data(edge_index=edge_index, num_nodes=num_nodes if batch is None else len(batch))
    if num_nodes is None and batch is None:
        data.num_nodes = int(edge_index.max()) + 1 if edge_index.numel() else 0
    data.batch = batch if batch is not None else torch.zeros(data.num_nodes or 0, dtype=torch.long, device=edge_index.device)
    if edge_weight is not None:
        data.edge_weight = edge_weight
    graph = Graph.from_pyg(data, conductance=None if edge_weight is None else "edge_weight").to("cpu", torch.float64)
    real = graph.mask[:, :, None] & graph.mask[:, None, :]
    closeness = torch.where(real, 1 / (1 + ohm.effective_resistance(graph, "all").value), 0.0)
    features = [closeness, *(ohm.heat_kernel(graph, float(s)).value * real for s in times)]
    return torch.stack(features, dim=-1).float().to(edge_index.device)


class PairwiseBias(nn.Module):
    """A bias for every head, ``(graphs, heads, width, width)``, to be added to attention's scores: linear in the features.

    Takes the output of :func:`pairwise`, which can be computed once and kept.
    """

    def __init__(self, heads: int, features: int = 3) -> None:
        super().__init__()
        self.mix = nn.Linear(features, heads, bias=False)
        nn.init.zeros_(self.mix.weight)

    def forward(self, features: Float[Tensor, "graphs width width features"]) -> Float[Tensor, "graphs heads width width"]:
        """Zero at first, so that adding the bias to a trained model changes nothing."""
        return self.mix(features).permute(0, 3, 1, 2)
