"""The page by keys alone, on screens of three sizes, in light and dark, and exported; axe-core finds nothing."""

import pytest

from ohmformer.apps.explorer.export import standalone
from ohmformer.apps.explorer.state import State
from ohmformer.apps.explorer.turns import first_state, turn
from tests.apps.browsing import PHONE, SIZES, Visit, choose, click_at, expect, readout, violations

pytest.importorskip("dash")
OUTSIDE = """() => {
  const canvas = document.querySelector("#circuit svg").getBoundingClientRect();
  const labels = [...document.querySelectorAll("#circuit svg > g:last-child text")].map((l) => l.getBoundingClientRect());
  const past = (l, c) => [c.left - l.left, l.right - c.right, c.top - l.top, l.bottom - c.bottom];
  const beyond = labels.map((label) => past(label, canvas));
  return [labels.length, Math.max(...beyond.flat())];
}"""
"""How many labels stand beside nodes, and by how many pixels the worst of them leaves the canvas."""


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
