"""Small graphs by few calls of C: one graph's conductances and spectrum, and channels of any number at nodes and edges.

A molecule has two dozen nodes, so the overhead of Python operations exceeds the arithmetic. These functions accept only
plainly valid input and return None for everything else, which general code then handles or rejects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from ohmformer import native
from ohmformer.encoding.kernels import supports


def conductances(edge_index: Any, weight: Tensor | None, nodes: int | None) -> Float[Tensor, "nodes nodes"] | None:
    """Return the conductance matrix of one small graph on the CPU in float64, counting every edge once, or None."""
    if not isinstance(edge_index, Tensor) or edge_index.dtype != torch.long or edge_index.ndim != 2 or len(edge_index) != 2:
        return None
    given = () if weight is None else (weight,)
    if nodes is None or not supports("ohm_conductances", (), given, nodes=nodes) or edge_index.device.type != "cpu":
        return None
    if weight is not None:
        if not weight.is_floating_point() or weight.shape != edge_index.shape[1:] or weight.device.type != "cpu":
            return None
        weight = weight.detach().double().contiguous()
    found, taken = torch.empty(nodes, nodes, dtype=torch.float64), torch.empty(1, dtype=torch.long)
    u, v = (x.contiguous() for x in edge_index)
    native.call("ohm_conductances", nodes, len(u), u, v, weight, found, taken)
    return found if taken.numpy()[0] else None


def spectrum(
    conductance: Float[Tensor, "nodes nodes"], laplacian: str
) -> tuple[Float[Tensor, " nodes"], Float[Tensor, " entries"], float]:
    """Return eigenvalues and eigenvectors of N, or of L over its largest degree, and the divisor of L."""
    n = len(conductance)
    values, vectors, unit = torch.empty(n), torch.empty(n * n), torch.empty(1, dtype=torch.float64)
    native.call("ohm_spectrum", n, int(laplacian == "combinatorial"), conductance, values, vectors, unit)
    return values, vectors, float(unit.numpy()[0])


def at_nodes_and_edges(
    spectra: tuple[Float[Tensor, " nodes"], Float[Tensor, " entries"]],
    batch: Int[Tensor, " owners"] | None,
    edge_index: Int[Tensor, "2 edges"],
    weights: Float[Tensor, "layers rows channels"],
    reads: Sequence[str],
    turns: Sequence[tuple[Tensor, Tensor]] | None = None,
    *,
    restore: bool,
    graphs: int = 1,
    check: tuple[Tensor, Tensor | None, str] | None = None,
) -> list[Tensor] | None:
    """Return channels at nodes and edges, in the order of ``reads``, from the concatenated spectra of all graphs.

    Return None if no kernel supports the input, or if graphs, edges and spectra do not plainly match.

    Args:
        spectra: eigenvalues, and eigenvectors, nodes by eigenvalues.
        batch: the graph of every node; one graph if None.
        edge_index: edges, one graph after the other.
        weights: of the layers.
        reads: ``"nodes"``, ``"edges"``, or both.
        turns: for each of ``reads`` the matrix that channels are multiplied by and the row that is added, if no gradient is
            needed.
        restore: see :func:`on_spectrum`.
        graphs: number of graphs.
        check: for stored spectra, their fingerprints, the edge weights and the kind of Laplacian.
    """
    channels, whole = weights.shape[2], [x for x in (edge_index, batch) if x is not None]
    arrays = *spectra, weights, *(x for turn in turns or () for x in turn)
    if (
        "pairs" in reads
        or any(x.dtype != torch.long or x.device.type != "cpu" for x in whole)
        or (batch is not None and batch.shape != spectra[0].shape)
        or (check is not None and not _matches(check, edge_index, graphs))
        or not supports("ohm_functions", arrays, spectra, channels=channels)
    ):
        return None
    missing = native.KERNELS["ohm_functions"].limits["channels"] - channels
    weights = (pad(weights, (0, missing)) if missing else weights).contiguous()
    values, vectors = (x.contiguous() for x in spectra)
    u, v = (x.contiguous() for x in edge_index)
    sizes, lists = (graphs, len(values), len(u), len(vectors), len(weights), int(restore)), (batch, u, v)
    run: Any = _Functions.apply if torch.is_grad_enabled() and weights.requires_grad else _run
    taken, *found = run(weights, sizes, lists, (values, vectors), check, tuple(reads), turns)
    if not taken:
        return None
    return [x[:, :channels] for x in found] if missing and turns is None else found


def _matches(check: tuple[Tensor, Tensor | None, str], edge_index: Tensor, graphs: int) -> bool:
    """Return whether there is a fingerprint per graph and a weight per edge."""
    kept, weight, _ = check
    of_edges = weight is None or tuple(weight.shape) in ((edge_index.shape[1],), (edge_index.shape[1], 1))
    return of_edges and tuple(kept.shape) == (graphs,)


def _run(
    weights: Tensor, sizes: Any, lists: Any, spectra: Any, check: Any, reads: Sequence[str], turns: Any = None
) -> tuple[Any, ...]:
    """Call the kernel; return whether it supported the input, and its output."""
    most = weights.shape[2]
    kept, weight, laplacian = (None, None, "") if check is None else check
    weight = weight if weight is None else weight.detach().flatten().float().contiguous()
    columns, rows = most if turns is None else turns[0][0].shape[1], {"nodes": sizes[1], "edges": sizes[2]}
    out, turn = {what: weights.new_empty(rows[what], columns) for what in reads}, {}
    for what, (by, plus) in zip(reads, [] if turns is None else turns, strict=False):
        turn[what] = torch.cat([pad(by, (0, most - columns, 0, most - len(by))), pad(plus, (0, most - columns))[None]])
    taken = torch.empty(1, dtype=torch.long)
    targets = turn.get("nodes"), out.get("nodes"), turn.get("edges"), out.get("edges"), taken
    numbers = *sizes, columns, int(laplacian == "combinatorial")
    native.call("ohm_functions", *numbers, *lists, weight, kept, *spectra, weights, *targets)
    return bool(taken.numpy()[0]), *out.values()


class _Functions(torch.autograd.Function):
    """Run the layers and read their output graph by graph in the L1 cache; backward recomputes them."""

    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, sizes: Any, lists: Any, spectra: Any, check: Any, reads: tuple[str, ...], _: None
    ) -> tuple[Any, ...]:
        ctx.library, ctx.sizes, ctx.lists, ctx.spectra, ctx.reads = native.active(), sizes, lists, spectra, reads
        ctx.save_for_backward(weights)
        return _run(weights, sizes, lists, spectra, check, reads)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (weights,) = ctx.saved_tensors
        given, found = dict(zip(ctx.reads, (x.contiguous() for x in gradients[1:]), strict=True)), torch.empty_like(weights)
        arrays = *ctx.lists, *ctx.spectra, weights, given.get("nodes"), given.get("edges"), found
        ctx.library.call("ohm_functions_backward", *ctx.sizes, *arrays)
        return found, None, None, None, None, None, None
