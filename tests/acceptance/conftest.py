"""A demo to run, of which no daemon is left afterwards; servers that daemons accept."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.running import Demo
from tests.postgresql.engine import engine, pytest_runtest_setup  # noqa: F401 - known here by it
from tests.postgresql.servers import Server, Servers


@pytest.fixture(scope="session")
def engine_server(all_postgresql_servers: Servers) -> Server:
    """A server that writes what it confirms, for the daemons of all tests of this process."""
    return all_postgresql_servers.new("engine", fsync=True)


@pytest.fixture
def demo(request: pytest.FixtureRequest) -> Iterator[Demo]:
    """Whatever a test does, no daemon is left. The stores are on a disk, as they are in earnest."""
    failed = request.session.testsfailed
    folder = Path(tempfile.mkdtemp(prefix="brokerd-demo-"))
    made = Demo(folder / "demo")
    yield made
    made.end()
    left = made.left()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "the demo left daemons behind"
    if request.session.testsfailed == failed:
        shutil.rmtree(folder)


@pytest.fixture
def durable_server(postgresql_servers: Servers) -> Server:
    """A server of the test that writes what it confirms, as daemons demand it."""
    return postgresql_servers.started("durable", fsync=True)


@pytest.fixture
def durable_url(durable_server: Server) -> str:
    """The URL of an empty database of that server."""
    durable_server.create_database("stores")
    return durable_server.url("stores")
