"""The README keeps what it promises: its first screen, its commands on files as people have them, its numbers."""

import csv
import gzip
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import scipy.io
from typer.core import TyperGroup
from typer.main import get_command

from ohmformer.apps.command_line.main import app
from ohmformer.apps.report.markdown import Document
from tests.apps.running import run
from tests.docs.blocks import ROOT, blocks

README = (ROOT / "README.md").read_text()
FIRST_SCREEN = "\n".join(README.splitlines()[:40])
ASK = [
    shlex.split(line, comments=True) for line in blocks(README)[1].code.splitlines() if line.startswith("ohmformer solve")
]


def follow(script: str, folder: Path) -> str:
    """Run a block of the README as a person would, in a shell in which ``ohmformer`` is a command."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        ["bash", "-euc", script], cwd=folder, env=environment, check=True, capture_output=True, text=True
    ).stdout


def resistances(printed: str) -> dict[frozenset[str], float]:
    rows = csv.DictReader(printed.splitlines())
    return {frozenset((row["u"], row["v"])): float(row["effective_resistance"]) for row in rows}


def town() -> nx.Graph:
    """Somebody's own graph: names with commas, blanks and accents, resistances over six decades."""
    names = ["home", "shop", "New York, NY", "Zürich HB", "São Paulo", "5", "a.b", "q/r", "№ 9", "ten"]
    graph = nx.relabel_nodes(nx.connected_watts_strogatz_graph(10, 4, 0.4, seed=3), dict(enumerate(names)))
    for i, (_, _, data) in enumerate(graph.edges(data=True)):
        data["ohm"] = 10.0 ** (i % 7 - 3)
    return graph


def truth(graph: nx.Graph) -> dict[frozenset[str], float]:
    distances: Any = nx.resistance_distance(graph, weight="ohm")
    return {frozenset((str(u), str(v))): x for u, row in distances.items() for v, x in row.items() if u != v}


def table(sep: str = ",", order: tuple[str, ...] = ("source", "target", "ohm"), end: str = "\n") -> str:
    """The town as text, quoted where it needs to be."""
    file = io.StringIO()
    writer = csv.writer(file, delimiter=sep, lineterminator=end)
    writer.writerow(order)
    for u, v, ohm in town().edges.data("ohm"):
        row = {"source": u, "target": v, "ohm": ohm}
        writer.writerow([row.get(name, "x") for name in order])
    return file.getvalue()


def numbered() -> nx.Graph:
    return nx.convert_node_labels_to_integers(town())


def matrix_market() -> bytes:
    file = io.BytesIO()
    scipy.io.mmwrite(file, nx.to_scipy_sparse_array(numbered(), weight="ohm"))
    return file.getvalue()


FORMS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "as in the README": ("my_edges.csv", lambda: table().encode()),
    "byte order mark": ("bom.csv", lambda: table().encode("utf-8-sig")),
    "CRLF": ("crlf.csv", lambda: table(end="\r\n").encode()),
    "semicolons": ("semicolons.csv", lambda: table(";").encode()),
    "a spreadsheet's": ("all.csv", lambda: table(";", end="\r\n").encode("utf-8-sig")),
    "tabs": ("tabs.tsv", lambda: table("\t").encode()),
    "gzip": ("packed.csv.gz", lambda: gzip.compress(table().encode())),
    "a header in another order": ("order.csv", lambda: table(order=("ohm", "target", "note", "source")).encode()),
    "GraphML": ("town.graphml", lambda: "\n".join(nx.generate_graphml(town())).encode()),
    "GraphML in gzip": ("town.graphml.gz", lambda: gzip.compress("\n".join(nx.generate_graphml(town())).encode())),
    "Matrix Market": ("town.mtx", matrix_market),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("piped", [False, True], ids=["file", "standard input"])
def test_the_readmes_commands_answer_for_files_as_people_have_them(tmp_path: Path, form: str, piped: bool):
    name, content = FORMS[form]
    matrix = name.endswith(".mtx")
    graph = numbered() if matrix else town()
    (tmp_path / name).write_bytes(content())
    for words in ASK:
        arguments = [("-" if piped else str(tmp_path / name)) if word == "my_edges.csv" else word for word in words[1:]]
        if matrix:  # as the comment in the README says
            arguments = ["entries" if word == "ohm" else {"home": "0", "shop": "1"}.get(word, word) for word in arguments]
        outcome = run(*arguments, stdin=content() if piped else b"")
        assert outcome.exit_code == 0, outcome
        found = resistances(outcome.stdout)
        expected = truth(graph)
        assert found == pytest.approx({pair: expected[pair] for pair in found}, rel=1e-5)
        assert len(found) == (1 if "--pair" in words else 45)


def test_the_readmes_block_prints_what_it_says(tmp_path: Path):
    block = blocks(README)[1].code
    said = re.search(r"--pair home shop +# ([\d.]+)", block)
    assert said
    out = follow(block, tmp_path)
    assert f"home,shop,{said[1]}\n" in out
    with (tmp_path / "my_edges.csv").open() as file:
        graph = nx.Graph([(row["source"], row["target"], {"ohm": float(row["ohm"])}) for row in csv.DictReader(file)])
    first, header, pairs = out.rpartition("u,v,effective_resistance\n")
    assert first
    assert resistances(header + pairs) == pytest.approx(truth(graph), rel=1e-6)


def test_the_first_screen_has_purpose_commands_install_line_and_three_snippets():
    found = blocks(FIRST_SCREEN)
    assert [block.language for block in found] == ["", "bash", "python", "python"]
    assert re.findall(r"^(make \w+|pip install \S+)", found[0].code, re.MULTILINE) == [
        "make demo", "make test", "pip install '.[pyg]'",
    ]  # fmt: skip
    for block in found[1:]:
        lines = [line for line in block.code.splitlines() if line and not re.match(r"(tensor|\[|\d)", line)]
        assert 3 <= len(lines) <= 5, block.code
    assert FIRST_SCREEN.index("**") < FIRST_SCREEN.index("```")
    assert len(README.splitlines()) <= 90


def test_the_readme_has_one_picture_then_one_table_of_six_rows_then_limits():
    assert README.count("![") == 1
    tables = Document.read(ROOT / "README.md").tables()
    assert [len(table.rows) for table in tables] == [6]
    places = [README.index(mark) for mark in ("![", "| question |", "## Limits")]
    assert places == sorted(places)
    assert places[0] > len(FIRST_SCREEN)


def test_every_command_in_the_readme_is_one():
    root = get_command(app)
    assert isinstance(root, TyperGroup)
    written = [line for block in blocks(README) if block.language == "bash" for line in block.code.splitlines()]
    written += re.findall(r"`(ohmformer [^`]+)`", README)
    commands = [shlex.split(line, comments=True)[1:] for line in written if line.startswith("ohmformer ")]
    assert {words[0] for words in commands} >= {"solve"}
    for name, *arguments in commands:
        root.commands[name].make_context(name, arguments, resilient_parsing="--help" in arguments)


def measured(path: Path) -> list[float]:
    """All numbers in the tables of a file."""
    cells = [cell.strip("*") for table in Document.read(path).tables() for row in table.rows for cell in row]
    return [float(found[1]) for cell in cells if (found := re.fullmatch(r"([\d.]+)(?: s| us)?", cell))]


def test_every_number_of_the_readmes_table_is_in_the_file_it_names():
    (table,) = Document.read(ROOT / "README.md").tables()
    assert table.header == ["question", "ours", "instead", "ratio", "measured"]
    for row in table.rows:
        path = re.search(r"\((results/[^)]+)\)", row[-1])
        assert path, row
        there = measured(ROOT / path[1])
        ours, instead = (float(row[i].split()[0]) for i in (1, 2))
        assert ours in there, f"{path[1]} has no {ours}: {row[0]}"
        assert instead in there, f"{path[1]} has no {instead}: {row[0]}"
        digits = len(row[3].partition(".")[2])
        assert float(row[3]) == pytest.approx(instead / ours, rel=0.02), row
        assert float(row[3]) in [round(x, digits) for x in [*there, instead / ours]], row


def test_the_errors_on_zinc_are_in_the_results():
    said = re.findall(r"(0\.\d+ ± 0\.\d+)", README)
    assert len(said) == 2
    assert all(error in (ROOT / "results" / "zinc12k.md").read_text() for error in said)


def test_every_file_that_the_readme_links_to_exists():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(links) > 10
    assert [link for link in links if not link.startswith("http") and not (ROOT / link).exists()] == []


def test_on_a_package_index_links_are_absolute_or_left_out():
    described = runpy.run_path(str(ROOT / ".ci" / "description.py"))["absolute"]
    whole = described(README, "https://example.org/someone/ohmformer/")
    targets = re.findall(r"\]\(([^)]+)\)", whole)
    assert len(targets) == len(re.findall(r"\]\(", README))
    assert all(target.startswith("https://example.org/someone/ohmformer/") for target in targets)
    assert "https://example.org/someone/ohmformer/raw/main/docs/circuit.png" in targets
    bare = described(README, None)
    assert "](" not in bare
    assert "which function do I need" in bare
    assert "source distribution" in bare
    assert "source distribution" not in whole
