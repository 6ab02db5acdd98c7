"""The front door: a graph and a question in, an answer with a certificate out.

Every answer says what it is worth: ``residual`` is measured, ``bound`` is proved (or None), ``layers`` and ``method`` say
how it was made, ``note`` why. Linear systems (potentials, flows, resistances) are answered by

| method | what it is | ``"auto"`` takes it for |
|---|---|---|
| ``"cubing"`` | :class:`ChebyshevCubing` on ``D^-1/2 L D^-1/2``, see :mod:`.engines.small` | up to 400 nodes |
| ``"chebyshev"`` | :class:`Chebyshev` on the same in CSR, see :mod:`ohmformer.solve.engines.sparse` | larger graphs |
| ``"direct"`` | LAPACK, SciPy's sparse LU, or pyamg for 100,000 nodes and more | whatever the others cannot reach |
| ``"multigrid"`` | pyamg, if installed | |
| ``"gradient-descent"``, ``"squaring"`` | Lemmas 1 and 4 as Transformers, up to 8,000 nodes | |

With ``trace=True`` the construction runs as a Transformer, and the answer keeps the state after every layer.

>>> import ohmformer as ohm
>>> g = ohm.Graph.from_edges([(0, 1), (1, 2), (2, 0)], resistance=[1.0, 2.0, 3.0])
>>> answer = ohm.electric_flow(g, torch.tensor([1.0, 0.0, -1.0]))
>>> answer.flow.flatten(), answer.energy
(tensor([ 0.5000,  0.5000, -0.5000], dtype=torch.float64), tensor([1.5000], dtype=torch.float64))
>>> answer.method, answer.layers, answer.residual < 1e-6
('cubing', 5, True)
>>> len(ohm.potentials(g, torch.tensor([1.0, 0.0, -1.0]), method="gradient-descent", trace=True).trace)
209
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ohmformer import exact
from ohmformer.constructions import (
    CubedHeat,
    GramSchmidt,
    Laplacian,
    SeededHeat,
    SpectralFilter,
    SubspaceIteration,
    TaylorHeat,
    ThroughPinv,
)
from ohmformer.graph import Graph, circuit
from ohmformer.solve.answer import Answer, FlowAnswer, check_reached, check_tolerance
from ohmformer.solve.engines import classical
from ohmformer.solve.inverse import DENSE, METHODS, REASONABLE, SMALL, Progress, Work, apply_pinv

HEAT = {"seeded": SeededHeat, "cubing": CubedHeat, "taylor": TaylorHeat}


# ---------------------------------------------------------------------------------------------------- linear systems


def potentials(
    graph: Graph,
    demands: Tensor,
    *,
    tol: float = 1e-6,
    method: str = "auto",
    center: bool = False,
    trace: bool = False,
    progress: Progress | None = None,
) -> Answer:
    """``L^+ psi`` for every column of ``demands``; differentiable in demands and resistances.

    ``residual`` is ``|psi - L phi| / |psi|`` for the worst demand, and ``tol`` what it may be. Ctrl-C during a long solve
    returns the best answer so far, with ``stopped`` set.

    Args:
        graph: one graph or a batch.
        demands: ``(nodes,)`` or ``(nodes, k)``, summing to zero on each component.
        tol: the largest residual that will do.
        method: ``"auto"`` or a name of the table above.
        center: subtract the mean of each component instead of refusing demands that do not sum to zero.
        trace: keep the state after every layer, up to 8,000 nodes.
        progress: called with (layers, residual) as the sparse engine goes; return True to stop with the best so far.
    """
    check_tolerance(tol, method, METHODS)
    return apply_pinv(graph, graph.check_demands(demands, center=center), Work(tol, method, progress, trace))


def electric_flow(graph: Graph, demands: Tensor, **options: Any) -> FlowAnswer:
    """The current of least energy that meets ``demands``, its potentials and energy; options as for :func:`potentials`."""
    phi = potentials(graph, demands, **options)
    flow = circuit.flow(graph, phi.value)
    certificate = {name: value for name, value in vars(phi).items() if name != "value"}
    return FlowAnswer(flow, **certificate, potential=phi.value, energy=circuit.primal_energy(graph, flow))


# ---------------------------------------------------------------------------------------------------- functions of L


def heat_kernel(
    graph: Graph,
    s: float = 0.5,
    signals: Tensor | None = None,
    *,
    tol: float = 1e-6,
    method: str = "auto",
    trace: bool = False,
) -> Answer:
    """``exp(-s L)`` applied to ``signals``, ``(nodes, k)``, or as a matrix without them, ``(*graphs, width, width)``.

    ``tol`` bounds the error of every signal over its norm. ``residual`` is how far a signal moves when a layer is added, on
    average over all signals, over its norm. Methods: ``"seeded"`` (ours), ``"cubing"`` (Lemma 5), ``"taylor"`` (Lemma 3),
    ``"series"`` (a Chebyshev series in CSR, for signals on graphs of any size) and ``"direct"`` (LAPACK). ``"auto"`` takes
    the seeded kernel for small graphs and the series for large ones; where rounding drowns the layers (s lmax of 1e10 and
    more) small graphs are left to LAPACK.
    """
    check_tolerance(tol, method, ("auto", *HEAT, "series", "direct"))
    if not 0 < s < math.inf:
        raise ValueError(f"the heat kernel needs s > 0, got {s!r}")
    x = None if signals is None else graph.check_signals(signals)
    if method == "series" or (method == "auto" and x is not None and graph.width > SMALL):
        if x is None:
            raise ValueError("expected signals for method='series', got none")
        return spectral_filter(graph, lambda t: np.exp(-s * t), x, tol=tol, trace=trace)
    if graph.width > DENSE:
        raise ValueError(f"expected signals for graphs of more than {DENSE} nodes, got {graph.width} nodes and none")
    made = None if method == "direct" else _heat(graph, s, "seeded" if method == "auto" else method, tol, trace)
    if made is None or (method == "auto" and not made.residual <= tol):
        note = f"seeded cubing moved by {made.residual:.1e} when a layer was added" if made else ""
        made = Answer(exact.heat(graph, s), "lapack", 0, 0.0, None, note=note)
    value = made.value if x is None else graph.unpad(made.value @ graph.pad(x))
    return check_reached(replace(made, value=value), tol)


def _heat(graph: Graph, s: float, method: str, tol: float, trace: bool) -> Answer:
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
    graph: Graph,
    f: Callable[[np.ndarray], np.ndarray],
    signals: Tensor,
    *,
    null: bool = True,
    tol: float = 1e-6,
    trace: bool = False,
) -> Answer:
    """``f(L)`` applied to ``signals`` for any smooth f, compiled to layers.

    With ``null=True`` f is compiled on ``[0, lmax]`` and acts on the null space too; with ``null=False`` on the nonzero
    spectrum only, and signals must sum to zero on each component. ``tol`` bounds the error over ``max |f|``; ``residual`` is
    how far one random combination of the signals moves when the depth is raised by a quarter, over its norm and ``max |f|``.
    """
    check_tolerance(tol, "auto", ("auto",))
    spectrum = graph.spectral_bounds()
    compiled = SpectralFilter(spectrum, f, null=null)
    x = graph.check_signals(signals) if null else graph.check_demands(signals)
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


def eigenvectors(
    graph: Graph,
    k: int = 6,
    which: str = "smallest",
    *,
    tol: float = 1e-6,
    method: str = "auto",
    trace: bool = False,
) -> Answer:
    """The ``k`` smallest nonzero (ascending) or largest (descending) eigenvectors, ``(*graphs, width, k)``.

    A graph with fewer gets zeros. ``residual`` is ``|L v - lambda v| / lmax`` for the worst of them. Methods: ``"direct"``
    (LAPACK), ``"lanczos"`` (ARPACK on L, or for the smallest on ``L^+``, each product being one solve) and ``"subspace"``,
    the paper's subspace iteration as a Transformer (Lemma 6), through ``L^+`` for the smallest, made deeper until it is good
    enough. ``"auto"`` takes LAPACK up to 2,000 nodes, then
    Lanczos; with ``trace=True``, subspace iteration.
    """
    check_tolerance(tol, method, ("auto", "direct", "lanczos", "subspace"))
    if k < 1:
        raise ValueError(f"expected k >= 1 eigenvectors, got {k}")
    if which not in ("smallest", "largest"):
        raise ValueError(f"expected which='smallest' or 'largest', got {which!r}")
    if method == "auto":
        method = "subspace" if trace else "direct" if graph.width <= 5 * SMALL else "lanczos"
    if method != "lanczos" and graph.width > DENSE:
        raise ValueError(f"expected graphs of at most {DENSE} nodes for method={method!r}, got one of {graph.width}")
    if method == "subspace":
        return _subspace(graph, k, which, tol, trace)
    if method == "lanczos":
        return _lanczos(graph, k, which, tol)
    found = exact.eigenvectors(graph, k, which)
    return check_reached(Answer(found.vectors, "lapack", 0, _eigen_residual(graph, found.vectors), None), tol)


def _eigen_residual(graph: Graph, vectors: Tensor) -> float:
    """``|L v - (v^T L v) v| / lmax`` of the worst column; zero columns count as exact."""
    if not vectors.numel():
        return 0.0
    v = graph.unpad(vectors.detach())
    image = graph.sparse_laplacian().detach() @ v
    quotient = torch.zeros(graph.num_graphs, v.shape[1], dtype=v.dtype, device=v.device)
    quotient = quotient.index_add(0, graph.batch, v * image)[graph.batch]
    squares = torch.zeros_like(quotient[: graph.num_graphs]).index_add(0, graph.batch, (image - quotient * v).square())
    return math.sqrt(float(squares.max())) / graph.spectral_bounds().lmax


def _subspace(graph: Graph, k: int, which: str, tol: float, trace: bool) -> Answer:
    """Subspace iteration, twice as deep until the residual is below ``tol``."""
    spectrum = graph.spectral_bounds()
    matrix = ThroughPinv(spectrum) if which == "smallest" else Laplacian(spectrum)
    iteration = SubspaceIteration(matrix, GramSchmidt(k))
    start, steps = iteration.start(graph, seed=0), 1
    while True:
        layers = iteration.layers(steps)
        states = iteration.run_blocks(graph, iteration.inputs(graph, start), layers, trace=trace)
        vectors = states.final[iteration.answer].flip(-1)
        residual = _eigen_residual(graph, vectors)
        if residual <= tol or iteration.layers(2 * steps) > REASONABLE:
            break
        steps *= 2
    answer = Answer(vectors, "subspace", layers, residual, None, spectrum, trace=states if trace else None)
    return check_reached(answer, tol)


def _lanczos(graph: Graph, k: int, which: str, tol: float) -> Answer:
    """ARPACK, graph by graph; products with ``L^+`` through the engine that fits the graph."""
    padded = torch.zeros(graph.num_graphs, graph.width, k, dtype=graph.dtype, device=graph.device)
    names = []
    for i, part in enumerate(graph.split() if graph.batched else [graph]):
        host = part.to("cpu", torch.float64)
        most = int(host.ranks[0])
        if most <= 3 * k or host.num_nodes <= SMALL:  # ARPACK wants room
            padded[i, : host.num_nodes] = exact.eigenvectors(host, k, which).vectors.to(padded)
            names.append("lapack")
            continue
        name, pinv = "lanczos", None
        if which == "smallest":
            solver, pinv = _repeated_inverse(host, min(tol, 1e-6) * 1e-3)
            name = f"lanczos through {solver}"
        _, vectors = classical.eigenpairs(host, k, which, pinv)
        padded[i, : host.num_nodes] = vectors.to(padded)
        names.append(name)
    value = padded if graph.batched else padded[0]
    answer = Answer(value, ", ".join(dict.fromkeys(names)), 0, _eigen_residual(graph, value), None)
    return check_reached(answer, tol)


def _repeated_inverse(graph: Graph, tol: float) -> tuple[str, classical.Apply]:
    """``x -> L^+ x`` for many x, one after the other, by the method that ``auto`` finds for the first."""
    probe = graph.center(torch.randn(graph.num_nodes, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    first = apply_pinv(graph, probe, Work(1e-6, "auto"))
    if first.method == "chebyshev":
        return "chebyshev", lambda x: apply_pinv(graph, x, Work(tol, "chebyshev")).value
    return classical.inverse(graph, SMALL)
