"""Run the encoding's layers by the native library, and say where it can: in one place for both of its kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from ohmformer import native
from ohmformer.encoding.dynamics import Layer
from ohmformer.encoding.inputs import Pairs
from ohmformer.graph.ragged import Spans


def supports(kernel: str, arrays: Iterable[Tensor], constants: Iterable[Tensor], **sizes: int) -> bool:
    """Return whether a native library is active and its kernel supports this input.

    Args:
        kernel: its name in ``native.KERNELS``, which holds its limits.
        arrays: must all be float32 on the CPU.
        constants: must not require gradients: the kernel computes none for them.
        sizes: must not exceed the limits of the same names.
    """
    return (
        not torch.compiler.is_compiling()
        and native.active() is not None
        and all(x.dtype == torch.float32 and x.device.type == "cpu" for x in arrays)
        and not (torch.is_grad_enabled() and any(x.requires_grad for x in constants))
        and all(sizes[name] <= most for name, most in native.KERNELS[kernel].limits.items())
    )


def supports_layers(pairs: Pairs, start: Float[Tensor, "nodes channels"], layers: Sequence[Layer], *, evolve: bool) -> bool:
    """Return whether :func:`run_layers` supports this input: Gram degrees, no gradients, within the kernel's limits."""
    arrays = start, pairs.weight, layers[0].value
    sizes = {
        "channels": start.shape[1], "evolving_nodes": pairs.graph.width if evolve else 0, "nodes": pairs.graph.width,
        "edges": len(pairs.weight),
    }  # fmt: skip
    return not (pairs.l1 or pairs.combinatorial) and supports("ohm_encode", arrays, arrays, **sizes)


def run_layers(
    pairs: Pairs, start: Float[Tensor, "nodes channels"], layers: Sequence[Layer], *, evolve: bool, normalize_start: bool
) -> Float[Tensor, "nodes channels"]:
    """Return Phi after all layers, computed graph by graph (``layers.c``), so that a molecule stays in the L1 cache."""
    graph, u, v, weight = pairs.graph, pairs.u, pairs.v, pairs.weight.detach()
    owner = graph.batch.index_select(0, u)
    if bool((owner.diff() < 0).any()):
        order = owner.argsort(stable=True)
        u, v, weight = (x.index_select(0, order) for x in (u, v, weight))
    edges, nodes = Spans.of(torch.bincount(owner, minlength=graph.num_graphs)), Spans.of(graph.graph_sizes)
    most_edges = int(edges.counts.max()) if len(edges) else 0
    channels = start.shape[1]
    missing = native.KERNELS["ohm_encode"].limits["channels"] - channels  # channels with zero weights stay zero
    weights = torch.stack([_numbers(layer, missing) for layer in layers])
    phi = pad(start.detach(), (0, missing)).clone(memory_format=torch.contiguous_format)
    numbers = graph.num_graphs, graph.width, most_edges, len(layers), int(evolve), int(normalize_start)
    native.call("ohm_encode", *numbers, *(x.contiguous() for x in (nodes.start, edges.start, u, v, weight, weights)), phi)
    return phi[:, :channels]


def _numbers(layer: Layer, missing: int) -> Float[Tensor, " numbers"]:
    """Return the weights of a layer in the order of the C struct, padded by zeros for ``missing`` channels."""
    scalars = layer.b_skip, layer.b_gram, layer.b_phi, layer.skip, layer.gram, layer.phi, 0, 0
    of_channels = (pad(x.detach(), (0, missing)) for x in (layer.value, layer.product))
    return torch.cat([*of_channels, torch.tensor([float(x) for x in scalars])])
