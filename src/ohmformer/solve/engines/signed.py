"""Engine ``LDL^T``: potentials on graphs with negative resistances, and the inertia of their Laplacians.

A node is eliminated in the same way whatever the signs: its pivot is the sum of its conductances, and the pivots are the D
of ``L = U D U^T``, grounds left out. By Sylvester's law, L has as many positive and negative eigenvalues as D has entries of
either sign. As nothing keeps pivots away from zero, the residual decides; where it misses the tolerance, SuperLU answers
with pivots of its own choice, and the inertia is not known.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse import csc_array
from torch import Tensor

from ohmformer.graph import Graph, circuit
from ohmformer.solve.answer import Answer
from ohmformer.solve.certificate import EPS, measure, relative
from ohmformer.solve.engines.base import Problem
from ohmformer.solve.engines.direct import Apply, inverse_of, on_kept_nodes
from ohmformer.solve.factor import prepared

MARGIN = 2.0
"""For rounding in the solution for the residual, which nothing bounds where pivots may be small."""
ROUNDING = 8
"""Times ``EPS``, what a flow may round off, with a margin for signs that are worse than those drawn."""


class SignedEngine:
    """Solve by a factor without pivoting, or one with, and refine once."""

    def supports(self, problem: Problem) -> str | None:
        """Every graph."""
        return None

    def run(self, problem: Problem) -> Answer:
        """Solve; the inertia is counted where the factor has proved itself."""
        inertia = _inertia(problem.graph)
        if inertia is not None:
            answer = _refined("LDL^T", inverse_of(problem.graph).apply, problem)
            if answer.residual <= problem.tol:
                positive, negative, zero = inertia
                note = f"{positive} positive, {negative} negative and {zero} zero eigenvalues"
                return replace(answer, inertia=inertia, note=note)
        pivoted = on_kept_nodes(problem.graph, _pivoted)
        return replace(_refined("pivoted LU", pivoted, problem), note="the inertia is not known")


def _refined(name: str, apply: Apply, problem: Problem) -> Answer:
    """Solve, and once more for the residual; and once more to see how far off that is."""
    graph, psi = problem.graph, problem.demands
    phi = apply(psi)
    phi = phi + apply(measure(graph, phi, psi).left.to(psi))
    now = measure(graph, phi, psi)
    parts = zip(phi.split(16, dim=1), now.left.to(psi).split(16, dim=1), strict=True)  # never as wide as edges x demands
    error = max((_error(graph, apply, some, left) for some, left in parts), default=0.0)
    return Answer(phi, name, 0, now.residual, None, error=error, error_kind="estimate")


def _error(graph: Graph, apply: Apply, phi: Float[Tensor, "nodes k"], left: Float[Tensor, "nodes k"]) -> float:
    """The error of the worst demand in the norm of flows with absolute resistances, as L has none: ``sum_e |r_e| f_e^2``.

    It is what the factor makes of the residual, and of as much of the flow as rounds off, with random signs.
    """
    tail = graph.edge_index[0]

    def norm(potential: Tensor) -> Float[Tensor, "graphs k"]:
        heat = circuit.flow(graph, potential).square() * graph.resistance.detach().abs()[:, None]
        return heat.new_zeros(graph.num_graphs, heat.shape[1]).index_add(0, graph.batch[tail], heat).sqrt()

    sign = torch.randint(0, 2, (graph.num_edges, 1), generator=torch.Generator().manual_seed(0)).to(phi) * 2 - 1
    lost = circuit.divergence(graph, sign * circuit.flow(graph, phi))
    return relative(MARGIN * norm(apply(left)) + ROUNDING * EPS * norm(apply(graph.center(lost))), norm(phi))


def _inertia(graph: Graph) -> tuple[int, int, int] | None:
    """How many pivots are positive and negative, and how many eigenvalues are zero; None if a pivot is zero or infinite."""
    with np.errstate(divide="ignore", invalid="ignore"):  # by a pivot that is zero
        factor = prepared(graph)
    if factor is None:
        return None
    pivot = factor.pivot.numpy()[np.diff(factor.pattern.first.numpy()) > 0]  # those of grounds are empty sums
    if not np.isfinite(pivot).all() or (pivot == 0).any():
        return None
    return int((pivot > 0).sum()), int((pivot < 0).sum()), graph.num_components


def _pivoted(matrix: csc_array) -> Any:
    from scipy.sparse.linalg import splu

    try:
        return splu(matrix).solve
    except RuntimeError:
        raise ValueError(
            "expected a Laplacian with one zero eigenvalue per component, this signed graph has more: resistances cancel"
        ) from None
