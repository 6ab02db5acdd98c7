"""Compiled code, where the machine has a C compiler: same answers, several times faster.

>>> from ohmformer import native
>>> native.enable()  # doctest: +SKIP

From then on molecules are encoded (:mod:`ohmformer.encoding.compiled`), small graphs inverted
(:mod:`ohmformer.small_compiled`) and many demands on a large graph solved for (:mod:`ohmformer.compiled`) by C where it can
do what is asked for. Nothing is compiled unless asked for.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = (HERE / "sparse.c", HERE / "small.c", HERE / "encoding" / "layers.c")
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


@cache
def _compiled() -> ctypes.CDLL:
    """The library, made once a process, in a second or two."""
    compiler = os.environ.get("CC") or shutil.which("cc")
    if not compiler:
        raise OSError("expected a C compiler, as cc or in $CC, found none")
    *some, last = (source.name for source in SOURCES)
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "ohmformer.so"
        try:
            subprocess.run([compiler, *OPTIONS, "-o", library, *SOURCES, "-lm"], check=True, capture_output=True, text=True)
        except subprocess.CalledProcessError as error:
            names, said = f"{', '.join(some)} and {last}", error.stderr.strip()[:200]
            raise OSError(f"expected {compiler} to compile {names}, it says: {said}") from error
        loaded = ctypes.CDLL(str(library))
    loaded.ohm_encode.argtypes = [ctypes.c_int64] * 6 + [ctypes.c_void_p] * 7
    loaded.ohm_direction.argtypes = [ctypes.c_int64] * 4 + [ctypes.c_float] + [ctypes.c_void_p] * 9
    loaded.ohm_residual.argtypes = [ctypes.c_int64] * 5 + [ctypes.c_void_p] * 6
    loaded.ohm_invert.argtypes = [ctypes.c_int64] * 3 + [ctypes.c_double] + [ctypes.c_void_p] * 16
    loaded.ohm_all_pairs.argtypes = [ctypes.c_int64] * 3 + [ctypes.c_void_p] * 6
    for name in ("ohm_direction", "ohm_residual", "ohm_invert", "ohm_all_pairs"):
        getattr(loaded, name).restype = None
    return loaded
