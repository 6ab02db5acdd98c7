"""All edge resistances of a large graph by short walks and projections, and how far some of them are from exact solves."""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from rich.progress import Progress

import ohmformer as ohm
from measure import write_table
from solve import random_graph


def main() -> None:
    """Estimate, compare, and write results/edge_resistances.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--eps", type=float, default=0.1)
    parser.add_argument("--sample", type=int, default=500)
    arguments = parser.parse_args()
    graph = random_graph(arguments.nodes, arguments.edges, seed=0)
    start = time.perf_counter()
    with Progress() as bar:
        task = bar.add_task("projections", total=None)  # the first ones say how many are needed
        answer = ohm.effective_resistance(
            graph, eps=arguments.eps, progress=lambda done, _: bar.update(task, completed=done)
        )
    took = time.perf_counter() - start
    chosen = np.random.default_rng(1).choice(graph.num_edges, arguments.sample, replace=False)
    ends = graph.edge_index.t()[torch.as_tensor(chosen)]
    error = (answer.value[chosen] / ohm.effective_resistance(graph, ends, tol=1e-9).value - 1).abs()
    row = [
        f"{graph.num_edges:,} edges, {graph.num_nodes:,} nodes", f"{arguments.eps:g}", answer.note, f"{took:.1f} s",
        f"{float(error.max()):.4f}", f"{float(error.mean()):.4f}",
    ]  # fmt: skip
    header = ["graph", "eps", "how", "took", f"largest error in {arguments.sample} edges", "mean error"]
    print(write_table("edge_resistances", "All edge resistances of a large graph", header, [row]))


if __name__ == "__main__":
    main()
