"""``ohmformer solve``: a file in, a right table out; wrong files and questions are refused and leave nothing behind."""

import csv
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from typer.testing import CliRunner

from ohmformer.apps.command_line.main import app
from ohmformer.graph.files import read_graph

EDGES = [("a", "b", 1.0), ("b", "c", 2.0), ("c", "a", 3.0), ("c", "d", 4.0)]


def run(*arguments):
    return CliRunner().invoke(app, ["solve", *map(str, arguments)])


def truth() -> nx.Graph:
    g = nx.Graph()
    g.add_weighted_edges_from(EDGES, weight="ohm")
    return g


@pytest.fixture
def files(tmp_path) -> dict:
    g = truth()
    (tmp_path / "e.csv").write_text("source,target,ohm\n" + "\n".join(f"{u},{v},{r}" for u, v, r in EDGES))
    (tmp_path / "e.tsv").write_text("source\ttarget\tohm\n" + "\n".join(f"{u}\t{v}\t{r}" for u, v, r in EDGES))
    (tmp_path / "e.txt").write_text("# a comment\nu v ohm\n" + "\n".join(f"{u}  {v} {r}" for u, v, r in EDGES))
    nx.write_graphml(g, tmp_path / "e.graphml")
    matrix = nx.to_scipy_sparse_array(g, weight="ohm", format="csr")
    scipy.io.mmwrite(tmp_path / "e.mtx", matrix)
    sp.save_npz(tmp_path / "e.npz", sp.csr_matrix(matrix))
    return {path.suffix: path for path in tmp_path.iterdir()}


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".txt", ".graphml", ".mtx", ".npz"])
def test_resistances_are_networkxs_from_every_kind_of_file(files, suffix):
    outcome = run(files[suffix], "--resistance", "entries" if suffix in (".mtx", ".npz") else "ohm")
    assert outcome.exit_code == 0, outcome.output
    rows = list(csv.DictReader(outcome.stdout.splitlines()))
    assert len(rows) == len(EDGES)
    expected: Any = nx.resistance_distance(truth(), weight="ohm")
    name = dict(enumerate(truth().nodes)) if suffix in (".mtx", ".npz") else {}
    for row in rows:
        u, v = (name.get(int(x), x) if name else x for x in (row["u"], row["v"]))
        assert float(row["effective_resistance"]) == pytest.approx(expected[u][v], rel=1e-5)
    assert "residual" in outcome.stderr


def test_flow_and_potentials_agree_and_run_downhill(files, tmp_path):
    arguments = (files[".csv"], "--resistance", "ohm", "--from", "a", "--to", "d")
    flow = list(csv.DictReader(run(*arguments, "--task", "flow").stdout.splitlines()))
    potentials = {
        r["node"]: float(r["potential"]) for r in csv.DictReader(run(*arguments, "--task", "potentials").stdout.splitlines())
    }
    ohm = {(u, v): r for u, v, r in EDGES}
    for row in flow:
        u, v = row["u"], row["v"]
        assert float(row["flow"]) == pytest.approx((potentials[u] - potentials[v]) / ohm[u, v], abs=1e-6)
    assert potentials["a"] - potentials["d"] == pytest.approx(
        nx.resistance_distance(truth(), "a", "d", weight="ohm"), rel=1e-5
    )


def test_all_pairs_heat_and_eigenvectors(files):
    g = truth()
    laplacian = nx.laplacian_matrix(nx.Graph((u, v, {"c": 1 / r}) for u, v, r in EDGES), weight="c").toarray()
    rows = list(csv.DictReader(run(files[".csv"], "--resistance", "ohm", "--task", "all-pairs").stdout.splitlines()))
    assert len(rows) == 6
    for row in rows:
        expected = nx.resistance_distance(g, row["u"], row["v"], weight="ohm")
        assert float(row["effective_resistance"]) == pytest.approx(expected, rel=1e-5)
    heat = run(files[".csv"], "--resistance", "ohm", "--task", "heat", "--from", "a", "--s", "1.5").stdout.splitlines()
    values = [float(r["heat"]) for r in csv.DictReader(heat)]
    assert values == pytest.approx(scipy.linalg.expm(-1.5 * laplacian)[0], abs=1e-6)
    heat = run(
        files[".csv"], "--resistance", "ohm", "--task", "heat", "--from", "a", "--laplacian", "normalized"
    ).stdout.splitlines()
    scaled = laplacian / np.sqrt(np.outer(laplacian.diagonal(), laplacian.diagonal()))
    assert [float(r["heat"]) for r in csv.DictReader(heat)] == pytest.approx(scipy.linalg.expm(-0.5 * scaled)[0], abs=1e-6)
    vectors = list(
        csv.DictReader(run(files[".csv"], "--resistance", "ohm", "--task", "eigenvectors", "--k", "2").stdout.splitlines())
    )
    v1 = np.array([float(r["v1"]) for r in vectors])
    np.testing.assert_allclose(laplacian @ v1, np.linalg.eigvalsh(laplacian)[1] * v1, atol=1e-6)


def test_the_kirchhoff_index_and_an_embedding(files):
    asked = (files[".csv"], "--resistance", "ohm", "--task")
    index = float(run(*asked, "kirchhoff").stdout.splitlines()[1])
    assert index == pytest.approx(nx.effective_graph_resistance(truth(), weight="ohm"), rel=1e-5)
    rows = list(csv.DictReader(run(*asked, "embedding", "--k", "5").stdout.splitlines()))
    assert [row["node"] for row in rows] == ["a", "b", "c", "d"]
    assert set(rows[0]) == {"node", "x1", "x2", "x3", "x4", "x5"}


def test_a_lemma_by_name_says_so(files):
    asked = (files[".csv"], "--resistance", "ohm", "--task", "flow", "--from", "a", "--to", "d")
    outcome = run(*asked, "--method", "gradient-descent")
    assert outcome.exit_code == 0, outcome.output
    assert "gradient-descent, " in outcome.stderr
    assert outcome.stdout.splitlines()[0] == run(*asked).stdout.splitlines()[0]


def test_large_expanders_are_estimated_to_what_is_asked(tmp_path, monkeypatch):
    monkeypatch.setattr("ohmformer.solve.resistance.DEFAULT_EPS", 0.2)
    rng = np.random.default_rng(0)
    edges = np.concatenate([np.stack([np.arange(8999), np.arange(1, 9000)], 1), rng.integers(0, 9000, (40000, 2))])
    path = tmp_path / "big.csv"
    path.write_text("\n".join(f"{u},{v}" for u, v in edges))
    for asked, within in (((), "eps was not given: estimated within 0.2"), (("--eps", "0.5"), "estimated within 0.5")):
        outcome = run(path, *asked, "--out", tmp_path / "r.npz")
        assert outcome.exit_code == 0, outcome.output
        assert within in " ".join(outcome.stderr.split())


def test_closeness_and_spanning_trees(tmp_path):
    path = tmp_path / "kite.csv"
    path.write_text("source,target,ohm\na,b,1\nb,c,1\nc,a,1\nc,d,2\n")
    trees = run(path, "--resistance", "ohm", "--task", "spanning-trees").stdout.splitlines()
    assert trees[0] == "u,v,probability"
    np.testing.assert_allclose([float(line.split(",")[2]) for line in trees[1:]], [2 / 3, 2 / 3, 2 / 3, 1], rtol=1e-6)
    near = run(path, "--resistance", "ohm", "--task", "closeness", "--eps", "0.1").stdout.splitlines()
    assert near[0] == "node,closeness,diagonal"
    far = {"a": 4 / 3 + 8 / 3, "b": 4 / 3 + 8 / 3, "c": 4 / 3 + 2, "d": 2 + 16 / 3}
    assert {line.split(",")[0]: float(line.split(",")[1]) for line in near[1:]} == pytest.approx(
        {v: 1 / x for v, x in far.items()}
    )


def test_all_edges_of_a_large_grid_are_answered_exactly(tmp_path):
    side = 95
    edges = [(i, i + 1) for i in range(side * side) if (i + 1) % side] + [(i, i + side) for i in range(side * (side - 1))]
    path = tmp_path / "grid.csv"
    path.write_text("\n".join(f"{u},{v}" for u, v in edges))
    outcome = run(path, "--out", tmp_path / "r.npz")
    assert outcome.exit_code == 0, outcome.output
    assert "selected inversion" in outcome.stderr
    with np.load(tmp_path / "r.npz") as table:
        assert float(table["effective_resistance"].sum()) == pytest.approx(side * side - 1, rel=1e-9)  # Foster's theorem
    assert "selected inversion of a factor of " in run(path, "--explain").output


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".npz", ".parquet"])
def test_tables_are_written_whole(files, tmp_path, suffix):
    out = tmp_path / "out" / f"table{suffix}"
    outcome = run(files[".csv"], "--resistance", "ohm", "--out", out)
    assert outcome.exit_code == 0, outcome.output
    assert [p.name for p in out.parent.iterdir()] == [out.name]
    if suffix == ".npz":
        with np.load(out) as data:
            assert data["effective_resistance"].shape == (4,)
    elif suffix == ".parquet":
        table = pytest.importorskip("pyarrow.parquet").read_table(out)
        assert table.column_names == ["u", "v", "resistance", "effective_resistance"]
        assert table.num_rows == 4
    else:
        assert len(out.read_text().splitlines()) == 5


def test_a_picture_of_the_flow(files, tmp_path):
    out = tmp_path / "flow.png"
    outcome = run(files[".csv"], "--resistance", "ohm", "--task", "flow", "--from", "a", "--to", "d", "--plot", out)
    assert outcome.exit_code == 0, outcome.output
    assert out.read_bytes().startswith(b"\x89PNG")


def test_an_edge_list_without_header_has_unit_resistances(tmp_path):
    (tmp_path / "e.csv").write_text("1,2\n2,3\n")
    named = read_graph(tmp_path / "e.csv")
    assert (list(named.labels), named.graph.num_edges) == (["1", "2", "3"], 2)


@pytest.mark.parametrize(
    ("content", "labels"),
    [
        ("Von,Nach\n1,2\n2,3\n", ["1", "2", "3"]),
        ("a,b,ohm\nx,y,1.5\ny,z,2\n", ["x", "y", "z"]),
        ("Source,Target\nx,y\n", ["x", "y"]),
        ("hub,1\n1,2\n2,3\n", ["hub", "1", "2", "3"]),
        ("a,b\nb,c\n", ["a", "b", "c"]),
        ("a,b,new\nb,c,7\nc,d,old\n", ["a", "b", "c", "d"]),
        ("1,2,0.5\n2,3,1\n", ["1", "2", "3"]),
    ],
)
def test_a_first_line_of_words_above_numbers_names_the_columns_and_any_other_is_an_edge(tmp_path, content, labels):
    (tmp_path / "e.csv").write_text(content)
    assert read_graph(tmp_path / "e.csv").labels == labels


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        (None, (), "expected a file"),
        ("", (), "at least one edge in g.csv, got none"),
        ("source,target\n", (), "at least one edge in g.csv, got none"),
        ("a,b\na\n", (), "2 columns in line 2"),
        ("source,target,w\na,b,x\n", ("--resistance", "w"), "a number in line 2 of g.csv, column 'w', got 'x'"),
        ("source,target,w\na,b,-1\n", ("--resistance", "w"), "line 2 of g.csv, column 'w', got '-1'"),
        ("source,target\na,b\n", ("--resistance", "w"), "expected a column 'w'"),
        ("1,2\n", ("--task", "flow"), "expected --from NODE"),
        ("1,2\n", ("--task", "flow", "--from", "1", "--to", "z"), "got 'z'"),
        ("1,2\n3,4\n", ("--task", "flow", "--from", "1", "--to", "3"), "expected a way from 1 to 3"),
        ("1,2\n", ("--task", "flow", "--from", "1", "--to", "1"), "two different nodes"),
        ("1,2\n", ("--out", "table.xlsx"), "got table.xlsx"),
        ("1,2\n", ("--plot", "x.png"), "--plot with --task flow, potentials only"),
        ("1,2\n", ("--task", "heat", "--from", "1", "--s", "-1"), "s > 0, got -1.0"),
        ("1,2\n", ("--tol", "2"), "--tol in (0, 1), got 2.0"),
        ("1,2\n", ("--method", "magic"), "expected --method among"),
        ("1,2\n", ("--task", "eigenvectors", "--k", "0"), "--k >= 1, got 0"),
    ],
)
def test_wrong_files_and_questions_are_refused_by_name(tmp_path, content, arguments, message):
    path = tmp_path / "g.csv"
    if content is not None:
        path.write_text(content)
    outcome = run(path, *arguments)
    assert outcome.exit_code == 2
    last = outcome.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert message in last
    assert {p.name for p in tmp_path.iterdir()} <= {"g.csv"}


@pytest.mark.parametrize("name", ["g.mtx", "g.npz", "g.graphml", "g.csv", "g.xyz"])
def test_files_that_hold_no_graph_are_refused(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"\x00\xffnot a graph at all")
    outcome = run(path)
    assert outcome.exit_code == 2
    assert outcome.stderr.startswith("error: ")


def test_a_picture_of_too_many_nodes_is_refused(tmp_path):
    path = tmp_path / "path.csv"
    path.write_text("\n".join(f"{i},{i + 1}" for i in range(300)))
    outcome = run(path, "--task", "flow", "--from", "0", "--to", "300", "--plot", tmp_path / "x.png")
    assert outcome.exit_code == 2
    assert "1 to 150 nodes for a picture of a circuit, got 301" in outcome.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["path.csv"]


def test_a_folder_that_holds_no_shards_is_named_before_its_flags(tmp_path):
    done = run(tmp_path)
    assert done.exit_code == 2
    assert "expected shards as `ohmformer shard` makes them" in done.stderr
    assert "manifest.json" in done.stderr
