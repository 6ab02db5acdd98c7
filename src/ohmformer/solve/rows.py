"""A large graph by rows: the neighbours of every node side by side, made in C."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ohmformer import native
from ohmformer.graph import Graph
from ohmformer.graph.memory import recall


@dataclass(frozen=True, eq=False)
class Rows:
    """Neighbours and conductances by rows (CSR); parallel edges are separate entries."""

    start: Int[Tensor, " nodes_and_one"]
    """The start of every node's neighbours."""
    column: Int[Tensor, " entries"]
    value: Float[Tensor, " entries"]
    degree: Float[Tensor, " nodes"]
    """The sum of every row."""

    @classmethod
    def of(
        cls,
        graph: Graph,
        numbers: Float[Tensor, " edges"] | None = None,
        place: Int[Tensor, " nodes"] | None = None,
        without: Bool[Tensor, " nodes"] | None = None,
    ) -> Rows:
        """Arrange a graph or batch by rows; node i is row ``place[i]``, and ``numbers`` replace the conductances if given.

        Edges at nodes in the mask ``without`` are left out.
        """
        tail, head, conductance = edges_of(graph)
        if without is not None:
            tail, head, conductance = (x[~(without[tail] | without[head])] for x in (tail, head, conductance))
        nodes, edges = graph.num_nodes, len(tail)
        start, column = torch.empty(nodes + 1, dtype=torch.int32), torch.empty(2 * edges, dtype=torch.int32)
        value, degree = torch.empty(2 * edges, dtype=torch.float64), torch.empty(nodes, dtype=torch.float64)
        given = conductance if numbers is None else numbers
        native.call("ohm_rows", nodes, edges, tail, head, given, place, start, column, value, degree)
        return cls(start, column, value, degree)


def rows_of(graph: Graph) -> Rows:
    """Arrange the conductances of a graph by rows; kept for the next question about the same graph."""
    return recall(graph, "rows", lambda: Rows.of(graph))


def edges_of(graph: Graph) -> tuple[Int[Tensor, " edges"], Int[Tensor, " edges"], Float[Tensor, " edges"]]:
    """Return tails, heads and conductances on the CPU, without gradient."""
    tail, head = graph.edge_index.cpu()
    return tail.contiguous(), head.contiguous(), graph.resistance.detach().cpu().double().reciprocal()
