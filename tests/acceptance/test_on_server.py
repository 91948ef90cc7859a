"""A daemon whose stores are in a PostgreSQL database: from an empty database to a kill and on."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import brokerd
from tests.acceptance.on_server import ServerPlace
from tests.postgresql.servers import Server, Servers


@pytest.fixture(scope="module")
def server(all_postgresql_servers: Servers) -> Iterator[Server]:
    """A server that writes what it confirms, as daemons demand it."""
    made = all_postgresql_servers.started("durable", fsync=True)
    yield made
    all_postgresql_servers.remove(made)


@pytest.fixture
def url(server: Server, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"d{abs(hash(request.node.nodeid)):x}"
    server.create_database(name)
    yield server.url(name)
    server.drop_database(name)


def send(client: brokerd.sync.Session, numbers: Iterable[int]) -> None:
    """Send numbers in one dialog, each in a commit of its own."""
    handle = client.begin_dialog("shop", "warehouse", "orders")
    for number in numbers:
        client.send(handle, b"%d" % number, "Order")


def receive(client: brokerd.sync.Session) -> int:
    """Receive the next number."""
    (message,) = client.receive("warehouse_q", max_messages=1, wait=20, autocommit=True)
    return int(message.body or b"")


@pytest.mark.rule("REL-56", "REL-1")
def test_a_killed_daemon_finds_everything_in_its_database(tmp_path: Path, url: str) -> None:
    place = ServerPlace(tmp_path / "a", url)
    assert place.check().returncode == 0
    with place.serving() as daemon:
        with brokerd.sync.connect(place.address, broker="main") as client:
            send(client, range(20))
            assert receive(client) == 0
        daemon.send_signal(signal.SIGKILL)
        daemon.wait(30)
    with (
        place.serving() as daemon,
        brokerd.sync.connect(place.address, broker="main") as client,
    ):
        assert [receive(client) for _ in range(19)] == list(range(1, 20))
        said = place.run("status", "-c", str(place.settings)).stdout
        assert "one machine: no synchronous standby" in said
        assert "brokerd@" not in said
    assert not list(place.data_dir.glob("*.db")), "no store is a file"


@pytest.mark.rule("REL-56")
def test_starts_that_cannot_succeed_are_refused_with_the_remedy(
    tmp_path: Path, server: Server, url: str
) -> None:
    place = ServerPlace(tmp_path / "a", url, store="require_standby = true")
    place.data_dir.mkdir(mode=0o700)
    refused = place.check()
    assert (refused.returncode, "require_standby" in refused.stderr) == (65, True)

    stray = place.data_dir / "old.db"
    stray.touch(mode=0o600)
    place = ServerPlace(tmp_path / "a", url)
    refused = place.check()
    assert refused.returncode == 78
    assert f"{stray} is there as well" in refused.stderr

    stray.unlink()
    away = ServerPlace(tmp_path / "a", server.url("there_is_no_such_database"))
    refused = away.check()
    assert refused.returncode == 74
    assert "store.url" in refused.stderr


@pytest.mark.rule("REL-56")
def test_a_missing_driver_is_named_with_the_command_that_installs_it(
    tmp_path: Path, url: str
) -> None:
    place = ServerPlace(tmp_path / "a", url)
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "asyncpg.py").write_text("raise ImportError('it is not here')\n")
    command = [sys.executable, "-m", "brokerd", "config", "check", str(place.settings)]
    environment = dict(os.environ, PYTHONPATH=f"{hidden}:{Path(brokerd.__file__).parents[1]}")
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env=environment
    )
    assert done.returncode == 69
    assert "pip install 'brokerd[postgresql]'" in done.stderr
