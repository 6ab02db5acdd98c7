"""Functions of N on graphs too large for eigenvectors: polynomials of N at nodes and edges, exact or estimated.

Layers act on eigenvalues. Of a large graph a few points x_i with weights w_i represent them: the null space, and the Gauss
rule of the density of the others that random columns see (Lanczos). All are within the spectrum, because outside of it
nothing limits the values of trained layers. Polynomials ``b_k`` of low degree are known at nodes and edges and do not depend
on the weights of the layers, so that ``p(N)_uv = sum_k c_k b_k(N)_uv`` with the coefficients c that fit p on the points. The
fit corrects the w_i too, such that traces of polynomials are exact. What it leaves over is part of the stated error.

Where walks do not get far (roads, trees, rings, or a few thousand nodes of any graph) the ``b_k`` are Chebyshev polynomials,
exact at nodes and edges. Otherwise short walks are exact, and the rest is estimated with seeded random signs z, as the mean
of ``z_u (q_k(N) z)_v``. Its variance is that of ``q_k`` over the eigenvalues, and the ``q_k`` are the orthogonal polynomials
of their density, of which the few of low degree account for most of a function.
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
from torch.nn.functional import embedding_bag, pad

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
    fit: Float[Tensor, "terms points"]
    """The matrix from values of p on the points to coefficients of polynomials ``b_k``, in float64."""
    own: Float[Tensor, "nodes terms"]
    """``b_k(N)`` at nodes."""
    between: Float[Tensor, "entries terms"] | None
    """``b_k(N)`` at entries of N, if edges are read."""
    rows: Rows
    error: Float[Tensor, "directions points"]
    """The root mean square of the standard error of p at nodes is at most the norm of ``error p``."""

    def read(
        self, p: Float[Tensor, "points channels"], u: Int[Tensor, " rows"], v: Int[Tensor, " rows"]
    ) -> Float[Tensor, "rows channels"]:
        """Return ``p(N)_uv`` of every channel at nodes (u is v) or edges, given the values of p on the points."""
        p = (self.fit @ p.to(self.fit.dtype)).to(p.dtype)
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
    n, top = len(rows.diagonal), 2 * float(rows.diagonal.max()) or 2.0  # upper bound on the eigenvalues
    degree = min(max(32, 2 * layers), 64)
    found = _local(rows, _chebyshev(degree, top), edges=edges, most=EXACT)
    if found is not None:
        own, between = found
        _, values, vectors = _lanczos(rows, 2 * degree, _signs(n, 8, dtype, torch.Generator().manual_seed(seed)))
        values, root = _with_null(rows, values, vectors[:1].flatten())
        angles = torch.arccos((1 - 2 / top * values).clamp(-1, 1))
        basis, gap = root[:, None] * torch.cos(angles[:, None] * torch.arange(degree + 1)), own[:0]
        basis[:, 1::2] *= -1
        known = degree + 1
    else:
        own, between, gap, known, values, root, basis = _estimated(rows, min(max(16, layers), 64), edges=edges, seed=seed)
    fit, rest = _fit(basis, root, torch.finfo(dtype).eps)
    expected = n * (basis.mT @ root)
    traces = torch.cat([own[:, :known].sum(0, dtype=torch.float64), expected[known:]])
    count = n * root.square() + fit.mT @ (traces - expected)
    count = torch.maximum(count, n / 16 * root.square())  # positive whatever the rounding errors
    error, device = torch.cat([gap.double() @ fit, rest]), pairs.graph.device
    between = None if between is None else between.to(device)
    return Points(
        values.to(device, dtype), count.to(device, dtype), fit.to(device), own.to(device), between, rows, error.to(device)
    )


def _fit(basis: Float[Tensor, "points terms"], root: Float[Tensor, " points"], unit: float) -> tuple[Tensor, Tensor]:
    """Return the matrix from values on points to coefficients c of least ``sum_i w_i (p(x_i) - c . b(x_i))^2 + |unit c|^2``.

    ``basis`` and ``root`` hold ``b(x_i)`` and 1, times the root of the weights. The second term is what rounding errors of
    ``b(N)`` add, so that no coefficient gets large where smaller ones do. Also return the matrix of the terms of the sum.
    """
    terms = basis.shape[1]
    q, r = torch.linalg.qr(torch.cat([basis, unit * torch.eye(terms, dtype=basis.dtype)]))
    fit = torch.linalg.solve_triangular(r, q[: len(basis)].mT, upper=True) * root
    return fit, torch.cat([torch.diag(root) - basis @ fit, unit * fit])


def _with_null(rows: Rows, values: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
    """Put the null space, whose dimension is known, before the points of the other eigenvalues."""
    share = (int(rows.component.max()) + 1) / len(rows.component)
    return pad(values, (1, 0)), torch.cat([root.new_tensor([share]).sqrt(), root * max(1 - share, 0) ** 0.5])


def _signs(n: int, columns: int, dtype: torch.dtype, draw: torch.Generator) -> Float[Tensor, "nodes columns"]:
    """Draw random signs."""
    return torch.randint(0, 2, (n, columns), generator=draw, dtype=torch.int8).to(dtype).mul_(2).sub_(1)


def _chebyshev(degree: int, top: float) -> Float[Tensor, "steps 3"]:
    """Return the recurrence of the Chebyshev polynomials of [0, top]."""
    recurrence = torch.tensor([[top / 2, 1.0, 4 / top]], dtype=torch.float64).repeat(degree, 1)
    recurrence[0, 1:] = torch.tensor([0.0, 2 / top])
    return recurrence


def _local(rows: Rows, recurrence: Tensor, *, edges: bool, most: float) -> tuple[Tensor, Tensor | None] | None:
    """Return ``q_k(N)`` at nodes and entries for all k, or None if that takes more than ``most`` steps.

    ``q_(k + 1) = (N - a_k) q_k c_k - b_k q_(k - 1)`` with ``(a_k, b_k, c_k)`` in the rows of ``recurrence``.
    """
    n, degree, recurrence = len(rows.diagonal), len(recurrence), recurrence.to(rows.value.dtype)
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
    """Return the recurrence of the orthogonal polynomials for the density that random columns see, and its Gauss rule.

    It leaves out the null space. Row k of the last matrix holds ``q_k(x_i)`` times the root of the weight of ``x_i``.
    """
    now, size = rows.without_null(start), float(torch.linalg.vector_norm(start, dtype=torch.float64))
    shifts, norms = [], [float(torch.linalg.vector_norm(now, dtype=torch.float64))]
    before, now = torch.zeros_like(now), now / max(norms[0], 1e-30)
    for k in range(degree + 1):
        if norms[-1] < 1e-5 * (float(rows.diagonal.max()) if k else size):  # all eigenvalues have been found
            break
        next = rows.without_null(rows.times(now))
        shifts.append(float((now * next).sum(dtype=torch.float64)))
        next.sub_(now, alpha=shifts[-1]).sub_(before, alpha=norms[-1] if k else 0.0)
        norms.append(float(torch.linalg.vector_norm(next, dtype=torch.float64)))
        before, now = now, next / norms[-1]
    inside = torch.tensor(norms[1 : len(shifts)], dtype=torch.float64)
    jacobi = torch.diag(torch.tensor(shifts, dtype=torch.float64)) + torch.diag(inside, 1) + torch.diag(inside, -1)
    values, vectors = torch.linalg.eigh(jacobi)
    real = vectors[:1].flatten().square() > 1e-8 / len(now)  # others are between eigenvalues
    values, vectors = values[real], vectors[:, real]
    recurrence = [(a, b / c, 1 / c) for a, b, c in zip(shifts[:-1], [0.0, *norms[1:]], norms[1:], strict=False)]
    return torch.tensor(recurrence, dtype=start.dtype).reshape(-1, 3), values, vectors * vectors[:1].sign()


def _estimated(
    rows: Rows, degree: int, *, edges: bool, seed: int
) -> tuple[Tensor, Tensor | None, Tensor, int, Tensor, Tensor, Tensor]:
    """Return the null space and estimates of ``q_k(N)`` at nodes and entries, their spread, and how many are known.

    Then follow the points, the root of their weights, and ``q_k`` on them, times that root.
    """
    n, draw, rounds = len(rows.diagonal), torch.Generator().manual_seed(seed), PROBES // TOGETHER
    row = rows.row if edges else rows.column
    z = _signs(n, TOGETHER, rows.value.dtype, draw)
    recurrence, values, vectors = _lanczos(rows, degree, z[:, :8].contiguous())
    values, root = _with_null(rows, values, vectors[:1].flatten())
    basis = torch.block_diag(root[:1, None], (vectors * float(root[1:].norm())).mT)
    halves = [rows.value.new_zeros(n, len(vectors)) for _ in range(2)]
    between = rows.value.new_zeros(len(rows.value), len(vectors)) if edges else None
    for number in range(rounds):
        for k, q in enumerate(_run(rows, recurrence, rows.without_null(z), project=True)):
            halves[number % 2][:, k] += (z * q).sum(1) / PROBES
            if between is not None:
                _add_products(rows, z, q, between, k)
        z = _signs(n, TOGETHER, z.dtype, draw) if number + 1 < rounds else z
    own, gap = halves[0] + halves[1], halves[0] - halves[1]  # the gap has the size of the standard error
    at_zero = torch.stack([q[0, 0] for q in _run(ZERO, recurrence, torch.ones(1, 1).to(z))])
    null = rows.null.square(), rows.null[row] * rows.null[rows.column]
    sure = 2
    for short in range(min(SHORT - edges, len(recurrence)), 0, -2):
        known = _local(rows, recurrence[:short], edges=edges, most=BESIDE)
        if known is not None:
            sure = short + 2
            own[:, : short + 1], gap[:, : short + 1] = known[0] - null[0][:, None] * at_zero[: short + 1], 0
            if between is not None and known[1] is not None:
                between[:, : short + 1] = known[1] - null[1][:, None] * at_zero[: short + 1]
            break
    own = torch.cat([null[0][:, None], own], dim=1)
    between = None if between is None else torch.cat([null[1][:, None], between], dim=1)
    return own, between, torch.linalg.qr(pad(gap, (1, 0)) / math.sqrt(n), mode="r").R, sure, values, root, basis


def _add_products(rows: Rows, x: Tensor, y: Tensor, out: Float[Tensor, "entries points"], k: int) -> None:
    """Add ``(x_u y_v + x_v y_u) / 2``, averaged over all probes, to column k of every entry (u, v)."""
    if native.active() is not None and out.dtype == torch.float32:
        panel = x.contiguous(), y.contiguous(), out[:, k]
        native.call("ohm_meet", len(x), x.shape[1], out.shape[1], 0.5 / PROBES, rows.start, rows.column, *panel)
        return
    for part in torch.arange(len(out)).split(2**18):
        u, v = rows.row[part], rows.column[part].long()
        out[part, k] += ((x[u] * y[v]).sum(1) + (x[v] * y[u]).sum(1)) * (0.5 / PROBES)
