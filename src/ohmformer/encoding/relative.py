"""Encodings of all pairs of nodes as a PyG transform: resistances, heat, random walks, or a trained model.

A graph of n nodes gets ``n * n`` rows, for pairs (0, 0), (0, 1), ..., (n - 1, n - 1), which PyG collates without options;
:func:`dense_pairs` arranges the rows of a batch for attention.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

import ohmformer as ohm
from ohmformer.encoding.inputs import SmallGraphs, read_pairs
from ohmformer.encoding.pe import LinearTransformerPE
from ohmformer.encoding.pyg import Data, functional_transform
from ohmformer.encoding.spectra import every_pair
from ohmformer.encoding.transforms import Encoding, conductances_of, describe_model, graph_of, heat_at, resistances_of

KINDS = ("resistance", "heat", "walks", "learned")


@functional_transform("add_relative_encoding")
class AddRelativeEncoding(Encoding):
    """Add one row for every pair of nodes of a graph.

    Args:
        kind: ``"resistance"``, ``1 / (1 + R_uv)``, 0 between components; ``"heat"``, ``exp(-s L)_uv`` for each of ``times``;
            ``"walks"``, ``(D^-1 A)^k_uv`` for k = 0 .. ``steps`` - 1 (RRWP); ``"learned"``, the current ``model``.
        times: of the heat kernel.
        steps: powers of the walk.
        model: a :class:`LinearTransformerPE` with ``read="pairs"``, which is copied.
        attr_name: the attribute that stores the rows.

    >>> path = Data(edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), num_nodes=3)
    >>> AddRelativeEncoding("resistance")(path).relative_encoding.view(3, 3)
    tensor([[1.0000, 0.5000, 0.3333],
            [0.5000, 1.0000, 0.5000],
            [0.3333, 0.5000, 1.0000]])
    """

    def __init__(
        self,
        kind: str,
        *,
        times: Sequence[int | float] = (0.5, 2),
        steps: int = 16,
        model: LinearTransformerPE | None = None,
        attr_name: str = "relative_encoding",
    ) -> None:
        if kind not in KINDS:
            raise ValueError(f"expected kind among {', '.join(KINDS)}, got {kind!r}")
        if steps < 1:
            raise ValueError(f"expected steps >= 1, got {steps}")
        if (kind == "learned") != (model is not None) or (model is not None and model.read != "pairs"):
            got = "none" if model is None else f"one with read={model.read!r}"
            raise ValueError(f"expected model= with read='pairs' for kind='learned' and only there, got {got} for {kind!r}")
        self.kind, self.times, self.steps, self.attr_name = kind, tuple(times), steps, attr_name
        self.model = None if model is None else copy.deepcopy(model).eval().requires_grad_(False)

    def encode(self, data: Data) -> Float[Tensor, "pairs k"]:
        """Return the rows of all pairs, graph by graph."""
        if self.kind == "resistance":
            small = resistances_of(data)
            resistance = ohm.effective_resistance(graph_of(data), "all").value.entries if small is None else small.flatten()
            return (1 / (1 + resistance))[:, None]
        if self.kind == "heat":
            batch = data.get("batch", None)
            batch = torch.zeros(data.num_nodes or 0, dtype=torch.long) if batch is None else batch.cpu()
            sizes = torch.bincount(batch)
            u, v, _, _ = every_pair(torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]), batch)
            return heat_at(data, self.times, "combinatorial", u, v)
        if self.model is not None:
            with torch.no_grad():
                found = self.model(data)
            batch = data.get("batch", None)
            sizes = torch.tensor([found.shape[1]], device=found.device) if batch is None else torch.bincount(batch)
            real = torch.arange(found.shape[1], device=found.device) < sizes[:, None]
            return found[real[:, :, None] & real[:, None]]
        return _walks(data, self.steps)

    def __repr__(self) -> str:
        """Return the arguments, with a model as its shape and a checksum of its weights."""
        used = {"heat": f", times={self.times}", "walks": f", steps={self.steps}"}.get(self.kind, "")
        model = "" if self.model is None else f", {describe_model(self.model)}"
        return f"{type(self).__name__}({self.kind!r}{used}{model}, attr_name={self.attr_name!r})"


def _walks(data: Data, steps: int) -> Float[Tensor, "pairs steps"]:
    """Return ``(D^-1 A)^k`` of all pairs for k below ``steps``; rows of isolated nodes in ``D^-1 A`` are zero."""
    small = conductances_of(data)
    if small is not None:
        walk = small / torch.where((degree := small.sum(1, keepdim=True)) > 0, degree, 1.0)
        powers = [torch.eye(len(small), dtype=small.dtype)]
        while len(powers) < steps:
            powers.append(powers[-1] @ walk)
        return torch.stack(powers, dim=2).flatten(0, 1)
    weight, batch = data.get("edge_weight", None), data.get("batch", None)
    pairs = read_pairs(data.edge_index, weight, batch, data.num_nodes)
    graphs, degree = SmallGraphs.of(pairs), pairs.degree.sqrt()
    columns = [torch.zeros(steps, 0, dtype=torch.float64, device=degree.device)]
    for block in graphs.layout.blocks:
        lonely = graphs.on_nodes((degree == 0).double(), block)
        real = (block.node >= 0).double()
        scaled = torch.diag_embed(real - lonely) - block.of(graphs.buffer)  # D^-1/2 A D^-1/2
        root = graphs.on_nodes(torch.where(degree > 0, degree, 1.0), block).clamp(min=1e-300)
        walk = torch.where(real[:, :, None] > 0, scaled * root[:, None] / root[:, :, None], 0.0)
        powers = [torch.diag_embed(real)]
        while len(powers) < steps:
            powers.append(powers[-1] @ walk)
        columns.append(torch.stack(powers).flatten(1))
    u, v, _, _ = every_pair(pairs.graph.nodes.start, pairs.graph.batch)
    return torch.cat(columns, dim=1)[:, graphs.layout.index(u, v)].mT


def dense_pairs(
    rows: Float[Tensor, "pairs k"], batch: Int[Tensor, " nodes"], width: int | None = None, graphs: int = 0
) -> Float[Tensor, "graphs width width k"]:
    """Arrange the rows of all pairs of a batch as ``(graphs, width, width, k)``, with zeros on padding.

    The number of ``graphs`` is only needed if the last ones have no nodes.

    >>> dense_pairs(torch.arange(5.0)[:, None], torch.tensor([0, 1, 1]))[:, :, :, 0]
    tensor([[[0., 0.],
             [0., 0.]],
    <BLANKLINE>
            [[1., 2.],
             [3., 4.]]])
    """
    sizes = torch.bincount(batch, minlength=graphs)
    if int(sizes.square().sum()) != len(rows):
        raise ValueError(f"expected a row for each of {int(sizes.square().sum())} pairs of nodes, got {len(rows)}")
    start = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    _, _, place, shape = every_pair(start, batch, width, len(rows))
    dense = rows.new_zeros(shape[0] * shape[1] * shape[2], rows.shape[1]).index_copy(0, place, rows)
    return dense.view(*shape, rows.shape[1])
