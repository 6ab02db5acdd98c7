"""How long the explorer page takes, from a click to the new picture, in headless Chromium."""

from __future__ import annotations

import argparse
import shutil
import statistics
from threading import Thread
from typing import TYPE_CHECKING

import torch
from playwright.sync_api import sync_playwright

from measure import write_table
from ohmformer.apps.explorer.server import listen

if TYPE_CHECKING:
    from playwright.sync_api import Page

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
GRAPHS = {"CSL": (50, 100, 500), "Grid": (50, 100, 500)}
TASKS = {"Electric flow": "Effective", "Resistance from a node": "Largest", "Heat": "Heat", "Eigenvector": "Smallest"}
CLICK = """async ([label, word]) => {
    const pill = [...document.querySelectorAll(".pills label")].find((x) => x.textContent === label);
    const start = performance.now();
    pill.querySelector("input").click();
    const shown = () => (document.querySelector("#readout .label") || {}).textContent || "";
    while (!shown().startsWith(word)) await new Promise(requestAnimationFrame);
    await new Promise(requestAnimationFrame);
    return performance.now() - start;
}"""
"""From the click to the frame after the answer is on the page."""
SLIDE = """async (layer) => {
    const start = performance.now();
    dash_clientside.set_props("layer", { value: layer });
    const shown = () => document.getElementById("layer-label").textContent;
    while (!shown().startsWith(`layer ${layer} `)) await new Promise((done) => setTimeout(done, 0));
    return performance.now() - start;
}"""
"""From moving the slider to the new picture being drawn; painting it is the browser's."""


def choose(page: Page, graph: str, nodes: int) -> None:
    """Show a graph of a family."""
    page.locator(".pills label", has_text=graph).first.click()
    page.fill("#size", str(nodes))
    page.keyboard.press("Enter")
    page.wait_for_selector(f'[data-node="{nodes - 1}"]')
    page.wait_for_selector(f'[data-node="{nodes}"]', state="detached")


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    server = listen([])
    Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        page.wait_for_selector("#readout dd")
        rows = [measured(page, graph, nodes, repeats) for graph, sizes in GRAPHS.items() for nodes in sizes]
        header = ["graph", *(f"{task}, ms" for task in TASKS), "slowest of all, ms", "one layer further, ms"]
        notes = (
            f"Medians of {repeats}: from choosing a question to the frame after its answer (all of up to 200 layers) is on "
            "the page, server and browser sharing the machine; and from moving the slider by a layer to the new drawing. "
            "Chromium without a graphics processor."
        )
        print(write_table("explorer", "The explorer page, from a click to the picture", header, rows, notes=notes))
        browser.close()
    server.shutdown()


def measured(page: Page, graph: str, nodes: int, repeats: int) -> list[str]:
    """One row: a graph, and how long every question took."""
    choose(page, graph, nodes)
    times: dict[str, list[float]] = {task: [] for task in TASKS}
    slides: list[float] = []
    for _ in range(repeats):
        for task in (*list(TASKS)[1:], *list(TASKS)[:1]):
            times[task].append(page.evaluate(CLICK, [task, TASKS[task]]))
        slides += [page.evaluate(SLIDE, layer) for layer in range(1, 11)]
    medians = [f"{statistics.median(times[task]):.0f}" for task in TASKS]
    worst = max(max(values) for values in times.values())
    row = [f"{graph}, {nodes} nodes", *medians, f"{worst:.0f}", f"{statistics.median(slides):.0f}"]
    print("  ".join(row))
    return row


if __name__ == "__main__":
    main()
