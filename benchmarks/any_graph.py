"""A thousand awkward graphs: how often each library fails, and how.

Disconnected, isolated nodes, fewer nodes than eigenvectors asked for, resistances from 1e-8 to 1e8, duplicates, self-loops.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.transforms import AddLaplacianEigenvectorPE

import ohmformer as ohm
from measure import kernels, write_table
from ohmformer import Graph

Edges = tuple[int, np.ndarray, np.ndarray]


def awkward(rng: np.random.Generator) -> Edges:
    """Up to 14 nodes and 25 edges, drawn without any care."""
    nodes = int(rng.integers(1, 15))
    edges = rng.integers(0, nodes, (int(rng.integers(0, 26)), 2))
    return nodes, edges, 10.0 ** rng.uniform(-8, 8, len(edges))


def ours(ask: Callable[[Graph], ohm.Answer], *, in_c: bool = True) -> Callable[[Edges], float]:
    """A question to the front door."""

    def run(graph: Edges) -> float:
        nodes, edges, resistance = graph
        with kernels(in_c):
            return _worst(ask(Graph.from_edges(edges, num_nodes=nodes, resistance=resistance)).value.numpy())

    return run


def pyg(graph: Edges) -> float:
    """PyG's Laplacian eigenvectors."""
    nodes, edges, _ = graph
    index = torch.as_tensor(np.concatenate([edges, edges[:, ::-1]]).T.copy())
    made = AddLaplacianEigenvectorPE(8, attr_name="pe", is_undirected=True)(Data(edge_index=index, num_nodes=nodes))
    return _worst(made.pe.numpy())


def networkx(graph: Edges) -> float:
    """Networkx's resistance distance of all pairs."""
    nodes, edges, resistance = graph
    g = nx.MultiGraph()
    g.add_nodes_from(range(nodes))
    g.add_weighted_edges_from([(int(u), int(v), float(r)) for (u, v), r in zip(edges, resistance, strict=True)])
    distances: Any = nx.resistance_distance(g, weight="weight")
    return _worst(np.array([list(row.values()) for row in dict(distances).values()]))


def _worst(values: np.ndarray) -> float:
    return math.nan if np.isnan(values).any() else 0.0


def outcome(run: Callable[[Edges], float], graph: Edges) -> str:
    """What became of a question: an answer, NaN, a refusal that says what can be reached, or an exception."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return "NaN" if math.isnan(run(graph)) else "answered"
    except ValueError as error:
        return "refused" if "reaches" in str(error) else f"ValueError: {str(error).splitlines()[0][:60]}"
    except Exception as error:  # whatever it is, it is counted
        return f"{type(error).__name__}: {str(error).splitlines()[0][:60]}"


def main() -> None:
    """Ask, count, and write results/any_graph.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=1000)
    count = parser.parse_args().graphs
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    graphs = [awkward(rng) for _ in range(count)]
    signal = torch.Generator()
    questions: dict[str, Callable[[Edges], float]] = {
        "`ohm.potentials`": ours(
            lambda g: ohm.potentials(
                g, torch.randn(g.num_nodes, 2, generator=signal.manual_seed(0), dtype=torch.float64), center=True
            )
        ),
        '`ohm.effective_resistance(g, "all")`': ours(lambda g: ohm.effective_resistance(g, "all")),
        '`ohm.effective_resistance(g, "all")`, torch alone': ours(lambda g: ohm.effective_resistance(g, "all"), in_c=False),
        "`ohm.heat_kernel`": ours(ohm.heat_kernel),
        "`ohm.resistive_embedding`": ours(ohm.resistive_embedding),
        "`ohm.eigenvectors(g, 8)`": ours(lambda g: ohm.eigenvectors(g, 8)),
        "PyG `AddLaplacianEigenvectorPE(8)`": pyg,
        "`networkx.resistance_distance`": networkx,
    }
    rows = []
    for name, run in questions.items():
        counts = Counter(outcome(run, graph) for graph in graphs)
        failed = count - counts["answered"] - counts["refused"]
        how = "; ".join(f"{k} ({v})" for k, v in counts.most_common() if k not in ("answered", "refused"))
        rows.append([name, str(counts["answered"]), str(counts["refused"]), str(failed), how.replace("|", "/")])
        print("  ".join(rows[-1]), flush=True)
    header = ["question", "answered", "refused, saying what can be reached", "failed", "how"]
    print(write_table("any_graph", f"{count:,} awkward graphs", header, rows, notes=(__doc__ or "").splitlines()[2]))


if __name__ == "__main__":
    main()
