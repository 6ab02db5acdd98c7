"""Effective resistances from random projections, and embeddings whose squared distances are effective resistances.

The rows of ``L^+ B Q / sqrt(q)`` for a Gaussian matrix Q with q columns have squared distances with the effective
resistances as their means (Spielman and Srivastava) and a chi-squared distribution. The contribution of short walks is
computed exactly (:mod:`ohmformer.solve.walks`) and only the rest is projected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.sparse import coo_array
from scipy.special import gammainccinv, gammaincinv, ndtri
from torch import Tensor

from ohmformer import exact, native
from ohmformer.constructions import NewtonSchulzRoot, PowerSeriesRoot
from ohmformer.graph import Graph
from ohmformer.graph.labelled import as_graph
from ohmformer.graph.memory import recall
from ohmformer.solve import blockwise
from ohmformer.solve.answer import Answer, as_estimate, check_reached, check_tolerance, join
from ohmformer.solve.costs import LAYERS, PANEL, SMALL, SPREAD, WALK
from ohmformer.solve.engines.base import Progress
from ohmformer.solve.plan import METHODS, make_plan
from ohmformer.solve.pseudoinverse import Request, apply_in_turn, apply_pinv
from ohmformer.solve.scaled import prepared
from ohmformer.solve.walks import LocalPart, Walks, walks_of_three

FAILURE = 0.01
"""The probability that some estimate has an error above eps."""
QUANTILES = torch.as_tensor(ndtri((np.arange(2**16) + 0.5) / 2**16)).float()
"""Gaussian quantiles of 16 random bits; their variance is one to 2e-5."""
ROOTS = {"newton-schulz": NewtonSchulzRoot, "power-series": PowerSeriesRoot}

# ---------------------------------------------------------------------------------------------------- numbers of projections


def check_eps(eps: float) -> None:
    """Raise a ValueError unless ``0 < eps < 1``."""
    if not 0 < eps < 1:
        raise ValueError(f"expected eps in (0, 1), got {eps!r}")


def default_tolerance(eps: float | None) -> float:
    """Return the residual required of linear systems for an exact answer, or for an estimate within ``eps``."""
    if eps is None:
        return 1e-6
    check_eps(eps)
    return 1e-3 * eps


def interval(probes: Any, items: int, failure: float = FAILURE) -> tuple[Any, Any]:
    """Return bounds on the ratio of a remainder's estimate, the mean of ``probes`` squared projections, to its true value.

    The ratio is chi squared over its degrees of freedom, within the bounds for all items except with probability
    ``failure``.
    """
    tail = failure / (2 * max(items, 1))
    return 2 * gammaincinv(probes / 2, tail) / probes, 2 * gammainccinv(probes / 2, tail) / probes


def excess(eps: float, probes: Any, items: int, failure: float = FAILURE) -> Any:
    """Return the a such that a value within eps of ``local + remainder`` is known wherever ``a estimate <= eps local``.

    The remainder is between ``estimate / high`` and ``estimate / low``; there is a value within eps of both ends if ``(1 -
    eps) (local + estimate / low) <= (1 + eps) (local + estimate / high)``.
    """
    low, high = interval(probes, items, failure)
    return ((1 - eps) / low - (1 + eps) / high) / 2


@lru_cache(maxsize=64)
def projections(eps: float, items: int, share: float = 1.0) -> int:
    """Count projections that keep ``items`` resistances within ``1 +- eps`` if at most a ``share`` of each is projected."""

    def enough(probes: int) -> bool:
        return bool(share * excess(eps, probes, items) <= eps * (1 - share))

    low, high = 1, 2
    while not enough(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def projections_for(local: LocalPart, eps: float, items: int) -> int:
    """Estimate how many projections are needed, if the largest remaining share is :data:`SPREAD` times the mean."""
    return projections(eps, items, min(SPREAD * local.share, 1.0))


def local_part_for(graph: Graph, ends: Int[Tensor, "2 pairs"], eps: float) -> LocalPart:
    """Compute the local part of resistances from walks of three steps, or of five if that saves more than it costs."""
    walks = Walks(graph)
    found = walks.local_part(ends, 2)
    spared = projections_for(found, eps, ends.shape[1]) - 2 * PANEL
    if found.steps > 1 and WALK * walks_of_three(graph) <= LAYERS * spared * (2 * graph.num_edges + graph.num_nodes):
        found = walks.local_part(ends, 3)
    return found


def local_part_of_edges(graph: Graph, eps: float) -> LocalPart:
    """Compute the local part of the resistances of all edges; kept for the next question."""
    return recall(graph, ("walks", eps), lambda: local_part_for(graph, graph.edge_index, eps))


def _next(eps: float, done: int, ratio: Float[np.ndarray, " items"], failure: float) -> int:
    """Choose the number of projections that minimizes them plus the items left to solve for, in panels.

    ``ratio`` is ``local / remainder``, ascending, from the projections so far.
    """
    most = projections(eps, len(ratio))
    counts = np.arange(done, max(most, done) + 2 * PANEL, 2 * PANEL)
    unsure = np.searchsorted(eps * ratio, excess(eps, counts, len(ratio), failure))
    return int(counts[np.argmin(counts + np.ceil(unsure / (2 * PANEL)) * 2 * PANEL)])


# ---------------------------------------------------------------------------------------------------- projections


class _Noise:
    """Columns of ``B Q``, Q Gaussian: demands whose covariance is the Laplacian, a function of seed, edge and column."""

    def __init__(self, graph: Graph, seed: int) -> None:
        self.graph, self.seed, self.drawn = graph, seed % 2**63, 0
        edge, (tail, head) = np.arange(graph.num_edges, dtype=np.int32), graph.edge_index.cpu().numpy().astype(np.int32)
        root = graph.resistance.detach().cpu().double().numpy() ** -0.5
        place = np.concatenate([tail, head]), np.concatenate([edge, edge])
        self.rows = coo_array((np.concatenate([-root, root]), place), shape=(graph.num_nodes, graph.num_edges)).tocsr()

    def __call__(self, columns: int) -> Float[Tensor, "nodes columns"]:
        """Return the next ``columns`` columns."""
        wide, nodes = -(-columns // 4) * 4, self.graph.num_nodes
        if native.active() is not None:
            arrays = [torch.as_tensor(x) for x in (self.rows.indptr, self.rows.indices.astype(np.int64), self.rows.data)]
            psi = torch.empty(nodes, wide, dtype=torch.float64)
            native.call("ohm_noise", nodes, wide, self.drawn, self.seed, *arrays, QUANTILES, psi)
        else:
            psi = torch.as_tensor(self.rows @ gaussian(np.arange(self.graph.num_edges), self.seed, self.drawn, wide).numpy())
        self.drawn += wide
        return self.graph.center(psi[:, :columns].to(self.graph.device, self.graph.dtype))


def gaussian(items: Int[np.ndarray, " items"], seed: int, first: int, columns: int) -> Float[Tensor, "items columns"]:
    """Draw Gaussian numbers as a function of item, column and seed; first and columns are multiples of four."""
    step = np.uint64(0x9E3779B97F4A7C15)
    key = _mixed(np.uint64(seed) + items.astype(np.uint64) * step)
    groups = np.arange(first // 4 + 1, (first + columns) // 4 + 1, dtype=np.uint64) * step
    bits = _mixed(key[:, None] + groups)[..., None] >> np.arange(0, 64, 16, dtype=np.uint64) & np.uint64(0xFFFF)
    return torch.as_tensor(QUANTILES.numpy()[bits.reshape(-1, columns)].astype(np.float64))


def _mixed(x: np.ndarray) -> np.ndarray:
    """Apply the finalizer of splitmix64, which maps counters to random bits, the same as in ``walks.c``."""
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


def without_gradient(graph: Graph) -> Graph:
    """Return the graph itself, whose results may be cached, or a detached copy if its resistances need a gradient."""
    return graph if not graph.resistance.requires_grad else replace(graph, resistance=graph.resistance.detach())


def _panel(graph: Graph, demands: int, request: Request) -> int:
    """Return how many demands the engines process together."""
    made = make_plan(graph, demands, request.tol, request.method)
    return max(PANEL, min((part.panel for part in made.parts), default=PANEL) // PANEL * PANEL)


def _filtered(graph: Graph, psi: Float[Tensor, "nodes k"], h: tuple[float, ...]) -> Float[Tensor, "nodes k"]:
    """Compute ``h(W D^-1) psi``, as ``W D^-1 = I - L D^-1``."""
    scaled = prepared(graph, floor=math.inf)[0]
    in_c, found = native.active() is not None and psi.device.type == "cpu", h[-1] * psi.double()
    for coefficient in reversed(h[:-1]):
        found = scaled.residual(found, scaled.root.square() * found, in_c=in_c).add_(psi, alpha=coefficient)
    return graph.center(found.to(psi.dtype))


def estimated(
    graph: Graph,
    local: Float[Tensor, " items"],
    walks: LocalPart,
    squares: Callable[[Float[Tensor, "nodes k"]], Float[Tensor, " items"]],
    eps: float,
    seed: int,
    request: Request,
) -> tuple[Answer, Bool[Tensor, " items"]]:
    """Estimate ``local`` plus the remainder by projections; also return which items may be off by more than eps.

    ``squares`` returns the sum of squares of projected potentials for every item. After a first panel the number of
    projections is chosen from the measured remainders: as many as cost less than solving for the worst items. ``error`` is
    the largest error of the certain items by quantiles, plus the mean effect of errors of potentials on the squares.
    """
    fixed = without_gradient(graph)
    noise, total = _Noise(fixed, seed), torch.zeros(len(local), dtype=torch.float64, device=graph.device)
    worst: Answer | None = None
    done, wanted, looks, failure, stopped = 0, 2 * PANEL, 0, FAILURE, False
    width = _panel(fixed, wanted, request)
    unsure = torch.ones(len(local), dtype=torch.bool, device=graph.device)
    try:
        while done < wanted and not stopped:
            psi = _filtered(fixed, noise(min(width, wanted - done)), walks.filter)
            panel = apply_pinv(fixed, psi, Request(request.tol, request.method))
            stopped = panel.stopped
            if stopped and done:
                break  # the earlier ones are complete
            total += squares(panel.value)
            done += psi.shape[1]
            worst = panel if worst is None else join([worst, panel], None)
            stopped = stopped or bool(request.progress and request.progress(done, worst.residual))
            if done == wanted:
                looks, failure = looks + 1, failure / 2  # every check is a chance to be wrong
                ratio = local * done / total.clamp(min=1e-300)
                unsure = eps * ratio < excess(eps, done, len(local), failure)
                wanted = _next(eps, done, ratio.sort().values.cpu().numpy(), failure / 2)
    except KeyboardInterrupt:
        if worst is None:
            raise
        stopped = True
    assert worst is not None
    rest, short = total / done, stopped and bool(unsure.any())
    low, high = interval(done, len(local), failure)
    value = (local + rest).clamp(min=(1 - eps) * (local + rest / low)).clamp(max=(1 + eps) * (local + rest / high))
    share = float((rest / (local + rest)).max()) if len(local) else 0.0
    sure = f"all of a graph's with probability {1 - FAILURE:g} by quantiles of chi squared"
    walked = f"what walks of up to {walks.steps} steps leave, {share:.2g} of a value at most"
    note = f"estimated within {eps:g}, {sure}, from {done} random projections of {walked}"
    note += ", stopped early" if short else ""
    if worst.note and not worst.stopped:
        note = f"{note}; {worst.note}"
    least, most = local + rest / high, local + rest / low
    far = torch.maximum(value / least - 1, 1 - value / most)[~unsure]
    answer = as_estimate(worst, float(far.max()) if len(far) else 0.0, 2.0)
    return replace(answer, value=value.to(graph.dtype), note=note, stopped=short), unsure


def resistive_embedding(
    graph: Any,
    dim: int | None = None,
    *,
    seed: int = 0,
    tol: float = 1e-6,
    method: str = "auto",
    trace: bool = False,
    progress: Progress | None = None,
    resistance: Any = None,
    conductance: Any = None,
) -> Answer:
    """Compute coordinates whose squared distances are effective resistances (Fact 1), within a component.

    Without ``dim``, for small graphs, they are the rows of the principal root of ``L^+``, a matrix (for a batch one per
    graph, :class:`~ohmformer.graph.ragged.Matrices`): by ``"newton-schulz"``, by ``"power-series"`` (Lemma 2) or by LAPACK
    (``"direct"``). ``residual`` is ``|M L M - I-hat|`` in the operator norm, which bounds the relative error of squared
    distances; ``error`` adds rounding.

    With ``dim`` they are the rows of ``L^+ B``, projected at random onto that many columns: squared distances are right on
    average, with a relative standard deviation of ``sqrt(2 / dim)``, and ``error`` bounds the error of a single one with
    probability 0.99; methods, ``residual`` and ``progress`` are as for :func:`potentials`.
    """
    asked = as_graph(graph, resistance=resistance, conductance=conductance)
    found = asked.graph
    if dim is not None:
        check_tolerance(tol, method, METHODS)
        if dim < 1:
            raise ValueError(f"expected dim >= 1, got {dim}")
        panels = list(_embedded(found, dim, seed, Request(tol, method, progress, trace)))
        answer = join(panels, torch.cat([panel.value for panel in panels], dim=1))
        low, high = interval(dim, 1)
        return replace(as_estimate(answer, max(1 - low, high - 1), 2.0), labels=asked.labels)
    check_tolerance(tol, method, ("auto", *ROOTS, "direct"))
    if found.width > SMALL:
        raise ValueError(f"expected dim= for graphs of more than {SMALL} nodes, got {found.width} nodes and no dim")
    answer = blockwise.matrices(found, lambda part: _roots(part, method, tol, trace))
    return replace(check_reached(answer, tol), labels=asked.labels)


def _embedded(graph: Graph, dim: int, seed: int, request: Request) -> Iterator[Answer]:
    """Yield the columns of ``L^+ B Q / sqrt(dim)``, one panel at a time."""
    fixed = without_gradient(graph)
    noise, width = _Noise(fixed, seed), _panel(fixed, dim, request)
    panels = (noise(min(width, dim - done)) / math.sqrt(dim) for done in range(0, dim, width))
    return apply_in_turn(fixed, panels, request)


def _roots(graph: Graph, method: str, tol: float, trace: bool) -> Answer:
    """Compute principal roots of graphs of similar size by a construction, or by LAPACK if that misses the tolerance."""
    note = ""
    if method != "direct":
        answer = _root(graph, "newton-schulz" if method == "auto" else method, tol, trace)
        if method != "auto" or answer.residual <= tol:
            return answer
        note = f"newton-schulz stopped at a residual of {answer.residual:.1e}"
    root = exact.sqrt_pinv(graph)
    return _certified(graph, Answer(root, "lapack", 0, 0.0, None, note=note))


def _root(graph: Graph, method: str, tol: float, trace: bool) -> Answer:
    """Compute the principal root by a construction; an error e in M is up to ``2 e sqrt(lmax) + e^2 lmax`` in ``M L M``."""
    spectrum = graph.spectral_bounds()
    construction = ROOTS[method](spectrum)
    layers = construction.layers_for(tol / (3 * math.sqrt(spectrum.lmax)))
    root, states = construction.answer_to(graph, None, layers=layers, trace=trace)
    e = construction.error_bound(layers) * math.sqrt(spectrum.lmax)
    return _certified(graph, Answer(root, method, layers, 0.0, 2 * e + e**2, spectrum, trace=states))


def _certified(graph: Graph, answer: Answer) -> Answer:
    """Measure the residual: ``M L M``, of rank n - 1, has the eigenvalues of the map from R to squared distances."""
    root, laplacian = answer.value.detach(), graph.laplacian().detach()
    if not root.numel():
        return replace(answer, error=0.0, error_kind="bound")
    defect = root @ laplacian @ root - graph.projector()
    whole = bool(defect.isfinite().all())
    residual = float(torch.linalg.eigvalsh((defect + defect.mT) / 2).abs().max()) if whole else math.inf
    lost = (root.abs() @ laplacian.abs() @ root.abs()).sum(-1).max()  # products of n terms, in norm
    rounding = 4 * (root.shape[-1] + 2) * torch.finfo(root.dtype).eps * float(lost)
    return replace(answer, residual=residual, error=residual + rounding if whole else math.inf, error_kind="bound")
