"""A missing optional package ends a command with one line that names its extra, before any work is done."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ohmformer.apps.command_line.main import app


@pytest.mark.parametrize(
    ("missing", "extra", "arguments"),
    [
        ("lightning", "train", ["train", "--data", "molecules.smi"]),
        ("tensorboard", "train", ["train", "--data", "molecules.smi"]),
        ("lightning", "train", ["reproduce", "table2", "--data", "molecules.smi"]),
        ("werkzeug", "explorer", ["explore", "--port", "0"]),
        ("dash", "explorer", ["explore", "--port", "0"]),
        ("matplotlib", "report", ["report"]),
        ("matplotlib", "plot", ["reproduce", "fig1"]),
    ],
)
def test_a_missing_package_names_its_extra_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, extra: str, arguments: list[str]
):
    (tmp_path / "molecules.smi").write_text("CCO\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, missing, None)
    for module in ("experiments.molecules.training", "apps.explorer.app"):  # to be imported again
        monkeypatch.delitem(sys.modules, f"ohmformer.{module}", raising=False)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2, done.output
    expected = f"error: expected the package {missing}, which `pip install ohmformer[{extra}]` brings, got none"
    assert done.stderr.splitlines()[-1] == expected
    assert [path.name for path in tmp_path.iterdir()] == ["molecules.smi"]


def test_molecules_without_rdkit_name_its_extra(monkeypatch: pytest.MonkeyPatch):
    from ohmformer.experiments.molecules.table import from_smiles
    from ohmformer.graph.smiles import canonical

    monkeypatch.setitem(sys.modules, "rdkit", None)
    for read in (lambda: from_smiles(["CCO"]), lambda: canonical("CCO")):
        with pytest.raises(ImportError, match=r"expected the package rdkit, which `pip install ohmformer\[molecules\]`"):
            read()
