"""What a file or standard input holds: its bytes, unpacked if they are gzip, and how they are to be read."""

from __future__ import annotations

import gzip
import re
import sys
import zlib
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path

STDIN = "-"
"""Stands for standard input where a file name is expected."""
GZIP = b"\x1f\x8b"
MARKS = (
    (re.compile(rb"PK\x03\x04"), ".npz"),
    (re.compile(rb"(?:\xef\xbb\xbf)?%%MatrixMarket", re.IGNORECASE), ".mtx"),
    (re.compile(rb"(?:\xef\xbb\xbf)?\s*<"), ".graphml"),
    (re.compile(rb"(?:\s*(?:%.*)?\n)*\s*(?:function\b|mpc\.)"), ".m"),
)
"""First bytes of file formats, to recognise files whose name has no suffix; all others are edge lists."""


@dataclass(frozen=True)
class Contents:
    """The decompressed bytes of a file."""

    name: str
    """Name of the file in messages."""
    kind: str
    """The suffix that determines the format, in lower case; empty for an edge list of unknown separator."""
    data: bytes

    @classmethod
    def of(cls, name: str, data: bytes) -> Contents:
        """Decompress bytes and determine their format, by the suffix of the name or, if it has none, by the first bytes."""
        data = _unpacked(data, name)
        found = (kind for mark, kind in MARKS if mark.match(data))
        return cls(name, suffix_of(name) or next(found, ""), data)


def suffix_of(name: str) -> str:
    """Return the suffix that determines the format of a file, in lower case: ``.csv`` for ``edges.csv.gz``."""
    return Path(name.lower().removesuffix(".gz")).suffix


def open_text(path: Path, errors: str = "strict") -> TextIOWrapper:
    """Open a text file for reading, compressed by gzip or not, with or without a byte order mark."""
    opened = gzip.GzipFile(path) if path.suffix.lower() == ".gz" else path.open("rb")
    return TextIOWrapper(opened, encoding="utf-8-sig", errors=errors, newline="")


def read_contents(path: Path, what: str = "a file") -> Contents:
    """Read a file, a pipe or, for ``-``, standard input."""
    if str(path) == STDIN:
        return Contents.of("standard input", sys.stdin.buffer.read())
    if not path.is_file() and not path.is_fifo():
        raise ValueError(f"expected {what}, there is no file {path}")
    return Contents.of(path.name, path.read_bytes())


def _unpacked(data: bytes, name: str) -> bytes:
    """Decompress gzip data, of one or several members; return other data unchanged."""
    parts: list[bytes] = []
    packed = data
    while packed.startswith(GZIP):
        unpacker = zlib.decompressobj(wbits=31)
        try:
            parts.append(unpacker.decompress(packed))
            whole = unpacker.eof
        except zlib.error:
            whole = False
        if not whole:
            line = b"".join(parts).count(b"\n") + 1
            raise ValueError(f"expected whole gzip data in {name}, got damaged data: it ends or breaks after line {line}")
        packed = unpacker.unused_data
    return b"".join(parts) if parts else data
