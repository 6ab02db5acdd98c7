"""Edge lists and weights as they come, checked: what every way of building a graph goes through."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor


def as_edge_index(edges: Iterable[Sequence[int]] | np.ndarray | Tensor) -> Int[Tensor, "2 edges"]:
    """Pairs of node numbers as two rows, tails and heads."""
    if not isinstance(edges, Tensor):
        edges = torch.as_tensor(edges if isinstance(edges, np.ndarray) else np.asarray(list(edges)))
    if edges.numel() == 0:
        return torch.zeros(2, 0, dtype=torch.long, device=edges.device)
    if edges.ndim != 2 or edges.shape[1] != 2:
        raise ValueError(f"expected edges as pairs, shape (edges, 2), got {tuple(edges.shape)}")
    if edges.is_floating_point() or edges.is_complex() or edges.dtype == torch.bool:
        raise ValueError(f"expected integer node numbers in edges, got {edges.dtype}")
    return edges.t().long()


def check_weights(weight: Tensor, name: str) -> None:
    """Positive and finite, and so is one over it."""
    bad = ~(torch.isfinite(weight) & (weight > 0) & torch.isfinite(weight.reciprocal()))
    if bad.any():
        j = int(bad.nonzero()[0])
        raise ValueError(f"expected every {name} positive and finite, edge {j} has {weight[j].item()} in {weight.dtype}")


def column(values: Tensor | None, name: str) -> Tensor:
    """A PyG attribute as one value per edge."""
    if values is None:
        raise ValueError(f"expected the data to carry {name!r}, it is missing")
    if values.ndim == 2 and values.shape[1] == 1:
        return values[:, 0]
    return values


def as_resistance(edges: int, resistance: Any, conductance: Any) -> Float[Tensor, " edges"]:
    """Resistances from whichever kind of weight is given, ones if none is."""
    if resistance is not None and conductance is not None:
        raise ValueError("expected resistance= or conductance=, got both")
    name, given = ("resistance", resistance) if conductance is None else ("conductance", conductance)
    if given is None:
        return torch.ones(edges, dtype=torch.float64)
    weight = given if isinstance(given, Tensor) else torch.as_tensor(np.asarray(given, dtype=np.float64))
    if weight.is_complex():
        raise ValueError(f"expected a real {name}, got {weight.dtype}")
    if not weight.is_floating_point():
        weight = weight.double()
    if tuple(weight.shape) != (edges,):
        raise ValueError(f"expected one {name} per edge, shape ({edges},), got {tuple(weight.shape)}")
    check_weights(weight, name)
    return weight if conductance is None else weight.reciprocal()


def fold(
    index: Int[Tensor, "2 directed"], weight: Float[Tensor, " directed"]
) -> tuple[Int[Tensor, "2 edges"], Float[Tensor, " edges"], int]:
    """Directed pairs (u, v), (v, u) of equal weight folded to single edges u < v; and the number of self-loops left out."""
    weight = weight.to(index.device)
    forward, backward = (index[0] < index[1]).nonzero()[:, 0], (index[0] > index[1]).nonzero()[:, 0]

    def ordered(which: Tensor, u: Tensor, v: Tensor) -> Tensor:
        keys = (weight[which].detach().cpu().numpy(), v[which].cpu().numpy(), u[which].cpu().numpy())
        return which[torch.as_tensor(np.lexsort(keys), device=which.device)]

    forward = ordered(forward, index[0], index[1])
    backward = ordered(backward, index[1], index[0])
    pairs, mirrored = index[:, forward], index[:, backward].flip(0)
    if pairs.shape != mirrored.shape or not torch.equal(pairs, mirrored):
        u, v = _first_unmatched(pairs, mirrored)
        raise ValueError(
            f"expected every edge in both directions, the pair ({u}, {v}) is not; "
            "for a list with each edge once use Graph.from_edges"
        )
    there, back = weight[forward], weight[backward]
    differs = (there - back).abs() > 16 * torch.finfo(weight.dtype).eps * there
    if differs.any():
        j = int(differs.nonzero()[0])
        u, v = pairs[:, j].tolist()
        raise ValueError(
            f"expected equal weights in both directions, the pair ({u}, {v}) has resistances "
            f"{there[j].item():.6g} and {back[j].item():.6g}"
        )
    return pairs, (there + back) / 2, int((index[0] == index[1]).sum())


def _first_unmatched(pairs: Tensor, mirrored: Tensor) -> tuple[int, int]:
    there, back = (Counter(map(tuple, p.t().tolist())) for p in (pairs, mirrored))
    u, v = min((there - back) + (back - there))
    return u, v
