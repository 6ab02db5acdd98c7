"""The part of effective resistances that short random walks determine, and the polynomial that leaves the rest.

With ``A = I - N = D^-1/2 W D^-1/2`` and a polynomial h, ``h(1) = 1``, on the complement of its null space

    N^+ = p(A) + h(A) N^+ h(A),   p(x) = (1 - h(x)^2) / (1 - x).

Entries of ``p(A)`` are sums over walks of fewer steps than twice the degree of h, local and exact. Of all h of a degree, the
one with the smallest mean remainder is used: by Foster's theorem ``sum_e c_e R_e`` of the remainder is ``tr h(A)^2``, also
local.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse import csr_array, eye_array
from torch import Tensor

from ohmformer import native
from ohmformer.graph import Graph
from ohmformer.solve.factor import by_scipy

ROOM = 256
"""Mean number of two-step walks per node up to which walks are listed; the list takes as much memory as four panels."""


@dataclass(frozen=True, eq=False)
class LocalPart:
    """The contribution of walks: ``R_uv = between + (e_u - e_v)^T D^-1/2 h(A) N^+ h(A) D^-1/2 (e_u - e_v)``."""

    filter: tuple[float, ...]
    """The coefficients of h."""
    between: Float[Tensor, " pairs"]
    own: Float[Tensor, " nodes"]
    """The same between a node and a current extracted at all nodes of its component in proportion to their degrees."""
    share: float
    """The fraction of the mean of ``c_e R_e`` that remains."""

    @property
    def steps(self) -> int:
        """Number of steps of the longest walks."""
        return max(2 * len(self.filter) - 3, 0)


class Walks:
    """Short walks on a graph."""

    def __init__(self, graph: Graph) -> None:
        start, column, value = by_scipy(graph, 1 / graph.resistance.detach().cpu().double(), None)
        self.degree, component = graph.degrees(), graph.components.cpu().numpy()
        self.root = np.where(self.degree > 0, self.degree, np.inf) ** -0.5
        self.count = np.diff(start).astype(np.int64)
        scaled = value * np.repeat(self.root, self.count) * self.root[column]
        self.matrix = csr_array((scaled, column, start), shape=(graph.num_nodes,) * 2)
        volume = np.bincount(component, self.degree)
        self.components = np.count_nonzero(volume)  # with more than one node
        self.volume = np.where(volume > 0, volume, np.inf)[component]

    def local_part(self, ends: Int[Tensor, "2 pairs"], reach: int) -> LocalPart:
        """Compute the local part with h of degree ``reach``, 1 to 3; of degree 1 where the graph has too many walks."""
        root, (x, y) = self.root, (part.copy() for part in ends.cpu().numpy())
        reach = reach if self.count @ self.count <= ROOM * len(root) else 1
        own, between = (self._powers_in_c if native.active() and reach > 1 else self._powers)(x, y, reach)
        traces = own[self.degree > 0].sum(0) - self.components  # of the eigenvalue one, on every component
        gram = np.array([[traces[i + j] for j in range(reach + 1)] for i in range(reach + 1)])
        h = np.linalg.solve(gram + 1e-12 * max(traces[0], 1.0) * np.eye(reach + 1), np.ones(reach + 1))
        h /= h.sum()
        p = (1 - np.cumsum(np.convolve(h, h)))[:-1]
        apart = own[:, :-1] @ p * root**2
        rest = apart[x] + apart[y] - 2 * (between @ p) * root[x] * root[y]
        share = float(h @ gram @ h / max(traces[0], 1.0))
        own_part = torch.as_tensor(apart - p.sum() / self.volume)
        return LocalPart(tuple(h.tolist()), torch.as_tensor(rest), own_part, share)

    @cached_property
    def _square(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The square of the matrix by rows: their starts, lengths, columns and values."""
        matrix, nodes = self.matrix, len(self.root)
        walks = np.bincount(np.repeat(np.arange(nodes), self.count), self.count[matrix.indices], nodes)
        begin = torch.as_tensor(np.concatenate([[0], np.cumsum(walks)]).astype(np.int64))
        room = int(begin[-1])
        square = begin, torch.empty(nodes, dtype=torch.int32), torch.empty(room, dtype=torch.int32), torch.empty(room)
        native.call("ohm_square", nodes, *self._rows, *square)
        return square

    @property
    def _rows(self) -> list[Tensor]:
        return [torch.as_tensor(x) for x in (self.matrix.indptr, self.matrix.indices, self.matrix.data)]

    def _powers_in_c(self, u: np.ndarray, v: np.ndarray, reach: int) -> tuple[np.ndarray, np.ndarray]:
        """Compute the same as :meth:`_powers` in C."""
        nodes, order = len(self.root), np.argsort(u, kind="stable")
        first = np.concatenate([[0], np.cumsum(np.bincount(u, minlength=nodes))]).astype(np.int32)
        pairs = torch.as_tensor(first), torch.as_tensor(v[order].astype(np.int32))
        own = torch.empty(nodes, 2 * reach + 1, dtype=torch.float64)
        between = torch.empty(len(u), 2 * reach, dtype=torch.float64)
        native.call("ohm_walks", nodes, reach, *self._rows, *self._square, *pairs, own, between)
        found = np.empty((len(u), 2 * reach))
        found[order] = between.numpy()
        return own.numpy(), found

    def _powers(self, u: np.ndarray, v: np.ndarray, reach: int) -> tuple[np.ndarray, np.ndarray]:
        """Compute ``(A^k)_uu`` of all nodes, k up to twice ``reach``, and ``(A^k)_uv`` of the pairs, k below that."""
        powers, every = [eye_array(len(self.root), format="csr"), self.matrix], np.arange(len(self.root))
        while len(powers) <= reach:
            powers.append((powers[-1] @ self.matrix).tocsr())

        def meet(k: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
            if k <= reach:
                return np.asarray(powers[k][x, y])
            return np.asarray(powers[reach][x].multiply(powers[k - reach][y]).sum(1))

        own = [meet(k, every, every) for k in range(2 * reach + 1)]
        return np.stack(own, axis=1), np.stack([meet(k, u, v) for k in range(2 * reach)], axis=1)


def walks_of_three(graph: Graph) -> float:
    """Count the walks of three steps, parallel edges included."""
    tail, head = graph.edge_index
    count = torch.bincount(graph.edge_index.flatten(), minlength=graph.num_nodes).double()
    return 2 * float(count[tail] @ count[head])
