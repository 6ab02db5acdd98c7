"""``ohmformer solve`` on harmonic, currents, sparsify and reduce: tables to be read again, errors with file and line."""

import csv
import io
from itertools import combinations

import networkx as nx
import pytest
from typer.testing import CliRunner

from ohmformer.apps.command_line.main import app

EDGES = [("a", "b", 1.0), ("b", "c", 2.0), ("c", "a", 3.0), ("c", "New York, NY", 4.0)]


def run(*arguments):
    return CliRunner().invoke(app, ["solve", *map(str, arguments)])


def rows(outcome) -> list[dict[str, str]]:
    assert outcome.exit_code == 0, outcome.output
    return list(csv.DictReader(io.StringIO(outcome.stdout)))


@pytest.fixture
def town(tmp_path):
    path = tmp_path / "town.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("source", "target", "ohm"), *EDGES])
    return path


@pytest.fixture
def dense(tmp_path):
    path = tmp_path / "dense.csv"
    path.write_text("source,target\n" + "".join(f"n{u},n{v}\n" for u, v in combinations(range(50), 2)))
    return path


def written(path, text: str):
    path.write_text(text)
    return path


def test_harmonic_potentials_of_fixed_nodes_in_a_file(town, tmp_path):
    fixed = written(tmp_path / "fixed.csv", 'node,volt,label\na,0,1\n"New York, NY",9,1\n')
    outcome = run(town, "--resistance", "ohm", "--task", "harmonic", "--fixed", fixed)
    volt = {row["node"]: float(row["volt"]) for row in rows(outcome)}
    # three ohms in two ways from a to c, 1.5 together, then four
    assert volt == pytest.approx({"a": 0, "b": 9 * 1.5 / 5.5 / 3, "c": 9 * 1.5 / 5.5, "New York, NY": 9}, abs=1e-5)
    assert {row["label"] for row in rows(outcome)} == {"1"}
    plain = written(tmp_path / "plain.csv", "a,2\n")
    assert {row["value"] for row in rows(run(town, "--resistance", "ohm", "--task", "harmonic", "--fixed", plain))} == {"2"}


def test_currents_of_pairs_go_to_three_tables(town, tmp_path):
    pairs, out = written(tmp_path / "pairs.csv", 'a,"New York, NY"\nb,c\n'), tmp_path / "currents.csv"
    outcome = run(town, "--resistance", "ohm", "--task", "currents", "--pairs", pairs, "--pair", "a", "b", "--out", out)
    assert outcome.exit_code == 0, outcome.output
    tables = {}
    for name in ("currents.csv", "currents.nodes.csv", "currents.pairs.csv"):
        with (tmp_path / name).open(newline="") as file:
            tables[name] = list(csv.DictReader(file))
    graph = nx.Graph()
    graph.add_weighted_edges_from(EDGES, weight="ohm")
    found = [(row["u"], row["v"]) for row in tables["currents.pairs.csv"]]
    assert found == [("a", "b"), ("a", "New York, NY"), ("b", "c")]
    for row in tables["currents.pairs.csv"]:
        expected = nx.resistance_distance(graph, row["u"], row["v"], weight="ohm")
        assert float(row["effective_resistance"]) == pytest.approx(expected, rel=1e-5)
    edge = {(row["u"], row["v"]): float(row["current"]) for row in tables["currents.csv"]}
    assert edge["c", "New York, NY"] == pytest.approx(1.0, abs=1e-5)  # one of three pairs goes there
    node = {row["node"]: float(row["current"]) for row in tables["currents.nodes.csv"]}
    assert node["New York, NY"] == pytest.approx(1.0, abs=1e-5)
    printed = run(town, "--task", "currents", "--unit", "--pair", "a", "b")
    assert "--out FILE writes nodes and pairs, too" in printed.stderr
    assert len(rows(printed)) == 4
    assert "reason" in run(town, "--task", "currents", "--unit", "--pair", "a", "b", "--explain").stdout


def test_a_sparsified_graph_can_be_read_again(dense, tmp_path):
    out = tmp_path / "sparse.csv"
    outcome = run(dense, "--task", "sparsify", "--eps", "0.9", "--seed", "3", "--out", out)
    assert outcome.exit_code == 0, outcome.output
    assert "of 1225 edges stay" in outcome.stderr
    again = run(out, "--resistance", "resistance", "--pair", "n0", "n1")
    assert 0.04 / 1.9 <= float(rows(again)[0]["effective_resistance"]) <= 0.04 / 0.1
    assert len(out.read_text().splitlines()) < 1000
    other = run(dense, "--task", "sparsify", "--eps", "0.9", "--seed", "4")
    with out.open(newline="") as file:
        assert [row["u"] for row in rows(other)] != [row["u"] for row in csv.DictReader(file)]


def test_reduced_graphs_keep_resistances_whether_nodes_are_flags_or_in_a_file(town, tmp_path):
    file = written(tmp_path / "keep.csv", 'node\na\n"New York, NY"\n')
    for keep in (("--keep", file), ("--keep", "a", "--keep", "New York, NY")):
        found = rows(run(town, "--resistance", "ohm", "--task", "reduce", *keep))
        assert [(row["u"], row["v"]) for row in found] == [("a", "New York, NY")]
        assert float(found[0]["resistance"]) == pytest.approx(5.5)
    alone = run(town, "--resistance", "ohm", "--task", "reduce", "--keep", "a")
    assert rows(alone) == []
    assert "1 kept nodes have no edge" in alone.stderr


BAD = {
    "no fixed": (("--task", "harmonic"), "expected --fixed FILE for --task harmonic"),
    "no pairs": (("--task", "currents"), "expected --pair A B or --pairs FILE for --task currents"),
    "no eps": (("--task", "sparsify"), "expected --eps EPS for --task sparsify"),
    "no keep": (("--task", "reduce"), "expected --keep NODE or --keep FILE for --task reduce"),
    "eps zero": (("--task", "sparsify", "--eps", "0"), "expected --eps in (0, 1), got 0.0"),
    "eps negative": (("--task", "sparsify", "--eps", "-0.5"), "expected --eps in (0, 1), got -0.5"),
    "keep outside": (("--task", "reduce", "--keep", "x"), "expected a node of the graph, got 'x'"),
    "tol of reduce": (("--task", "reduce", "--keep", "a", "--tol", "0.1"), "expected no --tol with --task reduce"),
    "method of sparsify": (("--task", "sparsify", "--eps", "0.5", "--method", "direct"), "expected no --method with"),
    "keep of flow": (("--task", "flow", "--from", "a", "--to", "b", "--keep", "a"), "--keep with --task reduce only"),
    "seed of heat": (("--task", "heat", "--from", "a", "--seed", "1"), "--seed with --task sparsify only"),
    "unknown pair": (("--task", "currents", "--pair", "a", "x"), "expected a node of the graph, got 'x'"),
    "missing file": (
        ("--task", "harmonic", "--fixed", "none.csv"),
        "expected a file of values of nodes, there is no file none.csv",
    ),
}
FILES = {
    "contradiction": ("a,0\nb,1\na,2\n", "'a' has 0 in line 1 and 2 in line 3 of fixed.csv"),
    "unknown": ("node,value\nx,1\n", "got 'x'; the first are a, b, c, New York, NY (line 2 of fixed.csv)"),
    "no number": ("a,0\nb,one\n", "expected a finite number in line 2 of fixed.csv, got 'one'"),
    "infinite": ("a,0\nb,inf\n", "expected a finite number in line 2 of fixed.csv, got 'inf'"),
    "missing cell": ("a,0,1\nb,1\n", "expected a node and 2 values in line 2 of fixed.csv, got 2 cells"),
    "no value": ("node\na\n", "expected a node and a value in line 2 of fixed.csv, got 1 cells"),
    "nothing": ("node,value\n", "expected at least one node with a value in fixed.csv, got none"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_flags_get_one_sentence_and_write_nothing(town, tmp_path, name):
    arguments, sentence = BAD[name]
    outcome = run(town, "--resistance", "ohm", *arguments, "--out", tmp_path / "out.csv")
    assert outcome.exit_code == 2
    assert sentence in outcome.stderr
    assert outcome.stderr.strip().splitlines()[-1].startswith("error: ")
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("name", FILES)
def test_bad_lines_of_fixed_values_are_named(town, tmp_path, name):
    text, sentence = FILES[name]
    outcome = run(town, "--resistance", "ohm", "--task", "harmonic", "--fixed", written(tmp_path / "fixed.csv", text))
    assert outcome.exit_code == 2
    assert sentence in outcome.stderr


def test_components_without_fixed_nodes_and_pairs_across_them_are_refused_in_flags(tmp_path):
    two = written(tmp_path / "two.csv", "source,target\na,b\nx,y\n")
    fixed = written(tmp_path / "fixed.csv", "a,1\n")
    refused = run(two, "--task", "harmonic", "--fixed", fixed)
    assert refused.exit_code == 2
    assert "that of node 'x' (2 nodes) has none; --partial leaves it out" in refused.stderr
    values = {row["node"]: row["value"] for row in rows(run(two, "--task", "harmonic", "--fixed", fixed, "--partial"))}
    assert values == {"a": "1", "b": "1", "x": "nan", "y": "nan"}
    across = run(two, "--task", "currents", "--pair", "a", "x")
    assert across.exit_code == 2
    assert "node 'a' and node 'x' are in different components" in across.stderr


def test_bad_lines_of_kept_nodes_are_named(town, tmp_path):
    for text, sentence in (
        ("a\nq\n", "(line 2 of keep.csv)"),
        ("a,b\n", "one node in line 1 of keep.csv"),
        ("node\n", "got none"),
    ):
        outcome = run(town, "--unit", "--task", "reduce", "--keep", written(tmp_path / "keep.csv", text))
        assert outcome.exit_code == 2
        assert sentence in outcome.stderr
