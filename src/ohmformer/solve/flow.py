"""Potentials and flow of given demands.

Linear systems are answered by

| method | what it is | ``"auto"`` takes it for |
|---|---|---|
| ``"cubing"`` | :class:`ChebyshevCubing` on ``D^-1/2 L D^-1/2``, see :mod:`.engines.cubing` | up to 64 nodes |
| ``"chebyshev"`` | :class:`Chebyshev` on the same in CSR, see :mod:`.engines.chebyshev` | expanders |
| ``"conjugate"`` | conjugate gradients on the same, see :mod:`.engines.conjugate` | expanders, up to three demands |
| ``"elimination"`` | approximate Cholesky, CG, see :mod:`.engines.elimination` | large diameter, few demands |
| ``"direct"`` | a sparse factor without subtractions, see :mod:`.engines.direct` | large diameter, many demands |
| | and ``L D L^T`` if resistances are negative, see :mod:`.engines.signed` | all such graphs |
| ``"gradient-descent"``, ``"squaring"`` | Lemmas 1 and 4 as Transformers, up to 8,000 nodes | |

:func:`ohmformer.plan` shows the choice and its predicted time (:mod:`.costs`) without solving. With ``trace=True`` the
construction runs as a Transformer, and the answer keeps the state after every layer.

>>> import ohmformer as ohm
>>> g = ohm.Graph.from_edges([(0, 1), (1, 2), (2, 0)], resistance=[1.0, 2.0, 3.0])
>>> answer = ohm.electric_flow(g, [1.0, 0.0, -1.0])
>>> answer.flow.flatten(), answer.energy
(tensor([ 0.5000,  0.5000, -0.5000], dtype=torch.float64), tensor([1.5000], dtype=torch.float64))
>>> answer.method, answer.layers, answer.residual < 1e-6
('cubing', 5, True)
>>> len(ohm.potentials(g, [1.0, 0.0, -1.0], method="gradient-descent", trace=True).trace)
209
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ohmformer.graph import Graph, circuit
from ohmformer.graph.labelled import as_graph
from ohmformer.solve.answer import TOL, Answer, FlowAnswer, check_tolerance
from ohmformer.solve.engines.base import Progress
from ohmformer.solve.plan import METHODS
from ohmformer.solve.pseudoinverse import Request, apply_pinv


def potentials(
    graph: Any,
    demands: Any,
    *,
    tol: float = TOL,
    tol_of: str = "residual",
    method: str = "auto",
    center: bool = False,
    trace: bool = False,
    progress: Progress | None = None,
    resistance: Any = None,
    conductance: Any = None,
) -> Answer:
    """Compute the potentials ``L^+ psi`` for every column psi of ``demands``; differentiable in demands and resistances.

    A positive demand is current injected at a node; potentials are high there. ``residual`` is ``|psi - L phi| / |psi|`` for
    the worst demand on the worst graph, ``error`` bounds or estimates ``|phi - phi*|_L / |phi*|_L``, the relative error of
    the flow; ``tol`` limits either. Where resistances vary too widely for float64 potentials with such a residual, an error
    of ``tol`` is accepted, and at the default tolerance potentials accurate to the last bit. Ctrl-C during a long solve
    returns the best answer so far, with ``stopped`` set; if a gradient is recorded, KeyboardInterrupt is raised.

    Args:
        graph: one graph or a batch: a :class:`Graph`, a networkx graph, a PyG ``Data`` or ``Batch``, a SciPy sparse matrix
            or a list of edges.
        demands: ``(nodes,)`` or ``(nodes, k)``, summing to zero on each component, or a mapping from node to demand.
        tol: the largest acceptable residual or error.
        tol_of: which of the two, ``"residual"`` or ``"error"``.
        method: ``"auto"`` or a name of the table above.
        center: subtract the mean of each component instead of refusing demands that do not sum to zero.
        trace: keep the state after every layer, up to 8,000 nodes.
        progress: called with (layers, residual) during the solve; return True to stop with the best answer so far.
        resistance: resistances, unless ``graph`` is a :class:`Graph`, which has its own; see
            :func:`~ohmformer.graph.labelled.as_graph`.
        conductance: likewise.
    """
    return _potentials(graph, demands, tol, tol_of, method, center, trace, progress, resistance, conductance)[1]


def electric_flow(graph: Any, demands: Any, **options: Any) -> FlowAnswer:
    """Compute the flow of least energy that meets ``demands``; options as for :func:`potentials`.

    The current of an edge is positive if it flows along the edge's direction, from high to low potential. The answer also
    has ``potential`` and ``energy``.
    """
    defaults = {"tol": TOL, "tol_of": "residual", "method": "auto", "center": False, "trace": False, "progress": None}
    defaults |= {"resistance": None, "conductance": None}
    unknown = set(options) - set(defaults)
    if unknown:
        raise TypeError(f"electric_flow() got an unexpected keyword argument {min(unknown)!r}")
    found, phi = _potentials(graph, demands, **(defaults | options))
    flow = circuit.flow(found, phi.value)
    certificate = {name: value for name, value in vars(phi).items() if name != "value"}
    if phi.error is not None:
        certificate["error"] = phi.error + 2 * torch.finfo(flow.dtype).eps  # a difference and a quotient
    return FlowAnswer(flow, **certificate, potential=phi.value, energy=circuit.primal_energy(found, flow))


def _potentials(
    graph: Any,
    demands: Any,
    tol: float,
    tol_of: str,
    method: str,
    center: bool,
    trace: bool,
    progress: Progress | None,
    resistance: Any,
    conductance: Any,
) -> tuple[Graph, Answer]:
    check_tolerance(tol, method, METHODS, tol_of)
    asked = as_graph(graph, resistance=resistance, conductance=conductance, signed=True)
    found, numbers = asked.with_signals(demands)
    psi = found.check_demands(numbers, center=center)
    return found, replace(apply_pinv(found, psi, Request(tol, method, progress, trace, tol_of)), labels=asked.labels)
