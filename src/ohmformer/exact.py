"""Ground truth by LAPACK: what every construction, test and plot is compared with.

Zero eigenvalues are never guessed. The null space of a Laplacian is known beforehand (one vector per connected
component), so it is shifted to an eigenvalue above all others before LAPACK is called.

All functions compute in float64 on the CPU and return results in the graph's dtype and on its device. Matrices of a batch
are padded, ``(graphs, width, width)``; a single graph has no leading axis.

>>> from ohmformer import Graph
>>> g = Graph.from_edges([(0, 1), (1, 2)], resistance=[1.0, 4.0])
>>> effective_resistance(g).round(decimals=12)
tensor([[0., 1., 5.],
        [1., 0., 4.],
        [5., 4., 0.]], dtype=torch.float64)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ohmformer.graph import Graph, Spectrum
from ohmformer.graph.circuit import resistance_from_root


@dataclass(frozen=True)
class Eigenvectors:
    """``k`` eigenpairs of each graph; ``mask`` is False for those that a graph lacks, whose values are all zero."""

    values: Float[Tensor, "*graphs k"]
    vectors: Float[Tensor, "*graphs width k"]
    mask: Bool[Tensor, "*graphs k"]


def decompose(
    graph: Graph, laplacian: str = "combinatorial"
) -> tuple[Float[Tensor, "graphs width"], Float[Tensor, "graphs width width"]]:
    """Compute all eigenpairs of every graph, ascending; null space and padding come last, with value 0.

    The matrix is L, or with ``laplacian="normalized"`` it is ``D^-1/2 L D^-1/2``, D the diagonal of L.

    LAPACK decomposes ``L + gamma N`` with N the projection onto the null space and gamma = 4 max_i L_ii >= 2 lmax. This is
    accurate to ``eps lmax``; if some eigenvalues l are too small for that, the squared singular values of ``B`` are used
    instead, which have a relative accuracy of ``eps sqrt(lmax / l)``.
    """
    host = graph.to("cpu", torch.float64)
    matrix, range_ = host.laplacian().detach(), host.projector()
    if not graph.batched:
        matrix, range_ = matrix[None], range_[None]
    if not host.width:
        return matrix.new_zeros(matrix.shape[:2]), matrix
    null, root = torch.eye(host.width, dtype=torch.float64) - range_, None
    if laplacian == "normalized":
        degree = matrix.diagonal(dim1=1, dim2=2)
        root = torch.where(degree > 0, degree, 1.0).rsqrt()[:, :, None]
        matrix = root * matrix * root.mT
        null = (null > 0) / (root * root.mT)  # D^1/2 1 of every component, and single nodes
        null = null / ((null > 0) * null.diagonal(dim1=1, dim2=2)[:, None]).sum(2, keepdim=True)
    largest = matrix.diagonal(dim1=1, dim2=2).amax(dim=1)
    gamma = torch.where(largest > 0, 4 * largest, 1.0)[:, None]
    if not bool(gamma.isfinite().all()):
        raise ValueError(f"expected conductances that add up to less than 4e307 at a node, got {float(largest.max()):.3g}")
    values, vectors = torch.linalg.eigh(matrix + gamma[:, :, None] * null)
    nonzero = torch.arange(host.width) < host.ranks[:, None]
    if bool((nonzero & (values < 1e-7 * gamma)).any()):
        values, vectors = _by_singular_values(host, root)
    return torch.where(nonzero, values, 0.0), vectors


def _by_singular_values(
    graph: Graph, root: Tensor | None
) -> tuple[Float[Tensor, "graphs width"], Float[Tensor, "graphs width width"]]:
    """Compute all eigenpairs from the singular values of ``B``, its rows multiplied by ``root`` if there is one."""
    incidence = graph.incidence().detach()
    incidence = incidence if graph.batched else incidence[None]
    incidence = incidence if root is None else root * incidence
    missing = max(graph.width - incidence.shape[-1], 0)
    u, s, _ = torch.linalg.svd(torch.nn.functional.pad(incidence, (0, missing)), full_matrices=False)
    position = torch.arange(graph.width).expand(graph.num_graphs, -1)
    rank = graph.ranks[:, None]
    order = torch.where(position < rank, rank - 1 - position, position)  # singular values descend
    return s.gather(1, order).square(), u.gather(2, order[:, None, :].expand_as(u))


def apply(graph: Graph, f: Callable[[Tensor], Tensor], *, at_zero: float = 0.0) -> Float[Tensor, "*graphs width width"]:
    """Compute ``f(L)`` with ``f`` applied to the nonzero eigenvalues and ``at_zero`` to the null space."""
    values, vectors = decompose(graph)
    # at_zero on all of the null space (padding included) is at_zero times the identity plus f - at_zero on the range
    image = torch.where(values > 0, f(torch.where(values > 0, values, 1.0)) - at_zero, 0.0)
    matrix = (vectors * image[:, None, :]) @ vectors.mT
    if not graph.batched:
        matrix = matrix[0]
    return matrix.to(graph.device, graph.dtype) + at_zero * graph.identity()


def pinv(graph: Graph) -> Float[Tensor, "*graphs width width"]:
    """Compute the pseudo-inverse ``L^+``."""
    return apply(graph, torch.reciprocal)


def sqrt_pinv(graph: Graph) -> Float[Tensor, "*graphs width width"]:
    """Compute the principal square root of ``L^+``."""
    return apply(graph, torch.rsqrt)


def heat(graph: Graph, s: float) -> Float[Tensor, "*graphs width width"]:
    """Compute the heat kernel ``exp(-s L)``, for ``s > 0``."""
    if not s > 0:
        raise ValueError(f"the heat kernel needs s > 0, got {s!r}")
    return apply(graph, lambda x: torch.exp(-s * x), at_zero=1.0)


def potentials(graph: Graph, demands: Tensor, *, center: bool = False) -> Float[Tensor, "nodes demands"]:
    """Compute the potentials ``L^+ psi`` for every column psi of ``demands``."""
    psi = graph.check_demands(demands, center=center)
    return graph.unpad(pinv(graph) @ graph.pad(psi))


def effective_resistance(graph: Graph) -> Float[Tensor, "*graphs width width"]:
    """Compute ``R_ij``, the potential difference that drives a unit current from i to j; ``inf`` between components.

    Computed from the rows of ``V Lambda^-1/2`` (Fact 1), which keeps small resistances beside large ones accurate.
    """
    values, vectors = decompose(graph)
    rows = vectors * torch.where(values > 0, torch.where(values > 0, values, 1.0).rsqrt(), 0.0)[:, None, :]
    rows = rows if graph.batched else rows[0]
    return resistance_from_root(graph.to("cpu"), rows).to(graph.device, graph.dtype)


def eigenvectors(graph: Graph, k: int, which: str = "smallest", laplacian: str = "combinatorial") -> Eigenvectors:
    """Compute the ``k`` smallest *nonzero* eigenpairs of each graph, ascending, or the ``k`` largest, descending."""
    if k < 1:
        raise ValueError(f"expected k >= 1 eigenvectors, got {k}")
    if which not in ("smallest", "largest"):
        raise ValueError(f"expected which='smallest' or 'largest', got {which!r}")
    values, vectors = decompose(graph, laplacian)
    graphs, width = values.shape
    rank = (values > 0).sum(dim=1, keepdim=True)
    position = torch.arange(k).expand(graphs, k)
    mask = position < rank
    column = (position if which == "smallest" else rank - 1 - position).clamp(0, max(width - 1, 0))
    if width == 0:
        chosen, basis = values.new_zeros(graphs, k), values.new_zeros(graphs, 0, k)
    else:
        chosen = values.gather(1, column) * mask
        basis = vectors.gather(2, column[:, None, :].expand(graphs, width, k)) * mask[:, None, :]
    squeeze = (lambda x: x) if graph.batched else (lambda x: x[0])
    to = {"device": graph.device, "dtype": graph.dtype}
    return Eigenvectors(squeeze(chosen).to(**to), squeeze(basis).to(**to), squeeze(mask).to(graph.device))


def spectrum(graph: Graph) -> Spectrum:
    """Return the smallest and the largest nonzero eigenvalue over all graphs; ``[1, 1]`` if there is none."""
    values = decompose(graph)[0]
    values = values[values > 0]
    return Spectrum(float(values.min()), float(values.max())) if values.numel() else Spectrum(1.0, 1.0)
