"""A user's own file, read as ``ohmformer solve`` reads it: the same formats, the same options, the same messages."""

from __future__ import annotations

import base64
import binascii
import io
import re
import shlex
import zipfile
import zlib
from pathlib import PurePath
from typing import Any

from ohmformer.apps.explorer.drawing import Drawing, check_size
from ohmformer.apps.explorer.presets import drawn
from ohmformer.graph.contents import GZIP, Contents
from ohmformer.graph.files import LISTS, parse_graph
from ohmformer.graph.places import least_stress

MOST_BYTES = 500_000
LONGEST_OPTIONS = 200
VALUES = ("resistance", "conductance", "source", "target", "sep")
"""Options of ``ohmformer solve`` about the file that take a value."""
WEIGHTS = {"resistance", "conductance", "unit"}
SWITCHES = {
    "unit": ("unit", True),
    "symmetrize": ("symmetrize", True),
    "header": ("header", True),
    "no-header": ("header", False),
}
WORDS = {
    "resistance": "resistance",
    "ohm": "resistance",
    "ohms": "resistance",
    "conductance": "conductance",
    "siemens": "conductance",
}
"""Words of a header that say what the column holds, so that no option has to."""


def read_upload(filename: str, contents: str, options: str = "") -> tuple[Drawing, str]:
    """Read the graph of an uploaded file, from the browser's ``data:...;base64,`` address; a remark on how it was read too.

    Options are those of ``ohmformer solve``, as in ``--resistance ohm --sep ';'``. A column that is called resistance, ohm,
    conductance or siemens counts without them.
    """
    given, data = read_options(options), _bytes(contents)
    file = Contents.of(PurePath(filename.replace("\\", "/")).name[:60] or "the file", data)
    found = parse_graph(file, **given, **({} if given.keys() & WEIGHTS else _named_weight(file)))
    check_size(found.graph.num_nodes, found.graph.num_edges)
    return drawn(found.graph, found.labels, least_stress(found.graph)), " ".join(found.notes)


def read_options(text: str) -> dict[str, Any]:
    """Read options such as ``--resistance ohm --sep ';' --no-header``; a ValueError says which ones there are."""
    if len(text) > LONGEST_OPTIONS:
        raise ValueError(f"expected options of at most {LONGEST_OPTIONS} characters, got {len(text)}")
    try:
        words = shlex.split(text.replace("=", " "))
    except ValueError:
        raise ValueError(f"expected options with closed quotes, got {text!r}") from None
    found: dict[str, Any] = {}
    while words:
        word = words.pop(0)
        name = word.removeprefix("--")
        if name in SWITCHES:
            key, value = SWITCHES[name]
            found[key] = value
        elif name in VALUES and words:
            found[name] = words.pop(0)
        else:
            known = ", ".join([*(f"--{v} VALUE" for v in VALUES), *(f"--{s}" for s in SWITCHES)])
            raise ValueError(f"expected options among {known}, got {word[:40]!r}")
    return found


def _named_weight(file: Contents) -> dict[str, Any]:
    """The column of an edge list whose name says what it holds, if exactly one does."""
    if file.kind not in LISTS:
        return {}
    lines = file.data.decode("utf-8-sig", errors="replace").splitlines()
    first = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    cells = [cell.strip(' "') for cell in re.split(r"[,;\t]" if re.search(r"[,;\t]", first) else r"\s+", first)]
    named = [cell for cell in cells if cell.lower() in WORDS]
    return {WORDS[named[0].lower()]: named[0]} if len(named) == 1 else {}


def _bytes(contents: str) -> bytes:
    encoded = contents.rpartition(",")[2]
    if len(encoded) * 3 > MOST_BYTES * 4 + 12:
        raise ValueError(f"expected a file of at most {MOST_BYTES // 1000} kB, got about {len(encoded) * 3 // 4000} kB")
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("expected a file as the browser sends it, in base64, got something else") from None
    if _unpacked_size(data) > MOST_BYTES:
        raise ValueError(f"expected a file of at most {MOST_BYTES // 1000} kB, got one that unpacks to more")
    return data


def _unpacked_size(data: bytes) -> int:
    """Count the bytes of a packed file, no further than needed to refuse it; 0 for damaged ones, which reading refuses."""
    try:
        if data.startswith(GZIP):
            return len(zlib.decompressobj(wbits=31).decompress(data, MOST_BYTES + 1))
        if data.startswith(b"PK"):
            with zipfile.ZipFile(io.BytesIO(data)) as packed:
                return sum(part.file_size for part in packed.infolist())
    except (zlib.error, zipfile.BadZipFile):
        pass
    return 0
