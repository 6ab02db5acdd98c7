"""Every table of ``results/`` says by which command, at which commit and when it was made, and README's are not old."""

import re
import subprocess
from pathlib import Path

import pytest
from benchmarks import ages

from tests.docs.blocks import ROOT

RESULTS = sorted((ROOT / "results").glob("*.md"))
PAGES = {str(path.relative_to(ROOT)): path for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]}
NUMBER = re.compile(r"(?<![\w.^/-])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w^])")
DERIVED = {
    "README.md": {"1.7", "2.6"},  # ratios of two numbers of their rows, which test_readme.py checks
    "docs/claims.md": None,  # of tests, which its last column names
    "docs/explorer.md": {"0.001"},  # the range of resistances that is accepted
    "docs/learning.md": {"0.07", "0.2", "3.2", "0.24"},  # differences of losses at two depths
    "docs/node-order.md": {"0.7", "0.038", "0.050"},  # shares and differences
    "docs/reference/front-door.md": {"32,768"},  # a threshold
    "docs/scale.md": None,  # a model's, beside measured ones
}
"""Numbers beside a link to a table that are not in it, by page; None for a page whose numbers mostly are of another kind."""


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


def test_commits_are_counted_on_the_folders_of_a_table(tmp_path: Path):
    def git(*words: str) -> str:
        asked = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()

    def commit(name: str) -> str:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
        git("add", ".")
        git("commit", "-q", "-m", name)
        return git("log", "-1", "--format=%h")

    git("init", "-q")
    measured = commit("src/ohmformer/solve/a.py")
    path = tmp_path / "solve.md"
    path.write_text(f"# Title\n\n`python benchmarks/solve.py`, commit {measured}, 2026-01-01.\n")
    first, second = commit("src/ohmformer/graph/b.py"), commit("src/ohmformer/native/c.py")
    commit("src/ohmformer/apps/d.py")
    commit("README.md")
    assert ages.changes(path, tmp_path) == [second, first]
    path.write_text(path.read_text().replace(measured, "0123abc"))
    with pytest.raises(ValueError, match="whole history"):
        ages.changes(path, tmp_path)


def test_the_tables_of_the_readme_are_of_the_present_code():
    named = set(re.findall(r"\(results/([^)]+)\)", (ROOT / "README.md").read_text()))
    assert named
    for name in named:
        assert ages.OLDER not in (ROOT / "results" / name).read_text().partition("\n|")[0]


def numbers(text: str) -> list[tuple[str, float]]:
    return [(found, float(found.replace(",", ""))) for found in NUMBER.findall(text)]


@pytest.mark.parametrize("page", [page for page in PAGES if DERIVED.get(page, set()) is not None])
def test_a_number_beside_a_link_to_a_table_is_in_the_table(page: str):
    prose = re.sub(r"^```.*?^```$", "", PAGES[page].read_text(), flags=re.DOTALL | re.MULTILINE)
    for block in re.split(r"\n\s*\n|\n(?=- )", prose):
        names = [name for name in re.findall(r"results/([\w-]+\.md)", block) if (ROOT / "results" / name).exists()]
        there = [value for name in names for _, value in numbers((ROOT / "results" / name).read_text())]
        words = re.sub(r"\]\([^)]*\)|`[^`]*`", "", block)
        for said, value in numbers(words):
            places = len(said.partition(".")[2])
            small = not places and value < 1000  # years, sizes, settings
            if not names or small or said in (DERIVED.get(page) or ()):
                continue
            off = min(
                abs(scale * x - value) for x in there for scale in (1, 100, 1000)
            )  # as it is, in per cent, in thousandths
            assert off <= 0.501 * 10.0**-places, f"{said} is not in {', '.join(names)}: {words.strip()[:200]}"


def test_a_number_that_is_in_no_table_would_be_noticed():
    assert numbers("0.23 s, 104,121 edges, 1.5e-15, 10^8, e-3") == [
        ("0.23", 0.23),
        ("104,121", 104121.0),
        ("1.5e-15", 1.5e-15),
    ]
