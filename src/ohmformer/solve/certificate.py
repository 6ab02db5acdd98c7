"""What an answer is worth: its residual ``r = psi - L phi``, and its error in energy norm.

The error of potentials is ``|phi - phi*|_L / |phi*|_L``, equal to that of their flow: the square root of the energy of the
flow's error over that of the exact flow. As ``L (phi* - phi) = r``, it requires the norm of ``L^+ r``, which every engine
bounds or estimates in its own way. Rounding is included: a flow ``(phi_u - phi_v) / r_e`` is accurate to rounding, and flows
into a node are summed without loss, so the residual is off by at most that of an error of ``2 eps`` in every flow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer import native
from ohmformer.graph import Graph
from ohmformer.solve.rows import rows_of
from ohmformer.solve.scaled import empty_huge_pages

EPS = torch.finfo(torch.float64).eps
MARGIN = 1.1
"""Margin for rounding in the solution of ``L x = r``: with a factor without subtractions its relative error is ``eps
sqrt(kappa)`` times a small multiple of the nodes, some 1e-5 for resistances over twenty orders of magnitude."""


ROWS = 1024
"""Number of nodes whose squares are summed together."""


@dataclass(frozen=True)
class Sizes:
    """The energy of potentials and the size of their residual, in float64."""

    energy: Float[Tensor, "graphs k"]
    """``|phi|_L^2``."""
    residual: float
    """``|psi - L phi| / |psi|`` of the worst demand on the worst graph."""

    def error(self, norm: Float[Tensor, "graphs k"]) -> float:
        """Bound the error of the worst demand on the worst graph, given an upper bound on the norm of ``L^+ r``."""
        return relative_error(norm, self.energy)


def relative_error(norm: Float[Tensor, "*shape"], energy: Float[Tensor, "*shape"]) -> float:
    """Bound the largest relative error of potentials, given their energies and upper bounds on ``|L^+ r|_L``."""
    size = energy.sqrt()
    return relative(norm + 2 * EPS * size, size)


def relative(wrong: Tensor, size: Tensor) -> float:
    """Bound the largest relative error of computed numbers of these sizes with errors of at most ``wrong``."""
    found = torch.where(wrong == 0, 0.0, wrong / (size - wrong).clamp(min=0))
    return float(found.nan_to_num(nan=math.inf, posinf=math.inf).max()) if found.numel() else 0.0


@dataclass(frozen=True)
class Measured(Sizes):
    """:class:`Sizes` with the residual itself."""

    graph: Graph
    uncentred: Float[Tensor, "nodes k"]
    """``psi - L phi``."""

    @property
    def left(self) -> Float[Tensor, "nodes k"]:
        """``psi - L phi``, centred on every component; its means are rounding errors."""
        return self.graph.center(self.uncentred)


def measure(graph: Graph, phi: Float[Tensor, "nodes k"], psi: Float[Tensor, "nodes k"]) -> Measured:
    """Compute the residual and the energy of potentials by differences over the edges of the graph."""
    phi, psi = (x.detach().double().contiguous() for x in (phi, psi))
    if native.active() is not None and graph.device.type == "cpu" and graph.num_edges:
        rows, (nodes, k) = rows_of(graph), psi.shape
        left = empty_huge_pages(nodes, k, dtype=torch.float64, device=psi.device)
        single = graph.num_graphs == 1
        begin = torch.arange(0, nodes + ROWS, ROWS).clamp(max=nodes) if single else graph.nodes.start
        sums = torch.empty(len(begin) - 1, 3, k, dtype=torch.float64)
        native.call("ohm_measure", len(sums), k, begin, rows.start, rows.column, rows.value, phi, psi, left, sums)
        gap, energy, size = (sums.sum(0, keepdim=True) if single else sums).unbind(1)
    else:
        left, energy = torch.empty_like(psi), torch.empty_like(psi)
        for some in range(0, psi.shape[1], 16):  # avoids an edges x demands array
            part = slice(some, some + 16)
            left[:, part], energy[:, part] = _by_edges(graph, phi[:, part], psi[:, part])
        gap, energy, size = (sum_over_graphs(graph, x) for x in (left.square(), energy, psi.square()))
    return Measured(energy, worst_residual(gap, size), graph, left)


def worst_residual(gap: Float[Tensor, "graphs k"], size: Float[Tensor, "graphs k"]) -> float:
    """Compute the largest ``|psi - L phi| / |psi|``, given the squares of both."""
    worst = torch.where(size > 0, gap / torch.where(size > 0, size, 1.0), gap)
    return math.sqrt(float(worst.nan_to_num(nan=math.inf).max())) if worst.numel() else 0.0


def check_finite(resistance: Tensor, count: int) -> None:
    """Raise a ValueError unless ``count`` resistances are finite: those between connected nodes."""
    if int(resistance.isfinite().sum()) < count:
        dtype, most = str(resistance.dtype).removeprefix("torch."), torch.finfo(resistance.dtype).max
        raise ValueError(
            f"expected resistances between connected nodes, and their sums, of at most {most:.2g}, the largest number in "
            f"{dtype}, got one that is not; use a larger unit"
        )


def sum_over_graphs(graph: Graph, x: Float[Tensor, "nodes k"]) -> Float[Tensor, "graphs k"]:
    """Sum the rows of every graph."""
    if graph.num_graphs == 1:
        return x.sum(0, keepdim=True)
    return x.new_zeros(graph.num_graphs, x.shape[1]).index_add_(0, graph.batch, x)


def energy_norm(graph: Graph, phi: Float[Tensor, "nodes k"]) -> Float[Tensor, "graphs k"]:
    """Compute the energy norm ``|phi|_L = sqrt(phi^T L phi)`` of every column."""
    return measure(graph, phi, torch.zeros_like(phi)).energy.sqrt()


def resistance_error(graph: Graph, inverse: Tensor, resistance: Tensor, error: float) -> float:
    """Bound the relative error of ``R_uv = X_uu + X_vv - 2 X_uv`` if the columns of X have this error.

    It is at most ``error (sqrt(X_uu) + sqrt(X_vv)) / sqrt(R_uv)`` plus rounding; infinite where R has cancelled to zero.
    """
    root = inverse.detach().diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    label = graph.padded_components
    real = (label[..., :, None] == label[..., None, :]) & (label >= 0)[..., None]
    real = real & ~torch.eye(root.shape[-1], dtype=torch.bool, device=root.device)
    ratio = torch.where(real, (root[..., :, None] + root[..., None, :]) / resistance.detach().sqrt(), 0.0)
    worst = float(ratio.nan_to_num(nan=torch.inf, posinf=torch.inf).max()) if ratio.numel() else 0.0
    return error * worst + torch.finfo(inverse.dtype).eps * worst**2 if worst < math.inf else math.inf


def rounding_norm(graph: Graph, phi: Float[Tensor, "nodes k"]) -> Float[Tensor, "graphs k"]:
    """Bound the effect of rounding potentials to float64 in the energy norm: half the last bit at every node."""
    tail, head = graph.edge_index
    bit = phi.detach().double().abs().log2().floor().exp2() * (EPS / 2)
    norm = phi.new_zeros(graph.num_graphs, phi.shape[1], dtype=torch.float64)
    for out, x in zip(norm.split(16, dim=1), bit.split(16, dim=1), strict=True):
        out.index_add_(0, graph.batch[tail], (x[tail] + x[head]).square() / graph.resistance.detach()[:, None])
    return norm.sqrt()


def _by_edges(graph: Graph, phi: Float[Tensor, "n k"], psi: Float[Tensor, "n k"]) -> tuple[Tensor, Tensor]:
    """Compute ``psi - L phi`` and the energy of the edges starting at every node; sums are exact up to ``eps^2``."""
    resistance, energy = graph.resistance.detach().double(), torch.zeros_like(psi)
    tail, head = graph.edge_index
    drop = phi[tail] - phi[head]
    flow = drop / resistance[:, None]
    ends, terms = torch.cat([tail, head]), torch.cat([-flow, flow])
    largest = psi.abs().scatter_reduce_(0, ends[:, None].expand_as(terms), terms.abs(), "amax")
    # multiples of the last bit of a power of two above all sums add up without rounding; the remainders are small
    bits = torch.bincount(ends, minlength=len(psi)).add(2).log2().ceil() + 1
    above = (largest.log2().ceil() + bits[:, None]).exp2()
    coarse, base = (above[ends] + terms) - above[ends], (above + psi) - above
    whole = base.index_add(0, ends, coarse)
    left = whole + (psi - base).index_add_(0, ends, terms - coarse)
    return left, energy.index_add_(0, tail, drop * flow)
