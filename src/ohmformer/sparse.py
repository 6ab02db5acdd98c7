"""The sparse engine: Chebyshev layers on graphs of any size, one CSR product a layer, no n x n array anywhere.

The layers are those of :class:`~ohmformer.constructions.Chebyshev` on ``D^-1/2 L D^-1/2`` (appendix E of the paper, D the
Gram degrees), whose eigenvalues lie in (0, 2] whatever the resistances. What differs from the Transformer's forward pass is
bookkeeping: buffers are reused, and the work is done in float32 with the residual taken in float64, round by round.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer.constructions.electric import Chebyshev
from ohmformer.graph import Graph, Spectrum

LARGEST = 2.0
"""No eigenvalue of a normalised Laplacian is larger."""
ROUND = 1e-3
"""By how much one round in float32 reduces the residual."""


@dataclass(frozen=True)
class Scaled:
    """``D^-1/2 L D^-1/2`` of a graph, in double and in single precision, and ``D^-1/2``."""

    matrix: Tensor
    single: Tensor
    root: Float[Tensor, " nodes"]
    """``D^-1/2``, zero on isolated nodes."""

    @classmethod
    def of(cls, graph: Graph) -> Scaled:
        """The scaled Laplacian, all graphs of a batch as one block-diagonal matrix."""
        resistance = graph.resistance.detach().double()
        tail, head = graph.edge_index
        c = resistance.reciprocal()
        degree = c.new_zeros(graph.num_nodes).index_add(0, torch.cat([tail, head]), torch.cat([c, c]))
        root = torch.where(degree > 0, degree, 1.0).rsqrt() * (degree > 0)
        off = -c * root[tail] * root[head]
        nodes = torch.arange(graph.num_nodes, device=graph.device)
        index = torch.stack([torch.cat([tail, head, nodes]), torch.cat([head, tail, nodes])])
        values = torch.cat([off, off, (degree > 0).double()])
        entries = torch.sparse_coo_tensor(index, values, (graph.num_nodes, graph.num_nodes), check_invariants=False)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            matrix = entries.coalesce().to_sparse_csr()
            matrix = torch.sparse_csr_tensor(
                matrix.crow_indices().int(),
                matrix.col_indices().int(),
                matrix.values(),
                matrix.shape,
                check_invariants=False,
            )
            return cls(matrix, matrix.float(), root)

    def project(self, graph: Graph, x: Float[Tensor, "nodes k"]) -> Float[Tensor, "nodes k"]:
        """``x`` without its part in the null space: isolated nodes, and ``D^1/2 1`` on every other component."""
        linked = (self.root > 0)[:, None]
        weight = torch.where(linked, 1 / torch.where(linked, self.root[:, None], 1.0), 0.0)
        x = torch.where(linked, x, 0.0)
        zeros = x.new_zeros(graph.num_components, x.shape[1])
        along = zeros.index_add(0, graph.components, weight * x)
        size = zeros[:, :1].index_add(0, graph.components, weight.square())
        return x - weight * (along / torch.where(size > 0, size, 1.0))[graph.components]


@dataclass(frozen=True)
class Lowest:
    """What Lanczos says of the smallest nonzero eigenvalue of the scaled Laplacian."""

    value: float
    """An estimate that leans to the low side."""
    separated: bool
    """False if the iteration has not settled: the eigenvalue may be far smaller."""


def lowest_eigenvalue(graph: Graph, scaled: Scaled, *, steps: int = 200, seed: int = 0) -> Lowest:
    """The smallest nonzero eigenvalue of the scaled Laplacian by Lanczos, from a seeded start.

    A Ritz value lies above the eigenvalue that it is for; its residual, which says how far, is taken off.
    """
    draw = torch.Generator().manual_seed(seed)
    q = scaled.project(graph, torch.randn(graph.num_nodes, 1, generator=draw, dtype=torch.float64).to(graph.device))
    norm = float(q.norm())
    if norm == 0:
        return Lowest(LARGEST, separated=True)
    q, before, beta = q / norm, torch.zeros_like(q), 0.0
    diagonal: list[float] = []
    beside: list[float] = []
    estimate, separated = LARGEST, False
    for step in range(steps):
        w = scaled.matrix @ q - beta * before
        alpha = float((w * q).sum())
        w = scaled.project(graph, w - alpha * q)
        diagonal.append(alpha)
        beta = float(w.norm())
        if (step + 1) % 10 == 0 or beta < 1e-12 or step + 1 == steps:
            tridiagonal = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
            values, vectors = np.linalg.eigh(tridiagonal)
            leftover = beta * abs(vectors[-1, 0])
            last, estimate = estimate, float(values[0] - min(leftover, values[0] / 2))
            settled = leftover < values[0] / 4 and abs(last - estimate) < 0.05 * estimate
            separated = beta < 1e-12 or bool(settled)
            if separated:
                break
        beside.append(beta)
        before, q = q, w / beta
    return Lowest(min(max(0.95 * estimate, 1e-14), LARGEST), separated)


def chebyshev_round(
    matrix: Tensor, demand: Float[Tensor, "nodes k"], construction: Chebyshev, layers: int
) -> Float[Tensor, "nodes k"]:
    """``layers`` layers of Chebyshev's construction from zero, in two buffers.

    A layer is ``x <- omega x + (1 - omega) x_before + omega gamma (demand - N x)``, where the first two terms are one
    interpolation in place, and the product is added in place.
    """
    x, before = torch.zeros_like(demand), torch.zeros_like(demand)
    for l, omega in enumerate(construction.omegas(layers)):
        step = omega * construction.gamma
        before.lerp_(x, omega).add_(demand, alpha=step)
        if l > 0:
            torch.addmm(before, matrix, x, beta=1.0, alpha=-step, out=before)
        x, before = before, x
    return x


@dataclass(frozen=True)
class Solved:
    """Potentials, the relative residual of the worst demand, and what it took."""

    potentials: Float[Tensor, "nodes k"]
    residual: float
    layers: int
    spectrum: Spectrum
    """Of the scaled Laplacian: an estimate from below for lmin, 2 for lmax."""


def layers_for(tol: float, lmin: float) -> int:
    """Layers that reduce every residual by ``tol``, rounds counted: each of them reduces it by :data:`ROUND`."""
    rounds = max(1, math.ceil(math.log(tol) / math.log(ROUND) - 1e-9))
    return rounds * Chebyshev(Spectrum(lmin, LARGEST)).layers_for(tol ** (1 / rounds) / lmin)


def solve(
    graph: Graph,
    demands: Float[Tensor, "nodes k"],
    tol: float,
    *,
    scaled: Scaled | None = None,
    lmin: float | None = None,
    progress: Callable[[int, float], bool] | None = None,
) -> Solved:
    """``L^+ psi`` for centred demands to a relative residual ``|psi - L phi| / |psi| <= tol``, or as near as float64 gets.

    ``progress(layers, residual)`` is called after every round and stops the work by returning True; so does Ctrl-C, and
    either way the best answer so far is returned with its residual. Where a round falls short of its promise, lmin was
    estimated too high, and is halved.
    """
    scaled = Scaled.of(graph) if scaled is None else scaled
    lmin = lowest_eigenvalue(graph, scaled).value if lmin is None else lmin
    root = scaled.root[:, None]
    back = torch.where(root > 0, 1 / torch.where(root > 0, root, 1.0), 0.0)
    norm = demands.norm(dim=0)
    norm = torch.where(norm > 0, norm, 1.0)
    b = root * demands
    y, r = torch.zeros_like(b), b
    best_y, best, layers = y, 1.0 if demands.any() else 0.0, 0
    while best > tol:
        rounds = max(1, math.ceil(math.log(tol / best) / math.log(ROUND) - 1e-9))
        goal = 0.7 * (tol / best) ** (1 / rounds)
        construction = Chebyshev(Spectrum(lmin, LARGEST))
        depth = construction.layers_for(goal / lmin)
        size = r.norm(dim=0).clamp(min=torch.finfo(torch.float64).tiny)
        try:
            y = torch.addcmul(best_y, size, chebyshev_round(scaled.single, (r / size).float(), construction, depth).double())
        except KeyboardInterrupt:
            break
        r = torch.addmm(b, scaled.matrix, y, alpha=-1.0)
        residual = float(((back * r).norm(dim=0) / norm).max())
        layers += depth
        if residual > 0.5 * best and lmin < 1e-13:
            break  # float64 gives no more
        if residual > 4 * goal * best:
            lmin /= 2
        stalled = residual > 0.9 * best
        if residual < best:
            best_y, best = y, residual
        else:
            r = torch.addmm(b, scaled.matrix, best_y, alpha=-1.0)
        if (progress and progress(layers, best)) or stalled:
            break
    return Solved(graph.center(root * best_y), best, layers, Spectrum(lmin, LARGEST))
