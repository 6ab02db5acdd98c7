"""What backbones share: PyG's arguments, edges sorted by the node they point to, and sums over the edges of every node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, linear


@dataclass(frozen=True)
class Edges:
    """Edges from ``source`` to ``target``, sorted by target, so that sums at nodes run over consecutive rows."""

    source: Int[Tensor, " edges"]
    target: Int[Tensor, " edges"]
    by_source: Int[Tensor, " edges"]
    """A permutation that sorts the edges by source."""
    first_in: Int[Tensor, " nodes"]
    """The index of the first edge to every node."""
    first_out: Int[Tensor, " nodes"]
    """The position in ``by_source`` of the first edge from every node."""

    @classmethod
    def of(cls, edge_index: Int[Tensor, "2 edges"], nodes: int) -> tuple[Edges, Int[Tensor, " edges"]]:
        """Sort PyG's edges by target; return them and the permutation to apply to their features."""
        order = edge_index[1].argsort(stable=True)
        source, target = edge_index[:, order]
        into, out = (torch.bincount(x, minlength=nodes) for x in (target, source))
        return cls(source, target, source.argsort(stable=True), into.cumsum(0) - into, out.cumsum(0) - out), order

    def sum_at_targets(self, x: Float[Tensor, "edges k"]) -> Float[Tensor, "nodes k"]:
        """Sum over the edges that end at each node."""
        return embedding_bag(torch.arange(len(x), device=x.device), x, self.first_in, mode="sum")

    def sum_at_sources(self, x: Float[Tensor, "edges k"]) -> Float[Tensor, "nodes k"]:
        """Sum over the edges that start at each node."""
        return embedding_bag(self.by_source, x, self.first_out, mode="sum")


@dataclass(frozen=True)
class EdgeFeatures:
    """Features e of edges; with a table ``e = few table``, so that a linear map of e is a product with few columns."""

    few: Float[Tensor, "edges few"]
    table: Float[Tensor, "few width"] | None = None

    @property
    def e(self) -> Float[Tensor, "edges width"]:
        """The features as one matrix."""
        return self.few if self.table is None else self.few @ self.table

    def mapped(self, by: nn.Linear) -> Float[Tensor, "edges out"]:
        """Return ``by(e)``."""
        return by(self.few) if self.table is None else linear(self.few, by.weight @ self.table.mT, by.bias)


class _Messages(torch.autograd.Function):
    """Compute ``sum_u relu(h_u + e_uv)`` at every node v."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, e: Tensor, edges: Edges) -> Tensor:
        carried = h.index_select(0, edges.source).add_(e).relu_()
        ctx.save_for_backward(carried)
        ctx.edges = edges
        return edges.sum_at_targets(carried)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (carried,) = ctx.saved_tensors
        g = gradients[0].index_select(0, ctx.edges.target).mul_(carried > 0)
        return ctx.edges.sum_at_sources(g), g, None


def gine_messages(h: Float[Tensor, "nodes width"], e: Float[Tensor, "edges width"], edges: Edges) -> Tensor:
    """Return ``sum_u relu(h_u + e_uv)`` at every node v."""
    return _Messages.apply(h, e.to(h.dtype), edges)  # pyright: ignore[reportReturnType]


def mlp(width: int, inner: int) -> nn.Sequential:
    """Return two linear maps with a ReLU between them."""
    return nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width))


class Backbone(nn.Module):
    """Base class of models that map features of nodes and edges to features of nodes."""

    def forward(
        self,
        x: Float[Tensor, "nodes width"],
        edge_index: Int[Tensor, "2 edges"],
        edge_attr: Float[Tensor, "edges width"],
        batch: Int[Tensor, " nodes"] | None = None,
        pairs: Float[Tensor, "graphs size size columns"] | None = None,
    ) -> Float[Tensor, "nodes width"]:
        """Accept the arguments of PyG's layers; ``pairs`` are dense-batched features of node pairs, for attention biases."""
        edges, order = Edges.of(edge_index, len(x))
        batch = edge_index.new_zeros(len(x)) if batch is None else batch
        return self.run(x, EdgeFeatures(edge_attr.index_select(0, order)), edges, batch, pairs)

    def run(self, h: Tensor, e: EdgeFeatures, edges: Edges, batch: Tensor, pairs: Tensor | None = None) -> Tensor:
        """Run the layers on sorted edges."""
        raise NotImplementedError


def check_heads(width: int, heads: int) -> None:
    """Raise a ValueError unless the number of heads divides the width."""
    if width % heads:
        raise ValueError(f"expected a width that {heads} heads can share, got {width}")
