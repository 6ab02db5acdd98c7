"""Distributions of random graphs: a family, a size and a seed determine every batch.

A batch is made from a few fixed topologies and fresh resistances ``exp(U[-spread, spread])``, all at once:

    B = sign pattern of the topology * exp(-u/2),    G = B B^T

For random families (trees, Erdos-Renyi, ...), a pool of topologies is drawn once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer.graph.families import FAMILIES, family

ALIASES = {"fc": "complete"}
"""The paper's names for families of :mod:`ohmformer.graph.families`."""
POOL = 256
"""Number of topologies drawn for a random family."""


@dataclass(frozen=True)
class GraphDistribution:
    """Graphs of one family and size with resistances ``exp(U[-spread, spread])``; the paper uses spread 2.

    >>> GraphDistribution("csl", 10).incidence(3, torch.Generator().manual_seed(0)).shape
    torch.Size([3, 10, 20])
    """

    family: str
    nodes: int = 10
    spread: int | float = 2.0
    unit: bool = False
    """Whether ``B`` is scaled to ``|B|_F = 1``, which keeps the answers of scale-free tasks up to scale."""

    def __post_init__(self) -> None:
        name = ALIASES.get(self.family, self.family)
        family(name, self.nodes, generator=torch.Generator().manual_seed(0))  # raises an error for a bad family or size
        if not self.spread >= 0:
            raise ValueError(f"expected a spread of log resistances >= 0, got {self.spread!r}")

    @cached_property
    def patterns(self) -> Float[Tensor, "topologies nodes edges"]:
        """Incidence matrices with unit resistances, one per topology, padded with zero columns."""
        generator = torch.Generator().manual_seed(0)
        drawn = {tuple(FAMILIES[ALIASES.get(self.family, self.family)](self.nodes, generator)): None for _ in range(POOL)}
        patterns = torch.zeros(len(drawn), self.nodes, max(len(edges) for edges in drawn), dtype=torch.float64)
        for pattern, edges in zip(patterns, drawn, strict=True):
            for j, (u, v) in enumerate(edges):
                pattern[u, j], pattern[v, j] = -1.0, 1.0
        return patterns

    @property
    def edges(self) -> int:
        """Number of edges of the largest topology: the columns of ``B``."""
        return self.patterns.shape[2]

    def incidence(self, graphs: int, generator: torch.Generator) -> Float[Tensor, "graphs nodes edges"]:
        """Draw graphs and return their ``B`` in float64."""
        which = torch.randint(len(self.patterns), (graphs,), generator=generator)
        uniform = torch.rand(graphs, 1, self.edges, generator=generator, dtype=torch.float64)
        incidence = self.patterns[which] * torch.exp(-self.spread * (uniform - 0.5))
        if self.unit:
            incidence /= incidence.square().sum(dim=(1, 2), keepdim=True).sqrt()
        return incidence
