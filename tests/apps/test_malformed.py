"""Malformed files on the command line: each gets one line that names file and line, exit code 2, and nothing is written.

Valid files of every format are broken in ways that cannot be read in any sense, at places drawn by a seed. A second set has
bytes changed anywhere: whatever that makes of a file, it is answered or refused, never a traceback.
"""

import gzip
import io
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

import networkx as nx
import numpy as np
import pytest
import scipy.io

from tests.apps.running import run
from tests.solve.test_power import GRID5

FILES = 300


@cache
def graph() -> nx.Graph:
    """A graph with a resistance on every edge, and names of nodes that are not numbers."""
    made = nx.relabel_nodes(nx.connected_watts_strogatz_graph(12, 4, 0.3, seed=1), {i: f"n{i}" for i in range(12)})
    rng = Random(0)
    for *_, data in made.edges(data=True):
        data["ohm"] = round(rng.uniform(0.5, 9.0), 3)
    return made


def text(sep: str) -> str:
    return "\n".join(
        [sep.join(["source", "target", "ohm"]), *(f"{u}{sep}{v}{sep}{r}" for u, v, r in graph().edges.data("ohm"))]
    )


def graphml() -> str:
    return "\n".join(nx.generate_graphml(graph()))


def matrix_market() -> str:
    file = io.BytesIO()
    scipy.io.mmwrite(file, nx.to_scipy_sparse_array(graph(), weight="ohm"), symmetry="symmetric")
    return file.getvalue().decode()


VALID: dict[str, tuple[Callable[[], str], tuple[str, ...]]] = {
    ".csv": (lambda: text(","), ("--resistance", "ohm")),
    ".tsv": (lambda: text("\t"), ("--resistance", "ohm")),
    ".txt": (lambda: text(" "), ("--resistance", "ohm")),
    ".graphml": (graphml, ("--resistance", "ohm")),
    ".mtx": (matrix_market, ("--resistance", "entries")),
    ".m": (GRID5.read_text, ("--task", "power-flow")),
}
SEPARATOR = {".csv": ",", ".tsv": "\t", ".txt": " "}
BAD_NUMBERS = ("-1.5", "0", "nan", "inf", "1e-320", "x", "1_0", "--", "1,5e", "")


def in_a_line(content: str, rng: Random, pattern: str, change: Callable[[re.Match[str]], str]) -> str:
    """Change what a pattern finds in one of the lines that have it."""
    lines = content.split("\n")
    i = rng.choice([i for i, line in enumerate(lines) if re.search(pattern, line)])
    lines[i] = re.sub(pattern, change, lines[i], count=1)
    return "\n".join(lines)


def break_list(content: str, rng: Random, sep: str) -> str | bytes:
    """An edge list that is none."""
    row = rf"^(n\d+){sep}(n\d+){sep}([\d.]+)$"
    bad = rng.choice([number for number in BAD_NUMBERS if number or sep != " "])
    if sep == "," and "," in bad:
        bad = "x"
    kinds: list[Callable[[], str | bytes]] = [
        lambda: in_a_line(content, rng, row, lambda m: sep.join([m[1], m[2], bad])),
        lambda: in_a_line(content, rng, row, lambda m: sep.join([m[1], m[2]])),
        lambda: in_a_line(content, rng, row, lambda m: sep.join([*m.groups(), "more"])),
        lambda: content.replace("ohm", rng.choice(["weight", "Ohm", "r"]), 1),
        lambda: content.encode("utf-16"),
        lambda: in_a_line(content, rng, row, lambda m: m[0].replace("n", "\0", 1)),
        lambda: in_a_line(content, rng, row, lambda m: m[0].replace("n", "ü", 1)).encode("latin-1"),
        lambda: content.split("\n")[0] + "\n" * rng.randrange(3),
        lambda: "",
        lambda: gzip.compress(content.encode(), mtime=0)[: rng.randrange(30, 90)],
    ]
    if sep != " ":
        kinds += [
            lambda: in_a_line(content, rng, row, lambda m: sep.join(["", m[2], m[3]])),
            lambda: in_a_line(content, rng, row, lambda m: f'"{m[0]}'),
        ]
    return rng.choice(kinds)()


def break_graphml(content: str, rng: Random) -> str | bytes:
    """GraphML that is none, or of no such graph."""
    kinds: list[Callable[[], str | bytes]] = [
        lambda: content[: rng.randrange(20, len(content) - 12)],
        lambda: in_a_line(content, rng, r">[\d.]+</data>", lambda m: f">{rng.choice(BAD_NUMBERS)}</data>"),
        lambda: in_a_line(content, rng, "</edge>", lambda m: ""),
        lambda: in_a_line(content, rng, r'target="n\d+"', lambda m: 'target="nowhere"'),
        lambda: in_a_line(content, rng, r' source="n\d+"', lambda m: ""),
        lambda: in_a_line(content, rng, r'<node id="n\d+"', lambda m: '<node id="n0" x="1"><node id="n0"'),
        lambda: in_a_line(content, rng, r"<data .*</data>", lambda m: ""),
        lambda: content.replace('edgedefault="undirected"', 'edgedefault="directed"'),
        lambda: content.replace("<graph ", "<drawing ").replace("</graph>", "</drawing>"),
        lambda: content.replace("ohm", "weight"),
        lambda: "not a graph",
        lambda: "",
    ]
    return rng.choice(kinds)()


def break_matrix(content: str, rng: Random) -> str | bytes:
    """Matrix Market that is none, or no matrix of resistances."""
    row = r"^(\d+) (\d+) ([\d.e+-]+)$"
    size = r"^12 12 (\d+)$"
    bad = rng.choice(BAD_NUMBERS)
    lines = content.strip().split("\n")
    kinds: list[Callable[[], str | bytes]] = [
        lambda: in_a_line(content, rng, rf"(?!{size}){row}", lambda m: f"{m[1]} {m[2]} {bad}"),
        lambda: in_a_line(content, rng, rf"(?!{size}){row}", lambda m: f"{m[1]} {m[2]} {m[3]} 7"),
        lambda: in_a_line(content, rng, rf"(?!{size}){row}", lambda m: f"99 {m[2]} {m[3]}"),
        lambda: in_a_line(content, rng, rf"(?!{size}){row}", lambda m: f"{m[1]} 0 {m[3]}"),
        lambda: in_a_line(content, rng, size, lambda m: f"12 13 {m[1]}"),
        lambda: in_a_line(content, rng, size, lambda m: f"12 12 {int(m[1]) + rng.choice([-1, 1])}"),
        lambda: in_a_line(content, rng, size, lambda m: rng.choice(["12 12", "12 x 3", "-1 12 4"])),
        lambda: content.replace("%%MatrixMarket", rng.choice(["%MatrixMarket", "MatrixMarket", "%%Matrix"])),
        lambda: content.replace("coordinate", "coordinates"),
        lambda: content.replace(" real ", " complex "),
        lambda: "\n".join(lines[: rng.randrange(1, len(lines))]) + "\n",
        lambda: content.replace("symmetric", "general"),
        lambda: "",
    ]
    return rng.choice(kinds)()


def break_case(content: str, rng: Random) -> str:
    """A MATPOWER case that cannot be one."""
    read = content.index("];", content.index("mpc.branch"))  # tables after this one are not read
    content, rest = content[:read], content[read:]
    numbers = r"^\s*[\d.\s-]+;"
    kinds: list[Callable[[], str]] = [
        lambda: in_a_line(content, rng, numbers, lambda m: m[0].rstrip(";") + " 1 2 3;"),
        lambda: in_a_line(content, rng, numbers, lambda m: re.sub(r"\d+", "x", m[0], count=1)),
        lambda: content.replace("mpc.bus ", "mpc.buses ").replace("mpc.bus=", "mpc.buses="),
        lambda: content.replace("mpc.branch", "mpc.branches"),
        lambda: re.sub(r"mpc\.baseMVA\s*=\s*[\d.]+", f"mpc.baseMVA = {rng.choice(['0', '-100', 'x', 'nan'])}", content),
        lambda: in_a_line(content, rng, r"^\s*20\s", lambda m: "\t77\t"),
    ]
    made = [rng.choice(kinds)() + rest, content, ""]
    return rng.choices(made, [8, 1, 1])[0]


def broken(number: int) -> tuple[str, bytes]:
    """The suffix and the bytes of a malformed file."""
    rng = Random(number)
    suffix = [*VALID][number % len(VALID)]
    content = VALID[suffix][0]()
    if suffix in SEPARATOR:
        made = break_list(content, rng, SEPARATOR[suffix])
    else:
        made = {".graphml": break_graphml, ".mtx": break_matrix, ".m": break_case}[suffix](content, rng)
    data = made if isinstance(made, bytes) else made.encode()
    packed = number % 5 == 0 and not data.startswith(b"\x1f\x8b")
    return (f"{suffix}.gz", gzip.compress(data, mtime=0)) if packed else (suffix, data)


def ask(path: Path, out: Path):
    return run("solve", path, *VALID[Path(path.name.removesuffix(".gz")).suffix][1], "--out", out)


@pytest.mark.parametrize("suffix", VALID)
def test_the_files_are_right_before_they_are_broken(tmp_path, suffix):
    path = tmp_path / f"whole{suffix}"
    path.write_text(VALID[suffix][0]())
    outcome = ask(path, tmp_path / "table.csv")
    assert outcome.exit_code == 0, outcome


@pytest.mark.parametrize("first", range(0, FILES, 30))
def test_a_malformed_file_gets_one_line_with_its_name_and_line_and_nothing_is_written(tmp_path, first):
    for number in range(first, first + 30):
        suffix, data = broken(number)
        path = tmp_path / f"file{number}{suffix}"
        path.write_bytes(data)
        outcome = ask(path, tmp_path / "table.csv")
        shown = f"{number}: {outcome.stderr!r} {outcome.error!r}\n{data[:400]!r}"
        assert outcome.exit_code == 2, shown
        assert outcome.stdout == "", shown
        assert outcome.stderr.startswith("error: "), shown
        assert outcome.stderr.endswith("\n"), shown
        assert outcome.stderr.count("\n") == 1, shown
        assert path.name in outcome.stderr, shown
        assert re.search(r"\b[Ll]ine \d+", outcome.stderr), shown
        path.unlink()
        assert not any(tmp_path.iterdir()), shown


def test_bytes_changed_anywhere_are_answered_or_refused(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(60):
        suffix = [*VALID][number % len(VALID)]
        data = bytearray(VALID[suffix][0]().encode())
        for place in rng.integers(len(data), size=1 + number % 4):
            data[place] = rng.integers(256)
        path = tmp_path / f"file{number}{suffix}"
        path.write_bytes(bytes(data))
        outcome = ask(path, tmp_path / "table.csv")
        shown = f"{number}: {outcome.stderr!r} {outcome.error!r}\n{bytes(data)!r}"
        assert outcome.exit_code in (0, 2), shown
        assert outcome.exit_code == 0 or (
            outcome.stderr.splitlines()[-1].startswith("error: ") and path.name in outcome.stderr
        )
        assert outcome.exit_code == 0 or not (tmp_path / "table.csv").exists(), shown
        (tmp_path / "table.csv").unlink(missing_ok=True)
