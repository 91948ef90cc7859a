"""A demo to run, of which no daemon is left afterwards."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.running import Demo
from tests.postgresql.servers import Server, Servers


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


@pytest.fixture(scope="module")
def durable_server(all_postgresql_servers: Servers) -> Iterator[Server]:
    """A server that writes what it confirms, as daemons demand it."""
    made = all_postgresql_servers.started("durable", fsync=True)
    yield made
    all_postgresql_servers.remove(made)


@pytest.fixture
def durable_url(durable_server: Server, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"d{abs(hash(request.node.nodeid)):x}"
    durable_server.create_database(name)
    yield durable_server.url(name)
    durable_server.drop_database(name)
