"""The README keeps what it promises: its path to an answer, its commands, its numbers. (Doctests run with the others.)"""

import csv
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from typer.core import TyperGroup
from typer.main import get_command

from ohmformer.apps.command_line.main import app
from ohmformer.apps.report.markdown import Document
from tests.docs.blocks import ROOT, blocks

README = (ROOT / "README.md").read_text()
FIVE_MINUTES = README.split("## Your own edge list, in five minutes")[1].split("\n## ")[0]


def follow(script: str, folder: Path) -> str:
    """Run a block of the README as a person would, in a shell in which ``ohmformer`` is a command."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        ["bash", "-euc", script], cwd=folder, env=environment, check=True, capture_output=True, text=True
    ).stdout


def truth(edges: list[dict[str, str]]) -> dict[frozenset[str], float]:
    """Effective resistances by networkx, parallel edges by hand."""
    graph = nx.Graph()
    for edge in edges:
        u, v, conductance = edge["source"], edge["target"], 1 / float(edge["ohm"])
        graph.add_edge(u, v, g=conductance + (graph.edges[u, v]["g"] if graph.has_edge(u, v) else 0.0))
    distances: Any = nx.resistance_distance(graph, weight="g", invert_weight=False)
    return {frozenset((u, v)): x for u, row in distances.items() for v, x in row.items() if u != v}


def own_edges(seed: int) -> str:
    """Somebody's own edge list: names with blanks and accents, resistances over six decades, a parallel edge."""
    graph = nx.connected_watts_strogatz_graph(12, 4, 0.4, seed=seed)
    names = ["Zürich HB", "São Paulo", "x-1", "node 4", "5", "Å", "a.b", "q/r", "№ 9", "ten", "eleven ", "#12"[1:]]
    lines = [f"{names[u]},{names[v]},{10 ** ((u * 7 + v * 3) % 7 - 3)}" for u, v in graph.edges]
    return "\n".join(["source,target,ohm", *lines, lines[0]])


def test_the_five_minute_path_gives_what_the_readme_prints_and_networkx_confirms(tmp_path: Path):
    ask, printed = (block.code for block in blocks(FIVE_MINUTES))
    out = follow(ask, tmp_path)
    assert out == printed
    with (tmp_path / "my_edges.csv").open() as file:
        expected = truth(list(csv.DictReader(file)))
    found = {frozenset((row["u"], row["v"])): float(row["effective_resistance"]) for row in csv.DictReader(out.splitlines())}
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_five_minute_path_is_right_for_an_edge_list_of_ones_own(tmp_path: Path, seed: int):
    ask = blocks(FIVE_MINUTES)[0].code
    mine = own_edges(seed)
    script = re.sub(r"(<<'END'\n).*?(\nEND\n)", lambda found: found[1] + mine + found[2], ask, flags=re.DOTALL)
    assert mine in script
    rows = [{key: value.strip() for key, value in row.items()} for row in csv.DictReader(mine.splitlines())]
    out = csv.DictReader(follow(script, tmp_path).splitlines())
    found = {frozenset((row["u"], row["v"])): float(row["effective_resistance"]) for row in out}
    assert found == pytest.approx(truth(rows), rel=1e-5)


def test_every_command_in_the_readme_is_one():
    root = get_command(app)
    assert isinstance(root, TyperGroup)
    written = [line for block in blocks(README) if block.language == "bash" for line in block.code.splitlines()]
    written += re.findall(r"`(ohmformer [^`]+)`", README)
    commands = [shlex.split(line)[1:] for line in written if line.startswith("ohmformer ")]
    assert {words[0] for words in commands} >= {"solve", "reproduce", "report"}
    for name, *arguments in commands:
        root.commands[name].make_context(name, arguments, resilient_parsing="--help" in arguments)


def test_every_ratio_in_the_readme_is_in_the_file_it_names():
    table = next(t for t in Document.read(ROOT / "README.md").tables() if t.header[-2:] == ["ratio", "measured"])
    assert len(table.rows) >= 6
    for row in table.rows:
        path = re.search(r"\((results/[^)]+)\)", row[-1])
        assert path, row
        digits = len(row[-2].partition(".")[2])
        measured = [
            round(float(cell), digits)
            for other in Document.read(ROOT / path[1]).tables()
            for line in other.rows
            for cell in line
            if re.fullmatch(r"[\d.]+", cell)
        ]
        assert float(row[-2]) in measured, f"{path[1]} has no {row[-2]}: {row[0]}"


def test_every_file_that_the_readme_links_to_exists():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(links) > 10
    assert [link for link in links if not link.startswith("http") and not (ROOT / link).exists()] == []


def test_the_readme_opens_with_the_two_commands():
    assert README.splitlines()[2:6] == ["```", "make demo", "make test", "```"]
