"""The page in a real browser: headless Chromium, driven by Playwright, every request and complaint counted."""

import json
import struct
from pathlib import Path

import pytest

from ohmformer.apps.explorer.compute import solve, solve_beside
from ohmformer.apps.explorer.state import State
from tests.apps.browsing import choose, click_at, expect, readout

pytest.importorskip("dash")


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
    before = page.url
    page.fill("#time", "0.25")
    page.keyboard.press("Enter")
    expect(page).not_to_have_url(before)  # drawn anew
    page.locator('[data-edge="2"] path').first.click(force=True)
    page.fill("#editor input", "7")
    page.keyboard.press("Enter")
    expect(page.locator('[data-edge="2"]')).to_contain_text("7 Ω")
    expect(page.locator("#time")).to_have_value("0.25")
    page.fill("#layer", "3")
    expect(page.locator("#layer-label")).to_contain_text("layer 3 of")
    again = visit.open(page.url)
    for part in ("#readout", "#layer-label", "#values", "#circuit svg", "#explained"):
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


def test_control_z_undoes_where_the_focus_is_in_a_control(visit):
    page = visit.page
    choose(page, "Ring")
    expect(page.locator("#readout .label")).to_have_text("Effective resistance, 0 to 13")
    page.keyboard.press("Control+z")
    expect(page.locator("#graph label.selected")).to_have_text("Grid")
    page.locator('[data-edge="2"] path').first.click(force=True)
    field = page.locator("#editor input")
    expect(field).to_be_focused()
    page.keyboard.type("7")
    page.keyboard.press("Control+z")  # what is being written is undone by the field itself
    expect(field).to_have_value("1")
    page.keyboard.type("7")
    page.keyboard.press("Enter")
    expect(page.locator('[data-edge="2"]')).to_contain_text("7 Ω")
    page.keyboard.press("Control+z")
    expect(page.locator('[data-edge="2"]')).not_to_contain_text("7 Ω")
    expect(page.locator("#graph label.selected")).to_have_text("Grid")


def test_resistances_of_a_triangle_are_written_apart(visit, tmp_path):
    page = visit.page
    choose(page, "Own file")
    path: Path = tmp_path / "triangle.csv"
    path.write_text("source,target,ohm\nhome,shop,2\nshop,park,3\npark,home,4\n")
    page.locator("#upload input[type=file]").set_input_files(path)
    expect(page.locator("[data-node]")).to_have_count(3)
    boxes = [page.locator(f'[data-edge="{j}"] text').bounding_box() for j in range(3)]
    for j in range(3):
        a, b = boxes[j], boxes[(j + 1) % 3]
        apart = max(
            abs(a["x"] - b["x"]) - (a["width"] + b["width"]) / 2, abs(a["y"] - b["y"]) - (a["height"] + b["height"]) / 2
        )
        assert apart > 0, (a, b)


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
    expect(page.locator("#explained p b")).to_have_text(["Lemma 1 · gradient descent", "Chebyshev cubing · ours"])
    place = "() => document.getElementById('circuit').getBoundingClientRect().top + scrollY"  # focus may scroll the page
    before = page.evaluate(place)
    page.locator('#circuit-beside [data-node="24"]').press("Enter")
    expect(page.locator("#message")).to_contain_text("1 A in and 0 A out")
    assert page.evaluate(place) == before
    page.locator("#beside label", has_text="nothing").click()
    expect(page.locator("#circuit-beside svg")).to_have_count(0)
    expect(page.locator("#explained p")).to_have_count(1)
