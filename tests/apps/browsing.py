"""What tests of pages in a real browser share: headless Chromium by Playwright. Importing it skips where there is none."""

import shutil
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright found: browser tests skipped")
expect = playwright.expect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("no Chromium found: browser tests skipped", allow_module_level=True)
ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
PATIENCE = 120_000
"""Milliseconds until a test gives up; how fast the page is, ``benchmarks/explorer.py`` measures."""
PHONE = {"width": 390, "height": 844}
SIZES = [PHONE, {"width": 768, "height": 1024}, {"width": 1400, "height": 1000}]


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
