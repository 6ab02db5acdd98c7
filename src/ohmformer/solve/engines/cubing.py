"""Engine ``cubing``: ``L^+`` of every small graph of a batch as a matrix, by Chebyshev cubing.

Graphs of similar size are inverted together, each scaled as ``N = D^-1/2 L D^-1/2``: by torch in padded blocks
(:mod:`~ohmformer.solve.engines.cubing_layers`) or in C graph by graph (:mod:`~ohmformer.solve.engines.cubing_native`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ohmformer.graph import Graph, Spectrum
from ohmformer.graph.blocks import Blocks
from ohmformer.graph.memory import recall
from ohmformer.graph.ragged import Matrices
from ohmformer.solve.answer import Answer
from ohmformer.solve.certificate import EPS, MARGIN, energy_norm, measure, sum_over_graphs
from ohmformer.solve.engines import cubing_native
from ohmformer.solve.engines.base import DENSE, Problem
from ohmformer.solve.engines.cubing_layers import Depth, ScaledBlock, invert_
from ohmformer.solve.scaled import LARGEST

KEPT = 2**27
"""Maximum bytes of inverses kept for the next question."""


class CubingEngine:
    """Whole inverses by Chebyshev cubing, applied to the demands."""

    def supports(self, problem: Problem) -> str | None:
        """Support graphs whose matrices fit in memory."""
        width = problem.graph.width
        return None if width <= DENSE else f"expected at most {DENSE} nodes for method='cubing', got {width}"

    def run(self, problem: Problem) -> Answer:
        """Invert every graph and apply the inverses to the demands."""
        graph, psi = problem.graph, problem.demands
        inverses = invert(graph, problem.tol, native=problem.part.native)
        phi = graph.center(inverses.apply(psi))
        now = measure(graph, phi, psi)
        certificate = {"error": now.error(inverses.energy_norm(graph, now.left)), "error_kind": "bound"}
        return Answer(phi, "cubing", inverses.layers, now.residual, inverses.bound, inverses.spectrum, **certificate)


@dataclass(frozen=True)
class Inverses:
    """A symmetric X with ``L X L = L`` for every graph of a batch, with its certificate.

    Between demands that sum to zero on each component, X is ``L^+``.
    """

    blocks: Blocks
    native: bool
    buffer: Float[Tensor, " entries"]
    layers: int
    residual: float
    """Measured: ``|psi - L X psi|`` of the worst ``psi = e_j - d / vol``: a unit in at a node, out by degrees."""
    bound: float
    """Proved in exact arithmetic, for every demand relative to its norm."""
    spectrum: Spectrum
    """The spectrum of the scaled Laplacians."""
    resistance_error: float
    """Proved bound on the relative error of :meth:`between`."""

    def apply(self, psi: Float[Tensor, "nodes k"]) -> Float[Tensor, "nodes k"]:
        """Compute ``X psi``, which is ``L^+ psi`` up to a constant on each component."""
        blocks = self.blocks
        padded = self.buffer.new_zeros(blocks.rows, psi.shape[1]).index_copy(0, blocks.row, psi.to(self.buffer))
        phi = [(block.of(self.buffer) @ block.rows_of(padded)).flatten(0, 1) for block in blocks.blocks]
        return torch.cat(phi).index_select(0, blocks.row).to(psi.dtype)

    def energy_norm(self, graph: Graph, psi: Float[Tensor, "nodes k"]) -> Float[Tensor, "graphs k"]:
        """Bound ``|L^+ psi|_L`` from above: by ``|X psi|_L / (1 - |1 - L X|)``, or by the smallest eigenvalue.

        The norm ``|1 - L X|`` is at most ``sqrt(n)`` times that of the longest column.
        """
        left = math.sqrt(graph.width) * self.residual
        if left < 0.5:
            return MARGIN * energy_norm(graph, self.apply(psi)) / (1 - left)
        degree = torch.as_tensor(graph.degrees(), device=psi.device)[:, None]
        scaled = torch.where(degree > 0, psi.square() / torch.where(degree > 0, degree, 1.0), 0.0)
        return (sum_over_graphs(graph, scaled) / self.spectrum.lmin).sqrt()

    def between(self, u: Int[Tensor, " pairs"], v: Int[Tensor, " pairs"]) -> Float[Tensor, " pairs"]:
        """Compute ``X_uu + X_vv - X_uv - X_vu``, the effective resistance of pairs of nodes of the same component."""
        return _across(self.buffer, self.blocks, u, v)

    def all_pairs(self, graph: Graph) -> Matrices:
        """Compute effective resistances of all pairs, one matrix per graph; ``inf`` between components."""
        if self.native and not self.buffer.requires_grad:
            return cubing_native.all_pairs(graph, self.blocks, self.buffer)
        labels = torch.cat([graph.components, graph.components.new_full((1,), -1)])
        parts = []
        for block in self.blocks.blocks:
            x, real = block.of(self.buffer), block.node >= 0
            sides = torch.stack([x.diagonal(dim1=-2, dim2=-1), real.to(x.dtype)], dim=-1)
            resistance = torch.baddbmm(x, sides, sides.flip(-1).mT, beta=-2.0)  # X_uu + X_vv - 2 X_uv
            resistance.relu_()
            if not graph.connected:
                label = labels[block.node]
                resistance = resistance.masked_fill(label[:, :, None] != label[:, None, :], torch.inf)
            parts.append((block.which, Matrices.unpad(resistance, graph.graph_sizes[block.which])))
        return Matrices.join(parts, graph.num_graphs)


def invert(graph: Graph, tol: float, *, native: bool) -> Inverses:
    """Compute ``L^+`` of every graph in float64 to a residual of ``tol``; differentiable in the resistances.

    Kept for the next question, unless it requires a gradient or takes more than :data:`KEPT`.
    """
    differentiable = torch.is_grad_enabled() and graph.resistance.requires_grad
    if differentiable or 8 * int(graph.graph_sizes.square().sum()) > KEPT:
        return _inverted(graph, tol, native)
    made = recall(graph, ("inverses", native), lambda: (tol, _inverted(graph, tol, native)), fits=lambda it: it[0] <= tol)
    return made[1]


def _inverted(graph: Graph, tol: float, native: bool) -> Inverses:
    run = _Run(graph, tol, native)
    buffer = _Inverse.apply(graph.resistance, run)
    assert isinstance(buffer, Tensor)
    return Inverses(run.blocks, native, buffer, run.layers, run.residual, run.bound, Spectrum(run.lmin, LARGEST), run.error)


def _across(
    x: Float[Tensor, " entries"], blocks: Blocks, u: Int[Tensor, " pairs"], v: Int[Tensor, " pairs"]
) -> Float[Tensor, " pairs"]:
    """Compute ``X_uu + X_vv - X_uv - X_vu`` from the buffer of the matrices."""
    uu, vv, uv, vu = (x.index_select(0, blocks.index(a, b)) for a, b in ((u, u), (v, v), (u, v), (v, u)))
    return uu + vv - uv - vu


class _Inverse(torch.autograd.Function):
    """``X(r)``. As ``dX = -X dL X`` between demands, edge (u, v) gets ``(M_uu + M_vv - M_uv - M_vu) / r^2``, M = X G X."""

    @staticmethod
    def forward(ctx: Any, resistance: Tensor, run: _Run) -> Tensor:
        buffer = run.go()
        ctx.blocks, ctx.edges = run.blocks, run.graph.edge_index
        ctx.save_for_backward(resistance, buffer)
        return buffer

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        resistance, buffer = ctx.saved_tensors
        m = torch.empty_like(buffer)
        for block in ctx.blocks.blocks:
            x = block.of(buffer)
            torch.matmul(x @ block.of(gradients[0]), x, out=block.of(m))
        drop = _across(m, ctx.blocks, *ctx.edges)
        return (drop / resistance.square()).to(resistance.dtype), None


class _Run:
    """One inversion, block by block: its depth, work and certificate."""

    def __init__(self, graph: Graph, tol: float, native: bool) -> None:
        self.graph, self.tol, self.native = graph, tol, native
        self.blocks = Blocks(graph)
        self.layers, self.residual, self.bound, self.lmin, self.error = 0, 0.0, 0.0, LARGEST, 0.0

    def go(self) -> Float[Tensor, " entries"]:
        """Invert every block."""
        graph = self.graph
        degree = torch.as_tensor(graph.degrees(), device=graph.device)
        root = torch.where(degree > 0, degree, torch.inf).rsqrt()
        label = graph.components
        volume = degree.new_zeros(graph.num_components).index_add_(0, label, degree)
        share = degree / torch.where(volume > 0, volume, 1.0).index_select(0, label)
        null = torch.where(degree > 0, share.sqrt(), 0.0)
        lowest, spread = graph.scaled_spectral_bounds(), _degree_spreads(graph, degree)
        depths = []
        for block in self.blocks.blocks:
            which = block.which.cpu().numpy()
            depths.append(Depth.of(float(lowest[which].min()), float(spread[which].max()), self.tol))
        if self.native:
            buffer, residual, squared = cubing_native.invert(graph, self.blocks, depths, degree, root, null)
            found = [(float(residual[b.which].max()), int(squared[b.which].max())) for b in self.blocks.blocks]
        else:
            buffer, of_nodes = self._scaled(root), [self.blocks.padded(x) for x in (degree, root, null, label + 1)]
            found = []
            for block, depth in zip(self.blocks.blocks, depths, strict=True):
                of_block = [block.rows_of(x)[..., 0] for x in of_nodes]
                found.append(invert_(ScaledBlock(graph.connected, block.of(buffer), *of_block), depth))
        of_node = self.blocks.padded(degree * buffer.index_select(0, self.blocks.diagonal()))
        for block, depth, (residual, squarings) in zip(self.blocks.blocks, depths, found, strict=True):
            # R is off by w^T T w, w = L^+1/2 b, |w|^2 = R; T = 1 - L^1/2 X L^1/2 has the eigenvalues of 1 - L X. R takes
            # differences of entries of D^1/2 X D^1/2, the residual sums; both round relative to the largest one, as R >= 1/d
            width, largest = block.node.shape[1], block.rows_of(of_node).max() if block.node.numel() else 0.0
            error = math.sqrt(width) * residual + 8 * EPS * float(largest)
            residual, error = (x if x == x else math.inf for x in (residual, error))  # Python's max(0.0, nan) is 0.0
            self.error = max(self.error, error)
            self.layers, self.residual = max(self.layers, depth.depth + squarings), max(self.residual, residual)
            self.bound, self.lmin = max(self.bound, depth.bound), min(self.lmin, depth.cubing.spectrum.lmin)
        return buffer

    def _scaled(self, root: Float[Tensor, " nodes"]) -> Float[Tensor, " entries"]:
        """Return the buffer of ``N = D^-1/2 L D^-1/2``."""
        at, (u, v) = self.blocks.index, self.graph.edge_index
        off = -self.graph.resistance.detach().double().reciprocal() * root[u] * root[v]
        place = torch.cat([at(u, v), at(v, u), self.blocks.diagonal()])
        return root.new_zeros(self.blocks.entries).index_add_(0, place, torch.cat([off, off, (root > 0).double()]))


def _degree_spreads(graph: Graph, degree: Float[Tensor, " nodes"]) -> Float[np.ndarray, " graphs"]:
    """Compute ``sqrt(max degree / min degree)`` of every graph, without isolated nodes."""
    high = degree.new_zeros(graph.num_graphs).scatter_reduce(0, graph.batch, degree, "amax")
    smallest = torch.where(degree > 0, degree, torch.inf)
    low = degree.new_full((graph.num_graphs,), torch.inf).scatter_reduce(0, graph.batch, smallest, "amin")
    return (high / low).sqrt().clamp(min=1.0).cpu().numpy()
