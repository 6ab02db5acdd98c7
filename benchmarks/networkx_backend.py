"""The networkx backend against networkx itself, function by function on the same graph, in one run, as ratios."""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import torch

import ohmformer as ohm
from measure import write_table
from ohmformer.integrations.currents import edge_rows
from ohmformer.solve.currents import sum_of_differences

GRAPHS: dict[str, Callable[[int], nx.Graph]] = {
    "small world": lambda n: nx.connected_watts_strogatz_graph(n, 6, 0.1, seed=0),
    "grid": lambda n: nx.convert_node_labels_to_integers(nx.grid_2d_graph(int(n**0.5), int(n**0.5))),
}


def questions(graph: nx.Graph) -> dict[str, Callable[..., Any]]:
    """Every function that is dispatched, with arguments that make it work."""
    nodes = list(graph)
    half = 10  # networkx takes minutes for more
    some, others = nodes[:half], nodes[-half:]
    plain = [
        nx.resistance_distance,
        nx.effective_graph_resistance,
        nx.current_flow_closeness_centrality,
        nx.current_flow_betweenness_centrality,
        nx.edge_current_flow_betweenness_centrality,
    ]
    subsets = [nx.current_flow_betweenness_centrality_subset, nx.edge_current_flow_betweenness_centrality_subset]
    seeded = [
        nx.approximate_current_flow_betweenness_centrality,
        nx.algebraic_connectivity,
        nx.fiedler_vector,
        nx.spectral_bisection,
        nx.spectral_ordering,
    ]
    calls: dict[str, Callable[..., Any]] = {f.__name__: lambda f=f, **o: f(graph, weight="w", **o) for f in plain}
    calls["resistance_distance, one pair"] = lambda **o: nx.resistance_distance(graph, nodes[0], nodes[-1], "w", **o)
    calls |= {f"{f.__name__}, {half} x {half}": lambda f=f, **o: f(graph, some, others, weight="w", **o) for f in subsets}
    calls |= {f.__name__: lambda f=f, **o: f(graph, weight="w", seed=0, **o) for f in seeded}
    return calls


def seconds(run: Callable[[], object], repeats: int) -> float:
    """The median of some runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def time_slices(side: int = 200, slices: int = 4) -> str:
    """What betweenness over all pairs of a grid takes, by a few slices of its edges after the first."""
    graph = ohm.Graph.from_networkx(nx.convert_node_labels_to_integers(nx.grid_2d_graph(side, side)))
    done, start = 0, 0.0
    for i, (_, rows) in enumerate(edge_rows(graph, torch.arange(graph.num_nodes))):
        sum_of_differences(rows)
        done, start = (done + len(rows), start) if i else (0, time.process_time())
        if i == slices:
            break
    each, memory = (time.process_time() - start) / done, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    whole = f"{each * graph.num_edges:.0f} s for all {graph.num_edges:,}"
    return f"{graph.num_nodes:,} nodes: {1e3 * each:.1f} ms of processor time an edge, {whole}, {memory:.2f} GB"


def main() -> None:
    """Measure, print, and write results/networkx_backend.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[500, 1000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="functions whose name has this in it")
    parser.add_argument("--slices", action="store_true", help="only time some edges of betweenness on 40,000 nodes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.slices:
        return print(time_slices())
    nx.config.cache_converted_graphs = False  # conversion is part of what a call costs
    rows = []
    for name, make in GRAPHS.items():
        for n in arguments.nodes:
            graph = make(n)
            rng = np.random.default_rng(0)
            for *_, data in graph.edges(data=True):
                data["w"] = float(rng.uniform(0.5, 2.0))
            for question, call in questions(graph).items():
                if arguments.only not in question:
                    continue
                call(backend="ohmformer")
                ours = seconds(lambda call=call: call(backend="ohmformer"), arguments.repeats)
                theirs = seconds(lambda call=call: call(backend="networkx"), 1)
                title = f"{name}, {len(graph):,} nodes, {graph.number_of_edges():,} edges"
                row = [title, question, f"{theirs:.3g} s", f"{ours:.3g} s", f"{theirs / ours:.1f}"]
                rows.append(row)
                print("  ".join(row), flush=True)
    header = ["graph", "function", "networkx", '`backend="ohmformer"`', "ratio"]
    notes = (
        f"Ours is the median of {arguments.repeats} runs after one to warm up, networkx one run; conversion is included, on "
        f"one thread. Betweenness over all pairs of a larger graph, extrapolated from some of its edges: {time_slices()}."
    )
    print(write_table("networkx_backend", "The networkx backend against networkx", header, rows, notes=notes))


if __name__ == "__main__":
    main()
