"""The default encoder on large graphs: seconds, whether exact, the stated error, and the true one at some nodes.

The truth of an estimate is ``p(N)_uu`` at random nodes from columns of polynomials of N over the whole graph: channels of
the untrained encoder are of degree 16, and ``T_2k = 2 T_k^2 - 1``, so that eight products with N are enough.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import networkx as nx
import torch
from torch_geometric.data import Data

from measure import side_by_side, write_table
from ohmformer.encoding import LinearTransformerPE, engines, large
from ohmformer.encoding.inputs import read_pairs
from ohmformer.encoding.on_spectrum import on_spectrum


def of_networkx(graph: nx.Graph) -> Data:
    """Every edge in both directions."""
    edges = torch.tensor(list(nx.convert_node_labels_to_integers(graph).edges())).t()
    return Data(edge_index=torch.cat([edges, edges.flip(0)], dim=1), num_nodes=graph.number_of_nodes())


def random_graph(nodes: int, edges: int) -> Data:
    """Random pairs of nodes."""
    index = torch.randint(0, nodes, (2, edges), generator=torch.Generator().manual_seed(0))
    index = index[:, index[0] != index[1]]
    return Data(edge_index=torch.cat([index, index.flip(0)], dim=1), num_nodes=nodes)


def grid(side: int) -> Data:
    """A square grid."""
    node = torch.arange(side * side).view(side, side)
    pairs = [torch.stack([a.flatten(), b.flatten()]) for a, b in ((node[1:], node[:-1]), (node[:, 1:], node[:, :-1]))]
    index = torch.cat(pairs, dim=1)
    return Data(edge_index=torch.cat([index, index.flip(0)], dim=1), num_nodes=side * side)


def roads(nodes: int) -> Data:
    """A tree of shortest connections among random points and every fourth of the other near pairs: like roads."""
    plane = nx.random_geometric_graph(nodes, 1.8 / nodes**0.5, seed=1)
    for u, v in plane.edges():
        (a, b), (c, d) = plane.nodes[u]["pos"], plane.nodes[v]["pos"]
        plane.edges[u, v]["weight"] = ((a - c) ** 2 + (b - d) ** 2) ** 0.5
    tree = nx.minimum_spanning_tree(plane)
    tree.add_edges_from(list(plane.edges())[::12])
    return of_networkx(tree)


def truth(model: LinearTransformerPE, data: Data, chosen: torch.Tensor) -> torch.Tensor:
    """Channels at some nodes, by 8 products of the whole N with their unit vectors."""
    pairs = read_pairs(data.edge_index, None, None, data.num_nodes, l1=False, dtype=torch.float64)
    rows, steps = large.Rows.of(pairs, torch.float32), torch.tensor([[1.0, 1.0, 2.0]]).repeat(8, 1)
    steps[0, 1:] = torch.tensor([0.0, 1.0])
    k = torch.arange(17).double()  # Chebyshev points, and the matrix from T_k(N) to Lagrange polynomials of N
    half = torch.where((k == 0) | (k == 16), 0.5, 1.0).double()
    values, turn = 1 + torch.cos(torch.pi / 16 * k), half[:, None] * half * torch.cos(torch.pi / 16 * k[:, None] * k) / 8
    found = []
    for some in chosen.split(large.TOGETHER):
        column = torch.arange(len(some))
        unit = torch.zeros(len(rows.diagonal), len(some)).index_put((some, column), torch.ones(len(some)))
        columns = large._run(rows, steps, unit)
        before, own = next(columns), [torch.ones(len(some), dtype=torch.float64)]
        for now in columns:
            first = now[some, column].double() if len(own) == 1 else own[1]
            own += [2 * (a * now).sum(0, dtype=torch.float64) - b for a, b in ((before, first), (now, 1.0))]
            before = now
        found.append(torch.stack(own, dim=1).float())
    owner = torch.zeros(17, dtype=torch.long)
    p = on_spectrum(
        values.float(), torch.tensor([0, 17]), owner, model._weights().detach(), restore=True, count=torch.ones(17)
    )
    return torch.cat(found) @ turn.float() @ p


@torch.no_grad()
def main() -> None:
    """Measure, print, and write results/encoding-large.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--exact", type=int, default=1000, help="nodes of the million whose truth is computed; 0 for none")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model, both = (LinearTransformerPE(16, norm=None, read=read).eval() for read in ("nodes", ("nodes", "edges")))
    small: dict[str, Data] = {
        "ring, 3,000 nodes": of_networkx(nx.cycle_graph(3000)),
        "roads, 3,000 nodes": roads(3000),
        "tree, 3,000 nodes": of_networkx(nx.random_labeled_tree(3000, seed=1)),
        "random 4-regular, 3,000 nodes": of_networkx(nx.random_regular_graph(4, 3000, seed=1)),
    }
    runs: dict[str, Callable[[], object]] = {name: lambda data=data: model(data) for name, data in small.items()}
    runs |= {f"{name}, nodes and edges": lambda data=data: both(data) for name, data in small.items()}
    median = side_by_side(runs, repeats=arguments.repeats, warmup=1)
    rows = [[name, f"{seconds:.3f}", "exact", ""] for name, seconds in median.items()]
    for name, data in {
        "grid 1000 x 1000": grid(1000),
        "random, 10^6 nodes, 5 x 10^6 edges": random_graph(10**6, 5 * 10**6),
    }.items():
        start = time.perf_counter()
        found = model(data)
        seconds = time.perf_counter() - start
        start = time.perf_counter()
        both(data)
        with_edges = time.perf_counter() - start
        stated, off = model.standard_error(data), ""
        if float(stated.max()) > 0 and arguments.exact:
            chosen = torch.randperm(data.num_nodes or 0, generator=torch.Generator().manual_seed(1))[: arguments.exact]
            exact, near = truth(model, data, chosen), found[chosen]
            whole = ((near - exact).norm(dim=1) / exact.norm(dim=1)).median()
            spread = (exact.var(0) + 1e-4).sqrt()
            scaled = (((near - exact) / spread).norm(dim=1) / ((exact - exact.mean(0)) / spread).norm(dim=1)).median()
            even = ((near - exact).abs() / exact.abs()).median(0).values[1::2]
            off = (
                f"{100 * whole:.2f} % of an encoding, {100 * scaled:.1f} % of a normalised one; "
                f"walks of 2, 4, ... steps {', '.join(f'{100 * x:.1f}' for x in even.tolist())} %"
            )
        text = "exact" if not float(stated.max()) else f"at most {float(stated.max()):.1e}"
        rows += [[name, f"{seconds:.1f}", text, off], [f"{name}, nodes and edges", f"{with_edges:.1f}", text, ""]]
    print("\n".join("  ".join(row) for row in rows))
    notes = (
        f"Graphs above {engines.SPECTRA_UP_TO} nodes. Errors are medians over {arguments.exact} nodes; normalised: columns "
        "centred and over their spread, as the module's norm does. Odd walks on a random graph return with a probability of "
        "1e-6 or never."
    )
    header = ["graph", "seconds", "standard error of a channel", "off the truth, median"]
    print(write_table("encoding-large", "Encoding large graphs", header, rows, notes=notes))


if __name__ == "__main__":
    main()
