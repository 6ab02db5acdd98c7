"""Which engine answers for which graphs, decided here and nowhere else.

Thresholds stand beside the measurement they come from; ``benchmarks/solve.py`` and ``benchmarks/scale.py`` measure again.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from ohmformer import native
from ohmformer.graph import Graph
from ohmformer.graph.labelled import as_graph
from ohmformer.solve.answer import check_tolerance
from ohmformer.solve.engines import ENGINES, TRANSFORMERS
from ohmformer.solve.engines.base import Part, Problem
from ohmformer.solve.engines.chebyshev import layers_for, layers_of_a_round
from ohmformer.solve.engines.cubing_layers import in_float32
from ohmformer.solve.scaled import prepared

SMALL = 400
"""Nodes up to which a graph is solved by its whole inverse. Cubing takes 0.02 s for a random graph of 400 nodes whatever the
number of demands, chebyshev the same with its Lanczos steps (results/solve.md)."""
TOGETHER = 4096
"""Nodes up to which larger graphs of a batch are solved as one block-diagonal system: below, Lanczos' steps on each would
cost more than the layers."""
REASONABLE = 3000
"""Layers beyond which chebyshev is left for a factorisation: a grid of 300 x 300 takes 3,400 layers, 1.6 s, where sparse LU
takes 0.3 s."""
LAYERS = 20
"""Layers that chebyshev takes at least, to tell whether resistances of edges are estimated faster than a factor gives them.
A factor with its resistances takes 1 ns for a unit of its work (measured); a layer is assumed to take as long for an entry
of the Laplacian and a demand (not measured)."""
MANY_NODES = 100_000
"""Nodes beyond which multigrid, if pyamg is installed, takes less time and memory than a sparse factorisation."""
NATIVE_NODES = 2**15
"""Nodes from which on layers in C are the faster ones: below, torch's panels of more demands stay in the cache."""
NATIVE_DEMANDS = 17
"""Demands from which on layers in C are the faster ones; they always run with 32 or 64 columns."""
PANEL = 32
"""Demands that go through torch's layers together: 128 bytes a row, two lines of the cache."""
CACHE = 2**22
"""Numbers of a panel that the cache holds: on small graphs panels are wider, up to 8 times :data:`PANEL`."""
BEYOND_CACHE = 2**18
"""Nodes from which on a panel lies in main memory, where long rows come faster than short ones: 2 times :data:`PANEL`."""

CLASSICAL = ("lapack", "sparse LU", "multigrid")
"""Engines that are taken where layers would not do."""
METHODS = ("auto", "gradient-descent", "squaring", "chebyshev", "cubing", "direct", "multigrid")


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
    return make_plan(as_graph(graph, resistance=resistance, conductance=conductance).graph, demands, tol, method, trace)


def make_plan(graph: Graph, demands: int, tol: float, method: str = "auto", trace: bool = False) -> Plan:
    """As :func:`plan`, of a checked graph."""
    if graph.device.type == "mps":
        raise ValueError(
            "expected a graph on the CPU or on CUDA: MPS has no float64, which solving needs; use graph.to('cpu')"
        )
    if trace or method in ("gradient-descent", "squaring"):
        name = method if method in TRANSFORMERS else "cubing" if graph.width <= SMALL else "chebyshev"
        reason = "asked for" if method != "auto" else "a trace was asked for"
        return Plan((Part(None, name, False, graph.dtype, demands, reason),), graph.num_graphs)
    sizes = graph.graph_sizes.cpu().numpy()
    small = sizes <= SMALL if method == "auto" else np.full(len(sizes), method == "cubing")
    in_c = small & fits_kernel(graph) if small.any() else small
    why = "asked for" if method == "cubing" else f"at most {SMALL} nodes"
    parts = [
        _cubing(graph, which, demands, native=chosen is in_c, reason=why)
        for chosen in (in_c, small & ~in_c)
        for which in _numbers(graph, chosen)
    ]
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
    chosen = graph if which is None else graph.select(which)
    if method == "direct":
        return _classical(chosen, which, "asked for")
    if method == "multigrid":
        return Part(which, "multigrid", False, torch.float64, 1, "asked for")
    return _chebyshev(chosen, which, demands, tol, method)


def _cubing(graph: Graph, which: Tensor | None, demands: int, *, native: bool, reason: str) -> Part:
    """Inverses of small graphs, in C or by torch."""
    lowest = graph.scaled_spectral_bounds() if not native else np.ones(1)
    mine = lowest if which is None or native else lowest[which.cpu().numpy()]
    dtype = torch.float32 if bool(in_float32(mine).all()) else torch.float64
    return Part(which, "cubing", native, dtype, demands, reason)


def _chebyshev(graph: Graph, which: Tensor | None, demands: int, tol: float, method: str) -> Part:
    """Chebyshev's layers if Lanczos says that a reasonable number of them will do."""
    spectrum, separated = (found := prepared(graph)[1]).spectrum, found.separated
    depth = layers_for(tol, spectrum)
    at_least = "" if separated else "more than "
    layers = f"{at_least}{depth} layers at a condition number of {at_least}{spectrum.condition:.1e}"
    if method == "auto" and (depth > REASONABLE or not separated):
        return _classical(graph, which, f"chebyshev would take {layers}")
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


def panel_width(nodes: int) -> int:
    """Demands that go through torch's layers together on a graph of so many nodes."""
    return 2 * PANEL if nodes > BEYOND_CACHE else max(PANEL, min(8 * PANEL, CACHE // max(nodes, 1)))


def _classical(graph: Graph, which: Tensor | None, reason: str) -> Part:
    """LAPACK for small graphs, then a sparse factorisation, or for many nodes multigrid."""
    many = graph.num_nodes > MANY_NODES and find_spec("pyamg")
    name = "lapack" if graph.width <= SMALL else "multigrid" if many else "sparse LU"
    return Part(which, name, False, torch.float64, 1 if many else 64, reason)


def fallback(problem: Problem, reason: str) -> Part | None:
    """The engine to try after one that missed its tolerance; None if there is none."""
    if problem.part.engine in CLASSICAL:
        return None
    return _classical(problem.graph, problem.part.which, reason)


def engine(part: Part, *, transformer: bool) -> Any:
    """The engine of a part; ``transformer`` asks for the construction itself, layer by layer."""
    return TRANSFORMERS[part.engine] if transformer or part.engine not in ENGINES else ENGINES[part.engine]
