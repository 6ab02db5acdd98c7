"""Exact quantities of many graphs, as lists of numbers for every graph: resistances, the heat kernel, eigenvalues."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import ohmformer as ohm
from ohmformer.encoding.pyg import Batch, Data
from ohmformer.encoding.transforms import graph_of

QUANTITIES = ("resistances", "heat", "eigenvalues")


def exact_quantities(graphs: list[Data], names: Sequence[str], s: float) -> dict[str, list[Tensor]]:
    """Return for every graph, in float64: ``resistances`` of the pairs u < v, row by row, infinite between
    components; ``heat``, the entries u <= v of ``exp(-s L)``, row by row; ``eigenvalues`` of L, ascending, those of the null
    space exactly zero.
    """
    if not graphs or not names:
        return {name: [] for name in names}
    batch = graph_of(Batch.from_data_list([*graphs])).to("cpu", torch.float64)  # pyright: ignore[reportArgumentType]
    found: dict[str, list[Tensor]] = {}
    if "resistances" in names:
        found["resistances"] = [_above(x, 1) for x in ohm.effective_resistance(batch, "all", tol=1e-9).value.split()]
    if "heat" in names:
        found["heat"] = [_above(x, 0) for x in ohm.heat_kernel(batch, s, method="direct").value.split()]
    if "eigenvalues" in names:
        found["eigenvalues"] = [_eigenvalues(x) for x in batch.split()]
    return {name: found[name] for name in names}


def _above(matrix: Tensor, offset: int) -> Tensor:
    """Return the entries on and above a diagonal, row by row."""
    row, column = torch.triu_indices(*matrix.shape, offset=offset)
    return matrix[row, column]


def _eigenvalues(graph: ohm.Graph) -> Tensor:
    values = torch.linalg.eigvalsh(graph.laplacian())
    values[: graph.num_components] = 0.0
    return values


def check_quantities(names: Sequence[str], s: float) -> None:
    """Raise a ValueError unless all names are known quantities and their options are valid."""
    for name in names:
        if name not in QUANTITIES:
            raise ValueError(f"expected an exact quantity among {', '.join(QUANTITIES)}, got {name!r}")
    if not 0 < s < float("inf"):
        raise ValueError(f"the heat kernel needs s > 0, got {s!r}")
