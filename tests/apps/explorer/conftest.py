"""The explorer's server, and a visit to its page."""

from collections.abc import Iterator
from threading import Thread
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

    from tests.apps.browsing import Visit


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
def context(browser) -> Iterator["BrowserContext"]:
    """One for all tests, so that scripts are fetched once."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    yield context
    context.close()


@pytest.fixture
def visit(context, address) -> Iterator["Visit"]:
    from tests.apps.browsing import Visit

    visit = Visit(context, address)
    yield visit
    visit.close()
