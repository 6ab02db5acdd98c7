"""Appendix E written out in float64 with B itself, one graph at a time: what every engine is compared with."""

import torch
from torch import Tensor


def incidence(data) -> Tensor:
    """B with each edge once, parallel edges merged, from a list that has both directions."""
    pairs = {}
    weights = torch.ones(data.edge_index.shape[1]) if data.edge_weight is None else data.edge_weight
    for (u, v), w in zip(data.edge_index.t().tolist(), weights.tolist(), strict=True):
        if u < v:
            pairs[u, v] = pairs.get((u, v), 0.0) + w
    b = torch.zeros(data.num_nodes, len(pairs), dtype=torch.float64)
    for j, ((u, v), w) in enumerate(pairs.items()):
        b[u, j], b[v, j] = -(w**0.5), w**0.5
    return b


def reference(model, data, phi: Tensor) -> Tensor:
    """Phi after all layers of a model, (nodes, channels) in and out."""
    b = incidence(data)
    for layer in range(model.groups * model.loops):
        g = layer // model.loops
        a_v, a_qk, a_r, w_r, b1, b2, b3, b4 = model.scalars[g].double().tolist()
        q, k, v = (w[g].double() for w in (model.query, model.key, model.value))
        degree = b.abs().sum(1) if model.degrees == "l1" else b.square().sum(1)
        root = torch.where(degree > 0, degree, torch.inf).rsqrt()
        n = root[:, None] * (b @ b.T) * root
        s = (phi * q) @ (phi * k).T
        next_b = (1 + a_r) * b + a_v * (b1 * a_qk * n + b2 * s) @ b if model.evolve else b
        phi = (1 + w_r) * phi + (b3 * a_qk * n + b4 * s) @ phi * v
        phi = phi / phi.norm(dim=0)
        b = next_b / next_b.norm() if next_b.norm() > 0 else next_b
    return phi
