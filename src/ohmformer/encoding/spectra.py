"""Spectra of N of all graphs of a batch side by side, and functions of N read from them at pairs of nodes.

A graph of n nodes has n eigenvalues and n x n entries of eigenvectors. Both are stored flat, graph after graph, so that PyG
collates them without options. Nothing here needs to know a size on the host.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from ohmformer import native
from ohmformer.encoding.inputs import Pairs, SmallGraphs
from ohmformer.encoding.kernels import supports

DENSE = 2**25
"""Most entries for which functions of N are computed at all pairs of nodes in order to read some, if there is no kernel."""
SAME = 3e-7
"""Largest difference of two fingerprints of the same graph: half a unit of float32 between 2 and 4 is 1.2e-7."""
OTHERS = "expected the spectra of these graphs, got those of other edges, weights or Laplacian: use AddSpectrum again"


@dataclass(frozen=True)
class Spectra:
    """Eigenvalues and eigenvectors of every graph, with their positions per node."""

    values: Float[Tensor, " nodes"]
    """The eigenvalues of each graph, at the positions of its nodes."""
    vectors: Float[Tensor, " entries"]
    """The eigenvector matrices, nodes by eigenvalues, row by row."""
    start: Int[Tensor, " graphs_and_end"]
    """The first node of every graph, and the number of nodes."""
    owner: Int[Tensor, " nodes"]
    """The graph of every node."""
    size: Int[Tensor, " nodes"]
    """The number of nodes in the graph of every node."""
    first: Int[Tensor, " nodes"]
    """The first node of the graph of every node."""
    offset: Int[Tensor, " nodes"]
    """The position where every node's row of eigenvectors begins."""
    padded: bool
    """Whether there is padding between the rows."""

    @classmethod
    def arrange(cls, values: Tensor, vectors: Tensor, start: Tensor, owner: Tensor, width: int | None = None) -> Spectra:
        """Compute the positions of all rows; ``width`` is the common length of rows of eigenvectors if they are padded."""
        size = start.diff().index_select(0, owner)
        offset = size.cumsum(0) - size if width is None else width * torch.arange(len(owner), device=owner.device)
        return cls(values, vectors, start, owner, size, start.index_select(0, owner), offset, width is not None)

    def to(self, dtype: torch.dtype) -> Spectra:
        """Convert eigenvalues and eigenvectors to another dtype."""
        return replace(self, values=self.values.to(dtype), vectors=self.vectors.to(dtype))

    @classmethod
    def of(cls, pairs: Pairs, dtype: torch.dtype) -> Spectra:
        """Compute the spectra of graphs in float64 and round them to ``dtype``."""
        graph, start = pairs.graph, pairs.graph.nodes.start
        values = torch.zeros(graph.num_nodes, dtype=dtype, device=graph.device)
        squares = graph.graph_sizes.square()
        vectors = torch.zeros(int(squares.sum()), dtype=dtype, device=graph.device)
        found = cls.arrange(values, vectors, start, graph.batch)
        if supports("ohm_eigen", (values,), (), nodes=graph.width):
            native.call("ohm_eigen", *_grouped(pairs, start, squares), values, vectors)
            return found
        graphs = SmallGraphs.of(pairs)
        for block in graphs.layout.blocks:
            real, matrices = block.node >= 0, block.of(graphs.buffer)
            largest = pad(matrices.diagonal(dim1=1, dim2=2), (0, 1)).amax(dim=1, keepdim=True)
            above = 1 + 2 * largest  # N <= 2 diag(N), so eigenvalues of padding come last
            value, vector = eigh(matrices + torch.diag_embed(above * ~real))
            values[block.node[real]] = value.to(dtype)[real]
            place = found.offset[block.node.clamp(min=0)][:, :, None] + torch.arange(value.shape[1], device=graph.device)
            both = real[:, :, None] & real[:, None, :]
            vectors[place[both]] = vector.to(dtype)[both]
        return found

    def read(
        self,
        p: Float[Tensor, "nodes channels"],
        u: Int[Tensor, " rows"],
        v: Int[Tensor, " rows"],
        shift: Tensor | None = None,
    ) -> Float[Tensor, "rows channels"]:
        """Return ``(V diag(p) V^T)_uv`` of every channel plus ``shift``, given ``p`` on the eigenvalues.

        On the CPU sums are computed in float64: a norm may multiply rounding errors by 100.
        """
        channels, shift = p.shape[1], p.new_zeros(p.shape[1]) if shift is None else shift
        if supports("ohm_read_pairs", (p, self.vectors), (self.vectors,), channels=channels):
            missing = native.KERNELS["ohm_read_pairs"].limits["channels"] - channels
            if not missing:
                return _Read.apply(p, shift, self, u, v)  # pyright: ignore[reportReturnType]
            found = _Read.apply(pad(p, (0, missing)), pad(shift, (0, missing)), self, u, v)
            return found[:, :channels]  # pyright: ignore[reportIndexIssue]
        width, kind = self.widest(), p.dtype
        p = p.double() if p.device.type == "cpu" else p
        if u is v or self.padded or (len(self.start) - 1) * width**2 * channels > DENSE:
            return (self._read_plainly(p, u, v) + shift).to(kind)
        own, here = self.owner.index_select(0, u), self.first.index_select(0, u)
        found = self._dense(p, width).index_select(0, (own * width + u - here) * width + v - here)
        return (found + shift).to(kind)

    def widest(self) -> int:
        """Return an upper bound on the nodes per graph (Samuelson's) from tensor shapes alone, without a device transfer."""
        graphs, nodes = max(len(self.start) - 1, 1), len(self.values)
        mean = nodes / graphs
        return min(nodes, int(mean + math.sqrt(max(len(self.vectors) / graphs - mean**2, 0) * (graphs - 1)) + 1e-6))

    def _dense(self, p: Float[Tensor, "nodes channels"], width: int) -> Float[Tensor, "pairs channels"]:
        """Return ``V diag(p) V^T`` at all pairs of nodes, graphs padded to ``width``, by matrix products."""
        sizes, place = self.start.diff(), torch.arange(width, device=p.device)
        real = place < sizes[:, None]
        node = torch.where(real, self.start[:-1, None] + place, 0)
        entry = torch.where(real[:, :, None] & real[:, None], self.offset[node][:, :, None] + place, 0)
        vectors = torch.where(real[:, :, None] & real[:, None], self.vectors[entry], 0.0).to(p.dtype)
        on = torch.where(real[:, :, None], p[node], 0.0)
        return torch.einsum("giw,gwc,gjw->gijc", vectors, on, vectors).flatten(0, 2)

    def _read_plainly(self, p: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """Gather both rows of eigenvectors entry by entry, multiply them, and sum."""
        size = self.size.index_select(0, u)
        total = len(self.vectors) if u is v and not self.padded else None  # known without a device transfer
        row = torch.repeat_interleave(torch.arange(len(u), device=u.device), size, output_size=total)
        within = torch.arange(len(row), device=u.device) - (size.cumsum(0) - size).index_select(0, row)
        of_u, of_v = (self.vectors[self.offset.index_select(0, x).index_select(0, row) + within] for x in (u, v))
        product = of_u.to(p.dtype) * of_v
        values = p.index_select(0, self.first.index_select(0, u).index_select(0, row) + within)
        return p.new_zeros(len(u), p.shape[1]).index_add(0, row, product[:, None] * values)


def _grouped(pairs: Pairs, start: Tensor, squares: Tensor) -> tuple[Any, ...]:
    """Return the arguments of ``ohm_eigen``: graphs sorted by size, and node pairs sorted by graph."""
    u, v, off = pairs.u, pairs.v, pairs.off_diagonal.detach().double()
    if len(squares) == 1:
        none, diagonal = start[:1], pairs.diagonal.detach().double()
        return 1, none, start, torch.tensor([0, len(u)]), u.contiguous(), v.contiguous(), off.contiguous(), diagonal, none
    owner = pairs.graph.batch.index_select(0, u)
    if bool((owner.diff() < 0).any()):
        order = owner.argsort(stable=True)
        u, v, off, owner = (x.index_select(0, order) for x in (u, v, off, owner))
    edges = torch.bincount(owner, minlength=len(squares)).cumsum(0)
    arrays = squares.argsort(), start, torch.cat([edges.new_zeros(1), edges]), u, v, off, pairs.diagonal.detach().double()
    return len(squares), *(x.contiguous() for x in arrays), squares.cumsum(0) - squares


class _Read(torch.autograd.Function):
    """Read functions of N in C, sixteen channels at a time."""

    @staticmethod
    def forward(ctx: Any, p: Tensor, shift: Tensor, spectra: Spectra, u: Tensor, v: Tensor) -> Tensor:
        arrays = spectra.vectors, spectra.offset, spectra.first, spectra.size, u.contiguous(), v.contiguous()
        ctx.arrays, ctx.library, ctx.shape = arrays, native.active(), p.shape
        out = p.new_empty(len(u), p.shape[1])
        native.call("ohm_read_pairs", len(u), *arrays, p.contiguous(), shift.contiguous(), out)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        found = gradients[0].new_zeros(ctx.shape)
        ctx.library.call("ohm_read_pairs_backward", len(ctx.arrays[4]), *ctx.arrays, gradients[0].contiguous(), found)
        return found, gradients[0].sum(0) if ctx.needs_input_grad[1] else None, None, None, None


def eigh(matrices: Float[Tensor, "graphs width width"]) -> tuple[Tensor, Tensor]:
    """Return eigenvalues and eigenvectors, computed in float64, on the CPU if the device has no float64 (MPS)."""
    device = matrices.device
    found = torch.linalg.eigh((matrices.cpu() if device.type == "mps" else matrices).double())
    return tuple(x.float().to(device) for x in found) if device.type == "mps" else tuple(found)  # pyright: ignore[reportReturnType]


def fingerprint(
    edge_index: Int[Tensor, "2 edges"], weight: Tensor | None, first: Tensor, owner: Tensor, graphs: int, laplacian: str
) -> Float[Tensor, " graphs"]:
    """Return a number per graph that depends on edges, weights and node numbers: a weighted mean of ``f(u) f(v)``.

    Half of all ``f`` are negative and none is near zero, so that every edge is away from the mean of many. In float64, as an
    edge is one of thousands.
    """
    u, v = edge_index
    kind = torch.float32 if owner.device.type == "mps" else torch.float64
    f = _scattered(torch.arange(len(owner), device=owner.device) - first, kind)
    product, which, none = f.index_select(0, u) * f.index_select(0, v), owner.index_select(0, u), f.new_zeros(graphs)
    weight = torch.ones_like(product) if weight is None else weight.detach().flatten().to(kind)
    total = none.index_add(0, which, weight)
    mean = none.index_add(0, which, weight * product) / torch.where(total > 0, total, 1.0)
    return (mean + (2.0 if laplacian == "combinatorial" else 0.0)).float()


def _scattered(k: Int[Tensor, " nodes"], kind: torch.dtype) -> Float[Tensor, " nodes"]:
    """Return a number of size 0.5 to 1 and either sign for every whole number: its bits, mixed (as in ``on_spectrum.c``)."""
    low = 2**31 - 1
    x = (k * 0x9E3779B1 + 0x7F4A7C15) & low
    x = ((x ^ (x >> 15)) * 0x2C1B3C6D) & low
    x = ((x ^ (x >> 12)) * 0x297A2D39) & low
    x = x ^ (x >> 15)
    return (0.5 + x.to(kind) * 2.0**-32) * (1 - 2 * (x & 1))


def kept_spectra(
    spectrum: tuple[Tensor, Tensor, Tensor],
    edge_index: Int[Tensor, "2 edges"],
    weight: Tensor | None,
    batch: Int[Tensor, " nodes"],
    laplacian: str,
    degrees: str,
) -> Spectra:
    """Arrange stored spectra and assert, without waiting for the device, that they belong to these graphs."""
    values, vectors, check = spectrum
    if degrees != "gram":
        raise ValueError(f"expected degrees='gram' with kept spectra, got {degrees!r}: encode without spectrum_values")
    if tuple(batch.shape) != (len(values),):
        raise ValueError(f"expected batch of shape ({len(values)},), got {tuple(batch.shape)}")
    if weight is not None and tuple(weight.shape) not in ((edge_index.shape[1],), (edge_index.shape[1], 1)):
        raise ValueError(f"expected one edge_weight per edge, shape ({edge_index.shape[1]},), got {tuple(weight.shape)}")
    ones = torch.ones_like(batch)
    sizes = torch.zeros(len(check), dtype=batch.dtype, device=batch.device).index_add(0, batch, ones)
    spectra = Spectra.arrange(values, vectors, torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]), batch)
    torch._assert_async((batch.diff() >= 0).all(), "expected batch in ascending order, as PyG's Batch makes it")
    torch._assert_async(sizes.square().sum() == len(vectors), OTHERS)
    found = fingerprint(edge_index, weight, spectra.first, batch, len(check), laplacian)
    tolerance = 1e-4 if found.device.type == "mps" else SAME
    torch._assert_async(((found - check).abs() < tolerance).all(), OTHERS)
    return spectra


def every_pair(
    start: Tensor, batch: Tensor, width: int | None = None, total: int | None = None
) -> tuple[Tensor, Tensor, Tensor, tuple[int, int, int]]:
    """Return all pairs of nodes of the same graph, their positions in a dense batch, and its shape without channels.

    ``width``, the nodes of the largest graph, and ``total``, the number of pairs, are read from the device if not given.
    """
    sizes = start.diff()
    size, first = sizes[batch], start[batch]
    u = torch.repeat_interleave(torch.arange(len(batch), device=batch.device), size, output_size=total)
    within = torch.arange(len(u), device=u.device) - (size.cumsum(0) - size)[u]
    graphs, largest = len(sizes), sizes.max() if len(sizes) else sizes.sum()
    if width is None:
        width = int(largest)
    torch._assert_async(largest <= width, f"expected width= at least the nodes of the largest graph, got {width}")
    place = (batch[u] * width + u - first[u]) * width + within
    return u, first[u] + within, place, (graphs, width, width)
