"""Every script of ``examples/`` runs, and prints what it is about."""

import re
import runpy
import sys
from pathlib import Path

import networkx as nx
import pytest

from tests.docs.blocks import ROOT

SCRIPTS = {path.stem for path in (ROOT / "examples").glob("*.py")}


def run(name: str, *arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


def test_own_graph_agrees_with_networkx_on_a_file(tmp_path: Path, monkeypatch, capsys):
    graph = nx.random_labeled_tree(9, seed=1)
    file = tmp_path / "tree.csv"
    file.write_text("source,target,ohm\n" + "".join(f"n{u},n{v},{1 + u}\n" for u, v in graph.edges))
    out = run("own_graph", str(file), "--resistance", "ohm", monkeypatch=monkeypatch, capsys=capsys)
    assert float(out.split("networkx: ")[1]) < 1e-9
    weighted = nx.Graph([(f"n{u}", f"n{v}", {"ohm": 1 + u}) for u, v in graph.edges])
    printed = {(u, v): float(x) for u, v, x in re.findall(r"(n\d) - (n\d) +([\d.]+) ohm", out)}
    assert len(printed) == 36
    for (u, v), value in printed.items():  # in a tree, resistance is distance
        assert value == pytest.approx(nx.shortest_path_length(weighted, u, v, weight="ohm"), abs=1e-6)


def test_lemma_by_hand_is_the_same_in_both_models_and_momentum_helps(monkeypatch, capsys):
    out = run("lemma_by_hand", monkeypatch=monkeypatch, capsys=capsys)
    (plain, first), (momentum, second) = re.findall(r"error (\S+), dense against efficient (\S+)", out)
    assert float(momentum) < 1e-3 * float(plain)
    assert max(float(first), float(second)) < 1e-12


def test_heat_on_grid_loses_no_heat_and_draws(tmp_path: Path, monkeypatch, capsys):
    out = run("heat_on_grid", "--side", "8", "--out", str(tmp_path / "heat.png"), monkeypatch=monkeypatch, capsys=capsys)
    assert [float(x) for x in re.findall(r"([\d.]+) in all", out)] == pytest.approx([1.0] * 4, abs=1e-6)
    left = [float(x) for x in re.findall(r"([\d.]+) is left", out)]
    assert left == sorted(left, reverse=True)
    assert (tmp_path / "heat.png").stat().st_size > 1000


def test_train_a_transformer_gets_far_beyond_the_lemma(monkeypatch, capsys):
    out = run("train_a_transformer", "--steps", "10", monkeypatch=monkeypatch, capsys=capsys)
    *lemmas, trained = (float(x) for x in re.findall(r"log loss (-?[\d.]+)", out))
    assert trained < min(lemmas) - 2


@pytest.mark.parametrize("backbone", ["gine", "gps", "gt"])
def test_backbones_learn_hydration_energies_offline(backbone: str, monkeypatch, capsys):
    out = run("zinc", "--backbone", backbone, "--epochs", "3", monkeypatch=monkeypatch, capsys=capsys)
    # a standard normal target has a mean absolute deviation near 0.8, which a constant answer would leave
    assert float(out.split("epoch: ")[1]) < 0.6


def test_landscape_finds_resistances_of_all_pairs_and_draws(tmp_path: Path, monkeypatch, capsys):
    out = run("landscape", "--side", "40", "--out", str(tmp_path / "land.png"), monkeypatch=monkeypatch, capsys=capsys)
    found = {(int(i), int(j)): float(x) for i, j, x in re.findall(r"from habitat (\d) to (\d): ([\d.]+) ohm", out)}
    assert len(found) == 6
    for i, j, k in ((1, 2, 3), (1, 3, 4), (2, 3, 4)):  # resistances are distances
        assert found[i, k] <= found[i, j] + found[j, k]
    assert (tmp_path / "land.png").stat().st_size > 1000


def test_segments_have_scikit_images_labels(tmp_path: Path, monkeypatch, capsys):
    pytest.importorskip("skimage")
    out = run("segment_image", "--step", "6", "--out", str(tmp_path / "s.png"), monkeypatch=monkeypatch, capsys=capsys)
    assert "scikit-image: 100.0000% of pixels" in out
    assert float(out.split("largest difference of probabilities: ")[1].split()[0]) < 1e-4  # scikit-image's tolerance is 1e-3


def test_every_example_is_tested():
    text = Path(__file__).read_text()
    assert all(f'run("{name}"' in text for name in SCRIPTS)


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_an_example_is_short_and_says_how_to_run_it(name: str):
    text = (ROOT / "examples" / f"{name}.py").read_text()
    assert len(text.splitlines()) <= 150
    assert f"python examples/{name}.py" in text
