"""Tasks of ``ohmformer solve`` about whole networks: fixed potentials, currents, centrality, smaller graphs, power grids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ohmformer as ohm
from ohmformer.apps.command_line.answers import Solved, certain, edges_of, labels_of
from ohmformer.apps.command_line.progress import show_progress
from ohmformer.apps.command_line.questions import Question, Task
from ohmformer.graph.edge_list import NamedGraph
from ohmformer.graph.power_grid import PowerGrid
from ohmformer.solve import Answer, GraphAnswer, power
from ohmformer.solve.diagonal import closeness_of


def _harmonic(named: NamedGraph, ask: Question) -> Solved:
    assert ask.fixed is not None
    values, names = ask.fixed
    with show_progress("layers", ask.predicted) as progress:
        answer = ohm.harmonic(named, values, partial=ask.partial, progress=progress, **certain(ask))
    columns = {name: answer.value[:, i].numpy() for i, name in enumerate(names)}
    scale = {name: float(np.ptp(x[np.isfinite(x)])) if np.isfinite(x).any() else 0.0 for name, x in columns.items()}
    return Solved(answer, {"node": labels_of(named), **columns}, scale=scale)


def _currents(named: NamedGraph, ask: Question) -> Solved:
    assert ask.pairs is not None
    sources, targets = zip(*ask.pairs, strict=True)
    with show_progress("layers", ask.predicted) as progress:
        answer = ohm.current_flow(named, sources, targets, progress=progress, **certain(ask))
    labels, found = labels_of(named), [[named.number(node) for node in ends] for ends in (sources, targets)]
    pairs = {"u": labels[found[0]], "v": labels[found[1]], "effective_resistance": answer.resistance.numpy()}
    beside = {"nodes": {"node": labels, "current": answer.nodes.numpy()}, "pairs": pairs}
    return _of_largest(answer, {**edges_of(named), "current": answer.edges.numpy()}, beside)


def _sparsify(named: NamedGraph, ask: Question) -> Solved:
    assert ask.eps is not None
    with show_progress("linear systems", ask.predicted) as progress:
        answer = ohm.sparsify(named, ask.eps, seed=ask.seed, progress=progress)
    note = f"{answer.graph.num_edges} of {named.graph.num_edges} edges stay"
    return Solved(answer, _edge_list(answer, labels_of(named)), notes=(note,), scale={"resistance": 0.0})


def _reduce(named: NamedGraph, ask: Question) -> Solved:
    assert ask.keep is not None
    answer = ohm.kron_reduce(named, ask.keep)
    alone = len(ask.keep) - len(answer.graph.edge_index.unique())
    notes = (f"{alone} kept nodes have no edge and are in no line of the table",) if alone else ()
    return Solved(answer, _edge_list(answer, labels_of(named)[answer.kept.numpy()]), notes=notes)


def _closeness(named: NamedGraph, ask: Question) -> Solved:
    with show_progress("projections" if ask.eps else "layers", ask.predicted) as progress:
        answer = ohm.pinv_diagonal(named.graph, eps=ask.eps, progress=progress, **certain(ask))
    found = {"closeness": closeness_of(named.graph, answer.value).numpy(), "diagonal": answer.value.numpy()}
    return Solved(answer, {"node": labels_of(named), **found})


def _spanning_trees(named: NamedGraph, ask: Question) -> Solved:
    with show_progress("projections" if ask.eps else "layers", ask.predicted) as progress:
        answer = ohm.spanning_tree_marginals(named.graph, eps=ask.eps, progress=progress, **certain(ask))
    return Solved(answer, {**edges_of(named), "probability": answer.value.numpy()})


def _power(named: NamedGraph, ask: Question) -> Solved:
    if not isinstance(named, PowerGrid):
        raise ValueError(f"expected a MATPOWER case (.m) for --task {ask.task}, got another graph")
    options: dict[str, Any] = certain(ask) | ({"method": "direct"} if ask.method == "auto" else {})
    ends = {name: named.case.column("branch", column).astype(int) for name, column in (("from", "F_BUS"), ("to", "T_BUS"))}
    table = {"branch": np.arange(len(named.case.branch)) + 1, **ends}
    if ask.task is Task.ptdf:
        answer = power.ptdf(named, transfers=[(float(ask.source or ""), float(ask.sink or ""))], **options)
        return _of_largest(answer, {**table, "ptdf": answer.value[:, 0].numpy()})
    flow = power.dc_flow(named, **options)
    if ask.task is Task.power_flow:
        return _of_largest(flow, {**table, "megawatts": flow.value.numpy()})
    row = (ask.outage or 0) - 1
    if not 0 <= row < len(table["branch"]):
        raise ValueError(f"expected --outage to be a row of mpc.branch, 1 to {len(table['branch'])}, got {ask.outage}")
    answer = power.lodf(named, [row], **options)
    if bool(answer.splits[0]):
        raise ValueError(f"expected an outage that leaves the grid in one piece, but {answer.note.rpartition('; ')[2]}")
    factor, before = answer.value[:, 0].numpy(), flow.value.numpy()
    return _of_largest(answer, {**table, "lodf": factor, "megawatts": before, "after": before + factor * before[row]})


def _of_largest(
    answer: Answer, table: dict[str, np.ndarray], beside: dict[str, dict[str, np.ndarray]] | None = None
) -> Solved:
    """Return a result whose columns have an uncertainty relative to their largest entry."""
    scale = {name: float(np.nanmax(np.abs(x), initial=0.0)) for name, x in table.items() if x.dtype.kind == "f"}
    return Solved(answer, table, beside or {}, scale=scale)


def _edge_list(answer: GraphAnswer, labels: np.ndarray) -> dict[str, np.ndarray]:
    u, v = answer.graph.edge_index.numpy()
    return {"u": labels[u], "v": labels[v], "resistance": answer.graph.resistance.numpy()}


ASK: dict[Task, Callable[[NamedGraph, Question], Solved]] = {
    Task.harmonic: _harmonic,
    Task.closeness: _closeness,
    Task.spanning_trees: _spanning_trees,
    Task.currents: _currents,
    Task.sparsify: _sparsify,
    Task.reduce: _reduce,
    Task.power_flow: _power,
    Task.ptdf: _power,
    Task.lodf: _power,
}
