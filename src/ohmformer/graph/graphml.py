"""GraphML, read with the line of every edge, so that errors can name it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from xml.parsers import expat

import numpy as np

from ohmformer.graph.contents import Contents
from ohmformer.graph.directions import merge_directions
from ohmformer.graph.graph import Graph
from ohmformer.graph.labelled import NamedGraph
from ohmformer.graph.text_table import is_number


@dataclass
class Edge:
    """An edge of the file."""

    u: str
    v: str
    line: int
    directed: bool
    values: dict[str, str] = field(default_factory=dict)

    def place(self, name: str) -> str:
        """Return the name of the edge for messages."""
        return f"edge ({self.u}, {self.v}) in line {self.line} of {name}"


class _Reader:
    """Collects nodes and edges of a document while expat parses it."""

    def __init__(self, name: str):
        self.name = name
        self.nodes: dict[str, int] = {}
        self.edges: list[Edge] = []
        self.titles: dict[str, str] = {}
        """Names of the data of edges by key."""
        self.declared: set[str] = set()
        self.defaults: dict[str, str] = {}
        self.directed: bool | None = None
        self._inside: Edge | None = None
        self._key, self._text = "", ""
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters

    def read(self, data: bytes) -> None:
        """Read a whole document; raise a ValueError with the line if it is invalid."""
        try:
            self._parser.Parse(data, True)
        except expat.ExpatError as error:
            said = expat.errors.messages[error.code]
            raise ValueError(f"expected GraphML in {self.name}, line {error.lineno} is not: {said}") from None
        if self.directed is None:
            raise ValueError(f"expected a <graph> in {self.name}, got none up to line {self.line}")

    @property
    def line(self) -> int:
        return self._parser.CurrentLineNumber

    def _attribute(self, given: dict[str, str], key: str, element: str) -> str:
        if key not in given:
            raise ValueError(f"expected an attribute {key} of <{element}> in line {self.line} of {self.name}, got none")
        return given[key]

    def _start(self, element: str, given: dict[str, str]) -> None:
        self._text = ""
        match element.rpartition(":")[2]:
            case "key":
                self._key = self._attribute(given, "id", "key")
                self.declared.add(self._key)
                if given.get("for", "edge") in ("edge", "all"):
                    self.titles[self._key] = given.get("attr.name", self._key)
            case "graph":
                if self.directed is not None:
                    raise ValueError(f"expected one <graph> in {self.name}, got another in line {self.line}")
                self.directed = given.get("edgedefault") == "directed"
            case "node":
                node = self._attribute(given, "id", "node")
                if node in self.nodes:
                    raise ValueError(f"expected every node of {self.name} once, got {node!r} again in line {self.line}")
                self.nodes[node] = len(self.nodes)
            case "edge":
                u, v = (self._attribute(given, end, "edge") for end in ("source", "target"))
                directed = given.get("directed", str(self.directed)).lower() == "true"
                self._inside = Edge(u, v, self.line, directed, dict(self.defaults))
                self.edges.append(self._inside)
            case "data":
                self._key = self._attribute(given, "key", "data")
                if self._inside is not None and self._key not in self.declared:
                    self.titles[self._key] = self._key
            case "hyperedge":
                raise ValueError(f"expected edges between two nodes in {self.name}, got a <hyperedge> in line {self.line}")

    def _characters(self, text: str) -> None:
        self._text += text

    def _end(self, element: str) -> None:
        match element.rpartition(":")[2]:
            case "default" if self._key in self.titles:
                self.defaults[self.titles[self._key]] = self._text.strip()
            case "data" if self._inside is not None and self._key in self.titles:
                self._inside.values[self.titles[self._key]] = self._text.strip()
            case "edge":
                self._inside = None


def parse_graphml(
    contents: Contents, *, resistance: str | None, conductance: str | None, unit: bool, symmetrize: bool
) -> NamedGraph:
    """Read the graph of a GraphML document; the arguments are the flags of ``ohmformer solve``."""
    name, reader = contents.name, _Reader(contents.name)
    reader.read(contents.data)
    edges = reader.edges
    for edge in edges:
        for node in (edge.u, edge.v):
            if node not in reader.nodes:
                raise ValueError(f"expected an edge between nodes in line {edge.line} of {name}, there is no node {node!r}")
        if edge.directed and not symmetrize:
            raise ValueError(
                f"expected an undirected graph, line {edge.line} of {name} has a directed edge; "
                "--symmetrize takes each edge as undirected"
            )
    index = np.array([(reader.nodes[e.u], reader.nodes[e.v]) for e in edges], dtype=np.int64).reshape(-1, 2).T
    kind, attribute = ("resistance", resistance) if conductance is None else ("conductance", conductance)
    weights, notes = np.ones(len(edges)), ()
    if attribute is not None:
        weights = np.array([_weight(edge, attribute, kind, name) for edge in edges], dtype=np.float64)
    elif (found := sorted({key for edge in edges for key in edge.values})) and not unit:
        notes = (
            f"every edge has one ohm: attributes of edges ({', '.join(found)}) of {name} are not read "
            f"(--resistance {found[0]} or --conductance {found[0]} would)",
        )
    if symmetrize:
        stays = merge_directions(index, weights, lambda i: edges[i].place(name))
        index, weights = index[:, stays], weights[stays]
    given: dict[str, Any] = {kind: weights}
    return NamedGraph(Graph.from_edges(index.T, num_nodes=len(reader.nodes), **given), list(reader.nodes), notes)


def _weight(edge: Edge, attribute: str, kind: str, name: str) -> float:
    """Return a positive weight from an edge's attributes, or raise a ValueError that names its line."""
    where = edge.place(name)
    if attribute not in edge.values:
        raise ValueError(
            f"expected an attribute {attribute!r} on every edge, {where} has {', '.join(edge.values) or 'none'}"
        )
    text = edge.values[attribute]
    value = float(text) if is_number(text) else float("nan")
    if not (0 < value < float("inf") and 1 / value < float("inf")):
        raise ValueError(f"expected a positive and finite {kind} {attribute!r}, {where} has {text!r}")
    return value
