"""Which engine answers for which graphs, decided here and nowhere else.

The engine with the smallest predicted time is chosen; :mod:`~ohmformer.solve.costs` has the numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from ohmformer import native
from ohmformer.graph import Graph, Spectrum
from ohmformer.graph.labelled import as_graph
from ohmformer.graph.memory import remembered, some_graphs
from ohmformer.solve import costs
from ohmformer.solve.answer import check_tolerance
from ohmformer.solve.costs import (
    BEYOND_CACHE,
    CACHE,
    FEW,
    FEW_EDGES,
    LAYERS,
    LIKELY,
    LOOKING,
    NATIVE_DEMANDS,
    NATIVE_NODES,
    PANEL,
    PROBING,
    SMALL,
    SOON,
    TOGETHER,
    WIDE,
)
from ohmformer.solve.engines import ENGINES, TRANSFORMERS
from ohmformer.solve.engines.base import Part, Problem
from ohmformer.solve.engines.chebyshev import layers_for, layers_of_a_round
from ohmformer.solve.engines.conjugate import steps_taken
from ohmformer.solve.engines.cubing_layers import in_float32
from ohmformer.solve.engines.direct import EDITED
from ohmformer.solve.factor import look
from ohmformer.solve.probe import Probe, has_kernels, probe
from ohmformer.solve.scaled import Extremes, known_ends, prepared

SPENT = "seconds by elimination"
"""Key under which a graph stores, in a list, the predicted seconds of elimination for all its questions after the first."""
SOME_STEPS = 30
"""Predicted number of steps of conjugate gradients if nothing is known: 29 on random graphs, 20 on scale-free ones."""
INSTEAD_OF_LAYERS = ("elimination", "direct", "LDL^T")
METHODS = ("auto", "gradient-descent", "squaring", "chebyshev", "cubing", "conjugate", "elimination", "direct")


@dataclass(frozen=True, eq=False)
class Plan:
    """Parts of a batch, each with its engine and the reason for it."""

    parts: tuple[Part, ...]
    num_graphs: int

    def of(self, graph: int) -> Part:
        """Return the part that contains a graph of the batch."""
        number = range(self.num_graphs)[graph]
        return next(part for part in self.parts if part.which is None or bool((part.which == number).any()))

    def __str__(self) -> str:
        rows = [("graphs", "engine", "implementation", "layers in", "demands at once", "predicted", "took", "reason")]
        for part in self.parts:
            count = self.num_graphs if part.which is None else len(part.which)
            code, dtype = "C" if part.native else "torch", str(part.dtype).removeprefix("torch.")
            times = (_seconds(part.predicted), "" if part.took is None else _seconds(part.took))
            rows.append((str(count), part.engine, code, dtype, str(part.panel), *times, part.reason))
        rows = rows if any(part.took is not None for part in self.parts) else [(*row[:6], row[7]) for row in rows]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
        return "\n".join(
            "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[-1]]) for row in rows
        )


def _seconds(time: float) -> str:
    return "unknown" if math.isnan(time) else f"{time:.2g} s" if time >= 0.1 else f"{1000 * time:.2g} ms"


def plan(
    graph: Any,
    *,
    demands: int = 1,
    tol: float = 1e-6,
    method: str = "auto",
    trace: bool = False,
    resistance: Any = None,
    conductance: Any = None,
) -> Plan:
    """Plan how ``demands`` demands on a graph or batch would be solved for, without solving.

    On large graphs, more than three demands take some Lanczos steps, which are kept for the next question about it.
    For fewer, conjugate gradients are named unless distances show that they would be slow; an answer's own plan says whether
    they converged, or which engine followed.

    >>> print(plan([(0, 1), (1, 2), (2, 0)]).parts[0].engine)
    cubing
    """
    check_tolerance(tol, method, METHODS)
    asked = as_graph(graph, resistance=resistance, conductance=conductance, signed=True)
    return make_plan(asked.graph, demands, tol, method, trace)


def make_plan(
    graph: Graph, demands: int, tol: float, method: str = "auto", trace: bool = False, *, inverses: bool = False
) -> Plan:
    """Make the plan of a checked graph, as :func:`plan`; set ``inverses`` if whole inverses of small graphs are useful."""
    if graph.device.type == "mps":
        raise ValueError(
            "expected a graph on the CPU or on CUDA: MPS has no float64, which solving needs; use graph.to('cpu')"
        )
    if graph.signed:
        if trace or method not in ("auto", "direct"):
            graph.check_positive()
        return Plan((Part(None, "LDL^T", False, torch.float64, 64, "some resistances are negative"),), graph.num_graphs)
    if trace or method in ("gradient-descent", "squaring"):
        name = method if method in TRANSFORMERS else "cubing" if graph.width <= SMALL else "chebyshev"
        reason = "asked for" if method != "auto" else "a trace was asked for"
        return Plan((Part(None, name, False, graph.dtype, demands, reason),), graph.num_graphs)
    sizes = graph.graph_sizes.cpu().numpy()
    small = sizes <= SMALL if method == "auto" else np.full(len(sizes), method == "cubing")
    in_c = _fit_kernel(graph, small)
    why = "asked for" if method == "cubing" else f"at most {SMALL} nodes"
    by_factor = small & ~in_c & (method == "auto")
    if by_factor.any() and (inverses or not has_kernels(graph)):
        by_factor &= ~_fit_float32(graph, by_factor)
    parts = [
        _cubing(graph, which, demands, native=chosen is in_c, reason=why)
        for chosen in (in_c, small & ~in_c & ~by_factor)
        for which in _numbers(graph, chosen)
    ]
    parts += [_small_factor(graph, which, demands, why) for which in _numbers(graph, by_factor)]
    alone = ~small & (sizes > TOGETHER)
    others = [*_numbers(graph, ~small & ~alone), *(torch.tensor([i], device=graph.device) for i in np.nonzero(alone)[0])]
    if len(others) == 1 and not parts:
        others = [None]
    parts += [_large(graph, which, demands, tol, method) for which in others]
    return Plan(tuple(parts), graph.num_graphs)


def _numbers(graph: Graph, chosen: Bool[np.ndarray, " graphs"]) -> list[Tensor | None]:
    """Return the numbers of the chosen graphs in a list of at most one part; None stands for all graphs."""
    if not chosen.any():
        return []
    return [None if chosen.all() else torch.as_tensor(np.nonzero(chosen)[0], device=graph.device)]


def _fit_kernel(graph: Graph, chosen: Bool[np.ndarray, " graphs"]) -> Bool[np.ndarray, " graphs"]:
    """Select the graphs that the C implementation of cubing supports: small ones on the CPU, in float32."""
    if native.active() is None or graph.device.type != "cpu" or not chosen.any():
        return np.zeros_like(chosen)
    limits = native.KERNELS["ohm_invert"].limits
    sizes, edges = graph.graph_sizes.numpy(), graph.edge_counts.numpy()
    return _fit_float32(graph, chosen & (sizes <= limits["nodes"]) & (edges <= limits["edges"]))


def _fit_float32(graph: Graph, chosen: Bool[np.ndarray, " graphs"]) -> Bool[np.ndarray, " graphs"]:
    """Select the graphs for whose inverses float32 is accurate enough; bounds are kept with the selection."""
    found = chosen.copy()
    for which in _numbers(graph, chosen):
        found[chosen] = in_float32(_selected(graph, which).scaled_spectral_bounds())
    return found


def _selected(graph: Graph, which: Tensor | None) -> Graph:
    return graph if which is None else some_graphs(graph, which)


def _large(graph: Graph, which: Tensor | None, demands: int, tol: float, method: str) -> Part:
    """Plan graphs that are solved together without their inverses."""
    chosen = _selected(graph, which)
    if method == "direct":
        part = _direct(chosen, demands, "asked for")
    elif method == "elimination":
        part = _elimination(chosen, demands, "asked for")
    elif method == "conjugate":
        part = _conjugate(chosen, demands, tol, "asked for")
    elif method == "chebyshev":
        part = _chebyshev(chosen, demands, tol, prepared(chosen)[1].spectrum, "asked for")
    else:
        part = _fastest(chosen, demands, tol)
    return part if which is None else replace(part, which=which, selected=chosen)


def _cubing(graph: Graph, which: Tensor | None, demands: int, *, native: bool, reason: str) -> Part:
    """Plan inverses of small graphs, in C or torch."""
    fits = native or bool(in_float32(_selected(graph, which).scaled_spectral_bounds()).all())
    dtype = torch.float32 if fits else torch.float64
    predicted = costs.cubing(_power_sum(graph, which, 3), in_c=native)
    return Part(which, "cubing", native, dtype, demands, reason, predicted)


def _power_sum(graph: Graph, which: Tensor | None, power: int) -> float:
    """Return the sum of a power of the sizes of some graphs."""
    sizes = graph.graph_sizes if which is None else graph.graph_sizes[which]
    return float(sizes.double().pow(power).sum())


def _small_factor(graph: Graph, which: Tensor | None, demands: int, reason: str) -> Part:
    """Plan a factor of small graphs, assumed dense in the worst case."""
    nodes, pairs, work = (_power_sum(graph, which, power) / power for power in (1, 2, 3))
    size = int(nodes), graph.num_edges, demands, int(pairs), work
    predicted = costs.direct(*size) if has_kernels(graph) else math.nan
    return Part(which, "direct", native.active() is not None, torch.float64, 64, reason, predicted)


def _fastest(graph: Graph, demands: int, tol: float) -> Part:
    """Plan the engine with the smallest predicted time. Probing spectrum and factor each take up to 15 % of the solve.

    A kept factor, or one of resistances over a wide range, comes first. Otherwise elimination, predicted from sizes alone,
    is compared with layers or steps of conjugate gradients, and the better of them with a factor.
    """
    demands = max(demands, 1)
    known = _by_kept_factor(graph, demands, "its factor is kept")
    layers = costs.chebyshev(graph.num_nodes, graph.num_edges, demands, LAYERS, in_c=False)
    if known is not None and known.predicted <= layers:
        return known
    resistance = graph.resistance.detach()
    if graph.num_edges and float(resistance.max() / resistance.min()) > WIDE and look(graph) is not None:
        return _direct(graph, demands, f"resistances range over more than {WIDE:.0e}")
    instead = (_elimination if has_kernels(graph) else _direct)(graph, demands, "")
    seen = probe(graph, demands, tol, instead.predicted)
    best = _without_factor(graph, demands, tol, instead, seen)
    factor = _factor_instead(graph, demands, best, seen.ends) if has_kernels(graph) else None
    return factor or best


def _without_factor(graph: Graph, demands: int, tol: float, instead: Part, seen: Probe) -> Part:
    """Plan layers or conjugate gradients where they are predicted to be faster than ``instead``."""
    ends, few = seen.ends, has_kernels(graph) and demands <= FEW
    if ends is None:
        reason = f"its distances are short; after {seen.steps} steps it ends if too many more are needed"
        return replace(_conjugate(graph, demands, tol, reason), floor=seen.floor, trial=seen.steps)
    at_least, depth = "" if ends.separated else "more than ", layers_for(tol, ends.spectrum)
    reason = f"{at_least}{depth} layers at a condition number of {at_least}{ends.spectrum.condition:.1e}"
    other = replace(instead, reason=f"chebyshev would take {reason}")
    if few and (ends.separated or steps_taken(graph, tol)):
        layered = _conjugate(graph, demands, tol, f"chebyshev would take {reason}")
    elif not few and ends.separated and depth <= seen.most:
        layered = _chebyshev(graph, demands, tol, ends.spectrum, reason)
    else:
        return other
    return other if layered.predicted > other.predicted else layered


def _factor_instead(graph: Graph, demands: int, best: Part, ends: Extremes | None) -> Part | None:
    """Plan a factor where it is predicted to be faster than ``best``, or return None.

    Its pattern gives its cost. It is not looked at on expanders, nor if that takes long and no factor is likely. Earlier
    questions answered by elimination, except the first, count: a factor is made once they would have paid for it.
    """
    nodes, edges = graph.num_nodes, graph.num_edges
    spent = (remembered(graph, SPENT) or [0.0])[0]
    worth, share = best.predicted + spent, LOOKING if spent > 0 else PROBING
    gap = ends.spectrum.lmin if ends is not None and ends.separated else 0.0
    if costs.direct(nodes, edges, demands, 0, costs.work_on_expander(nodes, gap)) >= worth:
        return None
    flat = ends is not None and not ends.separated and edges <= FEW_EDGES * nodes
    likely = flat and costs.direct_if_flat(nodes, edges, demands) < LIKELY * worth
    if not likely and costs.look_at_factor(nodes, edges) > max(share * worth, SOON):
        return None
    with_earlier = ", with questions before" if spent > 0 else ""
    factor = _direct(graph, demands, f"{best.engine} would take {_seconds(worth)}{with_earlier}")
    return factor if factor.predicted < worth else None


def _chebyshev(graph: Graph, demands: int, tol: float, spectrum: Spectrum, reason: str) -> Part:
    """Plan Chebyshev's layers, in C for many demands on large graphs."""
    nodes = graph.num_nodes
    in_c = (
        has_kernels(graph)
        and nodes >= NATIVE_NODES
        and demands >= NATIVE_DEMANDS
        and layers_of_a_round(tol, spectrum) <= native.KERNELS["ohm_direction"].limits["layers"]
        and 2 * graph.num_edges + nodes < 2**31  # limit of the kernel's indices
    )
    panel = panel_width(nodes) if not in_c else 2 * PANEL
    predicted = costs.chebyshev(nodes, graph.num_edges, demands, layers_for(tol, spectrum), in_c=in_c)
    return Part(None, "chebyshev", in_c, torch.float32, panel, reason, predicted)


def _conjugate(graph: Graph, demands: int, tol: float, reason: str) -> Part:
    """Plan conjugate gradients scaled by degrees, in C if possible, with an extra random demand if little is known."""
    known, in_c = known_ends(graph), has_kernels(graph)
    steps = steps_taken(graph, tol) or (SOME_STEPS if known is None else layers_for(tol, known.spectrum))
    panel = min(
        max(demands, 1), native.KERNELS["ohm_conjugate"].limits["demands"] * torch.get_num_threads() if known else FEW
    )
    predicted = costs.conjugate(graph.num_nodes, graph.num_edges, demands + (known is None), steps) if in_c else math.nan
    return Part(None, "conjugate", in_c, torch.float64, panel, reason, predicted)


def _elimination(graph: Graph, demands: int, reason: str) -> Part:
    """Plan sampled elimination, in C if possible; every thread has a panel of demands."""
    in_c = native.active() is not None
    panel = min(max(demands, 1), native.KERNELS["ohm_conjugate"].limits["demands"] * torch.get_num_threads())
    kept = remembered(graph, ("approximate factor", in_c)) is not None
    predicted = costs.elimination(graph.num_nodes, graph.num_edges, demands, kept=kept) if in_c else math.nan
    return Part(None, "elimination", in_c, torch.float64, panel, reason, predicted)


def panel_width(nodes: int) -> int:
    """Return how many demands torch's layers process together on a graph of this size."""
    return 2 * PANEL if nodes > BEYOND_CACHE else max(PANEL, min(8 * PANEL, CACHE // max(nodes, 1)))


def _direct(graph: Graph, demands: int, reason: str) -> Part:
    """Plan a sparse factor; with kernels its size is known beforehand, and the time is infinite beyond the limits."""
    predicted, known = math.nan, _by_kept_factor(graph, demands, reason)
    if known is not None:
        return known
    if native.active() is not None:
        size = graph.num_nodes, graph.num_edges, demands
        pattern = look(graph)
        predicted = math.inf if pattern is None else costs.direct(*size, len(pattern.row), pattern.work)
    return Part(None, "direct", native.active() is not None, torch.float64, 64, reason, predicted)


def _by_kept_factor(graph: Graph, demands: int, reason: str) -> Part | None:
    """Plan solves with the kept factor of the graph, or of the one it was edited from; None if there is none."""
    edited = remembered(graph, EDITED)
    factor = edited.factor if edited else remembered(graph, "factor")
    if factor is None:
        return None
    predicted = costs.solves(graph.num_nodes, graph.num_edges, demands, len(factor.pattern.row))
    return Part(None, "direct", native.active() is not None, torch.float64, 64, reason, predicted)


def fallback(problem: Problem, reason: str) -> Part | None:
    """Plan the engine to try after one that missed its tolerance; None if there is none."""
    asked, missed = (problem.graph, problem.demands.shape[1], reason), problem.part
    if missed.engine == "conjugate" and has_kernels(problem.graph):
        return replace(_elimination(*asked), which=missed.which)
    if missed.engine in ("direct", "LDL^T") or ENGINES["direct"].supports(problem):
        return None
    return replace(_direct(*asked), which=missed.which)


def engine(part: Part, *, transformer: bool) -> Any:
    """Return the engine of a part; ``transformer`` asks for the construction itself, layer by layer."""
    return TRANSFORMERS[part.engine] if transformer or part.engine not in ENGINES else ENGINES[part.engine]
