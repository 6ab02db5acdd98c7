"""Check an installed wheel where there is no compiler: verify, solve, encode, the explorer's page and the report.

Run by ``make wheel`` with the Python of the environment that the wheel was installed into. The first argument says whether
the wheel has ``kernels``, or ``none`` because it was built without a compiler.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

COMMAND = str(Path(sys.prefix) / "bin" / "ohmformer")


def check(holds: object, expected: str) -> None:
    """End with a sentence if something does not hold."""
    if not holds:
        raise SystemExit(f"smoke: expected {expected}")


def run(*arguments: str, **environment: str) -> str:
    """What a command prints; its failure ends the run."""
    outcome = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, env={**os.environ, **environment})
    check(outcome.returncode == 0, f"ohmformer {' '.join(arguments)} to succeed, got\n{outcome.stderr}")
    check("Traceback" not in outcome.stderr, f"no traceback of ohmformer {arguments[0]}, got\n{outcome.stderr}")
    return outcome.stdout


def check_installation(kernels: bool) -> None:
    """The package comes from the wheel, and with it every file that is not Python."""
    import ohmformer
    from ohmformer import native

    home = Path(ohmformer.__file__).parent
    check(home.is_relative_to(sys.prefix), f"ohmformer to be installed in {sys.prefix}, got {home}")
    for name in ("cc", "gcc", "clang", "c99"):
        check(shutil.which(name) is None, f"no compiler on the path, got {shutil.which(name)}")
    for name in (
        "py.typed", "apps/report/errata.md", "apps/report/style.css", "apps/explorer/assets/explorer.css",
        "apps/explorer/assets/circuit.js", "encoding/pretrained/zinc/model.safetensors", "../_ohmformer_networkx.py",
    ):  # fmt: skip
        check((home / name).is_file(), f"{name} in the wheel")
    check(not list(home.rglob("*.c")), "no C sources in the wheel")
    check(bool(native.available()) == kernels, f"{'some' if kernels else 'no'} kernels, got {native.available()}")
    print(native.describe())


def check_verify() -> None:
    """Every construction keeps its bound."""
    run("verify", "--out", "runs/verify.json")
    rows = json.loads(Path("runs/verify.json").read_text())["rows"]
    check(rows and not any(row["violations"] for row in rows), f"rows without violations, got {rows}")


def check_solve(kernels: bool) -> None:
    """Resistances that are known, on a triangle and on a cycle, with and without kernels."""
    Path("triangle.csv").write_text("source,target\na,b\nb,c\nc,a\n")
    modes = ["", "off"] if kernels else [""]
    for mode in modes:
        rows = list(csv.DictReader(io.StringIO(run("solve", "triangle.csv", OHMFORMER_NATIVE=mode))))
        values = [float(row["effective_resistance"]) for row in rows]
        check(
            len(values) == 3 and all(math.isclose(x, 2 / 3, rel_tol=1e-6) for x in values), f"2/3 three times, got {values}"
        )
    import torch

    import ohmformer as ohm

    n = 30
    cycles = ohm.Graph.collate([ohm.Graph.from_edges([(i, (i + 1) % n) for i in range(n)])] * 20)
    far = torch.as_tensor(list(ohm.effective_resistance(cycles, "edges").value))
    check(
        torch.allclose(far, torch.full_like(far, (n - 1) / n), rtol=1e-6),
        f"{(n - 1) / n} for edges of a cycle, got {far[:3]}",
    )


def check_encode() -> None:
    """Molecules into a table of finite numbers."""
    import pyarrow.parquet as parquet

    Path("molecules.smi").write_text("CCO\nc1ccccc1\nCC(=O)O\n")
    run("encode", "molecules.smi", "--out", "encoded.parquet")
    table = parquet.read_table("encoded.parquet")
    check(table.num_rows == 3, f"three molecules, got {table.num_rows}")
    numbers = [x for cell in table.column(table.column_names[-1]).to_pylist() for x in _flat(cell)]
    check(numbers and all(map(math.isfinite, numbers)), f"finite numbers, got {numbers[:5]}")


def _flat(cell):
    return [x for part in cell for x in _flat(part)] if isinstance(cell, list) else [float(cell)]


def check_explore() -> None:
    """The explorer serves its page, its scripts and its style."""
    server = subprocess.Popen([COMMAND, "explore", "--port", "0"], stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        line = server.stderr.readline()
        check(line.startswith("http://"), f"the explorer's address, got {line!r}")
        address = line.split()[0]
        for path, word in (
            ("", "<title>"),
            ("assets/explorer.css", "{"),
            ("assets/circuit.js", "function"),
            ("_dash-layout", "state"),
        ):
            with urllib.request.urlopen(address + path, timeout=60) as answer:
                check(word in answer.read().decode(), f"{word!r} in {address}{path}")
    finally:
        server.terminate()
        server.wait(timeout=30)


def check_report() -> None:
    """The report is one page that holds the verification and the errata."""
    run("report", "--out", "runs/report.html")
    text = Path("runs/report.html").read_text()
    for word in ("Errata of the paper", "Lemma 1", "</html>"):
        check(word in text, f"{word!r} in the report")


def main() -> None:
    """Check everything in a folder of its own."""
    kernels = sys.argv[1] == "kernels"
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("runs").mkdir()
        check_installation(kernels)
        for name, step in (
            ("verify", check_verify), ("solve", lambda: check_solve(kernels)), ("encode", check_encode),
            ("explore", check_explore), ("report", check_report),
        ):  # fmt: skip
            step()
            print(f"smoke: {name} works", flush=True)
        os.chdir("/")


if __name__ == "__main__":
    main()
