"""The processes that share a graph: sums over all of them, messages between neighbours, and which one is missing."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import Event, Thread
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

BEAT = 0.5
"""Seconds between two heartbeats."""
SILENCE = 2.5
"""Seconds without a heartbeat after which a process counts as lost, once an error has occurred."""
PATIENCE = 12.0
"""Seconds that process 0, which stores the heartbeats, waits for the others to read them before it ends."""

T = TypeVar("T")


class ProcessLost(RuntimeError):
    """Another process ended during the computation; the message names it."""

    def __init__(self, message: str, ranks: Sequence[int]) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


class Group:
    """The process group of ``torch.distributed``, or this process alone if there is none."""

    def __init__(self) -> None:
        self.alone = not (dist.is_available() and dist.is_initialized())
        self.rank, self.size = (0, 1) if self.alone else (dist.get_rank(), dist.get_world_size())
        nccl = not self.alone and dist.get_backend() == "nccl"
        self.device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
        self.sent = 0
        """Bytes sent to neighbours."""
        self._pulse = None if self.size == 1 else Pulse(self)

    def sum(self, x: Tensor) -> Tensor:
        """Sum x over all processes, in place."""
        if self.size > 1:
            with self._watched():
                dist.all_reduce(x)
        return x

    def gather(self, thing: T) -> list[T]:
        """Collect a small object from every process."""
        things: list[Any] = [thing] * self.size
        if self.size > 1:
            with self._watched():
                dist.all_gather_object(things, thing)
        return things

    def agree(self, check: Callable[[], T]) -> T:
        """Return the result of ``check``; a ValueError or OSError that it raises on any process is raised on all."""
        error, found = None, None
        try:
            found = check()
        except (ValueError, OSError) as wrong:
            error = str(wrong)
        wrongs = [x for x in self.gather(error) if x is not None]
        if wrongs:
            raise ValueError(wrongs[0])
        return found  # pyright: ignore[reportReturnType]

    def begin(self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]]) -> list[Any]:
        """Start sending tensors to, and receiving tensors from, other processes."""
        operations = [dist.P2POp(dist.irecv, x, q) for q, x in receives]
        operations += [dist.P2POp(dist.isend, x, q) for q, x in sends]
        if not operations:
            return []
        self.sent += sum(x.nbytes for _, x in sends)
        with self._watched():
            return [
                (work, operation.tensor)
                for work, operation in zip(dist.batch_isend_irecv(operations), operations, strict=True)
            ]

    def finish(self, begun: list[Any]) -> None:
        """Wait for all started operations, and empty the list."""
        with self._watched():
            while begun:
                begun.pop()[0].wait()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Raise an error that names the lost process instead of the error it caused."""
        try:
            yield
        except RuntimeError as error:
            assert self._pulse is not None
            lost = self._pulse.lost()
            if not lost:
                raise
            which = " and ".join(f"process {q} of {self.size} ({self._pulse.places[q]})" for q in lost)
            raise ProcessLost(f"expected all processes to go on, {which} has ended", lost) from error


class Pulse:
    """Heartbeats of all processes, stored by process 0."""

    def __init__(self, group: Group) -> None:
        self.rank, self.size = group.rank, group.size
        here = f"{socket.gethostname()}, pid {os.getpid()}"
        self._store: dist.Store
        if self.rank == 0:
            host = os.environ.get("MASTER_ADDR", socket.gethostname())
            self._store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
            told: list[Any] = [(host, self._store.port)]
        else:
            told = [None]
        dist.broadcast_object_list(told, src=0)
        if self.rank:
            self._store = dist.TCPStore(*told[0], is_master=False, timeout=timedelta(seconds=5))
        self._ended = Event()
        self.places: list[Any] = [None] * self.size
        self._store.set(f"beat {self.rank}", "0")
        dist.all_gather_object(self.places, here)
        Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        count = 0
        while not self._ended.wait(BEAT):
            count += 1
            with suppress(RuntimeError):  # process 0 has ended
                self._store.set(f"beat {self.rank}", str(count))

    def lost(self) -> list[int]:
        """Return the processes that have ended (no heartbeat), and tell the others, which return the same."""
        with suppress(RuntimeError):
            dist.destroy_process_group()  # processes waiting for this one stop waiting
        try:
            if not self._store.check(["lost"]):
                before = self._beats()
                time.sleep(SILENCE)
                silent = [q for q, count in enumerate(self._beats()) if count == before[q]]
                self._store.compare_set("lost", "", ",".join(map(str, silent)))
            found = [int(q) for q in self._store.get("lost").decode().split(",") if q]
            self._store.set(f"told {self.rank}", "")
        except RuntimeError:
            return [0]
        if self.rank == 0:
            self._wait_for_others(found)
        return found

    def _beats(self) -> list[bytes]:
        return [self._store.get(f"beat {q}") for q in range(self.size)]

    def _wait_for_others(self, lost: list[int]) -> None:
        others, end = [f"told {q}" for q in range(1, self.size) if q not in lost], time.monotonic() + PATIENCE
        while others and not self._store.check(others) and time.monotonic() < end:
            time.sleep(0.1)


_groups: WeakKeyDictionary[Any, Group] = WeakKeyDictionary()


def current_group() -> Group:
    """Return the group of this process, created once per process group."""
    if not (dist.is_available() and dist.is_initialized()):
        return Group()
    world = dist.group.WORLD
    if world not in _groups:
        _groups[world] = Group()
    return _groups[world]
