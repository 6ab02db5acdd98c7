"""Saving, transforms, and the commands: nothing half-written, nothing lost, nothing twice."""

import gzip
import json
import math
import os
import subprocess
import sys
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow.parquet
import pytest
import torch
from torch_geometric.data import Batch, Data
from typer.testing import CliRunner

import ohmformer as ohm
from ohmformer import exact
from ohmformer.apps.command_line.main import app
from ohmformer.encoding import (
    AddEdgeHeat,
    AddEdgeResistance,
    AddEigenvectorPE,
    AddHeatDiagonalPE,
    AddLinearTransformerPE,
    AddResistancePE,
    AddResistiveEmbeddingPE,
    LinearTransformerPE,
    PairwiseBias,
    bulk,
    pairwise,
)
from ohmformer.encoding.pretrain import POWER, GraphTable, Settings, evaluate, power_mean, pretrain, subspace_iteration
from ohmformer.encoding.transforms import graph_of
from ohmformer.experiments.molecules import bonds, read_smiles
from tests.encoding.molecules import ZINC, batch_of, fuzzed, molecules

ZINC_TEST = ZINC.with_name("zinc_test.smi.gz")
SMILES = ["CCO", "c1ccccc1O", "not a molecule", "CC(=O)NC", "C", "CCN(CC)CC", ""]


def as_pairs(count):
    return [(d.num_nodes, [(u, v) for u, v in d.edge_index.t().tolist() if u < v]) for d in molecules(count)]


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_a_saved_model_comes_back_the_same(tmp_path):
    batch = batch_of(molecules(5))
    for options in ({}, {"phi0": "index", "max_nodes": 5}, {"phi0": "diagonal", "evolve": True, "degrees": "l1"}):
        model = LinearTransformerPE(3, seed=4, **options).eval()
        model.save_pretrained(tmp_path / "model")
        again = LinearTransformerPE.from_pretrained(tmp_path / "model")
        arguments = batch.edge_index, None, batch.batch, batch.num_nodes
        assert torch.equal(model(*arguments), again(*arguments))
        assert sorted(p.name for p in (tmp_path / "model").iterdir()) == ["config.json", "model.safetensors"]


@contextmanager
def hub_with(folder):
    """The part of the hub that a download asks for, on this machine; what it was asked for is listed."""
    asked = []

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self):
            path = urlsplit(self.path).path
            asked.append(path)
            name = path.rsplit("/", 1)[-1]
            if path.startswith("/api/models/someone/model/revision/"):
                siblings = [{"rfilename": file.name} for file in folder.iterdir()]
                self.answer(json.dumps({"id": "someone/model", "sha": "1" * 40, "siblings": siblings}).encode())
            elif path.startswith("/api/models/someone/model/tree/"):
                files = [
                    {"type": "file", "path": f.name, "size": f.stat().st_size, "oid": "2" * 40} for f in folder.iterdir()
                ]
                self.answer(json.dumps(files).encode())
            elif path.startswith("/someone/model/resolve/") and (folder / name).is_file():
                self.answer((folder / name).read_bytes())
            else:
                self.send_error(404)

        do_HEAD = do_GET

        def answer(self, body):
            self.send_response(200)
            for key, value in {
                "ETag": f'"{hash(body)}"',
                "X-Repo-Commit": "1" * 40,
                "Content-Length": str(len(body)),
            }.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, format, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


@pytest.mark.filterwarnings("ignore")  # of huggingface_hub
def test_a_repository_on_the_hub_is_downloaded_and_nothing_else_of_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    model = LinearTransformerPE(3, seed=4)
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "code.py").write_text("raise SystemExit")
    with hub_with(tmp_path / "model") as (address, asked):
        options = {"endpoint": address, "cache_dir": tmp_path / "cache"}
        again = LinearTransformerPE.from_pretrained("someone/model", **options)
        assert all(torch.equal(x, y) for x, y in zip(model.parameters(), again.parameters(), strict=True))
        assert not any("code.py" in path for path in asked)
        with pytest.raises(ValueError, match="expected a shipped model"):
            LinearTransformerPE.from_pretrained("someone/other", **options)


def test_a_model_is_uploaded_to_the_hub_by_its_two_files(monkeypatch):
    import huggingface_hub

    calls = {}

    class Api:
        def __init__(self, **options):
            calls["api"] = options

        def create_repo(self, **options):
            calls["create"] = options
            return type("Repository", (), {"repo_id": options["repo_id"]})

        def upload_folder(self, *, repo_id, folder_path, **options):
            calls["files"], calls["options"] = sorted(p.name for p in Path(folder_path).iterdir()), options
            return f"https://hub/{repo_id}/commit/1"

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    address = LinearTransformerPE(3).push_to_hub("someone/model", private=True, commit_message="First")
    assert address == "https://hub/someone/model/commit/1"
    assert calls["create"] == {"repo_id": "someone/model", "private": True, "exist_ok": True}
    assert calls["files"] == ["config.json", "model.safetensors"]
    assert calls["options"] == {"commit_message": "First"}


def test_the_encoding_needs_neither_pyg_nor_the_hub():
    """In an interpreter where neither can be found, the encoding works; what needs them names the extra."""
    code = """
import importlib.util, sys
missing = {"torch_geometric", "huggingface_hub"}
for name in missing:
    sys.modules[name] = None
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name.split(".")[0] in missing else find(name, package)
import torch
from ohmformer.encoding import LinearTransformerPE, pairwise
edges = torch.tensor([[0, 1], [1, 2]])
print(LinearTransformerPE.from_pretrained("zinc")(edges).shape, pairwise(edges).shape)
for name in ("someone/model", None):
    try:
        LinearTransformerPE.from_pretrained(name) if name else __import__("ohmformer.encoding.transforms")
    except ImportError as error:
        print(error)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert run.stdout.splitlines() == [
        "torch.Size([3, 6]) torch.Size([1, 3, 3, 3])",
        "expected the package huggingface_hub, which `pip install ohmformer[hub]` brings, got none",
        "expected the package torch_geometric, which `pip install ohmformer[pyg]` brings, got none",
    ], run.stderr


def test_a_bad_file_is_named_in_one_sentence(tmp_path):
    LinearTransformerPE(3).save_pretrained(tmp_path)
    weights, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    good = weights.read_bytes(), config.read_text()
    for path, content, words in (
        (weights, good[0][:100], "expected safetensors in .*model.safetensors"),
        (config, "{", "expected the arguments of LinearTransformerPE in .*config.json"),
        (config, json.dumps({"dim": 3, "depth": 2}), "expected the arguments"),
        (config, json.dumps({"dim": 4}), "expected .* in .*model.safetensors, got"),
    ):
        weights.write_bytes(good[0])
        config.write_text(good[1])
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(ValueError, match=words) as caught:
            LinearTransformerPE.from_pretrained(tmp_path)
        assert "\n" not in str(caught.value)


def test_the_shipped_model_is_better_than_subspace_iteration_of_the_same_depth():
    table = GraphTable.of([g for g in as_pairs(689) if g[0] >= 16], "eigenvectors", 6)
    model = LinearTransformerPE.from_pretrained("zinc")
    plain = evaluate(lambda e, **k: subspace_iteration(e, layers=9, k=6, columns=8, **k), table)
    assert model.groups * model.loops == 9
    assert float(evaluate(model, table).mean()) < float(plain.mean())


@pytest.mark.skipif(not ZINC_TEST.exists(), reason="set OHMFORMER_DATA to a folder with zinc_test.smi.gz")
def test_on_zinc_it_is_better_on_every_eigenvector():
    """On molecules that it was not trained on."""
    table = GraphTable.of([bonds(s) for s in islice(read_smiles(ZINC_TEST), 500)], "eigenvectors", 6)
    plain = evaluate(lambda e, **k: subspace_iteration(e, layers=9, k=6, columns=8, **k), table)
    assert bool((evaluate(LinearTransformerPE.from_pretrained("zinc"), table) < plain).all())


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-6])
def test_small_losses_go_on_being_learned(size):
    """In float32 their 32nd powers are zero, and so would be the gradient."""
    losses = (size * torch.tensor([1.0, 0.9, 0.5])).requires_grad_()
    mean = power_mean(losses)
    truth = (losses.detach().double() ** POWER).mean() ** (1 / POWER)
    assert mean.item() == pytest.approx(truth.item(), rel=1e-5)
    (slope,) = torch.autograd.grad(mean, losses)
    expected = (losses.detach().double() / truth) ** (POWER - 1) / 3
    torch.testing.assert_close(slope.double(), expected, rtol=1e-4, atol=1e-12)


@pytest.mark.parametrize("targets", ["eigenvectors", "multi"])
def test_pretraining_lowers_the_loss(targets):
    table = GraphTable.of(as_pairs(200), targets, 3)
    model = LinearTransformerPE(3, phi0="random" if targets == "eigenvectors" else "diagonal")
    first = pretrain(model, table, Settings(targets, epochs=1, batch=50, lr=0.0))
    assert pretrain(model, table, Settings(targets, epochs=6, batch=50, lr=0.02)) < first


@pytest.mark.parametrize("targets", ["eigenvectors", "multi"])
def test_pretraining_that_was_stopped_goes_on_to_the_same_bits(tmp_path, targets):
    table = GraphTable.of(as_pairs(60), targets, 3)
    settings = Settings(targets, epochs=4, batch=20)

    def fresh():
        return LinearTransformerPE(3, phi0="random" if targets == "eigenvectors" else "diagonal", groups=2, loops=1)

    def stop(done, steps, loss):
        if done == 8:
            raise KeyboardInterrupt

    torch.manual_seed(1)
    whole, stopped, resumed = fresh(), fresh(), fresh()
    loss = pretrain(whole, table, settings)
    with pytest.raises(KeyboardInterrupt):
        pretrain(stopped, table, settings, progress=stop, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="got other settings; remove it to begin anew"):
        pretrain(fresh(), table, Settings(targets, epochs=5, batch=20), checkpoint=tmp_path)
    seen = []
    assert pretrain(resumed, table, settings, progress=lambda *x: seen.append(x[0]), checkpoint=tmp_path) == loss
    assert seen == list(range(7, 13))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}


TRANSFORMS = (
    AddLinearTransformerPE(LinearTransformerPE(4)), AddResistancePE(), AddResistiveEmbeddingPE(3), AddHeatDiagonalPE(),
    AddEigenvectorPE(40), AddEdgeResistance(), AddEdgeHeat(),
)  # fmt: skip


@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda t: type(t).__name__)
def test_transforms_add_their_attribute_to_any_graph(transform):
    lonely: Any = Data(edge_index=torch.zeros(2, 0, dtype=torch.long), num_nodes=2)
    for data in (molecules(3)[-1], batch_of(molecules(4)), lonely):
        out = transform(data)
        value = out[transform.attr_name]
        about_edges = "Edge" in type(transform).__name__
        assert len(value) == (data.edge_index.shape[1] if about_edges else data.num_nodes)
        assert value.isfinite().all()
        assert value.dtype == torch.float32
        assert transform.attr_name not in data
        transform.attr_name, name = None, transform.attr_name
        merged = transform(data)
        transform.attr_name = name
        assert (merged.edge_attr if about_edges else merged.x).shape[0] == len(value)


def test_fixed_transforms_say_what_lapack_says():
    data = molecules(60)[-1]
    graph = graph_of(data)
    resistance, heat = exact.effective_resistance(graph)[0], exact.heat(graph, 2.0)[0]
    assert data.edge_index is not None
    u, v = data.edge_index
    torch.testing.assert_close(AddEdgeResistance()(data).edge_resistance[:, 0].double(), resistance[u, v], atol=1e-5, rtol=0)
    torch.testing.assert_close(AddEdgeHeat([2])(data).edge_heat[:, 0].double(), heat[u, v], atol=1e-5, rtol=0)
    found = AddResistancePE()(data).resistance_pe.double()
    torch.testing.assert_close(found, torch.stack([resistance.mean(1), resistance.amax(1)], 1), atol=1e-5, rtol=0)
    diagonal = AddHeatDiagonalPE([2])(data).heat_diagonal_pe[:, 0].double()
    torch.testing.assert_close(diagonal, heat.diagonal(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("laplacian", ["combinatorial", "normalized"])
def test_heat_and_eigenvectors_of_any_graph_are_the_front_door_s(laplacian):
    for seed in range(40):
        data = fuzzed(seed)
        if data.edge_weight is not None:  # three decades: more of them drown in float32
            data.edge_weight = data.edge_weight.sqrt().sqrt()
        graph = graph_of(data)
        heat = AddHeatDiagonalPE([0.5], laplacian=laplacian)(data).heat_diagonal_pe[:, 0].double()
        wanted = ohm.heat_kernel(graph, 0.5, method="direct", laplacian=laplacian).value
        torch.testing.assert_close(heat, wanted.diagonal(), atol=2e-6, rtol=0)
        u, v = data.edge_index
        if laplacian == "combinatorial":
            found = AddEdgeHeat([0.5])(data).edge_heat[:, 0].double()
            torch.testing.assert_close(found, wanted.at(u, v), atol=2e-6, rtol=0)
        truth = ohm.eigenvectors(graph, 3, laplacian=laplacian)
        found = AddEigenvectorPE(3, "none", laplacian=laplacian)(data).eigenvector_pe.double()
        sizes = (truth.eigenvalues > 0).double()[0] if graph.num_graphs else torch.zeros(3)
        torch.testing.assert_close(found.square().sum(0), sizes.double(), atol=1e-5, rtol=0)
        matrix = graph.laplacian()[0] if graph.num_nodes else torch.zeros(0, 0, dtype=torch.float64)
        if laplacian == "normalized":
            root = torch.where(matrix.diagonal() > 0, matrix.diagonal(), 1.0).rsqrt()
            matrix = root[:, None] * matrix * root
        if graph.num_nodes:
            wrong = matrix @ found - found * truth.eigenvalues[0].nan_to_num()
            assert float(wrong.abs().max()) <= 1e-5 * float(matrix.diagonal().max())


def test_a_transform_leaves_the_model_that_it_is_given_alone():
    model, data = LinearTransformerPE(4, phi0="random"), molecules(3)[-1]
    transform = AddLinearTransformerPE(model)
    before = transform(data).linear_transformer_pe
    assert model.training
    assert all(p.requires_grad for p in model.parameters())
    with torch.no_grad():
        model.readout.zero_()
    assert torch.equal(transform(data).linear_transformer_pe, before)


def test_transforms_show_their_arguments():
    """PyG compares them as text to tell whether a processed dataset still fits."""
    assert repr(AddEigenvectorPE(3)) == (
        "AddEigenvectorPE(k=3, sign='canonical', attr_name='eigenvector_pe', seed=0, laplacian='combinatorial')"
    )
    assert repr(AddHeatDiagonalPE([1, 2], None)) == (
        "AddHeatDiagonalPE(times=(1, 2), attr_name=None, laplacian='combinatorial')"
    )
    one, two = LinearTransformerPE(4, seed=0), LinearTransformerPE(4, seed=0)
    assert repr(AddLinearTransformerPE(one)) == repr(AddLinearTransformerPE(two))
    with torch.no_grad():
        two.readout[0, 0] += 1
    pairs = [
        (AddEigenvectorPE(3), AddEigenvectorPE(4)), (AddResistiveEmbeddingPE(3), AddResistiveEmbeddingPE(3, seed=1)),
        (AddResistancePE(), AddResistancePE("r")), (AddEdgeHeat(), AddEdgeHeat([1])), (AddEdgeResistance(), AddEdgeHeat()),
        (AddLinearTransformerPE(one), AddLinearTransformerPE(two)),
        (AddLinearTransformerPE("zinc"), AddLinearTransformerPE(one)),
    ]  # fmt: skip
    assert all(repr(a) != repr(b) and "\n" not in repr(a) for a, b in pairs)


def test_a_dataset_that_was_processed_with_another_k_is_noticed_by_pyg(tmp_path):
    from torch_geometric.data import InMemoryDataset

    class Dataset(InMemoryDataset):
        def __init__(self, k):
            super().__init__(str(tmp_path), pre_transform=AddEigenvectorPE(k))
            self.load(self.processed_paths[0])

        @property
        def processed_file_names(self):
            return "data.pt"

        def process(self):
            assert self.pre_transform is not None
            self.save([self.pre_transform(g) for g in molecules(3)], self.processed_paths[0])

    first: Any = Dataset(2)[0]
    assert first.eigenvector_pe.shape[1] == 2
    with pytest.warns(UserWarning, match="pre_transform"):
        Dataset(5)


def test_eigenvector_signs_follow_the_policy():
    data = molecules(60)[-1]
    plain = AddEigenvectorPE(3, "none")(data).eigenvector_pe
    assert torch.equal(AddEigenvectorPE(3, "absolute")(data).eigenvector_pe, plain.abs())
    assert bool((AddEigenvectorPE(3)(data).eigenvector_pe.pow(3).sum(0) >= -1e-6).all())
    random = AddEigenvectorPE(3, "random", seed=1)
    assert torch.equal(random(data).eigenvector_pe.abs(), plain.abs())
    with pytest.raises(ValueError, match="expected sign among"):
        AddEigenvectorPE(3, "plus")


def test_pairwise_features_are_symmetric_and_zero_on_padding():
    batch = batch_of(molecules(4))
    features = pairwise(batch.edge_index, batch=batch.batch)
    torch.testing.assert_close(features, features.transpose(1, 2), atol=1e-5, rtol=0)
    small = int(batch.ptr[1])
    assert not features[0, small:].any()
    assert PairwiseBias(heads=4)(features).shape == (4, 4, *features.shape[1:3])


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
        (("m.csv", "--out", "x.csv"), "expected an output file of type .parquet"),
        (("m.csv", "--out", "x.parquet", "--encoding", "nowhere/nothing/at all"), "expected a shipped model"),
    ],
)
def test_a_wrong_command_is_refused_in_one_sentence(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.csv").write_text("smiles\nCCO\n")
    result = run("encode", *arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_pretrain_writes_a_model_that_loads(tmp_path):
    source = tmp_path / "m.smi"
    source.write_text("\n".join(["CCCCCCCO", "c1ccccc1CCO", "CC(=O)NCCCC"] * 4))
    out = tmp_path / "model"
    options = ("--first", 9, "--validate", 3, "--epochs", 2, "--batch", 3, "--groups", 2, "--dim", 3)
    result = run("pretrain", source, "--out", out, *options)
    assert result.exit_code == 0, result.output
    assert LinearTransformerPE.from_pretrained(out).groups == 2


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


def test_batches_and_single_graphs_are_transformed_alike():
    graphs = list(molecules(4))
    transform = AddHeatDiagonalPE()
    alone = torch.cat([transform(g).heat_diagonal_pe for g in graphs])
    torch.testing.assert_close(transform(Batch.from_data_list(graphs)).heat_diagonal_pe, alone, atol=1e-5, rtol=0)
