"""PyG transforms: a trained encoding, frozen, and fixed encodings that are computed exactly.

All transforms accept ``data.edge_index`` with every edge in both directions or every edge once, use ``data.edge_weight`` as
conductances if present, do not need ``data.x``, and are usable as ``pre_transform``. The result is stored as ``attr_name``;
with ``None`` it is appended to ``data.x`` (or to ``data.edge_attr`` for edge encodings). Fixed encodings are computed on the
CPU in float64 and returned in float32 on the device of ``edge_index``. ``repr`` shows all arguments, from which PyG tells
whether a processed dataset matches its ``pre_transform``.

>>> from torch_geometric.data import Data
>>> path = Data(edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), num_nodes=3)
>>> AddResistancePE()(path).resistance_pe
tensor([[1.0000, 2.0000],
        [0.6667, 1.0000],
        [1.0000, 2.0000]])
>>> AddEigenvectorPE(4)
AddEigenvectorPE(k=4, sign='canonical', attr_name='eigenvector_pe', seed=0, laplacian='combinatorial')
"""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

import ohmformer as ohm
from ohmformer import native
from ohmformer.encoding.arguments import check_choices
from ohmformer.encoding.engines import MOST_NODES, SPECTRA_UP_TO
from ohmformer.encoding.inputs import KEPT, plain_index, read_pairs
from ohmformer.encoding.pe import LinearTransformerPE
from ohmformer.encoding.pyg import BaseTransform, Data, functional_transform
from ohmformer.encoding.small_graphs import conductances, spectrum
from ohmformer.encoding.spectra import Spectra, fingerprint
from ohmformer.graph import Graph

SIGNS = ("none", "canonical", "random", "absolute")


def graph_of(data: Data) -> Graph:
    """Convert PyG data to a graph in float64 on the CPU, with weights as conductances; one graph becomes a batch of one."""
    graph = Graph.from_pyg(data, conductance="edge_weight" if "edge_weight" in data else None)
    return replace(graph.to("cpu", torch.float64), batched=True)


def conductances_of(data: Data) -> Float[Tensor, "nodes nodes"] | None:
    """Return the conductance matrix of one small graph; None for batches and for input the kernel does not support."""
    if data.get("batch", None) is not None:
        return None
    return conductances(data.edge_index, data.get("edge_weight", None), data.num_nodes)


def resistances_of(data: Data) -> Float[Tensor, "nodes nodes"] | None:
    """Return the effective resistances of all node pairs of one small graph, infinite between components; or None."""
    weight = data.get("edge_weight", None)
    matrix = None if weight is not None and not bool((weight > 0).all()) else conductances_of(data)
    if matrix is None:
        return None
    n, found = len(matrix), torch.empty_like(matrix)
    native.call("ohm_pairwise", 1, torch.tensor([n]), torch.zeros(1, dtype=torch.long), matrix, found)
    return found


def spectra_of(data: Data, laplacian: str) -> tuple[Spectra, Float[Tensor, " nodes"]]:
    """Return the spectra of L or N of all graphs on the CPU with float32 vectors, and their eigenvalues in float64."""
    assert data.edge_index is not None
    matrix = conductances_of(data)
    if matrix is not None:
        return _spectra_of_one(matrix, laplacian)
    weight, batch = (None if x is None else x.cpu() for x in (data.get("edge_weight", None), data.get("batch", None)))
    combinatorial = laplacian == "combinatorial"
    pairs = read_pairs(data.edge_index.cpu(), weight, batch, data.num_nodes, combinatorial=combinatorial)
    if pairs.graph.width > MOST_NODES:
        raise ValueError(f"expected graphs of at most {MOST_NODES} nodes, got one of {pairs.graph.width}")
    spectra, unit = Spectra.of(pairs, torch.float32), pairs.unit
    unit = unit.index_select(0, spectra.owner) if isinstance(unit, Tensor) else unit
    return spectra, spectra.values.double() * (pairs.degree * unit if combinatorial else 1.0)


def _spectra_of_one(conductance: Float[Tensor, "nodes nodes"], laplacian: str) -> tuple[Spectra, Float[Tensor, " nodes"]]:
    """Return :func:`spectra_of` for one small graph."""
    values, vectors, unit = spectrum(conductance, laplacian)
    owner, ends = torch.zeros(len(values), dtype=torch.long), torch.tensor([0, len(values)])
    return Spectra.arrange(values, vectors, ends, owner), values.double() * unit


def heat_at(data: Data, times: Sequence[int | float], laplacian: str, u: Tensor, v: Tensor) -> Float[Tensor, "rows times"]:
    """Return ``exp(-s L)_uv``, or ``exp(-s N)_uv``, for each s of ``times``."""
    if not all(0 < s < float("inf") for s in times):
        raise ValueError(f"the heat kernel needs s > 0, got {[*times]}")
    spectra, values = spectra_of(data, laplacian)
    return spectra.read(torch.exp(-values[:, None] * torch.tensor(times, dtype=torch.float64)).float(), u, v)


def with_plain_index(data: Any) -> Any:
    """Return the data, or a shallow copy whose ``edge_index`` is a plain tensor of int64."""
    index = plain_index(getattr(data, "edge_index", data))
    if index is data.edge_index:
        return data
    data = copy.copy(data)
    data.edge_index = index
    return data


class Encoding(BaseTransform):
    """Base class of transforms that compute one tensor; ``repr`` shows all arguments."""

    attr_name: str | None
    about_edges = False
    """Whether there is one row per edge of ``edge_index``, rather than one per node."""
    dtype: torch.dtype | None = torch.float32
    """The dtype that the result is converted to; None keeps it."""

    def encode(self, data: Data) -> Float[Tensor, "rows k"]:
        """Return the tensor to add to the data."""
        raise NotImplementedError

    def forward(self, data: Any) -> Any:
        """Add the encoding to the data."""
        plain = with_plain_index(data)
        value = self.encode(plain).to(plain.edge_index.device, self.dtype)
        if self.attr_name is not None:
            data[self.attr_name] = value
            return data
        name = "edge_attr" if self.about_edges else "x"
        old = data.get(name, None)
        if old is not None:
            value = torch.cat([old[:, None] if old.ndim == 1 else old, value], dim=1)
        data[name] = value
        return data

    def __repr__(self) -> str:
        arguments = (
            f"{name}={getattr(self, name)!r}" for name in inspect.signature(type(self).__init__).parameters if name != "self"
        )
        return f"{type(self).__name__}({', '.join(arguments)})"


@functional_transform("add_linear_transformer_pe")
class AddLinearTransformerPE(Encoding):
    """Add the encoding of a :class:`LinearTransformerPE`, given as a model with its current weights or by name.

    The model is copied: the given one is neither frozen nor put into evaluation mode, and training it further does not
    change the transform.
    """

    dtype = None

    def __init__(self, model: LinearTransformerPE | str | Path, attr_name: str | None = "linear_transformer_pe") -> None:
        given = model if isinstance(model, LinearTransformerPE) else LinearTransformerPE.from_pretrained(model)
        self.model = copy.deepcopy(given).eval().requires_grad_(False)
        self.attr_name = attr_name

    def encode(self, data: Data) -> Float[Tensor, "nodes dim"]:
        """Return ``(nodes, dim)``."""
        with torch.no_grad():
            return self.model(data)

    def __repr__(self) -> str:
        """Return the model's shape and a checksum of its weights, which distinguishes two trained models."""
        return f"{type(self).__name__}({describe_model(self.model)}, attr_name={self.attr_name!r})"


def describe_model(model: LinearTransformerPE) -> str:
    """Return a model's shape and a checksum of its weights."""
    found = hashlib.sha256()
    for name, x in sorted(model.state_dict().items()):
        found.update(name.encode() + x.cpu().contiguous().numpy().tobytes())
    return f"LinearTransformerPE({model.extra_repr()}), weights={found.hexdigest()[:16]}"


@functional_transform("add_spectrum")
class AddSpectrum(BaseTransform):
    """Store the spectrum of every graph in the data, so that ``LinearTransformerPE`` need not compute it in every step.

    For a graph of n nodes ``spectrum_values`` holds n numbers, ``spectrum_vectors`` n x n and ``spectrum_check`` one, which
    detects spectra of other edges or weights. PyG collates all three. Intended as ``pre_transform``.
    """

    def __init__(self, laplacian: str = "normalized") -> None:
        check_choices(laplacian=laplacian)
        self.laplacian = laplacian

    def forward(self, data: Any) -> Any:
        """Add the spectrum to the data."""
        plain = with_plain_index(data)
        weight, matrix = plain.get("edge_weight", None), conductances_of(plain)
        if matrix is not None:
            spectra, _ = _spectra_of_one(matrix, self.laplacian)
        else:
            pairs = read_pairs(
                plain.edge_index, weight, plain.get("batch", None), plain.num_nodes,
                combinatorial=self.laplacian == "combinatorial", graphs=len(plain.ptr) - 1 if "ptr" in plain else None,
            )  # fmt: skip
            spectra = Spectra.of(pairs, torch.float32)
        check = fingerprint(plain.edge_index, weight, spectra.first, spectra.owner, len(spectra.start) - 1, self.laplacian)
        for name, value in zip(KEPT, (spectra.values, spectra.vectors, check), strict=True):
            data[name] = value
        return data

    def __repr__(self) -> str:
        return f"{type(self).__name__}(laplacian={self.laplacian!r})"


@functional_transform("add_resistance_pe")
class AddResistancePE(Encoding):
    """Add the mean and the largest effective resistance from each node to the nodes of its component, itself included."""

    def __init__(self, attr_name: str | None = "resistance_pe") -> None:
        self.attr_name = attr_name

    def encode(self, data: Data) -> Float[Tensor, "nodes 2"]:
        """Return ``(nodes, 2)``."""
        small = resistances_of(data)
        if small is not None:
            here = small.isfinite()
            resistance = torch.where(here, small, 0.0)
            return torch.stack([resistance.sum(1) / here.sum(1), resistance.amax(1)], dim=1)
        graph = graph_of(data)
        pairs = ohm.effective_resistance(graph, "all").value
        resistance = torch.where(pairs.entries.isfinite(), pairs.entries, 0.0)
        node, none = pairs.rows.owner, resistance.new_zeros(graph.num_nodes)
        mean = none.index_add(0, node, resistance) / graph.component_sizes[graph.components]
        return torch.stack([mean, none.scatter_reduce(0, node, resistance, "amax")], dim=1)


@functional_transform("add_resistive_embedding_pe")
class AddResistiveEmbeddingPE(Encoding):
    """Add coordinates whose expected squared distances are effective resistances, by ``dim`` seeded random projections."""

    def __init__(self, dim: int, attr_name: str | None = "resistive_embedding_pe", seed: int = 0) -> None:
        self.dim, self.attr_name, self.seed = dim, attr_name, seed

    def encode(self, data: Data) -> Float[Tensor, "nodes dim"]:
        """Return ``(nodes, dim)``."""
        return ohm.resistive_embedding(graph_of(data), self.dim, seed=self.seed).value


@functional_transform("add_heat_diagonal_pe")
class AddHeatDiagonalPE(Encoding):
    """Add the diagonal of ``exp(-s L)`` for each s of ``times``: the part of a unit of heat still at its node after time s.

    With ``laplacian="normalized"`` that of ``exp(-s N)``, ``N = D^-1/2 L D^-1/2``.
    """

    def __init__(
        self,
        times: Sequence[int | float] = (0.25, 0.5, 1, 2, 4, 8),
        attr_name: str | None = "heat_diagonal_pe",
        laplacian: str = "combinatorial",
    ) -> None:
        check_choices(laplacian=laplacian)
        self.times, self.attr_name, self.laplacian = tuple(times), attr_name, laplacian

    def encode(self, data: Data) -> Float[Tensor, "nodes times"]:
        """Return ``(nodes, times)``."""
        node = torch.arange(data.num_nodes or 0)
        return heat_at(data, self.times, self.laplacian, node, node)


@functional_transform("add_laplacian_eigenvectors")
class AddEigenvectorPE(Encoding):
    """Add the ``k`` eigenvectors of the smallest nonzero eigenvalues of L, or N, zeros where a graph has fewer.

    The sign of an eigenvector is arbitrary; ``sign`` says how to choose it:

    - ``"canonical"``: the sum of cubes is not negative. Where it vanishes by symmetry the sign remains arbitrary.
    - ``"random"``: drawn per graph and column from ``seed`` and the number of calls so far.
    - ``"absolute"``: absolute values, which have no sign to choose.
    - ``"none"``: as LAPACK returns them.

    The basis of the eigenspace of a repeated eigenvalue is arbitrary too, under every choice of ``sign``.
    """

    def __init__(
        self,
        k: int,
        sign: str = "canonical",
        attr_name: str | None = "eigenvector_pe",
        seed: int = 0,
        laplacian: str = "combinatorial",
    ) -> None:
        check_choices(laplacian=laplacian)
        self.laplacian = laplacian
        if sign not in SIGNS:
            raise ValueError(f"expected sign among {', '.join(SIGNS)}, got {sign!r}")
        self.k, self.sign, self.attr_name, self.seed, self._calls = k, sign, attr_name, seed, 0

    def encode(self, data: Data) -> Float[Tensor, "nodes k"]:
        """Return ``(nodes, k)``."""
        batch = data.get("batch", None)
        width = (data.num_nodes or 0) if batch is None else int(torch.bincount(batch).max()) if len(batch) else 0
        if "edge_weight" in data or width > SPECTRA_UP_TO:
            graph = graph_of(data)
            vectors, owner, graphs = (
                ohm.eigenvectors(graph, self.k, laplacian=self.laplacian).value,
                graph.batch,
                graph.num_graphs,
            )
        else:
            vectors, owner, graphs = self._smallest(data)
        if self.sign == "absolute":
            return vectors.abs()
        if self.sign == "canonical":
            cubes = vectors.new_zeros(graphs, self.k).index_add(0, owner, vectors.pow(3))
            return vectors * torch.where(cubes < 0, -1.0, 1.0)[owner]
        if self.sign == "random":
            draw = torch.Generator().manual_seed(1_000_003 * self.seed + self._calls)
            self._calls += 1
            return vectors * (2.0 * torch.randint(0, 2, (graphs, self.k), generator=draw) - 1)[owner]
        return vectors

    def _smallest(self, data: Data) -> tuple[Float[Tensor, "nodes k"], Tensor, int]:
        """Return eigenvectors of small unweighted graphs, the graph of every node, and the number of graphs.

        Without weights a nonzero eigenvalue is at least ``1 / nodes^3``, far above the rounding errors of zero eigenvalues.
        """
        spectra, values = spectra_of(data, self.laplacian)
        zero = (values < 0.1 / spectra.size.double() ** 3).long()
        null = zero.new_zeros(len(spectra.start) - 1).index_add(0, spectra.owner, zero).index_select(0, spectra.owner)
        column = null[:, None] + torch.arange(self.k)
        real = column < spectra.size[:, None]
        place = spectra.offset[:, None] + torch.where(real, column, 0)
        return torch.where(real, spectra.vectors[place], 0.0), spectra.owner, len(spectra.start) - 1


@functional_transform("add_edge_resistance")
class AddEdgeResistance(Encoding):
    """Add the effective resistance of every edge: 1 / weight for a bridge, less if there are parallel paths."""

    about_edges = True

    def __init__(self, attr_name: str | None = "edge_resistance") -> None:
        self.attr_name = attr_name

    def encode(self, data: Data) -> Float[Tensor, "edges 1"]:
        """Return ``(edges, 1)``, in the order of ``edge_index``."""
        assert data.edge_index is not None
        small = resistances_of(data)
        if small is not None:
            return small[data.edge_index[0], data.edge_index[1]][:, None]
        return ohm.effective_resistance(graph_of(data), data.edge_index.t().cpu()).value[:, None]


@functional_transform("add_edge_heat")
class AddEdgeHeat(Encoding):
    """Add the heat kernel entry ``exp(-s L)_uv`` of every edge for each s of ``times``."""

    about_edges = True

    def __init__(self, times: Sequence[int | float] = (0.5, 2), attr_name: str | None = "edge_heat") -> None:
        self.times, self.attr_name = tuple(times), attr_name

    def encode(self, data: Data) -> Float[Tensor, "edges times"]:
        """Return ``(edges, times)``, in the order of ``edge_index``."""
        assert data.edge_index is not None
        return heat_at(data, self.times, "combinatorial", *data.edge_index.cpu())
