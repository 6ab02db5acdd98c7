"""The page in a real browser: headless Chromium, driven by Playwright, every request and complaint counted."""

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from ohmformer.apps.explorer.compute import solve, solve_beside
from ohmformer.apps.explorer.export import standalone
from ohmformer.apps.explorer.state import State
from ohmformer.apps.explorer.turns import first_state, turn

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
SIZES = [PHONE, {"width": 768, "height": 1024}, {"width": 1400, "height": 1000}]


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


def violations(page: "Page") -> list[str]:
    """What axe-core has against a page: accessibility rules of WCAG and its own best practices."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe-core found: its rules are skipped")
    found = axe.Axe().run(page).response["violations"]
    return [f"{v['id']}: {node['html'][:120]}" for v in found for node in v["nodes"]]


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
    choose(page, "Own file")
    chooser = page.locator("#upload input[type=file]")

    def give(name: str, text: str) -> None:
        path: Path = tmp_path / name
        path.write_text(text)
        chooser.set_input_files(path)

    give("bad.csv", "source,target,resistance\na,b,minus one\n")
    expect(page.locator("#message")).to_have_text(
        "Expected a number in line 2 of bad.csv, column 'resistance', got 'minus one'."
    )
    give("large.csv", "a,b\n" * 200_000)
    expect(page.locator("#message")).to_contain_text("Expected a file of at most 500 kB, got about")
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
    give("unusual.csv", "id,left,right,r\n1,a,b,2\n2,b,c,3\n3,c,d,4\n")
    expect(page.locator("#message")).to_contain_text("expected --source COLUMN and --target COLUMN", ignore_case=True)
    page.fill("#options", "--source left --target right --resistance r")
    page.keyboard.press("Enter")
    expect(page.locator("[data-node]")).to_have_count(4)
    assert readout(page, 1) == pytest.approx(9.0)


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
    page.fill("#size", "501")
    page.keyboard.press("Enter")
    expect(page.locator("#message")).to_have_text("Expected 2 to 500 nodes, got 501.")
    expect(page.locator("#size")).to_have_value("50")
    page.fill("#size", "500")
    page.keyboard.press("Enter")
    expect(page.locator("[data-node]")).to_have_count(500)
    expect(page.locator("#message")).to_have_text("")


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


def test_back_undoes_and_forward_does_it_again(visit):
    page = visit.page
    expect(page.locator("#undo")).to_be_disabled()
    choose(page, "Ring")
    expect(page.locator("#readout .label")).to_have_text("Effective resistance, 0 to 13")
    page.click('[data-node="13"]')
    expect(page.locator("#message")).to_contain_text("1 A in and 0 A out")
    page.click('[data-node="3"]')
    expect(page.locator("#readout .label")).to_have_text("Effective resistance, 0 to 3")
    page.fill("#layer", "5")  # a layer is no step to undo
    page.go_back()
    expect(page.locator("#message")).to_contain_text("1 A in and 0 A out")
    page.click("#undo")
    expect(page.locator("#readout .label")).to_have_text("Effective resistance, 0 to 13")
    page.keyboard.press("Control+z")
    expect(page.locator("#readout .label")).to_have_text("Effective resistance, 0 to 24")
    expect(page.locator("#graph label.selected")).to_have_text("Grid")
    expect(page.locator("#undo")).to_be_disabled()
    page.click("#redo")
    expect(page.locator("#graph label.selected")).to_have_text("Ring")
    page.keyboard.press("Control+Shift+z")
    page.go_forward()
    expect(page.locator("#readout .label")).to_have_text("Effective resistance, 0 to 3")
    expect(page.locator("#redo")).to_be_disabled()


def test_a_circuit_is_drawn_and_asked_about_with_keys_alone(visit):
    page = visit.page
    press = page.keyboard.press

    def tab_to(selector: str, key: str = "Tab") -> None:
        for _ in range(60):
            if page.evaluate("s => document.activeElement.matches(s)", selector):
                return
            press(key)
        raise AssertionError(f"Tab does not reach {selector}")

    tab_to("#clear")
    press("Enter")
    expect(page.locator("[data-node]")).to_have_count(0)
    press("Shift+Tab")  # Add node
    for count in (1, 2, 3):
        press("Enter")
        expect(page.locator("[data-node]")).to_have_count(count)
    tab_to("[data-node]")
    press("Enter")  # the tool is Draw: from here
    press("ArrowRight")
    press("Enter")  # to there
    expect(page.locator("[data-edge]")).to_have_count(1)
    press("Enter")
    press("ArrowRight")
    press("Enter")
    expect(page.locator("[data-edge]")).to_have_count(2)
    press("Shift+ArrowDown")
    page.wait_for_url(lambda url: State.from_query(url.partition("?")[2]).drawing.places[2] == (200.0, 20.0))
    tab_to("#tool input", "Shift+Tab")
    press("ArrowLeft")
    expect(page.locator("#tool label.selected")).to_have_text("Probe")
    tab_to("[data-node]")
    press("Home")
    press("Enter")
    expect(page.locator("#message")).to_contain_text("1 A in and 0 A out")
    press("End")
    press("Enter")
    expect(page.locator("#readout .label")).to_have_text("Effective resistance, 0 to 2")
    assert readout(page, 1) == pytest.approx(2.0)
    press("Shift+Tab")  # edges come before nodes
    press("End")
    assert page.evaluate("document.activeElement.dataset.edge") == "1"
    press("Delete")
    expect(page.locator("[data-edge]")).to_have_count(1)


OUTSIDE = """() => {
  const canvas = document.querySelector("#circuit svg").getBoundingClientRect();
  const labels = [...document.querySelectorAll("#circuit svg > g:last-child text")].map((l) => l.getBoundingClientRect());
  const past = (l, c) => [c.left - l.left, l.right - c.right, c.top - l.top, l.bottom - c.bottom];
  const beyond = labels.map((label) => past(label, canvas));
  return [labels.length, Math.max(...beyond.flat())];
}"""
"""How many labels stand beside nodes, and by how many pixels the worst of them leaves the canvas."""


def test_nothing_is_clipped_and_the_canvas_stays_where_it_is(visit):
    page = visit.page
    for name in ("barbell", "tree", "path"):
        choose(page, name.capitalize())
        page.wait_for_url(lambda url, name=name: State.from_query(url.partition("?")[2]).origin == name)
        labels, beyond = page.evaluate(OUTSIDE)
        assert labels == 2  # in 1 A, out 1 A
        assert beyond < 1
    page.locator("#size").fill("2")
    page.keyboard.press("Enter")
    expect(page.locator("[data-node]")).to_have_count(2)
    dot = page.locator('[data-node="0"] .dot').bounding_box()
    assert dot
    assert dot["width"] < 90
    before = page.locator("#circuit").bounding_box()
    choose(page, "Draw")
    click_at(page, 0.5, 0.2)
    expect(page.locator("[data-node]")).to_have_count(3)
    choose(page, "Probe")
    page.click('[data-node="2"]')
    expect(page.locator("#message")).to_contain_text("As much current must come out")
    assert page.locator("#circuit").bounding_box() == before


def test_two_constructions_run_side_by_side(visit):
    page = visit.page
    page.locator("#beside label", has_text="Chebyshev cubing").click()
    expect(page.locator("#circuit-beside [data-node]")).to_have_count(25)
    expect(page.locator("#circuit-beside-name")).to_contain_text("layer 4 of 4")
    page.fill("#layer", "2")
    expect(page.locator("#circuit-name")).to_contain_text("layer 2 of 170")
    expect(page.locator("#circuit-beside-name")).to_contain_text("layer 2 of 4")
    state = State.from_query(page.url.partition("?")[2])
    second = solve_beside(state, {})
    assert second is not None
    cells = page.locator("#readout tbody tr").nth(2).locator("td")
    assert float(cells.nth(0).inner_text()) == pytest.approx(solve(state, {}).errors[2], rel=0.1)
    assert float(cells.nth(1).inner_text()) == pytest.approx(second.errors[2], rel=0.1)
    expect(page.locator("#weights h3")).to_have_count(2)
    before = page.locator("#circuit").bounding_box()
    page.locator('#circuit-beside [data-node="24"]').press("Enter")
    expect(page.locator("#message")).to_contain_text("1 A in and 0 A out")
    assert page.locator("#circuit").bounding_box() == before
    page.locator("#beside label", has_text="nothing").click()
    expect(page.locator("#circuit-beside svg")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: size["width"])
def test_an_exported_page_plays_without_server_and_network(browser, tmp_path, size, scheme):
    state = turn(turn(turn(first_state({}), "method", "squaring", {}), "beside", "cubing", {}), "layers", 3, {})
    file = tmp_path / "page.html"
    file.write_text(standalone(state, {}), encoding="utf-8")
    context = browser.new_context(viewport=size, color_scheme=scheme, offline=True)
    page, complaints, asked = context.new_page(), [], []
    page.on("console", lambda m: complaints.append(m.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    expect(page.locator("#circuit-beside [data-node]")).to_have_count(25)
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    assert not violations(page)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#play")).to_have_text("Pause")
    expect(page.locator("#layer-label")).to_have_text("layer 3 of 3")
    expect(page.locator("#play")).to_have_text("Play")
    page.keyboard.press("Tab")
    page.keyboard.press("Home")
    expect(page.locator("#layer-label")).to_have_text("layer 0 of 3")
    assert not complaints
    assert asked == [file.as_uri()]
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: size["width"])
def test_it_fits_every_screen_and_breaks_no_rule_of_axe(browser, address, size, scheme):
    visit = Visit(browser.new_context(viewport=size, color_scheme=scheme), address)
    page = visit.page
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    assert not violations(page)
    choose(page, "Own file")
    page.locator("#beside label", has_text="Chebyshev cubing").click()
    expect(page.locator("#circuit-beside [data-node]")).to_have_count(25)
    page.locator('#circuit [data-node="24"]').press("Enter")
    expect(page.locator("#message")).to_contain_text("0 A out")
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    assert not violations(page)
    visit.close()
    visit.context.close()


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
