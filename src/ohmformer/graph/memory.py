"""What has been worked out about a graph, kept until the graph is gone or its resistances change.

Spectra, factors, selected parts of a batch: whoever needs them asks :func:`recall`, which makes them the first time. A graph
that comes in another form (networkx, SciPy, edges) is found again among the last few by its content, :func:`seen_before`.
:func:`forget` drops what is kept.
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
"""Bytes that are kept for all graphs together; beyond, graphs that were not asked about for longest lose theirs."""
FEW = 4
"""Graphs in other forms that are found again by their content."""
LARGE = 400
"""Nodes from which on graphs are looked for there: smaller ones are answered in less time."""


class _Known:
    """What is known of one graph."""

    def __init__(self, resistance: Tensor) -> None:
        self.lock = RLock()
        self.resistance = resistance.clone()
        self.values: dict[Hashable, tuple[bool, Any]] = {}  # whether it depends on the resistances, and what it is
        self.bytes = 0
        self.used = 0

    def meet(self, resistance: Tensor) -> None:
        """Drop what depended on other resistances: they may have been changed in place."""
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
    """Return what is kept of a graph under the name ``what``; if there is nothing, call ``make()`` and keep its result.

    Threads that ask at the same time wait for the one that makes it. It must not refer to the graph, which would then never
    be dropped.

    Args:
        graph: the graph or batch.
        what: a name, with everything besides edges and resistances that it depends on.
        make: makes it; tensors can be used everywhere, also if they were first asked for in ``inference_mode``.
        weighted: whether it depends on the resistances.
        fits: whether the one that is kept will do; another takes its place otherwise.
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
    """Return what :func:`recall` would find, or None."""
    known = _known.get(graph)
    if known is None:
        return None
    with known.lock:
        known.meet(graph.resistance.detach())
        return known.values.get(what, (False, None))[1]


def derived(graph: Graph, what: Hashable, make: Callable[[], Graph]) -> Graph:
    """Make a graph from another; the same object is returned the next time, unless a gradient goes through it."""
    differentiable = torch.is_grad_enabled() and graph.resistance.requires_grad
    return make() if differentiable else recall(graph, what, make)


def some_graphs(graph: Graph, which: Tensor) -> Graph:
    """Select some graphs of a batch; the selection is kept."""
    return derived(graph, ("some", which.cpu().numpy().tobytes()), lambda: graph.select(which))


def seen_before(graph: Graph) -> Graph:
    """Return an equal graph (edges and resistances) among the last few large ones, if there is one, else this graph."""
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
    """Drop what is kept of a graph, or of all graphs; the next question takes as long as the first."""
    with _lock:
        if graph is None:
            _known.clear()
            _lately.clear()
        else:
            _known.pop(graph, None)


def bytes_kept(graph: Graph) -> int:
    """Count the bytes of the arrays that are kept of a graph."""
    known = _known.get(graph)
    return 0 if known is None else known.bytes


def _drop_oldest(newest: _Known) -> None:
    """Keep no more than :data:`MOST` bytes."""
    newest.bytes = _size(newest.values, set())
    with _lock:
        every = sorted(_known.values(), key=lambda known: known.used)
        total = sum(known.bytes for known in every)
        for known in every:
            if total > MOST and known is not newest:
                total -= known.bytes
                known.values, known.bytes = {}, 0


def _size(value: Any, seen: set[int]) -> int:
    """Bytes of all arrays that a value holds, each counted once."""
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
    """The child of a fork has the caller's thread only, and nobody in it holds a lock."""
    global _lock
    _lock = RLock()
    for known in list(_known.values()):
        known.lock = RLock()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)
