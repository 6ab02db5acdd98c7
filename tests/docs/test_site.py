"""The documentation builds without a warning, and needs nothing from elsewhere."""

import json
import os
import re
import shutil
import subprocess
import sys
import zlib
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from ohmformer.apps.report.gallery import exhibits
from tests.docs.blocks import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; ``--strict`` makes every warning an error."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_construction_has_a_page_with_update_weights_bound_and_error(site: Path):
    for exhibit in exhibits():
        html = (site / "lemmas" / f"{exhibit.slug}.html").read_text()
        for part in ("Update", "Weights", "Bound", "Error", "Build it"):
            assert f'id="{part.lower().replace(" ", "-")}"' in html, (exhibit.slug, part)
        assert html.count('<img src="data:image/svg+xml') == 1  # the error against the bound
        assert html.count('<table class="weights"><caption>W^') >= 1
    assert len(list((site / "lemmas").glob("*.html"))) == len(exhibits()) + 1


def test_reference_examples_commands_and_results_are_there(site: Path):
    assert "Effective resistances" in (site / "reference" / "front-door.html").read_text()
    assert ":class:" not in "".join(path.read_text() for path in (site / "reference").glob("*.html"))
    assert "--task" in (site / "reference" / "commands.html").read_text()
    examples = (site / "examples.html").read_text()
    assert all(path.name in examples for path in (ROOT / "examples").glob("*.py"))
    assert len(list((site / "results").glob("*.html"))) == len(list((ROOT / "results").glob("*.md"))) + 1


def test_an_option_is_not_broken_after_a_hyphen(site: Path):
    assert '<span class="option">--cluster</span> ADDRESS' in (site / "howto" / "cluster.html").read_text()
    assert ".option { white-space: nowrap; }" in (site / "site.css").read_text()


PUBLIC = ("", ".constructions", ".transformer", ".solve", ".graph", ".encoding")


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_is_in_the_reference(site: Path, package: str):
    inventory = zlib.decompress((site / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode()
    documented = {line.split()[0] for line in inventory.splitlines() if line}
    module = import_module(f"ohmformer{package}")
    for name in module.__all__:
        thing = getattr(module, name)
        if isinstance(thing, ModuleType):
            assert any(f"{entry}.".startswith(f"{thing.__name__}.") for entry in documented), name
        elif hasattr(thing, "__module__"):
            assert f"{thing.__module__}.{name}" in documented
        else:  # a constant does not know where it is from
            assert any(entry.endswith(f".{name}") for entry in documented), name


def test_a_circuit_plays_on_the_first_page(site: Path):
    first, text = (site / "index.html").read_text(), (site / "play.html").read_text()
    assert 'src="play.html"' in first
    assert len(text) < 300_000
    answer = json.loads(text.partition('id="data">')[2].partition("</script>")[0])["answer"]
    assert f"(left, {answer['layers']} layers)" in " ".join(first.split())
    assert f"(right, {answer['beside']['layers']} layers)" in " ".join(first.split())


def test_no_page_loads_anything_from_elsewhere(site: Path):
    loads = re.compile(r'(?:<(?:script|img|iframe|source)[^>]*\ssrc|<link[^>]*\shref)=["\']?(https?:)?//')
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    assert [str(path) for path in pages if loads.search(path.read_text())] == []
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", styles)


def test_a_browser_asks_nobody_else(site: Path):
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on this machine: the browser test of the documentation is skipped")
    from playwright.sync_api import sync_playwright

    asked: list[str] = []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        for name in ("index.html", "tutorial.html", "lemmas/chebyshev.html", "reference/graphs.html"):
            page.goto((site / name).as_uri())
            assert page.locator("h1").first.is_visible()
        browser.close()
    assert asked
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
