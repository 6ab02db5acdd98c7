"""Graphs small enough for an n x n state: ``L^+`` of all graphs of a batch, by Chebyshev cubing in padded buckets.

The layers are those of :class:`~ohmformer.constructions.ChebyshevCubing` on ``N = D^-1/2 L D^-1/2`` in float32, followed by
a few of :class:`~ohmformer.constructions.Squaring`'s in float64 with the residual taken afresh, ``X <- X + X (P - N X)``,
each of which squares what is left. Depth comes from proved bounds on the spectrum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ohmformer.constructions.electric import ChebyshevCubing, inverse_chebyshev
from ohmformer.graph import Graph
from ohmformer.spectrum import Spectrum

LARGEST = 2.0
"""No eigenvalue of a normalised Laplacian is larger."""
ENTRIES = 2**18
"""Matrix entries that go through the layers together: as many as a cache holds, whatever the batch."""
MOST_SQUARINGS = 8


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

    def rows_of(self, rows: Float[Tensor, "rows k"]) -> Float[Tensor, "graphs width k"]:
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

        node = torch.arange(graph.num_nodes, device=graph.device)
        self._slot = node - of_node(offsets)
        self._line = of_node(bases) + self._slot * of_node(widths)
        self.row: Int[Tensor, " nodes"] = node + of_node(first_rows - offsets)
        """The place of every node among all nodes and padding."""

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
        width = graph.width
        out = self.buffer.new_zeros(graph.num_graphs, width, width)
        labels = torch.cat([graph.components, graph.components.new_full((1,), -1)])
        for block in self.buckets.blocks:
            x, real = block.of(self.buffer), block.node >= 0
            sides = torch.stack([x.diagonal(dim1=-2, dim2=-1), real.to(x.dtype)], dim=-1)
            resistance = torch.baddbmm(x, sides, sides.flip(-1).mT, beta=-2.0)  # X_uu + X_vv - 2 X_uv
            resistance.diagonal(dim1=-2, dim2=-1).zero_()
            resistance.relu_()
            if graph.num_components > graph.num_graphs:
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
        """Invert every block in a buffer of scaled Laplacians."""
        graph, at = self.graph, self.buckets.index
        u, v = graph.edge_index
        degree = torch.as_tensor(graph.degrees(), device=graph.device)
        root = torch.where(degree > 0, degree, torch.inf).rsqrt()
        off = -graph.resistance.detach().double().reciprocal() * root[u] * root[v]
        node = torch.arange(graph.num_nodes, device=graph.device)
        place, value = torch.cat([at(u, v), at(v, u), at(node, node)]), torch.cat([off, off, (degree > 0).double()])
        buffer = degree.new_zeros(self.buckets.entries).index_add_(0, place, value)

        label = graph.components
        volume = degree.new_zeros(graph.num_components).index_add_(0, label, degree)
        null = torch.where(degree > 0, (degree / torch.where(volume > 0, volume, 1.0)[label]).sqrt(), 0.0)
        lowest = graph.scaled_spectral_bounds()
        padded = [torch.cat([x, x.new_zeros(1)]) for x in (degree, root, null, label + 1)]
        for block in self.buckets.blocks:
            lmin = float(lowest[block.which.cpu().numpy()].min(initial=LARGEST))
            degree, root, null, label = (x[block.node] for x in padded)
            self._invert(block.of(buffer), degree, root, null, label, lmin)
        return buffer

    def _invert(self, n: Tensor, degree: Tensor, root: Tensor, null: Tensor, label: Tensor, lmin: float) -> None:
        """Replace N by ``D^-1/2 N^+ D^-1/2``, in place; ``null`` spans the null space of N on every component."""
        onto = null[:, :, None] * -null[:, None, :]
        if self.graph.num_components > self.graph.num_graphs:
            onto *= label[:, :, None] == label[:, None, :]
        onto.diagonal(dim1=-2, dim2=-1).add_(degree > 0)
        spread = _degree_spread(degree)

        cubing = ChebyshevCubing(Spectrum(lmin, LARGEST))
        goal = self.tol / (2 * spread)
        # at least one squaring in float64: rounding in float32 leaves a residual of about eps kappa, squared it is harmless
        dtype = torch.float32 if torch.finfo(torch.float32).eps * cubing.spectrum.condition < 0.1 else torch.float64
        reach = torch.finfo(dtype).eps * cubing.spectrum.condition
        squarings = int(dtype == torch.float32)
        while squarings < MOST_SQUARINGS and goal ** (0.5**squarings) < reach:
            squarings += 1
        depth = cubing.layers_for(goal ** (0.5**squarings) / lmin)

        x = _cube(cubing, n.to(dtype), onto.to(dtype), depth).double()
        left = torch.baddbmm(onto, n, x, alpha=-1.0)
        for _ in range(squarings):
            x += x.to(dtype) @ left.to(dtype)
            left = torch.baddbmm(onto, n, x, alpha=-1.0)
        residual = _longest_column(left, degree, root)
        while residual > self.tol and squarings < MOST_SQUARINGS:
            better = torch.baddbmm(x, x, left)
            left = torch.baddbmm(onto, n, better, alpha=-1.0)
            now = _longest_column(left, degree, root)
            if not now < residual / 2:
                break
            x, residual, squarings = better, now, squarings + 1
        torch.add(x, x.mT, out=n).mul_(0.5 * root[:, :, None]).mul_(root[:, None, :])
        left_of = inverse_chebyshev(3.0 ** max(depth - 1, 0), LARGEST / lmin)
        self.layers, self.residual = max(self.layers, depth + squarings), max(self.residual, residual)
        self.bound, self.lmin = max(self.bound, spread * left_of ** (2**squarings)), min(self.lmin, lmin)


def _cube(cubing: ChebyshevCubing, n: Tensor, onto: Tensor, layers: int) -> Tensor:
    """The layers of the construction on ``N`` and P; the second one needs no product for X, the last none for R.

    ``R <- (R^2 - u) R / (1 - u)`` and ``X <- (R^2 + R + 1 - u) X / (1 - u)``: scalars go to diagonals and into the products.
    """
    r, x = torch.sub(onto, n, alpha=cubing.start), onto * cubing.start  # not in place: in float64 it is the caller's own P
    offsets = cubing.offsets(layers - 1)
    for l, u in enumerate(offsets):
        by = 1 / (1 - u)
        square = r @ r
        both = square + r
        if l == 0:
            x.add_(both, alpha=by * cubing.start)
        else:
            both.diagonal(dim1=-2, dim2=-1).add_(1 - u)
            x = torch.baddbmm(x, both, x, beta=0, alpha=by)
        if l + 1 < len(offsets):
            square.diagonal(dim1=-2, dim2=-1).sub_(u)
            r = torch.baddbmm(r, square, r, beta=0, alpha=by)
    return x


def _longest_column(left: Tensor, degree: Tensor, root: Tensor) -> float:
    """The norm of the longest column of ``D^1/2 (P - N X) D^-1/2``, the residual in the graph's own coordinates."""
    squares = (degree[:, None, :] @ left.square())[:, 0, :] * root.square()
    return math.sqrt(float(squares.max())) if squares.numel() else 0.0


def _degree_spread(degree: Float[Tensor, "graphs width"]) -> float:
    """``sqrt(max degree / min degree)`` within a graph at most: what the scaling can do to the norm of a residual."""
    if not degree.numel():
        return 1.0
    high = degree.amax(dim=1)
    low = torch.where(degree > 0, degree, torch.inf).amin(dim=1)
    return math.sqrt(float((high / low).max())) if bool((high > 0).any()) else 1.0
