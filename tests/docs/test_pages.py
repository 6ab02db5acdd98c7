"""Every block of code on every page of the documentation runs, and does what the page says."""

import sys
from pathlib import Path

import pytest

from ohmformer.apps.report.gallery import SETUP, exhibits
from tests.docs.blocks import FENCE, LANGUAGES, ROOT, RUN, blocks, run_bash, run_page

PAGES = {str(path.relative_to(ROOT / "docs")): path.read_text() for path in sorted((ROOT / "docs").rglob("*.md"))}


def pages_with(mark: str) -> list[str]:
    return [name for name, text in PAGES.items() if any(b.mark == mark and b.language in RUN for b in blocks(text))]


@pytest.fixture
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder to run in, in which the examples lie where the pages say."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("in_a_folder")
@pytest.mark.parametrize("name", pages_with(""))
def test_the_code_of_a_page_runs(name: str):
    assert run_page(PAGES[name], name) > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own, some of them when it is gone
@pytest.mark.usefixtures("in_a_folder")
@pytest.mark.parametrize("name", pages_with("slow"))
def test_the_slow_code_of_a_page_runs(name: str):
    try:
        assert run_page(PAGES[name], name, slow=True) > 0
    finally:
        if "ray" in sys.modules:
            sys.modules["ray"].shutdown()


@pytest.mark.parametrize("name", PAGES)
def test_every_fence_is_closed_and_names_its_language(name: str):
    found = blocks(PAGES[name])
    assert {block.language for block in found} <= LANGUAGES
    assert sum(line.startswith("```") for line in PAGES[name].splitlines()) == 2 * len(found)


@pytest.mark.parametrize("name", [name for name in PAGES if not name.startswith("reference/")])
def test_a_page_has_fewer_than_1500_words(name: str):
    prose = FENCE.sub("", PAGES[name])
    assert len([word for word in prose.split() if any(map(str.isalnum, word))]) < 1500


@pytest.mark.parametrize("exhibit", exhibits(), ids=lambda e: e.slug)
def test_the_code_on_a_page_of_the_gallery_builds_what_the_page_shows(exhibit):
    names: dict = {}
    exec(f"{SETUP}\nbuilt = {exhibit.code}\n", names)
    assert repr(names["built"]) == repr(exhibit.construction)


@pytest.mark.usefixtures("in_a_folder")
def test_a_block_that_fails_is_noticed():
    with pytest.raises(AssertionError, match="Expected"):
        run_page("```pycon\n>>> 1 + 1\n3\n\n```\n", "wrong output")
    with pytest.raises(ZeroDivisionError):
        run_page("```python\n1 / 0\n```\n", "exception")
    with pytest.raises(AssertionError, match="expected a file"):
        run_bash("ohmformer solve nothing.csv")
    with pytest.raises(AssertionError):
        run_bash("false")
