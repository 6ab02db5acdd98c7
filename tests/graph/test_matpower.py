"""Case files of MATPOWER are read whole, or refused in a sentence with file and line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ohmformer.graph.matpower import Case, parse_case, read_case

GRID5 = Path(__file__).parents[2] / "examples" / "grid5.m"
TABLES = """mpc.baseMVA = 10;
mpc.bus = [1 3 0 0 0 0 1 1 0 12; 2 1 800 300 0 0 1 1 0 12];
mpc.branch = [
 1, 2, 0.5, 1.5, 0, 0, 0, 0, 0, 0, 1
];
"""


def test_every_row_is_there_in_service_or_not() -> None:
    case = read_case(GRID5)
    assert (len(case.bus), len(case.gen), len(case.branch), len(case.dcline)) == (6, 5, 9, 0)
    assert case.base_mva == 100
    assert case.column("bus", "BUS_I").tolist() == [10, 20, 30, 40, 50, 60]
    assert case.column("branch", "BR_X").tolist() == [0.1, 0.3, 0.2, 0.25, 0.25, -0.05, 0.3, 0.1, 0.1]
    assert case.column("gen", "GEN_STATUS").tolist() == [1, 1, 1, 0, 1]


def test_sums_that_case_files_do_are_done() -> None:
    """As in MATPOWER's distribution grids: ohms to units, kilowatts to megawatts, a power factor."""
    text = (
        TABLES
        + """
Vbase = mpc.bus(1, BASE_KV) * 1e3;      %% in volts
Sbase = mpc.baseMVA * 1e6;
mpc.branch(:, [BR_R BR_X]) = mpc.branch(:, [BR_R BR_X]) / (Vbase^2 / Sbase);
mpc.bus(:, [PD, QD]) = mpc.bus(:, [PD, QD]) / 1e3;
pf = 0.85;
mpc.bus(:, QD) = mpc.bus(:, PD) * sin(acos(pf));
mpc.bus(:, PD) = mpc.bus(:, PD) * pf;
"""
    )
    case = parse_case(text, "small.m")
    assert case.column("branch", "BR_X").item() == pytest.approx(1.5 / (12e3**2 / 10e6), rel=1e-15)
    assert case.column("bus", "PD")[1] == pytest.approx(0.8 * 0.85, rel=1e-15)
    assert case.column("bus", "QD")[1] == pytest.approx(0.8 * np.sqrt(1 - 0.85**2), rel=1e-14)


def test_statements_about_columns_that_are_not_read_do_not_matter() -> None:
    text = TABLES + "if fixed\n  mpc.gen(k, PMIN) = mpc.gen(k, PG);\nend\nmpc.extra(3) = 7;\n"
    assert isinstance(parse_case(text, "small.m"), Case)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (TABLES.partition("mpc.branch")[0], r"expected a table mpc\.branch in x\.m"),
        (TABLES.replace("mpc.baseMVA = 10;", ""), r"expected a positive mpc\.baseMVA in x\.m, got 0"),
        (TABLES.replace("0.5, 1.5,", "0.5, one,"), r"expected a number in line 4 of x\.m, got 'one'"),
        (TABLES.replace("; 2 1 800", "; 2 800"), r"expected 10 numbers in line 2 of x\.m, as above, got 9"),
        (TABLES.replace(" 1, 2,", " 1, 7,"), r"expected buses of mpc\.bus in row 1 of mpc\.branch, line 4 of x\.m, got 7"),
        (
            TABLES.replace("; 2 1 800", "; 1 1 800"),
            r"expected every bus of x\.m once, bus 1 is there again in row 2 of mpc\.bus, line 2",
        ),
        (TABLES.replace("];\n", ""), r"expected a \] after the table that begins in line \d of x\.m, the file ends"),
        (TABLES.replace(", 0, 0, 1\n", "\n"), r"expected at least 11 columns of mpc\.branch in line 4 of x\.m, got 8"),
        (TABLES + "mpc.bus(:, PD) = f(mpc);\n", r"expected columns of mpc\.bus multiplied or divided .* line 6 of x\.m"),
        (TABLES + "mpc.bus(2, PD) = 3;\n", r"expected columns of mpc\.bus multiplied or divided .* line 6 of x\.m"),
        (TABLES + "mpc.bus(:, PD) = mpc.bus(:, PD) * k;\n", r"in line 6 of x\.m, .*savecase"),
    ],
)
def test_other_files_are_refused_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        parse_case(text, "x.m")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"expected a MATPOWER case file, there is no file nowhere\.m"):
        read_case(Path("nowhere.m"))
