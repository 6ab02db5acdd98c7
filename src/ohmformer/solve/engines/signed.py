"""Engine ``LDL^T``: potentials on graphs with negative resistances, and the inertia of their Laplacians.

Elimination works for any signs: a node's pivot is the sum of its conductances, and the pivots form the D of ``L = U D U^T``,
without grounds. By Sylvester's law, L has as many positive and negative eigenvalues as D has entries of either sign. As
pivots may be close to zero, the residual is checked; if it misses the tolerance, SuperLU is used with pivoting, and the
inertia is not known.
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
"""Margin for rounding in the solution for the residual, which has no bound if pivots may be small."""
ROUNDING = 8
"""Rounding error of a flow in units of ``EPS``, with a margin for signs worse than the random ones."""


class SignedEngine:
    """Solve by a factor without or with pivoting, and refine once."""

    def supports(self, problem: Problem) -> str | None:
        """Support every graph."""
        return None

    def run(self, problem: Problem) -> Answer:
        """Solve; report the inertia if the factor without pivoting meets the tolerance."""
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
    """Solve, refine by one solve for the residual, and estimate the error by another one."""
    graph, psi = problem.graph, problem.demands
    phi = apply(psi)
    phi = phi + apply(measure(graph, phi, psi).left.to(psi))
    now = measure(graph, phi, psi)
    parts = zip(phi.split(16, dim=1), now.left.to(psi).split(16, dim=1), strict=True)  # avoids an edges x demands array
    error = max((_error(graph, apply, some, left) for some, left in parts), default=0.0)
    return Answer(phi, name, 0, now.residual, None, error=error, error_kind="estimate")


def _error(graph: Graph, apply: Apply, phi: Float[Tensor, "nodes k"], left: Float[Tensor, "nodes k"]) -> float:
    """Estimate the error of the worst demand in the norm ``sum_e |r_e| f_e^2`` of flows, as L defines no norm.

    The error is the solution for the residual, plus that for the rounding of flows with random signs.
    """
    tail = graph.edge_index[0]

    def norm(potential: Tensor) -> Float[Tensor, "graphs k"]:
        heat = circuit.flow(graph, potential).square() * graph.resistance.detach().abs()[:, None]
        return heat.new_zeros(graph.num_graphs, heat.shape[1]).index_add(0, graph.batch[tail], heat).sqrt()

    sign = torch.randint(0, 2, (graph.num_edges, 1), generator=torch.Generator().manual_seed(0)).to(phi) * 2 - 1
    lost = circuit.divergence(graph, sign * circuit.flow(graph, phi))
    return relative(MARGIN * norm(apply(left)) + ROUNDING * EPS * norm(apply(graph.center(lost))), norm(phi))


def _inertia(graph: Graph) -> tuple[int, int, int] | None:
    """Count positive and negative pivots, and zero eigenvalues; return None if a pivot is zero or infinite."""
    with np.errstate(divide="ignore", invalid="ignore"):  # a pivot may be zero
        factor = prepared(graph)
    if factor is None:
        return None
    pivot = factor.pivot.numpy()[np.diff(factor.pattern.first.numpy()) > 0]  # without the empty sums of grounds
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
