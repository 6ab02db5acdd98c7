"""What ``ohmformer solve`` can ask: tasks, the flags each of them uses, and the tables that hold the answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ohmformer.apps.command_line.progress import on_terminal, show_progress

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from ohmformer.graph import Graph
    from ohmformer.graph.edge_list import NamedGraph
    from ohmformer.solve.answer import Answer


class Task(StrEnum):
    """The tasks of ``ohmformer solve``."""

    resistance = "resistance"
    """Effective resistance of every edge, or of given pairs of nodes."""
    all_pairs = "all-pairs"
    """Effective resistance of every pair of nodes."""
    kirchhoff = "kirchhoff"
    """The sum of the effective resistances of all pairs."""
    closeness = "closeness"
    """The current-flow closeness of every node, and its entry of the diagonal of L^+."""
    spanning_trees = "spanning-trees"
    """The probability that a random spanning tree contains each edge."""
    embedding = "embedding"
    """A point per node; squared distances are effective resistances."""
    flow = "flow"
    """The unit flow from one node to another, on the edges."""
    potentials = "potentials"
    """The potentials of that flow, on the nodes."""
    heat = "heat"
    """The distribution of a unit of heat from one node after some time."""
    eigenvectors = "eigenvectors"
    """The smallest nonzero eigenvalues and their eigenvectors."""
    power_flow = "power-flow"
    """The DC power flow of a MATPOWER case, on its branches."""
    ptdf = "ptdf"
    """The share of a megawatt from one bus to another that every branch carries."""
    lodf = "lodf"
    """The share of a branch's flow that every other branch takes over when it is out, and the flow then."""
    harmonic = "harmonic"
    """Potentials given on some nodes and harmonic on all others."""
    currents = "currents"
    """The sum of the currents of many pairs of nodes, on edges and nodes, and the resistances of the pairs."""
    sparsify = "sparsify"
    """A graph with fewer edges and nearly the same energies."""
    reduce = "reduce"
    """The Kron reduction of the graph to some nodes."""


USES: dict[Task, tuple[str, ...]] = {
    Task.resistance: ("--tol-of", "--eps", "--pair", "--pairs", "--explain"),
    Task.all_pairs: (
        "--tol-of",
        "--explain",
    ),
    Task.kirchhoff: ("--eps", "--explain"),
    Task.closeness: ("--eps", "--explain"),
    Task.spanning_trees: ("--eps", "--explain"),
    Task.embedding: ("--k", "--explain"),
    Task.flow: ("--tol-of", "--from", "--to", "--plot", "--explain"),
    Task.potentials: ("--tol-of", "--from", "--to", "--plot", "--explain"),
    Task.heat: ("--from", "--s", "--laplacian"),
    Task.eigenvectors: ("--k", "--laplacian"),
    Task.power_flow: (),
    Task.ptdf: ("--from", "--to"),
    Task.lodf: ("--outage",),
    Task.harmonic: ("--fixed", "--partial"),
    Task.currents: ("--pair", "--pairs", "--explain"),
    Task.sparsify: ("--eps", "--seed"),
    Task.reduce: ("--keep",),
}
"""The flags that affect each task, besides those that every task uses."""
NEEDS: dict[Task, tuple[str, ...]] = {
    Task.flow: ("--from NODE", "--to NODE"),
    Task.potentials: ("--from NODE", "--to NODE"),
    Task.heat: ("--from NODE",),
    Task.ptdf: ("--from NODE", "--to NODE"),
    Task.lodf: ("--outage ROW",),
    Task.harmonic: ("--fixed FILE",),
    Task.currents: ("--pair A B or --pairs FILE",),
    Task.sparsify: ("--eps EPS",),
    Task.reduce: ("--keep NODE or --keep FILE",),
}
"""The required flags of each task."""
UNUSED: dict[Task, tuple[str, ...]] = dict.fromkeys((Task.sparsify, Task.reduce), ("--tol", "--method"))
"""Flags that all other tasks use."""


@dataclass(frozen=True)
class Question:
    """A task and all its options."""

    task: Task
    source: str | None = None
    sink: str | None = None
    pairs: list[tuple[str, str]] | None = None
    s: float = 0.5
    k: int = 6
    eps: float | None = None
    tol: float | None = None
    method: str = "auto"
    outage: int | None = None
    seed: int = 0
    keep: list[str] | None = None
    fixed: tuple[dict[str, list[float]], list[str]] | None = None
    """Node values and the names of their columns."""
    partial: bool = False
    tol_of: str | None = None
    laplacian: str = "combinatorial"
    predicted: float | None = None
    """Predicted seconds, if needed and known."""


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
        import numpy as np

        known = self.answer.residual if self.answer.error is None else self.answer.error
        error = min(max(known, 1e-14), 0.5) if known == known else 0.5  # at least the size of rounding errors
        numbers = {name: values for name, values in table.items() if values.dtype.kind == "f"}
        return {name: error * np.broadcast_to(self.scale.get(name, abs(x)), x.shape) for name, x in numbers.items()}


def check_flags(task: Task, given: Mapping[str, Any]) -> None:
    """Raise a ValueError for a given flag that would have no effect or a number out of range."""
    for flag, value in given.items():
        if value not in (None, False) and flag not in USES[task] and any(flag in used for used in USES.values()):
            tasks = ", ".join(name for name, used in USES.items() if flag in used)
            raise ValueError(f"expected {flag} with --task {tasks} only, got it with --task {task}")
        if value is not None and flag in UNUSED.get(task, ()):
            raise ValueError(f"expected no {flag} with --task {task}, it would change nothing")
    for flag, low, high in (("--eps", 0, 1), ("--tol", 0, 1), ("--s", 0, float("inf"))):
        if given.get(flag) is not None and not low < given[flag] < high:
            bound = "> 0" if high > 1 else "in (0, 1)"
            raise ValueError(f"expected {flag} {bound}, got {given[flag]}")
    if given.get("--k") is not None and given["--k"] < 1:
        raise ValueError(f"expected --k >= 1, got {given['--k']}")
    for flags in NEEDS.get(task, ()):
        if all(given.get(flag.split()[0]) is None for flag in flags.split(" or ")):
            raise ValueError(f"expected {flags} for --task {task}, got none")


def explain(graph: Graph, ask: Question) -> str:
    """Describe how a question would be answered, without solving it."""
    from ohmformer.solve.factor import look
    from ohmformer.solve.plan import plan
    from ohmformer.solve.pseudoinverse import Request
    from ohmformer.solve.resistance import is_selected

    edges = ask.task in (Task.resistance, Task.spanning_trees) and ask.pairs is None
    index = ask.task is Task.closeness or (ask.task is Task.kirchhoff and ask.eps is None)
    if (edges or index) and is_selected(graph, ask.eps if edges else None, Request(ask.tol or 1e-6, ask.method)):
        pattern = look(graph)
        return f"selected inversion of a factor of {0 if pattern is None else len(pattern.row)} entries, exact"
    tol = ask.tol or (1e-6 if ask.eps is None else 1e-3 * ask.eps)
    return str(plan(graph, demands=_demands(graph, ask), tol=tol, method=ask.method))


def _demands(graph: Graph, ask: Question) -> int:
    """Return the number of linear systems needed for a question."""
    from ohmformer.solve.projections import projections

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


def advise(text: str, ask: Question, nodes: int) -> str:
    """Rephrase advice in an error message of the library in terms of flags."""
    limit = re.search(r"(?:more than|at most) (\d+) nodes", text)
    if limit and ask.task is Task.all_pairs:
        return (
            f"expected at most {limit[1]} nodes for --task all-pairs, got {nodes}; "
            "--pair A B or --pairs FILE answers single pairs exactly"
        )
    if ask.task is Task.currents and "pairs of sources" in text:
        return f"{text.partition(', each with')[0]}; give fewer pairs with --pair A B or --pairs FILE"
    text = text.replace("expected a method among", "expected --method among")
    return text.replace("pass partial=True for NaN there", "--partial leaves it out")


def predict(graph: Graph, ask: Question) -> float | None:
    """Predict from the plan how many seconds a question takes; None if unknown or not displayed."""
    from ohmformer.solve.plan import plan

    if "--explain" not in USES[ask.task] or graph.num_nodes < 1000 or not on_terminal():
        return None
    tol = ask.tol or (1e-6 if ask.eps is None else 1e-3 * ask.eps)
    return sum(part.predicted for part in plan(graph, demands=_demands(graph, ask), tol=tol, method=ask.method).parts)


def _resistance(named: NamedGraph, ask: Question) -> Solved:
    import torch

    import ohmformer as ohm

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
    import numpy as np

    import ohmformer as ohm

    with show_progress("layers", ask.predicted) as progress:
        answer = ohm.effective_resistance(named.graph, "all", progress=progress, **certain(ask))
    labels, (u, v) = labels_of(named), np.triu_indices(named.graph.num_nodes, 1)
    return Solved(answer, {"u": labels[u], "v": labels[v], "effective_resistance": answer.value.numpy()[u, v]})


def _kirchhoff(named: NamedGraph, ask: Question) -> Solved:
    import ohmformer as ohm

    with show_progress("random signs" if ask.eps else "layers", ask.predicted) as progress:
        answer = ohm.kirchhoff_index(named.graph, eps=ask.eps, progress=progress, **certain(ask))
    return Solved(answer, {"kirchhoff_index": answer.value.reshape(1).numpy()})


def _embedding(named: NamedGraph, ask: Question) -> Solved:
    import ohmformer as ohm

    with show_progress("layers", ask.predicted) as progress:
        answer = ohm.resistive_embedding(named.graph, ask.k, progress=progress, **certain(ask))
    columns = {f"x{i + 1}": answer.value[:, i].numpy() for i in range(ask.k)}
    error = answer.error or 1.0  # of squared distances; coordinates are as accurate as the potentials they are computed from
    scale = {name: answer.residual / error * float(abs(x).max()) for name, x in columns.items()}
    off = f"a squared distance is a resistance on average, off by up to {100 * error:.0f} %"
    notes = (f"{ask.k} random coordinates: {off}; --k asks for more",) if error > 0.01 else ()
    return Solved(answer, {"node": labels_of(named), **columns}, notes=notes, scale=scale)


def _heat(named: NamedGraph, ask: Question) -> Solved:
    import torch

    import ohmformer as ohm

    signal = torch.zeros(named.graph.num_nodes, 1, dtype=torch.float64)
    signal[named.number(ask.source or "")] = 1.0
    with show_progress("heat", ask.predicted):
        answer = ohm.heat_kernel(named.graph, ask.s, signal, laplacian=ask.laplacian, **certain(ask))
    return Solved(answer, {"node": labels_of(named), "heat": answer.value[:, 0].numpy()}, scale={"heat": 1.0})


def _eigenvectors(named: NamedGraph, ask: Question) -> Solved:
    import numpy as np

    import ohmformer as ohm

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
    import torch

    import ohmformer as ohm

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
    import numpy as np
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import dijkstra

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
    import numpy as np

    return np.array(named.labels, dtype=str)


def edges_of(named: NamedGraph) -> dict[str, np.ndarray]:
    """Return the labels of the ends of all edges, as columns."""
    labels, (u, v) = labels_of(named), named.graph.edge_index.numpy()
    return {"u": labels[u], "v": labels[v]}
