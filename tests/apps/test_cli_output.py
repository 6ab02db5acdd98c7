"""What the command line prints: digits that the certificate supports, JSON, standard input, exit codes, completion."""

import csv
import gzip
import io
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from ohmformer.apps.command_line import answers, errors
from ohmformer.apps.command_line.errors import CODES, in_flags
from ohmformer.apps.command_line.printing import as_json, digits
from ohmformer.apps.command_line.progress import progress, show_progress, time_left
from ohmformer.apps.command_line.questions import Task
from ohmformer.apps.command_line.solve import METHODS
from ohmformer.solve import plan
from tests.apps.running import run
from tests.docs.blocks import ROOT

TRIANGLE = "source,target,ohm\na,b,1\nb,c,2\nc,a,3\n"
WAYS = [Fraction(1, 1 + Fraction(1, 5)), Fraction(4, 3), Fraction(3, 2)]


@pytest.fixture
def triangle(tmp_path):
    path = tmp_path / "triangle.csv"
    path.write_text(TRIANGLE)
    return path


def column(printed: str, name: str) -> list[str]:
    return [row[name] for row in csv.DictReader(io.StringIO(printed))]


@pytest.mark.parametrize("nodes", [3, 5, 30, 120, 300])
def test_unit_resistors_in_a_row_print_as_whole_numbers(tmp_path, nodes):
    path = tmp_path / "row.txt"
    path.write_text("\n".join(f"{i} {i + 1}" for i in range(nodes - 1)))
    assert set(column(run("solve", path).stdout, "effective_resistance")) == {"1"}
    whole = run("solve", path, "--pair", "0", str(nodes - 1)).stdout
    assert column(whole, "effective_resistance") == [str(nodes - 1)]
    flow = run("solve", path, "--task", "flow", "--from", "0", "--to", str(nodes - 1))
    assert set(column(flow.stdout, "flow")) == {"1"}


def test_a_true_value_of_few_digits_is_printed_as_itself_however_it_is_off():
    rng = np.random.default_rng(0)
    for _ in range(300):
        count = int(rng.integers(2, 8))
        true = float(f"{10 ** rng.uniform(-6, 6):.{count - 1}e}")
        off = 10.0 ** -(count + 1) * abs(true)
        seen = true + off * rng.uniform(-1, 1)
        (shown,) = digits(np.array([seen]), np.array([off]))
        assert float(f"{seen:.{shown}g}") == true


def test_numbers_that_may_be_zero_are_printed_as_zero_and_others_keep_two_digits():
    assert digits(np.array([1e-9, -1e-9, 0.3, np.inf]), np.array([1e-8, 1e-8, 0.2, 0.0])).tolist() == [0, 0, 2, 9]


def test_printed_potentials_are_within_half_a_unit_of_their_last_digit(triangle):
    printed = run("solve", triangle, "--resistance", "ohm", "--task", "potentials", "--from", "a", "--to", "c").stdout
    found = [float(x) for x in column(printed, "potential")]
    assert found == pytest.approx([2 / 3, 1 / 6, -5 / 6], abs=1e-6)
    assert sum(found) == pytest.approx(0.0, abs=1e-6)


def test_json_has_the_certificate_and_all_digits(triangle, tmp_path):
    outcome = run("solve", triangle, "--resistance", "ohm", "--json")
    assert outcome.stderr == ""
    told = json.loads(outcome.stdout)
    assert (told["task"], told["file"], told["graph"]["nodes"]) == ("resistance", "triangle.csv", 3)
    assert told["certificate"]["error"] < 1e-6
    for row, true in zip(told["table"], WAYS, strict=True):
        assert abs(row["effective_resistance"] / float(true) - 1) <= told["certificate"]["error"]
    out = tmp_path / "t.npz"
    kept = json.loads(run("solve", triangle, "--resistance", "ohm", "--json", "--out", out).stdout)
    assert "table" not in kept
    assert kept["files"] == {"table": str(out)}
    vectors = json.loads(run("solve", triangle, "--task", "eigenvectors", "--k", "2", "--json").stdout)
    assert [row["eigenvalue"] for row in vectors["eigenvalues"]] == pytest.approx([3.0, 3.0])


def test_json_has_texts_for_numbers_it_does_not_have(tmp_path):
    path = tmp_path / "two.csv"
    path.write_text("1,2\n3,4\n")
    told = json.loads(run("solve", path, "--pair", "1", "3", "--json").stdout)
    assert told["table"] == [{"u": "1", "v": "3", "effective_resistance": "inf"}]
    assert json.loads(as_json({"x": [float("nan"), -float("inf"), 1.5]})) == {"x": ["nan", "-inf", 1.5]}


@pytest.mark.parametrize(
    "data",
    [TRIANGLE.encode(), gzip.compress(TRIANGLE.encode()), TRIANGLE.replace(",", "\t").encode()],
    ids=["commas", "gzip", "tabs"],
)
def test_standard_input_is_read_packed_or_not(data):
    outcome = run("solve", "-", "--resistance", "ohm", stdin=data)
    assert outcome.exit_code == 0, outcome
    assert [float(x) for x in column(outcome.stdout, "effective_resistance")] == pytest.approx([float(x) for x in WAYS])
    assert "from standard input" in outcome.stderr


def test_pairs_can_come_from_standard_input(triangle):
    outcome = run("solve", triangle, "--resistance", "ohm", "--pairs", "-", stdin=b"a,b\nc,a\n")
    assert column(outcome.stdout, "u") == ["a", "c"]


def test_a_stopped_solve_prints_the_best_so_far_and_says_so_by_its_exit_code(triangle, monkeypatch):
    whole = answers.ASK[Task.resistance]

    def stopped(named, ask):
        solved = whole(named, ask)
        return replace(solved, answer=replace(solved.answer, stopped=True, error=0.2))

    monkeypatch.setitem(answers.ASK, Task.resistance, stopped)
    outcome = run("solve", triangle, "--resistance", "ohm")
    assert outcome.exit_code == 3
    assert column(outcome.stdout, "effective_resistance") == ["0.83", "1.3", "1.5"]


def test_exit_codes_are_in_the_help_and_mean_what_it_says(triangle):
    shown = " ".join(run("--help").stdout.replace("│", "").split())
    for code, words in CODES.items():
        assert f"{code}: {words}" in shown
    page = (ROOT / "docs" / "howto" / "command-line.md").read_text()
    assert re.findall(r"^\| (\d+) \| (.*) \|$", page, re.MULTILINE) == [(str(code), words) for code, words in CODES.items()]
    assert run("solve", triangle).exit_code == 0
    assert run("solve", triangle, "--tol", "7").exit_code == 2
    assert run("solve", triangle, "--no-such-flag").exit_code == 2


def test_arguments_in_sentences_are_called_by_flags_where_there_is_one():
    flags = ["--tol", "--tol-of", "--phi0", "--evolve", "--no-evolve"]
    said = in_flags("expected evolve=False with phi0='walks', got tol_of='x' and read='pairs'; pass a larger tol", flags)
    assert said == "expected --no-evolve with --phi0 walks, got --tol-of x and read='pairs'; pass a larger --tol"
    assert errors.FLAGS.get() == ()


def test_sentences_of_other_commands_are_in_flags_too(tmp_path):
    path = tmp_path / "g.csv"
    path.write_text("1,2\n2,3\n")
    outcome = run("pretrain", path, "--out", tmp_path / "model", "--phi0", "walks", "--evolve")
    assert outcome.exit_code == 2
    assert "--phi0" in outcome.stderr
    assert "phi0=" not in outcome.stderr


def test_methods_for_completion_are_those_of_the_plan():
    assert METHODS == plan.METHODS


def test_a_shell_completes_commands_flags_tasks_and_methods():
    def complete(*words: str) -> list[str]:
        environment = {**os.environ, "_OHMFORMER_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words)}
        environment |= {"COMP_CWORD": str(len(words) - 1)}
        code = "from ohmformer.apps.command_line.main import app; import sys; app(prog_name='ohmformer'); print(sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
        return done.stdout.split()

    assert {"solve", "shard"} <= set(complete("ohmformer", "s"))
    assert "all-pairs" in complete("ohmformer", "solve", "g.csv", "--task", "all")
    assert complete("ohmformer", "solve", "g.csv", "--method", "che") == ["chebyshev"]


def test_a_bar_shows_how_much_is_done_and_how_long_is_left(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr("rich.console.Console", partial(Console, file=screen, force_terminal=True, width=100))
    with progress("reading", predicted=5000.0) as show:
        show(3, None, "reading")
        time.sleep(0.2)
    with show_progress("layers", 3000.0) as tell:
        tell(7, 1e-3)
        time.sleep(0.2)
    seen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert re.search(r"reading .* 3 .* about 1:2\d h left", seen)
    assert re.search(r"layers, residual 1.0e-03 .* 7 .* about (?:50:00|49:\d\d) min left", seen)


def test_time_left_is_what_is_left_of_the_prediction():
    assert time_left(10.0, 4.0) == 6.0
    assert time_left(10.0, 11.0) is None
    assert time_left(None, 1.0) is None
    assert time_left(float("inf"), 1.0) is None


@pytest.mark.parametrize("place", ["file", "/proc/out"])
@pytest.mark.parametrize(
    "command",
    [("learn", "--steps", "1"), ("demo",), ("report",), ("reproduce", "fig1"), ("reproduce", "csl"), ("verify",)],
)
def test_an_out_that_cannot_be_written_is_refused_before_any_work(tmp_path, monkeypatch, command, place):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    out = Path(place) / "page.html" if command[0] in ("report", "verify") else place
    refused = run(*command, "--out", out)
    assert refused.exit_code == 2, refused.error
    assert "expected a folder to write" in refused.stderr
    assert [*tmp_path.iterdir()] == [tmp_path / "file"]


def test_training_takes_steps_or_a_budget():
    refused = run("learn", "--steps", "1", "--budget", "5s")
    assert refused.exit_code == 2
    assert refused.stderr == "error: expected either --steps or --budget, got both\n"


@pytest.mark.parametrize("function", ["json:dumps", "json:__name__", "platform:node"])
def test_dream_wants_a_function_that_returns_a_model_and_graphs(function):
    refused = run("dream", function)
    assert refused.exit_code == 2, refused.error
    assert "without arguments that returns a model and a list of graphs" in refused.stderr
