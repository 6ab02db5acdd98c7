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
"""The default tolerance of questions."""


@dataclass(frozen=True)
class Answer:
    """A value with its error certificate."""

    value: Any
    """A tensor; for one matrix per graph of a batch, :class:`~ohmformer.graph.ragged.Matrices`."""
    method: str
    layers: int
    residual: float
    """Measured; the function that returned the answer defines it."""
    bound: float | None
    """Proved bound on ``residual`` in exact arithmetic; None where the proof needs a spectrum that is only estimated."""
    spectrum: Spectrum | None = None
    """The spectral interval that the number of layers was chosen for."""
    note: str = ""
    """Why this method was chosen, and other remarks."""
    stopped: bool = False
    """Whether the solve was stopped, by Ctrl-C or ``progress``, before it reached its tolerance."""
    trace: Trace | None = None
    """The state after every layer, if ``trace=True``."""
    plan: Plan | None = None
    """Where linear systems were solved, the engine chosen for each graph, the reason, predicted and actual times."""
    seconds: float | None = None
    """Elapsed time including planning and checks, where linear systems were solved."""
    inertia: tuple[int, int, int] | None = None
    """With negative resistances, the numbers of positive, negative and zero eigenvalues of L; None if unknown."""
    labels: Sequence[Hashable] | None = None
    """The node labels, if the graph came with labels."""
    error: float | None = None
    """For potentials and flows, the error of the flow, ``|phi - phi*|_L / |phi*|_L``, for the worst demand on the worst
    graph; with negative resistances, in the norm ``sum_e |r_e| f_e^2`` of flows, as L defines none. For resistances and
    other positive numbers, the largest relative error. None if unknown."""
    error_kind: Literal["bound", "estimate"] | None = None
    """Whether ``error`` is proved, rounding included, or an estimate, which errs on the high side."""
    rounded: bool = False
    """Whether the potentials are accurate to the last bit of float64, so that no smaller error is possible."""


A = TypeVar("A", bound=Answer)


@dataclass(frozen=True)
class FlowAnswer(Answer):
    """An electric flow; ``value`` is the current along the edges."""

    potential: Tensor = field(kw_only=True)
    energy: Tensor = field(kw_only=True)

    @property
    def flow(self) -> Tensor:
        """The current along the edges, ``(edges, demands)``."""
        return self.value


@dataclass(frozen=True)
class EigenAnswer(Answer):
    """Eigenvectors; ``value`` is ``(nodes, k)``, with zero columns where a graph has fewer than k."""

    eigenvalues: Tensor = field(kw_only=True)
    """``(k,)``, or ``(graphs, k)`` for a batch; NaN where a graph has fewer than k."""

    @property
    def vectors(self) -> Tensor:
        """The eigenvectors as columns, ``(nodes, k)``."""
        return self.value


@dataclass(frozen=True)
class GraphAnswer(Answer):
    """A graph derived from another one; ``value`` is a :class:`~ohmformer.graph.Graph`."""

    kept: Tensor = field(kw_only=True)
    """The numbers of the edges (:func:`sparsify`) or nodes (:func:`kron_reduce`) of the given graph that were kept."""

    @property
    def graph(self) -> Graph:
        """The derived graph."""
        return self.value


def join(answers: Sequence[A], value: Any) -> A:
    """Join the answers to parts of a question: the worst certificate, the largest number of layers, every method once."""
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
    """Return the answer as an estimate whose error is ``off`` plus ``times`` the error of the underlying solves."""
    error = None if answer.error is None else off + times * answer.error
    return replace(answer, bound=None, error=error, error_kind=None if error is None else "estimate", rounded=False)


def reached(answer: Answer, tol: float, tol_of: str = "residual") -> bool:
    """Return whether an answer meets its tolerance, or was stopped on purpose.

    Where resistances vary too widely for float64 potentials with a residual of ``tol``, an error of ``tol`` is accepted; if
    that is impossible too, potentials accurate to the last bit, unless ``tol`` is less than :data:`TOL`.
    """
    if answer.stopped or (answer.error is not None and answer.error <= tol):
        return True
    return tol_of == "residual" and (answer.residual <= tol or (answer.rounded and tol >= TOL))


def check_reached(answer: A, tol: float, tol_of: str = "residual") -> A:
    """Return ``answer`` if it meets its tolerance; otherwise raise a ValueError that says what can be reached."""
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
    """Return whether the normalized Laplacian is requested; raise a ValueError for an unknown name."""
    if laplacian not in LAPLACIANS:
        raise ValueError(f"expected laplacian among {', '.join(LAPLACIANS)}, got {laplacian!r}")
    return laplacian == "normalized"


def check_tolerance(tol: float, method: str, methods: Sequence[str], tol_of: str = "residual") -> None:
    """Raise a ValueError if the tolerance is out of range or the method unknown."""
    if tol_of not in ("residual", "error"):
        raise ValueError(f"expected tol_of='residual' or 'error', got {tol_of!r}")
    if not 0 < tol < 1:
        raise ValueError(f"expected a tolerance in (0, 1), got {tol!r}")
    if method not in methods:
        raise ValueError(f"expected a method among {', '.join(methods)}, got {method!r}")
