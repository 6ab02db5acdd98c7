"""Spectral sparsification: fewer edges, and nearly the same energy for all potentials (Spielman and Srivastava).

An edge is kept with a probability p proportional to its leverage ``R_e / r_e``, the share of current that it takes between
its own ends, and then has p times its resistance, so that energies are unbiased; bridges are always kept. The error is
measured: the eigenvalues of ``L~ x = lambda L x`` are the ratios of energies, and must lie in ``1 +- eps``.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer import exact
from ohmformer.graph import Graph, circuit
from ohmformer.graph.labelled import as_graph
from ohmformer.solve.answer import GraphAnswer, join
from ohmformer.solve.certificate import EPS
from ohmformer.solve.engines.base import Progress
from ohmformer.solve.plan import SMALL
from ohmformer.solve.projections import check_eps
from ohmformer.solve.pseudoinverse import Request, solve
from ohmformer.solve.resistance import effective_resistance

METHOD = "effective resistances"
PAYS = 0.9
"""Fraction of the edges above which sampling does not pay, and the graph is returned unchanged."""
FAILURE = 0.01
"""Probability that the error is larger than stated, on graphs of more than :data:`SMALL` nodes."""
GUESS = 0.5
"""Relative error of the estimated resistances; it affects the probabilities, which may be any, but not the mean."""
TOL = 1e-8
"""Residual of the linear systems for measuring eigenvalues."""


def sparsify(
    graph: Any,
    eps: float,
    *,
    seed: int = 0,
    progress: Progress | None = None,
    resistance: Any = None,
    conductance: Any = None,
) -> GraphAnswer:
    """Compute a graph on the same nodes with fewer edges, whose energy is within ``1 +- eps`` for all potentials.

    ``residual`` and ``error`` are the largest relative difference of energies, ``kept`` the remaining edges. Up to 400 nodes
    it is measured by LAPACK; beyond, by Lanczos' method with a random start, plus a bound on its error, so that it holds
    with probability 0.99. Samples grow until it is at most ``eps``; if that takes more than nine tenths of the edges, as on
    trees and sparse graphs, the graph is returned unchanged. Gradients flow through the weights of the remaining edges, with
    their probabilities as constants.

    Args:
        graph: one graph or a batch, in any form that :func:`potentials` takes; every graph of a batch is sampled on its own.
        eps: the acceptable relative difference of energies.
        seed: seed of the samples.
        progress: called with (linear systems solved, difference so far); return True to stop with the graph unchanged.
        resistance: as for :func:`potentials`.
        conductance: likewise.

    >>> import networkx as nx
    >>> answer = sparsify(nx.complete_graph(60), 0.9, seed=0)
    >>> answer.graph.num_edges < 1770 / 2, answer.residual <= 0.9
    (True, True)
    """
    check_eps(eps)
    asked = as_graph(graph, resistance=resistance, conductance=conductance)
    found = asked.graph
    if not found.batched:
        return replace(_sparsified(found, eps, seed, progress), labels=asked.labels)
    answers = [_sparsified(one, eps, seed + i, progress) for i, one in enumerate(found.split())]
    edges = found.edge_graph.argsort(stable=True).split(found.edge_counts.tolist())
    if not answers:
        none = torch.empty(0, dtype=torch.long, device=found.device)
        return GraphAnswer(found, "none", 0, 0.0, 0.0, kept=none, error=0.0, error_kind="bound")
    kept = torch.cat([mine[answer.kept] for mine, answer in zip(edges, answers, strict=True)])
    return replace(join(answers, Graph.collate([a.graph for a in answers])), kept=kept, labels=asked.labels)


def _sparsified(graph: Graph, eps: float, seed: int, progress: Progress | None) -> GraphAnswer:
    every = torch.arange(graph.num_edges, device=graph.device)
    same = GraphAnswer(graph, "none", 0, 0.0, 0.0, note="sampling would not pay", kept=every, error=0.0, error_kind="bound")
    fixed, scale = replace(graph, resistance=graph.resistance.detach()), 2 / eps**2
    rank = graph.num_nodes - graph.num_components
    if scale * rank > PAYS * graph.num_edges:
        return same
    leverage = effective_resistance(fixed, "edges", eps=GUESS).value.double() / fixed.resistance.double()
    drawn = torch.rand(graph.num_edges, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    solved = 0
    while float((probability := (scale * leverage).clamp(max=1)).sum()) <= PAYS * graph.num_edges:
        kept = (drawn.to(graph.device) < probability).nonzero()[:, 0]
        weight = graph.resistance[kept] * probability[kept].to(graph.dtype)
        sample = replace(graph, edge_index=graph.edge_index[:, kept], resistance=weight)
        gap, steps, stopped = _distance(fixed, replace(sample, resistance=weight.detach()), eps, seed, solved, progress)
        solved += steps
        if stopped:
            return replace(same, method=METHOD, layers=solved, note="stopped", stopped=True)
        if gap <= eps:
            how = f"by {steps} Lanczos steps, with probability {1 - FAILURE}" if steps else "by LAPACK"
            certificate = {"error": gap, "error_kind": "estimate" if steps else "bound"}
            return GraphAnswer(sample, METHOD, solved, gap, None, note=f"measured {how}", kept=kept, **certificate)
        scale *= 1.4
    return same


def _distance(
    graph: Graph, sample: Graph, eps: float, seed: int, before: int, progress: Progress | None
) -> tuple[float, int, bool]:
    """Return the deviation of energy ratios from one, the steps taken, and whether it was stopped; gives up above eps."""
    if sample.num_components > graph.num_components:
        return math.inf, 0, False
    if graph.num_nodes <= SMALL:
        root, other = exact.sqrt_pinv(graph.to(dtype=torch.float64)), sample.to(dtype=torch.float64).laplacian()
        ratios = torch.linalg.eigvalsh(root @ other @ root)[graph.num_components :]
        lost = 4 * (len(root) + 2) * EPS * (root.abs() @ other.abs() @ root.abs()).sum(1)  # rounding
        return float((ratios - 1).abs().max() + lost.max()) if len(ratios) else 0.0, 0, False
    # Lanczos' method for L^+ L~, symmetric in the inner product of L, from a start that is isotropic there; by Kuczynski and
    # Wozniakowski the largest eigenvalue of a positive matrix is missed by a factor above 1 - lack with probability FAILURE
    odds = math.log(2 * 1.648 * math.sqrt(graph.num_nodes) / FAILURE)
    steps = math.ceil((odds / math.sqrt(eps / 15) + 1) / 2)
    lack = (odds / (2 * steps - 1)) ** 2
    graph, sample = graph.to(dtype=torch.float64), sample.to(dtype=torch.float64)
    draw = torch.Generator().manual_seed(seed)
    noise = torch.randn(graph.num_edges, 1, generator=draw, dtype=torch.float64).to(graph.device)
    image = circuit.divergence(graph, noise / graph.resistance.sqrt()[:, None])  # L x, of covariance L
    answer = solve(graph, graph.center(image), Request(TOL))
    vectors, images = torch.empty(2, graph.num_nodes, 0, dtype=torch.float64, device=graph.device)
    vector, alphas, betas = answer.value, [], []
    image = circuit.divergence(graph, circuit.flow(graph, vector))
    for step in range(min(steps, graph.num_nodes - graph.num_components)):
        length = math.sqrt(max(float((vector * image).sum()), 0.0))
        if answer.stopped or length < 1e-12 * (betas[0] if betas else 1.0):
            break  # stopped, or all eigenvectors found
        betas.append(length)
        vectors, images = torch.cat([vectors, vector / length], 1), torch.cat([images, image / length], 1)
        image = circuit.divergence(sample, circuit.flow(sample, vectors[:, -1:]))
        alphas.append(float((vectors[:, -1:] * image).sum()))
        ratios = _ritz(alphas, betas[1:])
        gap = max(ratios[-1] - 1, 1 - ratios[0])
        if gap > eps:
            return gap, step + 1, False
        if progress and progress(before + step + 1, gap):
            return gap, step + 1, True
        answer = solve(graph, graph.center(image), Request(TOL))
        vector = answer.value
        for _ in range(2):  # orthogonalize against all before, twice because of rounding
            vector = vector - vectors @ (images.mT @ vector)
        image = circuit.divergence(graph, circuit.flow(graph, vector))  # recomputed, as errors would grow with steps
    if answer.stopped:
        raise KeyboardInterrupt
    ratios = _ritz(alphas, betas[1 : len(alphas)])
    high = ratios[-1] / (1 - lack)
    low = high - (high - ratios[0]) / (1 - lack)
    return max(high - 1, 1 - low), len(alphas), False


def _ritz(alphas: list[float], betas: list[float]) -> list[float]:
    """Return the eigenvalues of a symmetric tridiagonal matrix."""
    off: Float[Tensor, " steps_less_one"] = torch.tensor(betas, dtype=torch.float64)
    return torch.linalg.eigvalsh(
        torch.diag(torch.tensor(alphas, dtype=torch.float64)) + torch.diag(off, -1), UPLO="L"
    ).tolist()
