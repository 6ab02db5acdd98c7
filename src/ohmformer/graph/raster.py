"""Rasters as graphs: a node for every cell of a landscape or picture, joined to the cells around it.

>>> import ohmformer as ohm
>>> land = Raster.of([[1.0, 1.0, 3.0], [1.0, float("nan"), 1.0]])  # NaN: no cell, nothing passes
>>> land.graph, land.graph.resistance
(Graph(nodes=5, edges=4, components=1), tensor([1., 2., 1., 2.], dtype=torch.float64))
>>> land.image(ohm.potentials(land, {(1, 0): 1.0, (1, 2): -1.0}).value[:, 0]).round(decimals=3)
tensor([[ 1.6000,  0.6000, -1.4000],
        [ 2.6000,     nan, -3.4000]], dtype=torch.float64)
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from ohmformer.graph.graph import Graph
from ohmformer.graph.labelled import LabelledGraph

RIGHT_AND_DOWN = ((0, 1), (1, 0))
DIAGONAL = ((1, 1), (1, -1))


@dataclass(frozen=True, eq=False)
class Raster(LabelledGraph):
    """A graph whose nodes are raster cells, labelled ``(row, column)``; accepted wherever a graph is."""

    cells: Int[Tensor, "rows columns"] = field(kw_only=True)
    """Node of each cell, -1 if the cell has none."""

    @classmethod
    def of(cls, resistance: Any, neighbours: int = 4) -> Raster:
        """Build a raster graph from cell resistances, NaN where there is no cell; differentiable if they are a tensor.

        Adjacent cells are connected by the mean of their resistances. With ``neighbours=8`` diagonal neighbours are
        connected by the square root of two times their mean, as their centres are that much farther apart.
        """
        if neighbours not in (4, 8):
            raise ValueError(f"expected neighbours=4 or neighbours=8, got {neighbours!r}")
        given = resistance if isinstance(resistance, Tensor) else torch.as_tensor(np.asarray(resistance, dtype=np.float64))
        if given.ndim != 2 or given.is_complex():
            raise ValueError(f"expected a raster of rows and columns of numbers, got shape {tuple(given.shape)}")
        given = given if given.is_floating_point() else given.double()
        known = given.detach()
        exists = ~known.isnan()
        wrong = (exists & ~((known > 0) & known.isfinite())).nonzero()
        if len(wrong):
            at = tuple(wrong[0].tolist())
            raise ValueError(
                f"expected positive and finite resistances, or NaN for no cell, cell {at} has {known[at].item()}"
            )
        cells = torch.full(given.shape, -1, device=given.device)
        cells[exists] = torch.arange(int(exists.sum()), device=given.device)
        ends, weights = [], []
        for down, right in (*RIGHT_AND_DOWN, *(DIAGONAL if neighbours == 8 else ())):
            here, there = (slice(None, -down or None), slice(max(-right, 0), -right if right > 0 else None)), (
                slice(down, None), slice(max(right, 0), right if right < 0 else None))  # fmt: skip
            both = exists[here] & exists[there]
            ends.append(torch.stack([cells[here][both], cells[there][both]]))
            weights.append((given[here][both] + given[there][both]) * ((down**2 + right**2) ** 0.5 / 2))
        batch = torch.zeros(int(exists.sum()), dtype=torch.long, device=given.device)
        return cls(Graph(torch.cat(ends, dim=1), torch.cat(weights), batch), cells=cells)

    def number(self, label: Hashable) -> int:
        """Return the node of a cell ``(row, column)``, or a node number unchanged, or raise a ValueError."""
        if not isinstance(label, Sequence) or len(label) != 2:
            return super().number(label)
        rows, columns = self.cells.shape
        row, column = label
        if not (0 <= row < rows and 0 <= column < columns):
            raise ValueError(f"expected a cell (row, column) within {rows} x {columns}, got {label!r}")
        if self.cells[row, column] < 0:
            raise ValueError(f"expected a cell of the raster, {label!r} has no resistance")
        return int(self.cells[row, column])

    def name(self, number: int) -> str:
        """Return the name of a node for messages: ``cell (3, 4)``."""
        row, column = (self.cells == number).nonzero()[0].tolist()
        return f"cell ({row}, {column})"

    def nodes(self, chosen: Any) -> Int[Tensor, " chosen"]:
        """Return node numbers from a mask of rows and columns, or from anything :class:`LabelledGraph` accepts."""
        if not isinstance(chosen, (Tensor, np.ndarray)) or tuple(chosen.shape) != tuple(self.cells.shape):
            return super().nodes(chosen)
        mask = torch.as_tensor(chosen).to(self.cells.device)
        if mask.dtype != torch.bool:
            raise ValueError(f"expected a mask of cells, True where chosen, got {mask.dtype}")
        if bool((mask & (self.cells < 0)).any()):
            self.number(tuple((mask & (self.cells < 0)).nonzero()[0].tolist()))
        return self.cells[mask]

    def image(self, values: Tensor) -> Tensor:
        """Arrange values of nodes, ``(nodes, ...)``, as ``(rows, columns, ...)``; NaN where there is no cell."""
        image = values.new_full((*self.cells.shape, *values.shape[1:]), torch.nan)
        return image.index_put((self.cells >= 0).nonzero(as_tuple=True), values)
