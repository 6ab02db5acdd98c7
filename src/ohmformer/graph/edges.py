"""Read and check edge lists and weights: every way of building a graph goes through here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor


def as_edge_index(edges: Iterable[Sequence[int]] | np.ndarray | Tensor) -> Int[Tensor, "2 edges"]:
    """Convert pairs of node numbers to two rows, tails and heads."""
    if not isinstance(edges, Tensor):
        edges = torch.as_tensor(edges if isinstance(edges, np.ndarray) else np.asarray(list(edges)))
    if edges.numel() == 0:
        return torch.zeros(2, 0, dtype=torch.long, device=edges.device)
    if edges.ndim != 2 or edges.shape[1] != 2:
        raise ValueError(f"expected edges as pairs, shape (edges, 2), got {tuple(edges.shape)}")
    if edges.is_floating_point() or edges.is_complex() or edges.dtype == torch.bool:
        raise ValueError(f"expected integer node numbers in edges, got {edges.dtype}")
    return edges.t().long()


def check_weights(weight: Tensor, name: str, *, signed: bool = False) -> None:
    """Raise a ValueError unless every weight and its reciprocal are finite and, unless ``signed``, positive."""
    size = weight.abs() if signed else weight
    bad = ~(torch.isfinite(size) & (size > 0) & torch.isfinite(size.reciprocal()))
    if bad.any():
        j, kind = int(bad.nonzero()[0]), "finite and not zero" if signed else "positive and finite"
        raise ValueError(f"expected every {name} {kind}, edge {j} has {weight[j].item()} in {weight.dtype}")


def column(values: Tensor | None, name: str) -> Tensor:
    """Return a PyG attribute as one value per edge."""
    if values is None:
        raise ValueError(f"expected the data to carry {name!r}, it is missing")
    if values.ndim == 2 and values.shape[1] == 1:
        return values[:, 0]
    return values


def as_resistance(edges: int, resistance: Any, conductance: Any, *, signed: bool = False) -> Float[Tensor, " edges"]:
    """Return resistances from either kind of weight, or ones if none is given; negative ones only if ``signed``."""
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
    check_weights(weight, name, signed=signed)
    return weight if conductance is None else weight.reciprocal()


def lists_both_directions(index: Int[Tensor, "2 pairs"]) -> bool:
    """Tell whether a list of pairs has both directions of every edge (True) or every edge once (False).

    The whole library reads PyG's ``edge_index`` by this function. It decides for the list as a whole: a list with some
    edges in both directions and others in one is a ValueError that names a pair. Parallel edges are allowed; if listed in
    both directions, each direction must occur equally often. Self-loops are ignored.

    >>> lists_both_directions(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
    True
    >>> lists_both_directions(torch.tensor([[0, 1], [1, 2]]))
    False
    >>> lists_both_directions(torch.tensor([[0, 1, 1], [1, 0, 2]]))
    Traceback (most recent call last):
    ValueError: expected all edges in both directions or all once, got the pair (1, 2) in one direction and (0, 1) in both
    """
    if not bool((index[0] < index[1]).any()) or not bool((index[0] > index[1]).any()):
        return False
    key, mirrored = _keys(index)
    if torch.equal(key.sort().values, mirrored.sort().values):
        return True
    turned = torch.isin(key, mirrored) & (index[0] != index[1])
    if not bool(turned.any()):
        return False
    u, v = _first_unmatched(index)
    there, back = (int(((index[0] == a) & (index[1] == b)).sum()) for a, b in ((u, v), (v, u)))
    if there and back:
        got = f"the pair ({u}, {v}) {there} times and ({v}, {u}) {back} times"
    else:
        both = index[:, turned]
        a, b = sorted(both[:, int(both.amin(0).argmin())].tolist())
        got = f"the pair ({u}, {v}) in one direction and ({a}, {b}) in both"
    raise ValueError(f"expected all edges in both directions or all once, got {got}")


def read_edges(
    index: Int[Tensor, "2 pairs"], weight: Float[Tensor, " pairs"]
) -> tuple[Int[Tensor, "2 edges"], Float[Tensor, " edges"], int]:
    """Convert PyG's ``edge_index`` to undirected edges, each once; see :func:`lists_both_directions`.

    Returns edges, weights and the number of dropped self-loops. Edges listed in both directions are ordered as by
    :func:`fold`; edges listed once keep their order and self-loops.
    """
    return fold(index, weight) if lists_both_directions(index) else (index, weight.to(index.device), 0)


def fold(
    index: Int[Tensor, "2 directed"], weight: Float[Tensor, " directed"]
) -> tuple[Int[Tensor, "2 edges"], Float[Tensor, " edges"], int]:
    """Merge pairs (u, v) and (v, u) of equal weight into single sorted edges u < v; also count the dropped self-loops."""
    weight = weight.to(index.device)
    forward, backward = _match_directions(index, weight)
    pairs, mirrored = index[:, forward], index[:, backward].flip(0)
    if pairs.shape != mirrored.shape or not torch.equal(pairs, mirrored):
        u, v = _first_unmatched(index)
        raise ValueError(f"expected every edge in both directions, got the pair ({u}, {v}) in one direction only")
    there, back = weight[forward], weight[backward]
    _check_agreement(pairs, there, back, "resistances")
    return pairs, (there + back) / 2, int((index[0] == index[1]).sum())


def check_directions_agree(index: Int[Tensor, "2 directed"], weight: Float[Tensor, " directed"], name: str) -> None:
    """Raise a ValueError unless both directions of every edge have the same weight; both must be listed."""
    forward, backward = _match_directions(index, weight)
    _check_agreement(index[:, forward], weight[forward], weight[backward], name)


def _keys(index: Int[Tensor, "2 pairs"]) -> tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
    """Return a unique number for each pair (u, v), and the number of (v, u)."""
    low, high = torch.aminmax(index)
    u, v = index - low
    width = high - low + 1
    return u * width + v, v * width + u


def _match_directions(
    index: Int[Tensor, "2 directed"], weight: Float[Tensor, " directed"]
) -> tuple[Int[Tensor, " forward"], Int[Tensor, " backward"]]:
    """Return indices of the pairs u < v and of the pairs u > v, each sorted by edge, and parallel edges by weight."""
    if not index.numel():
        return index[0], index[0]
    key, mirrored = _keys(index)
    order = weight.detach().argsort()

    def sort(chosen: Tensor, keys: Tensor) -> Tensor:
        which = order[chosen[order]]
        return which[keys[which].argsort(stable=True)]

    return sort(index[0] < index[1], key), sort(index[0] > index[1], mirrored)


def _check_agreement(pairs: Int[Tensor, "2 edges"], there: Tensor, back: Tensor, name: str) -> None:
    """Raise a ValueError if the weights of the two directions of an edge differ by more than rounding."""
    differs = (there - back).abs() > 16 * torch.finfo(there.dtype).eps * there
    if bool(differs.any()):
        j = int(differs.nonzero()[0])
        u, v = pairs[:, j].tolist()
        raise ValueError(
            f"expected equal {name} in both directions, the pair ({u}, {v}) has {name} "
            f"{there[j].item():.6g} and {back[j].item():.6g}"
        )


def _first_unmatched(index: Int[Tensor, "2 pairs"]) -> tuple[int, int]:
    """Return the smallest pair u < v that is not listed equally often in both directions."""
    pairs = index.t().tolist()
    there, back = Counter((u, v) for u, v in pairs if u < v), Counter((v, u) for u, v in pairs if u > v)
    u, v = min((there - back) + (back - there))
    return u, v
