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
from scipy.sparse import csc_array

from ohmformer.graph import Graph
from ohmformer.solve.answer import Answer
from ohmformer.solve.certificate import measure
from ohmformer.solve.engines.base import Problem
from ohmformer.solve.engines.direct import Apply, inverse_of, on_kept_nodes
from ohmformer.solve.factor import prepared


class SignedEngine:
    """A factor without pivoting, or one with, and one refinement."""

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
    """Solve, and once more for the residual."""
    graph, psi = problem.graph, problem.demands
    phi = apply(psi)
    phi = phi + apply(measure(graph, phi, psi).left.to(psi))
    return Answer(phi, name, 0, measure(graph, phi, psi).residual, None)


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
