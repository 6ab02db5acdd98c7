"""Answers of ``ohmformer solve``, as tables: ask the library, and name the columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import dijkstra
from torch import Tensor

import ohmformer as ohm
from ohmformer.apps.command_line.progress import on_terminal, show_progress
from ohmformer.apps.command_line.questions import USES, Question, Task
from ohmformer.graph import Graph
from ohmformer.graph.edge_list import NamedGraph
from ohmformer.solve.answer import Answer
from ohmformer.solve.factor import look
from ohmformer.solve.plan import plan
from ohmformer.solve.projections import projections
from ohmformer.solve.pseudoinverse import Request
from ohmformer.solve.resistance import is_selected


@dataclass(frozen=True)
class Solved:
    """An answer and its tables, stored as columns."""

    answer: Answer
    table: dict[str, np.ndarray]
    beside: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    """Further tables by name."""
    notes: tuple[str, ...] = ()
    potential: Tensor | None = field(default=None, repr=False)
    injected: Tensor | None = field(default=None, repr=False)
    scale: Mapping[str, np.ndarray | float] = field(default_factory=dict)
    """The uncertainty of each column at an error of one: 0 for given values, by default the absolute values."""

    def uncertain(self, table: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Bound the errors in every column by the answer's error, or by its residual if there is none."""
        known = self.answer.residual if self.answer.error is None else self.answer.error
        error = min(max(known, 1e-14), 0.5) if known == known else 0.5  # at least the size of rounding errors
        numbers = {name: values for name, values in table.items() if values.dtype.kind == "f"}
        return {name: error * np.broadcast_to(self.scale.get(name, abs(x)), x.shape) for name, x in numbers.items()}


def explain(graph: Graph, ask: Question) -> str:
    """Describe how a question would be answered, without solving it."""
    edges = ask.task in (Task.resistance, Task.spanning_trees) and ask.pairs is None
    index = ask.task is Task.closeness or (ask.task is Task.kirchhoff and ask.eps is None)
    if (edges or index) and is_selected(graph, ask.eps if edges else None, Request(ask.tol or 1e-6, ask.method)):
        pattern = look(graph)
        return f"selected inversion of a factor of {0 if pattern is None else len(pattern.row)} entries, exact"
    tol = ask.tol or (1e-6 if ask.eps is None else 1e-3 * ask.eps)
    return str(plan(graph, demands=_demands(graph, ask), tol=tol, method=ask.method))


def _demands(graph: Graph, ask: Question) -> int:
    """Return the number of linear systems needed for a question."""
    if ask.task in (Task.flow, Task.potentials):
        return 1
    if ask.task is Task.embedding:
        return ask.k
    if ask.task is Task.currents:
        return min(len(ask.pairs or ()), len({node for pair in ask.pairs or () for node in pair}))
    if ask.task not in (Task.resistance, Task.spanning_trees, Task.closeness):
        return graph.num_nodes
    asked = graph.num_edges if ask.pairs is None else len(ask.pairs)
    return min(graph.num_nodes, asked if ask.eps is None else projections(ask.eps, asked))


def predict(graph: Graph, ask: Question) -> float | None:
    """Predict from the plan how many seconds a question takes; None if unknown or not displayed."""
    if "--explain" not in USES[ask.task] or graph.num_nodes < 1000 or not on_terminal():
        return None
    tol = ask.tol or (1e-6 if ask.eps is None else 1e-3 * ask.eps)
    return sum(part.predicted for part in plan(graph, demands=_demands(graph, ask), tol=tol, method=ask.method).parts)


def _resistance(named: NamedGraph, ask: Question) -> Solved:
    graph, labels = named.graph, labels_of(named)
    pairs: Any = "edges"
    if ask.pairs is not None:
        pairs = torch.tensor([[named.number(a), named.number(b)] for a, b in ask.pairs], dtype=torch.long)
    with show_progress("projections" if ask.eps else "layers", ask.predicted) as progress:
        answer = ohm.effective_resistance(graph, pairs, eps=ask.eps, progress=progress, **certain(ask))
    found = {"effective_resistance": answer.value.numpy()}
    if ask.pairs is None:
        table = {**edges_of(named), "resistance": graph.resistance.numpy(), **found}
        return Solved(answer, table, scale={"resistance": 0.0})
    return Solved(answer, {"u": labels[pairs[:, 0].numpy()], "v": labels[pairs[:, 1].numpy()], **found})


def _all_pairs(named: NamedGraph, ask: Question) -> Solved:
    with show_progress("layers", ask.predicted) as progress:
        answer = ohm.effective_resistance(named.graph, "all", progress=progress, **certain(ask))
    labels, (u, v) = labels_of(named), np.triu_indices(named.graph.num_nodes, 1)
    return Solved(answer, {"u": labels[u], "v": labels[v], "effective_resistance": answer.value.numpy()[u, v]})


def _kirchhoff(named: NamedGraph, ask: Question) -> Solved:
    with show_progress("random signs" if ask.eps else "layers", ask.predicted) as progress:
        answer = ohm.kirchhoff_index(named.graph, eps=ask.eps, progress=progress, **certain(ask))
    return Solved(answer, {"kirchhoff_index": answer.value.reshape(1).numpy()})


def _embedding(named: NamedGraph, ask: Question) -> Solved:
    with show_progress("layers", ask.predicted) as progress:
        answer = ohm.resistive_embedding(named.graph, ask.k, progress=progress, **certain(ask))
    columns = {f"x{i + 1}": answer.value[:, i].numpy() for i in range(ask.k)}
    error = answer.error or 1.0  # of squared distances; coordinates are as accurate as the potentials they are computed from
    scale = {name: answer.residual / error * float(abs(x).max()) for name, x in columns.items()}
    off = f"a squared distance is a resistance on average, off by up to {100 * error:.0f} %"
    notes = (f"{ask.k} random coordinates: {off}; --k asks for more",) if error > 0.01 else ()
    return Solved(answer, {"node": labels_of(named), **columns}, notes=notes, scale=scale)


def _heat(named: NamedGraph, ask: Question) -> Solved:
    signal = torch.zeros(named.graph.num_nodes, 1, dtype=torch.float64)
    signal[named.number(ask.source or "")] = 1.0
    with show_progress("heat", ask.predicted):
        answer = ohm.heat_kernel(named.graph, ask.s, signal, laplacian=ask.laplacian, **certain(ask))
    return Solved(answer, {"node": labels_of(named), "heat": answer.value[:, 0].numpy()}, scale={"heat": 1.0})


def _eigenvectors(named: NamedGraph, ask: Question) -> Solved:
    graph = named.graph
    most = int(graph.ranks[0])
    if not most:
        raise ValueError("expected a graph with an edge for --task eigenvectors, all eigenvalues of this one are zero")
    k = min(ask.k, most)
    with show_progress("eigenvectors", ask.predicted):
        answer = ohm.eigenvectors(graph, k, laplacian=ask.laplacian, **certain(ask))
    vectors = answer.value
    names = [f"v{i + 1}" for i in range(k)]
    notes = () if k == ask.k else (f"{k} eigenvectors instead of {ask.k}: the graph has {most} nonzero eigenvalues",)
    table = {"node": labels_of(named), **{name: vectors[:, i].numpy() for i, name in enumerate(names)}}
    values = {"eigenvector": np.array(names), "eigenvalue": answer.eigenvalues.numpy()}
    return Solved(answer, table, {"eigenvalues": values}, notes, scale=dict.fromkeys(names, 1.0))


def _flow(named: NamedGraph, ask: Question) -> Solved:
    graph = named.graph
    source, sink = named.number(ask.source or ""), named.number(ask.sink or "")
    if graph.components[source] != graph.components[sink]:
        raise ValueError(f"expected a way from {ask.source} to {ask.sink}, they are in different components")
    if source == sink:
        raise ValueError(f"expected two different nodes for --from and --to, got {ask.source} twice")
    demands = torch.zeros(graph.num_nodes, dtype=torch.float64)
    demands[source], demands[sink] = 1.0, -1.0
    with show_progress("layers", ask.predicted) as progress:
        answer = ohm.electric_flow(graph, demands, progress=progress, **certain(ask))
    potential, root = answer.potential[:, 0], float(answer.energy[0]) ** 0.5
    if ask.task is Task.potentials:
        table = {"node": labels_of(named), "potential": potential.numpy()}
        scale = {"potential": root * _farthest(graph, source)}
    else:
        table = {**edges_of(named), "flow": answer.flow[:, 0].numpy()}
        scale = {"flow": root * graph.resistance.numpy() ** -0.5}
    return Solved(answer, table, potential=potential, injected=demands, scale=scale)


def _farthest(graph: Graph, source: int) -> np.ndarray:
    """Return per node a bound on ``|x_v|`` over all mean-free x on the source's component with ``|x|_L = 1``; else zero.

    ``|x_u - x_v|`` is at most the square root of the resistance between u and v, which is at most the length of a path.
    """
    size = (graph.num_nodes, graph.num_nodes)
    lengths = coo_array((graph.resistance.numpy(), tuple(graph.edge_index.numpy())), shape=size).tocsr()
    root = np.sqrt(dijkstra(lengths, directed=False, indices=source))
    reached = np.isfinite(root)
    return np.where(reached, root + root[reached].mean(), 0.0)


ASK: dict[Task, Callable[[Any, Question], Solved]] = {
    Task.resistance: _resistance,
    Task.all_pairs: _all_pairs,
    Task.kirchhoff: _kirchhoff,
    Task.embedding: _embedding,
    Task.flow: _flow,
    Task.potentials: _flow,
    Task.heat: _heat,
    Task.eigenvectors: _eigenvectors,
}


def certain(ask: Question) -> dict[str, Any]:
    """Return the options common to all questions."""
    given = {"tol": ask.tol, "tol_of": ask.tol_of}
    return {"method": ask.method} | {name: value for name, value in given.items() if value is not None}


def labels_of(named: NamedGraph) -> np.ndarray:
    """Return the labels of all nodes."""
    return np.array(named.labels, dtype=str)


def edges_of(named: NamedGraph) -> dict[str, np.ndarray]:
    """Return the labels of the ends of all edges, as columns."""
    labels, (u, v) = labels_of(named), named.graph.edge_index.numpy()
    return {"u": labels[u], "v": labels[v]}
