"""Compiled code, where the machine has a C compiler: same answers, several times faster.

>>> from ohmformer import native
>>> native.enable()  # doctest: +SKIP

From then on molecules are encoded, small graphs inverted and many demands on a large graph solved for by C where it can do
what is asked for. Nothing is compiled unless asked for; what was compiled is kept for the next
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
from functools import cache
from pathlib import Path
from typing import Any

from ohmformer.native import machine

HERE = Path(__file__).parent
SOURCES = tuple(HERE / f"{name}.c" for name in ("sparse", "small", "layers", "on_spectrum"))
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


@contextmanager
def used(wanted: bool = True) -> Iterator[None]:
    """Compiled code inside the ``with``, or torch, and what was before after it."""
    global _library
    before = _library
    _library = _compiled() if wanted else None
    try:
        yield
    finally:
        _library = before


def library() -> ctypes.CDLL | None:
    """The compiled functions, or None if they have not been asked for."""
    return _library


def call(name: str, *values: Any) -> None:
    """A compiled function that has its own threads, as many as torch has; tensors are given as addresses."""
    import torch

    if _library is None:
        raise RuntimeError(f"expected native.enable() before {name}")
    plain = [x.data_ptr() if isinstance(x, torch.Tensor) else x for x in values]
    if getattr(_library, name)(torch.get_num_threads(), *plain):
        raise MemoryError(f"expected memory for {name} of {values[0]} rows or graphs, there is none")


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
}
"""What every function answers, and its arguments: kinds and how many."""
