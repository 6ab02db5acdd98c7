"""What has been worked out about a graph, kept until the graph is gone or its resistances change.

A cache of spectra, factors and selected parts of a batch: :func:`recall` computes a value on first use. A graph given in
another form (networkx, SciPy, edges) is recognised by content among the last few, see :func:`seen_before`. :func:`forget`
empties the cache.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Hashable
from itertools import count
from threading import RLock
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from ohmformer.graph.graph import Graph

T = TypeVar("T")
MOST = 2**31
"""Maximum number of cached bytes for all graphs; above it, values of the least recently used graphs are dropped."""
FEW = 4
"""Number of graphs that :func:`seen_before` remembers."""
LARGE = 400
"""Minimum number of nodes for :func:`seen_before`: smaller graphs are solved in less time than the search takes."""


class _Known:
    """The cached values of one graph."""

    def __init__(self, resistance: Tensor) -> None:
        self.lock = RLock()
        self.resistance = resistance.clone()
        self.values: dict[Hashable, tuple[bool, Any]] = {}  # name -> (whether it depends on the resistances, value)
        self.bytes = 0
        self.used = 0

    def meet(self, resistance: Tensor) -> None:
        """Drop values that depend on the resistances if these have changed; they may have been modified in place."""
        if not torch.equal(self.resistance, resistance):
            self.resistance = resistance.clone()
            self.values = {what: found for what, found in self.values.items() if not found[0]}


_known: WeakKeyDictionary[Graph, _Known] = WeakKeyDictionary()
_lately: deque[Graph] = deque(maxlen=FEW)
_lock = RLock()
_clock = count()


def recall(
    graph: Graph,
    what: Hashable,
    make: Callable[[], T],
    *,
    weighted: bool = True,
    fits: Callable[[T], bool] | None = None,
) -> T:
    """Return the cached value ``what`` of a graph; if there is none, call ``make()`` and cache its result.

    Concurrent callers wait for the one that computes the value. The value must not refer to the graph, which then would
    never be freed.

    Args:
        graph: the graph or batch.
        what: name of the value, including everything that it depends on besides edges and resistances.
        make: computes the value, outside of ``inference_mode``, so that its tensors can be used anywhere.
        weighted: whether the value depends on the resistances.
        fits: whether a cached value is suitable; if not, it is computed again and replaced.
    """
    resistance = graph.resistance.detach()
    with _lock:
        known = _known.get(graph)
        if known is None:
            known = _known[graph] = _Known(resistance)
    with known.lock:
        known.used = next(_clock)
        if weighted:
            known.meet(resistance)
        found = known.values.get(what)
        if found is None or (fits is not None and not fits(found[1])):
            with torch.inference_mode(False):
                found = known.values[what] = weighted, make()
            _drop_oldest(known)
        return found[1]


def remembered(graph: Graph, what: Hashable) -> Any:
    """Return the cached value that :func:`recall` would find, or None."""
    known = _known.get(graph)
    if known is None:
        return None
    with known.lock:
        known.meet(graph.resistance.detach())
        return known.values.get(what, (False, None))[1]


def derived(graph: Graph, what: Hashable, make: Callable[[], Graph]) -> Graph:
    """Return a graph made from another one; it is cached unless a gradient flows through it."""
    differentiable = torch.is_grad_enabled() and graph.resistance.requires_grad
    return make() if differentiable else recall(graph, what, make)


def some_graphs(graph: Graph, which: Tensor) -> Graph:
    """Select some graphs of a batch; the result is cached."""
    return derived(graph, ("some", which.cpu().numpy().tobytes()), lambda: graph.select(which))


def seen_before(graph: Graph) -> Graph:
    """Return an equal graph (edges and resistances) among the last few large ones, or else this graph."""
    if graph.resistance.requires_grad or graph.num_nodes < LARGE or graph.width < LARGE:
        return graph
    with _lock:
        before = next((other for other in _lately if _same(graph, other)), graph)
        if before in _lately:
            _lately.remove(before)
        _lately.append(before)
    return before


def _same(one: Graph, other: Graph) -> bool:
    sizes = [(g.num_graphs, g.batched, g.self_loops_dropped, g.dtype, g.device) for g in (one, other)]
    arrays = [(g.resistance, g.edge_index, g.batch) for g in (one, other)]
    return sizes[0] == sizes[1] and all(torch.equal(x, y) for x, y in zip(*arrays, strict=True))


def forget(graph: Graph | None = None) -> None:
    """Drop the cached values of a graph, or of all graphs; the next call takes as long as the first."""
    with _lock:
        if graph is None:
            _known.clear()
            _lately.clear()
        else:
            _known.pop(graph, None)


def bytes_kept(graph: Graph) -> int:
    """Return the number of bytes of the cached arrays of a graph."""
    known = _known.get(graph)
    return 0 if known is None else known.bytes


def _drop_oldest(newest: _Known) -> None:
    """Drop the values of the least recently used graphs until at most :data:`MOST` bytes are cached."""
    newest.bytes = _size(newest.values, set())
    with _lock:
        every = sorted(_known.values(), key=lambda known: known.used)
        total = sum(known.bytes for known in every)
        for known in every:
            if total > MOST and known is not newest:
                total -= known.bytes
                known.values, known.bytes = {}, 0


def _size(value: Any, seen: set[int]) -> int:
    """Return the number of bytes of all arrays in a value, each counted once."""
    if id(value) in seen or isinstance(value, (int, float, str, type, ModuleType, torch.device, torch.dtype)):
        return 0
    seen.add(id(value))
    if isinstance(value, Tensor) and value.layout is torch.sparse_csr:
        return _size((value.crow_indices(), value.col_indices(), value.values()), seen)
    if isinstance(value, (np.ndarray, Tensor)):
        return value.nbytes
    if isinstance(value, (tuple, list)):
        return sum(_size(x, seen) for x in value)
    if isinstance(value, dict):
        return sum(_size(x, seen) for x in value.values())
    cells = [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
    return _size(cells, seen) + _size(getattr(value, "__dict__", {}), seen)


def _after_fork() -> None:
    """Replace all locks in a forked child process, which has only the calling thread, so no lock is in use."""
    global _lock
    _lock = RLock()
    for known in list(_known.values()):
        known.lock = RLock()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)
