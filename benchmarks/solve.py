"""The front door against what a user would call instead, in one run, as ratios."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import networkx as nx
import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import LinearOperator, cg

import ohmformer as ohm
from measure import kernels, side_by_side, write_table
from ohmformer import Graph


def random_graph(nodes: int, edges: int, seed: int) -> Graph:
    """A random tree and random edges over it, conductances exp(U[-2, 2])."""
    rng = np.random.default_rng(seed)
    child = np.arange(1, nodes)
    parent = (rng.random(nodes - 1) * child).astype(np.int64)
    extra = rng.integers(0, nodes, (edges - nodes + 1, 2))
    pairs = np.concatenate([np.stack([parent, child], axis=1), extra])
    return Graph.from_edges(pairs, num_nodes=nodes, conductance=np.exp(rng.uniform(-2, 2, len(pairs))))


def molecules(count: int, seed: int) -> list[Graph]:
    """Graphs the size of ZINC's molecules: 15 to 35 nodes, a random tree of small degree closed to two rings."""
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        n = int(rng.integers(15, 36))
        edges = [(max(0, i - 1 - int(rng.integers(0, 3))), i) for i in range(1, n)]
        edges += [(i, i + 5) for i in (0, n // 2)]
        graphs.append(Graph.from_edges(edges))
    return graphs


def square_grid(side: int) -> Graph:
    """A square grid of unit resistances, numbered row by row."""
    node = np.arange(side * side).reshape(side, side)
    right = np.stack([node[:, :-1].ravel(), node[:, 1:].ravel()], axis=1)
    down = np.stack([node[:-1].ravel(), node[1:].ravel()], axis=1)
    return Graph.from_edges(np.concatenate([right, down]))


def large_demands(nodes: int, edges: int, demands: int, repeats: int) -> list[list[str]]:
    """Many demands at once on a large random graph, against conjugate gradients with Jacobi, one demand after the other.

    SciPy is given its matrix; ours gets the graph's edges, and the first question also pays for the matrix and its spectrum.
    """
    graph = random_graph(nodes, edges, seed=0)
    psi = graph.center(torch.randn(nodes, demands, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    answer = ohm.potentials(graph, psi, tol=1e-6)
    csr = graph.sparse_laplacian()
    laplacian = sp.csr_array((csr.values().numpy(), csr.col_indices().numpy(), csr.crow_indices().numpy()), shape=csr.shape)
    diagonal = laplacian.diagonal()
    jacobi = LinearOperator(laplacian.shape, matvec=lambda x: x / diagonal)  # pyright: ignore[reportCallIssue]
    some = min(8, demands)

    def ours(asked: Graph, *, in_c: bool = True) -> None:
        with kernels(in_c):
            ohm.potentials(asked, psi, tol=1e-6)

    took = side_by_side(
        {
            "first question": lambda: ours(replace(graph)),
            "next questions": lambda: ours(graph),
            "first question, torch alone": lambda: ours(replace(graph), in_c=False),
            "next questions, torch alone": lambda: ours(graph, in_c=False),
            "scipy": lambda: [cg(laplacian, psi[:, j].numpy(), rtol=1e-6, M=jacobi) for j in range(some)],
        },
        repeats=repeats,
    )
    theirs = took.pop("scipy") * demands / some
    question = f"{demands} demands, {nodes:,} nodes, {graph.num_edges:,} edges, residual 1e-6"
    mine = f"`potentials`, {answer.method}, {answer.layers} layers"
    return [
        [question, f"{mine}, {asked}", "`scipy.sparse.linalg.cg`, Jacobi", *_times(seconds, theirs)]
        for asked, seconds in took.items()
    ]


def all_pairs(nodes: int) -> list[str]:
    """All pairs of a graph of a few thousand nodes, against networkx."""
    graph = random_graph(nodes, 5 * nodes, seed=1)
    other = graph.to_networkx()
    ours = side_by_side({"ours": lambda: ohm.effective_resistance(replace(graph), "all")}, repeats=3, warmup=1)["ours"]
    start = time.perf_counter()
    nx.resistance_distance(other, weight="resistance")
    theirs = time.perf_counter() - start
    method = ohm.effective_resistance(graph, "all").method
    return [
        f"all pairs, {nodes:,} nodes",
        f"`effective_resistance`, {method}",
        "`networkx.resistance_distance`",
        *_times(ours, theirs),
    ]


def many_small(count: int, repeats: int) -> list[list[str]]:
    """A batch of molecule-sized graphs in one call, against loops; every call gets a batch that was never asked before."""
    graphs = molecules(count, seed=2)
    batch = Graph.collate(graphs)
    answer = ohm.effective_resistance(batch, "all")
    dense = [g.laplacian().numpy() for g in graphs]
    some = [g.to_networkx() for g in graphs[:100]]

    def ours(*, in_c: bool = True) -> None:
        with kernels(in_c):
            ohm.effective_resistance(replace(batch), "all")

    took = side_by_side(
        {
            "": ours,
            ", torch alone": lambda: ours(in_c=False),
            "numpy": lambda: [np.linalg.pinv(x) for x in dense],
            "networkx": lambda: [nx.resistance_distance(g, weight="resistance") for g in some],
        },
        repeats=repeats,
        in_a_row=5,
        warmup=1,
    )
    theirs = {"numpy.linalg.pinv": took.pop("numpy"), "networkx.resistance_distance": count / 100 * took.pop("networkx")}
    question = f"all pairs of {count:,} graphs of 15 to 35 nodes"
    mine = f"`effective_resistance`, {answer.method}, {answer.layers} layers"
    return [
        [question, mine + how, f"loop of `{name}`", *_times(seconds, other)]
        for how, seconds in took.items()
        for name, other in theirs.items()
    ]


def grid(side: int) -> list[str]:
    """A square grid, where depth is unreasonable and the answer says so."""
    graph = square_grid(side)
    psi = torch.zeros(side * side, dtype=torch.float64)
    psi[0], psi[-1] = 1.0, -1.0
    start = time.perf_counter()
    answer = ohm.potentials(graph, psi)
    took = time.perf_counter() - start
    method = f"{answer.method}, residual {answer.residual:.0e}: {answer.note}"
    return [f"corner to corner of a {side} x {side} grid", method, "", f"{took:.1f} s", "", ""]


def _times(ours: float, theirs: float) -> list[str]:
    return [f"{ours:.3g} s", f"{theirs:.3g} s", f"{theirs / ours:.1f}"]


def main() -> None:
    """Measure, print, and write results/solve.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--side", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    rows = []
    for row in (
        *many_small(1000, arguments.repeats),
        all_pairs(2000),
        *large_demands(arguments.nodes, arguments.edges, 64, arguments.repeats),
        grid(arguments.side),
    ):
        rows.append(row)
        print("  ".join(row), flush=True)
    header = ["question", "ours", "instead", "ours takes", "instead takes", "ratio"]
    notes = (
        f"Medians of {arguments.repeats} runs; loops over demands and networkx graphs are timed on 8 and 100 and scaled up."
    )
    print(write_table("solve", "The front door against what a user would call instead", header, rows, notes=notes))


if __name__ == "__main__":
    main()
