"""Inference in compiled code, where the machine has a C compiler: several times faster on molecules, same answers.

>>> from ohmformer.encoding import native
>>> native.enable()  # doctest: +SKIP

From then on what ``layers.c`` can do goes through it: float32 on the CPU without gradients, Gram degrees, eight channels,
any start but ``diagonal``; with B evolving, batches whose graphs have up to 64 nodes. All else is as before. Nothing is
compiled unless asked for.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer.encoding.dynamics import Layer
from ohmformer.encoding.inputs import Pairs

SOURCE = Path(__file__).with_name("layers.c")
OPTIONS = ("-O3", "-march=native", "-fno-math-errno", "-ffp-contract=fast", "-shared", "-fPIC")
CHANNELS, WIDTH = 8, 64
"""What the source is written for."""
_library: ctypes.CDLL | None = None


def enable() -> None:
    """Use compiled code from now on; an OSError says in a sentence why it cannot be had."""
    global _library
    _library = _compiled()


def disable() -> None:
    """Go back to torch."""
    global _library
    _library = None


@contextmanager
def used(wanted: bool = True) -> Iterator[None]:
    """Compiled code inside the ``with``, or torch, and what was before after it."""
    global _library
    before = _library
    _library = _compiled() if wanted else None
    try:
        yield
    finally:
        _library = before


@cache
def _compiled() -> ctypes.CDLL:
    """The library, made once a process, in about a second."""
    compiler = os.environ.get("CC") or shutil.which("cc")
    if not compiler:
        raise OSError("expected a C compiler, as cc or in $CC, found none")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "layers.so"
        try:
            subprocess.run([compiler, *OPTIONS, "-o", library, SOURCE, "-lm"], check=True, capture_output=True, text=True)
        except subprocess.CalledProcessError as error:
            raise OSError(f"expected {compiler} to compile {SOURCE.name}, it says: {error.stderr.strip()[:200]}") from error
        loaded = ctypes.CDLL(str(library))
    loaded.ohm_encode.argtypes = [ctypes.c_int64] * 6 + [ctypes.c_void_p] * 7
    return loaded


def fits(pairs: Pairs, start: Tensor, layers: Sequence[Layer], *, evolve: bool) -> bool:
    """Whether compiled code is there and does what is asked for."""
    leaves = start, pairs.weight, layers[0].value
    return (
        _library is not None
        and not pairs.l1
        and start.device.type == "cpu"
        and start.dtype == torch.float32
        and start.shape[1] == CHANNELS
        and (pairs.graph.width <= WIDTH or not evolve)
        and max(pairs.graph.width, len(pairs.u)) < 2**29
        and not (torch.is_grad_enabled() and any(x.requires_grad for x in leaves))
    )


def encode(
    pairs: Pairs, start: Float[Tensor, "nodes channels"], layers: Sequence[Layer], *, evolve: bool, unit_start: bool
) -> Float[Tensor, "nodes channels"]:
    """Phi after all layers, of every node."""
    assert _library is not None
    graph, u, v, weight = pairs.graph, pairs.u, pairs.v, pairs.weight.detach()
    owner = graph.batch.index_select(0, u)
    if bool((owner.diff() < 0).any()):
        order = owner.argsort(stable=True)
        u, v, weight = (x.index_select(0, order) for x in (u, v, weight))
    edges = torch.bincount(owner, minlength=graph.num_graphs)
    first_node, first_edge = (torch.cat([x.new_zeros(1), x.cumsum(0)]) for x in (graph.graph_sizes, edges))
    weights = torch.stack([_row(layer) for layer in layers])
    phi = start.detach().clone(memory_format=torch.contiguous_format)
    arrays = [*(x.contiguous() for x in (first_node, first_edge, u, v, weight, weights)), phi]
    most = int(edges.max()) if len(edges) else 0
    numbers = graph.num_graphs, graph.width, most, len(layers), evolve, unit_start
    if _library.ohm_encode(*numbers, *(x.data_ptr() for x in arrays)):
        raise MemoryError(f"expected memory for a graph of {graph.width} nodes and {most} edges, there is none")
    return phi


def _row(layer: Layer) -> Float[Tensor, " numbers"]:
    """A layer in the order of the C struct."""
    scalars = layer.b_skip, layer.b_gram, layer.b_phi, layer.skip, layer.gram, layer.phi, 0, 0
    return torch.cat([layer.value.detach(), layer.product.detach(), torch.tensor([float(x) for x in scalars])])
