"""``ohmformer encode``: every graph of a file once, nothing half-written, nothing lost."""

import gzip
import math

import numpy as np
import pyarrow.parquet
import pytest
import torch
from torch_geometric.data import Data

import ohmformer as ohm
from ohmformer import exact
from ohmformer.encoding import (
    LinearTransformerPE,
    bulk,
)
from tests.apps.running import run
from tests.encoding.molecules import molecules

SMILES = ["CCO", "c1ccccc1O", "not a molecule", "CC(=O)NC", "C", "CCN(CC)CC", ""]


def test_encode_writes_every_good_row_once_and_names_the_bad_ones(tmp_path):
    source, out = tmp_path / "m.csv", tmp_path / "m.parquet"
    source.write_text("id,smiles\n" + "\n".join(f"{i},{s}" for i, s in enumerate(SMILES)))
    result = run("encode", source, "--out", out, "--chunk", 2)
    assert result.exit_code == 0, result.output
    table = pyarrow.parquet.read_table(out).to_pydict()
    assert table["row"] == [0, 1, 3, 4, 5]
    assert [len(x) for x in table["encoding"]] == [6 * n for n in table["nodes"]]
    assert all(math.isfinite(v) for x in table["encoding"] for v in x)
    assert [line.split(",")[0] for line in out.with_suffix(".bad.csv").read_text().splitlines()[1:]] == ["2", "6"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.bad.csv", "m.csv", "m.parquet"]


def test_exact_quantities_stand_beside_the_encoding_and_survive_being_killed_twice(tmp_path, monkeypatch):
    source, names = tmp_path / "m.smi", ["resistances", "heat", "eigenvalues"]
    source.write_text("smiles\n" + "\n".join([*(SMILES[:2] + SMILES[3:6]) * 2, "CC.O"]))
    honest, calls = bulk._write_part, []

    def dies(parts, i, entries, columns):
        calls.append(i)
        if len(calls) in (2, 4):
            raise KeyboardInterrupt
        honest(parts, i, entries, columns)

    monkeypatch.setattr(bulk, "_write_part", dies)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            bulk.encode_file(source, tmp_path / "m.parquet", "heat", exact=names, s=0.7, chunk=2)
    bulk.encode_file(source, tmp_path / "m.parquet", "heat", exact=names, s=0.7, chunk=2)
    table = pyarrow.parquet.read_table(tmp_path / "m.parquet").to_pydict()
    assert table["row"] == list(range(11))
    for entry, row in zip(bulk.read_graphs(source), range(11), strict=True):
        assert entry.data is not None
        graph = ohm.Graph.from_pyg(entry.data)
        n = graph.num_nodes
        pairs, kernel = exact.effective_resistance(graph), exact.heat(graph, 0.7)
        between = [float(pairs[u, v]) for u in range(n) for v in range(u + 1, n)]
        np.testing.assert_allclose(table["resistances"][row], between, rtol=1e-8)
        heat = [float(kernel[u, v]) for u in range(n) for v in range(u, n)]
        np.testing.assert_allclose(table["heat"][row], heat, atol=1e-12)
        values = np.linalg.eigvalsh(graph.laplacian().numpy())
        np.testing.assert_allclose(table["eigenvalues"][row], values, atol=1e-12)
        assert table["eigenvalues"][row][: graph.num_components] == [0.0] * graph.num_components
    with pytest.raises(ValueError, match="expected an exact quantity among resistances, heat, eigenvalues, got 'charge'"):
        bulk.encode_file(source, tmp_path / "n.parquet", "heat", exact=["charge"])


def test_a_killed_run_goes_on_where_it_stopped(tmp_path, monkeypatch):
    source = tmp_path / "m.smi"
    source.write_text("smiles\n" + "\n".join(SMILES[:2] + SMILES[3:6] * 3))
    bulk.encode_file(source, tmp_path / "whole.parquet", "zinc", chunk=2)
    honest, calls = bulk._write_part, []

    def dies(parts, i, entries, encodings):
        calls.append(i)
        if len(calls) == 3:
            raise KeyboardInterrupt
        honest(parts, i, entries, encodings)

    monkeypatch.setattr(bulk, "_write_part", dies)
    with pytest.raises(KeyboardInterrupt):
        bulk.encode_file(source, tmp_path / "m.parquet", "zinc", chunk=2)
    assert not (tmp_path / "m.parquet").exists()
    bulk.encode_file(source, tmp_path / "m.parquet", "zinc", chunk=2)
    assert calls == [0, 1, 2, 2, 3, 4, 5]
    whole, resumed = (pyarrow.parquet.read_table(tmp_path / name) for name in ("whole.parquet", "m.parquet"))
    assert whole.equals(resumed)


def test_encode_reads_edge_lists_and_pyg_folders(tmp_path):
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "a.csv").write_text("source,target\n0,1\n1,2\n")
    (tmp_path / "lists" / "b.csv").write_text("source,target\nnothing\n")
    (tmp_path / "lists" / "c.csv.gz").write_bytes(gzip.compress("\ufeffsource,target\r\n0,1\r\n".encode()))
    assert bulk.encode_file(tmp_path / "lists", tmp_path / "a.parquet", "heat") == (3, 1)
    assert bulk.encode_file(tmp_path / "lists" / "c.csv.gz", tmp_path / "c.parquet", "heat") == (1, 0)
    (tmp_path / "m.csv.gz").write_bytes(gzip.compress("\ufeffsmiles\r\nCCO\r\n".encode()))
    assert bulk.encode_file(tmp_path / "m.csv.gz", tmp_path / "m.parquet", "heat") == (1, 0)
    folder = tmp_path / "set" / "processed"
    folder.mkdir(parents=True)
    graphs = list(molecules(6))
    from torch_geometric.data import InMemoryDataset

    InMemoryDataset.save(graphs, folder / "data.pt")  # type: ignore
    assert bulk.encode_file(tmp_path / "set", tmp_path / "set.parquet", "resistance") == (6, 0)
    assert pyarrow.parquet.read_table(tmp_path / "set.parquet")["nodes"].to_pylist() == [g.num_nodes for g in graphs]
    assert len(torch.load(folder / "data.pt", weights_only=True)) == 3  # as PyG itself loads it, whose allowance is kept


WEIGHTED = "source,target,ohm\nhome,shop,2\nshop,mill,4\n"


@pytest.mark.parametrize(("flag", "ohms"), [("--resistance", [2.0, 4.0]), ("--conductance", [0.5, 0.25])])
def test_encode_reads_the_weights_of_edge_lists(tmp_path, flag, ohms):
    """Between the ends of a path, resistances add up."""
    source, out = tmp_path / "path.csv", tmp_path / "path.parquet"
    source.write_text(WEIGHTED)
    result = run("encode", source, "--out", out, "--encoding", "resistance", flag, "ohm")
    assert result.exit_code == 0, result.output
    (found,) = pyarrow.parquet.read_table(out)["encoding"].to_pylist()
    a, b = ohms
    assert found == pytest.approx([(2 * a + b) / 3, a + b, (a + b) / 3, max(a, b), (2 * b + a) / 3, a + b])


def test_encode_by_a_model_reads_the_weights_of_edge_lists(tmp_path):
    source, out = tmp_path / "path.csv", tmp_path / "path.parquet"
    source.write_text(WEIGHTED)
    assert run("encode", source, "--out", out, "--resistance", "ohm").exit_code == 0
    (found,) = pyarrow.parquet.read_table(out)["encoding"].to_pylist()
    model = LinearTransformerPE.from_pretrained("zinc").requires_grad_(False)
    wanted = model(torch.tensor([[0, 1], [1, 2]]), torch.tensor([0.5, 0.25]))
    torch.testing.assert_close(torch.tensor(found).view(3, 6), wanted, atol=1e-5, rtol=0)
    plain = model(torch.tensor([[0, 1], [1, 2]]))
    assert float((wanted - plain).abs().max()) > 1e-2


@pytest.mark.parametrize("sep", [",", ";"])
def test_columns_that_may_be_weights_are_not_ignored_silently(tmp_path, sep):
    source, out = tmp_path / "path.csv", tmp_path / "path.parquet"
    source.write_text(WEIGHTED.replace(",", sep))
    result = run("encode", source, "--out", out, "--encoding", "resistance")
    assert result.exit_code == 2
    assert "--resistance or --conductance" in result.output
    assert "more than two columns: source, target, ohm" in result.output
    assert not out.exists()
    assert run("encode", source, "--out", out, "--encoding", "resistance", "--unweighted").exit_code == 0
    (found,) = pyarrow.parquet.read_table(out)["encoding"].to_pylist()
    assert found == pytest.approx([1, 2, 2 / 3, 1, 1, 2])


def test_weights_of_a_pyg_dataset_are_read(tmp_path):
    from torch_geometric.data import InMemoryDataset

    folder = tmp_path / "set" / "processed"
    folder.mkdir(parents=True)
    index = torch.tensor([[0, 1], [1, 0]])
    graphs = [Data(edge_index=index, edge_weight=torch.tensor([c, c]), num_nodes=2) for c in (1.0, 4.0)]
    InMemoryDataset.save(graphs, folder / "data.pt")  # type: ignore
    bulk.encode_file(tmp_path / "set", tmp_path / "set.parquet", "resistance")
    found = pyarrow.parquet.read_table(tmp_path / "set.parquet")["encoding"].to_pylist()
    assert [row[1] for row in found] == pytest.approx([1.0, 0.25])
    assert Data in torch.serialization.get_safe_globals()  # PyG's own reading goes on as before


def test_a_wrong_column_ends_with_an_error_and_writes_nothing(tmp_path):
    source, out = tmp_path / "m.csv", tmp_path / "m.parquet"
    source.write_text("id,smiles\n1,CCO\n")
    result = run("encode", source, "--out", out, "--column", "smile")
    assert result.exit_code == 2
    assert "expected a column 'smile' in m.csv, it has id, smiles" in result.output
    assert [p.name for p in tmp_path.iterdir()] == ["m.csv"]


def test_a_file_without_any_graph_ends_with_an_error_and_its_reason(tmp_path):
    source, out = tmp_path / "m.smi", tmp_path / "m.parquet"
    source.write_text("nothing\nneither\n")
    result = run("encode", source, "--out", out)
    assert result.exit_code == 2
    assert "expected at least one graph in m.smi, got none: expected a molecule" in result.output.replace("\n", " ")
    assert [p.name for p in tmp_path.iterdir()] == ["m.smi"]


@pytest.mark.parametrize("package", ["pyarrow", "rdkit"])
def test_a_missing_package_names_its_extra_before_any_work(tmp_path, monkeypatch, package):
    from ohmformer.graph import extras

    source, out = tmp_path / "m.csv", tmp_path / "m.parquet"
    source.write_text("smiles\nCCO\n")
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == package else object())
    result = run("encode", source, "--out", out)
    assert result.exit_code == 2
    assert f"expected the package {package}, which `pip install ohmformer[encode]` brings, got none" in result.output
    assert [p.name for p in tmp_path.iterdir()] == ["m.csv"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("missing.smi", "--out", "x.parquet"), "expected a file or a folder"),
        (("g.graphml", "--out", "x.parquet"), "expected SMILES or edge lists (.csv, .tsv, .txt, .edges), or a PyG folder"),
        (("m.csv", "--out", "x.csv"), "expected an output file of type .parquet"),
        (("m.csv", "--out", "x.parquet", "--encoding", "nowhere/nothing/at all"), "expected a shipped model"),
    ],
)
def test_a_wrong_command_is_refused_in_one_sentence(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.csv").write_text("smiles\nCCO\n")
    (tmp_path / "g.graphml").write_text("<graphml/>")
    result = run("encode", *arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert len(result.output.strip().splitlines()) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_writes_the_same_file(tmp_path):
    ray = pytest.importorskip("ray")
    source = tmp_path / "m.smi"
    source.write_text("\n".join(SMILES[:2] + SMILES[3:6] * 3))
    bulk.encode_file(source, tmp_path / "here.parquet", "zinc", chunk=4)
    bulk.encode_file(source, tmp_path / "there.parquet", "zinc", chunk=4, cluster="local")
    ray.shutdown()
    here, there = (pyarrow.parquet.read_table(tmp_path / f"{name}.parquet") for name in ("here", "there"))
    assert here["row"].equals(there["row"])
    for x, y in zip(here["encoding"].to_pylist(), there["encoding"].to_pylist(), strict=True):
        torch.testing.assert_close(torch.tensor(x), torch.tensor(y))
