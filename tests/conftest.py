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

TESTS = Path(__file__).parent
APART = ("simulation", "model")
"""Folders whose tests share nothing and take long: each goes to whoever is free."""
TOGETHER = ("spark",)
"""Folders that share one dear thing: a Java process."""
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")  # no test fails because the machine has much to do
MEMORY = Path("/dev/shm")
ROOM = 4 * 1024**3


def pytest_configure():
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.hookimpl(tryfirst=True)  # before the names of the groups are read
def pytest_collection_modifyitems(items):
    """What shares a fixture stays in one process."""
    for item in items:
        folder, *rest = item.path.relative_to(TESTS).parts
        if folder not in APART:
            group = folder if folder in TOGETHER else "/".join((folder, *rest))
            item.add_marker(pytest.mark.xdist_group(group))
