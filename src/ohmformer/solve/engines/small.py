"""Graphs small enough for an n x n state: ``L^+`` of all graphs of a batch, by Chebyshev cubing in padded buckets.

Graphs of like size are inverted together (:mod:`.cubing`), each of them scaled, ``N = D^-1/2 L D^-1/2``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ohmformer.graph import Graph
from ohmformer.graph.spectrum import Spectrum
from ohmformer.solve.engines import small_compiled
from ohmformer.solve.engines.cubing import LARGEST, Plan, Scaled, invert_

ENTRIES = 2**18
"""Matrix entries that go through the layers together: as many as a cache holds, whatever the batch."""


@dataclass(frozen=True)
class Block:
    """Graphs of like size, whose matrices lie beside each other, padded to one width."""

    which: Int[Tensor, " graphs"]
    """Their numbers in the batch."""
    node: Int[Tensor, "graphs width"]
    """The numbers of their nodes in the batch, -1 on padding."""
    start: int
    """Where their matrices begin in the buffer."""
    first_row: int
    """Where their nodes begin among all nodes and padding."""

    def of(self, buffer: Float[Tensor, " entries"]) -> Float[Tensor, "graphs width width"]:
        """These graphs' matrices."""
        graphs, width = self.node.shape
        return buffer[self.start : self.start + graphs * width**2].view(graphs, width, width)

    def rows_of(self, rows: Shaped[Tensor, "rows k"]) -> Shaped[Tensor, "graphs width k"]:
        """These graphs' nodes."""
        return rows[self.first_row : self.first_row + self.node.numel()].view(*self.node.shape, rows.shape[1])


class Buckets:
    """Where the matrices of a batch's graphs lie in one flat buffer. Padding costs three nodes or an eighth of a graph.

    ``together`` is how many matrix entries go into a block.
    """

    def __init__(self, graph: Graph, together: int = ENTRIES) -> None:
        sizes, offsets = graph.graph_sizes.cpu().numpy(), graph.graph_offsets.cpu().numpy()
        step = np.maximum(4, 2 ** np.floor(np.log2(np.maximum(sizes, 1) / 8)).clip(min=1)).astype(np.int64)
        widths = -(-sizes // step) * step
        bases, first_rows = np.zeros((2, graph.num_graphs), dtype=np.int64)
        on_device = partial(torch.as_tensor, device=graph.device)
        self.blocks: list[Block] = []
        self.entries = self.rows = 0
        for width in np.unique(widths):
            members = np.nonzero(widths == width)[0]
            for which in np.split(members, range(0, len(members), max(1, together // max(1, width**2)))[1:]):
                slot = np.arange(width)
                node = np.where(slot < sizes[which, None], offsets[which, None] + slot, -1)
                bases[which] = self.entries + np.arange(len(which)) * width**2
                first_rows[which] = self.rows + np.arange(len(which)) * width
                self.blocks.append(Block(on_device(which), on_device(node), self.entries, self.rows))
                self.entries += len(which) * int(width) ** 2
                self.rows += len(which) * int(width)

        def of_node(x: np.ndarray) -> Tensor:
            return on_device(x).index_select(0, graph.batch)

        self.base, self.stride = on_device(bases), on_device(widths)
        """Where the matrix of every graph begins, and how many columns it has."""
        node = torch.arange(graph.num_nodes, device=graph.device)
        self._slot = node - of_node(offsets)
        self._line = of_node(bases) + self._slot * of_node(widths)
        self.row: Int[Tensor, " nodes"] = node + of_node(first_rows - offsets)
        """The place of every node among all nodes and padding."""

    def padded(self, x: Shaped[Tensor, " nodes"]) -> Shaped[Tensor, "rows 1"]:
        """Among all nodes and padding, where it is zero."""
        return x.new_zeros(self.rows).index_copy_(0, self.row, x)[:, None]

    def index(self, u: Int[Tensor, " pairs"], v: Int[Tensor, " pairs"]) -> Int[Tensor, " pairs"]:
        """Where the entry of two nodes of one graph lies."""
        return self._line.index_select(0, u) + self._slot.index_select(0, v)

    def diagonal(self) -> Int[Tensor, " nodes"]:
        """Where the diagonal entry of every node lies."""
        return self._line + self._slot


@dataclass(frozen=True)
class Inverses:
    """A symmetric X with ``L X L = L`` for every graph of a batch, and what it is worth.

    Between demands that sum to zero on each component, X is ``L^+``.
    """

    buckets: Buckets
    buffer: Float[Tensor, " entries"]
    layers: int
    residual: float
    """Measured: ``|psi - L X psi|`` of the worst ``psi = e_j - d / vol``, one unit in at a node, out by the degrees."""
    bound: float
    """Proved, in exact arithmetic, for every demand over its norm."""
    spectrum: Spectrum
    """Of the scaled Laplacians."""

    def apply(self, psi: Float[Tensor, "nodes k"]) -> Float[Tensor, "nodes k"]:
        """``X psi``, which is ``L^+ psi`` up to a constant on each component."""
        padded = torch.cat([psi, psi.new_zeros(1, psi.shape[1])]).to(self.buffer)
        phi = torch.zeros_like(padded)
        for block in self.buckets.blocks:
            phi = phi.index_put((block.node,), block.of(self.buffer) @ padded[block.node])
        return phi[:-1].to(psi.dtype)

    def between(self, u: Int[Tensor, " pairs"], v: Int[Tensor, " pairs"]) -> Float[Tensor, " pairs"]:
        """``X_uu + X_vv - X_uv - X_vu``: the effective resistance of pairs of nodes of one component."""
        at = self.buckets.index
        x = self.buffer
        return x[at(u, u)] + x[at(v, v)] - x[at(u, v)] - x[at(v, u)]

    def all_pairs(self, graph: Graph) -> Float[Tensor, "graphs width width"]:
        """Effective resistances of all pairs; ``inf`` between components, zero on padding."""
        compiled = small_compiled.all_pairs(graph, self.buckets, self.buffer)
        if compiled is not None:
            return compiled
        width = graph.width
        out = self.buffer.new_zeros(graph.num_graphs, width, width)
        labels = torch.cat([graph.components, graph.components.new_full((1,), -1)])
        for block in self.buckets.blocks:
            x, real = block.of(self.buffer), block.node >= 0
            sides = torch.stack([x.diagonal(dim1=-2, dim2=-1), real.to(x.dtype)], dim=-1)
            resistance = torch.baddbmm(x, sides, sides.flip(-1).mT, beta=-2.0)  # X_uu + X_vv - 2 X_uv
            resistance.relu_()
            if not graph.connected:
                label = labels[block.node]
                apart = (label[:, :, None] != label[:, None, :]) & real[:, :, None] & real[:, None, :]
                resistance = resistance.masked_fill(apart, torch.inf)
            most = min(width, x.shape[-1])
            out[block.which, :most, :most] = resistance[:, :most, :most]
        return out


def invert(graph: Graph, tol: float) -> Inverses:
    """``L^+`` of every graph, in float64, to a residual of ``tol`` for every demand; differentiable in the resistances."""
    run = _Run(graph, tol)
    buffer = _Inverse.apply(graph.resistance, run)
    assert isinstance(buffer, Tensor)
    return Inverses(run.buckets, buffer, run.layers, run.residual, run.bound, Spectrum(run.lmin, LARGEST))


class _Inverse(torch.autograd.Function):
    """``X(r)``. As ``dX = -X dL X`` between demands, edge (u, v) gets ``(M_uu + M_vv - M_uv - M_vu) / r^2``, M = X G X."""

    @staticmethod
    def forward(ctx: Any, resistance: Tensor, run: _Run) -> Tensor:
        buffer = run.go()
        ctx.run = run
        ctx.save_for_backward(resistance, buffer)
        return buffer

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        resistance, buffer = ctx.saved_tensors
        buckets = ctx.run.buckets
        m = torch.empty_like(buffer)
        for block in buckets.blocks:
            x = block.of(buffer)
            torch.matmul(x @ block.of(gradients[0]), x, out=block.of(m))
        u, v = ctx.run.graph.edge_index
        at = buckets.index
        drop = m[at(u, u)] + m[at(v, v)] - m[at(u, v)] - m[at(v, u)]
        return (drop / resistance.square()).to(resistance.dtype), None


class _Run:
    """One inversion: the plan, the work block by block, and the certificate it leaves."""

    def __init__(self, graph: Graph, tol: float) -> None:
        self.graph, self.tol = graph, tol
        self.buckets = Buckets(graph)
        self.layers, self.residual, self.bound, self.lmin = 0, 0.0, 0.0, LARGEST

    def go(self) -> Float[Tensor, " entries"]:
        """Invert every block."""
        graph = self.graph
        degree = torch.as_tensor(graph.degrees(), device=graph.device)
        root = torch.where(degree > 0, degree, torch.inf).rsqrt()
        label = graph.components
        volume = degree.new_zeros(graph.num_components).index_add_(0, label, degree)
        null = torch.where(degree > 0, (degree / torch.where(volume > 0, volume, 1.0)[label]).sqrt(), 0.0)
        lowest, spread = graph.scaled_spectral_bounds(), _degree_spreads(graph, degree)
        plans = []
        for block in self.buckets.blocks:
            which = block.which.cpu().numpy()
            plans.append(Plan.of(float(lowest[which].min()), float(spread[which].max()), self.tol))
        if small_compiled.takes(graph, plans):
            buffer, residual, squared = small_compiled.invert(graph, self.buckets, plans, degree, root, null)
            found = [(float(residual[b.which].max()), int(squared[b.which].max())) for b in self.buckets.blocks]
        else:
            buffer, of_nodes = self._scaled(root), [self.buckets.padded(x) for x in (degree, root, null, label + 1)]
            found = []
            for block, plan in zip(self.buckets.blocks, plans, strict=True):
                of_block = [block.rows_of(x)[..., 0] for x in of_nodes]
                found.append(invert_(Scaled(graph.connected, block.of(buffer), *of_block), plan))
        for plan, (residual, squarings) in zip(plans, found, strict=True):
            self.layers, self.residual = max(self.layers, plan.depth + squarings), max(self.residual, residual)
            self.bound, self.lmin = max(self.bound, plan.bound), min(self.lmin, plan.cubing.spectrum.lmin)
        return buffer

    def _scaled(self, root: Float[Tensor, " nodes"]) -> Float[Tensor, " entries"]:
        """The buffer of ``N = D^-1/2 L D^-1/2``."""
        at, (u, v) = self.buckets.index, self.graph.edge_index
        off = -self.graph.resistance.detach().double().reciprocal() * root[u] * root[v]
        place = torch.cat([at(u, v), at(v, u), self.buckets.diagonal()])
        return root.new_zeros(self.buckets.entries).index_add_(0, place, torch.cat([off, off, (root > 0).double()]))


def _degree_spreads(graph: Graph, degree: Float[Tensor, " nodes"]) -> Float[np.ndarray, " graphs"]:
    """``sqrt(max degree / min degree)`` of every graph, isolated nodes aside."""
    high = degree.new_zeros(graph.num_graphs).scatter_reduce(0, graph.batch, degree, "amax")
    smallest = torch.where(degree > 0, degree, torch.inf)
    low = degree.new_full((graph.num_graphs,), torch.inf).scatter_reduce(0, graph.batch, smallest, "amin")
    return (high / low).sqrt().clamp(min=1.0).cpu().numpy()
