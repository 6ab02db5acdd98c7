"""Effective resistances of your own edge list, checked against networkx.

python examples/own_graph.py my_edges.csv --resistance ohm      (without a file it takes a small town)
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import combinations
from pathlib import Path
from typing import Any

import networkx as nx

import ohmformer as ohm
from ohmformer.graph.files import NamedGraph, read_graph

TOWN = """source,target,ohm
station,market,1.0
market,school,2.0
school,station,2.5
school,harbour,0.5
harbour,lighthouse,4.0
lighthouse,market,3.0
"""


def read(path: Path | None, resistance: str | None) -> NamedGraph:
    """The graph of a file, or the town."""
    if path is not None:
        return read_graph(path, resistance=resistance)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "town.csv"
        file.write_text(TOWN)
        return read_graph(file, resistance="ohm")


def main() -> None:
    """Read, solve, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", help="edge list: .csv, .tsv or .txt")
    parser.add_argument("--resistance", help="name of the column with resistances; without it every edge has 1")
    arguments = parser.parse_args()
    named = read(arguments.file, arguments.resistance)
    answer = ohm.effective_resistance(named.graph, "all")
    print(f"{named.graph}: {answer.method}, {answer.layers} layers, residual {answer.residual:.1e}")
    other = nx.Graph()
    for (u, v), r in zip(named.graph.edge_index.t().tolist(), named.graph.resistance.tolist(), strict=True):
        before = other.edges[u, v]["conductance"] if other.has_edge(u, v) else 0.0
        other.add_edge(u, v, conductance=before + 1 / r)  # parallel edges add conductance
    worst = 0.0
    for u, v in combinations(range(named.graph.num_nodes), 2):
        ours = float(answer.value[u, v])
        theirs: Any = nx.resistance_distance(other, u, v, weight="conductance", invert_weight=False)
        worst = max(worst, abs(ours - theirs))
        print(f"  {named.labels[u]:>12} - {named.labels[v]:<12} {ours:.6f} ohm")
    print(f"largest difference from networkx: {worst:.1e}")


if __name__ == "__main__":
    main()
