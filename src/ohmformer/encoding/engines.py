"""Choose how the encoding's layers are computed for every graph of a batch, and compute them.

All engines compute the same layers (:mod:`ohmformer.encoding.dynamics`); only :func:`choose` and :func:`functions_of` decide
among them. Some have a native variant, which is used whenever :mod:`ohmformer.encoding.kernels` says that the kernel
supports the input. The identity as Phi_0 is one unit demand per node.

===================  =====================================================  ==========================================
engine               for                                                    native variant
===================  =====================================================  ==========================================
:func:`on_spectra`   Phi_0 the identity, B fixed                            the layers on eigenvalues, with gradients
:func:`on_points`    the same, graphs above 400 nodes                       polynomials at nodes and edges
:func:`on_matrices`  the same, if edge weights require gradients            none
:func:`on_squares`   Phi_0 the identity, B evolving                         none
:func:`on_blocks`    other starts, graphs up to 40 nodes or B evolving      :func:`graph_by_graph`, without gradients
:func:`on_rows`      other starts, larger graphs, B fixed                   :func:`graph_by_graph`, without gradients
===================  =====================================================  ==========================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ohmformer.encoding.dynamics import TINY, Layer, fixed_layers, moving_layers, sparse_layers, unit
from ohmformer.encoding.inputs import Pairs, SmallGraphs, sparse_graphs
from ohmformer.encoding.kernels import run_layers, supports_layers
from ohmformer.encoding.large import Points, points_of
from ohmformer.encoding.on_spectrum import on_spectrum
from ohmformer.encoding.spectra import Spectra

MOST_NODES = 8000
"""Largest graph, in nodes, for which nodes x nodes arrays are used."""
SPECTRA_UP_TO = 400
"""Largest graph, in nodes, for which functions of N are computed from eigenvectors: LAPACK takes 20 ms for 400 nodes, and
four times as long for two and a half times as many.
"""
SPARSE_FROM = 40
"""Number of nodes above which a graph with fixed B is computed in CSR rather than as a dense block
(`results/encoding-scale.md`).
"""
EXACT_TO = 64
"""Channels are exact if their error is at most so many times the rounding error of their root mean square eigenvalue."""
TOGETHER = 2**18
"""Matrix entries computed together in one block: few large operations."""


@dataclass(frozen=True)
class Problem:
    """The layers to run on a batch of graphs."""

    pairs: Pairs
    start: Float[Tensor, "nodes channels"] | None
    """Phi_0, or None for the identity (one unit demand per node), of which the diagonal is returned."""
    layers: Sequence[Layer]
    evolve: bool
    """Whether layers update B."""
    normalize_start: bool = True
    """Whether the channels of Phi_0 are divided by their norms first."""

    @property
    def channels(self) -> int:
        """The number of channels of Phi."""
        return len(self.layers[0].value)

    def select(self, which: Int[Tensor, " chosen"]) -> tuple[Problem, Int[Tensor, " nodes"]]:
        """Return the problem of some graphs, and the indices of their nodes in this one."""
        pairs, node = self.pairs.select(which)
        return replace(self, pairs=pairs, start=None if self.start is None else self.start[node]), node


Engine = Callable[[Problem], Tensor]


def encode(problem: Problem) -> Float[Tensor, "nodes channels"]:
    """Return ``Phi_L`` of every node, each graph computed by the engine that :func:`choose` selects."""
    parts = choose(problem)
    if len(parts) == 1:
        return parts[0][0](problem)
    found, nodes = [], []
    for engine, graphs in parts:
        part, node = problem.select(graphs)
        found.append(engine(part))
        nodes.append(node)
    return torch.cat(found)[torch.argsort(torch.cat(nodes))]


def choose(problem: Problem) -> list[tuple[Engine, Int[Tensor, " chosen"]]]:
    """Return the engines to use, each with the indices of its graphs."""
    pairs, start = problem.pairs, problem.start
    graph = pairs.graph
    if problem.evolve and graph.width > MOST_NODES:
        raise ValueError(f"expected graphs of at most {MOST_NODES} nodes with evolve=True, got one of {graph.width}")
    every = torch.arange(graph.num_graphs, device=graph.device)
    if start is None:
        return [(on_squares, every)]
    if supports_layers(pairs, start, problem.layers, evolve=problem.evolve):
        return [(graph_by_graph, every)]
    if problem.evolve or graph.width <= SPARSE_FROM:
        return [(on_blocks, every)]
    large = graph.graph_sizes > SPARSE_FROM
    parts = (on_blocks, every[~large]), (on_rows, every[large])
    return [(engine, graphs) for engine, graphs in parts if len(graphs)]


Turn = tuple[Tensor, Tensor] | None
"""A matrix (channels by columns) that channels are multiplied by and a row that is added; None for neither."""
Read = Callable[[Tensor, Tensor, Turn], Tensor]
"""A function of pairs of nodes (u, v) that returns ``p_c(N)_uv`` of every channel after a :data:`Turn`."""


def functions_of(
    pairs: Pairs, weights: Float[Tensor, "layers rows channels"], reads: Sequence[str], *, restore: bool, seed: int
) -> Read:
    """Return the channels as functions of N that can be read at pairs of nodes, for Phi_0 the identity and B fixed."""
    graph, gradients = pairs.graph, torch.is_grad_enabled() and pairs.weight.requires_grad
    if graph.width > MOST_NODES and (gradients or "pairs" in reads):
        what = "gradients of edge_weight" if gradients else "read='pairs'"
        raise ValueError(f"expected graphs of at most {MOST_NODES} nodes for {what}, got one of {graph.width}")
    if gradients:
        return on_matrices(pairs, weights.to(pairs.weight.dtype), weights.dtype, restore=restore)
    if graph.width <= SPECTRA_UP_TO or "pairs" in reads:
        return on_spectra(Spectra.of(pairs, weights.dtype), weights, pairs.after_first, restore=restore)
    if graph.num_graphs == 1:
        points = points_of(pairs, len(weights), weights.dtype, edges="edges" in reads, seed=seed)
        p = on_points(points, pairs, weights, restore=restore)
        return lambda u, v, turn: points.read(p, u, v) if turn is None else points.read(p @ turn[0], u, v) + turn[1]
    return _by_parts(pairs, weights, reads, restore=restore, seed=seed)


def error_of(
    pairs: Pairs, weights: Tensor, reads: Sequence[str], *, restore: bool, seed: int
) -> Float[Tensor, "directions channels"]:
    """Return rows whose sum of squares is, for every channel, the mean over nodes of its squared standard error."""
    if pairs.graph.width <= SPECTRA_UP_TO:
        return weights.new_zeros(1, weights.shape[2])
    points = points_of(pairs, len(weights), weights.dtype, edges="edges" in reads, seed=seed)
    p = on_points(points, pairs, weights, restore=restore)
    found, size = points.error.to(p) @ p, (points.count[:, None] * p.square()).sum(0).div(pairs.graph.num_nodes).sqrt()
    return found * (found.norm(dim=0) > EXACT_TO * torch.finfo(p.dtype).eps * size)


def _by_parts(pairs: Pairs, weights: Tensor, reads: Sequence[str], *, restore: bool, seed: int) -> Read:
    """Compute small graphs together and each large graph alone."""
    graph = pairs.graph
    every, large = torch.arange(graph.num_graphs, device=graph.device), graph.graph_sizes > SPECTRA_UP_TO
    part, place, found = torch.zeros_like(graph.batch), torch.zeros_like(graph.batch), []
    for number, which in enumerate((every[~large], *every[large].split(1))):
        mine, node = pairs.select(which)
        part[node], place[node] = number, torch.arange(len(node), device=graph.device)
        found.append(functions_of(mine, weights, reads, restore=restore, seed=seed))

    def read(u: Tensor, v: Tensor, turn: Turn) -> Tensor:
        out = weights.new_zeros(len(u), weights.shape[2] if turn is None else len(turn[1]))
        for number, function in enumerate(found):
            rows = (part[u] == number).nonzero()[:, 0]
            here = place[u[rows]]
            out = out.index_copy(0, rows, function(here, here if u is v else place[v[rows]], turn))
        return out

    return read


def on_spectra(spectra: Spectra, weights: Tensor, after_first: Tensor | None, *, restore: bool) -> Read:
    """Run layers with fixed B on the eigenvalues of every graph, starting from the identity."""
    p = on_spectrum(spectra.values, spectra.start, spectra.owner, weights, after_first, restore=restore)
    return lambda u, v, turn: spectra.read(p, u, v) if turn is None else spectra.read(p @ turn[0], u, v, turn[1])


def on_points(points: Points, pairs: Pairs, weights: Tensor, *, restore: bool) -> Float[Tensor, "points channels"]:
    """Run layers with fixed B on the points that represent the eigenvalues of one large graph."""
    owner = torch.zeros(len(points.values), dtype=torch.long, device=weights.device)
    start = torch.tensor([0, len(owner)], device=weights.device)
    return on_spectrum(points.values, start, owner, weights, pairs.after_first, restore=restore, count=points.count)


def on_matrices(pairs: Pairs, weights: Tensor, dtype: torch.dtype, *, restore: bool) -> Read:
    """Run the layers of :func:`on_spectra` on matrices, so that edge weights receive gradients."""
    graphs, channels = SmallGraphs.of(pairs), weights.shape[2]
    done = [weights.new_zeros(0, channels)]
    for block in graphs.layout.blocks:
        seen, real, after = block.of(graphs.buffer), block.node >= 0, graphs.after_first(block)
        size = real.sum(1).to(seen)[:, None, None, None]
        eye = torch.diag_embed(real.to(seen))[:, None]
        scale, phi = size.sqrt(), (eye / size.clamp(min=1).sqrt()).expand(-1, channels, -1, -1)
        for l, rows in enumerate(weights):
            if l == 1 and after is not None:
                seen = seen * after[:, None, None]
            of_seen, pulled, one, summed = rows[:, :, None, None].unbind()
            squares = (phi @ phi * summed).sum(1, keepdim=True)
            phi = phi @ (eye * one + seen[:, None] * of_seen + squares * pulled)
            square = phi.square().sum((2, 3), keepdim=True) + TINY
            phi = phi * square.rsqrt()
            scale = scale * square.sqrt() if restore else scale
        done.append((phi * scale).permute(0, 2, 3, 1).reshape(-1, channels))
    entries = torch.cat(done).to(dtype)

    def read(u: Tensor, v: Tensor, turn: Turn) -> Tensor:
        found = entries.index_select(0, graphs.layout.index(u, v))
        return found if turn is None else torch.addmm(turn[1], found, turn[0])

    return read


def on_squares(problem: Problem) -> Float[Tensor, "nodes channels"]:
    """Run layers that update B on one nodes x nodes matrix per channel, starting from the identity; return the diagonals."""
    graphs, channels = SmallGraphs.of(problem.pairs), problem.channels
    value = problem.layers[0].value
    done = [value.new_zeros(0, channels)]
    for block in graphs.layout.blocks:
        real = block.node >= 0
        eye = torch.diag_embed(real.to(value))
        phi = unit(eye[:, None].expand(-1, channels, -1, -1).flatten(1, 2), channels)
        phi = moving_layers(graphs.state(block), phi, problem.layers).unflatten(1, (channels, -1))
        phi = phi.diagonal(dim1=2, dim2=3).mT * real.sum(1)[:, None, None].to(phi).sqrt()
        done.append(phi.reshape(-1, channels))
    return torch.cat(done).index_select(0, graphs.layout.row)


def on_blocks(problem: Problem) -> Float[Tensor, "nodes channels"]:
    """Run layers on dense blocks of graphs of similar size."""
    assert problem.start is not None
    graphs, channels = SmallGraphs.of(problem.pairs, TOGETHER), problem.channels
    rows = problem.start.new_zeros(graphs.layout.rows, channels).index_copy_(0, graphs.layout.row, problem.start)
    done = [rows[:0]]
    for block in graphs.layout.blocks:
        phi, normalize = block.rows_of(rows).mT.contiguous(), problem.normalize_start
        if problem.evolve:
            phi = moving_layers(graphs.state(block), unit(phi, channels) if normalize else phi, problem.layers)
        else:
            seen, after = block.of(graphs.buffer), graphs.after_first(block)
            phi = fixed_layers(seen, phi, problem.layers, after, unit_start=normalize)
        done.append(phi.mT.reshape(-1, channels))
    return torch.cat(done).index_select(0, graphs.layout.row)


def on_rows(problem: Problem) -> Float[Tensor, "nodes channels"]:
    """Run layers with fixed B on graphs of any size, in CSR."""
    assert problem.start is not None
    graphs, row = sparse_graphs(problem.pairs)
    phi = problem.start.new_zeros(len(graphs.start), problem.channels).index_copy_(0, row, problem.start)
    after, normalize = problem.pairs.after_first, problem.normalize_start
    return sparse_layers(graphs, phi, problem.layers, after, unit_start=normalize).index_select(0, row)


def graph_by_graph(problem: Problem) -> Float[Tensor, "nodes channels"]:
    """Run the layers of :func:`on_blocks` and :func:`on_rows` in the native library, for inference."""
    assert problem.start is not None
    start, normalize = problem.start, problem.normalize_start
    return run_layers(problem.pairs, start, problem.layers, evolve=problem.evolve, normalize_start=normalize)
