"""Saving and loading models: folders, the hub, and what is said of a bad file."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest
import torch

from ohmformer.encoding import (
    LinearTransformerPE,
)
from tests.encoding.molecules import batch_of, molecules


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
