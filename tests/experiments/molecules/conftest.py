import pytest
import torch

from ohmformer.experiments.molecules.batches import Split
from ohmformer.experiments.molecules.config import RunConfig
from ohmformer.experiments.molecules.data import RunData
from ohmformer.experiments.molecules.sources import Tables
from ohmformer.experiments.molecules.table import MoleculeTable, from_smiles

SMILES = [
    "CCO", "c1ccccc1", "CC(=O)Oc1ccccc1C(=O)O", "CN1CCC[C@H]1c1cccnc1", "C1CCCCCCC1", "CC(C)Cc1ccc(cc1)C(C)C(=O)O",
    "O=C([O-])c1ccccc1", "C[NH2+]CC#N", "FC(F)(F)c1ccc2[nH]ccc2c1", "CC12CCC(CC1)C2(C)C", "OCC1OC(O)C(O)C(O)C1O", "CCCCCC",
]  # fmt: skip


@pytest.fixture(scope="session")
def table() -> MoleculeTable:
    return from_smiles(SMILES)[0]


@pytest.fixture(scope="session")
def split(table: MoleculeTable) -> Split:
    return Split(table, torch.linspace(-1, 1, len(table)))


@pytest.fixture(scope="session")
def tables(table: MoleculeTable) -> Tables:
    many = torch.arange(len(table)).repeat(4)
    return Tables(table.rows(many), table.rows(torch.arange(6)), table.rows(torch.arange(4, 12)))


@pytest.fixture
def small() -> RunConfig:
    return RunConfig(width=8, heads=2, layers=2, epochs=3, batch=10, channels=4, groups=4, loops=1)


@pytest.fixture
def data(small: RunConfig, tables: Tables) -> RunData:
    return RunData(small, tables)
