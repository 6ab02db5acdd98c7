from pathlib import Path

import networkx as nx
import pytest
import torch

from ohmformer.experiments.molecules.config import preset
from ohmformer.experiments.molecules.csl import FOLDS, SKIPS, csl, csl_fold
from ohmformer.experiments.molecules.data import RunData
from ohmformer.experiments.molecules.encodings import build
from ohmformer.experiments.molecules.model import MoleculeModel
from ohmformer.experiments.molecules.sources import tables
from ohmformer.experiments.molecules.training import train


def test_graphs_are_the_circulant_graphs_of_their_classes():
    table = csl()
    assert len(table) == 150
    kinds = [nx.circulant_graph(41, [1, skip]) for skip in SKIPS]
    for row in (0, 7, 23, 149):
        graph = nx.Graph(table.rows(torch.tensor([row])).ends.t().tolist())
        kind = int(table.parts[row, 0])
        assert nx.faster_could_be_isomorphic(graph, kinds[kind])
        assert nx.is_isomorphic(graph, kinds[kind])
    first, second = (table.rows(torch.tensor([row])).ends for row in (0, 10))
    assert not torch.equal(first, second)  # copies are numbered differently


def test_folds_are_ninety_thirty_and_thirty_graphs_and_every_graph_is_tested_once():
    tested = []
    for fold in range(FOLDS):
        parts = csl_fold(fold)
        assert [len(part) for part in parts] == [90, 30, 30]
        assert len({*torch.cat([part.row for part in parts]).tolist()}) == 150
        for part, copies in zip(parts, (9, 3, 3), strict=True):
            assert torch.bincount(part.parts[:, 0].long()).tolist() == [copies] * 10
        tested += parts[2].row.tolist()
    assert sorted(tested) == list(range(150))


def test_our_encoding_tells_all_classes_apart_and_no_copies():
    config = preset("csl", "csl", "lt-diagonal")
    batch = RunData(config, tables(config)).valid.take(torch.arange(30))
    encoded = build(config, 1, 41)(batch, torch.Generator())[0]
    assert encoded is not None
    nodes = encoded.detach().unflatten(0, (3, 10, 41))  # copies, classes, nodes
    classes = nodes[0, :, 0]
    torch.testing.assert_close(nodes, classes[:, None].expand_as(nodes), atol=1e-4, rtol=0)
    assert float(torch.pdist(classes).min()) > 0.1


def test_without_an_encoding_all_graphs_look_alike():
    config = preset("csl", "csl", "none")
    model = MoleculeModel(config, 1, 41, 10).eval()
    predicted = model(RunData(config, tables(config)).valid.take(torch.arange(30)), torch.Generator())
    assert predicted.shape == (30, 10)
    torch.testing.assert_close(predicted, predicted[:1].expand_as(predicted))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_model_learns_the_classes_with_our_encoding_and_guesses_without(tmp_path: Path):
    accuracy = {}
    for encoding in ("none", "lt-diagonal"):
        config = preset("csl", "csl", encoding, seed=3)
        result = train(config, RunData(config, tables(config)), tmp_path / encoding, accelerator="cpu")
        accuracy[encoding] = 1 - result["test"], 1 - result["test_relabelled"]
    assert accuracy["none"] == (pytest.approx(0.1), pytest.approx(0.1))
    assert accuracy["lt-diagonal"] == (1.0, 1.0)
