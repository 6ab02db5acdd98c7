"""Effective resistance, in every form it is asked for: pairs, edges, all pairs, embeddings, and the sum of them all.

Small graphs are answered from one inverse each (:mod:`.engines.small`); large ones by one solve per pair, or estimated
from random projections (Spielman and Srivastava): the rows of ``L^+ B Q`` for a random sign matrix Q of q columns over
``sqrt(q)`` have squared distances that are effective resistances on average.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ohmformer import exact
from ohmformer.constructions import NewtonSchulzRoot, PowerSeriesRoot
from ohmformer.graph import Graph, circuit
from ohmformer.solve.answer import Answer, check_reached, check_tolerance
from ohmformer.solve.engines import small, sparse
from ohmformer.solve.inverse import DENSE, METHODS, SMALL, Progress, Work, apply_in_turn, apply_pinv

FAILURE = 0.01
"""The probability with which some estimate may be further off than eps."""
ROOTS = {"newton-schulz": NewtonSchulzRoot, "power-series": PowerSeriesRoot}


def effective_resistance(
    graph: Graph,
    pairs: str | Tensor = "edges",
    *,
    eps: float | None = None,
    seed: int = 0,
    tol: float | None = None,
    method: str = "auto",
    trace: bool = False,
    progress: Progress | None = None,
) -> Answer:
    """Effective resistances: of all edges (``(edges,)``), of all pairs (``(*graphs, width, width)``) or of given pairs.

    Between components it is ``inf``; a batch takes pairs by node number in the whole batch. ``residual`` is that of the
    linear systems.

    With ``eps`` the resistances of edges or pairs of a large graph are estimated within ``1 +- eps``, all of them with
    probability 0.99, from random projections; such an estimate has no gradient. Stopped early, it is made of those done.

    Args:
        graph: one graph or a batch.
        pairs: ``"edges"``, ``"all"`` or a tensor of shape ``(pairs, 2)``.
        eps: estimate instead of solving for every pair.
        seed: of the random projections.
        tol: the largest residual that will do, 1e-6 unless given, or ``eps / 1000``.
        method: as for :func:`potentials`.
        trace: keep the state after every layer.
        progress: called with (layers, residual), or with ``eps`` (projections, residual); return True to stop. Pairs that
            were not begun then are zero, with a residual of one.
    """
    tol = (1e-6 if eps is None else 1e-3 * eps) if tol is None else tol
    check_tolerance(tol, method, METHODS)
    if isinstance(pairs, str) and pairs == "all":
        return _all_pairs(graph, Work(tol, method, progress, trace))
    if isinstance(pairs, str):
        if pairs != "edges":
            raise ValueError(f"expected pairs='edges', 'all' or a tensor of pairs, got {pairs!r}")
        if eps is None and graph.width > DENSE:
            raise ValueError(
                f"expected eps= for all edges of a graph of more than {DENSE} nodes, got {graph.width} nodes and none; "
                "eps=0.1 estimates them all, a tensor of pairs is solved exactly"
            )
        u, v = graph.edge_index
    else:
        u, v = _check_pairs(graph, pairs).t()
    joined = graph.components[u] == graph.components[v]
    if eps is not None and not 0 < eps < 1:
        raise ValueError(f"expected eps in (0, 1), got {eps!r}")
    if eps is not None and projections(eps, len(u)) < graph.num_nodes:
        answer = _estimated(graph, u, v, eps, seed, Work(tol, method, progress))
    elif graph.width <= SMALL or (graph.width <= DENSE and len(u) > graph.width):
        answer = _from_inverse(graph, u, v, Work(tol, method, progress, trace))
    else:
        answer = _pair_by_pair(graph, u, v, joined, Work(tol, method, progress, trace))
    return replace(answer, value=torch.where(joined, answer.value.clamp(min=0), torch.inf))


def _all_pairs(graph: Graph, work: Work) -> Answer:
    if graph.width > DENSE:
        raise ValueError(f"expected at most {DENSE} nodes for pairs='all', got {graph.width}; ask for pairs or edges")
    if graph.width <= SMALL and work.method in ("auto", "cubing") and not work.trace:
        found = small.invert(graph, work.tol)
        if found.residual <= work.tol or work.method == "cubing":
            value = found.all_pairs(graph).to(graph.dtype)
            value = value if graph.batched else value[0]
            return check_reached(_certified(value, found), work.tol)
    inverse = apply_pinv(graph, graph.unpad(graph.projector()), work)
    return replace(inverse, value=circuit.resistance_from_pinv(graph, graph.pad(inverse.value)))


def _certified(value: Tensor, found: small.Inverses) -> Answer:
    return Answer(value, "cubing", found.layers, found.residual, found.bound, found.spectrum)


def _from_inverse(graph: Graph, u: Tensor, v: Tensor, work: Work) -> Answer:
    """Pairs out of the inverse of each graph, for small graphs or more pairs than nodes."""
    if graph.width <= SMALL and work.method in ("auto", "cubing") and not work.trace:
        found = small.invert(graph, work.tol)
        if found.residual <= work.tol or work.method == "cubing":
            same = graph.batch[u] == graph.batch[v]
            value = found.between(u, torch.where(same, v, u)).to(graph.dtype)
            return check_reached(_certified(value, found), work.tol)
    inverse = apply_pinv(graph, graph.unpad(graph.projector()), work)
    slot = torch.arange(graph.num_nodes, device=graph.device) - graph.graph_offsets[graph.batch]
    g = inverse.value
    return replace(inverse, value=g[u, slot[u]] + g[v, slot[v]] - g[u, slot[v]] - g[v, slot[u]])


def _pair_by_pair(graph: Graph, u: Tensor, v: Tensor, joined: Tensor, work: Work) -> Answer:
    """One solve per pair, a few panels of them at once."""
    parts = torch.arange(len(u), device=graph.device).split(4 * sparse.PANEL)

    def demands(part: Tensor) -> Tensor:
        column, unit = torch.arange(len(part), device=graph.device), joined[part].to(graph.dtype)
        none = torch.zeros(graph.num_nodes, len(part), dtype=graph.dtype, device=graph.device)
        return none.index_put((u[part], column), unit).index_put((v[part], column), -unit, accumulate=True)

    answers = []
    for part, phi in zip(parts, apply_in_turn(graph, map(demands, parts), work), strict=True):
        column = torch.arange(len(part), device=graph.device)
        answers.append(replace(phi, value=phi.value[u[part], column] - phi.value[v[part], column]))
    return _joined(answers, 0) if answers else Answer(graph.resistance.new_zeros(0), "none", 0, 0.0, 0.0)


def _joined(answers: list[Answer], dim: int) -> Answer:
    """Answers to parts of a question as one: the worst residual, the deepest of them."""
    worst = max(answers, key=lambda a: a.residual)
    layers = max(a.layers for a in answers)
    return replace(worst, value=torch.cat([a.value for a in answers], dim=dim), layers=layers)


# ---------------------------------------------------------------------------------------------------- projections


def projections(eps: float, pairs: int) -> int:
    """Random signs that keep ``pairs`` squared distances within ``1 +- eps``, by Achlioptas' bound and the union bound."""
    return math.ceil(4 * math.log(2 * max(pairs, 1) / FAILURE) / (eps**2 - 2 * eps**3 / 3))


def _projected(graph: Graph, count: int, seed: int, work: Work) -> Iterator[Answer]:
    """The columns of ``L^+ B Q``, a panel of them at a time."""
    draw = torch.Generator().manual_seed(seed)
    incidence = _signed_rows(graph, 1 / math.sqrt(count))
    fixed = replace(graph, resistance=graph.resistance.detach())  # one object for all panels: it is prepared once

    def some(columns: int) -> Float[Tensor, "nodes columns"]:
        signs = _random_signs(graph.num_edges, draw)[:, :columns].to(graph.device)
        return torch.cat([product(signs) for _, product in incidence])

    def panels() -> Iterator[Float[Tensor, "nodes columns"]]:
        width = sparse.panel_width(graph.num_nodes, graph.device) // 32 * 32
        for first in range(0, count, width):
            last = min(first + width, count)
            psi = torch.cat([some(min(32, last - done)) for done in range(first, last, 32)], dim=1).to(graph.dtype)
            yield graph.center(psi)

    return apply_in_turn(fixed, panels(), work)


def _random_signs(rows: int, draw: torch.Generator) -> Float[Tensor, "rows 32"]:
    """32 signs a row out of one random word: its bits become signs of one."""
    word = torch.randint(-(2**31), 2**31, (rows, 1), generator=draw, dtype=torch.int64).to(torch.int32)
    signs = word << torch.arange(32, dtype=torch.int32)
    return signs.bitwise_and_(-(2**31)).bitwise_or_(0x3F800000).view(torch.float32)


def _signed_rows(graph: Graph, scale: float) -> sparse.RowBlocks:
    """``scale B`` in float32."""
    from scipy.sparse import coo_array

    tail, head = graph.edge_index.cpu().numpy().astype(np.int32)
    root = scale * graph.resistance.detach().cpu().double().numpy() ** -0.5
    edge = np.arange(graph.num_edges, dtype=np.int32)
    place = np.concatenate([tail, head]), np.concatenate([edge, edge])
    rows = coo_array((np.concatenate([-root, root]), place), shape=(graph.num_nodes, graph.num_edges)).tocsr()
    start, column, value = (torch.as_tensor(x, device=graph.device) for x in (rows.indptr, rows.indices, rows.data))
    return sparse.RowBlocks(sparse.csr_tensor(start, column, value.float(), graph.num_edges))


def _estimated(graph: Graph, u: Tensor, v: Tensor, eps: float, seed: int, work: Work) -> Answer:
    """Squared distances of projected rows, added up panel by panel."""
    count = projections(eps, len(u))
    total = torch.zeros(len(u), dtype=torch.float64, device=graph.device)
    worst: Answer | None = None
    done, stopped = 0, False
    try:
        for panel in _projected(graph, count, seed, Work(work.tol, work.method)):
            stopped = panel.stopped
            if stopped and done:
                break  # those before it are whole
            z = panel.value.float()
            for part in torch.arange(len(u), device=graph.device).split(2**16):
                total[part] += (z[u[part]] - z[v[part]]).square_().sum(1)
            done += z.shape[1]
            worst = panel if worst is None or panel.residual > worst.residual else worst
            stopped = stopped or bool(work.progress and work.progress(done, worst.residual))
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
    graph: Graph,
    dim: int | None = None,
    *,
    seed: int = 0,
    tol: float = 1e-6,
    method: str = "auto",
    trace: bool = False,
    progress: Progress | None = None,
) -> Answer:
    """Rows whose squared distances are effective resistances (Fact 1), within a component.

    Without ``dim``, for small graphs, they are the rows of the principal root of ``L^+``: by ``"newton-schulz"``, by
    ``"power-series"`` (Lemma 2) or by LAPACK (``"direct"``), and ``residual`` is ``|M L M - I-hat|`` in the operator norm.

    With ``dim`` they are those of ``L^+ B``, projected at random onto that many columns: squared distances are right on
    average, with a relative standard deviation of ``sqrt(2 / dim)``; methods, ``residual`` and ``progress`` as for
    :func:`potentials`.
    """
    if dim is not None:
        check_tolerance(tol, method, METHODS)
        if dim < 1:
            raise ValueError(f"expected dim >= 1, got {dim}")
        return _joined(list(_projected(graph, dim, seed, Work(tol, method, progress, trace))), 1)
    check_tolerance(tol, method, ("auto", *ROOTS, "direct"))
    if graph.width > SMALL:
        raise ValueError(f"expected dim= for graphs of more than {SMALL} nodes, got {graph.width} nodes and no dim")
    note = ""
    if method != "direct":
        answer = _root(graph, "newton-schulz" if method == "auto" else method, tol, trace)
        if method != "auto" or answer.residual <= tol:
            return check_reached(answer, tol)
        note = f"newton-schulz stopped at a residual of {answer.residual:.1e}"
    root = exact.sqrt_pinv(graph)
    return check_reached(Answer(graph.unpad(root), "lapack", 0, _root_residual(graph, root), None, note=note), tol)


def _root(graph: Graph, method: str, tol: float, trace: bool) -> Answer:
    """The principal root by a construction; an error e in M is at most ``2 e sqrt(lmax) + e^2 lmax`` in ``M L M``."""
    spectrum = graph.spectral_bounds()
    construction = ROOTS[method](spectrum)
    layers = construction.layers_for(tol / (3 * math.sqrt(spectrum.lmax)))
    root, states = construction.answer_to(graph, None, layers=layers, trace=trace)
    e = construction.error_bound(layers) * math.sqrt(spectrum.lmax)
    return Answer(graph.unpad(root), method, layers, _root_residual(graph, root), 2 * e + e**2, spectrum, trace=states)


def _root_residual(graph: Graph, root: Float[Tensor, "*graphs width width"]) -> float:
    if not root.numel():
        return 0.0
    defect = (root @ graph.laplacian() @ root - graph.projector()).detach()
    return float(torch.linalg.eigvalsh((defect + defect.mT) / 2).abs().max()) if defect.isfinite().all() else math.inf


# ---------------------------------------------------------------------------------------------------- the sum


def kirchhoff_index(
    graph: Graph,
    *,
    eps: float | None = None,
    seed: int = 0,
    tol: float = 1e-6,
    method: str = "auto",
    progress: Progress | None = None,
) -> Answer:
    """The sum of all effective resistances, ``n tr L^+``, ``(graphs,)`` for a batch; ``inf`` if a graph is disconnected.

    With ``eps``, for graphs beyond all pairs, ``tr L^+`` is estimated by Hutchinson's ``z^T L^+ z`` over random signs z,
    until the standard error is below ``eps`` of the estimate; ``note`` says what it is. ``progress`` is called with
    (layers, residual), or with ``eps`` (signs, residual).
    """
    check_tolerance(tol, method, METHODS)
    whole = graph.ranks == graph.graph_sizes - 1
    if eps is None:
        pairs = _all_pairs(graph, Work(tol, method, progress))
        sums = pairs.value.sum(dim=(-2, -1)) / 2
        value = torch.where(whole if graph.batched else whole[0], sums, torch.inf)
        return replace(pairs, value=value)
    if not 0 < eps < 1:
        raise ValueError(f"expected eps in (0, 1), got {eps!r}")
    draw = torch.Generator().manual_seed(seed)
    forms: list[Answer] = []
    relative, stopped = math.inf, False
    while relative > eps and not stopped:
        z = torch.randint(0, 2, (graph.num_nodes, sparse.PANEL), generator=draw, dtype=torch.int8)
        z = graph.center((2 * z - 1).to(graph.device, graph.dtype))
        found = apply_pinv(graph, z, Work(tol, method))
        stopped = found.stopped
        if stopped and forms:
            break  # those before it are whole
        none = torch.zeros(graph.num_graphs, z.shape[1], dtype=z.dtype, device=z.device)
        forms.append(replace(found, value=none.index_add(0, graph.batch, z * found.value).mT))
        drawn = torch.cat([form.value for form in forms])
        mean, error = drawn.mean(dim=0), drawn.std(dim=0) / math.sqrt(len(drawn))
        relative = float(torch.where(mean > 0, error / mean, 0.0).max()) if len(mean) else 0.0
        stopped = stopped or bool(progress and progress(len(drawn), found.residual))
    answer = _joined(forms, 0)
    value = torch.where(whole, answer.value.mean(dim=0) * graph.graph_sizes, torch.inf)
    short = stopped and relative > eps
    note = f"standard error {relative:.1e} of the estimate, from {len(answer.value)} random signs"
    note += ", stopped early" if short else ""
    return replace(answer, value=value if graph.batched else value[0], bound=None, note=note, stopped=short)


def _check_pairs(graph: Graph, pairs: Tensor) -> Int[Tensor, "pairs 2"]:
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.is_floating_point():
        raise ValueError(
            f"expected pairs of node numbers, shape (pairs, 2), got {pairs.dtype} of shape {tuple(pairs.shape)}"
        )
    if pairs.numel() and (int(pairs.min()) < 0 or int(pairs.max()) >= graph.num_nodes):
        raise ValueError(f"expected node numbers in 0..{graph.num_nodes - 1}, got {int(pairs.min())}..{int(pairs.max())}")
    return pairs.to(graph.device)
