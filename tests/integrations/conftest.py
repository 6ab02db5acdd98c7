"""What all tests of integrations run in."""

import networkx as nx
import pytest


@pytest.fixture(autouse=True)
def _quiet_cache():
    """Networkx warns when it reuses a converted graph; warnings are errors here."""
    before = set(nx.config.warnings_to_ignore)
    nx.config.warnings_to_ignore.add("cache")
    yield
    nx.config.warnings_to_ignore = before
