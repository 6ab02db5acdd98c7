"""What an engine is: it says which problems it supports, and solves them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ohmformer.graph import Graph
from ohmformer.graph.memory import some_graphs
from ohmformer.solve.answer import Answer

DENSE = 8000
"""Maximum number of nodes of a graph for which engines build n x n matrices: half a gigabyte in float64."""

Progress = Callable[[int, float], bool | None]
"""Callback with (layers, residual) during a solve; returning True stops it."""


@dataclass(frozen=True, eq=False)
class Part:
    """Some graphs of a batch, and how to solve them."""

    which: Int[Tensor, " graphs"] | None
    """Their numbers in the batch; None for the whole batch."""
    engine: str
    native: bool
    """Whether the C implementation runs instead of torch's."""
    dtype: torch.dtype
    """The dtype of the layers; residuals are always computed in float64."""
    panel: int
    """Number of demands that are solved for together."""
    reason: str
    predicted: float = math.nan
    """Predicted seconds on one thread (:mod:`~ohmformer.solve.costs`), with the kept factor if there is one."""
    took: float | None = None
    """Measured seconds, in an answer's plan."""
    floor: float = 0.0
    """Smallest eigenvalue of the scaled Laplacian at which engine conjugate is as fast as another one."""
    trial: int = 0
    """Steps after which it ends if the residuals fall too slowly and that eigenvalue may be below four times ``floor``."""
    selected: Graph | None = field(default=None, repr=False)
    """These graphs as a batch, if the plan has selected them."""

    def of(self, graph: Graph) -> Graph:
        """Return the graphs of this part as a batch."""
        if self.which is None:
            return graph
        return some_graphs(graph, self.which) if self.selected is None else self.selected


@dataclass(frozen=True, eq=False)
class Problem:
    """A system ``L phi = psi`` on the graphs of a part, with a tolerance."""

    graph: Graph
    demands: Float[Tensor, "nodes k"]
    """Centred on every component, without gradient."""
    tol: float
    part: Part
    progress: Progress | None = None
    trace: bool = False


class Engine(Protocol):
    """A method to solve for potentials."""

    def supports(self, problem: Problem) -> str | None:
        """Return None if the engine can solve the problem, else a sentence that says what it expects."""
        ...

    def run(self, problem: Problem) -> Answer:
        """Solve for potentials, with a certificate; the residual may exceed the tolerance."""
        ...


class Watch:
    """Reports on a solve to ``progress``, and records whether to stop it, because of ``progress`` or Ctrl-C."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self.layers = 0
        """Layers of finished rounds."""
        self.residual = 1.0
        """The worst measured residual."""
        self.stopped = False

    def __call__(self, layers: int) -> bool:
        """Report ``layers`` in addition to finished rounds; return True if the solve is to stop."""
        if self._progress and self._progress(self.layers + layers, self.residual):
            self.stopped = True
        return self.stopped
