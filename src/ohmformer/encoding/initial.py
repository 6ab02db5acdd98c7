"""Initial weights of ``LinearTransformerPE``, from a seed alone, and where Phi starts."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from ohmformer.encoding.inputs import Pairs


def empty_linear(width: int, out: int) -> nn.Linear:
    """Make a linear map without drawing its weights, as torch would draw them from the global generator."""
    return cast(nn.Linear, nn.utils.skip_init(nn.Linear, width, out))


def draw_weights(model: Any) -> None:
    """Redraw the weights of a ``LinearTransformerPE`` and reset the statistics of its norms."""
    draw = torch.Generator().manual_seed(model.seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw)

    with torch.no_grad():
        model.scalars.copy_(torch.tensor([0.1, 1.0, 0.0, 0.0, -1.0, -0.1, 1.0, 1.0]) + 0.02 * noise(model.groups, 8))
        model.value.copy_(-torch.linspace(0.1, 0.9, model.hidden) + 0.02 * noise(model.groups, model.hidden))
        for weight in (model.query, model.key):
            weight.copy_(0.3 + 0.02 * noise(model.groups, model.hidden))
        for readout in (model.readout, model.edge_readout, model.pair_readout):
            if readout is not None:
                readout.copy_(noise(model.dim, model.hidden) / math.sqrt(model.hidden))
        if model.phi0 == "walks":
            group, channel = torch.arange(1, model.groups + 1), torch.arange(1, model.hidden + 1)
            model.scalars.copy_(torch.tensor([0.1, 1.0, 0.0, 0.0, -1.0, -0.1, 1.0, 1.0]).expand(model.groups, 8))
            model.key.zero_()
            model.value.copy_(-(group[:, None] * model.hidden <= channel * model.groups).float())
            for readout in (model.readout, model.edge_readout, model.pair_readout):
                if readout is not None and model.dim == model.hidden:
                    readout.copy_(torch.eye(model.dim))
            for weight in (model.scalars, model.value, model.query, model.key):
                weight.div_(model.pace)
        for norm in model.norms.values():
            norm.reset_running_stats()
        if model.table is not None:
            model.table.copy_(nn.functional.normalize(noise(len(model.table), model.hidden), dim=0))
        if model.embed is not None:
            model.embed.weight.copy_(noise(*model.embed.weight.shape) / math.sqrt(model.embed.in_features))
            model.embed.bias.zero_()


def rows_of_seed(seed: int, rows: int, columns: int) -> Float[Tensor, "rows columns"]:
    """Draw Gaussian rows such that row i does not depend on the number of rows: torch fills blocks of numbers in order."""
    whole = -(-rows // 256) * 256
    return torch.randn(whole, columns, generator=torch.Generator().manual_seed(seed))[:rows]


def start_of(
    model: Any, pairs: Pairs, x: Tensor | None, generator: torch.Generator | None, draw: int
) -> Float[Tensor, "nodes columns"] | None:
    """Return Phi_0, or None for the diagonal start, which needs none."""
    graph = pairs.graph
    if model.phi0 == "diagonal":
        return None
    if model.embed is not None:
        if x is None or tuple(x.shape) != (graph.num_nodes, model.embed.in_features):
            got = "none" if x is None else tuple(x.shape)
            raise ValueError(f"expected x of shape ({graph.num_nodes}, {model.embed.in_features}), got {got}")
        return model.embed(x.to(model.scalars.dtype))
    place = graph.nodes.within
    if model.table is not None:
        return model.table.index_select(0, place % len(model.table))
    if generator is None and model.training:
        model.calls += 1
        rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        generator = torch.Generator().manual_seed(1_000_003 * int(model.calls) + 2_654_435_761 * rank + model.seed)
    if generator is not None:
        shape = graph.num_nodes, model.hidden
        return torch.randn(shape, generator=generator, device=generator.device).to(model.scalars)
    return rows_of_seed(model.seed + 7919 * draw, graph.width, model.hidden).to(model.scalars).index_select(0, place)
