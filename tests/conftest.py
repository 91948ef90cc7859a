"""How the suite is run: what it may use, and how it is spread over processors.

Files of tests are made in memory, where there is such a place and room in it: the same fsyncs are
asked for, and none waits for a disk (the demos do: `acceptance/conftest.py`). Python may keep what
it has compiled, whatever the environment says: some hundred processes are started from these
sources, and each would spend half a second on compiling them again.
"""

import os
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.postgresql.fixtures import (  # noqa: F401 - known to all folders by being here
    all_postgresql_servers,
    engine_server,
    postgresql_schema,
    postgresql_server,
    postgresql_servers,
    postgresql_url,
    shared_postgresql_server,
)
from tests.postgresql.stores import postgresql_stores, ready_tables  # noqa: F401 - likewise

TESTS = Path(__file__).parent
APART = ("simulation", "model", "chaos")
"""Folders whose tests share nothing and take long: each goes to whoever is free."""
TOGETHER = ("spark",)
"""Folders that share one dear thing: a Java process."""
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")  # no test fails because the machine has much to do
MEMORY = Path("/dev/shm")
ROOM = 4 * 1024**3


def pytest_addoption(parser):
    parser.addoption(
        "--engine",
        choices=["files", "postgresql"],
        default="files",
        help="where the stores of the daemons of tests are",
    )


def pytest_configure():
    # With a mask of 002 what tests make in place of a daemon would be refused by it (SX-24).
    os.umask(0o022)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """What shares a fixture stays in one process: asked for with `--dist loadgroup`.

    By where a test is, and not by a mark: pytest 9.2 has no name of a test that pytest-xdist 3.8
    could write the mark into.
    """
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415  # nobody calls this without it

    class Groups(LoadScopeScheduling):  # type: ignore[misc]  # it ships no types
        def _split_scope(self, nodeid):
            return group_of(nodeid)

    return Groups(config, log) if config.getvalue("dist") == "loadgroup" else None


def group_of(nodeid):
    """Its module, or its folder where that shares a thing; itself where nothing is shared."""
    path = nodeid.partition("::")[0]
    folder = path.removeprefix("tests/").partition("/")[0]
    return nodeid if folder in APART else folder if folder in TOGETHER else path
