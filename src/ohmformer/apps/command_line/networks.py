"""Tasks of ``ohmformer solve`` about whole networks: fixed potentials, currents, centrality, smaller graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import ohmformer as ohm
from ohmformer.apps.command_line.questions import Question, Solved, Task, certain, edges_of, labels_of, show_progress
from ohmformer.solve.diagonal import closeness_of

if TYPE_CHECKING:
    import numpy as np

    from ohmformer.graph.edge_list import NamedGraph
    from ohmformer.solve import GraphAnswer


def _harmonic(named: NamedGraph, ask: Question) -> Solved:
    assert ask.fixed is not None
    values, names = ask.fixed
    with show_progress("layers") as progress:
        answer = ohm.harmonic(named, values, partial=ask.partial, progress=progress, **certain(ask))
    columns = {name: answer.value[:, i].numpy() for i, name in enumerate(names)}
    return Solved(answer, {"node": labels_of(named), **columns})


def _currents(named: NamedGraph, ask: Question) -> Solved:
    assert ask.pairs is not None
    sources, targets = zip(*ask.pairs, strict=True)
    with show_progress("layers") as progress:
        answer = ohm.current_flow(named, sources, targets, progress=progress, **certain(ask))
    labels, found = labels_of(named), [[named.number(node) for node in ends] for ends in (sources, targets)]
    pairs = {"u": labels[found[0]], "v": labels[found[1]], "effective_resistance": answer.resistance.numpy()}
    beside = {"nodes": {"node": labels, "current": answer.nodes.numpy()}, "pairs": pairs}
    return Solved(answer, {**edges_of(named), "current": answer.edges.numpy()}, beside)


def _sparsify(named: NamedGraph, ask: Question) -> Solved:
    assert ask.eps is not None
    with show_progress("linear systems") as progress:
        answer = ohm.sparsify(named, ask.eps, seed=ask.seed, progress=progress)
    note = f"{answer.graph.num_edges} of {named.graph.num_edges} edges stay"
    return Solved(answer, _edge_list(answer, labels_of(named)), notes=(note,))


def _reduce(named: NamedGraph, ask: Question) -> Solved:
    assert ask.keep is not None
    answer = ohm.kron_reduce(named, ask.keep)
    alone = len(ask.keep) - len(answer.graph.edge_index.unique())
    notes = (f"{alone} kept nodes have no edge and are in no line of the table",) if alone else ()
    return Solved(answer, _edge_list(answer, labels_of(named)[answer.kept.numpy()]), notes=notes)


def _closeness(named: NamedGraph, ask: Question) -> Solved:
    with show_progress("projections" if ask.eps else "layers") as progress:
        answer = ohm.pinv_diagonal(named.graph, eps=ask.eps, progress=progress, **certain(ask))
    found = {"closeness": closeness_of(named.graph, answer.value).numpy(), "diagonal": answer.value.numpy()}
    return Solved(answer, {"node": labels_of(named), **found})


def _spanning_trees(named: NamedGraph, ask: Question) -> Solved:
    with show_progress("projections" if ask.eps else "layers") as progress:
        answer = ohm.spanning_tree_marginals(named.graph, eps=ask.eps, progress=progress, **certain(ask))
    return Solved(answer, {**edges_of(named), "probability": answer.value.numpy()})


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
}
