"""What is known of a spectrum before anything is computed: an interval, and cheap bounds that lead to one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int


@dataclass(frozen=True)
class Spectrum:
    """An interval ``[lmin, lmax]`` known to contain every *nonzero* eigenvalue of a Laplacian.

    >>> Spectrum(0.5, 4.0).condition
    8.0
    """

    lmin: float
    lmax: float

    def __post_init__(self) -> None:
        if not (0 < self.lmin <= self.lmax < math.inf):
            raise ValueError(f"a spectrum needs 0 < lmin <= lmax < inf, got lmin={self.lmin!r}, lmax={self.lmax!r}")

    @property
    def condition(self) -> float:
        """The ratio lmax / lmin."""
        return self.lmax / self.lmin


def resistance_bounds(
    edges: Int[np.ndarray, "2 edges"], resistance: Float[np.ndarray, " edges"], component: Int[np.ndarray, " nodes"]
) -> Float[np.ndarray, " components"]:
    """Bound the effective resistances within each component; zero for components without edges.

    An effective resistance is at most the length of a path, so both the sum of all resistances and twice the largest
    distance from one node are bounds. For small components that are nearly trees only the sum is used, not much larger.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    nodes, components = len(component), int(component.max(initial=-1)) + 1
    total = np.bincount(component[edges[0]], resistance, components).astype(np.float64)
    if edges.shape[1] <= 1.25 * nodes and np.bincount(component, minlength=1).max() <= 64:
        return total
    order = np.argsort(edges[0], kind="stable")
    start = np.concatenate([[0], np.cumsum(np.bincount(edges[0], minlength=nodes))])
    lengths = csr_array((resistance[order], edges[1][order], start), shape=(nodes, nodes))  # parallel edges stay separate
    roots = np.full(components, nodes)
    np.minimum.at(roots, component, np.arange(nodes))
    distance = dijkstra(lengths, directed=False, indices=roots, min_only=True)
    reach = np.zeros(components)
    np.maximum.at(reach, component, distance)
    return np.minimum(2 * reach, total)
