import networkx as nx
import pytest

from ohmformer.experiments.molecules.features import BONDS, describe
from ohmformer.graph.smiles import clean


def test_labels_are_symbol_explicit_hydrogens_and_charge():
    assert describe("C[NH2+]CC(=O)[O-]").atoms.count("NH2+1") == 1
    assert set(describe("C[NH2+]CC(=O)[O-]").atoms) == {"C", "NH2+1", "O", "O-1"}


def test_aromatic_bonds_become_single_and_double():
    kinds = sorted(BONDS[kind] for _, _, kind in describe("c1ccccc1").bonds)
    assert kinds == ["double"] * 3 + ["single"] * 3


def test_descriptors_are_those_of_rdkit():
    from rdkit import Chem
    from rdkit.Chem import Crippen

    smiles = "CC(=O)Oc1ccccc1C(=O)O"
    molecule = describe(smiles)
    assert molecule.logp == pytest.approx(Crippen.MolLogP(Chem.MolFromSmiles(smiles)), abs=1e-9)  # pyright: ignore
    assert 1 < molecule.accessibility < 2.5  # aspirin is among the easiest drugs to make


@pytest.mark.parametrize(("smiles", "ring"), [("CCCC", 0), ("c1ccccc1", 6), ("C1CCCCCCC1", 8), ("c1ccc2ccccc2c1", 6)])
def test_the_longest_ring_is_that_of_a_smallest_cycle_basis(smiles: str, ring: int):
    molecule = describe(smiles)
    graph = nx.Graph([bond[:2] for bond in molecule.bonds])
    assert molecule.ring == ring == max((len(c) for c in nx.minimum_cycle_basis(graph)), default=0)


def test_networkx_basis_may_have_a_longer_ring_than_the_smallest_one():
    bicycle = describe("CC12CCC(CC1)C2(C)C")
    assert bicycle.ring == 5 or bicycle.ring == 6
    assert bicycle.networkx_ring >= bicycle.ring


@pytest.mark.parametrize(
    ("smiles", "cleaned"),
    [("[CH2]C[N]", "CCN"), ("CC.CCCC", "CCCC"), ("C[C@@H](F)Cl", "CC(F)Cl"), ("C[N+](C)C", "C[N+](C)C")],
)
def test_cleaning_removes_stereo_marks_bare_brackets_and_small_fragments(smiles: str, cleaned: str):
    assert clean(smiles) == cleaned


@pytest.mark.parametrize("smiles", ["C", "", "not a molecule", "c1ccc"])
def test_a_text_that_is_no_molecule_with_bonds_is_refused(smiles: str):
    with pytest.raises(ValueError, match="expected a molecule"):
        describe(smiles)
