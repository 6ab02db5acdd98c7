"""The page in a real browser: headless Chromium, driven by Playwright, every request and complaint counted."""

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from ohmformer.apps.explorer.compute import solve
from ohmformer.apps.explorer.state import State

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

pytest.importorskip("dash")
playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright found: browser tests skipped")
expect = playwright.expect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium found: browser tests skipped")
ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
PATIENCE = 120_000
"""Milliseconds until a test gives up; how fast the page is, ``benchmarks/explorer.py`` measures."""
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    from ohmformer.apps.explorer.server import listen

    server = listen([])
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    expect.set_options(timeout=PATIENCE)
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def context(browser) -> Iterator["BrowserContext"]:
    """One for all tests, so that scripts are fetched once."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    yield context
    context.close()


class Visit:
    """A page, and everything it asked for or complained about."""

    def __init__(self, context: "BrowserContext", address: str) -> None:
        self.address, self.context = address, context
        self.context.set_default_timeout(PATIENCE)
        self.pages: list[Page] = []
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.page = self.open(address)

    def open(self, url: str) -> "Page":
        page = self.context.new_page()
        self.pages.append(page)
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        page.goto(url)
        expect(page.locator("#readout dd").first).to_be_visible()
        return page

    def close(self) -> None:
        elsewhere = [url for url in self.asked if not url.startswith((self.address, "data:image/svg", "blob:"))]
        assert not elsewhere
        assert not self.complaints
        for page in self.pages:
            page.close()


@pytest.fixture
def visit(context, address) -> Iterator[Visit]:
    visit = Visit(context, address)
    yield visit
    visit.close()


def choose(page: "Page", name: str) -> None:
    """Click a pill, and wait until the page has it."""
    pill = page.locator(".pills label", has_text=name).first
    pill.click()
    expect(pill).to_have_class("dash-options-list-option selected")


def readout(page: "Page", row: int) -> float:
    """A number of the answer: 0 now, 1 exact, 2 error, 3 bound."""
    return float(page.locator("#readout dd").nth(row).inner_text().split()[0])


def click_at(page: "Page", x: float, y: float) -> None:
    box = page.locator("#circuit svg").bounding_box()
    assert box
    page.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])


def test_draw_a_circuit_set_a_resistance_and_put_current_in(visit):
    page = visit.page
    page.click("#clear")
    expect(page.locator("#circuit")).to_contain_text("click here to place a node")
    for x, y in ((0.3, 0.3), (0.7, 0.3), (0.7, 0.7), (0.3, 0.7), (0.5, 0.5)):
        click_at(page, x, y)
    expect(page.locator("[data-node]")).to_have_count(5)
    for u, v in ((0, 1), (1, 2), (2, 3), (3, 0), (0, 4), (4, 2)):
        page.click(f'[data-node="{u}"]')
        page.click(f'[data-node="{v}"]')
    expect(page.locator("[data-edge]")).to_have_count(6)
    choose(page, "Probe")
    page.click('[data-node="0"]')
    expect(page.locator("#message")).to_contain_text("1 A in and 0 A out")
    page.click('[data-node="2"]')
    expect(page.locator("#readout .label")).to_have_text("Effective resistance, 0 to 2")
    assert readout(page, 1) == pytest.approx(2 / 3, 1e-5)  # three ways of two ohm each
    page.locator('[data-edge="4"] path').first.click(force=True)
    page.fill("#editor input", "4")
    page.keyboard.press("Enter")
    expect(page.locator('[data-edge="4"]')).to_contain_text("4 Ω")
    assert readout(page, 1) == pytest.approx(1 / (1 / 2 + 1 / 2 + 1 / 5), 1e-5)
    page.fill("#editor input", "-3")
    page.keyboard.press("Enter")
    expect(page.locator("#message")).to_contain_text("Expected a resistance from 0.001 to 1000 ohm, got -3")
    choose(page, "Erase")
    page.click('[data-node="4"]')
    expect(page.locator("[data-edge]")).to_have_count(4)
    assert readout(page, 1) == pytest.approx(1.0, 1e-5)


def test_play_runs_through_the_layers_and_the_slider_shows_each(visit):
    page = visit.page
    choose(page, "Chebyshev cubing")
    label = page.locator("#layer-label")
    expect(label).to_have_text("layer 4 of 4")
    page.click("#play")
    expect(page.locator("#play")).to_have_text("Pause")
    expect(label).to_have_text("layer 1 of 4")
    expect(label).to_have_text("layer 4 of 4")
    expect(page.locator("#play")).to_have_text("Play")
    found = solve(State.from_query(page.url.partition("?")[2]), {})
    for layer in (0, 2, 3):
        page.fill("#layer", str(layer))
        expect(label).to_have_text(f"layer {layer} of 4")
        assert readout(page, 0) == pytest.approx(found.readout.now[layer], rel=1e-4)
        assert readout(page, 2) == pytest.approx(found.errors[layer], rel=0.1)
        assert f"layer={layer}" in page.url
        expect(page.locator("#weights figure")).to_have_count({0: 0, 2: 7, 3: 7}[layer])
    colour = page.locator('[data-node="0"] .dot').get_attribute("fill")
    page.fill("#layer", "0")
    expect(page.locator('[data-node="0"] .dot')).not_to_have_attribute("fill", str(colour))
    page.locator("#truth label").click()
    expect(label).to_have_text("exact answer")
    expect(page.locator('[data-node="0"]')).to_contain_text("1.1")  # volt, where current goes in


def test_a_permalink_restores_everything(visit):
    page = visit.page
    choose(page, "Ring")
    page.fill("#size", "9")
    page.keyboard.press("Enter")
    expect(page.locator("[data-node]")).to_have_count(9)
    choose(page, "Heat")
    page.click('[data-node="5"]')
    expect(page.locator("#readout .label")).to_have_text("Heat left on 5")
    page.fill("#time", "0.25")
    page.keyboard.press("Enter")
    page.locator('[data-edge="2"] path').first.click(force=True)
    page.fill("#editor input", "7")
    page.keyboard.press("Enter")
    expect(page.locator('[data-edge="2"]')).to_contain_text("7 Ω")
    expect(page.locator("#time")).to_have_value("0.25")
    page.fill("#layer", "3")
    expect(page.locator("#layer-label")).to_contain_text("layer 3 of")
    again = visit.open(page.url)
    for part in ("#readout", "#layer-label", "#values", "#circuit svg", "#says"):
        expect(again.locator(part)).to_have_text(page.locator(part).text_content() or "")
    assert again.url == page.url
    broken = visit.open(visit.address + "?v=1&state=garbage")
    expect(broken.locator("#message")).to_contain_text("damaged")
    expect(broken.locator("[data-node]")).to_have_count(25)


def test_the_picture_and_the_json_can_be_downloaded(visit, tmp_path):
    page = visit.page
    page.fill("#layer", "11")
    expect(page.locator("#layer-label")).to_contain_text("layer 11 of")
    with page.expect_download() as picture:
        page.click("#picture")
    picture.value.save_as(tmp_path / "picture.png")
    data = (tmp_path / "picture.png").read_bytes()
    assert picture.value.suggested_filename == "ohmformer-electric-grid.png"
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert width == 1200
    assert height > 400
    assert len(data) > 10_000  # not an empty sheet
    with page.expect_download() as file:
        page.click("#json")
    file.value.save_as(tmp_path / "answer.json")
    whole = json.loads((tmp_path / "answer.json").read_text())
    state = State.from_json(whole["state"])
    assert state.layer == 11
    found = solve(state, {})
    assert whole["answer"]["values"][11] == pytest.approx(found.values[11].tolist(), rel=1e-6)
    assert whole["answer"]["exact"] == pytest.approx(found.exact.tolist(), rel=1e-6, abs=1e-12)


def test_a_bad_upload_is_a_message_and_a_good_one_a_graph(visit, tmp_path):
    page = visit.page
    choose(page, "Edge list")
    chooser = page.locator("#upload input[type=file]")

    def give(name: str, text: str) -> None:
        path: Path = tmp_path / name
        path.write_text(text)
        chooser.set_input_files(path)

    give("bad.csv", "source,target,resistance\na,b,minus one\n")
    expect(page.locator("#message")).to_have_text(
        "Expected a number in line 2 of the file, column 'resistance', got 'minus one'."
    )
    give("large.csv", "a,b\n" * 60_000)
    expect(page.locator("#message")).to_contain_text("Expected a file of at most 100 kB, got about")
    expect(page.locator("[data-node]")).to_have_count(25)
    markup = "<img src=x onerror=a()>"
    give("good.csv", f"source,target,resistance\n{markup},b,2\nb,c,3\n")
    expect(page.locator("[data-node]")).to_have_count(3)
    expect(page.locator("#message")).to_have_text("")
    expect(page.locator("#readout .label")).to_have_text(f"Effective resistance, {markup} to c")
    expect(page.locator("#values tbody th").first).to_have_text(markup)
    assert page.locator("#page img").count() == 0
    assert readout(page, 1) == pytest.approx(5.0)
    give("bad.csv", "a")
    expect(page.locator("#message")).to_contain_text("Expected 2 columns")
    expect(page.locator("[data-node]")).to_have_count(3)


def test_fifty_nodes_are_answered_for_every_question(visit):
    page = visit.page
    choose(page, "CSL")
    page.fill("#size", "50")
    page.keyboard.press("Enter")
    expect(page.locator("[data-node]")).to_have_count(50)
    for task, label in (
        ("Resistance from a node", "Largest resistance"),
        ("Heat", "Heat left on 0"),
        ("Eigenvector", "Smallest eigenvalue"),
        ("Electric flow", "Effective resistance"),
    ):
        choose(page, task)
        expect(page.locator("#readout .label")).to_contain_text(label)
        expect(page.locator("#errors svg circle")).to_be_visible()
    page.fill("#size", "500")
    page.keyboard.press("Enter")
    expect(page.locator("#size")).to_have_value("50")


def test_a_molecule_is_drawn_from_its_smiles(visit):
    pytest.importorskip("rdkit")
    page = visit.page
    choose(page, "Molecule")
    expect(page.locator("[data-node]")).to_have_count(14)
    page.fill("#smiles", "not a molecule")
    page.keyboard.press("Enter")
    expect(page.locator("#message")).to_contain_text("Expected a molecule as SMILES, got 'not a molecule'")
    page.fill("#smiles", "CCO")
    page.keyboard.press("Enter")
    expect(page.locator("[data-node]")).to_have_count(3)


def test_nodes_answer_to_keys_and_can_be_dragged(visit):
    page = visit.page
    page.locator('[data-node="24"]').press("Enter")
    expect(page.locator("#message")).to_contain_text("1 A in and 0 A out")
    page.locator('[data-node="12"]').press("Enter")
    expect(page.locator("#readout .label")).to_have_text("Effective resistance, 0 to 12")
    before = page.locator('[data-node="12"]').bounding_box()
    assert before
    page.locator('[data-node="12"]').drag_to(page.locator("#circuit svg"), target_position={"x": 40, "y": 40})
    page.wait_for_url(
        lambda url: "state=" in url and State.from_query(url.partition("?")[2]).drawing.places[12] != (200, 200)
    )
    after = page.locator('[data-node="12"]').bounding_box()
    assert after
    assert abs(after["x"] - before["x"]) > 50
    expect(page.locator("#readout .label")).to_have_text("Effective resistance, 0 to 12")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_in_light_and_dark(browser, address, scheme):
    visit = Visit(browser.new_context(viewport=PHONE, color_scheme=scheme, has_touch=True), address)
    page = visit.page
    expect(page.locator("#errors svg circle")).to_be_visible()
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= PHONE["width"]
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(int(c) for c in background.strip("rgb()").split(",")) / 3
    assert (brightness < 60) == (scheme == "dark")
    page.locator('[data-node="24"]').tap()
    expect(page.locator("#message")).to_contain_text("0 A out")
    visit.close()
    visit.context.close()
