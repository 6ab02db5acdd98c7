"""Every table of ``results/`` says by which command, at which commit and when it was made, and README's are not old."""

import re
import subprocess
from pathlib import Path

import pytest
from benchmarks import ages

from tests.docs.blocks import ROOT

RESULTS = sorted((ROOT / "results").glob("*.md"))
PAGES = {str(path.relative_to(ROOT)): path for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]}
DIGITS = r"\d(?:[\d,]*\d)?(?:\.\d+)?(?:e[+-]?\d+)?"
NUMBER = re.compile(rf"(?<![\w.^/-]){DIGITS}(?![\w^])")
UNIT = r" ?%| (?:s|ms|us|ns|kB|MB|GB|seconds|microseconds|nanoseconds|minutes|hours|times)\b"
QUANTITY = re.compile(rf"(?<![\w.^/-]){DIGITS}(?:(?:,| to| and|, then| or| against) {DIGITS})*(?:{UNIT})")
SECTIONS = {"sections of the paper": "3.2 3.3 3.4 3.5"}
MADE_ELSEWHERE: dict[str, dict[str, str]] = {
    "README.md": {"results/zinc12k.md, by way of docs/zinc12k.md; test_readme.py looks": "0.092 0.105"},
    "docs/claims.md": SECTIONS
    | {
        "tests, named beside them": "2.1 1.5e-15 0.44 39.83 24.9 49.8",
        "claims that were withdrawn": "0.110 0.221 2.6 0.42 0.86",
    },
    "docs/dream.md": {"settings": "0.5 95", "limits of a test that is named": "0.99 0.05"},
    "docs/encoding.md": {"a version": "0.1"},
    "docs/errata.md": SECTIONS | {"tests, named beside them": "2.1 1.5e-15 0.0866 9.1 4.3 2.7 0.44 39.83 24.9 49.8 5e-15"},
    "docs/explorer.md": {"limits": "0.001 500"},
    "docs/faq.md": {"worked out in the text": "0.8", "a limit": "2"},
    "docs/howto/command-line.md": {"worked out in the text": "0.8"},
    "docs/howto/install.md": {"versions": "3.11 3.12 2.13"},
    "docs/howto/many-questions.md": {"limits": "128 2"},
    "docs/molecules.md": {"millions of molecules": "1.6", "a test": "3.0465 2.1001 3.1384 3.0464 2.0992 3.1382"},
    "docs/node-order.md": {
        "the paper's own": "0.201 0.138",
        "differences and ratios of numbers in the tables": "0.038 0.062 0.49 0.96 0.86 2.7 0.04 0.05",
    },
    "docs/reference/front-door.md": {"a probability that is asked for": "0.99"},
    "docs/scale.md": {"a time limit": "30"},
    "docs/tutorial.md": {"worked out in the text": "1.4 0.8"},
    "docs/versioning.md": {"versions": "0.1 0.2"},
}
"""Measured numbers that are in no table, by page: why, and which."""


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

    def commit(name: str, text: str = "") -> str:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        git("add", ".")
        git("commit", "-q", "-m", name)
        return git("log", "-1", "--format=%h")

    git("init", "-q")
    measured = commit("src/ohmformer/solve/a.py")
    path = tmp_path / "solve.md"
    path.write_text(f"# Title\n\n`python benchmarks/solve.py`, commit {measured}, 2026-01-01.\n")
    first, second = commit("src/ohmformer/graph/b.py"), commit("src/ohmformer/native/c.py")
    commit("src/ohmformer/apps/d.py")
    commit("src/ohmformer/native/c.py", '"""Words."""  # and a comment\n')
    commit("README.md")
    assert ages.changes(path, tmp_path) == [second, first]
    third = commit("src/ohmformer/native/c.py", '"""Words."""\nx = 1\n')
    assert ages.changes(path, tmp_path) == [third, second, first]
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


def measured(prose: str) -> list[str]:
    """Numbers that somebody has measured: decimals, and those with a unit of time, memory or comparison."""
    spans = [found.span() for found in QUANTITY.finditer(prose)]
    return [
        found[0]
        for found in NUMBER.finditer(prose)
        if "." in found[0] or any(start <= found.start() < end for start, end in spans)
    ]


def unsupported(text: str, elsewhere: dict[str, str]) -> list[str]:
    """Measured numbers of a page, by section, that are in no table that the section links to and are not listed."""
    lost, listed = [], " ".join(elsewhere.values()).split()
    for section in re.split(r"\n(?=#)", re.sub(r"^```.*?^```$|<!--.*?-->", "", text, flags=re.DOTALL | re.MULTILINE)):
        names = {name for name in re.findall(r"results/([\w-]+\.md)", section) if (ROOT / "results" / name).exists()}
        there = [value for name in names for _, value in numbers((ROOT / "results" / name).read_text())]
        for said in measured(re.sub(r"\]\([^)]*\)|`[^`]*`|<[^>]*>", "", section)):
            mantissa, _, exponent = said.replace(",", "").partition("e")
            value, places = float(said.replace(",", "")), len(mantissa.partition(".")[2]) - int(exponent or 0)
            off = min((abs(scale * x - value) for x in there for scale in (1, 100, 1000)), default=value)
            if off > 0.501 * 10.0**-places and said not in listed:
                lost.append(f"{said} ({section.partition(chr(10))[0]}; {', '.join(sorted(names)) or 'no table'})")
    return lost


@pytest.mark.parametrize("page", PAGES)
def test_a_measured_number_is_in_a_table_that_its_section_links_to(page: str):
    text, elsewhere = PAGES[page].read_text(), MADE_ELSEWHERE.get(page, {})
    assert unsupported(text, elsewhere) == []
    assert set(" ".join(elsewhere.values()).split()) <= set(NUMBER.findall(text)), "listed, but not on the page"


def test_a_number_that_is_in_no_table_is_noticed():
    assert numbers("0.23 s, 104,121 edges, 1.5e-15, 10^8, e-3") == [
        ("0.23", 0.23),
        ("104,121", 104121.0),
        ("1.5e-15", 1.5e-15),
    ]
    assert measured("In 2024: 12 to 14 times, 69, 50, then 12 ms, 30 %, 0.9 of 7 runs") == [
        "12",
        "14",
        "69",
        "50",
        "12",
        "30",
        "0.9",
    ]
    assert unsupported("# Speed\n\n7,654,321 s ([table](results/solve.md))\n", {}) == ["7,654,321 (# Speed; solve.md)"]
    assert unsupported("# Speed\n\n12 ms\n", {"a reason": "12"}) == []
