"""Compiled code, where the machine has a C compiler: same answers, several times faster.

>>> from ohmformer import native
>>> native.enable()  # doctest: +SKIP

From then on molecules are encoded, small graphs inverted, many demands on a large graph solved for and Graph Transformers
trained by C where it can do what is asked for. Nothing is compiled unless asked for; what was compiled is kept for the next
time, in :func:`ohmformer.native.machine.cache`.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ohmformer.native import machine

HERE = Path(__file__).parent
SOURCES = tuple(HERE / f"{name}.c" for name in ("sparse", "small", "layers", "on_spectrum", "affine", "attention"))
OPTIONS = ("-O3", "-march=native", "-fno-math-errno", "-ffp-contract=fast", "-shared", "-fPIC")
_library: ctypes.CDLL | None = None


def enable() -> None:
    """Use compiled code from now on; an OSError says in a sentence why it cannot be had."""
    global _library
    _library = _compiled()


def disable() -> None:
    """Go back to torch."""
    global _library
    _library = None


@dataclass(frozen=True)
class Kernel:
    """Stand-in for the table of kernels: limits only."""

    limits: dict[str, int] = field(default_factory=dict)


_INT = 2**29 - 1
KERNELS = {
    "ohm_encode": Kernel({"channels": 8, "evolving_nodes": 64, "nodes": _INT, "edges": _INT}),
    "ohm_on_spectrum": Kernel({"channels": 16}),
    "ohm_on_spectrum_backward": Kernel({"channels": 16}),
}
_chosen: ContextVar[str | None] = ContextVar("ohmformer_native", default=None)


@dataclass(frozen=True)
class Library:
    """Stand-in: the compiled functions."""

    functions: ctypes.CDLL

    def call(self, name: str, *values: Any) -> None:
        """Run a kernel; tensors are passed as addresses."""
        import torch

        plain = [x.data_ptr() if isinstance(x, torch.Tensor) else x for x in values]
        threads = [] if name == "ohm_encode" else [torch.get_num_threads()]
        if getattr(self.functions, name)(*threads, *plain):
            raise MemoryError(f"expected memory for {name} of {values[0]} rows or graphs, there is none")


def active() -> Library | None:
    """The library in use, or None for torch alone."""
    if (_chosen.get() or os.environ.get("OHMFORMER_NATIVE")) == "off":
        return None
    try:
        return Library(_compiled())
    except OSError:
        return None


@contextmanager
def used(name: str | bool = "baseline") -> Iterator[None]:
    """Use one library inside the ``with``, or torch for "off"; the old library() follows."""
    global _library
    name = {True: "baseline", False: "off"}.get(name, name) if isinstance(name, bool) else name
    before, token = _library, _chosen.set(name)
    _library = None if name == "off" else _compiled()
    try:
        yield
    finally:
        _library = before
        _chosen.reset(token)


def library() -> ctypes.CDLL | None:
    """The compiled functions, or None if they have not been asked for."""
    return _library


def call(name: str, *values: Any) -> None:
    """Run a kernel of the library in use."""
    library = active() if _library is None else Library(_library)
    if library is None:
        raise RuntimeError(f"expected a native library for {name}, got none")
    library.call(name, *values)


@cache
def _compiled() -> ctypes.CDLL:
    """The library as it is kept, or made, in some seconds, and kept."""
    named = os.environ.get("CC") or "cc"
    compiler = shutil.which(named)
    if not compiler:
        raise OSError("expected a C compiler, as cc or in $CC, found none")
    kept = machine.cache() / f"native-{_checksum(compiler)}.so"
    if _is_ours(kept):
        return declared(ctypes.CDLL(str(kept)))
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=kept.parent)
    except OSError:  # nothing can be kept there
        folder = tempfile.TemporaryDirectory()
    with folder as name:
        made = Path(name) / "ohmformer.so"
        command = [compiler, *OPTIONS, "-o", str(made), *map(str, SOURCES), "-lm"]
        if subprocess.run([*command, "-fopenmp"], capture_output=True).returncode:  # one thread where there is no OpenMP
            try:
                subprocess.run(command, check=True, capture_output=True, text=True)
            except subprocess.CalledProcessError as error:
                *some, last = (source.name for source in SOURCES)
                names, said = f"{', '.join(some)} and {last}", error.stderr.strip()[:200]
                raise OSError(f"expected {named} to compile {names}, it says: {said}") from error
        made.chmod(0o755)
        library = declared(ctypes.CDLL(str(made)))
        with suppress(OSError):
            made.replace(kept)
        return library


def _checksum(compiler: str) -> str:
    """Of all that a compiled library depends on: sources, options, the compiler, the processor."""
    texts = [path.read_bytes() for path in sorted(HERE.rglob("*.[ch]"))]
    binary = Path(compiler).stat()
    about = OPTIONS, str(Path(compiler).resolve()), binary.st_size, binary.st_mtime_ns, machine.instructions()
    return hashlib.sha256(b"\0".join([*texts, repr(about).encode()])).hexdigest()[:16]


def _is_ours(path: Path) -> bool:
    """Whether a file is there that nobody but its owner, who is asking, could have written."""
    if not path.is_file():
        return False
    found = path.stat()
    return found.st_uid == os.getuid() and not found.st_mode & 0o022


def declared(library: ctypes.CDLL, *prefixes: str) -> ctypes.CDLL:
    """A library whose functions, all or those with some prefixes, know what they take and answer."""
    for name, (answers, *arguments) in _SIGNATURES.items():
        if name.startswith(prefixes or "ohm_"):
            function = getattr(library, name)
            function.restype = answers
            function.argtypes = [kind for kind, count in arguments for _ in range(count)]
    return library


_WHOLE, _SINGLE, _DOUBLE, _ARRAY = ctypes.c_int64, ctypes.c_float, ctypes.c_double, ctypes.c_void_p
_SIGNATURES: dict[str, tuple] = {
    "ohm_encode": (ctypes.c_int, (_WHOLE, 6), (_ARRAY, 7)),
    "ohm_direction": (None, (_WHOLE, 3), (_SINGLE, 1), (_ARRAY, 7)),
    "ohm_residual": (None, (_WHOLE, 4), (_ARRAY, 6)),
    "ohm_invert": (None, (_WHOLE, 3), (_DOUBLE, 1), (_ARRAY, 16)),
    "ohm_all_pairs": (None, (_WHOLE, 3), (_ARRAY, 6)),
    "ohm_on_spectrum": (ctypes.c_int, (_WHOLE, 5), (_ARRAY, 5)),
    "ohm_on_spectrum_backward": (ctypes.c_int, (_WHOLE, 5), (_ARRAY, 6)),
    "ohm_pair": (ctypes.c_int,),
    "ohm_norm": (None, (_WHOLE, 2), (_SINGLE, 3), (_ARRAY, 9)),
    "ohm_norm_backward": (None, (_WHOLE, 2), (_SINGLE, 1), (_ARRAY, 8)),
    "ohm_affine": (ctypes.c_int, (_WHOLE, 5), (_ARRAY, 11)),
    "ohm_affine_backward": (ctypes.c_int, (_WHOLE, 5), (_ARRAY, 16)),
    "ohm_mlp": (ctypes.c_int, (_WHOLE, 4), (_ARRAY, 11)),
    "ohm_mlp_backward": (ctypes.c_int, (_WHOLE, 4), (_ARRAY, 14)),
    "ohm_attend": (None, (_WHOLE, 5), (_SINGLE, 1), (_ARRAY, 6)),
    "ohm_attend_backward": (ctypes.c_int, (_WHOLE, 5), (_SINGLE, 1), (_ARRAY, 9)),
}
"""What every function answers, and its arguments: kinds and how many."""
