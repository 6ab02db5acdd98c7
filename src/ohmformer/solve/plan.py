"""Which engine answers for which graphs, decided here and nowhere else.

Thresholds stand beside the measurement they come from; ``benchmarks/solve.py`` and ``benchmarks/scale.py`` measure again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from ohmformer import native
from ohmformer.graph import Graph, Spectrum
from ohmformer.graph.labelled import as_graph
from ohmformer.graph.memory import some_graphs
from ohmformer.solve.answer import check_tolerance
from ohmformer.solve.distances import lmin_at_most
from ohmformer.solve.engines import ENGINES, TRANSFORMERS
from ohmformer.solve.engines.base import Part, Problem
from ohmformer.solve.engines.chebyshev import layers_for, layers_of_a_round
from ohmformer.solve.engines.cubing_layers import in_float32
from ohmformer.solve.scaled import LARGEST, Extremes, prepared

SMALL = 400
"""Nodes up to which a graph is solved by its whole inverse. By torch on one thread that takes 0.02 s at 200 nodes and 0.10 s
at 400, whatever the demands and the condition number, with a proved bound; chebyshev on random graphs of these sizes takes
0.008 s for one demand, so that single well-conditioned graphs pay for the bound."""
TOGETHER = 4096
"""Nodes up to which larger graphs of a batch are solved as one block-diagonal system: 20 random graphs of 500 nodes take
0.06 s together and 0.25 s one by one, 5 of 4,000 nodes 0.14 and 0.16 s."""
REASONABLE = 3000
"""Layers beyond which chebyshev is left for a factorisation where there are no kernels. On weighted grids the factorisation
is the faster one from far fewer layers on (100 x 100: 1,025 layers, 0.74 s, and 0.07 s; 300 x 300: 2,112, 6.2 s, and 0.6 s);
on graphs that expand, whose factors fill up, layers are few."""
ELIMINATION = 300
"""Layers beyond which chebyshev is left for elimination where there are kernels. Factor and conjugate gradients to 1e-8
take as long as 170 layers on a weighted grid of 300 x 300 (0.12 s), 255 on one of 1000 x 1000 (2.2 s), 110 on a random
geometric graph of 50,000 nodes (0.11 s), 290 on Barabasi-Albert's 100,000 nodes with 400,000 edges (0.5 s), and 1,000 on
200,000 random nodes with 1,200,000 edges (4.8 s), which take 18 layers; processor time, one thread."""
FEW_EDGES = 3.5
"""Edges a node up to which a graph's distances are looked at before Lanczos: grids, meshes, roads and power grids have up to
3. On a grid of 1000 x 1000 the look takes 0.1 s, Lanczos 0.7 s until it gives up. On random graphs it would be in vain: 0.07
of 0.45 s on 200,000 nodes with 1,200,000 edges."""
FEW_DEMANDS = 16
"""Demands up to which elimination is taken for fewer than :data:`MANY_NODES`; for more, a sparse LU. On a grid of 300 x 300,
8 demands take 0.38 s (LU: 0.46 s) and 64 2.5 s (2.4 s); on a random geometric graph of 50,000 nodes, 8 take 0.28 s (0.31 s)
and 64 1.9 s (1.5 s)."""
LAYERS = 20
"""Layers that chebyshev takes at least, to tell whether resistances of edges are estimated faster than a factor gives them.
A factor with its resistances takes 1 ns for a unit of its work (measured); a layer is assumed to take as long for an entry
of the Laplacian and a demand (not measured)."""
LITTLE_WORK = 1e8
"""Work of a factor up to which nothing else is considered: 0.1 s."""
WALK = 10.0
"""Time of a walk of three steps, in units of an entry and a demand of a layer: on 200,000 random nodes with 10^6 edges 2.4e8
walks take 2.0 s, and 64 projections, of 19 layers and 2.2e6 entries, 1.9 s; processor time, one thread."""
SPREAD = 5.0
"""The largest share of a resistance that walks of three steps leave, over the mean: 4.2 on random graphs with conductances
over four orders of e, 1.4 to 2.3 on unweighted ones, Barabasi-Albert's and grids. A few edges above it are solved for."""
DEFAULT_EPS = 0.01
"""What is estimated where neither ``eps`` is given nor a factor is bearable."""
MANY_NODES = 100_000
"""Nodes beyond which multigrid, if pyamg is installed, takes less time and memory than a sparse factorisation."""
NATIVE_NODES = 2**15
"""Nodes from which on layers in C are the faster ones. 64 demands, one thread, in C and by torch: 0.063 and 0.053 s on
16,384 nodes, 0.15 and 0.23 s on 32,768, 0.43 and 2.7 s on 65,536 (5 edges a node)."""
NATIVE_DEMANDS = 17
"""Demands from which on layers in C, which run with 32 or 64 columns, are about as fast or faster. On 40,000 nodes, one
thread, in C and by torch: 16 demands 0.24 and 0.17 s, 17 0.27 and 0.23 s, 32 0.44 and 0.47 s, 64 0.40 and 0.51 s."""
PANEL = 32
"""Demands that go through torch's layers together: 128 bytes a row, two lines of the cache."""
CACHE = 2**22
"""Numbers of a panel that the cache holds: on small graphs panels are wider, up to 8 times :data:`PANEL`."""
BEYOND_CACHE = 2**18
"""Nodes from which on a panel lies in main memory, where long rows come faster than short ones: 2 times :data:`PANEL`."""

INSTEAD_OF_LAYERS = ("elimination", "direct", "LDL^T")
METHODS = ("auto", "gradient-descent", "squaring", "chebyshev", "cubing", "elimination", "direct")


@dataclass(frozen=True, eq=False)
class Plan:
    """Parts of a batch, each with the engine that solves it and the reason."""

    parts: tuple[Part, ...]
    num_graphs: int

    def of(self, graph: int) -> Part:
        """The part that a graph of the batch belongs to."""
        number = range(self.num_graphs)[graph]
        return next(part for part in self.parts if part.which is None or bool((part.which == number).any()))

    def __str__(self) -> str:
        rows = [("graphs", "engine", "implementation", "layers in", "demands at once", "reason")]
        for part in self.parts:
            count = self.num_graphs if part.which is None else len(part.which)
            code, dtype = "C" if part.native else "torch", str(part.dtype).removeprefix("torch.")
            rows.append((str(count), part.engine, code, dtype, str(part.panel), part.reason))
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        return "\n".join("  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[5]]) for row in rows)


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
    """How ``demands`` demands on a graph or batch would be solved for, without solving.

    On large graphs it takes some Lanczos steps, which the next question about the same graph does not take again.

    >>> print(plan([(0, 1), (1, 2), (2, 0)]).parts[0].engine)
    cubing
    """
    check_tolerance(tol, method, METHODS)
    asked = as_graph(graph, resistance=resistance, conductance=conductance, signed=True)
    return make_plan(asked.graph, demands, tol, method, trace)


def make_plan(graph: Graph, demands: int, tol: float, method: str = "auto", trace: bool = False) -> Plan:
    """As :func:`plan`, of a checked graph."""
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
    in_c = small & fits_kernel(graph) if small.any() else small
    why = "asked for" if method == "cubing" else f"at most {SMALL} nodes"
    stiff = (
        small & ~in_float32(graph.scaled_spectral_bounds()) if method == "auto" and (small & ~in_c).any() else ~small & False
    )
    parts = [
        _cubing(graph, which, demands, native=chosen is in_c, reason=why)
        for chosen in (in_c, small & ~in_c & ~stiff)
        for which in _numbers(graph, chosen)
    ]
    parts += [_classical(graph, which, f"{why}, ill-conditioned") for which in _numbers(graph, stiff)]
    alone = ~small & (sizes > TOGETHER)
    others = [*_numbers(graph, ~small & ~alone), *(torch.tensor([i], device=graph.device) for i in np.nonzero(alone)[0])]
    if len(others) == 1 and not parts:
        others = [None]
    parts += [_large(graph, which, demands, tol, method) for which in others]
    return Plan(tuple(parts), graph.num_graphs)


def _numbers(graph: Graph, chosen: Bool[np.ndarray, " graphs"]) -> list[Tensor | None]:
    """The numbers of chosen graphs, as a list of one part or none; None for all graphs."""
    if not chosen.any():
        return []
    return [None if chosen.all() else torch.as_tensor(np.nonzero(chosen)[0], device=graph.device)]


def fits_kernel(graph: Graph) -> Bool[np.ndarray, " graphs"]:
    """Which graphs of a batch the C implementation of cubing takes: small ones on the CPU, in float32."""
    if native.active() is None or graph.device.type != "cpu":
        return np.zeros(graph.num_graphs, dtype=bool)
    limits = native.KERNELS["ohm_invert"].limits
    sizes, edges = graph.graph_sizes.numpy(), graph.edge_counts.numpy()
    return (sizes <= limits["nodes"]) & (edges <= limits["edges"]) & in_float32(graph.scaled_spectral_bounds())


def _large(graph: Graph, which: Tensor | None, demands: int, tol: float, method: str) -> Part:
    """The engine for graphs that are solved together without their inverses."""
    chosen = graph if which is None else some_graphs(graph, which)
    if method == "direct":
        part = _classical(chosen, which, "asked for")
    elif method == "elimination":
        part = _elimination(chosen, which, demands, "asked for")
    else:
        part = _chebyshev(chosen, which, demands, tol, method)
    return part if which is None else replace(part, selected=chosen)


def _cubing(graph: Graph, which: Tensor | None, demands: int, *, native: bool, reason: str) -> Part:
    """Inverses of small graphs, in C or by torch."""
    lowest = graph.scaled_spectral_bounds() if not native else np.ones(1)
    mine = lowest if which is None or native else lowest[which.cpu().numpy()]
    dtype = torch.float32 if bool(in_float32(mine).all()) else torch.float64
    return Part(which, "cubing", native, dtype, demands, reason)


def _chebyshev(graph: Graph, which: Tensor | None, demands: int, tol: float, method: str) -> Part:
    """Chebyshev's layers if Lanczos says that a reasonable number of them will do."""
    eliminated = native.active() is not None and graph.device.type == "cpu" and 2 * graph.num_edges < 2**31
    most = ELIMINATION if eliminated else REASONABLE
    floor = lmin_of(most, tol) if method == "auto" else 0.0
    sparse = graph.num_edges <= FEW_EDGES * graph.num_nodes
    if method == "auto" and eliminated and sparse and (lmin := lmin_at_most(graph)) < floor:
        found = Extremes(Spectrum(lmin, LARGEST), separated=False)
    else:
        found = prepared(graph, floor=floor)[1]
    spectrum, separated = found.spectrum, found.separated
    depth = layers_for(tol, spectrum)
    at_least = "" if separated else "more than "
    layers = f"{at_least}{depth} layers at a condition number of {at_least}{spectrum.condition:.1e}"
    if method == "auto" and (depth > most or not separated):
        reason, few = f"chebyshev would take {layers}", demands <= FEW_DEMANDS or graph.num_nodes > MANY_NODES
        return _elimination(graph, which, demands, reason) if eliminated and few else _classical(graph, which, reason)
    nodes = graph.num_nodes
    in_c = (
        native.active() is not None
        and graph.device.type == "cpu"
        and nodes >= NATIVE_NODES
        and demands >= NATIVE_DEMANDS
        and layers_of_a_round(tol, spectrum) <= native.KERNELS["ohm_direction"].limits["layers"]
        and 2 * graph.num_edges + nodes < 2**31  # the kernel's indices
    )
    panel = panel_width(nodes) if not in_c else 2 * PANEL
    return Part(which, "chebyshev", in_c, torch.float32, panel, "asked for" if method != "auto" else layers)


@lru_cache(maxsize=64)
def lmin_of(layers: int, tol: float) -> float:
    """The smallest eigenvalue of the scaled Laplacian at which chebyshev takes so many layers."""
    low, high = 1e-14, LARGEST
    for _ in range(20):  # to a few digits
        middle = math.sqrt(low * high)
        low, high = (middle, high) if layers_for(tol, Spectrum(middle, LARGEST)) > layers else (low, middle)
    return low


def _elimination(graph: Graph, which: Tensor | None, demands: int, reason: str) -> Part:
    """Sampled elimination, in C where there are kernels; every thread has a panel of demands."""
    in_c = native.active() is not None
    panel = min(max(demands, 1), native.KERNELS["ohm_conjugate"].limits["demands"] * torch.get_num_threads())
    return Part(which, "elimination", in_c, torch.float64, panel, reason)


def panel_width(nodes: int) -> int:
    """Demands that go through torch's layers together on a graph of so many nodes."""
    return 2 * PANEL if nodes > BEYOND_CACHE else max(PANEL, min(8 * PANEL, CACHE // max(nodes, 1)))


def _classical(graph: Graph, which: Tensor | None, reason: str) -> Part:
    """A sparse factorisation."""
    return Part(which, "direct", native.active() is not None, torch.float64, 64, reason)


def fallback(problem: Problem, reason: str) -> Part | None:
    """The engine to try after one that missed its tolerance; None if there is none."""
    then = _classical(problem.graph, problem.part.which, reason)
    return None if problem.part.engine in ("direct", "LDL^T") or ENGINES["direct"].supports(problem) else then


def engine(part: Part, *, transformer: bool) -> Any:
    """The engine of a part; ``transformer`` asks for the construction itself, layer by layer."""
    return TRANSFORMERS[part.engine] if transformer or part.engine not in ENGINES else ENGINES[part.engine]
