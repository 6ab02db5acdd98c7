"""Many questions about one graph: what can be done before the first of them is done once, and edges can be edited."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import wraps
from time import perf_counter
from typing import Any, Concatenate, ParamSpec, TypeVar

from ohmformer.graph import Graph
from ohmformer.graph.labelled import LabelledGraph, as_graph
from ohmformer.graph.memory import bytes_kept
from ohmformer.solve import (
    currents,
    diagonal,
    dirichlet,
    edits,
    flow,
    functions,
    projections,
    reduction,
    resistance,
    sparsification,
    spectra,
)
from ohmformer.solve.answer import check_tolerance
from ohmformer.solve.engines.direct import inverse_of
from ohmformer.solve.engines.elimination import factored
from ohmformer.solve.plan import METHODS, Plan, make_plan

P = ParamSpec("P")
R = TypeVar("R")


def _asks(question: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Turn a function that asks a question into a method about the solver's graph."""

    @wraps(question)
    def method(self: Solver, *args: P.args, **options: P.kwargs) -> R:
        return question(self._asked, *args, **options)

    return method


class Solver:
    """Questions about one graph or batch; made by :func:`prepare`."""

    def __init__(self, asked: LabelledGraph, demands: int, tol: float, method: str) -> None:
        self._asked, self._options = asked, (demands, tol, method)
        begin = perf_counter()
        self.plan: Plan = make_plan(asked.graph, *self._options)
        """How this number of demands is solved for."""
        for part in self.plan.parts:
            if part.engine == "elimination":
                factored(part.of(asked.graph), in_c=part.native)
            elif part.engine == "direct":
                inverse_of(part.of(asked.graph))
        self.seconds = perf_counter() - begin
        """Seconds spent on the preparation."""

    @property
    def graph(self) -> Graph:
        """The graph or batch."""
        return self._asked.graph

    @property
    def labels(self) -> Sequence[Hashable] | None:
        """The node labels, if the graph came with labels."""
        return self._asked.labels

    def __repr__(self) -> str:
        engines = " and ".join(dict.fromkeys(part.engine for part in self.plan.parts))
        kept = sum(bytes_kept(part.of(self.graph)) for part in self.plan.parts)
        return f"Solver({self.graph!r}, {engines}, {kept / 1e6:.3g} MB kept, prepared in {self.seconds:.2g} s)"

    # ------------------------------------------------------------------------------------------------ questions

    potentials = _asks(flow.potentials)
    electric_flow = _asks(flow.electric_flow)
    effective_resistance = _asks(resistance.effective_resistance)
    spanning_tree_marginals = _asks(resistance.spanning_tree_marginals)
    pinv_diagonal = _asks(diagonal.pinv_diagonal)
    current_flow_closeness = _asks(diagonal.current_flow_closeness)
    kirchhoff_index = _asks(diagonal.kirchhoff_index)
    resistive_embedding = _asks(projections.resistive_embedding)
    heat_kernel = _asks(functions.heat_kernel)
    spectral_filter = _asks(functions.spectral_filter)
    eigenvectors = _asks(spectra.eigenvectors)
    harmonic = _asks(dirichlet.harmonic)
    current_flow = _asks(currents.current_flow)
    kron_reduce = _asks(reduction.kron_reduce)
    sparsify = _asks(sparsification.sparsify)

    # ------------------------------------------------------------------------------------------------ edits

    def edit(self, *, add: Iterable[Any] = (), remove: Iterable[Any] = (), reweight: Iterable[Any] = ()) -> Solver:
        """Return a solver for the graph with edges added, removed or reweighted; this solver is unchanged.

        If an exact or approximate factor is kept, the new solver reuses it until there are too many edits, then computes a
        new one. Its edges are the remaining ones, in their order, followed by the added ones.

        Args:
            add: triples ``(u, v, resistance)``, in parallel to existing edges.
            remove: edges, as pairs of nodes or, for parallel ones, by number.
            reweight: triples ``(u, v, resistance)`` or pairs ``(edge number, resistance)``.
        """
        return Solver(edits.edit(self._asked, add, remove, reweight), *self._options)

    def add_edge(self, u: Hashable, v: Hashable, resistance: Any = 1.0) -> Solver:
        """Return a solver for the graph with one more edge."""
        return self.edit(add=[(u, v, resistance)])

    def remove_edge(self, u: Hashable, v: Hashable) -> Solver:
        """Return a solver for the graph without the edge between two nodes."""
        return self.edit(remove=[(u, v)])

    def reweight_edge(self, u: Hashable, v: Hashable, resistance: Any) -> Solver:
        """Return a solver for the graph with the resistance of the edge between two nodes changed."""
        return self.edit(reweight=[(u, v, resistance)])


def prepare(
    graph: Any,
    *,
    demands: int = 64,
    tol: float = 1e-6,
    method: str = "auto",
    resistance: Any = None,
    conductance: Any = None,
) -> Solver:
    """Prepare a solver whose methods are the questions of this package, computing the factor they need once.

    >>> solver = prepare([("a", "b"), ("b", "c"), ("c", "a")])
    >>> round(float(solver.effective_resistance([("a", "b")]).value), 6)
    0.666667
    >>> round(float(solver.remove_edge("c", "a").effective_resistance([("a", "b")]).value), 6)
    1.0

    Args:
        graph: one graph or a batch, in any form that :func:`potentials` takes.
        demands: the expected total number of demands; a factor is made if it pays off for this number.
        tol: the largest acceptable residual in the expected questions.
        method: as for :func:`potentials`.
        resistance: as for :func:`potentials`.
        conductance: likewise.
    """
    check_tolerance(tol, method, METHODS)
    if demands < 1:
        raise ValueError(f"expected at least one demand, got demands={demands}")
    return Solver(as_graph(graph, resistance=resistance, conductance=conductance), demands, tol, method)
