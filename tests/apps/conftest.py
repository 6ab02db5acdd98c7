"""A browser for all tests of a file."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    from tests.apps import browsing

    browsing.expect.set_options(timeout=browsing.PATIENCE)
    with browsing.playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=browsing.CHROMIUM, args=browsing.ARGUMENTS)
        yield chromium
        chromium.close()
