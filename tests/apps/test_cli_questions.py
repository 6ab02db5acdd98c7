"""``ohmformer solve``: every flag changes the answer or is refused, advice is in flags, and tables can be read back."""

import csv
import io
import re
import subprocess
import sys
import warnings
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import ohmformer
from ohmformer.apps.command_line.main import app
from ohmformer.solve.factor import Limits

EDGES = [("a", "b", 1.0), ("b", "c", 2.0), ("c", "a", 3.0), ("c", "New York, NY", 4.0)]
PYTHON = re.compile(r"\b\w+=|Graph\.|\.to_|tensor|center|pairs='")
"""What a message for the command line does not contain."""


def run(*arguments):
    return CliRunner().invoke(app, ["solve", *map(str, arguments)])


def rows(outcome) -> list[dict[str, str]]:
    assert outcome.exit_code == 0, outcome.output
    return list(csv.DictReader(io.StringIO(outcome.stdout)))


def expected(a: str, b: str) -> float:
    graph = nx.Graph()
    graph.add_weighted_edges_from(EDGES, weight="ohm")
    distance: Any = nx.resistance_distance(graph, a, b, weight="ohm")
    return distance


@pytest.fixture
def town(tmp_path):
    path = tmp_path / "town.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("ohm", "source", "target"), *((r, u, v) for u, v, r in EDGES)])
    return path


def test_a_weight_column_before_the_nodes_is_no_node(town):
    for row in rows(run(town, "--resistance", "ohm")):
        assert float(row["effective_resistance"]) == pytest.approx(expected(row["u"], row["v"]), rel=1e-5)


def test_pairs_are_answered_in_their_order_and_names_with_commas_are_quoted(town, tmp_path):
    file = tmp_path / "pairs.csv"
    file.write_text('source,target\nb,"New York, NY"\n')
    for unasked in ((), ("--task", "resistance")):
        outcome = run(town, "--resistance", "ohm", "--pair", "a", "c", "--pairs", file, "--pair=New York, NY", "a", *unasked)
        found = [(row["u"], row["v"]) for row in rows(outcome)]
        assert found == [("a", "c"), ("New York, NY", "a"), ("b", "New York, NY")]
        for row in rows(outcome):
            assert float(row["effective_resistance"]) == pytest.approx(expected(row["u"], row["v"]), rel=1e-5)


def test_pairs_between_components_are_infinitely_far(tmp_path):
    (tmp_path / "g.csv").write_text("1,2\n3,4\n")
    assert rows(run(tmp_path / "g.csv", "--pair", "1", "3"))[0]["effective_resistance"] == "inf"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\nz,c\n", "got 'z'; the first are .* (line 2 of pairs.csv)"),
        ("a,z\n", "(line 1 of pairs.csv)"),
        ("a,b,c\n", "two nodes in line 1 of pairs.csv, got 3 cells"),
        ("source,target\n", "at least one pair of nodes in pairs.csv"),
        ("a;b,c\n", "pairs.csv seems to have semicolons from line 1 on; --sep ';'"),
    ],
)
def test_files_of_pairs_are_checked_line_by_line(town, tmp_path, content, message):
    (tmp_path / "pairs.csv").write_text(content)
    outcome = run(town, "--pairs", tmp_path / "pairs.csv")
    assert outcome.exit_code == 2
    assert re.search(re.escape(message).replace(r"\.\*", ".*"), outcome.stderr)


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (("--from", "a"), "--from"),
        (("--from", "a", "--to", "b"), "--from"),
        (("--task", "all-pairs", "--to", "b"), "--to"),
        (("--task", "heat", "--from", "a", "--to", "b"), "--to"),
        (("--task", "kirchhoff", "--from", "a"), "--from"),
        (("--task", "embedding", "--from", "a"), "--from"),
        (("--task", "eigenvectors", "--from", "a"), "--from"),
        (("--task", "all-pairs", "--pair", "a", "b"), "--pair"),
        (("--task", "flow", "--from", "a", "--to", "b", "--pairs", "x.csv"), "--pairs"),
        (("--s", "1"), "--s"),
        (("--k", "3"), "--k"),
        (("--task", "heat", "--from", "a", "--k", "3"), "--k"),
        (("--task", "all-pairs", "--eps", "0.1"), "--eps"),
        (("--plot", "x.png"), "--plot"),
        (("--task", "heat", "--from", "a", "--explain"), "--explain"),
        (("--task", "flow", "--from", "a", "--to", "b", "--laplacian", "normalized"), "--laplacian"),
    ],
)
def test_flags_that_a_task_does_not_use_are_refused(town, arguments, flag):
    outcome = run(town, *arguments)
    assert outcome.exit_code == 2
    assert outcome.stdout == ""
    assert outcome.stderr.startswith(f"error: expected {flag} with --task ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--pair", "a"), "expected two nodes after --pair, got a"),
        (("--pair", "a", "z"), "got 'z'"),
        (("--task", "flow", "--from", "a", "--to", "b", "--plot", "x.docx"), "a picture of type .png"),
        (("--resistance", "ohm", "--method", "gradient-descent", "--tol", "1e-20"), "a larger --tol"),
    ],
)
def test_questions_that_cannot_be_answered_are_refused_in_flags(town, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    outcome = run(town, *arguments)
    assert outcome.exit_code == 2
    assert message in outcome.stderr
    assert not PYTHON.search(outcome.stderr.splitlines()[-1])
    assert [path.name for path in tmp_path.iterdir()] == ["town.csv"]


@pytest.mark.parametrize(
    ("task", "advice"),
    [("all-pairs", ("--pairs FILE",))],
)
def test_advice_on_large_graphs_is_in_flags(tmp_path, monkeypatch, task, advice):
    monkeypatch.setattr("ohmformer.solve.factor.BEARABLE", Limits(entries=10, work=10.0, work_in_python=10.0))
    path = tmp_path / "ring.txt"
    path.write_text("\n".join(f"{i} {(i + 1) % 8100}" for i in range(8100)))
    outcome = run(path, "--task", task)
    assert outcome.exit_code == 2
    last = outcome.stderr.splitlines()[-1]
    assert "8000 nodes" in last
    assert all(flag in last for flag in advice)
    assert not PYTHON.search(last)


def test_single_pairs_of_a_large_graph_are_exact(tmp_path):
    path = tmp_path / "star.txt"
    path.write_text("\n".join(f"0 {i}" for i in range(1, 8200)))
    assert float(rows(run(path, "--pair", "5", "77"))[0]["effective_resistance"]) == pytest.approx(2.0, rel=1e-5)


def test_eigenvectors_come_with_eigenvalues_and_none_too_many(town, tmp_path):
    out = tmp_path / "vectors.csv"
    asked = (town, "--resistance", "ohm", "--task", "eigenvectors", "--k", "6")
    printed = run(*asked)
    table = rows(printed)
    assert set(table[0]) == {"node", "v1", "v2", "v3"}
    assert "3 eigenvectors instead of 6: the graph has 3 nonzero eigenvalues" in printed.stderr
    weighted = nx.Graph((u, v, {"g": 1 / r}) for u, v, r in EDGES)
    laplacian = nx.laplacian_matrix(weighted, weight="g").toarray()
    truth = np.linalg.eigvalsh(laplacian)[1:]
    said = [float(x) for x in re.findall(r"v\d ([\d.e-]+)", printed.stderr)]
    assert said == pytest.approx(truth, rel=1e-6)
    assert run(*asked, "--out", out).exit_code == 0
    with out.with_name("vectors.eigenvalues.csv").open() as file:
        written = [float(row["eigenvalue"]) for row in csv.DictReader(file)]
    assert written == pytest.approx(truth, rel=1e-9)
    with out.open() as file:
        vectors = np.array([[float(row[f"v{i}"]) for i in (1, 2, 3)] for row in csv.DictReader(file)])
    np.testing.assert_allclose(laplacian @ vectors, vectors * truth, atol=1e-8)


def test_no_number_is_printed_as_minus_zero(tmp_path):
    (tmp_path / "g.csv").write_text("source,target\na,b\nc,d\n")
    outcome = run(tmp_path / "g.csv", "--task", "eigenvectors", "--k", "4")
    assert "-0," not in outcome.stdout.replace("\n", ",")
    assert set(rows(outcome)[0]) == {"node", "v1", "v2"}


def test_notes_are_on_standard_error_and_the_table_is_not_disturbed(tmp_path):
    (tmp_path / "g.csv").write_text("source,target,ohm\na,b,2\nb,a,2\n")
    outcome = run(tmp_path / "g.csv", "--resistance", "ohm")
    assert "note: 1 pair stands in both directions" in outcome.stderr
    assert [float(row["effective_resistance"]) for row in rows(outcome)] == pytest.approx([1.0, 1.0], rel=1e-6)
    merged = run(tmp_path / "g.csv", "--resistance", "ohm", "--symmetrize")
    assert [float(row["effective_resistance"]) for row in rows(merged)] == pytest.approx([2.0], rel=1e-6)


def test_nothing_is_solved_or_written_if_an_output_cannot_be(town, tmp_path):
    asked = (town, "--task", "flow", "--from", "a", "--to", "b")
    for arguments, message in (
        (("--out", tmp_path / "t.csv", "--plot", tmp_path / "x.docx"), "a picture of type"),
        (("--out", town / "t.csv"), "a folder to write t.csv into"),
        (("--out", tmp_path / "t.xlsx", "--plot", tmp_path / "x.png"), "type .csv"),
        (("--out", tmp_path / "t.csv", "--explain"), "--explain without --out"),
    ):
        outcome = run(*asked, *arguments)
        assert outcome.exit_code == 2
        assert message in outcome.stderr
        assert "layers" not in outcome.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["town.csv"]


@pytest.mark.parametrize("arguments", [(), ("--pair", "a", "b"), ("--task", "flow", "--from", "a", "--to", "b")])
def test_explain_shows_the_plan_and_solves_nothing(town, arguments):
    outcome = run(town, *arguments, "--explain")
    assert outcome.exit_code == 0, outcome.output
    assert "cubing" in outcome.stdout
    assert "residual" not in outcome.stderr


@pytest.mark.parametrize("command", [("-m", "ohmformer"), ("-m", "ohmformer.apps.command_line.main")])
def test_the_version_names_torch_and_the_native_kernels(command):
    done = subprocess.run([sys.executable, *command, "--version"], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first == f"ohmformer {ohmformer.__version__}, torch {torch.__version__}"
    assert second.startswith("native kernels: ")


def test_the_package_runs_as_a_module(tmp_path):
    (tmp_path / "g.csv").write_text("1,2\n")
    command = [sys.executable, "-m", "ohmformer", "solve", str(tmp_path / "g.csv"), "--pair", "1", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "u,v,effective_resistance"
    usage = subprocess.run([*command[:3], "--help"], capture_output=True, text=True, check=True).stdout
    assert "Usage: ohmformer " in usage


def test_demands_are_refused_for_a_graph_in_a_file(town):
    refused = run(town, "--resistance", "ohm", "--demands", "d.npy", "--task", "potentials", "--from", "a", "--to", "b")
    assert refused.exit_code == 2
    assert "expected --demands for a folder of shards only" in refused.stderr


@pytest.mark.parametrize(("flag", "task"), [("--tol-of", "resistance"), ("--laplacian", "heat")])
def test_choices_are_listed_as_flags_are_written(town, flag, task):
    from ohmformer.apps.command_line.questions import CHOICES
    from ohmformer.solve.answer import LAPLACIANS

    assert CHOICES["--laplacian"] == LAPLACIANS
    refused = run(town, "--resistance", "ohm", "--task", task, flag, "foo", *(("--from", "a") if task == "heat" else ()))
    assert refused.exit_code == 2
    assert f"expected {flag} {' or '.join(CHOICES[flag])}, got 'foo'" in refused.stderr


def test_standard_input_is_one_file_only():
    refused = run("-", "--pairs", "-")
    assert refused.exit_code == 2
    assert "expected standard input (-) for one file" in refused.stderr


@pytest.mark.parametrize(
    ("inputs", "flags"),
    [
        (["town.csv"], []),
        (["pairs.csv"], ["--pairs", "pairs.csv"]),
        (["fixed.csv"], ["--task", "harmonic", "--fixed", "fixed.csv"]),
        (["keep.csv"], ["--task", "reduce", "--keep", "keep.csv"]),
        (["x.csv", "x.nodes.csv"], ["--task", "currents", "--pairs", "x.nodes.csv"]),
    ],
)
def test_out_does_not_overwrite_a_file_that_is_read(town, tmp_path, monkeypatch, inputs, flags):
    monkeypatch.chdir(tmp_path)
    texts = {"pairs.csv": "a,b\n", "x.nodes.csv": "a,b\n", "fixed.csv": "a,1\n", "keep.csv": "a\nb\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    refused = run("town.csv", "--resistance", "ohm", *flags, "--out", tmp_path / inputs[0])
    assert refused.exit_code == 2
    assert f"{inputs[-1]} is one of them" in refused.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_out_that_cannot_be_written_is_refused_before_the_file_is_read():
    refused = run("no such file.csv", "--out", "/proc/x.csv")
    assert refused.exit_code == 2
    assert "expected a folder to write x.csv into, /proc is none that can be written to" in refused.stderr


@pytest.mark.parametrize("flag", ["--resistance", "--conductance"])
@pytest.mark.parametrize(
    "rows", ["0,1,1e-308", "0,1,1e-308\n1,2,1\n2,0,1", "0,1,1e-308\n1,2,1e-308\n2,3,1e-308\n3,0,1e-308"]
)
@pytest.mark.parametrize(
    "asked",
    [
        (), ("--method", "squaring"), ("--task", "kirchhoff"), ("--task", "closeness"), ("--task", "eigenvectors"),
        ("--task", "heat", "--from", "0"), ("--task", "flow", "--from", "0", "--to", "1"),
    ],
)  # fmt: skip
def test_weights_at_the_end_of_float64_are_answered_or_refused_without_a_warning(tmp_path, flag, rows, asked):
    (tmp_path / "tiny.csv").write_text(f"source,target,w\n{rows}\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        outcome = run(tmp_path / "tiny.csv", flag, "w", *asked)
    assert outcome.exit_code in (0, 2), outcome.exception
