"""Effective resistances from random projections, and embeddings whose squared distances are effective resistances.

The rows of ``L^+ B Q`` for a random sign matrix Q of q columns over ``sqrt(q)`` have squared distances that are effective
resistances on average (Spielman and Srivastava).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer import exact
from ohmformer.constructions import NewtonSchulzRoot, PowerSeriesRoot
from ohmformer.graph import Graph
from ohmformer.graph.csr import csr_tensor
from ohmformer.graph.labelled import as_graph
from ohmformer.solve import blockwise
from ohmformer.solve.answer import Answer, check_reached, check_tolerance, join
from ohmformer.solve.engines.base import Progress
from ohmformer.solve.plan import METHODS, PANEL, SMALL, make_plan
from ohmformer.solve.pseudoinverse import Request, apply_in_turn
from ohmformer.solve.scaled import RowBlocks

FAILURE = 0.01
"""The probability with which some estimate may be further off than eps."""
ROOTS = {"newton-schulz": NewtonSchulzRoot, "power-series": PowerSeriesRoot}


def projections(eps: float, pairs: int) -> int:
    """Random signs that keep ``pairs`` squared distances within ``1 +- eps``, by Achlioptas' bound and the union bound."""
    return math.ceil(4 * math.log(2 * max(pairs, 1) / FAILURE) / (eps**2 - 2 * eps**3 / 3))


def _projected(graph: Graph, count: int, seed: int, request: Request) -> Iterator[Answer]:
    """The columns of ``L^+ B Q``, a panel of them at a time."""
    draw = torch.Generator().manual_seed(seed)
    incidence = _signed_rows(graph, 1 / math.sqrt(count))
    fixed = graph if not graph.resistance.requires_grad else replace(graph, resistance=graph.resistance.detach())

    def some(columns: int) -> Float[Tensor, "nodes columns"]:
        signs = _random_signs(graph.num_edges, draw)[:, :columns].to(graph.device)
        return torch.cat([product(signs) for _, product in incidence])

    def panels() -> Iterator[Float[Tensor, "nodes columns"]]:
        made = make_plan(fixed, count, request.tol, request.method)
        width = max(PANEL, min(part.panel for part in made.parts) // 32 * 32)
        for first in range(0, count, width):
            last = min(first + width, count)
            psi = torch.cat([some(min(32, last - done)) for done in range(first, last, 32)], dim=1).to(graph.dtype)
            yield graph.center(psi)

    return apply_in_turn(fixed, panels(), request)


def _random_signs(rows: int, draw: torch.Generator) -> Float[Tensor, "rows 32"]:
    """32 signs a row out of one random word: its bits become signs of one."""
    word = torch.randint(-(2**31), 2**31, (rows, 1), generator=draw, dtype=torch.int64).to(torch.int32)
    signs = word << torch.arange(32, dtype=torch.int32)
    return signs.bitwise_and_(-(2**31)).bitwise_or_(0x3F800000).view(torch.float32)


def _signed_rows(graph: Graph, scale: float) -> RowBlocks:
    """``scale B`` in float32."""
    from scipy.sparse import coo_array

    tail, head = graph.edge_index.cpu().numpy().astype(np.int32)
    root = scale * graph.resistance.detach().cpu().double().numpy() ** -0.5
    edge = np.arange(graph.num_edges, dtype=np.int32)
    place = np.concatenate([tail, head]), np.concatenate([edge, edge])
    rows = coo_array((np.concatenate([-root, root]), place), shape=(graph.num_nodes, graph.num_edges)).tocsr()
    start, column, value = (torch.as_tensor(x, device=graph.device) for x in (rows.indptr, rows.indices, rows.data))
    return RowBlocks(csr_tensor(start, column, value.float(), graph.num_edges))


def estimated(graph: Graph, u: Tensor, v: Tensor, eps: float, seed: int, request: Request) -> Answer:
    """Squared distances of projected rows, added up panel by panel."""
    count = projections(eps, len(u))
    total = torch.zeros(len(u), dtype=torch.float64, device=graph.device)
    worst: Answer | None = None
    done, stopped = 0, False
    try:
        for panel in _projected(graph, count, seed, Request(request.tol, request.method)):
            stopped = panel.stopped
            if stopped and done:
                break  # those before it are whole
            z = panel.value.float()
            for part in torch.arange(len(u), device=graph.device).split(2**16):
                total[part] += (z[u[part]] - z[v[part]]).square_().sum(1)
            done += z.shape[1]
            worst = panel if worst is None or panel.residual > worst.residual else worst
            stopped = stopped or bool(request.progress and request.progress(done, worst.residual))
            if stopped:
                break
    except KeyboardInterrupt:
        if worst is None:
            raise
        stopped = True
    assert worst is not None
    value = (total * (count / done)).to(graph.dtype)
    short = stopped and done < count
    note = f"estimated from {done} random projections" + (f" of {count}, stopped early" if short else "")
    if worst.note and not worst.stopped:
        note = f"{note}; {worst.note}"
    return replace(worst, value=value, note=note, stopped=short)


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
    """Rows whose squared distances are effective resistances (Fact 1), within a component.

    Without ``dim``, for small graphs, they are the rows of the principal root of ``L^+``, a matrix (of a batch one per
    graph, :class:`~ohmformer.graph.ragged.Matrices`): by ``"newton-schulz"``, by ``"power-series"`` (Lemma 2) or by LAPACK
    (``"direct"``), and ``residual`` is ``|M L M - I-hat|`` in the operator norm.

    With ``dim`` they are those of ``L^+ B``, projected at random onto that many columns: squared distances are right on
    average, with a relative standard deviation of ``sqrt(2 / dim)``; methods, ``residual`` and ``progress`` as for
    :func:`potentials`.
    """
    asked = as_graph(graph, resistance=resistance, conductance=conductance)
    found = asked.graph
    if dim is not None:
        check_tolerance(tol, method, METHODS)
        if dim < 1:
            raise ValueError(f"expected dim >= 1, got {dim}")
        panels = list(_projected(found, dim, seed, Request(tol, method, progress, trace)))
        return replace(join(panels, torch.cat([panel.value for panel in panels], dim=1)), labels=asked.labels)
    check_tolerance(tol, method, ("auto", *ROOTS, "direct"))
    if found.width > SMALL:
        raise ValueError(f"expected dim= for graphs of more than {SMALL} nodes, got {found.width} nodes and no dim")
    answer = blockwise.matrices(found, lambda part: _roots(part, method, tol, trace))
    return replace(check_reached(answer, tol), labels=asked.labels)


def _roots(graph: Graph, method: str, tol: float, trace: bool) -> Answer:
    """The principal roots of graphs of like size, by a construction, or by LAPACK where that misses the tolerance."""
    note = ""
    if method != "direct":
        answer = _root(graph, "newton-schulz" if method == "auto" else method, tol, trace)
        if method != "auto" or answer.residual <= tol:
            return answer
        note = f"newton-schulz stopped at a residual of {answer.residual:.1e}"
    root = exact.sqrt_pinv(graph)
    return Answer(root, "lapack", 0, _root_residual(graph, root), None, note=note)


def _root(graph: Graph, method: str, tol: float, trace: bool) -> Answer:
    """The principal root by a construction; an error e in M is at most ``2 e sqrt(lmax) + e^2 lmax`` in ``M L M``."""
    spectrum = graph.spectral_bounds()
    construction = ROOTS[method](spectrum)
    layers = construction.layers_for(tol / (3 * math.sqrt(spectrum.lmax)))
    root, states = construction.answer_to(graph, None, layers=layers, trace=trace)
    e = construction.error_bound(layers) * math.sqrt(spectrum.lmax)
    return Answer(root, method, layers, _root_residual(graph, root), 2 * e + e**2, spectrum, trace=states)


def _root_residual(graph: Graph, root: Float[Tensor, "*graphs width width"]) -> float:
    if not root.numel():
        return 0.0
    defect = (root @ graph.laplacian() @ root - graph.projector()).detach()
    return float(torch.linalg.eigvalsh((defect + defect.mT) / 2).abs().max()) if defect.isfinite().all() else math.inf
