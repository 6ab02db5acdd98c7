"""Optional packages: one table from command to extra, and a missing package is named before any work."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from ohmformer.apps.command_line.main import app
from ohmformer.graph.extras import EXTRAS, MissingPackage, markdown_table, require

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = {"markdown_it": "markdown-it-py"}
"""Packages that are not called as they are imported."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WITHOUT = """
import sys

REFUSED = set()


class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in REFUSED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Refuse())
"""
ALL = sorted({module for extra in EXTRAS.values() for module in extra.modules})


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=]", text)[0] for text in requirements}


def run_without(missing: list[str], code: str, folder: Path) -> subprocess.CompletedProcess:
    """Run code in a process in which some packages cannot be imported; the code may change REFUSED."""
    text = f"{WITHOUT}\nREFUSED.update({missing!r})\n{code}"
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, cwd=folder, check=False)


def test_the_table_agrees_with_the_extras_of_the_package():
    written = PROJECT["optional-dependencies"]
    assert set(written) - {"docs", "dev", "all"} == set(EXTRAS)
    for name, extra in EXTRAS.items():
        assert names(written[name]) == {DISTRIBUTIONS.get(module, module) for module in extra.modules}
    assert set(re.findall(r"\w+", written["all"][0])) == {"ohmformer", *EXTRAS}
    assert not names(PROJECT["dependencies"]) & {DISTRIBUTIONS.get(module, module) for module in ALL}


def test_the_page_on_installing_shows_the_table():
    assert markdown_table() in (ROOT / "docs" / "howto" / "install.md").read_text()


def test_every_command_of_the_table_is_one():
    root = get_command(app)
    assert isinstance(root, TyperGroup)
    assert {command for extra in EXTRAS.values() for command in extra.commands} <= set(root.commands)


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackage, match=r"expected the package pyarrow, which `pip install ohmformer\[large\]` brings"):
        require("pyarrow.parquet", "large")
    assert require("json.decoder", "large").JSONDecoder


COMMANDS = [
    ("rdkit", "encode", "encode", "mols.smi", "--out", "x.parquet"),
    ("pyarrow", "encode", "encode", "edges.csv", "--out", "x.parquet"),
    ("ray", "cluster", "encode", "edges.csv", "--out", "x.parquet", "--cluster", "local"),
    ("rdkit", "encode", "pretrain", "mols.smi", "--out", "model"),
    ("lightning", "train", "train"),
    ("lightning", "train", "reproduce", "table2"),
    ("matplotlib", "plot", "reproduce", "fig1"),
    ("matplotlib", "plot", "demo"),
    ("matplotlib", "plot", "dream", "run"),
    ("werkzeug", "explorer", "explore"),
    ("dash", "explorer", "explore"),
    ("markdown_it", "report", "report"),
    ("pyarrow", "large", "solve", "edges.csv", "--out", "x.parquet"),
    ("matplotlib", "plot", "solve", "edges.csv", "--task", "flow", "--from", "a", "--to", "b", "--plot", "x.png"),
]


def test_commands_name_the_missing_package_before_any_work(tmp_path):
    """In one process, because a process takes seconds to import torch."""
    (tmp_path / "mols.smi").write_text("CCO\n")
    (tmp_path / "edges.csv").write_text("source,target\na,b\n")
    code = f"""
import json
from typer.testing import CliRunner
from ohmformer.apps.command_line.main import app
for package, extra, *arguments in {COMMANDS!r}:
    REFUSED.clear()
    REFUSED.add(package)
    hidden = {{name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == package}}
    outcome = CliRunner().invoke(app, arguments)
    sys.modules.update(hidden)
    print(json.dumps([outcome.exit_code, outcome.stdout, outcome.stderr]))
"""
    done = run_without([], code, tmp_path)
    assert done.returncode == 0, done.stderr
    for line, (package, extra, *arguments) in zip(done.stdout.splitlines(), COMMANDS, strict=True):
        sentence = f"error: expected the package {package}, which `pip install ohmformer[{extra}]` brings, got none\n"
        assert json.loads(line) == [2, "", sentence], arguments
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edges.csv", "mols.smi"]


def test_graphgym_without_yacs_names_its_extra(tmp_path):
    done = run_without(["yacs"], "import ohmformer.integrations.graphgym", tmp_path)
    assert done.returncode == 1
    assert "expected the package yacs, which `pip install ohmformer[graphgym]` brings" in done.stderr.splitlines()[-1]


def test_the_core_works_without_any_extra(tmp_path):
    code = """
import torch, ohmformer as ohm
from ohmformer.encoding import LinearTransformerPE
g = ohm.Graph.from_edges([(0, 1), (1, 2)])
assert ohm.effective_resistance(g).value.sub(1).abs().max() < 1e-6
ohm.eigenvectors(g, 1), ohm.heat_kernel(g), ohm.exact.pinv(g)
ohm.constructions.Chebyshev(g.spectral_bounds()).run(g, layers=3)
model = LinearTransformerPE.from_pretrained("zinc")
assert model(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), num_nodes=3).shape == (3, 6)
model.save_pretrained("model")
from typer.testing import CliRunner
from ohmformer.apps.command_line.main import app
open("g.csv", "w").write("source,target\\na,b\\n")
for arguments in (["solve", "g.csv"], ["learn", "--steps", "2", "--seeds", "1"], ["--version"]):
    assert CliRunner().invoke(app, arguments).exit_code == 0, arguments
try:
    model.push_to_hub("someone/model")
except ImportError as error:
    print(error)
"""
    done = run_without(ALL, code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "pip install ohmformer[hub]" in done.stdout
