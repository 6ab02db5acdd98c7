"""The paper's layer as it is printed, edge by edge and without any trick: what the fast one is compared with."""

import torch
from torch import nn

from ohmformer.experiments.molecules.batches import MoleculeBatch
from ohmformer.experiments.molecules.graph_transformer import GraphTransformer, GraphTransformerLayer


def transcribed_layer(layer: GraphTransformerLayer, h: torch.Tensor, e: torch.Tensor, batch: MoleculeBatch):
    """One layer in training mode, from the fast layer's own weights."""
    n, width, heads = len(h), h.shape[1], layer.heads
    q, k, v = (
        nn.functional.linear(h, w, b) for w, b in zip(layer.qkv.weight.chunk(3), layer.qkv.bias.chunk(3), strict=True)
    )
    w = k[batch.source] * q[batch.target] * layer.edge(e)
    score = (w.view(-1, heads, width // heads).sum(-1) / (width // heads) ** 0.5).clamp(-5, 5).exp()
    total = h.new_zeros(n, heads).index_add(0, batch.target, score)
    a = score / total[batch.target]
    carried = (v[batch.source].view(-1, heads, width // heads) * a[:, :, None]).flatten(1)
    mixed = h.new_zeros(n, width).index_add(0, batch.target, carried)
    h = _norm(layer.norm, h + layer.out(mixed))
    h = _norm(layer.mlp_norm, h + layer.mlp(h))
    if not layer.last:
        e = _norm(layer.edge_norm, e + layer.edge_out(w))
        e = _norm(layer.edge_mlp_norm, e + layer.edge_mlp(e))
    return h, e


def transcribed(model: GraphTransformer, h: torch.Tensor, e: torch.Tensor, batch: MoleculeBatch):
    for layer in model.layers:
        assert isinstance(layer, GraphTransformerLayer)
        h, e = transcribed_layer(layer, h, e, batch)
    return h


def _norm(norm: nn.BatchNorm1d, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.batch_norm(x, None, None, norm.weight, norm.bias, training=True)
