"""Effective resistances of all pairs of nodes of small graphs by elimination without subtractions.

Each is accurate to ``4 n`` roundings for any range of resistances; see ``native/src/pairwise.c``.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int

from ohmformer import native
from ohmformer.graph import Graph
from ohmformer.graph.ragged import Matrices

EPS = torch.finfo(torch.float64).eps


def error_bound(nodes: int) -> float:
    """Bound the relative error of a resistance in a graph with this number of nodes."""
    return 2 * (nodes + 2) * EPS


def all_pairs(graph: Graph) -> Matrices:
    """Compute resistances of all pairs of every graph, in float64, without gradient; ``inf`` between components."""
    conductance = conductances(graph)
    out = Matrices(torch.empty_like(conductance.entries), conductance.sizes)
    if native.active() is not None:
        native.call("ohm_pairwise", graph.num_graphs, out.sizes, out.spans.start, conductance.entries, out.entries)
    else:
        for number in range(graph.num_graphs):
            matrix = conductance[number].numpy()
            _between(matrix, np.arange(len(matrix)), out[number].fill_diagonal_(0.0).numpy())
    return Matrices(out.entries.to(graph.device), out.sizes.to(graph.device))


def conductances(graph: Graph) -> Matrices:
    """Return one matrix per graph with the summed conductances of all edges between two nodes."""
    sizes = graph.graph_sizes.cpu()
    out = Matrices(torch.zeros(int(sizes.square().sum()), dtype=torch.float64), sizes)
    (u, v), batch, within = graph.edge_index.cpu(), graph.batch.cpu(), graph.nodes.within.cpu()
    base, width = out.spans.start[batch[u]], sizes[batch[u]]
    place = torch.cat([base + width * within[u] + within[v], base + width * within[v] + within[u]])
    return Matrices(out.entries.index_add_(0, place, 1 / graph.resistance.detach().cpu().double().repeat(2)), sizes)


def _between(c: Float[np.ndarray, "n n"], number: Int[np.ndarray, " n"], out: Float[np.ndarray, "width width"]) -> None:
    """Write resistances between some nodes, with conductances c, to their places in ``out``."""
    n = len(c)
    if n <= 2:
        with np.errstate(divide="ignore"):
            out[number[:1], number[1:]] = out[number[1:], number[:1]] = 1 / c[:1, 1:].ravel()
        return
    quarter = 4 * np.arange(n) // n
    for first in range(4):
        for second in range(first + 1, 4):
            kept = (quarter == first) | (quarter == second)
            order = np.concatenate([np.nonzero(~kept)[0], np.nonzero(kept)[0]])
            m, gone = c[np.ix_(order, order)], int((~kept).sum())
            for k in range(gone):
                own = m[k, k + 1 :]
                pivot = own.sum()
                if pivot > 0:
                    m[k + 1 :, k + 1 :] += np.outer(own / pivot, own)
                    np.fill_diagonal(m[k + 1 :, k + 1 :], 0.0)
            _between(m[gone:, gone:], number[order[gone:]], out)
