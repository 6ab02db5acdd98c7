"""Functions of the Laplacian applied to signals: the heat kernel, and any smooth filter."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ohmformer import exact
from ohmformer.constructions import CubedHeat, SeededHeat, SpectralFilter, TaylorHeat
from ohmformer.graph import Graph, Spectrum
from ohmformer.graph.csr import csr_tensor
from ohmformer.graph.labelled import as_graph
from ohmformer.solve import blockwise
from ohmformer.solve.answer import Answer, check_laplacian, check_reached, check_tolerance
from ohmformer.solve.certificate import EPS
from ohmformer.solve.costs import SMALL
from ohmformer.solve.engines.base import DENSE
from ohmformer.solve.scaled import LARGEST

NEAR = 2.0
"""Errors up to this multiple of the tolerance are not refined further."""
HEAT = {"seeded": SeededHeat, "cubing": CubedHeat, "taylor": TaylorHeat}


def heat_kernel(
    graph: Any,
    s: float = 0.5,
    signals: Any = None,
    *,
    tol: float = 1e-6,
    method: str = "auto",
    trace: bool = False,
    laplacian: str = "combinatorial",
    resistance: Any = None,
    conductance: Any = None,
) -> Answer:
    """Apply the heat kernel ``exp(-s L)`` to ``signals``, ``(nodes, k)``, or return it as a matrix, ``(nodes, nodes)``.

    For a batch there is one matrix per graph, :class:`~ohmformer.graph.ragged.Matrices`. ``tol`` bounds the error of every
    signal relative to its norm. ``residual`` is the relative change of a signal when a layer is added, averaged over all
    signals; ``error`` is the largest relative error of a signal: for the series a proved bound including rounding; for
    matrices the proved bound of the layers plus observed rounding, or the distance to the seeded kernel. Methods:
    ``"seeded"`` (ours), ``"cubing"`` (Lemma 5), ``"taylor"`` (Lemma 3), ``"series"`` (a Chebyshev series in CSR, for signals
    on graphs of any size) and ``"direct"`` (LAPACK). ``"auto"`` takes the seeded kernel for small graphs, the series for
    large ones; where rounding errors of the layers exceed the tolerance, as in float32, small graphs use LAPACK.

    With ``laplacian="normalized"`` it is ``exp(-s N)``, ``N = D^-1/2 L D^-1/2`` with D the diagonal of L: by the series, or
    without signals by ``"direct"``, a matrix exponential.
    """
    normalized = check_laplacian(laplacian)
    known = ("auto", "direct" if signals is None else "series") if normalized else ("auto", *HEAT, "series", "direct")
    check_tolerance(tol, method, known)
    if not 0 < s < math.inf:
        raise ValueError(f"the heat kernel needs s > 0, got {s!r}")
    asked = as_graph(graph, resistance=resistance, conductance=conductance)
    if signals is None:
        if method == "series":
            raise ValueError("expected signals for method='series', got none")
        if asked.graph.width > DENSE:
            raise ValueError(
                f"expected signals for graphs of more than {DENSE} nodes, got {asked.graph.width} nodes and none"
            )
        ask_part = partial(_normalized_heat, s=s) if normalized else lambda part: _heat(part, s, method, tol, trace)
        answer = blockwise.matrices(asked.graph, ask_part)
        return replace(check_reached(answer, tol), labels=asked.labels)
    found, numbers = asked.with_signals(signals)
    x = found.check_signals(numbers)
    if method == "series" or normalized:
        return replace(_series(found, s, x, tol, trace, laplacian), labels=asked.labels)
    if method != "auto" and found.width > DENSE:
        raise ValueError(f"expected graphs of at most {DENSE} nodes for method={method!r}, got one of {found.width}")

    def ask(part: Graph, x: Tensor) -> Answer:
        if method == "auto" and part.width > SMALL:
            return _series(part, s, x, tol, trace)
        made, products = _heat(part, s, method, tol, trace), (part.width + 1) * torch.finfo(part.dtype).eps
        error = None if made.error is None else made.error + products
        return replace(made, value=part.unpad(made.value @ part.pad(x)), error=error)

    return replace(check_reached(blockwise.rows(found, ask, x), tol), labels=asked.labels)


def _heat(graph: Graph, s: float, method: str, tol: float, trace: bool) -> Answer:
    """Compute the kernels of graphs of similar size, padded; by LAPACK on request or if rounding dominates.

    LAPACK gives the heat of a Laplacian that is perturbed by ``4 n eps lmax``, which moves it by at most s times that, times
    its decay on the range of L, and never by more than one.
    """
    if method == "auto" and graph.width > SMALL and not graph.resistance.requires_grad:
        method = "direct"  # at 2,000 nodes LAPACK takes a fifth of the layers' time; it has no gradient
    made = None if method == "direct" else _by_layers(graph, s, "seeded" if method == "auto" else method, tol, trace)
    if made is not None and (method != "auto" or (made.residual <= tol and (trace or (made.error or 0.0) <= tol))):
        return made
    spectrum, moved = graph.spectral_bounds(), 4 * graph.width * EPS * graph.spectral_bounds().lmax
    off = min(s * moved * math.exp(-s * max(spectrum.lmin - moved, 0.0)), 1.0)
    off += 4 * graph.width * torch.finfo(graph.dtype).eps
    good = made is not None and made.residual <= tol
    if made is not None and good and (made.error or 0.0) <= off:
        return made
    note = (
        f"seeded cubing moved by {made.residual:.1e} when a layer was added, at an error of {made.error:.1e}" if made else ""
    )
    kernel = exact.heat(graph, s)
    if made is not None and good and made.value.requires_grad:
        kernel = kernel + (made.value - made.value.detach())  # LAPACK's has no gradient
    return Answer(kernel, "lapack", 0, 0.0, None, note=note, error=off, error_kind="estimate")


def _series(graph: Graph, s: float, x: Tensor, tol: float, trace: bool, laplacian: str = "combinatorial") -> Answer:
    """Apply ``exp(-s L)`` to signals by a Chebyshev series; for exp, the error found at samples is a bound."""
    return replace(_filter(graph, lambda t: np.exp(-s * t), x, True, tol, trace, laplacian), error_kind="bound")


def _normalized_heat(graph: Graph, s: float) -> Answer:
    """Compute ``exp(-s N)`` of graphs of similar size, padded."""
    laplacian = graph.laplacian()
    degree = laplacian.diagonal(dim1=-2, dim2=-1)[..., None]
    root = torch.where(degree > 0, torch.where(degree > 0, degree, 1.0).rsqrt(), 0.0)
    off = 4 * graph.width * torch.finfo(graph.dtype).eps * (1 + s * LARGEST)
    certificate = {"error": off, "error_kind": "estimate"}
    return Answer(
        torch.linalg.matrix_exp(-s * root * laplacian * root.mT), "matrix exponential", 0, 0.0, None, **certificate
    )


def _by_layers(graph: Graph, s: float, method: str, tol: float, trace: bool) -> Answer:
    """Compute the kernel by one of the constructions, and its change when a layer is added."""
    spectrum = graph.spectral_bounds()
    heat = HEAT[method](spectrum, s)
    layers = heat.layers_for(tol)
    kernel, states = heat.answer_to(graph, None, layers=layers, trace=trace)
    deeper, _ = heat.answer_to(graph, None, layers=layers + 1)
    size = math.sqrt(max(kernel.shape[-1], 1))
    moved = float((kernel - deeper).detach().norm(dim=(-2, -1)).max()) if kernel.numel() else 0.0
    bound = heat.error_bound(layers)
    error = bound + 2 * moved + 4 * kernel.shape[-1] * torch.finfo(kernel.dtype).eps * heat.amplification(layers)
    if method != "seeded" and kernel.numel() and not error <= NEAR * tol:  # rounding errors grow more than necessary
        other = _by_layers(replace(graph, resistance=graph.resistance.detach()), s, "seeded", 0.1 * tol, trace=False)
        error = min(error, float((kernel.detach() - other.value).norm(dim=(-2, -1)).max()) + (other.error or 0.0))
    certificate = {"trace": states, "error": error if error == error else math.inf, "error_kind": "estimate"}
    return Answer(kernel, method, layers, moved / size, bound, spectrum, **certificate)


def spectral_filter(
    graph: Any,
    f: Callable[[np.ndarray], np.ndarray],
    signals: Any,
    *,
    null: bool = True,
    tol: float = 1e-6,
    trace: bool = False,
    laplacian: str = "combinatorial",
    resistance: Any = None,
    conductance: Any = None,
) -> Answer:
    """Apply ``f(L)`` to ``signals`` for any smooth f, compiled to layers.

    With ``null=True`` f is compiled on ``[0, lmax]`` and acts on the null space too; with ``null=False`` on the nonzero
    spectrum only, and signals must sum to zero on each component. ``tol`` bounds the error relative to ``max |f|``;
    ``residual`` is the change of one random combination of the signals when the depth is raised by a quarter, relative to
    its norm and ``max |f|``; ``error`` is the largest error of any signal, likewise, rounding included: an estimate, as f is
    sampled. With ``laplacian="normalized"`` it is ``f(N)``, ``N = D^-1/2 L D^-1/2``, on ``[0, 2]``, for ``null=True`` only.
    """
    check_tolerance(tol, "auto", ("auto",))
    if check_laplacian(laplacian) and not null:
        raise ValueError("expected null=True with laplacian='normalized', got False")
    asked = as_graph(graph, resistance=resistance, conductance=conductance)
    found, numbers = asked.with_signals(signals)
    x = found.check_signals(numbers) if null else found.check_demands(numbers)
    return replace(_filter(found, f, x, null, tol, trace, laplacian), labels=asked.labels)


def _filter(
    graph: Graph, f: Callable[[np.ndarray], np.ndarray], x: Tensor, null: bool, tol: float, trace: bool,
    laplacian: str = "combinatorial",
) -> Answer:  # fmt: skip
    """Apply a Chebyshev series in CSR to checked signals."""
    normalized = laplacian == "normalized"
    spectrum = Spectrum(LARGEST, LARGEST) if normalized else graph.spectral_bounds()
    compiled = SpectralFilter(spectrum, f, null=null)
    layers = compiled.layers_for(tol * compiled.size) if compiled.size else 1
    matrix = graph.sparse_laplacian()
    if normalized:
        matrix = _scaled_by_degrees(matrix)

    def run(x: Tensor, layers: int) -> Tensor:
        model = compiled.efficient(layers, dtype=x.dtype).to(x.device).requires_grad_(False)
        return model(matrix, {"current": x})[compiled.answer]

    states = None
    if trace:
        model = compiled.efficient(layers, dtype=x.dtype).to(x.device).requires_grad_(False)
        states = model(matrix, {"current": x}, trace=True)
    value = run(x, layers) if states is None else states.final[compiled.answer]
    probe = x @ torch.randn(x.shape[1], 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(x)
    change = run(probe, layers) - run(probe, layers + layers // 4 + 1)
    size = float(probe.norm()) * compiled.size
    residual = float(change.detach().norm()) / size if size > 0 else 0.0
    if not residual <= tol:
        raise ValueError(
            f"asked for an error of {tol:.1e}, but rounding moves this filter by {residual:.1e}; pass a larger tol"
        )
    bound = compiled.error_bound(layers) / compiled.size if compiled.size else 0.0
    error = bound + _rounding(graph, compiled, layers, x.dtype)
    certificate = {"trace": states, "error": error, "error_kind": "estimate"}
    return Answer(value, "chebyshev series", layers, residual, bound, spectrum, **certificate)


def _rounding(graph: Graph, series: SpectralFilter, layers: int, dtype: torch.dtype) -> float:
    """Bound the rounding error of a series, relative to the norm of the signal and the sum of its coefficients.

    ``T_new = a T + b L T - T_old`` has an error of at most ``11 (m + 8) eps |T|``, with m entries in a row of L, as ``|a| <=
    2`` and ``|b| |L| <= 8`` where f is fitted on ``[0, lmax]``. By the l-th term this error grows by a factor ``U_l <= (l +
    1) T_l(x_0)``, x_0 being the position of the null space: in total by ``l (l + 1) / 2`` times that.
    """
    (low, high), c = series.interval, np.abs(series.coefficients[: layers + 1])
    term, out = np.arange(len(c)), (high + low) / (high - low)
    m = int(torch.bincount(graph.edge_index.flatten()).max()) + 1 if graph.num_edges else 1
    with np.errstate(over="ignore"):
        grown = float((c * (1 + term * (term + 1) / 2) * np.cosh(math.acosh(out) * term)).sum() / max(c.sum(), 1e-300))
    return 11 * out * (m + 8) * torch.finfo(dtype).eps * grown


def _scaled_by_degrees(laplacian: Tensor) -> Tensor:
    """Compute ``D^-1/2 L D^-1/2`` for a Laplacian in CSR."""
    start, column, value = laplacian.crow_indices(), laplacian.col_indices(), laplacian.values()
    row = torch.repeat_interleave(torch.arange(len(start) - 1, device=start.device), start.diff())
    own = row == column
    degree = value.new_ones(len(start) - 1).index_put((row[own],), value[own])
    root = torch.where(degree > 0, degree, 1.0).rsqrt()
    return csr_tensor(start, column, value * root[row] * root[column], len(root))
