"""The front door: a graph and a question in, an answer with a certificate out.

Every answer says what it is worth: ``residual`` is measured, ``bound`` is proved (or None), ``layers`` and ``method`` say
how it was made, ``note`` why. Linear systems (potentials, flows, resistances) are answered by

| method | what it is | ``"auto"`` takes it for |
|---|---|---|
| ``"cubing"`` | :class:`ChebyshevCubing` on ``D^-1/2 L D^-1/2``, padded in buckets of like size | up to 400 nodes |
| ``"chebyshev"`` | :class:`Chebyshev` on the same in CSR, see :mod:`ohmformer.sparse` | larger graphs |
| ``"direct"`` | LAPACK for small graphs, SciPy's sparse LU for large ones | whatever the others cannot reach |

>>> import ohmformer as ohm
>>> g = ohm.Graph.from_edges([(0, 1), (1, 2), (2, 0)], resistance=[1.0, 2.0, 3.0])
>>> answer = ohm.electric_flow(g, torch.tensor([1.0, 0.0, -1.0]))
>>> answer.flow.flatten(), answer.energy
(tensor([-0.5000, -0.5000,  0.5000], dtype=torch.float64), tensor([1.5000], dtype=torch.float64))
>>> answer.method, answer.layers, answer.residual < 1e-6
('cubing', 4, True)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ohmformer import circuit, exact
from ohmformer.constructions import SeededHeat, SpectralFilter
from ohmformer.graph import Graph
from ohmformer.inverse import METHODS, SMALL, Answer, Work, apply_pinv


@dataclass(frozen=True)
class FlowAnswer(Answer):
    """An electric flow: ``value`` is the flow on the edges."""

    potential: Tensor = field(kw_only=True)
    energy: Tensor = field(kw_only=True)

    @property
    def flow(self) -> Tensor:
        """The flow on the edges, ``(edges, demands)``."""
        return self.value


# ---------------------------------------------------------------------------------------------------- linear systems


def potentials(
    graph: Graph,
    demands: Tensor,
    *,
    tol: float = 1e-6,
    method: str = "auto",
    center: bool = False,
    progress: Callable[[int, float], bool] | None = None,
) -> Answer:
    """``L^+ psi`` for every column of ``demands``; differentiable in demands and resistances.

    ``residual`` is ``|psi - L phi| / |psi|`` for the worst demand, and ``tol`` what it may be.

    Args:
        graph: one graph or a batch.
        demands: ``(nodes,)`` or ``(nodes, k)``, summing to zero on each component.
        tol: the largest residual that will do.
        method: ``"auto"`` or a name of the table above.
        center: subtract the mean of each component instead of refusing demands that do not sum to zero.
        progress: called with (layers, residual) as the sparse engine goes; return True to stop with the best so far.
    """
    _check(tol, method)
    return apply_pinv(graph, graph.check_demands(demands, center=center), Work(tol, method, progress))


def electric_flow(graph: Graph, demands: Tensor, **options: Any) -> FlowAnswer:
    """The flow of least energy that meets ``demands``, with its potentials and energy; options as for :func:`potentials`."""
    phi = potentials(graph, demands, **options)
    flow = circuit.flow(graph, phi.value)
    energy = circuit.primal_energy(graph, flow)
    return FlowAnswer(
        flow, phi.method, phi.layers, phi.residual, phi.bound, phi.spectrum, phi.note, potential=phi.value, energy=energy
    )


def effective_resistance(
    graph: Graph,
    pairs: str | Tensor = "edges",
    *,
    eps: float | None = None,
    seed: int = 0,
    tol: float = 1e-6,
    method: str = "auto",
) -> Answer:
    """Effective resistances: of all edges (``(edges,)``), of all pairs (``(*graphs, width, width)``) or of given pairs.

    Between components it is ``inf``; a batch takes pairs by node number in the whole batch. With ``eps`` the resistances of
    pairs or edges are estimated within about a factor ``1 +- eps`` from ``8 log(pairs) / eps^2`` random projections
    (Spielman and Srivastava), solved at once. ``residual`` is that of the linear systems.
    """
    if isinstance(pairs, str) and pairs == "all":
        if graph.width > 20 * SMALL:
            raise ValueError(
                f"expected at most {20 * SMALL} nodes for pairs='all', got {graph.width}; ask for pairs or edges"
            )
        inverse = potentials(graph, graph.unpad(graph.projector()), tol=tol, method=method)
        value = circuit.resistance_from_pinv(graph, graph.pad(inverse.value))
        return replace(inverse, value=value)
    if isinstance(pairs, str):
        if pairs != "edges":
            raise ValueError(f"expected pairs='edges', 'all' or a tensor of pairs, got {pairs!r}")
        ends = graph.edge_index.t()
    else:
        ends = _check_pairs(graph, pairs)
    joined = graph.components[ends[:, 0]] == graph.components[ends[:, 1]]
    if eps is not None:
        if not 0 < eps < 1:
            raise ValueError(f"expected eps in (0, 1), got {eps!r}")
        count = math.ceil(8 * math.log(max(len(ends), 2)) / eps**2)
        if count < graph.num_nodes:
            solved = _projected(graph, count, seed, tol, method)
            value = (solved.value[ends[:, 0]] - solved.value[ends[:, 1]]).square().sum(1)
            return replace(solved, value=torch.where(joined, value, torch.inf))
    return _exact_pairs(graph, ends, joined, tol, method)


def _exact_pairs(graph: Graph, ends: Tensor, joined: Tensor, tol: float, method: str) -> Answer:
    """Resistances of pairs by one solve per node that occurs in a pair, or per pair if those are fewer."""
    if graph.width <= SMALL:
        inverse = potentials(graph, graph.unpad(graph.projector()), tol=tol, method=method)
        slot = torch.arange(graph.num_nodes, device=graph.device) - graph.graph_offsets[graph.batch]
        u, v = ends.t()
        g = inverse.value
        value = g[u, slot[u]] + g[v, slot[v]] - g[u, slot[v]] - g[v, slot[u]]
    else:
        demands = torch.zeros(graph.num_nodes, len(ends), dtype=graph.dtype, device=graph.device)
        column = torch.arange(len(ends), device=graph.device)
        demands = demands.index_put((ends[:, 0], column), joined.to(graph.dtype))
        demands = demands.index_put((ends[:, 1], column), -joined.to(graph.dtype), accumulate=True)
        inverse = potentials(graph, demands, tol=tol, method=method)
        value = (demands * inverse.value).sum(0)
    return replace(inverse, value=torch.where(joined, value.clamp(min=0), torch.inf))


def resistive_embedding(
    graph: Graph, dim: int | None = None, *, seed: int = 0, tol: float = 1e-6, method: str = "auto"
) -> Answer:
    """Rows whose squared distances are effective resistances (Fact 1), within a component.

    Without ``dim``, for small graphs, they are the rows of the principal root of ``L^+``, by LAPACK. With ``dim`` they are
    those of ``L^+ B``, projected at random onto that many columns: squared distances are right on average, and within
    about ``1 +- sqrt(8 log(n) / dim)``.
    """
    if dim is not None:
        if dim < 1:
            raise ValueError(f"expected dim >= 1, got {dim}")
        return _projected(graph, dim, seed, tol, method)
    if graph.width > SMALL:
        raise ValueError(f"expected dim= for graphs of more than {SMALL} nodes, got {graph.width} nodes and no dim")
    _check(tol, method)
    root = exact.sqrt_pinv(graph)
    defect = root @ graph.laplacian() @ root - graph.projector()
    residual = float(torch.linalg.matrix_norm(defect, 2).max()) if graph.num_nodes else 0.0
    return Answer(graph.unpad(root), "lapack", 0, residual, None, note="principal root by LAPACK")


def _projected(graph: Graph, count: int, seed: int, tol: float, method: str) -> Answer:
    """``L^+ B Q`` for a random sign matrix Q of ``count`` columns over ``sqrt(count)``, without forming B."""
    draw = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (graph.num_edges, count), generator=draw, dtype=torch.int8).to(graph.device)
    flow = (2 * signs - 1).to(graph.dtype) * (graph.resistance.rsqrt() / math.sqrt(count))[:, None]
    return potentials(graph, circuit.divergence(graph, flow), tol=tol, method=method, center=True)


# ---------------------------------------------------------------------------------------------------- functions of L


def heat_kernel(graph: Graph, s: float = 0.5, signals: Tensor | None = None, *, tol: float = 1e-6) -> Answer:
    """``exp(-s L)`` applied to ``signals``, ``(nodes, k)``, or as a matrix without them, ``(*graphs, width, width)``.

    ``tol`` bounds the error of every signal over its norm. ``residual`` is how far a signal moves when a layer is added, on
    average over all signals, over its norm. Where rounding drowns the layers (s lmax of 1e10 and more) small graphs are left
    to LAPACK.
    """
    _check(tol, "auto")
    spectrum = graph.spectral_bounds()
    if signals is None or graph.width <= SMALL:
        if graph.width > 20 * SMALL:
            raise ValueError(
                f"expected signals for graphs of more than {20 * SMALL} nodes, got {graph.width} nodes and none"
            )
        heat = SeededHeat(spectrum, s)
        layers = heat.layers_for(tol)
        kernel, deeper = heat.run(graph, layers=layers), heat.run(graph, layers=layers + 1)
        size = math.sqrt(max(kernel.shape[-1], 1))
        residual = float((kernel - deeper).norm(dim=(-2, -1)).max()) / size if kernel.numel() else 0.0
        made = Answer(kernel, "seeded cubing", layers, residual, heat.error_bound(layers), spectrum)
        if not residual <= tol:
            note = f"seeded cubing moved by {residual:.1e} when a layer was added"
            made = Answer(exact.heat(graph, s), "lapack", 0, 0.0, None, note=note)
        if signals is None:
            return made
        return replace(made, value=graph.unpad(made.value @ graph.pad(graph.check_signals(signals))))
    if not s > 0:
        raise ValueError(f"the heat kernel needs s > 0, got {s!r}")
    return spectral_filter(graph, lambda x: np.exp(-s * x), signals, tol=tol)


def spectral_filter(
    graph: Graph, f: Callable[[np.ndarray], np.ndarray], signals: Tensor, *, null: bool = True, tol: float = 1e-6
) -> Answer:
    """``f(L)`` applied to ``signals`` for any smooth f, compiled to layers.

    With ``null=True`` f is compiled on ``[0, lmax]`` and acts on the null space too; with ``null=False`` on the nonzero
    spectrum only, and signals must sum to zero on each component. ``tol`` bounds the error over ``max |f|``; ``residual`` is
    how far one random combination of the signals moves when the depth is raised by a quarter, over its norm and ``max |f|``.
    """
    _check(tol, "auto")
    spectrum = graph.spectral_bounds()
    compiled = SpectralFilter(spectrum, f, null=null)
    x = graph.check_signals(signals) if null else graph.check_demands(signals)
    layers = compiled.layers_for(tol * compiled.size)
    laplacian = graph.sparse_laplacian()
    value = _run_sparse(compiled, laplacian, x, layers)
    probe = x @ torch.randn(x.shape[1], 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(x)
    change = _run_sparse(compiled, laplacian, probe, layers) - _run_sparse(
        compiled, laplacian, probe, layers + layers // 4 + 1
    )
    size = float(probe.norm()) * compiled.size
    residual = float(change.detach().norm()) / size if size > 0 else 0.0
    if not residual <= tol:
        raise ValueError(
            f"asked for an error of {tol:.1e}, but rounding moves this filter by {residual:.1e}; pass a larger tol"
        )
    bound = compiled.error_bound(layers) / compiled.size if compiled.size else 0.0
    return Answer(value, "chebyshev series", layers, residual, bound, spectrum)


def _run_sparse(compiled: SpectralFilter, laplacian: Tensor, x: Tensor, layers: int) -> Tensor:
    model = compiled.efficient(layers, dtype=x.dtype).to(x.device).requires_grad_(False)
    return model(laplacian, {"current": x})[compiled.answer]


def eigenvectors(graph: Graph, k: int = 6, which: str = "smallest", *, tol: float = 1e-6) -> Answer:
    """The ``k`` smallest nonzero (ascending) or largest (descending) eigenvectors, ``(*graphs, width, k)``.

    A graph with fewer gets zeros. By LAPACK; ``residual`` is ``|L v - lambda v| / lmax`` for the worst of them.
    """
    _check(tol, "auto")
    if k < 1:
        raise ValueError(f"expected k >= 1 eigenvectors, got {k}")
    if graph.width > 20 * SMALL:
        raise ValueError(f"expected graphs of at most {20 * SMALL} nodes, got one of {graph.width}")
    found = exact.eigenvectors(graph, k, which)
    gap = graph.laplacian() @ found.vectors - found.vectors * found.values[..., None, :]
    lmax = graph.spectral_bounds().lmax
    residual = float(gap.norm(dim=-2).max()) / lmax if gap.numel() else 0.0
    if not residual <= tol:
        raise ValueError(
            f"asked for a residual of {tol:.1e}, but LAPACK reaches {residual:.1e} on this graph; pass a larger tol"
        )
    return Answer(found.vectors, "lapack", 0, residual, None)


# ---------------------------------------------------------------------------------------------------- checks


def _check(tol: float, method: str) -> None:
    if not 0 < tol < 1:
        raise ValueError(f"expected a tolerance in (0, 1), got {tol!r}")
    if method not in METHODS:
        raise ValueError(f"expected a method among {', '.join(METHODS)}, got {method!r}")


def _check_pairs(graph: Graph, pairs: Tensor) -> Tensor:
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.is_floating_point():
        raise ValueError(
            f"expected pairs of node numbers, shape (pairs, 2), got {pairs.dtype} of shape {tuple(pairs.shape)}"
        )
    if pairs.numel() and (int(pairs.min()) < 0 or int(pairs.max()) >= graph.num_nodes):
        raise ValueError(f"expected node numbers in 0..{graph.num_nodes - 1}, got {int(pairs.min())}..{int(pairs.max())}")
    return pairs.to(graph.device)
