"""From potentials to flow, energy and effective resistance (sections 3.2 and 3.3 of the paper).

The primal problem is ``min sum_j r_j f_j^2  subject to  B R^{1/2} f = psi``, the dual ``max 2 phi^T psi - phi^T L phi``;
both optima are the energy ``psi^T L^+ psi``.

Signs follow physics: a positive demand is injected current, which flows from high to low potential. The paper's flow,
``f = R^{-1/2} B^T phi``, has the opposite sign.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer.graph import Graph


def flow(graph: Graph, potentials: Tensor) -> Float[Tensor, "edges demands"]:
    """Compute the current along each edge, ``-R^{-1/2} B^T phi``: for an edge u -> v it is ``(phi_u - phi_v) / r``."""
    tail, head = graph.edge_index
    phi = graph.check_signals(potentials)
    return (phi[tail] - phi[head]) / graph.resistance[:, None]


def divergence(graph: Graph, flow: Float[Tensor, "edges demands"]) -> Float[Tensor, "nodes demands"]:
    """Compute the net flow out of each node, ``-B R^{1/2} f``: the demand that a flow satisfies."""
    tail, head = graph.edge_index
    out = flow.new_zeros(graph.num_nodes, flow.shape[1])
    return out.index_add(0, tail, flow).index_add(0, head, -flow)


def primal_energy(graph: Graph, flow: Float[Tensor, "edges demands"]) -> Float[Tensor, " demands"]:
    """Compute ``sum_j r_j f_j^2``, the power that a flow dissipates."""
    return (graph.resistance[:, None] * flow.square()).sum(0)


def dual_energy(graph: Graph, potentials: Tensor, demands: Tensor) -> Float[Tensor, " demands"]:
    """Compute ``2 phi^T psi - phi^T L phi``, at most the energy of every flow that satisfies psi, equal at the optimum."""
    phi, psi = graph.check_signals(potentials), graph.check_signals(demands)
    return 2 * (phi * psi).sum(0) - primal_energy(graph, flow(graph, phi))


def resistance_from_pinv(graph: Graph, pinv: Float[Tensor, "*graphs width width"]) -> Float[Tensor, "*graphs width width"]:
    """Compute ``R = 1 l^T + l 1^T - 2 L^+``, ``l`` the diagonal of ``L^+``; ``inf`` between components, zero on padding."""
    diagonal = pinv.diagonal(dim1=-2, dim2=-1)
    resistance = (diagonal[..., :, None] + diagonal[..., None, :] - (pinv + pinv.mT)).clamp(min=0)
    return _between_components(graph, resistance)


def resistance_from_root(graph: Graph, root: Float[Tensor, "*graphs width dim"]) -> Float[Tensor, "*graphs width width"]:
    """Compute ``R_ij = |M_i - M_j|^2`` for any ``M`` with ``M M^T = L^+`` (Fact 1); ``inf`` between components."""
    squared = torch.cdist(root, root, compute_mode="donot_use_mm_for_euclid_dist").square()
    return _between_components(graph, squared)


def _between_components(graph: Graph, resistance: Tensor) -> Tensor:
    """Set resistances to inf between components and to zero on the diagonal and on padding."""
    label = graph.padded_components
    apart = label[..., :, None] != label[..., None, :]
    padding = (label[..., :, None] < 0) | (label[..., None, :] < 0)
    diagonal = torch.eye(resistance.shape[-1], dtype=torch.bool, device=resistance.device)
    return torch.where(padding | diagonal, 0.0, torch.where(apart, torch.inf, resistance))
