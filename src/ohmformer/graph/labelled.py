"""Graphs as people have them: this library's, networkx's, PyG's, SciPy's or a list of edges, with node labels."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from ohmformer.graph.graph import Graph
from ohmformer.graph.layout import as_numbers
from ohmformer.graph.memory import derived, seen_before

ENTRIES = "entries"
"""The value of ``resistance=`` or ``conductance=`` for a matrix, whose entries are the weights."""
FORMS = "a Graph, a networkx graph, a PyG Data or Batch, a SciPy sparse matrix or a list of edges"


@dataclass(frozen=True, eq=False)
class LabelledGraph:
    """A graph with node labels; ``labels`` is None if nodes are numbered 0, 1, 2, ..."""

    graph: Graph
    labels: Sequence[Hashable] | None = None

    @cached_property
    def _numbers(self) -> dict[Hashable, int]:
        return {label: i for i, label in enumerate(self.labels or ())}

    def number(self, label: Hashable) -> int:
        """Return the number of the node with this label, or raise a ValueError."""
        if self.labels is None:
            if isinstance(label, (int, np.integer)) and not isinstance(label, bool) and 0 <= label < self.graph.num_nodes:
                return int(label)
            raise ValueError(f"expected node numbers in 0..{self.graph.num_nodes - 1}, got {label!r}")
        try:
            return self._numbers[label]
        except (KeyError, TypeError):
            first = ", ".join(map(str, self.labels[:5]))
            raise ValueError(f"expected a node of the graph, got {label!r}; the first are {first}") from None

    def name(self, number: int) -> str:
        """Return the name of a node for messages: ``node 3``, or its label."""
        return f"node {number if self.labels is None else self.labels[number]!r}"

    def nodes(self, chosen: Any) -> Int[Tensor, " chosen"]:
        """Return node numbers for a tensor or array of numbers, a mask, or a list of labels."""
        if not isinstance(chosen, (Tensor, np.ndarray)):
            if isinstance(chosen, (str, bytes)) or not isinstance(chosen, Iterable):
                raise ValueError(f"expected a list of nodes, got {chosen!r}")
            return torch.tensor([self.number(label) for label in chosen], dtype=torch.long, device=self.graph.device)
        found, count = torch.as_tensor(chosen), self.graph.num_nodes
        if found.dtype == torch.bool and tuple(found.shape) == (count,):
            return found.nonzero()[:, 0].to(self.graph.device)
        if found.ndim != 1 or found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
            raise ValueError(f"expected node numbers, shape (nodes,), got {found.dtype} of shape {tuple(found.shape)}")
        if found.numel():
            low, high = (int(x) for x in torch.aminmax(found))
            if low < 0 or high >= count:
                raise ValueError(f"expected node numbers in 0..{count - 1}, got {low if low < 0 else high}")
        return found.to(self.graph.device, torch.long)

    def with_signals(self, values: Any) -> tuple[Graph, Tensor]:
        """Return the graph and values on its nodes, with the graph's dtype widened if necessary, so that neither is rounded.

        A mapping gives values for some labels; all other nodes get zero.
        """
        if isinstance(values, Mapping):
            x = torch.zeros(self.graph.num_nodes, dtype=torch.float64)
            for label, value in values.items():
                x[self.number(label)] = float(value)
            return self.graph, x
        x = as_numbers(values)
        typed = isinstance(values, (Tensor, np.ndarray)) and x.is_floating_point()
        wide = torch.promote_types(x.dtype, self.graph.dtype) if typed else self.graph.dtype
        if wide == self.graph.dtype:
            return self.graph, x
        return derived(self.graph, wide, lambda: self.graph.to(dtype=wide)), x

    def pairs(self, pairs: Any) -> Int[Tensor, "pairs 2"]:
        """Return node numbers for a tensor, an array or a list of pairs of labels."""
        if isinstance(pairs, (Tensor, np.ndarray)):
            found = torch.as_tensor(pairs)
        else:
            found = torch.tensor([self._pair(pair) for pair in pairs], dtype=torch.long).reshape(-1, 2)
        if found.ndim != 2 or found.shape[1] != 2 or found.is_floating_point() or found.dtype == torch.bool:
            raise ValueError(
                f"expected pairs of node numbers, shape (pairs, 2), got {found.dtype} of shape {tuple(found.shape)}"
            )
        if found.numel():
            low, high = (int(x) for x in torch.aminmax(found))
            if low < 0 or high >= self.graph.num_nodes:
                raise ValueError(f"expected node numbers in 0..{self.graph.num_nodes - 1}, got {low}..{high}")
        return found.to(self.graph.device, torch.long)

    def _pair(self, pair: Any) -> tuple[int, int]:
        if isinstance(pair, (str, bytes)) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise ValueError(f"expected pairs of nodes, got {pair!r}")
        return self.number(pair[0]), self.number(pair[1])


@dataclass(frozen=True, eq=False)
class NamedGraph(LabelledGraph):
    """A graph read from a file, in which every node has a name, with remarks on how it was read."""

    labels: Sequence[str] = ()
    notes: tuple[str, ...] = ()


def as_graph(graph: Any, *, resistance: Any = None, conductance: Any = None, signed: bool = False) -> LabelledGraph:
    """Convert a graph in any supported form to a labelled graph; negative resistances are rejected unless ``signed``.

    Weights are given by keyword and never guessed: the name of an edge attribute for networkx and PyG, ``"entries"`` for a
    matrix, one number per edge for a list of edges. A :class:`Graph` already has resistances.

    >>> as_graph([("home", "shop"), ("shop", "park")], resistance=[1.0, 2.0]).labels
    ['home', 'shop', 'park']
    """
    weights = {"resistance": resistance, "conductance": conductance}
    if isinstance(graph, (Graph, LabelledGraph)):
        if resistance is not None or conductance is not None:
            raise ValueError("expected no resistance= or conductance= beside a Graph, which has its own")
        asked = graph if isinstance(graph, LabelledGraph) else LabelledGraph(graph)
        if not signed:
            asked.graph.check_positive()
        return asked
    found = _read(graph, weights)
    return replace(found, graph=seen_before(found.graph))


def _read(graph: Any, weights: dict[str, Any]) -> LabelledGraph:
    nx, scipy_sparse = sys.modules.get("networkx"), sys.modules.get("scipy.sparse")
    if nx is not None and isinstance(graph, nx.Graph):
        labels = list(graph.nodes)
        return LabelledGraph(Graph.from_networkx(graph, **weights), None if labels == list(range(len(labels))) else labels)
    if hasattr(graph, "edge_index"):
        return LabelledGraph(Graph.from_pyg(graph, **weights))
    if scipy_sparse is not None and scipy_sparse.issparse(graph):
        return LabelledGraph(Graph.from_scipy(graph, entries=_entries(graph, **weights)))
    if isinstance(graph, (Tensor, np.ndarray)):
        return LabelledGraph(Graph.from_edges(graph, **weights))
    if isinstance(graph, Iterable) and not isinstance(graph, (str, bytes, Mapping)):
        return _from_list(list(graph), weights)
    raise ValueError(f"expected {FORMS}, got {type(graph).__name__}")


def _entries(matrix: Any, resistance: Any, conductance: Any) -> str:
    """Return what the values of a matrix are, from the keyword whose value is ``"entries"``."""
    given = {name: value for name, value in (("resistance", resistance), ("conductance", conductance)) if value is not None}
    if not given:
        summed = (matrix * 1).tocsr()  # a copy, in which booleans are numbers
        summed.sum_duplicates()
        if not np.all(summed.data == 1):
            both = 'conductance="entries" or resistance="entries"'
            raise ValueError(f"expected {both} for a matrix whose values are not all one, got neither")
        return "unit"
    name, value = next(iter(given.items()))
    if len(given) > 1 or value != ENTRIES:
        raise ValueError(f'expected resistance="entries" or conductance="entries" for a matrix, got {given}')
    return name


def _from_list(edges: list[Any], weights: dict[str, Any]) -> LabelledGraph:
    """Convert a list of pairs of numbers or labels; labels are numbered in order of first appearance."""
    for edge in edges:
        if isinstance(edge, (str, bytes)) or not isinstance(edge, (Sequence, np.ndarray, Tensor)) or len(edge) != 2:
            raise ValueError(f"expected {FORMS}; an edge is a pair of nodes, got {edge!r}")
    if all(isinstance(node, (int, np.integer, Tensor)) and not isinstance(node, bool) for edge in edges for node in edge):
        return LabelledGraph(Graph.from_edges([[int(u), int(v)] for u, v in edges], **weights))
    number: dict[Hashable, int] = {}
    try:
        pairs = [[number.setdefault(node, len(number)) for node in edge] for edge in edges]
    except TypeError:
        raise ValueError("expected nodes that can be compared and hashed, such as numbers, strings or tuples") from None
    return LabelledGraph(Graph.from_edges(pairs, num_nodes=len(number), **weights), list(number))
