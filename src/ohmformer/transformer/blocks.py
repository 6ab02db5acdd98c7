"""Named row blocks: how weights are written down before they are laid into a model.

The paper's token matrix stacks rows ``Z = [B^T; Psi^T; Phi^T]``, and its weight matrices are nonzero in a few blocks
only. Here a block has a name and a width, and a weight matrix is a dictionary from ``(target, source)`` to a coefficient, so
no construction needs index ranges. The first block of the paper is always called ``"incidence"``.

>>> program = Program(
...     blocks={"incidence": "edges", "demand": "demands", "potential": "demands"},
...     layers=(
...         Layer(
...             heads=(Head(value={("potential", "potential"): -0.1}, **similarity("incidence")),),
...             skip={("potential", "demand"): 0.1},
...         ),
...     ),
... )
>>> layout = program.layout(nodes=5, edges=4, demands=2)
>>> layout["potential"]
slice(6, 8, None)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer.transformer.normalize import NONE, Normalization

INCIDENCE = "incidence"
"""The name of the block that holds rows of B."""

Width = str | int
"""``"edges"``, ``"nodes"``, ``"demands"``, or a number."""
Coefficient = int | float | tuple[float, ...] | Tensor
"""A multiple of the identity, a diagonal, or a full matrix (target x source)."""
Blocks = Mapping[tuple[str, str], Coefficient]
"""A weight matrix by its nonzero blocks: a mapping from ``(target, source)`` to coefficient."""


@dataclass(frozen=True, eq=False)
class Head:
    """One attention head: ``W^V``, ``W^Q`` and ``W^K`` by their nonzero blocks."""

    value: Blocks
    query: Blocks
    key: Blocks


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer, ``Z <- Z + sum over heads Attn(Z) + W^R Z``; the same object used twice in a program shares its weights."""

    heads: tuple[Head, ...] = ()
    skip: Blocks = field(default_factory=dict)


def map_layer(layer: Layer, change: Callable[[Any], Any]) -> Layer:
    """Apply ``change`` to every coefficient of a layer."""
    heads = tuple(Head(*(_map_blocks(m, change) for m in (h.value, h.query, h.key))) for h in layer.heads)
    return Layer(heads, _map_blocks(layer.skip, change))


def _map_blocks(blocks: Blocks, change: Callable[[Any], Any]) -> Blocks:
    return {pair: change(coefficient) for pair, coefficient in blocks.items()}


def similarity(left: str, right: str | None = None, *, by: Coefficient = 1.0) -> dict[str, Blocks]:
    """Return query and key of a head with similarity ``by * X_left X_right^T``; ``right`` is ``left`` by default.

    Only their product matters, so the key carries the coefficient: ``S = (X W_K^T) (X W_Q^T)^T``.
    """
    right = left if right is None else right
    return {"query": {(left, right): 1.0}, "key": {(left, left): by}}


@dataclass(frozen=True)
class Layout:
    """The position of each named block among the features of a token."""

    widths: dict[str, int]

    def __getitem__(self, name: str) -> slice:
        if name not in self.widths:
            raise KeyError(f"expected one of the blocks {', '.join(self.widths)}, got {name!r}")
        start = 0
        for other, width in self.widths.items():
            if other == name:
                break
            start += width
        return slice(start, start + self.widths[name])

    @property
    def total(self) -> int:
        """Number of features of a token."""
        return sum(self.widths.values())

    def pack(self, blocks: Mapping[str, Float[Tensor, "*graphs nodes _"]]) -> Float[Tensor, "*graphs nodes features"]:
        """Concatenate named blocks into tokens; missing blocks are zero."""
        self.check(blocks)
        like = next(iter(blocks.values()))
        return torch.cat(
            [blocks[n] if n in blocks else like.new_zeros(*like.shape[:-1], w) for n, w in self.widths.items()], dim=-1
        )

    def unpack(self, tokens: Float[Tensor, "*graphs nodes features"]) -> dict[str, Float[Tensor, "*graphs nodes _"]]:
        """Split tokens into their named blocks."""
        return dict(zip(self.widths, tokens.split(list(self.widths.values()), dim=-1), strict=True))

    def check(self, blocks: Mapping[str, Tensor]) -> None:
        """Raise a ValueError unless the given blocks fit this layout."""
        for name, x in blocks.items():
            if name not in self.widths:
                raise ValueError(f"expected blocks among {', '.join(self.widths)}, got {name!r}")
            if x.shape[-1] != self.widths[name]:
                raise ValueError(f"expected block {name!r} of width {self.widths[name]}, got {x.shape[-1]}")

    def matrix(self, blocks: Blocks) -> Float[Tensor, "features features"]:
        """Build a full weight matrix, in float64."""
        out = torch.zeros(self.total, self.total, dtype=torch.float64)
        for (target, source), coefficient in blocks.items():
            rows, columns = self[target], self[source]
            out[rows, columns] = as_matrix(coefficient, self.widths[target], self.widths[source])
        return out

    def matrices(self, several: Sequence[Blocks]) -> Float[Tensor, "heads features features"]:
        """Build the full weight matrices of several heads, in float64."""
        if not several:
            return torch.zeros(0, self.total, self.total, dtype=torch.float64)
        return torch.stack([self.matrix(blocks) for blocks in several])


def as_matrix(coefficient: Coefficient, rows: int, columns: int) -> Float[Tensor, "rows columns"]:
    """Convert a coefficient to the full matrix it represents."""
    value = torch.as_tensor(coefficient, dtype=torch.float64)
    if value.ndim == 2:
        if tuple(value.shape) != (rows, columns):
            raise ValueError(f"expected a coefficient of shape ({rows}, {columns}), got {tuple(value.shape)}")
        return value
    if rows != columns:
        raise ValueError(f"a scalar or diagonal coefficient needs blocks of equal width, got {rows} and {columns}")
    if value.ndim == 1 and len(value) != rows:
        raise ValueError(f"expected a diagonal of length {rows}, got {len(value)}")
    return torch.diag(value.expand(rows) if value.ndim == 0 else value)


@dataclass(frozen=True, eq=False)
class Program:
    """A complete linear Transformer: its blocks, layers and normalisation."""

    blocks: Mapping[str, Width]
    layers: Sequence[Layer]
    normalization: Normalization = NONE

    def layout(self, *, nodes: int, edges: int, demands: int) -> Layout:
        """Compute the positions of the blocks for graphs of a given size."""
        size = {"nodes": nodes, "edges": edges, "demands": demands}
        return Layout({name: width if isinstance(width, int) else size[width] for name, width in self.blocks.items()})

    def map_layers(self, change: Callable[[Layer], Any]) -> list[Any]:
        """Apply ``change`` to every layer; a layer that occurs several times is changed once and remains shared."""
        changed: dict[int, Any] = {}
        for layer in self.layers:
            if id(layer) not in changed:
                changed[id(layer)] = change(layer)
        return [changed[id(layer)] for layer in self.layers]

    def then(self, other: Program) -> Program:
        """Append another program, on the union of their blocks and with the other's normalisation."""
        return Program({**self.blocks, **other.blocks}, (*self.layers, *other.layers), other.normalization)
