"""``L^+ psi`` by the method that fits the graph, with a certificate, and with gradients by one more solve.

Three engines, each a function from a graph and demands to an :class:`Answer`; :func:`apply_pinv` chooses and checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ohmformer import circuit, exact, sparse
from ohmformer.constructions.electric import ChebyshevCubing, inverse_chebyshev
from ohmformer.graph import Graph, Spectrum

SMALL = 400
"""Nodes up to which a graph is worth an n x n state."""
REASONABLE = 3000
"""Layers beyond which a construction is left for a classical solver."""
METHODS = ("auto", "cubing", "chebyshev", "direct")


@dataclass(frozen=True)
class Answer:
    """A value and its certificate."""

    value: Tensor
    method: str
    layers: int
    residual: float
    """Measured: see the function that made the answer."""
    bound: float | None
    """Proved, in exact arithmetic, for the same quantity; None where the proof needs a spectrum that is only estimated."""
    spectrum: Spectrum | None = None
    """The interval that depth was chosen for."""
    note: str = ""
    stopped: bool = False
    """Whether the work was stopped, by Ctrl-C or by ``progress``, before it reached its tolerance."""


@dataclass
class Work:
    """What a solve is asked for, and where it leaves its certificate."""

    tol: float
    method: str
    progress: Callable[[int, float], bool] | None = None
    answer: Answer | None = None


def apply_pinv(graph: Graph, psi: Tensor, work: Work) -> Answer:
    """``L^+ psi`` for centred columns psi, differentiable in psi and in the resistances."""
    phi = _PseudoInverse.apply(graph.resistance, psi, graph, work)
    assert isinstance(phi, Tensor)
    assert work.answer is not None
    return replace(work.answer, value=phi)


class _PseudoInverse(torch.autograd.Function):
    """``phi = L^+ psi``, with gradients by one more solve instead of through the layers.

    For an incoming gradient g: ``w = L^+ g`` is the gradient in psi, and as ``d phi = -L^+ dL phi``, an edge (u, v) of
    conductance c gets ``-(w_u - w_v)(phi_u - phi_v)``, so its resistance gets the same over ``-r^2``.
    """

    @staticmethod
    def forward(ctx: Any, resistance: Tensor, psi: Tensor, graph: Graph, work: Work) -> Tensor:
        work.answer = _solve(graph, psi.detach(), work)
        ctx.graph, ctx.work = graph, work
        ctx.save_for_backward(resistance, work.answer.value)
        return work.answer.value

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        resistance, phi = ctx.saved_tensors
        adjoint = _solve(ctx.graph, ctx.graph.center(gradients[0]), Work(ctx.work.tol, ctx.work.method)).value
        tail, head = ctx.graph.edge_index
        drop = torch.zeros_like(resistance)
        for w, x in zip(adjoint.split(8, dim=1), phi.split(8, dim=1), strict=True):  # never as wide as edges x demands
            drop += ((w[head] - w[tail]) * (x[head] - x[tail])).sum(1)
        return drop / resistance.square(), adjoint, None, None


def _solve(graph: Graph, psi: Tensor, work: Work) -> Answer:
    """The method asked for, or the first of those that ``auto`` tries which reaches the tolerance."""
    if not psi.any():
        return Answer(torch.zeros_like(psi), "none", 0, 0.0, 0.0, note="nothing is demanded")
    small = graph.width <= SMALL
    if work.method != "auto":
        engine = {"cubing": _cubing, "chebyshev": _chebyshev, "direct": _direct}[work.method]
        if work.method == "cubing" and graph.width > 20 * SMALL:
            raise ValueError(f"expected at most {20 * SMALL} nodes for method='cubing', got {graph.width}")
        return _checked(engine(graph, psi, work), work)
    answer = (_cubing if small else _chebyshev)(graph, psi, work)
    if answer.residual <= work.tol or answer.stopped:
        return answer
    fallback = _direct(graph, psi, work)
    reason = answer.note or f"{answer.method} stopped at a residual of {answer.residual:.1e}"
    best = min((answer, fallback), key=lambda a: a.residual)
    return _checked(replace(best, note=reason), work)


def _checked(answer: Answer, work: Work) -> Answer:
    if not answer.residual <= work.tol and not answer.stopped:
        raise ValueError(
            f"asked for a residual of {work.tol:.1e}, but {answer.method} reaches {answer.residual:.1e} on this graph "
            f"in {str(answer.value.dtype).removeprefix('torch.')}; pass a larger tol"
        )
    return answer


def _leftover(graph: Graph, phi: Tensor, psi: Tensor) -> Tensor:
    """``psi - L phi``: by differences over edges for small graphs, as a sparse product for large ones."""
    if graph.width <= SMALL:
        return psi - circuit.divergence(graph, circuit.flow(graph, phi)).detach()
    return psi - graph.sparse_laplacian().detach() @ phi


def _residual(graph: Graph, phi: Tensor, psi: Tensor) -> float:
    """``|psi - L phi| / |psi|`` of the worst demand."""
    norm, gap = psi.norm(dim=0), _leftover(graph, phi, psi).norm(dim=0)
    ratio = torch.where(norm > 0, gap / torch.where(norm > 0, norm, 1.0), gap)
    return float(ratio.max()) if ratio.numel() else 0.0


def _cubing(graph: Graph, psi: Tensor, work: Work) -> Answer:
    """Chebyshev cubing on ``D^-1/2 L D^-1/2``, in buckets of graphs of like size, from proved bounds on the spectrum."""
    lowest = graph.scaled_spectral_bounds()
    degrees = torch.as_tensor(graph.degrees(), dtype=graph.dtype, device=graph.device)
    spread = _degree_spread(graph, degrees)
    phi = torch.zeros_like(psi)
    layers, bound, widest = 0, 0.0, Spectrum(sparse.LARGEST, sparse.LARGEST)
    for nodes, which in _buckets(graph):
        part = graph.select(which) if graph.batched else graph
        lmin = float(lowest[which.cpu().numpy()].min())
        inverse = ChebyshevCubing(Spectrum(lmin, sparse.LARGEST))
        depth = inverse.layers_for(work.tol / (2 * spread) / lmin)
        blocks, scaled, root = _scaled_blocks(part, degrees[nodes], inverse.start)
        model = inverse.efficient(depth, dtype=graph.dtype).to(graph.device).requires_grad_(False)
        x = model(scaled, blocks)["pinv"]
        local = part.pad(psi[nodes])
        phi[nodes] = part.unpad(root[..., None] * (x @ (root[..., None] * local)))
        layers = max(layers, depth)
        bound = max(bound, spread * inverse_chebyshev(3 ** max(depth - 1, 0), sparse.LARGEST / lmin))
        widest = Spectrum(min(widest.lmin, lmin), sparse.LARGEST)
    phi = graph.center(phi)
    return Answer(phi, "cubing", layers, _residual(graph, phi, psi), bound, widest)


def _degree_spread(graph: Graph, degrees: Tensor) -> float:
    """``sqrt(max degree / min degree)`` within a component at most: what the scaling can do to the norm of a residual."""
    real = degrees > 0
    if not bool(real.any()):
        return 1.0
    label = graph.components[real]
    high = degrees.new_zeros(graph.num_components).scatter_reduce(0, label, degrees[real], "amax")
    low = torch.full_like(high, torch.inf).scatter_reduce(0, label, degrees[real], "amin")
    return math.sqrt(float((high / low).max()))


def _buckets(graph: Graph) -> list[tuple[Tensor, Tensor]]:
    """Graphs of like size together, as (their nodes, their numbers); padding costs three nodes or an eighth."""
    sizes = graph.graph_sizes.cpu().numpy()
    step = np.maximum(4, 2 ** np.floor(np.log2(np.maximum(sizes, 1) / 8)).clip(min=1)).astype(np.int64)
    rounded = -(-sizes // step) * step
    buckets = []
    for size in np.unique(rounded):
        which = torch.as_tensor(np.nonzero(rounded == size)[0], device=graph.device)
        member = torch.zeros(graph.num_graphs, dtype=torch.bool, device=graph.device)
        member[which] = True
        buckets.append((member[graph.batch].nonzero()[:, 0], which))
    return buckets


def _scaled_blocks(graph: Graph, degrees: Tensor, start: float) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """The input blocks of an inverse of ``D^-1/2 L D^-1/2``, that matrix, and ``D^-1/2``, padded."""
    d = graph.pad(degrees[:, None])[..., 0]
    root = torch.where(d > 0, torch.where(d > 0, d, 1.0).rsqrt(), 0.0)
    scaled = root[..., :, None] * graph.laplacian().detach() * root[..., None, :]
    label = graph.padded_components
    same = (label[..., :, None] == label[..., None, :]) & (label[..., :, None] >= 0)
    weight = d.sqrt()
    volume = (same * d[..., None, :]).sum(-1)
    along = same * weight[..., :, None] * weight[..., None, :] / torch.where(volume > 0, volume, 1.0)[..., None]
    onto = torch.diag_embed((d > 0).to(d.dtype)) - along
    return {"identity": graph.identity(), "residual": onto, "pinv": start * onto}, scaled, root


def _chebyshev(graph: Graph, psi: Tensor, work: Work) -> Answer:
    """Chebyshev in CSR. The ends of the spectrum are estimated, so there is no proved bound, only the measured residual."""
    scaled, found = sparse.prepared(graph)
    depth = sparse.layers_for(work.tol, found.spectrum)
    if work.method == "auto" and (depth > REASONABLE or not found.separated):
        at_least = "" if found.separated else "more than "
        condition = f"{at_least}{found.spectrum.condition:.1e}"
        note = f"chebyshev would take {at_least}{depth} layers at a condition number of {condition}"
        return Answer(torch.zeros_like(psi), "chebyshev", 0, 1.0, None, found.spectrum, note)
    solved = sparse.solve(scaled, psi.double(), work.tol, found.spectrum, work.progress)
    phi = graph.center_(solved.potentials).to(psi.dtype)
    residual = solved.residual if phi.dtype == torch.float64 else _residual(graph, phi, psi)
    note = "stopped early" if solved.stopped else ""
    return Answer(phi, "chebyshev", solved.layers, residual, None, solved.spectrum, note, stopped=solved.stopped)


def _direct(graph: Graph, psi: Tensor, work: Work) -> Answer:
    """LAPACK on padded graphs, or a sparse LU of L with one node of each component grounded; then one refinement."""
    if graph.width <= SMALL:
        inverse = exact.pinv(graph).detach()

        def apply(x: Tensor) -> Tensor:
            return graph.unpad(inverse @ graph.pad(x))

        name = "lapack"
    else:
        factor, kept = _grounded(graph)

        def apply(x: Tensor) -> Tensor:
            out = torch.zeros_like(x)
            out[kept] = torch.as_tensor(factor.solve(x[kept].double().cpu().numpy())).to(x)
            return graph.center(out)

        name = "sparse LU"
    phi = apply(psi)
    phi = phi + apply(graph.center(_leftover(graph, phi, psi)))
    return Answer(phi, name, 0, _residual(graph, phi, psi), None)


def _grounded(graph: Graph) -> tuple[Any, Tensor]:
    """SuperLU of the Laplacian without the first node of every component, and the nodes that are left."""
    from scipy.sparse import csc_array
    from scipy.sparse.linalg import splu

    first = np.unique(graph.components.cpu().numpy(), return_index=True)[1]
    keep = np.ones(graph.num_nodes, dtype=bool)
    keep[first] = False
    number = np.cumsum(keep) - 1
    tail, head = graph.edge_index.cpu().numpy()
    c = 1 / graph.resistance.detach().cpu().double().numpy()
    inner = keep[tail] & keep[head]
    degree = graph.degrees()[keep]
    rows = np.concatenate([number[tail[inner]], number[head[inner]], np.arange(len(degree))])
    columns = np.concatenate([number[head[inner]], number[tail[inner]], np.arange(len(degree))])
    values = np.concatenate([-c[inner], -c[inner], degree])
    matrix = csc_array((values, (rows, columns)), shape=(len(degree), len(degree)))
    factor = splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    return factor, torch.as_tensor(np.nonzero(keep)[0], device=graph.device)
