"""Eigenvectors of the Laplacian, with their eigenvalues."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer import exact
from ohmformer.constructions import GramSchmidt, Laplacian, SubspaceIteration, ThroughPinv
from ohmformer.graph import Graph
from ohmformer.graph.labelled import as_graph
from ohmformer.solve.answer import EigenAnswer, check_laplacian, check_reached, check_tolerance, join
from ohmformer.solve.blockwise import like_sized_parts
from ohmformer.solve.costs import MANY_NODES, REASONABLE, SMALL
from ohmformer.solve.engines.base import DENSE
from ohmformer.solve.engines.direct import Apply, eigenpairs, inverse_of
from ohmformer.solve.pseudoinverse import Request, apply_pinv
from ohmformer.solve.scaled import LARGEST, Scaled

LAPACK = 2000
"""Nodes up to which LAPACK finds all eigenvectors faster than Lanczos with ``L^+`` finds a few."""


def eigenvectors(
    graph: Any,
    k: int = 6,
    which: str = "smallest",
    *,
    tol: float = 1e-6,
    method: str = "auto",
    trace: bool = False,
    laplacian: str = "combinatorial",
    resistance: Any = None,
    conductance: Any = None,
) -> EigenAnswer:
    """Compute eigenvectors of the ``k`` smallest nonzero or largest eigenvalues, ``(nodes, k)``, and these eigenvalues.

    The smallest are ascending, the largest descending. If a graph has fewer, the other columns are zero and their
    eigenvalues NaN. ``residual`` is ``|L v - lambda v| / lmax`` for the worst of them, ``error`` is ``|L v - lambda v| /
    lambda``, rounding included: L has an eigenvalue within this relative distance of lambda. (A vector's angle to nearby
    eigenspaces is at most ``|L v - lambda v|`` over the distance to the other eigenvalues, by Davis and Kahan.) Methods:
    ``"direct"`` (LAPACK), ``"lanczos"`` (ARPACK on L, or for the smallest on ``L^+``, with one solve per product) and
    ``"subspace"``, the paper's subspace iteration as a Transformer (Lemma 6), with ``L^+`` for the smallest, deepened until
    it meets the tolerance. ``"auto"`` takes LAPACK up to 2,000 nodes, then Lanczos, which is repeated beside what it found
    while a copy of a multiple eigenvalue is missing; with ``trace=True``, subspace iteration.
    With ``laplacian="normalized"`` they are those of ``N = D^-1/2 L D^-1/2``, D the diagonal of L, by LAPACK or Lanczos.
    """
    normalized = check_laplacian(laplacian)
    check_tolerance(tol, method, ("auto", "direct", "lanczos") if normalized else ("auto", "direct", "lanczos", "subspace"))
    if k < 1:
        raise ValueError(f"expected k >= 1 eigenvectors, got {k}")
    if which not in ("smallest", "largest"):
        raise ValueError(f"expected which='smallest' or 'largest', got {which!r}")
    asked = as_graph(graph, resistance=resistance, conductance=conductance)
    found = asked.graph
    if trace and normalized:
        raise ValueError("expected trace=False with laplacian='normalized', got True")
    if trace and method == "auto":
        method = "subspace"
    if method in ("direct", "subspace") and found.width > DENSE:
        raise ValueError(f"expected graphs of at most {DENSE} nodes for method={method!r}, got one of {found.width}")
    vectors = torch.zeros(found.num_nodes, k, dtype=found.dtype, device=found.device)
    answers = []
    for chosen, part in [(None, found)] if trace else like_sized_parts(found):
        answers.append(_of_part(part, k, which, tol, method, trace, laplacian))
        if chosen is None:
            vectors = answers[-1].value
        else:
            vectors[found.nodes.rows(chosen)] = answers[-1].value
    answer = join(answers, vectors)
    values = _rayleigh_quotients(found, vectors.detach(), laplacian)
    return replace(check_reached(answer, tol), labels=asked.labels, eigenvalues=values if found.batched else values[0])


def _of_part(graph: Graph, k: int, which: str, tol: float, method: str, trace: bool, laplacian: str) -> EigenAnswer:
    """Compute eigenvectors of graphs of similar size, by one method."""
    if method == "subspace":
        return _subspace(graph, k, which, tol, trace)
    if method == "lanczos" or (method == "auto" and graph.width > LAPACK):
        return _lanczos(graph, k, which, tol, laplacian)
    vectors = graph.unpad(exact.eigenvectors(graph, k, which, laplacian).vectors)
    return _answer(graph, vectors, "lapack", laplacian)


def _answer(graph: Graph, vectors: Tensor, method: str, laplacian: str = "combinatorial", **certificate: Any) -> EigenAnswer:
    """Return vectors ``(nodes, k)`` with their measured residual; the caller sets the joint eigenvalues."""
    values = _rayleigh_quotients(graph, vectors.detach(), laplacian)
    residual, error = _eigen_residual(graph, vectors.detach(), values, laplacian)
    certificate |= {"eigenvalues": values, "error": error, "error_kind": "bound"}
    return EigenAnswer(vectors, method, certificate.pop("layers", 0), residual, None, **certificate)


def _root(graph: Graph, laplacian: str) -> Float[Tensor, "nodes 1"]:
    """Return ``D^-1/2``, zero at isolated nodes; ones for L itself."""
    if laplacian == "combinatorial":
        return torch.ones(graph.num_nodes, 1, dtype=graph.dtype, device=graph.device)
    degree = torch.as_tensor(graph.degrees())[:, None]
    return torch.where(degree > 0, torch.where(degree > 0, degree, 1.0).rsqrt(), 0.0).to(graph.device, graph.dtype)


def _rayleigh_quotients(graph: Graph, vectors: Float[Tensor, "nodes k"], laplacian: str) -> Float[Tensor, "graphs k"]:
    """Compute ``v^T L v`` of every column and graph, by differences over the edges; NaN where the column is zero."""
    tail, head = graph.edge_index
    scaled = vectors * _root(graph, laplacian)
    energy = (scaled[tail] - scaled[head]).square() / graph.resistance.detach()[:, None]
    none = vectors.new_zeros(graph.num_graphs, vectors.shape[1])
    size = none.index_add(0, graph.batch, vectors.square())
    return torch.where(
        size > 0.5, none.index_add(0, graph.edge_graph, energy) / torch.where(size > 0.5, size, 1.0), torch.nan
    )


def _eigen_residual(
    graph: Graph, vectors: Float[Tensor, "nodes k"], values: Float[Tensor, "graphs k"], laplacian: str
) -> tuple[float, float]:
    """Compute ``|L v - lambda v|`` of the worst column over lmax, and over lambda with rounding, without zero columns."""
    if not vectors.numel() or not graph.num_edges:
        return 0.0, 0.0
    lmax = LARGEST if laplacian == "normalized" else graph.spectral_bounds().lmax
    root, eps = _root(graph, laplacian), torch.finfo(vectors.dtype).eps
    left = root * (graph.sparse_laplacian().detach() @ (root * vectors)) - values.nan_to_num()[graph.batch] * vectors
    norm = values.new_zeros(values.shape).index_add(0, graph.batch, left.square()).sqrt()
    lost = (int(torch.bincount(graph.edge_index.flatten()).max()) + 12) * eps * 2 * lmax  # |L| is at most twice lmax
    error = torch.where(values > 0, (norm + lost) / torch.where(values > 0, values, 1.0), 0.0)
    return float(norm.max()) / lmax, float(error.max())


def _subspace(graph: Graph, k: int, which: str, tol: float, trace: bool) -> EigenAnswer:
    """Run subspace iteration, doubling the depth until the residual is below ``tol``."""
    spectrum = graph.spectral_bounds()
    matrix = ThroughPinv(spectrum) if which == "smallest" else Laplacian(spectrum)
    iteration = SubspaceIteration(matrix, GramSchmidt(k))
    start, steps = iteration.start(graph, seed=0), 1
    while True:
        layers = iteration.layers(steps)
        states = iteration.run_blocks(graph, iteration.inputs(graph, start), layers, trace=trace)
        vectors = graph.unpad(states.final[iteration.answer].flip(-1))
        answer = _answer(graph, vectors, "subspace", layers=layers, spectrum=spectrum, trace=states if trace else None)
        if answer.residual <= tol or iteration.layers(2 * steps) > REASONABLE:
            return answer
        steps *= 2


def _lanczos(graph: Graph, k: int, which: str, tol: float, laplacian: str) -> EigenAnswer:
    """Run ARPACK graph by graph; products with ``L^+`` use the engine that the plan names."""
    parts, names = [], []
    for part in graph.split() if graph.batched else [graph]:
        host = part.to("cpu", torch.float64)
        if int(host.ranks[0]) <= 3 * k or host.num_nodes <= SMALL:  # ARPACK needs many more nodes than vectors
            vectors, name = exact.eigenvectors(host, k, which, laplacian).vectors, "lapack"
        else:
            name, pinv = "lanczos", None
            if which == "smallest":
                solver, pinv = _repeated_inverse(host, min(tol, 1e-6) * 1e-3)
                name = f"lanczos through {solver}"
            _, vectors = eigenpairs(host, k, which, pinv, Scaled.of(host) if laplacian == "normalized" else None)
        parts.append(vectors.to(graph.device, graph.dtype))
        names.append(name)
    return _answer(graph, torch.cat(parts), ", ".join(dict.fromkeys(names)), laplacian)


def _repeated_inverse(graph: Graph, tol: float) -> tuple[str, Apply]:
    """Return a function ``x -> L^+ x`` for many consecutive x, by the method that ``auto`` chooses for the first."""
    probe = graph.center(torch.randn(graph.num_nodes, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    first = apply_pinv(graph, probe, Request(1e-6))
    if first.method in ("chebyshev", "conjugate"):
        return first.method, lambda x: apply_pinv(graph, x, Request(tol, first.method)).value
    if first.method == "elimination" and graph.num_nodes > MANY_NODES:
        most = max(tol, 1e-8)  # the limit of float64 on a graph of large diameter
        return "elimination", lambda x: apply_pinv(graph, x, Request(most, "elimination")).value
    return "direct", inverse_of(graph).apply
