"""Which library of kernels is in use: the best one that was built and that the processor supports, unless told otherwise."""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from threading import Event, Thread, current_thread, main_thread
from typing import Any

from ohmformer.native.kernels import KERNELS

FOLDER = Path(__file__).parent / "lib"
"""Where the build puts the libraries, one per instruction set."""
VARIABLE = "OHMFORMER_NATIVE"
OFF = "off"
INSTRUCTION_SETS = {"baseline": 1, "neon": 1, "avx2": 2, "avx512": 4}
"""Instruction sets from slowest to fastest, each with its bit in the result of the C function ``processor_sets``."""
NO_LIBRARY = "the package was built without a C compiler"

STOPPED = 2
"""Return value of a kernel that was stopped."""
LONG = 10_000
"""Minimum number of nodes for running a long kernel on its own thread, which costs 0.1 ms, less than the kernel takes."""
OFTEN = 0.1
"""Seconds between two checks whether to stop."""

_poll: ContextVar[Callable[[], bool | None] | None] = ContextVar("ohmformer_poll", default=None)
_chosen: ContextVar[str | None] = ContextVar("ohmformer_native", default=None)


class Stopped(Exception):
    """Raised when a kernel was stopped by the function given to :func:`polled`."""


@dataclass(frozen=True)
class Library:
    """The kernels, compiled for one instruction set."""

    name: str
    functions: ctypes.CDLL = field(repr=False)

    def call(self, name: str, *values: Any) -> None:
        """Run a kernel on as many threads as torch uses; tensors are passed as addresses, None as a null pointer."""
        import torch

        expected = len(KERNELS[name].arguments)
        if len(values) != expected:
            raise TypeError(f"expected {expected} arguments for {name}, got {len(values)}")
        if any(x.device.type != "cpu" for x in values if isinstance(x, torch.Tensor)):
            raise ValueError(f"expected tensors on the CPU for {name}, got some on another device")
        plain = [x.data_ptr() if isinstance(x, torch.Tensor) else x for x in values]
        if odd := [x for x, at in zip(values, plain, strict=True) if isinstance(x, torch.Tensor) and not at and x.numel()]:
            raise ValueError(f"expected plain tensors for {name}, got {type(odd[0]).__name__}")
        run = partial(getattr(self.functions, name), torch.get_num_threads(), *plain)
        stoppable = KERNELS[name].long and values[0] >= LONG and (_poll.get() or current_thread() is main_thread())
        failed = self._run_beside(run, values) if stoppable else run()
        if failed == STOPPED:
            raise Stopped(f"{name} was told to end")
        if failed:
            raise MemoryError(f"expected memory for {name} of {values[0]} graphs or nodes, there is none")

    def _run_beside(self, run: Callable[[], int], values: tuple[Any, ...]) -> int:
        """Run a kernel on its own thread, so that this one can handle Ctrl-C and :func:`polled` and stop it."""
        flag, done, poll, result = ctypes.c_int32(0), Event(), _poll.get(), []

        def work(inputs: tuple[Any, ...] = values) -> None:  # ``inputs`` keeps them alive while the kernel runs
            try:
                self.functions.stop_when(ctypes.byref(flag))
                result.append(run())
            finally:
                done.set()

        Thread(target=work, daemon=True).start()
        try:
            while not done.wait(OFTEN):
                flag.value |= bool(poll and poll())
        finally:
            flag.value |= not done.is_set()
            done.wait()
        return STOPPED if flag.value else result[0]


def active() -> Library | None:
    """Return the library in use, or None if torch computes everything.

    It is that of the innermost :func:`used`, else that of ``OHMFORMER_NATIVE``, else the best available one.
    """
    name = _chosen.get()
    return _default() if name is None else _named(name, "the name of a library")


@contextmanager
def used(name: str) -> Iterator[None]:
    """Use one library inside the ``with`` block, or torch for ``"off"``; other threads and contexts are not affected.

    Args:
        name: ``"off"``, or one of :func:`available`.
    """
    _named(name, "the name of a library")
    token = _chosen.set(name)
    try:
        yield
    finally:
        _chosen.reset(token)


@contextmanager
def polled(stop: Callable[[], bool | None]) -> Iterator[None]:
    """Call ``stop`` every 0.1 s while a long kernel runs inside the ``with``; if it returns True, raise :class:`Stopped`."""
    token = _poll.set(stop)
    try:
        yield
    finally:
        _poll.reset(token)


def call(name: str, *values: Any) -> None:
    """Run a kernel of the library in use on as many threads as torch uses; tensors are passed as addresses."""
    library = active()
    if library is None:
        raise RuntimeError(f"expected a native library for {name}, got none: {describe()}")
    library.call(name, *values)


def available() -> tuple[str, ...]:
    """List the instruction sets that were built and that this processor supports, slowest first."""
    found = _processor()
    return tuple(name for name, bit in INSTRUCTION_SETS.items() if found & bit and _path(name).is_file())


def describe() -> str:
    """Describe in one line which kernels are in use and which others are available."""
    names = available()
    if not names:
        return f"native kernels: none, torch answers everything ({NO_LIBRARY})"
    library = active()
    if library is None:
        return f"native kernels: off, torch answers everything (available: {', '.join(names)})"
    return f"native kernels: {library.name} (available: {', '.join(names)})"


def enable() -> None:
    """Do nothing: kernels are used by default. Deprecated, to be removed in 0.3."""
    message = "native.enable() does nothing any more: kernels are used by default, OHMFORMER_NATIVE=off turns them off"
    warnings.warn(message, DeprecationWarning, stacklevel=2)


@cache
def _default() -> Library | None:
    """Return the library of this process: the one that the environment selects, or the best available one."""
    wanted, names = os.environ.get(VARIABLE), available()
    if wanted:
        return _named(wanted, VARIABLE)
    if not names:
        advice = "install it where there is one, or set OHMFORMER_NATIVE=off to hide this"
        warnings.warn(f"no native kernels: {NO_LIBRARY}; torch answers everything, slower ({advice})", stacklevel=3)
        return None
    return _named(names[-1], VARIABLE)


def _named(name: str, what: str) -> Library | None:
    """Return the library of this name, or None for ``off``; raise a ValueError that lists the valid names."""
    known, here = (OFF, *INSTRUCTION_SETS), available()
    if name == OFF:
        return None
    if name not in known:
        raise ValueError(f"expected {what} to be one of {', '.join(known)}, got {name!r}")
    if name not in here:
        why = "this processor does not support it" if _path(name).is_file() else "it was not built with this package"
        raise ValueError(f"expected {what} to be one of {', '.join((OFF, *here))}, got {name!r}: {why}")
    return _load(name)


def _path(name: str) -> Path:
    return FOLDER / f"ohmformer_{name}.so"


@cache
def _processor() -> int:
    """Return the bits of the instruction sets of this processor, from the slowest library; zero if there is no library."""
    path = next((_path(name) for name in INSTRUCTION_SETS if _path(name).is_file()), None)
    if path is None:
        return 0
    function = ctypes.CDLL(str(path)).processor_sets
    function.restype = ctypes.c_int64
    return function()


@cache
def _load(name: str) -> Library:
    """Load a library and declare the argument types of its functions."""
    functions = ctypes.CDLL(str(_path(name)))
    for symbol, kernel in KERNELS.items():
        function = getattr(functions, symbol)
        function.restype = ctypes.c_int
        function.argtypes = [ctypes.c_int64, *kernel.arguments]
    return Library(name, functions)
