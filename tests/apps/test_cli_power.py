"""``ohmformer solve`` on MATPOWER cases."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ohmformer.apps.command_line.main import app
from ohmformer.solve.power import dc_flow, lodf, ptdf

GRID5 = Path(__file__).parents[2] / "examples" / "grid5.m"


def ask(*arguments: str, file: Path = GRID5) -> tuple[int, str, list[dict[str, str]]]:
    done = CliRunner().invoke(app, ["solve", str(file), *arguments])
    return done.exit_code, done.stderr, list(csv.DictReader(io.StringIO(done.stdout)))


def column(rows: list[dict[str, str]], name: str) -> list[float]:
    return [float(row[name]) for row in rows]


def test_tables_hold_what_the_library_answers() -> None:
    flow = dc_flow(GRID5).value
    code, certificate, rows = ask("--task", "power-flow")
    assert code == 0
    assert column(rows, "megawatts") == pytest.approx(flow.tolist(), rel=1e-8)
    assert [(row["branch"], row["from"], row["to"]) for row in rows[:3]] == [
        ("1", "10", "20"),
        ("2", "10", "20"),
        ("3", "20", "30"),
    ]
    assert "LDL^T" in certificate
    assert "3 positive, 1 negative and 1 zero eigenvalues" in certificate
    _, _, rows = ask("--task", "ptdf", "--from", "50", "--to", "20")
    assert column(rows, "ptdf") == pytest.approx(ptdf(GRID5, transfers=[(50, 20)]).value[:, 0].tolist(), rel=1e-8)
    _, _, rows = ask("--task", "lodf", "--outage", "3")
    factor = lodf(GRID5, [2]).value[:, 0]
    assert column(rows, "lodf") == pytest.approx(factor.tolist(), rel=1e-8)
    assert column(rows, "after") == pytest.approx((flow + factor * flow[2]).tolist(), rel=1e-7, abs=1e-9)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--task", "lodf"], "expected --outage ROW for --task lodf, got none"),
        (["--task", "lodf", "--outage", "10"], "expected --outage to be a row of mpc.branch, 1 to 9, got 10"),
        (["--task", "lodf", "--outage", "8"], "in service, branch 10-40 (row 8 of mpc.branch) is not"),
        (["--task", "power-flow", "--outage", "8"], "expected --outage with --task lodf only"),
        (["--task", "ptdf", "--from", "10", "--to", "60"], "expected a node of the graph, got '60'"),
        (["--task", "resistance"], "a signed graph has potentials and flow only, by --method direct"),
        (["--unit"], "expected no --resistance, --conductance or --unit for a MATPOWER case"),
    ],
)
def test_bad_questions_end_in_a_sentence(arguments: list[str], sentence: str) -> None:
    code, text, _ = ask(*arguments)
    assert code == 2
    assert sentence in text


def test_an_outage_that_splits_the_grid_ends_in_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "ring.m"
    file.write_text(GRID5.read_text().replace("50\t20\t0\t0.3\t0\t0\t0\t0\t0\t0\t1", "50\t20\t0\t0.3\t0\t0\t0\t0\t0\t0\t0"))
    code, text, rows = ask("--task", "lodf", "--outage", "6", file=file)
    assert (code, rows) == (2, [])
    assert "but the grid falls apart without branch 40-50 (row 6 of mpc.branch)" in text


def test_power_flow_is_for_power_grids(tmp_path: Path) -> None:
    file = tmp_path / "graph.csv"
    file.write_text("u,v\n1,2\n")
    code, text, _ = ask("--task", "power-flow", file=file)
    assert code == 2
    assert "expected a MATPOWER case (.m) for --task power-flow" in text
