"""What is found out about the spectrum of a graph before its engine is chosen, within a share of the predicted time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

from ohmformer import native
from ohmformer.graph import Graph, Spectrum
from ohmformer.solve import costs
from ohmformer.solve.costs import FEW, MAYBE_LONG, NATIVE_DEMANDS, NATIVE_NODES, PROBING, REASONABLE
from ohmformer.solve.distances import lmin_at_most
from ohmformer.solve.engines.chebyshev import layers_for
from ohmformer.solve.scaled import LARGEST, STEPS, Extremes, known_ends, prepared


@dataclass(frozen=True)
class Probe:
    """What is known of the spectrum of a graph before its engine is chosen."""

    most: int
    """The layers, or steps of conjugate gradients, that take as long as elimination."""
    floor: float
    """The smallest eigenvalue at which they suffice."""
    steps: int
    """The steps that probing may take."""
    ends: Extremes | None
    """None where the steps of conjugate gradients will show it."""


def probe(graph: Graph, demands: int, tol: float, limit: float) -> Probe:
    """Look at the spectrum, with ``limit`` the predicted seconds of elimination.

    No steps are taken on graphs whose distances show a small spectral gap. For few demands, conjugate gradients are tried
    for 15 % of that time, and for longer while they are seen to be faster; as their steps are part of the solve, nothing is
    probed. For more, Lanczos estimates the layers of chebyshev and ends likewise, unless these most likely take less than
    half of that time.
    """
    nodes, edges = graph.num_nodes, graph.num_edges
    if not has_kernels(graph):
        floor = lmin_of(REASONABLE, tol)
        return Probe(REASONABLE, floor, STEPS, prepared(graph, floor=floor, steps=STEPS)[1])
    seconds = _seconds_of_steps(graph, demands)
    first, each = seconds(1), seconds(2) - seconds(1)
    most = min(max(1 + int((limit - first) / each), 20), REASONABLE)
    floor = lmin_of(most, tol)
    step = each if demands <= FEW else costs.lanczos_step(nodes, edges)
    steps = min(max(int(PROBING * limit / step), 1), STEPS)
    if edges <= MAYBE_LONG * nodes and (lmin := lmin_at_most(graph)) < floor:
        return Probe(most, floor, steps, Extremes(Spectrum(lmin, LARGEST), separated=False))
    if demands <= FEW:
        return Probe(most, floor, steps, known_ends(graph, floor=floor, steps=steps))
    found = prepared(graph, floor=floor, steps=steps)[1]
    if not found.separated and 2 * seconds(layers_for(tol, found.spectrum)) < limit:
        found = prepared(graph, floor=floor)[1]  # chebyshev will most likely be chosen, and needs the spectrum
    return Probe(most, floor, steps, found)


def _seconds_of_steps(graph: Graph, demands: int) -> Callable[[int], float]:
    """Return the predicted seconds of steps of conjugate gradients, for few demands, or of layers of chebyshev."""
    size = graph.num_nodes, graph.num_edges
    if demands <= FEW:
        return partial(costs.conjugate, *size, demands + (known_ends(graph) is None))  # one more for a random demand
    return partial(costs.chebyshev, *size, demands, in_c=graph.num_nodes >= NATIVE_NODES and demands >= NATIVE_DEMANDS)


@lru_cache(maxsize=64)
def lmin_of(layers: int, tol: float) -> float:
    """Return the smallest eigenvalue of the scaled Laplacian at which chebyshev takes this many layers."""
    low, high = 1e-14, LARGEST
    for _ in range(20):  # to a few digits
        middle = math.sqrt(low * high)
        low, high = (middle, high) if layers_for(tol, Spectrum(middle, LARGEST)) > layers else (low, middle)
    return low


def has_kernels(graph: Graph) -> bool:
    """Return whether factors are computed in C."""
    return native.active() is not None and graph.device.type == "cpu" and 2 * graph.num_edges < 2**31
