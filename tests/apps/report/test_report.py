"""The report: everything that is there, nothing from elsewhere, no user's text as code, and a word for what is missing."""

import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ohmformer.apps.command_line.main import app
from ohmformer.apps.report import sections
from ohmformer.apps.report.gallery import exhibits
from ohmformer.apps.report.markdown import Document, Table, to_html
from ohmformer.apps.report.sections import beside_the_authors, commands, compared_figures, ratios
from ohmformer.experiments.learn.figures import AUTHORS

ROOT = Path(__file__).parents[3]
EVIL = "<script>alert(1)</script>"


def report(*arguments: object):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def verification(name: str = "gradient descent") -> dict:
    row = {"construction": name, "statement": "Lemma 1", "checks": 3, "graphs": 1, "layers": 80, "error": 0.5, "bound": 0.6,
           "ratio": 0.83, "plain": 1e-15, "dense": 1e-16, "violations": 0}  # fmt: skip
    return {"seed": 0, "graphs": 1, "rows": [row], "violated": [], "violations": 0, "holds": True}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of this repository's results, with a verification and a training beside them."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "runs" / "learn" / "one").mkdir(parents=True)
    (folder / "runs" / "verify.json").write_text(json.dumps(verification()))
    trained = {"steps": 12, "seconds": 3.4, "mean_log_demand": -7.25}
    (folder / "runs" / "learn" / "one" / "result.json").write_text(json.dumps(trained))
    (folder / "runs" / "demo").mkdir()
    shutil.copy(ROOT / "docs" / "circuit.png", folder / "runs" / "demo")
    done = report("--results", ROOT / "results", "--runs", folder / "runs", "--out", folder / "report.html")
    assert done.exit_code == 0, done.output
    return folder / "report.html"


def test_the_page_is_well_formed_and_every_link_in_it_arrives(whole: Path):
    tree = ElementTree.fromstring(whole.read_text().removeprefix("<!DOCTYPE html>\n"))
    names = [element.get("id") for element in tree.iter() if element.get("id")]
    assert len(names) == len(set(names))
    links = [element.get("href") or "" for element in tree.iter("a")]
    assert {link[1:] for link in links if link.startswith("#")} == set(names)
    sections = {
        "circuit",
        "claims",
        "lemmas",
        "errata",
        "figures",
        "real-graphs",
        "zinc12k",
        "scale",
        "molecules",
        "benchmarks",
    }
    assert sections <= set(names)


def test_every_table_of_results_links_to_the_command_that_made_it():
    for path in sorted((ROOT / "results").glob("*.md")):
        document = Document.read(path)
        assert document.commands(), f"{path.name} names no command"
        listed = commands([document]).html
        assert f'id="{document.anchor}"' in listed
        html = document.html()
        for after in html.split("</table></div>")[1:]:
            link = re.match(r'\s*<p class="made"><a href="#([^"]+)">made by</a> <code>([^<]+)</code>', after)
            assert link, path.name
            assert link[1] == document.anchor
            assert f"<code>{link[2]}</code>" in listed


def test_every_table_and_picture_of_numbers_on_the_page_names_its_command(whole: Path):
    text = whole.read_text()
    for name in ("lemmas", "figures", "real-graphs", "zinc12k", "scale", "molecules", "benchmarks", "runs"):
        section = text.partition(f'<section id="{name}">')[2].partition("</section>")[0]
        assert section, name
        for after in section.split("</table></div>")[1:]:
            following = after.split("<table")[0]
            assert '<p class="made">' in following, (name, following[:300])


def test_every_claim_has_a_verdict_evidence_that_exists_and_a_command():
    paper, ours = Document.read(ROOT / "docs" / "claims.md").tables()
    assert paper.header == ["claim", "where", "verdict", "evidence", "command"]
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for _, where, verdict, evidence, command in paper.rows:
        assert verdict in ("holds", "corrected", "refuted"), where
        named = re.findall(r"`(test_[a-z0-9_]+)`", evidence)
        results = re.findall(r"\(\.\./(results/[^)]+)\)", evidence)
        assert named or results or command == "`ohmformer verify`", where
        assert all(f"def {name}(" in tests for name in named), where
        assert all((ROOT / name).is_file() for name in results), where
        run = re.fullmatch(r"`(?:pytest (\S+) -k (\w+)|ohmformer (verify|reproduce .+|dream .+))`", command)
        assert run, where
        if run[1]:
            assert any(run[2] in name for name in re.findall(r"def (test_\w+)", (ROOT / run[1]).read_text())), where
    assert len(ours.rows) >= 2


def test_the_page_holds_everything_it_shows(whole: Path):
    text = whole.read_text()
    assert not re.search(r"<(?:script|link|iframe|object|embed)\b", text)
    assert set(re.findall(r'\bsrc="([^":]+:[^;"]+)', text)) <= {"data:image/svg+xml", "data:image/png"}
    assert "url(" not in text
    assert "@import" not in text


def test_every_result_is_on_the_page(whole: Path):
    text = whole.read_text()
    for path in (ROOT / "results").glob("*.md"):
        assert to_html(Document.read(path).title)[3:-5] in text, path.name
    assert "no violation" in text
    assert "-7.25" in text
    assert text.count('alt="How many times faster') == 1
    assert text.count(": error against layers, with its bound") == len(exhibits())  # a plot for every construction
    assert "test_lemma_4_value_matrix" in text  # errata name their tests


def test_figure_1_stands_beside_the_authors_numbers(whole: Path):
    section = compared_figures([Document.read(ROOT / "results" / "fig1-standard.md")])
    for values in AUTHORS.values():
        for depth in values:
            assert f"{values[depth]:.2f}" in section.html
    assert section.missing == ("ohmformer reproduce fig2", "ohmformer reproduce fig3")


def test_differences_to_the_authors_are_ours_minus_theirs():
    table = Table(
        ["task", "graphs", "start", "measured", "1", "3"],
        [["electric", "csl", "random", "log frobenius", "-1.00", ""],
         ["electric", "csl", "random", "log frobenius, the authors'", "-0.50", "-2.00"]],
    )  # fmt: skip
    compared = beside_the_authors(table)
    assert compared is not None
    assert compared.rows[2] == ["electric", "csl", "log frobenius", "difference", "-0.50", ""]
    assert beside_the_authors(Table(["a", "b"], [["1", "2"]])) is None


def test_ratios_are_read_from_tables_that_have_them():
    header = ["question", "ours", "instead", "ours takes", "instead takes", "ratio"]
    rows = [["all pairs", "x", "`numpy`", "1 s", "5 s", "5.0"], ["grid", "y", "", "16 s", "", ""]]
    assert dict(ratios(Table(header, rows))) == {"all pairs: against numpy": 5.0}
    assert list(ratios(Table(["layers", "ratio"], [["3", "1.5"]]))) == []


def test_what_is_missing_says_which_command_makes_it(tmp_path: Path):
    done = report("--results", tmp_path / "none", "--runs", tmp_path / "nothing", "--out", tmp_path / "report.html")
    assert done.exit_code == 0
    text = (tmp_path / "report.html").read_text()
    for command in (
        "verify --out",
        "demo --out",
        "reproduce fig1",
        "reproduce fig2",
        "reproduce fig3",
        "reproduce table2",
        "reproduce zinc12k",
        "dream",
        "learn",
    ):
        assert re.search(rf"Nothing here yet: <code>ohmformer {command}", text), command
        assert f"not in the report yet: ohmformer {command}" in done.stderr
    in_a_checkout = (sections.SOURCE / "benchmarks").is_dir()
    assert ("make bench" if in_a_checkout else "with the folder results of the") in text


def test_without_a_checkout_the_advice_on_benchmarks_is_a_command_of_the_installed_package(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(sections, "SOURCE", tmp_path)
    (advice,) = sections.benchmarks([]).missing
    assert advice.startswith("ohmformer report --results FOLDER")


def test_no_text_of_a_result_becomes_markup(tmp_path: Path):
    results, runs = tmp_path / "results", tmp_path / "runs"
    results.mkdir()
    (runs / "learn" / EVIL.replace("/", "_")).mkdir(parents=True)
    (results / "bad.md").write_text(
        f"# {EVIL}\n\n{EVIL} <img src=x onerror=alert(1)>\n\n[click](javascript:alert(1)) ![p](../secret.png) ![q](http://x/y.png)\n\n"
        f"| question | instead | ratio |\n|---|---|---|\n| {EVIL} | {EVIL} | 3 |\n"
    )
    (tmp_path / "secret.png").write_bytes(b"secret")
    (results / "drawn.svg").write_text(f"<svg xmlns='http://www.w3.org/2000/svg'>{EVIL}</svg>")
    (results / "table2.md").write_text("# Table 2\n\n![ok](drawn.svg)\n")
    (runs / "verify.json").write_text(json.dumps(verification(EVIL)))
    (runs / "learn" / EVIL.replace("/", "_") / "result.json").write_text("{}")
    assert report("--results", results, "--runs", runs, "--out", tmp_path / "report.html").exit_code == 0
    text = (tmp_path / "report.html").read_text()
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "<img src=x" not in text
    assert 'href="javascript' not in text
    assert "c2VjcmV0" not in text  # the secret in base64
    assert "http://x/y.png" not in text
    images = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n")).iter("img")  # a picture in an img runs no script
    assert [image.get("alt") for image in images if "error against layers" not in (image.get("alt") or "")] == [
        "ok",
        "How many times faster, on a logarithmic axis",
    ]
    ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "expected JSON"),
        ("[1]", "expected a JSON object"),
        ('{"rows": [{}]}', "expected what `ohmformer verify --out` writes"),
    ],
)
def test_a_broken_input_is_refused_with_one_message_and_leaves_the_old_report(tmp_path: Path, content: str, said: str):
    (tmp_path / "verify.json").write_text(content)
    (tmp_path / "report.html").write_text("old")
    done = report("--results", tmp_path, "--runs", tmp_path, "--out", tmp_path / "report.html")
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert said in done.stderr
    assert (tmp_path / "report.html").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "verify.json"]


def test_only_html_is_written(tmp_path: Path):
    done = report("--out", tmp_path / "report.pdf")
    assert done.exit_code == 2
    assert "expected an output file of type .html, got report.pdf" in done.stderr


def test_a_browser_shows_it_on_every_screen_asking_nobody_and_axe_finds_nothing(browser, whole: Path):
    from tests.apps.browsing import SIZES, violations

    asked: list[str] = []
    colours = {}
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme)
        page.on("request", lambda request: asked.append(request.url))
        page.goto(whole.as_uri())
        colours[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
        for size in SIZES:
            page.set_viewport_size(size)
            assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]  # nothing sticks out
        assert page.evaluate("[...document.images].every(i => i.naturalWidth > 0)")
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        page.evaluate("document.querySelectorAll('tr:nth-child(n+5)').forEach(row => row.remove())")  # like those before
        assert violations(page) == []
    page.emulate_media(media="print")
    heights = page.evaluate("[...document.querySelectorAll('details table')].map(t => t.getBoundingClientRect().height)")
    assert min(heights, default=0) > 0  # what is folded on screen is printed
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == colours["light"]
    assert colours["light"] != colours["dark"]
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
