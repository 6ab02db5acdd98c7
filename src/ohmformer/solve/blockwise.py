"""Questions with an n x n matrix per graph, asked of graphs of like size together: nothing is padded to the widest graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor

from ohmformer.graph import Graph
from ohmformer.graph.blocks import like_sized
from ohmformer.graph.memory import some_graphs
from ohmformer.graph.ragged import Matrices
from ohmformer.solve.answer import A, join

TOGETHER = 2**22
"""Maximum number of matrix entries of graphs processed together: 32 MB in float64."""

Which = Int[Tensor, " graphs"] | None


def like_sized_parts(graph: Graph) -> list[tuple[Which, Graph]]:
    """Split a batch into batches of graphs of similar size, each with the numbers of its graphs; None for all."""
    if graph.num_graphs <= 1:
        return [(None, graph)]
    groups = [
        torch.as_tensor(which, device=graph.device) for _, which in like_sized(graph.graph_sizes.cpu().numpy(), TOGETHER)
    ]
    return [(None, graph)] if len(groups) == 1 else [(which, some_graphs(graph, which)) for which in groups]


def rows_of(graph: Graph, which: Which) -> Int[Tensor, " rows"] | slice:
    """Return the nodes of some graphs of a batch."""
    return slice(None) if which is None else graph.nodes.rows(which)


def matrices(graph: Graph, ask: Callable[[Graph], A]) -> A:
    """Compute one matrix per graph: ``ask`` returns padded matrices of graphs of similar size, which become ragged.

    For a single unbatched graph the value is its matrix.
    """
    if not graph.batched:
        return ask(graph)
    answers, parts = [], []
    for which, part in like_sized_parts(graph):
        answers.append(ask(part))
        chosen = torch.arange(graph.num_graphs, device=graph.device) if which is None else which
        parts.append((chosen, Matrices.unpad(answers[-1].value, part.graph_sizes)))
    return join(answers, Matrices.join(parts, graph.num_graphs))


def rows(graph: Graph, ask: Callable[[Graph, Tensor], A], signals: Tensor) -> A:
    """Compute one row per node: ``ask`` answers for graphs of similar size and the signals on their nodes."""
    answers, value = [], None
    for which, part in like_sized_parts(graph):
        mine = rows_of(graph, which)
        answers.append(ask(part, signals[mine]))
        if which is None:
            value = answers[-1].value
        else:
            empty = answers[-1].value.new_zeros(graph.num_nodes, answers[-1].value.shape[1]) if value is None else value
            value = empty.index_copy(0, graph.nodes.rows(which), answers[-1].value)
    return join(answers, value)
