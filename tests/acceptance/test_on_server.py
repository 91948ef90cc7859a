"""A daemon whose stores are in a PostgreSQL database: from an empty database to a kill and on."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import brokerd
from brokerd.model import DIALOG_TIMER
from tests.acceptance.on_server import ServerPlace, receive, send
from tests.acceptance.serving import OBJECTS
from tests.postgresql.servers import Server


@pytest.mark.rule("REL-56", "REL-1")
def test_a_killed_daemon_finds_everything_in_its_database(tmp_path: Path, durable_url: str) -> None:
    place = ServerPlace(tmp_path / "a", durable_url)
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
    tmp_path: Path, durable_server: Server, durable_url: str
) -> None:
    place = ServerPlace(tmp_path / "a", durable_url, store="require_standby = true")
    place.data_dir.mkdir(mode=0o700)
    refused = place.check()
    assert (refused.returncode, "require_standby" in refused.stderr) == (74, True)

    stray = place.data_dir / "old.db"
    stray.touch(mode=0o600)
    place = ServerPlace(tmp_path / "a", durable_url)
    refused = place.check()
    assert refused.returncode == 78
    assert f"{stray} is there as well" in refused.stderr

    stray.unlink()
    away = ServerPlace(tmp_path / "a", durable_server.url("there_is_no_such_database"))
    refused = away.check()
    assert refused.returncode == 74
    assert "store.url" in refused.stderr


@pytest.mark.rule("REL-56", "REL-1")
def test_a_rollback_a_large_body_and_a_timer_outlive_a_kill(
    tmp_path: Path, durable_url: str
) -> None:
    place = ServerPlace(tmp_path / "a", durable_url)
    large = bytes(range(256)) * 8192  # in several fragments and pieces of the store
    with place.serving() as daemon:
        with brokerd.sync.connect(place.address, broker="main") as client:
            handle = client.begin_dialog("shop", "warehouse", "orders")
            client.send(handle, large, "Order")
            client.set_timer(handle, 1.0)
            with suppress(ZeroDivisionError), client.transaction() as tx:
                tx.receive("warehouse_q", wait=20)
                raise ZeroDivisionError
        daemon.send_signal(signal.SIGKILL)
        daemon.wait(30)
    with place.serving(), brokerd.sync.connect(place.address, broker="main") as client:
        (order,) = client.receive("warehouse_q", wait=20, autocommit=True)
        assert order.body == large
        (timer,) = client.receive("shop_q", wait=20, autocommit=True)
        assert (timer.handle, timer.message_type) == (handle, DIALOG_TIMER)


@pytest.mark.rule("REL-84")
def test_a_check_beside_the_daemon_finds_what_a_start_would(
    tmp_path: Path, durable_url: str
) -> None:
    place = ServerPlace(tmp_path / "a", durable_url)
    with place.serving(), socket.create_server(("127.0.0.1", 0)) as other:
        with brokerd.sync.connect(place.address, broker="main") as client:
            send(client, range(1))
        checked = place.check()
        assert checked.returncode == 0, checked.stderr
        assert "warning: cannot listen at" in checked.stdout
        assert "could not be told" not in checked.stdout

        place.write(port=other.getsockname()[1])
        assert place.check().returncode == 69

        place.write()
        place.objects.write_text(OBJECTS.replace('"Order" = "initiator"', '"Order" = "any"'))
        checked = place.check()
        assert (checked.returncode, "need contract orders" in checked.stderr) == (65, True)


@pytest.mark.rule("REL-56")
@pytest.mark.parametrize("words", [("config", "check"), ("store", "verify")])
def test_a_missing_driver_is_named_with_the_command_that_installs_it(
    tmp_path: Path, words: tuple[str, str]
) -> None:
    url = "postgresql://brokerd@localhost/stores"
    place = ServerPlace(tmp_path / "a", url)
    named = str(place.settings) if words[0] == "config" else f"{url}?schema=main"
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "asyncpg.py").write_text("raise ImportError('it is not here')\n")
    command = [sys.executable, "-m", "brokerd", *words, named]
    environment = dict(os.environ, PYTHONPATH=f"{hidden}:{Path(brokerd.__file__).parents[1]}")
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env=environment
    )
    assert done.returncode == 69
    assert "pip install 'brokerd[postgresql]'" in done.stderr
