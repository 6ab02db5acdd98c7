"""Functions of N on graphs too large for eigenvectors: polynomials of N at nodes and edges, exact or estimated.

A few points x_i represent all eigenvalues. A polynomial p of degree below their number satisfies
``p(N)_uv = sum_i p(x_i) E_i(uv)`` at nodes u and v, with Lagrange polynomials ``E_i(uv) = l_i(N)_uv``, which do not depend
on the weights of the layers. Its trace is the same sum with ``sum_u E_i(uu)``, the number of eigenvalues that a point
represents. So layers run on the points as they do on eigenvalues, and are read as from eigenvectors. The layers are a
polynomial whose degree is their number, except for the attention among channels, a term of order 1 / nodes.

Where walks do not get far (roads, trees, rings, or a few thousand nodes of any graph) the ``l_i(N)_uv`` are exact, at
Chebyshev points. Otherwise the null space of N is known, short walks are exact, and the rest is estimated with seeded
random signs z, as the mean of ``z_u (q_k(N) z)_v``. Its variance is that of ``q_k`` over the eigenvalues, and the ``q_k``
are the orthogonal polynomials of their density (Lanczos), of which the few of low degree account for most of a function.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse import coo_array
from torch import Tensor
from torch.nn.functional import embedding_bag

from ohmformer import native
from ohmformer.encoding.inputs import Pairs

EXACT = 4e9
"""Most work for exact values, in steps along an entry of N (for one or 16 columns): 4 to 10 s on one core."""
SHORT = 6
"""Steps of the longest walks computed exactly beside estimates; shorter ones if that takes more work than BESIDE."""
BESIDE = 5e9
"""Most work for short walks, in steps along an entry of N: on a million nodes less than for the probes."""
PROBES = 64
"""Number of random sign vectors (probes)."""
TOGETHER = 32
"""Columns processed together."""


@dataclass(frozen=True)
class Rows:
    """N of one graph in CSR, with its diagonal stored separately."""

    start: Int[Tensor, " nodes_and_end"]
    column: Int[Tensor, " entries"]
    value: Float[Tensor, " entries"]
    diagonal: Float[Tensor, " nodes"]
    null: Float[Tensor, " nodes"]
    """The null vectors of all components, each of norm one."""
    component: Int[Tensor, " nodes"]

    @classmethod
    def of(cls, pairs: Pairs, dtype: torch.dtype) -> Rows:
        """Sum the entries of all pairs."""
        n, (u, v) = pairs.graph.num_nodes, (x.cpu().numpy().astype(np.int32) for x in (pairs.u, pairs.v))
        off = pairs.off_diagonal.detach().cpu().numpy()
        place = np.concatenate([u, v]), np.concatenate([v, u])
        matrix = coo_array((np.concatenate([off, off]), place), shape=(n, n)).tocsr()
        start, column, value = (torch.as_tensor(x) for x in (matrix.indptr, matrix.indices, matrix.data))
        component = pairs.graph.components.cpu()
        degree = pairs.degree.detach().cpu().double()
        null = torch.where(degree > 0, degree, 1.0).sqrt()
        null = null / null.new_zeros(n).index_add(0, component, null.square()).sqrt()[component]
        diagonal = pairs.diagonal.detach().cpu().to(dtype)
        return cls(start.int(), column.int(), value.to(dtype), diagonal, null.to(dtype), component)

    def times(self, x: Float[Tensor, "nodes columns"]) -> Float[Tensor, "nodes columns"]:
        """Return ``N x``."""
        off = embedding_bag(self.column, x, self.start[:-1], mode="sum", per_sample_weights=self.value)
        return off.addcmul_(self.diagonal[:, None], x)

    def without_null(self, x: Float[Tensor, "nodes columns"]) -> Float[Tensor, "nodes columns"]:
        """Project columns onto the complement of the null space."""
        of = x.new_zeros(int(self.component.max()) + 1, x.shape[1]).index_add(0, self.component, self.null[:, None] * x)
        return torch.addcmul(x, self.null[:, None], of[self.component], value=-1)

    @cached_property
    def row(self) -> Int[Tensor, " entries"]:
        """The row of every entry."""
        return torch.repeat_interleave(torch.arange(len(self.diagonal)), self.start.diff().long())

    def entries(self, u: Int[Tensor, " pairs"], v: Int[Tensor, " pairs"]) -> Int[Tensor, " pairs"]:
        """Return the index of the entry of each pair of neighbours."""
        n = len(self.diagonal)
        return torch.searchsorted(self.row * n + self.column, u.cpu() * n + v.cpu())


@dataclass(frozen=True)
class Points:
    """Points that represent the eigenvalues of one graph."""

    values: Float[Tensor, " points"]
    count: Float[Tensor, " points"]
    """The number of eigenvalues each represents."""
    own: Float[Tensor, "nodes points"]
    """``E_i`` at nodes."""
    between: Float[Tensor, "entries points"] | None
    """``E_i`` at entries of N, if edges are read."""
    rows: Rows
    error: Float[Tensor, "directions points"] | None
    """None if all values are exact. The root mean square of the standard error of p at nodes is the norm of ``error p``."""

    def read(
        self, p: Float[Tensor, "points channels"], u: Int[Tensor, " rows"], v: Int[Tensor, " rows"]
    ) -> Float[Tensor, "rows channels"]:
        """Return ``p(N)_uv`` of every channel at nodes (u is v) or edges, given the values of p on the points."""
        if u is v:
            return self.own.index_select(0, u) @ p
        assert self.between is not None
        loop = u == v
        found = self.between.index_select(0, torch.where(loop, 0, self.rows.entries(u, v).to(u.device)))
        return torch.where(loop[:, None], self.own.index_select(0, u), found) @ p


ZERO = Rows(
    torch.zeros(2).int(), torch.zeros(0).int(), torch.zeros(0), torch.zeros(1), torch.zeros(1), torch.zeros(1).long()
)
"""The zero matrix."""


def points_of(pairs: Pairs, layers: int, dtype: torch.dtype, *, edges: bool, seed: int) -> Points:
    """Return the points of one large graph for functions of ``layers`` layers, exact if that takes at most :data:`EXACT`."""
    rows = Rows.of(pairs, dtype)
    top = 2 * float(rows.diagonal.max()) or 2.0  # upper bound on the eigenvalues
    degree = min(max(32, 2 * layers), 64)
    recurrence = torch.tensor([[top / 2, 1.0, 4 / top]], dtype=dtype).repeat(degree, 1)
    recurrence[0, 1:] = torch.tensor([0.0, 2 / top])
    found, error = _local(rows, recurrence, edges=edges, most=EXACT), None
    if found is not None:
        own, between = found
        values, turn = _chebyshev(degree, top)
    else:
        degree = min(max(16, layers), 64)
        own, between, values, turn, error = _estimated(rows, degree, edges=edges, seed=seed)
    turn = turn.to(dtype)
    own, device = own @ turn, pairs.graph.device
    values, count = values.to(device, dtype), own.sum(0, dtype=torch.float64).to(device, dtype)
    between = None if between is None else (between @ turn).to(device)
    return Points(values, count, own.to(device), between, rows, None if error is None else (error @ turn).to(device))


def _chebyshev(degree: int, top: float) -> tuple[Tensor, Tensor]:
    """Return the Chebyshev points on [0, top] and the matrix that maps ``T_k(N)`` to ``l_i(N)``."""
    k = torch.arange(degree + 1, dtype=torch.float64)
    half = torch.where((k == 0) | (k == degree), 0.5, 1.0).double()
    turn = 2 / degree * half[:, None] * half * torch.cos(math.pi / degree * k[:, None] * k)
    return top / 2 * (1 + torch.cos(math.pi / degree * k)), turn


def _local(rows: Rows, recurrence: Tensor, *, edges: bool, most: float) -> tuple[Tensor, Tensor | None] | None:
    """Return ``q_k(N)`` at nodes and entries for all k, or None if that takes more than ``most`` steps.

    ``q_(k + 1) = (N - a_k) q_k c_k - b_k q_(k - 1)`` with ``(a_k, b_k, c_k)`` in the rows of ``recurrence``.
    """
    n, degree = len(rows.diagonal), len(recurrence)
    own = rows.value.new_empty(n, degree + 1)
    between = rows.value.new_empty(len(rows.value), degree + 1) if edges else None
    if native.active() is not None and own.dtype == torch.float32:
        work = torch.tensor([most, 0.0], dtype=torch.float64)
        native.call(
            "ohm_local",
            n,
            degree,
            rows.start,
            rows.column,
            rows.value,
            rows.diagonal,
            recurrence.contiguous(),
            work,
            own,
            between,
        )
        return (own, between) if work[1] <= most else None
    if n / 16 * degree * len(rows.value) > most / 10:  # torch multiplies by the whole matrix in every step
        return None
    row = rows.row
    for first in range(0, n, TOGETHER):
        chosen = torch.arange(first, min(first + TOGETHER, n))
        unit = own.new_zeros(n, len(chosen)).index_put((chosen, chosen - first), own.new_ones(len(chosen)))
        mine = ((row >= first) & (row < first + TOGETHER)).nonzero()[:, 0]
        for k, q in enumerate(_run(rows, recurrence, unit)):
            own[chosen, k] = q[chosen, chosen - first]
            if between is not None:
                between[mine, k] = q[rows.column[mine].long(), row[mine] - first]
    return own, between


def _run(
    rows: Rows, recurrence: Tensor, start: Float[Tensor, "nodes columns"], *, project: bool = False
) -> Iterator[Tensor]:
    """Yield ``q_k(N)`` applied to columns, from ``q_0 = 1`` on; ``project`` removes rounding errors from the null space."""
    before, now = torch.zeros_like(start), start
    yield now
    for k, (shift, back, scale) in enumerate(recurrence.tolist(), start=1):
        before, now = now, rows.times(now).sub_(now, alpha=shift).mul_(scale).sub_(before, alpha=back)
        now = rows.without_null(now) if project and k % 8 == 0 else now
        yield now


def _lanczos(rows: Rows, degree: int, start: Float[Tensor, "nodes columns"]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the recurrence of the orthogonal polynomials for the density that random columns see, and its Gauss rule."""
    now = start / torch.linalg.vector_norm(start, dtype=torch.float64).to(start)
    before, shifts, norms = torch.zeros_like(now), [], [0.0]
    for k in range(degree + 1):
        next = rows.times(rows.without_null(now) if k and k % 8 == 0 else now)
        shifts.append(float((now * next).sum(dtype=torch.float64)))
        next.sub_(now, alpha=shifts[-1]).sub_(before, alpha=norms[-1])
        norms.append(float(torch.linalg.vector_norm(next, dtype=torch.float64)))
        if norms[-1] < 1e-5 * float(rows.diagonal.max()):  # all eigenvalues have been found
            break
        before, now = now, next / norms[-1]
    inside = torch.tensor(norms[1 : len(shifts)], dtype=torch.float64)
    jacobi = torch.diag(torch.tensor(shifts, dtype=torch.float64)) + torch.diag(inside, 1) + torch.diag(inside, -1)
    values, vectors = torch.linalg.eigh(jacobi)
    recurrence = [(a, b / c, 1 / c) for a, b, c in zip(shifts[:-1], norms, norms[1:], strict=False)]
    return torch.tensor(recurrence, dtype=start.dtype).reshape(-1, 3), values, vectors * vectors[0]


def _estimated(rows: Rows, degree: int, *, edges: bool, seed: int) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor]:
    """Return the null space and estimates of ``q_k(N)`` at nodes and entries, the points, the matrix to them, the spread."""
    n, draw, rounds = len(rows.diagonal), torch.Generator().manual_seed(seed), PROBES // TOGETHER

    def signs() -> Tensor:
        bits = torch.randint(0, 2, (n, TOGETHER), generator=draw, dtype=torch.int8)
        return bits.to(rows.value.dtype).mul_(2).sub_(1)

    row = rows.row if edges else rows.column
    z = signs()
    recurrence, values, turn = _lanczos(rows, degree, rows.without_null(z[:, :8].contiguous()))
    halves = [rows.value.new_zeros(n, len(values)) for _ in range(2)]
    between = rows.value.new_zeros(len(rows.value), len(values)) if edges else None
    for number in range(rounds):
        for k, q in enumerate(_run(rows, recurrence, rows.without_null(z), project=True)):
            halves[number % 2][:, k] += (z * q).sum(1) / PROBES
            if between is not None:
                _add_products(rows, z, q, between, k)
        z = signs() if number + 1 < rounds else z
    own, gap = halves[0] + halves[1], halves[0] - halves[1]  # the gap has the size of the standard error
    at_zero = torch.stack([q[0, 0] for q in _run(ZERO, recurrence, torch.ones(1, 1).to(z))])
    null = rows.null.square(), rows.null[row] * rows.null[rows.column]
    for short in range(min(SHORT - edges, len(recurrence)), 0, -2):
        known = _local(rows, recurrence[:short], edges=edges, most=BESIDE)
        if known is not None:
            own[:, : short + 1], gap[:, : short + 1] = known[0] - null[0][:, None] * at_zero[: short + 1], 0
            if between is not None and known[1] is not None:
                between[:, : short + 1] = known[1] - null[1][:, None] * at_zero[: short + 1]
            break
    own = torch.cat([null[0][:, None], own], dim=1)
    between = None if between is None else torch.cat([null[1][:, None], between], dim=1)
    values, turn = torch.cat([values.new_zeros(1), values]), torch.block_diag(torch.ones(1, 1, dtype=turn.dtype), turn)
    return own, between, values, turn, torch.linalg.qr(torch.nn.functional.pad(gap, (1, 0)) / math.sqrt(n), mode="r").R


def _add_products(rows: Rows, x: Tensor, y: Tensor, out: Float[Tensor, "entries points"], k: int) -> None:
    """Add ``(x_u y_v + x_v y_u) / 2``, averaged over all probes, to column k of every entry (u, v)."""
    if native.active() is not None and out.dtype == torch.float32:
        panel = x.contiguous(), y.contiguous(), out[:, k]
        native.call("ohm_meet", len(x), x.shape[1], out.shape[1], 0.5 / PROBES, rows.start, rows.column, *panel)
        return
    for part in torch.arange(len(out)).split(2**18):
        u, v = rows.row[part], rows.column[part].long()
        out[part, k] += ((x[u] * y[v]).sum(1) + (x[v] * y[u]).sum(1)) * (0.5 / PROBES)
