"""How the suite is spread over processors: what shares a fixture stays in one process."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
APART = ("simulation", "model")
"""Folders whose tests share nothing and take long: each goes to whoever is free."""
TOGETHER = ("spark",)
"""Folders that share one dear thing: a Java process."""


def pytest_collection_modifyitems(items):
    for item in items:
        folder, *rest = item.path.relative_to(TESTS).parts
        if folder not in APART:
            group = folder if folder in TOGETHER else "/".join((folder, *rest))
            item.add_marker(pytest.mark.xdist_group(group))
