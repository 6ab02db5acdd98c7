"""Random graphs for property tests: any family, any resistances, several components, isolated nodes, parallel edges."""

import torch
from hypothesis import strategies as st

from ohmformer import Graph
from ohmformer.graph.families import FAMILIES, disjoint, family


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@st.composite
def connected(draw, largest: int = 12) -> Graph:
    name = draw(st.sampled_from(sorted(FAMILIES)))
    nodes = draw(st.integers(5, largest))
    spread = draw(st.sampled_from([0.0, 1.0, 2.0]))
    return family(name, nodes, generator=_generator(draw(st.integers(0, 2**31))), spread=spread)


@st.composite
def graphs(draw, largest: int = 12) -> Graph:
    """One to three components, perhaps an isolated node, perhaps some edges doubled."""
    parts = draw(st.lists(connected(largest=largest // 2 + 2), min_size=1, max_size=3))
    if draw(st.booleans()):
        parts.append(Graph.from_edges([], num_nodes=1))
    graph = disjoint(*parts)
    doubled = draw(st.integers(0, 3))
    return Graph(
        torch.cat([graph.edge_index, graph.edge_index[:, :doubled].flip(0)], dim=1),
        torch.cat([graph.resistance, 2 * graph.resistance[:doubled]]),
        graph.batch,
    )


def demands_for(graph: Graph, k: int = 3, seed: int = 0) -> torch.Tensor:
    drawn = torch.randn(graph.num_nodes, k, generator=_generator(seed), dtype=torch.float64)
    return graph.center(drawn.to(graph.device))
