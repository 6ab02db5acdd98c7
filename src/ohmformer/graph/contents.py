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
"""What stands for standard input where a file is expected."""
GZIP = b"\x1f\x8b"
MARKS = (
    (re.compile(rb"PK\x03\x04"), ".npz"),
    (re.compile(rb"(?:\xef\xbb\xbf)?%%MatrixMarket", re.IGNORECASE), ".mtx"),
    (re.compile(rb"(?:\xef\xbb\xbf)?\s*<"), ".graphml"),
    (re.compile(rb"(?:\s*(?:%.*)?\n)*\s*(?:function\b|mpc\.)"), ".m"),
)
"""How files begin whose name has no suffix; others are edge lists."""


@dataclass(frozen=True)
class Contents:
    """The bytes of a file."""

    name: str
    """What messages call it."""
    kind: str
    """The suffix that says how to read it, in lower case; empty for an edge list of unknown separator."""
    data: bytes

    @classmethod
    def of(cls, name: str, data: bytes) -> Contents:
        """Unpack bytes, and find out how to read them, by the name's suffix or, if it has none, by their beginning."""
        data = _unpacked(data, name)
        found = (kind for mark, kind in MARKS if mark.match(data))
        return cls(name, suffix_of(name) or next(found, ""), data)


def suffix_of(name: str) -> str:
    """Return the suffix that says how to read a file, in lower case: ``.csv`` of ``edges.csv.gz``."""
    return Path(name.lower().removesuffix(".gz")).suffix


def open_text(path: Path, errors: str = "strict") -> TextIOWrapper:
    """Open a text file line by line, packed by gzip or not, with or without a byte order mark."""
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
    """What gzip has packed, one part after the other; other bytes as they are."""
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
