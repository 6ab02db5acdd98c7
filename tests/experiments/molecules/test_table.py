from pathlib import Path

import pytest
import torch

from ohmformer.experiments.molecules.data import depth_first, uniform
from ohmformer.experiments.molecules.features import describe
from ohmformer.experiments.molecules.table import MoleculeTable, from_smiles
from tests.experiments.molecules.conftest import SMILES


def test_a_table_holds_what_describe_says(table: MoleculeTable):
    for m, smiles in enumerate(SMILES):
        molecule = describe(smiles)
        one = table.rows(torch.tensor([m]))
        assert [table.labels[i] for i in one.atom.tolist()] == molecule.atoms
        assert list(zip(*one.ends.tolist(), one.bond.tolist(), strict=True)) == molecule.bonds
        assert one.parts[0, :3].tolist() == pytest.approx([molecule.logp, molecule.accessibility, molecule.ring], rel=1e-6)


def test_two_processes_make_the_same_table_as_one():
    alone, _ = from_smiles(SMILES * 50, workers=1)
    together, _ = from_smiles(SMILES * 50, workers=2)
    assert together.labels == alone.labels
    for name in ("atom", "ends", "bond", "node_start", "bond_start", "parts", "row"):
        assert torch.equal(getattr(together, name), getattr(alone, name))


def test_unreadable_molecules_are_listed_and_not_fatal():
    table, bad = from_smiles(["CC", "xyz", "C", "CCC"])
    assert table.row.tolist() == [0, 3]
    assert [row for row, _ in bad] == [1, 2]
    assert all(why.startswith("expected") for _, why in bad)


def test_nothing_but_unreadable_molecules_is_refused():
    with pytest.raises(ValueError, match="expected molecules as SMILES, got none in 2 lines"):
        from_smiles(["xyz", ""])


def test_saved_tables_come_back(table: MoleculeTable, tmp_path: Path):
    again = MoleculeTable.load(table.save(tmp_path / "t.safetensors"))
    assert again.labels == table.labels
    assert torch.equal(again.ends, table.ends)
    (tmp_path / "broken.safetensors").write_bytes((tmp_path / "t.safetensors").read_bytes()[:-50])
    with pytest.raises(ValueError, match="expected processed molecules in broken"):
        MoleculeTable.load(tmp_path / "broken.safetensors")


def test_labels_unseen_in_training_get_the_place_after_the_last(table: MoleculeTable):
    fewer, missing = table.relabelled([label for label in table.labels if label != "F"])
    assert missing == ["F"]
    assert int(fewer.atom.max()) == len(table.labels) - 1
    assert int((fewer.atom == len(table.labels) - 1).sum()) == 3


@pytest.mark.parametrize("order", [uniform, depth_first])
def test_renumbered_molecules_are_isomorphic(table: MoleculeTable, order):
    import networkx as nx

    permutation = order(table, torch.Generator().manual_seed(3))
    other = table.renumbered(permutation)
    assert not torch.equal(other.ends, table.ends)
    for m in range(len(table)):
        graphs = []
        for t in (table, other):
            one = t.rows(torch.tensor([m]))
            graph = nx.Graph()
            graph.add_nodes_from((i, {"atom": a}) for i, a in enumerate(one.atom.tolist()))
            graph.add_edges_from((u, v, {"bond": b}) for u, v, b in zip(*one.ends.tolist(), one.bond.tolist(), strict=True))
            graphs.append(graph)
        assert nx.is_isomorphic(
            *graphs, node_match=lambda a, b: a["atom"] == b["atom"], edge_match=lambda a, b: a["bond"] == b["bond"]
        )


def test_depth_first_numbers_every_atom_next_to_an_earlier_one(table: MoleculeTable):
    other = table.renumbered(depth_first(table, torch.Generator().manual_seed(0)))
    for m in range(len(other)):
        one = other.rows(torch.tensor([m]))
        for node in range(1, int(one.sizes[0])):
            neighbours = [min(pair) for pair in zip(*one.ends.tolist(), strict=True) if max(pair) == node]
            assert neighbours
