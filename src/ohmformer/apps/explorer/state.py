"""A :class:`State` determines everything the page shows; as JSON it lives in the browser, as a query it is the permalink.

A permalink is ``?v=1&layer=7&state=...``, the state being deflated JSON in base64. Whatever comes back is checked as if a
stranger had written it.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qs, urlencode

from ohmformer.apps.explorer.drawing import MOST_EDGES, MOST_NODES, Drawing
from ohmformer.apps.explorer.methods import METHODS, TRAINED
from ohmformer.apps.explorer.presets import CAFFEINE, FAMILIES, LONGEST_SMILES, OTHERS

VERSION = 1
MOST_LAYERS = 200
MOST_AMPERES = 100.0
LONGEST_TIME = 100.0
LONGEST_QUERY = 60_000
"""Less than the 65,536 bytes that Python's server takes in a line."""
LONGEST_JSON = 400_000
LARGEST = 1e12


@dataclass(frozen=True)
class State:
    """A drawing and a question about it."""

    drawing: Drawing
    origin: str = "drawn"
    """Where the graph comes from: a family, ``molecule``, ``upload``, or ``drawn``."""
    smiles: str = CAFFEINE
    task: str = "electric"
    method: str = "gradient-descent"
    layers: int = 60
    """The depth of the Transformer."""
    proposed: bool = True
    """Whether the page chose the depth; it then changes with the graph."""
    layer: int = 60
    """The layer after which the answer is shown."""
    currents: tuple[tuple[int, float], ...] = ()
    """Pairs ``(node, ampere)``, positive where current goes in."""
    source: int = 0
    """The node that resistances are measured from, or where the heat is put."""
    time: float = 1.0
    """The time s in exp(-sL)."""
    which: int = 1
    """Which eigenvector, counted from 1."""
    beside: str = ""
    """A second construction, shown beside the first; empty for none."""

    def __post_init__(self) -> None:
        nodes = len(self.drawing.names)
        _among("graph", self.origin, [*FAMILIES, *OTHERS])
        _among("task", self.task, list(METHODS))
        for method in (self.method, self.beside):
            if method and not method.startswith(TRAINED):
                _among("construction", method, list(METHODS[self.task]))
        within("the number of layers", self.layers, 1, MOST_LAYERS)
        within("a layer", self.layer, 0, self.last)
        within("a time", self.time, 1e-3, LONGEST_TIME)
        within("the number of an eigenvector", self.which, 1, MOST_NODES)
        within("the length of the SMILES", len(self.smiles), 0, LONGEST_SMILES)
        within("the source", self.source, 0, max(nodes - 1, 0))
        for node, ampere in self.currents:
            within("a node with current", node, 0, nodes - 1)
            within("a current", ampere, -MOST_AMPERES, MOST_AMPERES)
        if len({node for node, _ in self.currents}) != len(self.currents):
            raise ValueError("expected one current per node, got two for one")

    @property
    def last(self) -> int:
        """The last layer that can be shown; a construction beside this one may be deeper."""
        return MOST_LAYERS if self.beside else self.layers

    def as_json(self) -> dict[str, Any]:
        """Convert to plain types for the browser."""
        d = self.drawing
        nodes = [[name, *place] for name, place in zip(d.names, d.places, strict=True)]
        edges = [[*edge, ohm] for edge, ohm in zip(d.edges, d.ohms, strict=True)]
        question = {name: getattr(self, name) for name in QUESTION}
        return {"v": VERSION, "nodes": nodes, "edges": edges, **question, "currents": [list(c) for c in self.currents]}

    @classmethod
    def from_json(cls, data: Any) -> State:
        """Read what ``as_dict`` wrote; a ValueError if it is anything else."""
        if not isinstance(data, dict) or data.get("v") != VERSION:
            raise ValueError(f"expected a state of version {VERSION}, got something else")
        nodes, edges = _rows(data, "nodes", 3, MOST_NODES), _rows(data, "edges", 3, MOST_EDGES)
        drawing = Drawing(
            tuple(_text(name) for name, _, _ in nodes),
            tuple((number(x), number(y)) for _, x, y in nodes),
            tuple((integer(u), integer(v)) for u, v, _ in edges),
            tuple(number(ohm) for _, _, ohm in edges),
        )
        currents = tuple((integer(i), number(a)) for i, a in _rows(data, "currents", 2, MOST_NODES))
        question = {name: read(data.get(name)) for name, read in QUESTION.items()}
        return cls(drawing, currents=currents, **question)

    def query(self) -> str:
        """Write the permalink's query, without the question mark; the layer is written in plain."""
        text = json.dumps({**self.as_json(), "layer": self.last}, separators=(",", ":")).encode()
        packed = base64.urlsafe_b64encode(zlib.compress(text, 9)).rstrip(b"=").decode()
        return urlencode({"v": VERSION, "layer": self.layer, "state": packed})

    @classmethod
    def from_query(cls, query: str) -> State:
        """Read the state of a permalink; a ValueError if it is no good."""
        if len(query) > LONGEST_QUERY:
            raise ValueError(f"expected a link of at most {LONGEST_QUERY} characters, got {len(query)}")
        fields = parse_qs(query.removeprefix("?"))
        if fields.get("v") != [str(VERSION)] or "state" not in fields:
            raise ValueError(f"expected a link of version {VERSION} of this page, got another one")
        packed = fields["state"][0]
        try:
            inflate = zlib.decompressobj()
            text = inflate.decompress(
                base64.b64decode(packed + "=" * (-len(packed) % 4), b"-_", validate=True), LONGEST_JSON
            )
            state = cls.from_json(json.loads(text))
        except (binascii.Error, zlib.error, UnicodeError, json.JSONDecodeError, RecursionError):
            raise ValueError("expected a whole link, this one is damaged") from None
        layer = fields.get("layer", [""])[0]
        return replace(state, layer=min(int(layer), state.last)) if layer.isdecimal() and len(layer) < 6 else state


def number(value: Any) -> float:
    """Read a number of reasonable size; a ValueError if it is anything else."""
    if value is None:
        raise ValueError("expected a number, got nothing")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected a number, got {str(value)[:40]!r}")
    if not abs(value) <= LARGEST:
        raise ValueError(f"expected a number between -{LARGEST:g} and {LARGEST:g}, got another one")
    return float(value)


def integer(value: Any) -> int:
    """Read a whole number; a ValueError if it is anything else."""
    if number(value) != int(number(value)):
        raise ValueError(f"expected a whole number, got {value!r}")
    return int(value)


def within(what: str, value: int | float, low: int | float, high: int | float) -> None:
    """Raise a ValueError if a number lies outside a range."""
    if not low <= value <= high:
        raise ValueError(f"expected {what} from {low:g} to {high:g}, got {value:g}")


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, got {str(value)[:40]!r}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, got {str(value)[:40]!r}")
    return value


QUESTION = {
    "origin": _text, "smiles": _text, "task": _text, "method": _text, "layers": integer, "layer": integer,
    "proposed": _truth, "source": integer, "time": number, "which": integer,
    "beside": lambda value: "" if value is None else _text(value),  # links of earlier versions have none
}  # fmt: skip
"""What a state holds beside the drawing and the currents, and how each is read."""


def _rows(data: dict[str, Any], name: str, width: int, most: int) -> list[Any]:
    rows = data.get(name)
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == width for row in rows):
        raise ValueError(f"expected {name} as rows of {width}, got something else")
    if len(rows) > most:
        raise ValueError(f"expected at most {most} {name}, got {len(rows)}")
    return rows


def _among(what: str, got: str, allowed: list[str]) -> None:
    if got not in allowed:
        raise ValueError(f"expected a {what} among {', '.join(allowed)}, got {got[:40]!r}")
