"""The option that plays the random programs without the fast path.

It is known where `tests/model` is named on the command line. `test_fast_path.py` plays each of its
programs on both paths, whatever the option says.
"""

import pytest

from tests.model.engine import Engine
from tests.model.machine import Machine


def pytest_addoption(parser):
    parser.addoption(
        "--no-fast-paths", action="store_true", help="every message takes the general path"
    )


def pytest_configure(config):
    if config.getoption("no_fast_paths", default=False):
        Machine.fast_paths = False


@pytest.fixture(autouse=True)
def engine(request, monkeypatch):
    """With `--engine=postgresql`, the stores are on a server."""
    if request.config.getoption("--engine") == "postgresql":
        monkeypatch.setattr(Engine, "server", request.getfixturevalue("postgresql_url"))
