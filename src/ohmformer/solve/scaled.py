"""The scaled Laplacian ``N = D^-1/2 L D^-1/2`` of a large graph in CSR, and the ends of its spectrum by Lanczos.

Its eigenvalues lie in (0, 2] for any resistances (appendix E of the paper, D the Gram degrees).
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.linalg import eigh_tridiagonal
from torch import Tensor
from torch.nn.functional import embedding_bag

from ohmformer import native
from ohmformer.graph import Graph, Spectrum
from ohmformer.graph.csr import csr_tensor
from ohmformer.graph.memory import recall, remembered
from ohmformer.graph.ragged import kept
from ohmformer.solve.rows import rows_of

LARGEST = 2.0
"""Upper bound on the eigenvalues of a normalized Laplacian."""
ROWS = 2**15
"""Rows of a layer's result computed at once."""
HUGE = 2**22
"""Bytes from which on an array uses huge pages."""
STEPS = 200
"""Maximum number of Lanczos steps."""
BLOCK = 4096
"""Rows processed together in several passes."""
OFTEN = 5
"""Steps between two convergence checks."""


@dataclass(frozen=True)
class Scaled:
    """A graph's Laplacian, sparse and in double precision, and the ``D^-1/2`` that scales it to ``N``."""

    laplacian: Tensor
    """CSR, all graphs of a batch as one block-diagonal matrix, every diagonal entry stored."""
    root: Float[Tensor, "nodes 1"]
    """``D^-1/2``, zero on isolated nodes."""
    components: Int[Tensor, " nodes"]
    num_components: int

    @classmethod
    def of(cls, graph: Graph) -> Scaled:
        """Return the scaled Laplacian of a graph or batch; in C, parallel edges remain separate entries."""
        n = graph.num_nodes
        if native.active() is not None and graph.device.type == "cpu" and 2 * graph.num_edges + n < 2**31:
            rows = rows_of(graph)
            start, column = torch.empty(n + 1, dtype=torch.int32), torch.empty(2 * graph.num_edges + n, dtype=torch.int32)
            value, root = torch.empty(len(column), dtype=torch.float64), torch.empty(n, 1, dtype=torch.float64)
            given = rows.start, rows.column, rows.value, rows.degree
            native.call("ohm_laplacian", n, *given, start, column, value, root)
            return cls(csr_tensor(start, column, value, n), root, graph.components, graph.num_components)
        from scipy.sparse import coo_array

        degree = graph.degrees()
        tail, head = graph.edge_index.cpu().numpy().astype(np.int32)
        c = 1 / graph.resistance.detach().cpu().double().numpy()
        node = np.arange(n, dtype=np.int32)
        place = np.concatenate([tail, head, node]), np.concatenate([head, tail, node])
        entries = coo_array((np.concatenate([-c, -c, degree]), place), shape=(n, n)).tocsr()
        root = np.where(degree > 0, degree, np.inf)[:, None] ** -0.5
        on_device = (torch.as_tensor(x, device=graph.device) for x in (entries.indptr, entries.indices, entries.data, root))
        start, column, value, root = on_device
        return cls(csr_tensor(start, column, value, n), root, graph.components, graph.num_components)

    @property
    def width(self) -> int:
        """Number of rows of a vector while it is multiplied."""
        return len(self.root)

    def total(self, x: Tensor) -> Tensor:
        """Sum ``x`` over all processes that hold rows of the graph: here ``x`` itself."""
        return x

    def draw(self, seed: int) -> Float[Tensor, "nodes 1"]:
        """Draw a Gaussian number for every node."""
        draw = torch.Generator().manual_seed(seed)
        return torch.randn(len(self.root), 1, generator=draw, dtype=torch.float64).to(self.root.device)

    def norms(self, x: Float[Tensor, "nodes k"]) -> Float[Tensor, " k"]:
        """Compute the norm of every column."""
        if x.shape[1] == 1:
            return self.total(x.mT @ x)[0].sqrt()
        return self.total(column_squares(x, torch.ones_like(self.root.mT))[0]).sqrt()

    def both_norms(self, x: Float[Tensor, "nodes k"]) -> Float[Tensor, "2 k"]:
        """Compute ``|x|`` and ``|D^-1/2 x|`` of every column, in one pass."""
        root = self.root.mT
        return self.total(column_squares(x, torch.cat([torch.ones_like(root), root.square()]))).sqrt()

    def times(self, x: Float[Tensor, "nodes k"]) -> Float[Tensor, "nodes k"]:
        """Compute ``N x``."""
        if native.active() is not None and x.device.type == "cpu" and x.shape[1] == 1:
            return self.residual(torch.zeros_like(x), (self.root * x).neg_(), in_c=True).mul_(self.root)
        return self.root * (self.laplacian @ (self.root * x))

    def residual(
        self, psi: Float[Tensor, "nodes k"], phi: Float[Tensor, "nodes k"], *, in_c: bool = False
    ) -> Float[Tensor, "nodes k"]:
        """Compute ``psi - L phi``, in C or by torch."""
        left = empty_huge_pages(*psi.shape, dtype=psi.dtype, device=psi.device)
        if in_c:
            rows = self.laplacian.crow_indices(), self.laplacian.col_indices(), self.laplacian.values()
            native.call("ohm_residual", len(psi), psi.shape[1], psi.stride(0), *rows, phi, psi, left)
            return left
        few = zip(*(x.split(16, dim=1) for x in (left, psi, phi)), strict=True)  # fastest with few columns in float64
        for out, demand, potential in few:
            torch.addmm(demand, self.laplacian, potential, alpha=-1.0, out=out)
        return left

    def step(self, gamma: float, dtype: torch.dtype) -> RowBlocks:
        """Build ``I - gamma N``, the matrix of one step of gradient descent."""
        start, column, values = self.laplacian.crow_indices(), self.laplacian.col_indices(), self.laplacian.values()
        row = torch.repeat_interleave(torch.arange(len(self.root), dtype=column.dtype, device=column.device), start.diff())
        scale = self.root[:, 0].to(dtype)
        values = (row == column).to(dtype) - gamma * (values.to(dtype) * scale[row] * scale[column])
        return RowBlocks(csr_tensor(start, column, values, len(scale)))

    @kept
    def _null(self) -> tuple[Float[Tensor, "nodes 1"], Float[Tensor, "components 1"]]:
        """Return ``D^1/2 1``, which spans the null space on every component, and its squared norms (1 if zero)."""
        weight = torch.where(self.root > 0, 1 / self.root, 0.0)
        size = weight.new_zeros(self.num_components, 1).index_add(0, self.components, weight.square())
        return weight, torch.where(size > 0, size, 1.0)

    def project(self, x: Float[Tensor, "nodes k"]) -> Float[Tensor, "nodes k"]:
        """Remove from ``x`` its part in the null space: isolated nodes, and ``D^1/2 1`` on every other component."""
        weight, size = self._null
        if len(size) == 1:
            return torch.addmm(x, weight, weight.mT @ x / size, alpha=-1.0)
        x = torch.where(weight > 0, x, 0.0)
        along = x.new_zeros(len(size), x.shape[1]).index_add(0, self.components, weight * x) / size
        return x - weight * along[self.components]


class RowBlocks:
    """A sparse matrix in blocks of rows whose products with x fit the cache.

    On a CPU in float32 a block's product is torch's ``embedding_bag``, a sum of weighted rows of x: the same arithmetic as a
    CSR product, and two to three times as fast for a few dozen columns. Elsewhere the whole matrix is one block.
    """

    def __init__(self, matrix: Tensor) -> None:
        rows = matrix.shape[0]
        self.matrix = matrix
        self.blocks: list[tuple[slice, Callable[[Tensor], Tensor]]] = []
        if matrix.device.type != "cpu" or matrix.dtype != torch.float32 or not matrix.values().numel():
            self.blocks.append((slice(0, rows), lambda x: matrix @ x))
            return
        start, columns, values = matrix.crow_indices(), matrix.col_indices(), matrix.values()
        for first in range(0, rows, ROWS):
            last = min(first + ROWS, rows)
            low, high = int(start[first]), int(start[last])
            bags = (start[first:last] - low).to(columns.dtype)
            self.blocks.append((slice(first, last), partial(_weighted_rows, columns[low:high], values[low:high], bags)))

    def __iter__(self) -> Iterator[tuple[slice, Callable[[Tensor], Tensor]]]:
        """Iterate over pairs of a row range and the function that computes those rows of the product."""
        return iter(self.blocks)

    def spans(self, x: Tensor) -> Iterator[tuple[int, int]]:
        """Yield ranges of rows that can be multiplied with x at once: here all rows."""
        yield 0, self.matrix.shape[0]


def _weighted_rows(columns: Tensor, values: Tensor, bags: Tensor, x: Tensor) -> Tensor:
    return embedding_bag(columns, x, bags, mode="sum", per_sample_weights=values)


def in_blocks(rows: int) -> Iterator[slice]:
    """Yield blocks of rows that fit the cache, on which several passes are many times as fast as on all rows at once."""
    return (slice(first, first + BLOCK) for first in range(0, rows, BLOCK))


def column_squares(x: Float[Tensor, "n k"], weights: Float[Tensor, "w n"]) -> Float[Tensor, "w k"]:
    """Compute the weighted sum of squares of every column, for every row of weights."""
    squares, space = x.new_zeros(len(weights), x.shape[1]), x.new_empty(BLOCK, x.shape[1])
    for rows in in_blocks(len(x)):
        some = x[rows]
        squares.addmm_(weights[:, rows], torch.square(some, out=space[: len(some)]))
    return squares


def empty_huge_pages(*shape: int, dtype: torch.dtype, device: torch.device, zero: bool = False) -> Tensor:
    """Allocate a tensor, uninitialized or ``zero``; if large, in huge pages (always zero) where Linux has them.

    Fresh memory costs as much as some layers, less in huge pages, from which rows in random order are also fetched faster.
    """
    size = math.prod(shape) * dtype.itemsize
    if size < HUGE or device.type != "cpu" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return (torch.zeros if zero else torch.empty)(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


# ---------------------------------------------------------------------------------------------------- the spectrum


@dataclass(frozen=True)
class Extremes:
    """Estimates by Lanczos of the extreme nonzero eigenvalues of the scaled Laplacian."""

    spectrum: Spectrum
    """An interval that tends to be too wide at both ends."""
    separated: bool
    """Whether the iteration has converged; if not, the smallest eigenvalue may be far smaller."""
    floor: float = 0.0
    """The floor if it ended early because the smallest eigenvalue is below it; else zero."""
    steps: int = 0
    """Number of steps taken."""

    def will_do(self, floor: float, steps: int) -> bool:
        """Return whether a run with this ``floor`` and ``steps`` would give no more information."""
        return self.floor <= floor and (self.separated or self.floor > 0 or self.steps >= steps)


class Ends:
    """The ends of the nonzero spectrum from steps of Lanczos or of conjugate gradients.

    Ritz values lie within the spectrum; the interval is widened by their residuals, which bound the distance to an
    eigenvalue. Steps suffice once the smallest Ritz value has converged, or is below ``floor``: then the smallest eigenvalue
    is too.
    """

    def __init__(self, floor: float = 0.0) -> None:
        self.floor, self.steps = floor, 0
        self.low, self.high, self.separated, self.below = LARGEST, LARGEST, False, False

    def look(self, diagonal: Float[np.ndarray, " steps"], beside: Float[np.ndarray, " steps"]) -> bool:
        """Return whether the steps suffice, given a tridiagonal matrix whose next entry is the last of ``beside``."""
        (lowest, left_low), (highest, left_high) = (_ritz(diagonal, beside, i) for i in (0, len(diagonal) - 1))
        last, self.low = self.low, lowest - min(left_low, lowest / 2)
        self.high, self.steps = highest + left_high, len(diagonal)
        settled = left_low < lowest / 8 or (left_low < lowest / 4 and abs(last - self.low) < 0.05 * self.low)
        self.separated = bool(beside[-1] < 1e-12) or settled
        self.below = not self.separated and lowest < self.floor
        return self.separated or self.below

    def found(self) -> Extremes:
        """Return the estimated spectrum, an interval that is rather too wide than too narrow."""
        low = min(max(0.95 * self.low, 1e-14), LARGEST)
        spectrum = Spectrum(low, min(max(1.01 * self.high, low), LARGEST))
        return Extremes(spectrum, self.separated, self.floor if self.below else 0.0, self.steps)


def _ritz(diagonal: Float[np.ndarray, " steps"], beside: Float[np.ndarray, " steps"], i: int) -> tuple[float, float]:
    """Return one eigenvalue of a tridiagonal matrix, and its residual: the next entry times its vector's last one."""
    value, vector = eigh_tridiagonal(diagonal, beside[:-1], select="i", select_range=(i, i))
    return float(value[0]), float(beside[-1]) * abs(float(vector[-1, 0]))


def extreme_eigenvalues(scaled: Scaled, *, steps: int = STEPS, seed: int = 0, floor: float = 0.0) -> Extremes:
    """Estimate the ends of the nonzero spectrum of the scaled Laplacian by Lanczos from a seeded start."""
    q = scaled.project(scaled.draw(seed))
    norm = float(scaled.norms(q))
    if norm == 0:
        return Extremes(Spectrum(LARGEST, LARGEST), separated=True)
    q, before, beta = q / norm, torch.zeros_like(q), 0.0
    diagonal: list[float] = []
    beside: list[float] = []
    ends = Ends(floor)
    for step in range(steps):
        w = scaled.times(q).sub_(before, alpha=beta)
        alpha = float(scaled.total(torch.dot(w[:, 0], q[:, 0])))
        w = scaled.project(w.sub_(q, alpha=alpha))
        beta = float(scaled.norms(w))
        diagonal.append(alpha)
        beside.append(beta)
        if ((step + 1) % OFTEN == 0 or beta < 1e-12 or step + 1 == steps) and ends.look(
            np.array(diagonal), np.array(beside)
        ):
            break
        before, q = q, w.div_(beta)
    return ends.found()


def known_ends(graph: Graph, *, floor: float = 0.0, steps: int = STEPS) -> Extremes | None:
    """Return the ends of the spectrum if they are known well enough (see :func:`prepared`), else None."""
    ends = remembered(graph, "ends")
    return ends if ends is not None and ends.will_do(floor, steps) else None


def prepared(graph: Graph, *, floor: float = 0.0, steps: int = STEPS) -> tuple[Scaled, Extremes]:
    """Return the scaled Laplacian of a graph and the ends of its spectrum; kept for the next question about the same graph.

    With a ``floor``, an estimate that ended early because the smallest eigenvalue is below it suffices; otherwise one that
    has converged or has taken as many ``steps``.
    """
    scaled = recall(graph, "scaled", lambda: Scaled.of(graph))
    find = partial(extreme_eigenvalues, scaled, floor=floor, steps=steps)
    return scaled, recall(graph, "ends", find, fits=lambda ends: ends.will_do(floor, steps))
