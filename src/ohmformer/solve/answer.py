"""What the front door gives back: a value and its certificate."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from ohmformer.graph.spectrum import Spectrum
from ohmformer.transformer.trace import Trace


@dataclass(frozen=True)
class Answer:
    """A value and its certificate."""

    value: Tensor
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


@dataclass(frozen=True)
class FlowAnswer(Answer):
    """An electric flow: ``value`` is the flow on the edges."""

    potential: Tensor = field(kw_only=True)
    energy: Tensor = field(kw_only=True)

    @property
    def flow(self) -> Tensor:
        """The flow on the edges, ``(edges, demands)``."""
        return self.value


def check_reached(answer: Answer, tol: float) -> Answer:
    """``answer`` if it is as good as was asked or was stopped on purpose, else a ValueError: what can be reached."""
    if not answer.residual <= tol and not answer.stopped:
        raise ValueError(
            f"asked for a residual of {tol:.1e}, but {answer.method} reaches {answer.residual:.1e} on this graph "
            f"in {str(answer.value.dtype).removeprefix('torch.')}; pass a larger tol"
        )
    return answer


def check_tolerance(tol: float, method: str, methods: tuple[str, ...]) -> None:
    """A ValueError unless the tolerance makes sense and the method is known."""
    if not 0 < tol < 1:
        raise ValueError(f"expected a tolerance in (0, 1), got {tol!r}")
    if method not in methods:
        raise ValueError(f"expected a method among {', '.join(methods)}, got {method!r}")
