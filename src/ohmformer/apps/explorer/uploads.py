"""Edge lists that were uploaded: text only, capped before anything is read."""

from __future__ import annotations

import base64
import binascii
from pathlib import PurePath
from typing import Any

from ohmformer.apps.explorer.drawing import MOST_EDGES, Drawing, check_size
from ohmformer.apps.explorer.presets import drawn
from ohmformer.graph.files import DELIMITERS, parse_edges
from ohmformer.graph.places import least_stress

MOST_BYTES = 100_000
MOST_LINES = 4 * MOST_EDGES
WEIGHTS = ("resistance", "conductance")


def read_upload(filename: str, contents: str) -> Drawing:
    """Read the graph of an uploaded edge list, from the browser's ``data:...;base64,`` address.

    A third column counts only if the first line says what it is, as in ``source,target,resistance``.
    """
    suffix = PurePath(filename).suffix.lower()
    if suffix not in DELIMITERS:
        raise ValueError(f"expected an edge list of type {', '.join(DELIMITERS)}, got {PurePath(filename).name[:60]!r}")
    lines = _text(contents).splitlines()
    if len(lines) > MOST_LINES:
        raise ValueError(f"expected at most {MOST_LINES} lines, got {len(lines)}; larger graphs: ohmformer solve FILE")
    filled = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    header = [cell.strip() for cell in filled[0].split(DELIMITERS[suffix])] if filled else []
    named = [weight for weight in WEIGHTS if weight in header]
    if len(header) > 2 and len(named) != 1:
        raise ValueError(
            "expected two columns, or a first line such as source,target,resistance (or conductance) that says what the "
            f"others are, got {', '.join(header)[:60]!r}"
        )
    weight: dict[str, Any] = {named[0]: named[0]} if named else {}
    found = parse_edges(lines, "the file", DELIMITERS[suffix], **weight)
    check_size(found.graph.num_nodes, found.graph.num_edges)
    return drawn(found.graph, found.labels, least_stress(found.graph))


def _text(contents: str) -> str:
    encoded = contents.rpartition(",")[2]
    if len(encoded) * 3 > MOST_BYTES * 4 + 12:
        raise ValueError(f"expected a file of at most {MOST_BYTES // 1000} kB, got about {len(encoded) * 3 // 4000} kB")
    try:
        text = base64.b64decode(encoded, validate=True).decode("utf-8-sig")
    except (binascii.Error, UnicodeDecodeError):
        raise ValueError("expected an edge list as text (UTF-8), the file is not text") from None
    if "\0" in text:
        raise ValueError("expected an edge list as text (UTF-8), the file is not text")
    return text
