"""Every table of ``results/`` says by which command, at which commit and when it was made, and README's are not old."""

import re
import subprocess
from pathlib import Path

import pytest
from benchmarks import ages

from tests.docs.blocks import ROOT

RESULTS = sorted((ROOT / "results").glob("*.md"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_table_names_its_command_commit_and_date(path: Path):
    assert ages.missing(path.read_text()) == []


def test_what_a_table_does_not_say_is_noticed():
    said = "# Title\n\n`python benchmarks/x.py`, commit 0123abc, 2026-01-01.\n\n| a |\n|---|\n| 1 |\n"
    assert ages.missing(said) == []
    assert ages.missing(said.replace("commit 0123abc, ", "")) == ["commit"]
    assert ages.missing("# Title\n\n| a |\n|---|\n| `ohmformer x`, commit 0123abc, 2026-01-01 |\n") == [
        "command",
        "commit",
        "date",
    ]


def test_a_table_that_is_older_than_its_code_is_marked_once(tmp_path: Path):
    path = tmp_path / "solve.md"
    path.write_text("# Title\n\n`python benchmarks/solve.py`, commit 0123abc, 2026-01-01.\n")
    assert not ages.mark(path, [])
    assert ages.mark(path, ["fedcba9"])
    assert path.read_text().splitlines()[2].startswith(ages.OLDER)
    assert not ages.mark(path, ["fedcba9"])
    assert ages.missing(path.read_text()) == []


def test_commits_are_counted_on_the_folders_of_a_table():
    if subprocess.run(["git", "-C", str(ROOT), "log", "-1"], capture_output=True, check=False).returncode:
        pytest.skip("not a checkout")
    for path in RESULTS:
        for commit in ages.changes(path)[:1]:
            changed = subprocess.run(
                ["git", "-C", str(ROOT), "show", "--format=", "--name-only", "-m", commit],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            assert "src/ohmformer/" in changed


def test_the_tables_of_the_readme_are_of_the_present_code():
    named = set(re.findall(r"\(results/([^)]+)\)", (ROOT / "README.md").read_text()))
    assert named
    for name in named:
        assert ages.OLDER not in (ROOT / "results" / name).read_text().partition("\n|")[0]
