"""Solve the question of a state: the answer after every layer, its error and its bound, and the exact answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer import exact
from ohmformer.apps.explorer.methods import LEARNED_LAYERS, METHODS, TRAINED, Iteration, Method
from ohmformer.apps.explorer.state import MOST_LAYERS, State
from ohmformer.apps.explorer.trained import Trained
from ohmformer.constructions import GramSchmidt, Laplacian, Shifted, SubspaceIteration
from ohmformer.constructions.base import Construction
from ohmformer.constructions.eigenvectors import Gap
from ohmformer.graph import Graph
from ohmformer.transformer.blocks import Program

GOAL = 1e-4
"""The relative error whose depth is proposed."""


@dataclass(frozen=True)
class Readout:
    """A number that summarises an answer, layer by layer."""

    label: str
    unit: str
    now: list[float]
    exact: float


@dataclass(frozen=True)
class Solution:
    """The answer after 0, 1, ... layers."""

    values: Float[Tensor, "states nodes"]
    """Values on nodes after each layer; infinite where a resistance is."""
    exact: Float[Tensor, " nodes"]
    errors: list[float]
    """Relative to the exact answer; for eigenvectors the sine of the angle between the values and the eigenspace."""
    bounds: list[float | None]
    """Proved bounds on the errors, including rounding; None where there is none."""
    error_label: str
    program: Program
    readout: Readout


def solve(state: State, trained: Mapping[str, Trained]) -> Solution:
    """Solve the question of a state; a ValueError says what is missing."""
    graph = state.drawing.graph()
    if not graph.num_nodes:
        raise ValueError("expected a graph with at least one node; choose Draw and click into the empty field")
    if state.method.startswith(TRAINED):
        return _trained(state, graph, checkpoint(state, trained))
    if state.task == "eigenvector":
        return _eigenvector(state, graph)
    return _function(state, graph)


def solve_beside(state: State, trained: Mapping[str, Trained]) -> Solution | None:
    """Solve the same question by the second construction, at its own proposed depth unless the user has set one."""
    if not state.beside:
        return None
    other = replace(state, method=state.beside, beside="", layer=0)
    if state.proposed or other.method.startswith(TRAINED):
        other = replace(other, layers=proposed_layers(other, trained))
    return solve(other, trained)


def proposed_layers(state: State, trained: Mapping[str, Trained]) -> int:
    """Propose a depth: the one whose proved bound is ``GOAL``, or the largest the page offers, in whole steps."""
    if state.method.startswith(TRAINED):
        return checkpoint(state, trained).layers
    graph = state.drawing.graph()
    if not graph.num_edges:
        return 1
    try:
        if state.task == "eigenvector":
            column = _column(state, graph)
            iteration = column.iteration
            whole = iteration.layers((MOST_LAYERS - iteration.preparation) // iteration.period)
            layers = min(max(iteration.layers_for(GOAL / math.sqrt(2), gap) for gap in column.gaps(graph)), whole)
        else:
            method = METHODS[state.task][state.method]
            if isinstance(method, Method) and method.train:
                return LEARNED_LAYERS
            built = _construction(state, graph)
            layers = built.layers_for(GOAL * built.size)
    except ValueError:  # no depth will do, or there is no such eigenvector, which solving says
        layers = MOST_LAYERS
    return min(max(layers, 1), MOST_LAYERS)


def checkpoint(state: State, trained: Mapping[str, Trained]) -> Trained:
    """Find the checkpoint that a state names; a ValueError if there is none."""
    name = state.method.removeprefix(TRAINED)
    if name not in trained:
        raise ValueError(f"expected the page to be started with --checkpoint for {name[:60]!r}, it was not")
    return trained[name]


# ---------------------------------------------------------------------------------------------------- functions of L


def _construction(state: State, graph: Graph) -> Construction:
    method = METHODS[state.task][state.method]
    assert isinstance(method, Method)
    if method.train:
        if not graph.num_edges:
            raise ValueError("expected a graph with edges to learn from, this one has none")
        return method.train(graph, state.layers)
    return method.build(exact.spectrum(graph), state.time)


def _function(state: State, graph: Graph) -> Solution:
    method, built = METHODS[state.task][state.method], _construction(state, graph)
    assert isinstance(method, Method)
    question = question_of(state, graph)
    signals = None if state.task == "resistance" else question.signal
    trace = built.run(graph, signals, layers=state.layers, trace=True)
    rooted = built.answer == "root"
    blocks = (state[built.answer] for state in trace.states)
    if signals is not None and not built.takes_signals:
        blocks = (block @ signals for block in blocks)
    values = torch.cat([question.read(block[None], rooted) for block in blocks])
    scale = question.scale

    def bound(layers: int) -> float | None:
        if method.train or (not method.anytime and layers < state.layers):
            return None
        try:
            proved = built.error_bound(layers) + built.rounding(layers, graph.num_nodes)
        except ValueError:
            return None
        relative = question.widened(proved, rooted) / scale
        return relative if math.isfinite(relative) else None

    return Solution(
        values,
        question.exact,
        question.errors(values),
        [bound(layers) for layers in range(state.layers + 1)],
        "relative error",
        built.program(state.layers),
        question.readout(values),
    )


@dataclass(frozen=True)
class Question:
    """A question about ``f(L)``: a signal, how the answer is read off, and the exact answer."""

    state: State
    graph: Graph
    signal: Float[Tensor, "nodes 1"]
    exact: Float[Tensor, " nodes"]

    @property
    def scale(self) -> float:
        """The size of the exact answer: its norm, or the largest finite resistance."""
        finite = self.exact[self.exact.isfinite()]
        size = finite.abs().max() if self.state.task == "resistance" else finite.norm()
        return float(size) or 1.0

    def read(self, answers: Tensor, rooted: bool) -> Float[Tensor, "states nodes"]:
        """Read values on nodes from the blocks that hold the answer after each layer."""
        if self.state.task != "resistance":
            return answers[..., 0]
        a = self.state.source
        if rooted:
            values = (answers - answers[:, a : a + 1]).square().sum(-1)
        else:
            diagonal = answers.diagonal(dim1=-2, dim2=-1)
            values = (diagonal + diagonal[:, a : a + 1] - answers[:, a] - answers[:, :, a]).clamp(min=0)
        return torch.where(self.exact.isinf(), torch.inf, values)

    def widened(self, bound: float, rooted: bool) -> float:
        """Bound the error of the values from a bound b on the operator norm of ``answer - f(L)``.

        A signal psi gives ``b |psi|``. A resistance is ``d^T L^+ d`` with ``|d|^2 = 2``, off by at most ``2 b``; or
        ``|M d|^2``, off by at most ``sqrt(2) b (2 sqrt(R) + sqrt(2) b)`` by the triangle inequality.
        """
        if self.state.task != "resistance":
            return bound * float(self.signal.norm())
        return 2 * math.sqrt(2) * bound * math.sqrt(self.scale) + 2 * bound**2 if rooted else 2 * bound

    def errors(self, values: Float[Tensor, "states nodes"]) -> list[float]:
        """Compute relative errors after each layer."""
        finite = self.exact.isfinite()
        gap = values[:, finite] - self.exact[finite]
        sizes = gap.abs().amax(-1) if self.state.task == "resistance" else gap.norm(dim=-1)
        return (sizes / self.scale).tolist()

    def readout(self, values: Float[Tensor, "states nodes"]) -> Readout:
        """Compute the summary: a resistance between two terminals, power, the largest resistance, or the remaining heat."""
        names = self.state.drawing.names
        if self.state.task == "electric":
            terminals = sorted(self.state.currents, key=lambda c: -c[1])
            psi = self.signal[:, 0]
            power, true = (values @ psi).tolist(), float(self.exact @ psi)
            if len(terminals) != 2:
                return Readout("Power", "W", power, true)
            (a, ampere), (b, _) = terminals
            label = f"Effective resistance, {names[a]} to {names[b]}"
            return Readout(label, "Ω", [p / ampere**2 for p in power], true / ampere**2)
        if self.state.task == "resistance":
            far = int(torch.where(self.exact.isfinite(), self.exact, -1.0).argmax())
            label = f"Largest resistance, {names[self.state.source]} to {names[far]}"
            return Readout(label, "Ω", values[:, far].tolist(), float(self.exact[far]))
        a = self.state.source
        return Readout(f"Heat left on {names[a]}", "", values[:, a].tolist(), float(self.exact[a]))


def question_of(state: State, graph: Graph) -> Question:
    """Build the question of a task other than eigenvectors."""
    one = torch.zeros(graph.num_nodes, 1, dtype=torch.float64)
    if state.task == "electric":
        for node, ampere in state.currents:
            one[node] = ampere
        _check_balance(graph, one)
        return Question(state, graph, one, exact.potentials(graph, one)[:, 0])
    one[state.source] = 1.0
    if state.task == "resistance":
        return Question(state, graph, one, exact.effective_resistance(graph)[state.source])
    return Question(state, graph, one, exact.heat(graph, state.time)[:, state.source])


def _check_balance(graph: Graph, currents: Float[Tensor, "nodes 1"]) -> None:
    if not currents.any():
        raise ValueError("No current yet: click a node to put some in, then another to take it out.")
    for component in range(graph.num_components):
        mine = currents[graph.components == component]
        into, out = float(mine.clamp(min=0).sum()), float((-mine).clamp(min=0).sum())
        if abs(into - out) > 1e-9 * max(into, out):
            part = "" if graph.num_components == 1 else " of each connected part"
            raise ValueError(
                f"As much current must come out{part} as goes in, so far {into:g} A in and {out:g} A out: click where "
                f"{'it leaves' if into > out else 'it enters'}."
            )


# ---------------------------------------------------------------------------------------------------- eigenvectors


@dataclass(frozen=True)
class Column:
    """The wanted column of a subspace iteration: columns up to it and to all with its eigenvalue, the leading one first."""

    iteration: SubspaceIteration
    start: Float[Tensor, "nodes k"]
    before: int
    """How many columns belong to eigenvalues that come before."""
    at: int

    def gaps(self, graph: Graph) -> list[Gap]:
        """The gaps behind all columns and, if there are any, behind those before.

        The column q lies in the span of all of them and is orthogonal to those before. So its sine to its own eigenspace
        is at most ``sqrt(a^2 + b^2)``, with the sines a and b of these two spans to the eigenspaces they approach:
        ``(I - P) q`` is at most a, and what the eigenvectors before have in common with q at most b.
        """
        gaps = [self.iteration.gap(graph, self.start)]
        if self.before:
            fewer = SubspaceIteration(self.iteration.multiply, GramSchmidt(self.before))
            gaps.append(fewer.gap(graph, self.start[:, -self.before :]))
        return gaps


def _column(state: State, graph: Graph) -> Column:
    method = METHODS[state.task][state.method]
    assert isinstance(method, Iteration)
    spectrum = exact.spectrum(graph)
    multiply = method.multiply(spectrum)
    values = _wanted_order(graph, state.method)
    if state.which > len(values):
        raise ValueError(f"expected one of the {len(values)} eigenvectors with an eigenvalue above zero, got {state.which}")
    same = ((values - values[state.which - 1]).abs() <= 1e-9 * spectrum.lmax).nonzero()[:, 0]
    null = _null_columns(multiply, graph)
    iteration = SubspaceIteration(multiply, GramSchmidt(null + int(same[-1]) + 1))
    return Column(iteration, iteration.start(graph, seed=0), null + int(same[0]), null + state.which - 1)


def _wanted_order(graph: Graph, method: str) -> Float[Tensor, " rank"]:
    """List the nonzero eigenvalues, in the order in which the task counts them."""
    found = exact.eigenvectors(graph, max(graph.num_nodes, 1), "largest" if method == "largest" else "smallest")
    return found.values[found.mask]


def _eigenvector(state: State, graph: Graph) -> Solution:
    wanted = _column(state, graph)
    iteration, gaps = wanted.iteration, wanted.gaps(graph)
    trace = iteration.run_blocks(graph, iteration.inputs(graph, wanted.start), state.layers)
    column = trace[iteration.answer].flip(-1)[..., wanted.at]  # the leading eigenvector first

    def bound(layers: int) -> float | None:
        if (layers - iteration.preparation) % iteration.period and layers > iteration.preparation:
            return None  # in the middle of a step, before columns are orthogonal again
        try:
            return min(
                1.0, math.hypot(*(iteration.error_bound(layers, g) + iteration.rounding(g, graph.num_nodes) for g in gaps))
            )
        except ValueError:
            return None

    which = "largest" if state.method == "largest" else "smallest"
    bounds = [bound(layers) for layers in range(state.layers + 1)]
    return _eigen_solution(state, graph, column, which, bounds, iteration.program(state.layers))


def _null_columns(multiply: Laplacian, graph: Graph) -> int:
    """Count the leading columns that span the null space; only ``Shifted`` iterates from the bottom, where it is."""
    return graph.num_components if isinstance(multiply, Shifted) else 0


def _eigen_solution(
    state: State,
    graph: Graph,
    column: Float[Tensor, "states nodes"],
    which: str,
    bounds: list[float | None],
    program: Program,
) -> Solution:
    """Pair the column with the eigenvector nearest to its last value, signs matched.

    Where an eigenvalue is repeated its eigenvectors are not unique; the nearest one is the projection onto all of them. The
    null space, which is known, is taken off before an eigenvalue is estimated, so that no estimate lies below the smallest.
    """
    found = exact.eigenvectors(graph, graph.num_nodes, which)
    values, vectors = found.values[found.mask], found.vectors[:, found.mask]
    value = values[state.which - 1]
    basis = vectors[:, (values - value).abs() <= 1e-9 * values.max()]
    near = basis @ (basis.mT @ column[-1])
    true = near / near.norm() if near.norm() > 1e-6 else vectors[:, state.which - 1]
    shown = column * torch.where((column @ true) < 0, -1.0, 1.0)[:, None]
    unit = _unit(shown)
    errors = (unit - unit @ basis @ basis.mT).norm(dim=-1).tolist()
    varying = _unit(graph.center(shown.mT).mT)
    rayleigh = torch.einsum("si,ij,sj->s", varying, graph.laplacian(), varying).tolist()
    number = f" number {state.which}" if state.which > 1 else ""
    name = f"{which.capitalize()} eigenvalue{number}, by the Rayleigh quotient"
    return Solution(shown, true, errors, bounds, "sine of the angle", program, Readout(name, "", rayleigh, float(value)))


def _unit(rows: Float[Tensor, "states nodes"]) -> Float[Tensor, "states nodes"]:
    return rows / rows.norm(dim=-1, keepdim=True).clamp(min=1e-300)


# ---------------------------------------------------------------------------------------------------- trained models


def _trained(state: State, graph: Graph, model: Trained) -> Solution:
    model.check(state.task, state.time)
    nothing: list[float | None] = [None] * (model.layers + 1)
    if state.task == "eigenvector":
        rank = graph.num_nodes - graph.num_components
        if state.which > rank:
            raise ValueError(f"expected one of the {rank} eigenvectors with an eigenvalue above zero, got {state.which}")
        column = model.eigenvectors(graph)[..., graph.num_components + state.which - 1]
        return _eigen_solution(state, graph, column, "smallest", nothing, model.program)
    question = question_of(state, graph)
    mean = 0.0
    if state.task == "resistance":
        answers = model.answers(graph, graph.projector())
        values = _scaled(question, question.read(answers, model.rooted))
    else:
        centred = graph.center(question.signal)
        mean = (question.signal - centred)[:, 0] if state.task == "heat" else 0.0
        values = model.answers(graph, centred)[..., 0]
        fit = values @ (question.exact - mean) / values.square().sum(-1).clamp(min=1e-300)
        values = fit[:, None] * values + mean
    label = "relative error, at the best scale"
    return Solution(values, question.exact, question.errors(values), nothing, label, model.program, question.readout(values))


def _scaled(question: Question, values: Float[Tensor, "states nodes"]) -> Float[Tensor, "states nodes"]:
    """Rescale values, layer by layer, to fit the exact answer best, as models are trained up to scale."""
    finite = question.exact.isfinite()
    known = torch.where(finite, values, 0.0)
    fit = known @ torch.where(finite, question.exact, 0.0) / known.square().sum(-1).clamp(min=1e-300)
    return torch.where(finite, fit[:, None] * values, torch.inf)
