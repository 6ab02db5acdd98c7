"""Inference by the kernel ``ohm_encode``: several times faster on molecules, same answers.

It takes float32 on the CPU without gradients, Gram degrees, eight channels, any start but ``diagonal``; with B evolving,
batches whose graphs have up to 64 nodes. All else goes through torch as before.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer import native
from ohmformer.encoding.dynamics import Layer
from ohmformer.encoding.inputs import Pairs

LIMITS = native.KERNELS["ohm_encode"].limits


def fits(pairs: Pairs, start: Tensor, layers: Sequence[Layer], *, evolve: bool) -> bool:
    """Whether compiled code is there and does what is asked for."""
    leaves = start, pairs.weight, layers[0].value
    return (
        native.active() is not None
        and not pairs.l1
        and start.device.type == "cpu"
        and start.dtype == torch.float32
        and start.shape[1] == LIMITS["channels"]
        and (pairs.graph.width <= LIMITS["evolving_nodes"] or not evolve)
        and max(pairs.graph.width, len(pairs.u)) < 2**29
        and not (torch.is_grad_enabled() and any(x.requires_grad for x in leaves))
    )


def encode(
    pairs: Pairs, start: Float[Tensor, "nodes channels"], layers: Sequence[Layer], *, evolve: bool, unit_start: bool
) -> Float[Tensor, "nodes channels"]:
    """Phi after all layers, of every node."""
    graph, u, v, weight = pairs.graph, pairs.u, pairs.v, pairs.weight.detach()
    owner = graph.batch.index_select(0, u)
    if bool((owner.diff() < 0).any()):
        order = owner.argsort(stable=True)
        u, v, weight = (x.index_select(0, order) for x in (u, v, weight))
    edges = torch.bincount(owner, minlength=graph.num_graphs)
    first_node, first_edge = (torch.cat([x.new_zeros(1), x.cumsum(0)]) for x in (graph.graph_sizes, edges))
    weights = torch.stack([_row(layer) for layer in layers])
    phi = start.detach().clone(memory_format=torch.contiguous_format)
    arrays = [x.contiguous() for x in (first_node, first_edge, u, v, weight, weights)]
    most = int(edges.max()) if len(edges) else 0
    numbers = graph.num_graphs, graph.width, most, len(layers), evolve, unit_start
    native.call("ohm_encode", *numbers, *arrays, phi)
    return phi


def _row(layer: Layer) -> Float[Tensor, " numbers"]:
    """A layer in the order of the C struct."""
    scalars = layer.b_skip, layer.b_gram, layer.b_phi, layer.skip, layer.gram, layer.phi, 0, 0
    return torch.cat([layer.value.detach(), layer.product.detach(), torch.tensor([float(x) for x in scalars])])
