"""The sparse engine: Chebyshev layers on graphs of any size, one CSR product a layer, no n x n array anywhere.

The layers are those of :class:`~ohmformer.constructions.Chebyshev` on ``N = D^-1/2 L D^-1/2`` (appendix E of the paper, D
the Gram degrees), whose eigenvalues lie in (0, 2] whatever the resistances. What differs from the Transformer's forward
pass is bookkeeping: demands are taken in panels that fit the cache, and the work is done in float32 with the residual taken
in float64, round by round.
"""

from __future__ import annotations

import math
import mmap
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.linalg import eigh_tridiagonal
from torch import Tensor
from torch.nn.functional import embedding_bag

from ohmformer.constructions.electric import Chebyshev
from ohmformer.graph import Graph, Spectrum
from ohmformer.solve.engines import compiled

LARGEST = 2.0
"""No eigenvalue of a normalised Laplacian is larger."""
PANEL = 32
"""Demands that are taken through the layers together, more on graphs so small that the cache holds more."""
ROWS = 2**15
"""Nodes of which a layer's result is made at once."""
BEYOND_CACHE = 2**18
"""Nodes from which on a panel lies in main memory, out of which long rows come faster than short ones."""
HUGE = 2**26
"""Bytes from which on an array is put into huge pages."""

Tell = Callable[[int], bool]


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
        """The scaled Laplacian of a graph or batch."""
        from scipy.sparse import coo_array

        n, degree = graph.num_nodes, graph.degrees()
        tail, head = graph.edge_index.cpu().numpy().astype(np.int32)
        c = 1 / graph.resistance.detach().cpu().double().numpy()
        node = np.arange(n, dtype=np.int32)
        place = np.concatenate([tail, head, node]), np.concatenate([head, tail, node])
        entries = coo_array((np.concatenate([-c, -c, degree]), place), shape=(n, n)).tocsr()
        root = np.where(degree > 0, degree, np.inf)[:, None] ** -0.5
        on_device = (torch.as_tensor(x, device=graph.device) for x in (entries.indptr, entries.indices, entries.data, root))
        start, column, value, root = on_device
        return cls(csr_tensor(start, column, value, n), root, graph.components, graph.num_components)

    def times(self, x: Float[Tensor, "nodes k"]) -> Float[Tensor, "nodes k"]:
        """``N x``."""
        return self.root * (self.laplacian @ (self.root * x))

    def left(self, psi: Float[Tensor, "nodes k"], phi: Float[Tensor, "nodes k"]) -> Float[Tensor, "nodes k"]:
        """``psi - L phi``, in half panels, which is how a product in double precision is fastest."""
        left = room(*psi.shape, dtype=psi.dtype, device=psi.device)
        if compiled.left_(left, self.laplacian, psi, phi):
            return left
        halves = zip(*(x.split(PANEL // 2, dim=1) for x in (left, psi, phi)), strict=True)
        for out, demand, potential in halves:
            torch.addmm(demand, self.laplacian, potential, alpha=-1.0, out=out)
        return left

    def step(self, gamma: float, dtype: torch.dtype) -> RowBlocks:
        """``I - gamma N``, the matrix of one step of gradient descent."""
        start, column, values = self.laplacian.crow_indices(), self.laplacian.col_indices(), self.laplacian.values()
        row = torch.repeat_interleave(torch.arange(len(self.root), dtype=column.dtype, device=column.device), start.diff())
        scale = self.root[:, 0].to(dtype)
        values = (row == column).to(dtype) - gamma * (values.to(dtype) * scale[row] * scale[column])
        return RowBlocks(csr_tensor(start, column, values, len(scale)))

    @cached_property
    def _null(self) -> tuple[Float[Tensor, "nodes 1"], Float[Tensor, "components 1"]]:
        """``D^1/2 1``, which spans the null space on every component, and its squared norms, 1 where that is zero."""
        weight = torch.where(self.root > 0, 1 / self.root, 0.0)
        size = weight.new_zeros(self.num_components, 1).index_add(0, self.components, weight.square())
        return weight, torch.where(size > 0, size, 1.0)

    def project(self, x: Float[Tensor, "nodes k"]) -> Float[Tensor, "nodes k"]:
        """``x`` without its part in the null space: isolated nodes, and ``D^1/2 1`` on every other component."""
        weight, size = self._null
        if len(size) == 1:
            return x - weight * (weight.mT @ x / size)
        x = torch.where(weight > 0, x, 0.0)
        along = x.new_zeros(len(size), x.shape[1]).index_add(0, self.components, weight * x) / size
        return x - weight * along[self.components]


def csr_tensor(start: Tensor, columns: Tensor, values: Tensor, width: int) -> Tensor:
    """A CSR tensor of parts that are known to fit."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(start, columns, values, (len(start) - 1, width), check_invariants=False)


class RowBlocks:
    """A sparse matrix in blocks of rows, each small enough that what it makes of x stays in the cache.

    On a CPU in float32 a block's product is torch's ``embedding_bag``, a sum of weighted rows of x: the same arithmetic as a
    CSR product, and two to three times as fast for a few dozen columns. Elsewhere there is one block, the matrix itself.
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
        """Pairs of rows and the function that gives those rows of the product."""
        return iter(self.blocks)


def _weighted_rows(columns: Tensor, values: Tensor, bags: Tensor, x: Tensor) -> Tensor:
    return embedding_bag(columns, x, bags, mode="sum", per_sample_weights=values)


def in_blocks(rows: int) -> Iterator[slice]:
    """Blocks of rows that stay in the cache: work in several passes is many times as fast on them as on all rows at once."""
    return (slice(first, first + 4096) for first in range(0, rows, 4096))


def column_norms(x: Float[Tensor, "n k"], weights: Float[Tensor, "n 1"] | None = None) -> Float[Tensor, " k"]:
    """The norm of every column, its entries multiplied by ``weights`` if there are any."""
    squared = torch.ones_like(x[:, :1]) if weights is None else weights.square()
    squares = x.new_zeros(1, x.shape[1])
    for rows in in_blocks(len(x)):
        squares.addmm_(squared[rows].mT, x[rows].square())
    return squares[0].sqrt()


# ---------------------------------------------------------------------------------------------------- the spectrum


@dataclass(frozen=True)
class Extremes:
    """What Lanczos says of the nonzero eigenvalues of the scaled Laplacian."""

    spectrum: Spectrum
    """An interval that leans outwards at both ends."""
    separated: bool
    """False if the iteration has not settled: the smallest eigenvalue may be far smaller."""


def extreme_eigenvalues(scaled: Scaled, *, steps: int = 200, seed: int = 0) -> Extremes:
    """The ends of the nonzero spectrum of the scaled Laplacian by Lanczos, from a seeded start.

    Ritz values lie within the spectrum; their residuals, which say how far, are taken off and added.
    """
    draw = torch.Generator().manual_seed(seed)
    start = torch.randn(len(scaled.root), 1, generator=draw, dtype=torch.float64)
    q = scaled.project(start.to(scaled.root.device))
    norm = float(q.norm())
    if norm == 0:
        return Extremes(Spectrum(LARGEST, LARGEST), separated=True)
    q, before, beta = q / norm, torch.zeros_like(q), 0.0
    diagonal: list[float] = []
    beside: list[float] = []
    low, high, separated = LARGEST, LARGEST, False
    for step in range(steps):
        w = scaled.times(q) - beta * before
        alpha = float((w * q).sum())
        w = scaled.project(w - alpha * q)
        diagonal.append(alpha)
        beta = float(w.norm())
        if (step + 1) % 5 == 0 or beta < 1e-12 or step + 1 == steps:
            values, vectors = eigh_tridiagonal(diagonal, beside)
            leftover = beta * np.abs(vectors[-1])
            last, low = low, float(values[0] - min(leftover[0], values[0] / 2))
            high = float(values[-1] + leftover[-1])
            settled = leftover[0] < values[0] / 4 and abs(last - low) < 0.05 * low
            separated = beta < 1e-12 or bool(settled)
            if separated:
                break
        beside.append(beta)
        before, q = q, w / beta
    low = min(max(0.95 * low, 1e-14), LARGEST)
    return Extremes(Spectrum(low, min(max(1.01 * high, low), LARGEST)), separated)


def prepared(graph: Graph) -> tuple[Scaled, Extremes]:
    """The scaled Laplacian of a graph and the ends of its spectrum, kept for the next question about the same graph."""
    version = graph.resistance._version
    if graph not in _PREPARED or _PREPARED[graph][0] != version:
        scaled = Scaled.of(graph)
        _PREPARED[graph] = version, scaled, extreme_eigenvalues(scaled)
    return _PREPARED[graph][1:]


_PREPARED: WeakKeyDictionary[Graph, tuple[int, Scaled, Extremes]] = WeakKeyDictionary()


# ---------------------------------------------------------------------------------------------------- layers and rounds


def panel_width(nodes: int, device: torch.device) -> int:
    """How many demands to take together: :data:`PANEL`, or as many as 16 MB hold; twice as many where no cache helps.

    In compiled code, whose rows are bytes, twice as many always.
    """
    if nodes > BEYOND_CACHE or compiled.pays(nodes, device):
        return 2 * PANEL
    return max(PANEL, min(8 * PANEL, 2**22 // max(nodes, 1)))


def room(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """An array of anything, for much of it in huge pages where Linux has them.

    Fresh memory costs as much as some layers, less in huge pages, in which rows in no order are found faster too.
    """
    size = math.prod(shape) * dtype.itemsize
    if size < HUGE or device.type != "cpu" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel built without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def workspace(nodes: int, columns: int, device: torch.device) -> Float[Tensor, "3 nodes columns"]:
    """What a round works in, to be used again by the next."""
    return room(3, nodes, columns, dtype=torch.float32, device=device)


def chebyshev_round(
    step: RowBlocks, state: Float[Tensor, "3 nodes k"], construction: Chebyshev, layers: int, tell: Tell | None = None
) -> tuple[Float[Tensor, "nodes k"], int]:
    """``layers`` layers of Chebyshev's construction from zero, given ``step = I - gamma N``; or as many as Ctrl-C lets it.

    ``state[0]`` is the demand; all of the state is overwritten, and the answer is a part of it. A layer is a step of
    gradient descent, and an interpolation that runs past it:
    ``x_before <- (1 - omega) x_before + omega (x + gamma (demand - N x))``, after which the two change places.
    """
    if compiled.takes(step, state, layers):
        return compiled.chebyshev_round(step, state, construction, layers, tell)
    push, x, before = state
    push.mul_(construction.gamma)
    x.zero_()
    before.zero_()
    done = 0
    try:
        for omega in construction.omegas(layers):
            for rows, product in step:
                before[rows].lerp_(product(x).add_(push[rows]), omega)
            x, before = before, x
            done += 1
            if tell and done % 10 == 0 and tell(done):
                break
    except KeyboardInterrupt:
        pass
    return x, done


def reduction(spectrum: Spectrum) -> float:
    """By how much one round in float32 reduces a residual: rounding leaves about ``eps kappa / 4`` of it."""
    return min(max(torch.finfo(torch.float32).eps * spectrum.condition / 4, 1e-7), 0.1)


def _rounds(gain: float, spectrum: Spectrum) -> int:
    """Rounds that reduce a residual by ``gain``."""
    return max(1, math.ceil(math.log(gain) / math.log(reduction(spectrum)) - 1e-9))


def layers_for(tol: float, spectrum: Spectrum) -> int:
    """Layers that reduce every residual by ``tol``, rounds counted."""
    rounds = _rounds(tol, spectrum)
    return rounds * Chebyshev(spectrum).layers_for(tol ** (1 / rounds) / spectrum.lmin)


@dataclass(frozen=True)
class Solved:
    """Potentials up to a constant on each component, the relative residual of the worst demand, and what it took."""

    potentials: Float[Tensor, "nodes k"]
    residual: float
    layers: int
    spectrum: Spectrum
    """The interval that the layers were made for in the end."""
    stopped: bool
    """Whether it was stopped before it got there."""


def solve(
    scaled: Scaled,
    demands: Float[Tensor, "nodes k"],
    tol: float,
    spectrum: Spectrum,
    progress: Callable[[int, float], bool | None] | None = None,
) -> Solved:
    """``L^+ psi`` for centred demands to a relative residual ``|psi - L phi| / |psi| <= tol``, or as near as float64 gets.

    ``spectrum`` is that of the scaled Laplacian. ``progress(layers, residual)`` is called every ten layers and at the end of
    a round, with the layers of all panels of demands together and the worst residual that has been measured, and stops the
    work by returning True; so does Ctrl-C, and either way the best answer so far is returned with its residual.
    """
    norm = column_norms(demands)
    residual = (norm > 0).double()
    potentials = room(*demands.shape, dtype=demands.dtype, device=demands.device).zero_()
    deepest, total, stopped = 0, 0, False

    def tell(layers: int) -> bool:
        return bool(progress and progress(total + layers, float(residual.max())))

    step = scaled.step(Chebyshev(spectrum).gamma, torch.float32)
    nodes, device = len(demands), demands.device
    panels = torch.arange(demands.shape[1]).split(panel_width(nodes, device))
    padded = compiled.pays(nodes, device)
    widths = [compiled.padded(len(columns)) if padded else len(columns) for columns in panels]
    space = workspace(nodes, widths[0], device)
    try:
        for columns, width in zip(panels, widths, strict=True):
            part = slice(int(columns[0]), int(columns[-1]) + 1)
            psi, phi, layers = demands[:, part], potentials[:, part], 0
            state = space.flatten()[: 3 * nodes * width].view(3, nodes, width)
            left, worst = psi, float(residual[part].max())
            while worst > tol and not stopped:
                construction = Chebyshev(spectrum)
                goal = 0.9 * (tol / worst) ** (1 / _rounds(tol / worst, spectrum))
                depth = construction.layers_for(goal / spectrum.lmin)
                found, size, done = _one_round(scaled, step, left, state, construction, depth, tell)
                stopped = done < depth
                _add(phi, found, size, scaled.root)
                after = scaled.left(psi, phi)
                now = column_norms(after) / torch.where(norm[part] > 0, norm[part], 1.0)
                before, worst = worst, float(now.max())
                if worst < before:
                    left, residual[part] = after, now
                else:
                    _add(phi, found, -size, scaled.root)
                layers, total = layers + done, total + done
                deepest = max(deepest, layers)
                stopped = stopped or tell(0)
                if worst > 0.9 * before or (worst > 0.5 * before and spectrum.lmin < 1e-13):
                    break  # float64 gives no more
                if worst > 4 * goal * before:  # the smallest eigenvalue was estimated too high
                    spectrum = Spectrum(spectrum.lmin / 2, spectrum.lmax)
                    step = scaled.step(Chebyshev(spectrum).gamma, torch.float32)
    except KeyboardInterrupt:
        stopped = True
    worst = float(residual.max()) if residual.numel() else 0.0
    return Solved(potentials, worst, deepest, spectrum, stopped and worst > tol)


def _one_round(
    scaled: Scaled,
    step: RowBlocks,
    left: Float[Tensor, "nodes k"],
    state: Float[Tensor, "3 nodes columns"],
    construction: Chebyshev,
    layers: int,
    tell: Tell,
) -> tuple[Float[Tensor, "nodes k"], Float[Tensor, " k"], int]:
    """What the layers find in float32 for what is left of the demands, over a power of two for each of them, and those.

    Scaled by them the demands have norms of about one, as the layers see them.
    """
    size = column_norms(left, scaled.root).clamp(min=1e-290).log2().round().exp2()
    demand, beyond = state[0].tensor_split([left.shape[1]], dim=1)
    for rows in in_blocks(len(left)):
        torch.mul(left[rows] / size, scaled.root[rows], out=demand[rows])
    beyond.zero_()
    x, done = chebyshev_round(step, state, construction, layers, tell)
    return x[:, : left.shape[1]], size, done


def _add(phi: Float[Tensor, "n k"], x: Float[Tensor, "n k"], size: Float[Tensor, " k"], root: Float[Tensor, "n 1"]) -> None:
    """``phi + D^-1/2 x`` in phi's place, the columns of x times their sizes."""
    for rows in in_blocks(len(phi)):
        phi[rows].addcmul_(x[rows].double().mul_(size), root[rows])
