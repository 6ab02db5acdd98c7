"""PyG transforms: the learned encoding frozen, and the fixed ones that the front door answers exactly.

All of them take ``data.edge_index`` with every edge in both directions, read ``data.edge_weight`` as conductances if it is
there, work without ``data.x``, and are usable as ``pre_transform``. ``attr_name`` says where the answer goes; with ``None``
it is appended to ``data.x`` (or to ``data.edge_attr``, for those that are about edges).

>>> from torch_geometric.data import Data
>>> path = Data(edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), num_nodes=3)
>>> AddResistancePE()(path).resistance_pe
tensor([[1.0000, 2.0000],
        [0.6667, 1.0000],
        [1.0000, 2.0000]])
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data.datapipes import functional_transform
from torch_geometric.transforms import BaseTransform
from torch_geometric.transforms.add_positional_encoding import add_node_attr

import ohmformer as ohm
from ohmformer.encoding.pe import LinearTransformerPE
from ohmformer.graph import Graph

SIGNS = ("none", "canonical", "random", "absolute")


def graph_of(data: Data) -> Graph:
    """The graph of PyG data, weights being conductances."""
    return Graph.from_pyg(data, conductance="edge_weight" if "edge_weight" in data else None).to("cpu", torch.float64)


def _matrix(graph: Graph, matrix: Tensor) -> Float[Tensor, "graphs width columns"]:
    """With a graph axis, also for a single graph."""
    return matrix if graph.batched else matrix[None]


def _diagonals(graph: Graph, matrix: Tensor) -> Float[Tensor, "nodes 1"]:
    diagonal = _matrix(graph, matrix).diagonal(dim1=1, dim2=2)
    return diagonal[graph.batch, _place(graph)][:, None]


def _place(graph: Graph) -> Tensor:
    return torch.arange(graph.num_nodes) - graph.graph_offsets[graph.batch]


@functional_transform("add_linear_transformer_pe")
class AddLinearTransformerPE(BaseTransform):
    """The encoding of a trained :class:`LinearTransformerPE`, or of one by name, frozen."""

    def __init__(self, model: LinearTransformerPE | str | Path, attr_name: str | None = "linear_transformer_pe") -> None:
        self.model = model if isinstance(model, LinearTransformerPE) else LinearTransformerPE.from_pretrained(model)
        self.model.eval().requires_grad_(False)
        self.attr_name = attr_name

    def forward(self, data: Data) -> Data:
        """Adds ``(nodes, dim)``."""
        weight, batch = (getattr(data, name, None) for name in ("edge_weight", "batch"))
        x = data.x if self.model.phi0 == "features" else None
        assert data.edge_index is not None
        with torch.no_grad():
            value = self.model(data.edge_index, weight, batch, data.num_nodes, x)
        return add_node_attr(data, value, self.attr_name)


@functional_transform("add_resistance_pe")
class AddResistancePE(BaseTransform):
    """The mean and the largest effective resistance from each node to the nodes of its component, itself included."""

    def __init__(self, attr_name: str | None = "resistance_pe") -> None:
        self.attr_name = attr_name

    def forward(self, data: Data) -> Data:
        """Adds ``(nodes, 2)``."""
        graph = graph_of(data)
        resistance = _matrix(graph, ohm.effective_resistance(graph, "all").value)[graph.batch, _place(graph)]
        resistance = torch.where(resistance.isfinite(), resistance, 0.0)
        size = graph.component_sizes[graph.components]
        most = resistance.amax(1) if resistance.shape[1] else resistance.new_zeros(len(resistance))
        return add_node_attr(data, torch.stack([resistance.sum(1) / size, most], dim=1).float(), self.attr_name)


@functional_transform("add_resistive_embedding_pe")
class AddResistiveEmbeddingPE(BaseTransform):
    """Coordinates whose squared distances are effective resistances on average, by ``dim`` seeded random projections."""

    def __init__(self, dim: int, attr_name: str | None = "resistive_embedding_pe", seed: int = 0) -> None:
        self.dim, self.attr_name, self.seed = dim, attr_name, seed

    def forward(self, data: Data) -> Data:
        """Adds ``(nodes, dim)``."""
        value = ohm.resistive_embedding(graph_of(data), self.dim, seed=self.seed).value
        return add_node_attr(data, value.float(), self.attr_name)


@functional_transform("add_heat_diagonal_pe")
class AddHeatDiagonalPE(BaseTransform):
    """How much of a unit of heat is still at its node after each of ``times``: the diagonal of ``exp(-s L)``."""

    def __init__(
        self, times: Sequence[int | float] = (0.25, 0.5, 1, 2, 4, 8), attr_name: str | None = "heat_diagonal_pe"
    ) -> None:
        self.times, self.attr_name = tuple(times), attr_name

    def forward(self, data: Data) -> Data:
        """Adds ``(nodes, times)``."""
        graph = graph_of(data)
        columns = [_diagonals(graph, ohm.heat_kernel(graph, float(s)).value) for s in self.times]
        return add_node_attr(data, torch.cat(columns, dim=1).float(), self.attr_name)


@functional_transform("add_laplacian_eigenvectors")
class AddEigenvectorPE(BaseTransform):
    """The ``k`` eigenvectors of the smallest nonzero eigenvalues of L, zeros where a graph has fewer.

    An eigenvector has no sign of its own; ``sign`` says what to do about it:

    - ``"canonical"``: the sum of cubes is not negative. Where it vanishes by symmetry the sign stays arbitrary.
    - ``"random"``: drawn per graph and column from ``seed`` and the number of calls so far.
    - ``"absolute"``: absolute values, which have no sign to choose.
    - ``"none"``: as LAPACK returns them.

    Eigenvectors of a repeated eigenvalue have no basis of their own either, which no policy mends.
    """

    def __init__(self, k: int, sign: str = "canonical", attr_name: str | None = "eigenvector_pe", seed: int = 0) -> None:
        if sign not in SIGNS:
            raise ValueError(f"expected sign among {', '.join(SIGNS)}, got {sign!r}")
        self.k, self.sign, self.attr_name, self.seed, self._calls = k, sign, attr_name, seed, 0

    def forward(self, data: Data) -> Data:
        """Adds ``(nodes, k)``."""
        graph = graph_of(data)
        vectors = _matrix(graph, ohm.eigenvectors(graph, self.k).value)
        if self.sign == "absolute":
            vectors = vectors.abs()
        elif self.sign == "canonical":
            vectors = vectors * torch.where(vectors.pow(3).sum(1, keepdim=True) < 0, -1.0, 1.0)
        elif self.sign == "random":
            draw = torch.Generator().manual_seed(1_000_003 * self.seed + self._calls)
            self._calls += 1
            vectors = vectors * (2.0 * torch.randint(0, 2, (len(vectors), 1, self.k), generator=draw) - 1)
        return add_node_attr(data, vectors[graph.batch, _place(graph)].float(), self.attr_name)


def _add_edge_attr(data: Data, value: Float[Tensor, "edges k"], attr_name: str | None) -> Data:
    value = value.to(data.edge_index.device if data.edge_index is not None else "cpu")
    if attr_name is None:
        old = data.edge_attr
        old = value.new_zeros(len(value), 0) if old is None else old.view(len(value), -1).to(value.dtype)
        data.edge_attr = torch.cat([old, value], dim=1)
    else:
        data[attr_name] = value
    return data


@functional_transform("add_edge_resistance")
class AddEdgeResistance(BaseTransform):
    """The effective resistance of every edge: 1 / weight for a bridge, less where current has other ways."""

    def __init__(self, attr_name: str | None = "edge_resistance") -> None:
        self.attr_name = attr_name

    def forward(self, data: Data) -> Data:
        """Adds ``(edges, 1)``, in the order of ``edge_index``."""
        assert data.edge_index is not None
        value = ohm.effective_resistance(graph_of(data), data.edge_index.t().cpu()).value
        return _add_edge_attr(data, value[:, None].float(), self.attr_name)


@functional_transform("add_edge_heat")
class AddEdgeHeat(BaseTransform):
    """The heat that has crossed every edge, ``exp(-s L)_uv``, after each of ``times``."""

    def __init__(self, times: Sequence[int | float] = (0.5, 2), attr_name: str | None = "edge_heat") -> None:
        self.times, self.attr_name = tuple(times), attr_name

    def forward(self, data: Data) -> Data:
        """Adds ``(edges, times)``, in the order of ``edge_index``."""
        assert data.edge_index is not None
        graph = graph_of(data)
        u, v = data.edge_index.cpu()
        place = _place(graph)
        at = graph.batch[u], place[u], place[v]
        columns = [_matrix(graph, ohm.heat_kernel(graph, float(s)).value)[at] for s in self.times]
        return _add_edge_attr(data, torch.stack(columns, dim=1).float(), self.attr_name)
