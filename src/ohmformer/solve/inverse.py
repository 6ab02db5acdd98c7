"""``L^+ psi`` by the method that fits the graph, with a certificate, and with gradients by one more solve.

Each engine is a function from a graph, demands and what is asked to an :class:`Answer`; :func:`apply_pinv` chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ohmformer.constructions import Chebyshev, ChebyshevCubing, Construction, GradientDescent, Squaring
from ohmformer.graph import Graph, circuit
from ohmformer.solve.answer import Answer, check_reached
from ohmformer.solve.engines import classical, small, sparse

SMALL = 400
"""Nodes up to which a graph is worth an n x n state."""
DENSE = 20 * SMALL
"""Nodes beyond which nobody should ask for an n x n matrix."""
REASONABLE = 3000
"""Layers beyond which a construction is left for a classical solver."""
LEMMAS: dict[str, type[Construction]] = {
    "gradient-descent": GradientDescent,
    "squaring": Squaring,
    "chebyshev": Chebyshev,
    "cubing": ChebyshevCubing,
}
METHODS = ("auto", *LEMMAS, "direct", "multigrid")

Progress = Callable[[int, float], bool | None]


@dataclass
class Work:
    """What a solve is asked for, and where it leaves its certificate."""

    tol: float
    method: str
    progress: Progress | None = None
    trace: bool = False
    answer: Answer | None = None


def apply_pinv(graph: Graph, psi: Tensor, work: Work) -> Answer:
    """``L^+ psi`` for centred columns psi, differentiable in psi and in the resistances."""
    phi = _PseudoInverse.apply(graph.resistance, psi, graph, work)
    assert isinstance(phi, Tensor)
    assert work.answer is not None
    return replace(work.answer, value=phi)


def apply_in_turn(graph: Graph, panels: Iterable[Tensor], work: Work) -> Iterator[Answer]:
    """``L^+`` of one panel of demands after the other; ``progress`` hears of the layers of all of them together.

    If one is stopped, those after it are left as they are: zero, with a residual of one.
    """
    before, now, last = 0, 0, None

    def tell(layers: int, residual: float) -> bool:
        nonlocal now
        now = layers
        return bool(work.progress and work.progress(before + layers, residual))

    for psi in panels:
        if last is not None and last.stopped:
            last = replace(last, value=torch.zeros_like(psi), layers=0, residual=1.0)
        else:
            last = apply_pinv(graph, psi, replace(work, progress=tell))
            before, now = before + now, 0
        yield last


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
    method = work.method
    if method == "auto":
        method = "cubing" if graph.width <= SMALL else "chebyshev"
    if method in ("direct", "multigrid"):
        return check_reached(_classical(graph, psi, method), work.tol)
    if work.trace or method in ("gradient-descent", "squaring"):
        return check_reached(_as_transformer(graph, psi, work, method), work.tol)
    if method == "cubing" and graph.width > DENSE:
        raise ValueError(f"expected at most {DENSE} nodes for method='cubing', got {graph.width}")
    answer = (_cubing if method == "cubing" else _chebyshev)(graph, psi, work)
    if work.method != "auto" or answer.residual <= work.tol or answer.stopped:
        return check_reached(answer, work.tol)
    reason = answer.note or f"{answer.method} stopped at a residual of {answer.residual:.1e}"
    best = min((answer, _classical(graph, psi, "direct")), key=lambda a: a.residual)
    return check_reached(replace(best, note=reason), work.tol)


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


# ---------------------------------------------------------------------------------------------------- engines


def _cubing(graph: Graph, psi: Tensor, work: Work) -> Answer:
    """Chebyshev cubing of whole matrices, see :mod:`ohmformer.solve.engines.small`."""
    inverses = small.invert(graph, work.tol)
    phi = graph.center(inverses.apply(psi))
    return Answer(phi, "cubing", inverses.layers, _residual(graph, phi, psi), inverses.bound, inverses.spectrum)


def _chebyshev(graph: Graph, psi: Tensor, work: Work) -> Answer:
    """Chebyshev in CSR, see :mod:`.engines.sparse`: the spectrum is estimated, so the residual is measured, not proved."""
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
    return Answer(phi, "chebyshev", solved.layers, residual, None, solved.spectrum, note, solved.stopped)


def _as_transformer(graph: Graph, psi: Tensor, work: Work, method: str) -> Answer:
    """The construction as a Transformer, layer by layer, on the unscaled Laplacian and from proved bounds."""
    if graph.width > DENSE:
        raise ValueError(f"expected at most {DENSE} nodes for a Transformer with method={method!r}, got {graph.width}")
    spectrum = graph.spectral_bounds()
    construction = LEMMAS[method](spectrum)
    layers = construction.layers_for(work.tol / (2 * spectrum.lmax))
    phi, trace = construction.answer_to(graph, psi, layers=layers, trace=work.trace)
    phi = graph.center(phi.detach())
    bound = spectrum.lmax * construction.error_bound(layers)
    return Answer(phi, method, layers, _residual(graph, phi, psi), bound, spectrum, trace=trace)


def _classical(graph: Graph, psi: Tensor, method: str) -> Answer:
    """A classical solver, and one refinement."""
    name, apply = classical.inverse(graph, SMALL, method)
    phi = apply(psi)
    phi = phi + apply(graph.center(_leftover(graph, phi, psi)))
    return Answer(phi, name, 0, _residual(graph, phi, psi), None)
