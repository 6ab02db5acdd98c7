"""What is looked for in node states: functions of the Laplacian on nodes and pairs, and its lowest eigenvectors.

nodes     the diagonals of L^+, exp(-s L) and (D^-1 A)^k
pairs     effective resistances R_uv of some pairs of each graph
subspace  the span of the k lowest eigenvectors, if it is separated from the next one
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ohmformer import exact
from ohmformer.graph import Graph
from ohmformer.graph.ragged import Spans

HEAT_TIMES = (0.5, 4.0)
WALKS = (4, 8)
VECTORS = 3
PAIRS = 48
"""Most pairs per graph."""
NODE_TARGETS = ("diagonal of L+", *(f"heat, s = {s:g}" for s in HEAT_TIMES), *(f"return in {k} steps" for k in WALKS))
PAIR_TARGET, SUBSPACE_TARGET = "resistance", f"{VECTORS} lowest eigenvectors"
TARGETS = (*NODE_TARGETS, PAIR_TARGET, SUBSPACE_TARGET)
LIKE_SIZE = 4
"""Number of graphs below which a size shares a group with the next larger ones, for shuffling targets."""
SEPARATED = 1e-3
"""Smallest relative difference of eigenvalues for which a subspace counts as separated from the others."""


@dataclass(frozen=True)
class Targets:
    """Targets of all nodes, of some pairs of nodes, and of subspaces, of many graphs concatenated."""

    nodes: Spans
    degree: Int[Tensor, " nodes"]
    values: Float[Tensor, "nodes targets"]
    """One column for each of ``NODE_TARGETS``."""
    pairs: Int[Tensor, "2 pairs"]
    resistance: Float[Tensor, " pairs"]
    vectors: Float[Tensor, "nodes k"]
    separated: Bool[Tensor, " graphs"]
    """Graphs whose subspace is separated and not the whole range."""

    @classmethod
    def of(cls, graph: Graph, *, seed: int = 0) -> Targets:
        """Compute the targets by LAPACK; draw the pairs at random among connected ones."""
        values, vectors = exact.decompose(graph)
        nodes, real = Spans.of(graph.graph_sizes), torch.arange(graph.width) < graph.graph_sizes[:, None]
        square, positive = vectors.square(), values > 0

        def diagonal(f: Tensor, at_zero: float) -> Tensor:
            return (at_zero + (square * torch.where(positive, f - at_zero, 0.0)[:, None]).sum(-1))[real]

        laplacian = graph.laplacian()
        weight = laplacian.diagonal(dim1=1, dim2=2)
        root = torch.where(weight > 0, weight, torch.inf).rsqrt()
        step = torch.diag_embed((weight > 0).to(weight)) - root[:, :, None] * laplacian * root[:, None]
        columns = [diagonal(torch.where(positive, values, 1.0).reciprocal(), 0.0)]
        columns += [diagonal(torch.exp(-s * values), 1.0) for s in HEAT_TIMES]
        columns += [torch.linalg.matrix_power(step, k).diagonal(dim1=1, dim2=2)[real] for k in WALKS]
        u, v = _draw_pairs(graph, nodes, torch.Generator().manual_seed(seed))
        owner, first = nodes.owner[u], nodes.first[nodes.owner[u]]
        rows = vectors * torch.where(positive, torch.where(positive, values, 1.0).rsqrt(), 0.0)[:, None]  # Fact 1
        resistance = (rows[owner, u - first] - rows[owner, v - first]).square().sum(-1)
        rank = positive.sum(1)
        following = values[:, min(VECTORS, values.shape[1] - 1)]
        apart = (following - values[:, min(VECTORS, values.shape[1]) - 1]) > SEPARATED * following
        lowest = exact.eigenvectors(graph, VECTORS).vectors
        degree = torch.bincount(graph.edge_index.flatten(), minlength=graph.num_nodes)
        return cls(
            nodes, degree, torch.stack(columns, 1), torch.stack([u, v]), resistance, lowest[real], apart & (rank > VECTORS)
        )

    def shuffled(self, draw: torch.Generator) -> Targets:
        """Shuffle targets of nodes and of pairs among graphs of the same size, and subspaces among graphs."""
        group = _groups(self.nodes.counts)
        owner, size = self.nodes.owner, self.nodes.counts
        values = self.values[_permuted(group[owner], draw)]
        resistance = self.resistance[_permuted(group[owner[self.pairs[0]]], draw)]
        graph = _permuted(size, draw)  # graphs of one size swap places, and so do the nodes of each
        moved = self.vectors[self.nodes.rows(graph)][_permuted(owner, draw)]
        return replace(self, values=values, resistance=resistance, vectors=moved, separated=self.separated[graph])


def _draw_pairs(graph: Graph, nodes: Spans, draw: torch.Generator) -> Int[Tensor, "2 pairs"]:
    """Draw pairs of nodes of one component, at most ``PAIRS`` per graph."""
    found = []
    for first, size in zip(nodes.first.tolist(), nodes.counts.tolist(), strict=True):
        pair = torch.triu_indices(size, size, 1)
        pair = pair[:, torch.randperm(pair.shape[1], generator=draw)[:PAIRS]]
        found.append(pair + first)
    pairs = torch.cat(found, 1)
    return pairs[:, graph.components[pairs[0]] == graph.components[pairs[1]]]


def _groups(sizes: Int[Tensor, " graphs"]) -> Int[Tensor, " graphs"]:
    """Number the graphs by size, merging sizes with few graphs into the next larger ones."""
    group, number, members = {}, 0, 0
    values, counts = sizes.unique(return_counts=True)
    for size, count in zip(values.tolist(), counts.tolist(), strict=True):
        if members >= LIKE_SIZE:
            number, members = number + 1, 0
        group[size], members = number, members + count
    return torch.tensor([group[size] for size in sizes.tolist()])


def _permuted(group: Int[Tensor, " items"], draw: torch.Generator) -> Int[Tensor, " items"]:
    """Draw a random permutation that maps every group to itself."""
    at_random = torch.randperm(len(group), generator=draw)
    places, items = group.argsort(stable=True), at_random[group[at_random].argsort(stable=True)]
    return torch.empty_like(places).scatter(0, places, items)
