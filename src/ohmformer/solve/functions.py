"""Functions of the Laplacian applied to signals: the heat kernel, and any smooth filter."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ohmformer import exact
from ohmformer.constructions import CubedHeat, SeededHeat, SpectralFilter, TaylorHeat
from ohmformer.graph import Graph
from ohmformer.graph.labelled import as_graph
from ohmformer.solve import blockwise
from ohmformer.solve.answer import Answer, check_reached, check_tolerance
from ohmformer.solve.costs import SMALL
from ohmformer.solve.engines.base import DENSE

HEAT = {"seeded": SeededHeat, "cubing": CubedHeat, "taylor": TaylorHeat}


def heat_kernel(
    graph: Any,
    s: float = 0.5,
    signals: Any = None,
    *,
    tol: float = 1e-6,
    method: str = "auto",
    trace: bool = False,
    resistance: Any = None,
    conductance: Any = None,
) -> Answer:
    """``exp(-s L)`` applied to ``signals``, ``(nodes, k)``; without them the matrix, ``(nodes, nodes)``.

    Of a batch there is one matrix per graph, :class:`~ohmformer.graph.ragged.Matrices`. ``tol`` bounds the error of every
    signal over its norm. ``residual`` is how far a signal moves when a layer is added, on average over all signals, over its
    norm. Methods: ``"seeded"`` (ours), ``"cubing"`` (Lemma 5), ``"taylor"`` (Lemma 3), ``"series"`` (a Chebyshev series in
    CSR, for signals on graphs of any size) and ``"direct"`` (LAPACK). ``"auto"`` takes the seeded kernel for small graphs,
    the series for large ones; where rounding drowns the layers (s lmax of 1e10 and more) small graphs are left to LAPACK.
    """
    check_tolerance(tol, method, ("auto", *HEAT, "series", "direct"))
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
        answer = blockwise.matrices(asked.graph, lambda part: _heat(part, s, method, tol, trace))
        return replace(check_reached(answer, tol), labels=asked.labels)
    found, numbers = asked.with_signals(signals)
    x = found.check_signals(numbers)
    if method == "series":
        return replace(_filter(found, lambda t: np.exp(-s * t), x, True, tol, trace), labels=asked.labels)
    if method != "auto" and found.width > DENSE:
        raise ValueError(f"expected graphs of at most {DENSE} nodes for method={method!r}, got one of {found.width}")

    def ask(part: Graph, x: Tensor) -> Answer:
        if method == "auto" and part.width > SMALL:
            return _filter(part, lambda t: np.exp(-s * t), x, True, tol, trace)
        made = _heat(part, s, method, tol, trace)
        return replace(made, value=part.unpad(made.value @ part.pad(x)))

    return replace(check_reached(blockwise.rows(found, ask, x), tol), labels=asked.labels)


def _heat(graph: Graph, s: float, method: str, tol: float, trace: bool) -> Answer:
    """The kernels of graphs of like size, padded; by LAPACK if that is asked for, or if rounding drowns the layers."""
    if method == "auto" and graph.width > SMALL and not graph.resistance.requires_grad:
        method = "direct"  # at 2,000 nodes LAPACK takes a fifth of the layers' time; it has no gradient
    made = None if method == "direct" else _by_layers(graph, s, "seeded" if method == "auto" else method, tol, trace)
    if made is not None and (method != "auto" or made.residual <= tol):
        return made
    note = f"seeded cubing moved by {made.residual:.1e} when a layer was added" if made else ""
    return Answer(exact.heat(graph, s), "lapack", 0, 0.0, None, note=note)


def _by_layers(graph: Graph, s: float, method: str, tol: float, trace: bool) -> Answer:
    """The kernel by one of the constructions, and how far another layer would move it."""
    spectrum = graph.spectral_bounds()
    heat = HEAT[method](spectrum, s)
    layers = heat.layers_for(tol)
    kernel, states = heat.answer_to(graph, None, layers=layers, trace=trace)
    deeper, _ = heat.answer_to(graph, None, layers=layers + 1)
    size = math.sqrt(max(kernel.shape[-1], 1))
    residual = float((kernel - deeper).detach().norm(dim=(-2, -1)).max()) / size if kernel.numel() else 0.0
    return Answer(kernel, method, layers, residual, heat.error_bound(layers), spectrum, trace=states)


def spectral_filter(
    graph: Any,
    f: Callable[[np.ndarray], np.ndarray],
    signals: Any,
    *,
    null: bool = True,
    tol: float = 1e-6,
    trace: bool = False,
    resistance: Any = None,
    conductance: Any = None,
) -> Answer:
    """``f(L)`` applied to ``signals`` for any smooth f, compiled to layers.

    With ``null=True`` f is compiled on ``[0, lmax]`` and acts on the null space too; with ``null=False`` on the nonzero
    spectrum only, and signals must sum to zero on each component. ``tol`` bounds the error over ``max |f|``; ``residual`` is
    how far one random combination of the signals moves when the depth is raised by a quarter, over its norm and ``max |f|``.
    """
    check_tolerance(tol, "auto", ("auto",))
    asked = as_graph(graph, resistance=resistance, conductance=conductance)
    found, numbers = asked.with_signals(signals)
    x = found.check_signals(numbers) if null else found.check_demands(numbers)
    return replace(_filter(found, f, x, null, tol, trace), labels=asked.labels)


def _filter(graph: Graph, f: Callable[[np.ndarray], np.ndarray], x: Tensor, null: bool, tol: float, trace: bool) -> Answer:
    """A Chebyshev series in CSR on checked signals."""
    spectrum = graph.spectral_bounds()
    compiled = SpectralFilter(spectrum, f, null=null)
    layers = compiled.layers_for(tol * compiled.size)
    laplacian = graph.sparse_laplacian()

    def run(x: Tensor, layers: int) -> Tensor:
        model = compiled.efficient(layers, dtype=x.dtype).to(x.device).requires_grad_(False)
        return model(laplacian, {"current": x})[compiled.answer]

    states = None
    if trace:
        model = compiled.efficient(layers, dtype=x.dtype).to(x.device).requires_grad_(False)
        states = model(laplacian, {"current": x}, trace=True)
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
    return Answer(value, "chebyshev series", layers, residual, bound, spectrum, trace=states)
