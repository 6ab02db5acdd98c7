"""What every question is answered with: a value and its certificate."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from torch import Tensor

from ohmformer.graph import Graph, Spectrum
from ohmformer.transformer.trace import Trace

if TYPE_CHECKING:
    from ohmformer.solve.plan import Plan


TOL = 1e-6
"""The tolerance of questions that do not say one."""


@dataclass(frozen=True)
class Answer:
    """A value and its certificate."""

    value: Any
    """A tensor, or for one matrix per graph of a batch :class:`~ohmformer.graph.ragged.Matrices`."""
    method: str
    layers: int
    residual: float
    """Measured: see the function that made the answer."""
    bound: float | None
    """Proved, in exact arithmetic, for the same quantity; None where the proof needs a spectrum that is only estimated."""
    spectrum: Spectrum | None = None
    """The interval that depth was chosen for."""
    note: str = ""
    """Why this method, or what else there is to say."""
    stopped: bool = False
    """Whether the work was stopped, by Ctrl-C or by ``progress``, before it reached its tolerance."""
    trace: Trace | None = None
    """With ``trace=True``, the state after every layer."""
    plan: Plan | None = None
    """Which engine was chosen for which graphs, and why, where linear systems were solved; what was predicted and took."""
    seconds: float | None = None
    """What it took, plan and check included, where linear systems were solved."""
    inertia: tuple[int, int, int] | None = None
    """Of a graph with negative resistances, how many eigenvalues of L are positive, negative and zero; None if not known."""
    labels: Sequence[Hashable] | None = None
    """What the nodes are called, where the graph came with labels."""
    error: float | None = None
    """Of potentials and flows ``|phi - phi*|_L / |phi*|_L`` of the worst demand on the worst graph, the error of the flow;
    with negative resistances in the norm ``sum_e |r_e| f_e^2`` of flows, as L has none. Of resistances, and of other numbers
    that are positive, the largest relative error of any. None where there is no such number."""
    error_kind: Literal["bound", "estimate"] | None = None
    """Whether ``error`` is proved, rounding included, or estimated, leaning to the high side."""
    rounded: bool = False
    """Whether the potentials are right to the last bit of float64, so that no smaller error can be had."""


A = TypeVar("A", bound=Answer)


@dataclass(frozen=True)
class FlowAnswer(Answer):
    """An electric flow: ``value`` is the current along the edges."""

    potential: Tensor = field(kw_only=True)
    energy: Tensor = field(kw_only=True)

    @property
    def flow(self) -> Tensor:
        """The current along the edges, ``(edges, demands)``."""
        return self.value


@dataclass(frozen=True)
class EigenAnswer(Answer):
    """Eigenvectors: ``value`` is ``(nodes, k)``, zero where a graph has fewer than k."""

    eigenvalues: Tensor = field(kw_only=True)
    """``(k,)``, or ``(graphs, k)`` for a batch; NaN where a graph has fewer than k."""

    @property
    def vectors(self) -> Tensor:
        """The eigenvectors as columns, ``(nodes, k)``."""
        return self.value


@dataclass(frozen=True)
class GraphAnswer(Answer):
    """A graph made of another one: ``value`` is a :class:`~ohmformer.graph.Graph`."""

    kept: Tensor = field(kw_only=True)
    """By number, the edges (:func:`sparsify`) or nodes (:func:`kron_reduce`) of the given graph that are in this one."""

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self.value


def join(answers: Sequence[A], value: Any) -> A:
    """Join the answers to parts of a question: the worst certificate, the deepest, every method once."""
    if len(answers) == 1:
        return replace(answers[0], value=value)
    worst = max(answers, key=lambda a: a.residual if a.residual == a.residual else float("inf"))
    bounds, errors = [a.bound for a in answers], [a.error for a in answers]
    error = None if None in errors else max(e for e in errors if e is not None)
    kinds = {a.error_kind for a in answers}
    return replace(
        worst,
        value=value,
        method=" and ".join(dict.fromkeys(a.method for a in answers if a.method != "none")) or "none",
        layers=max(a.layers for a in answers),
        bound=None if None in bounds else max(b for b in bounds if b is not None),
        note="; ".join(dict.fromkeys(a.note for a in answers if a.note and a.method != "none")),
        stopped=any(a.stopped for a in answers),
        error=error,
        error_kind=None if error is None else "estimate" if "estimate" in kinds else "bound",
        rounded=any(a.rounded for a in answers),
    )


def as_estimate(answer: A, off: float, times: float = 1.0) -> A:
    """Return the answer as an estimate whose error is ``off`` plus ``times`` the error of the solves it rests on."""
    error = None if answer.error is None else off + times * answer.error
    return replace(answer, bound=None, error=error, error_kind=None if error is None else "estimate", rounded=False)


def reached(answer: Answer, tol: float, tol_of: str = "residual") -> bool:
    """Tell whether an answer is as good as was asked, or was stopped on purpose.

    Where resistances range so far that potentials in float64 cannot have a residual of ``tol``, an error of ``tol`` will do;
    where they cannot have that either, potentials that are right to the last bit, unless less than :data:`TOL` was asked.
    """
    if answer.stopped or (answer.error is not None and answer.error <= tol):
        return True
    return tol_of == "residual" and (answer.residual <= tol or (answer.rounded and tol >= TOL))


def check_reached(answer: A, tol: float, tol_of: str = "residual") -> A:
    """Return ``answer`` if it is as good as was asked; raise a ValueError that says what can be reached if not."""
    if reached(answer, tol, tol_of):
        return answer
    if tol_of == "error" and answer.error is None:
        raise ValueError(f"expected tol_of='residual', as {answer.method} knows no error of this answer, got 'error'")
    asked, got = ("an error", answer.error) if tol_of == "error" else ("a residual", answer.residual)
    raise ValueError(
        f"asked for {asked} of {tol:.1e}, but {answer.method} reaches {got:.1e} on this graph "
        f"in {_dtype(answer.value)}; pass a larger tol"
    )


def _dtype(value: Any) -> str:
    numbers = getattr(value, "entries", value)
    return str(numbers.dtype).removeprefix("torch.")


LAPLACIANS = ("combinatorial", "normalized")


def check_laplacian(laplacian: str) -> bool:
    """Say whether the normalised Laplacian is meant; raise a ValueError for anything that is none."""
    if laplacian not in LAPLACIANS:
        raise ValueError(f"expected laplacian among {', '.join(LAPLACIANS)}, got {laplacian!r}")
    return laplacian == "normalized"


def check_tolerance(tol: float, method: str, methods: Sequence[str], tol_of: str = "residual") -> None:
    """Raise a ValueError unless the tolerance makes sense and the method is known."""
    if tol_of not in ("residual", "error"):
        raise ValueError(f"expected tol_of='residual' or 'error', got {tol_of!r}")
    if not 0 < tol < 1:
        raise ValueError(f"expected a tolerance in (0, 1), got {tol!r}")
    if method not in methods:
        raise ValueError(f"expected a method among {', '.join(methods)}, got {method!r}")
