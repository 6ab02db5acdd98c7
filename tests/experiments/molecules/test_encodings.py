from dataclasses import replace

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.transforms import AddRandomWalkPE

from ohmformer.encoding.pe import LinearTransformerPE
from ohmformer.experiments.molecules.config import BACKBONES, ENCODINGS, PAIRWISE, RunConfig, preset
from ohmformer.experiments.molecules.data import RunData
from ohmformer.experiments.molecules.encodings import LearnedSpectral, build, keep, pretrained
from ohmformer.experiments.molecules.model import MoleculeModel
from ohmformer.experiments.molecules.sources import Tables

FREE = [name for name in ENCODINGS if name not in ("lt-index", "lt-random", "lappe", "signnet", "resistive-embedding")]
"""Encodings that do not read how atoms are numbered."""


def _read_by(encoding: str) -> dict[str, str]:
    """An encoding, and a backbone that can read it."""
    return {"encoding": encoding, "backbone": "gps" if encoding in PAIRWISE else "gt"}


def _encoded(config: RunConfig, data: RunData, table, device: torch.device):
    split = data.split(table)
    encoding = build(config, len(data.labels), data.most_nodes).eval()
    encoding.calibrate(data.train)
    batch, encoding = split.take(torch.arange(len(split))).to(device), encoding.to(device)
    return batch, encoding(batch, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", [name for name in ENCODINGS if name != "none"])
def test_every_encoding_gives_finite_numbers_per_atom(name: str, small: RunConfig, tables: Tables, device):
    config = replace(small, **_read_by(name))
    data = RunData(config, tables)
    batch, (node, edge, pairs) = _encoded(config, data, data.table("valid"), device)
    assert node is not None
    assert node.shape == (len(batch.atom), build(config, len(data.labels), data.most_nodes).node_columns)
    assert bool(node.isfinite().all())
    assert (edge is not None) == (name in ("lt-pairs", *PAIRWISE))
    assert (pairs is not None) == (name in PAIRWISE)


@pytest.mark.parametrize("name", FREE)
def test_predictions_of_order_free_encodings_do_not_change_when_atoms_are_renumbered(
    name: str, small: RunConfig, tables: Tables, device
):
    config = replace(small, **_read_by(name))
    data = RunData(config, tables)
    model = MoleculeModel(config, len(data.labels), data.most_nodes).eval()
    model.encoding.calibrate(data.train)
    model.to(device)
    table = data.table("valid")
    every = torch.arange(len(table))
    draws = [torch.Generator().manual_seed(0) for _ in range(2)]
    with torch.no_grad():
        before = model(data.split(table).take(every).to(device), draws[0])
        after = model(data.relabelled(table, torch.Generator().manual_seed(1)).take(every).to(device), draws[1])
    assert torch.allclose(before, after, atol=2e-4)


def test_predictions_of_lt_index_do_change(small: RunConfig, tables: Tables):
    config = replace(small, encoding="lt-index")
    data = RunData(config, tables)
    model = MoleculeModel(config, len(data.labels), data.most_nodes).eval()
    model.encoding.calibrate(data.train)
    table = data.table("valid")
    every = torch.arange(len(table))
    with torch.no_grad():
        before = model(data.split(table).take(every), torch.Generator())
        after = model(data.relabelled(table, torch.Generator().manual_seed(1)).take(every), torch.Generator())
    assert float((before - after).abs().max()) > 1e-3


def test_moving_what_is_kept_is_the_same_as_computing_it_anew(small: RunConfig, tables: Tables):
    config = replace(small, encoding="rwse")
    data = RunData(config, tables)
    table = data.table("valid")
    moved, anew = (data.relabelled(table, torch.Generator().manual_seed(1), kept) for kept in (data.split(table), None))
    assert torch.allclose(moved.per_node["columns"], anew.per_node["columns"], atol=1e-6)


def test_random_walks_are_pyg_s(small: RunConfig, table):
    config = replace(small, encoding="rwse", walk=9)
    columns = keep(config, table)[0]["columns"]
    start = table.node_start
    for m in range(len(table)):
        ends = table.rows(torch.tensor([m])).ends.long()
        graph = Data(edge_index=torch.cat([ends, ends.flip(0)], dim=1), num_nodes=int(table.sizes[m]))
        theirs = AddRandomWalkPE(9, "pe")(graph).pe
        assert torch.allclose(columns[start[m] : start[m + 1]], theirs, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "read"),
    [("lt-diagonal", "nodes"), ("lt-pairs", ("nodes", "edges")), ("lt-all-pairs", ("nodes", "edges", "pairs"))],
)
def test_the_model_of_the_tables_is_the_public_encoder_with_its_defaults(name: str, read, tables: Tables):
    config = preset("gps" if name in PAIRWISE else "standard", "zinc12k", name)
    ours = build(config, 20, 40)
    assert isinstance(ours, LearnedSpectral)
    assert type(ours.model) is LinearTransformerPE
    assert ours.model.config == LinearTransformerPE(16, read=read).config
    data = RunData(config, tables)
    batch = data.valid.take(torch.arange(6))
    edges = torch.stack([batch.source, batch.target])
    for training in (False, True):
        encoded = build(config, 20, 40).train(training)(batch, torch.Generator())
        wanted = LinearTransformerPE(16, read=read).train(training)(edges, batch=batch.owner, num_nodes=len(batch.owner))
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        for x, y in zip(encoded, (*wanted, None, None)[:3], strict=True):
            assert (x is None) == (y is None)
            if x is not None and y is not None:
                torch.testing.assert_close(x, y, atol=1e-5, rtol=0)


def test_relative_walks_are_powers_of_the_walk_matrix(small: RunConfig, tables: Tables):
    config = replace(small, encoding="rrwp", backbone="gps", walk=5)
    data = RunData(config, tables)
    batch = data.valid.take(torch.arange(6))
    node, edge, pairs = build(config, len(data.labels), data.most_nodes)(batch, torch.Generator())  # not standardised yet
    assert pairs is not None
    assert node is not None
    assert edge is not None
    for m, size in enumerate(batch.sizes.tolist()):
        rows, ends = batch.owner == m, batch.owner[batch.source] == m
        first = int(rows.nonzero()[0])
        u, v = batch.source[ends] - first, batch.target[ends] - first
        a = torch.zeros(size, size, dtype=torch.float64).index_put((u, v), torch.ones((), dtype=torch.float64))
        powers = torch.stack([torch.linalg.matrix_power(a / a.sum(1, keepdim=True), k) for k in range(6)], dim=-1).float()
        torch.testing.assert_close(pairs[m, :size, :size], powers, atol=1e-5, rtol=0)
        torch.testing.assert_close(node[rows], powers.diagonal(dim1=0, dim2=1).mT[:, 1:], atol=1e-5, rtol=0)
        torch.testing.assert_close(edge[ends], powers[u, v, 1:], atol=1e-5, rtol=0)
        assert not bool(pairs[m, size:].any())


def test_lt_diagonal_starts_as_a_random_walk(small: RunConfig, tables: Tables):
    config = replace(small, channels=6, groups=6)
    data = RunData(config, tables)
    encoding = build(config, len(data.labels), data.most_nodes).eval()
    encoded = encoding(data.valid.take(torch.arange(6)), torch.Generator())[0]
    walks = keep(replace(config, encoding="rwse", walk=6), data.table("valid"))[0]["columns"]
    assert encoded is not None
    assert torch.allclose(encoded, walks, atol=1e-5)


def test_signnet_does_not_see_signs(small: RunConfig, tables: Tables):
    config = replace(small, encoding="signnet")
    data = RunData(config, tables)
    encoding = build(config, len(data.labels), data.most_nodes)
    batch = data.valid.take(torch.arange(6))
    other = replace(batch, per_node={"columns": batch.per_node["columns"] * torch.tensor([-1, 1, -1, -1, 1, 1])})
    torch.testing.assert_close(encoding(batch, torch.Generator())[0], encoding(other, torch.Generator())[0])


def test_laplacian_eigenvectors_have_random_signs_in_training_only(small: RunConfig, tables: Tables):
    config = replace(small, encoding="lappe")
    data = RunData(config, tables)
    encoding = build(config, len(data.labels), data.most_nodes)
    batch = data.valid.take(torch.arange(6))
    raw = [encoding.train(mode)(batch, torch.Generator().manual_seed(2))[0] for mode in (True, False, False)]
    assert torch.equal(raw[1], raw[2])
    assert not torch.equal(raw[0], raw[1])
    assert torch.equal(raw[0].abs(), raw[1].abs())


@pytest.mark.parametrize("name", ["lt-index", "lt-random", "lt-diagonal"])
def test_pretraining_changes_the_linear_transformer(name: str, small: RunConfig, tables: Tables):
    config = replace(small, encoding=name, pretrain=1)
    data = RunData(config, tables)
    encoding = build(config, len(data.labels), data.most_nodes)
    before = [p.detach().clone() for p in encoding.parameters()]
    pretrained(encoding, config, data.train_table)
    assert any(not torch.equal(a, b) for a, b in zip(before, encoding.parameters(), strict=True))


def test_our_encoding_is_less_than_two_percent_of_the_full_model():
    counts = MoleculeModel(RunConfig(encoding="lt-pairs", width=128, groups=16, loops=1), 20, 38).parameter_counts()
    assert counts["encoding_parameters"] < 0.02 * counts["parameters"]


@pytest.mark.parametrize(
    ("name", "backbone"),
    [*((name, _read_by(name)["backbone"]) for name in ENCODINGS), *(("lt-pairs", name) for name in BACKBONES[1:])],
)
def test_an_empty_share_of_a_batch_gives_every_parameter_a_gradient_of_zero(
    name: str, backbone: str, small: RunConfig, tables: Tables
):
    config = replace(small, encoding=name, backbone=backbone)
    data = RunData(config, tables)
    model = MoleculeModel(config, len(data.labels), data.most_nodes)
    predicted = model(data.train.take(torch.arange(0)), torch.Generator())
    assert predicted.shape == (0,)
    predicted.sum().backward()
    assert {name: float(p.grad.abs().max()) for name, p in model.named_parameters() if p.grad is not None} == {
        name: 0.0 for name, _ in model.named_parameters()
    }
