"""The option `--engine`: with `postgresql`, the stores of daemons of tests are on a server.

A folder of tests gets it by importing both names into its `conftest.py`. The tests of a module
share a database, in which each directory has schemas of its own (`tests/stores.py`).
"""

from collections.abc import Iterator
from itertools import count

import pytest

from brokerd.storage.executors import Executor
from brokerd.testing.rig import Rig
from tests import stores
from tests.postgresql.servers import Server

_NUMBERS = count(1)


def is_on_server(config: pytest.Config) -> bool:
    """Return whether stores are to be on a server."""
    return bool(config.getoption("--engine") == "postgresql")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is about stores in files, before any fixture of it is made."""
    mark = item.get_closest_marker("of_files")
    if mark is not None and is_on_server(item.config):
        pytest.skip(f"of stores in files: {mark.args[0]}")


@pytest.fixture(scope="module", autouse=True)
def engine(request: pytest.FixtureRequest) -> Iterator[None]:
    """Put the stores of the daemons of this module where the option says."""
    if not is_on_server(request.config):
        yield
        return
    server: Server = request.getfixturevalue("engine_server")
    if not server.is_running:
        server.start()
    name = f"module{next(_NUMBERS)}"
    server.create_database(name)
    stores.database = stores.Database(server, name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rig, "executor", _executor_of_rig)
        yield
    stores.database = None
    server.drop_database(name)


def _executor_of_rig(rig: Rig, name: str) -> Executor:
    return stores.inline(rig.settings(name).instance.data_dir)
