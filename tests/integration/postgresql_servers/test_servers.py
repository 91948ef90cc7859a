"""The servers that the tests of stores in PostgreSQL use do what those tests rely on."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.postgresql import processes
from tests.postgresql.servers import Server, Servers, url_of_all, wait
from tests.postgresql.wire import ServerError

asyncpg = pytest.importorskip("asyncpg")
ROOT = Path(__file__).parents[3]


@pytest.fixture
def server(postgresql_servers: Servers) -> Server:
    return postgresql_servers.started()


@pytest.mark.parametrize("_round", range(2))
async def test_each_test_has_an_empty_database(postgresql_url: str, _round: int) -> None:
    connection = await asyncpg.connect(postgresql_url)
    await connection.execute("CREATE SCHEMA store; CREATE TABLE store.orders (id int)")
    assert await connection.fetchval("SELECT rolsuper FROM pg_roles WHERE rolname = user") is False
    await connection.close()


@pytest.mark.parametrize("_round", range(2))
async def test_each_test_has_a_schema_of_its_own(postgresql_schema, _round: int) -> None:
    connection = await asyncpg.connect(postgresql_schema.url)
    await connection.execute(f"CREATE SCHEMA {postgresql_schema.name}")
    await connection.close()


def test_text_is_not_in_the_order_of_bytes(postgresql_server: Server) -> None:
    rows = postgresql_server.query("SELECT word FROM (VALUES ('a'), ('B')) AS w (word) ORDER BY 1")
    assert rows == [("a",), ("B",)]


def test_a_killed_server_recovers(server: Server) -> None:
    server.query("CREATE TABLE orders (id int); INSERT INTO orders VALUES (1)")
    open_one = server.session()
    open_one.query("BEGIN; INSERT INTO orders VALUES (2)")
    server.kill()
    assert server.processes() == []
    with pytest.raises(OSError):  # noqa: PT011 - which one depends on how far the kill has come
        open_one.query("COMMIT")
    open_one.close()
    server.start()
    assert "was not properly shut down" in server.log
    assert server.query("SELECT id FROM orders") == [("1",)]


@pytest.mark.parametrize("mode", ["smart", "fast", "immediate"])
def test_a_server_stops(server: Server, mode) -> None:
    server.restart(mode)
    assert server.is_running
    server.stop(mode)
    assert server.processes() == []


async def test_a_paused_server_answers_later(server: Server) -> None:
    connection = await asyncpg.connect(server.url("postgres"))
    server.pause()
    answer = asyncio.ensure_future(connection.fetchval("SELECT 1"))
    done, _ = await asyncio.wait([answer], timeout=0.05)
    assert not done
    server.resume()
    assert await answer == 1
    await connection.close()


async def test_a_server_with_a_port(postgresql_servers: Servers) -> None:
    server = postgresql_servers.started(tcp=True)
    connection = await asyncpg.connect(server.url("postgres"))
    assert await connection.fetchval("SELECT inet_server_port()") == server.port
    await connection.close()


def test_servers_can_be_told_apart_if_asked_for(postgresql_servers: Servers) -> None:
    identifier = "SELECT system_identifier FROM pg_control_system()"
    servers = [postgresql_servers.started(initdb=own) for own in (False, False, True)]
    first, copy, own = (server.query(identifier) for server in servers)
    assert first == copy != own


async def test_a_commit_waits_for_a_synchronous_standby(
    postgresql_servers: Servers, server: Server
) -> None:
    standby = postgresql_servers.standby_of(server)
    connection = await asyncpg.connect(server.url("postgres", user="postgres"))
    await connection.execute("CREATE TABLE orders (id int)")
    standby.pause()
    commit = asyncio.ensure_future(connection.execute("INSERT INTO orders VALUES (1)"))
    waits = "SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    await asyncio.to_thread(wait, lambda: bool(server.query(waits)), "a commit waits")
    assert not commit.done()
    standby.resume()
    await commit
    await connection.close()


async def test_a_standby_takes_over(postgresql_servers: Servers, server: Server) -> None:
    standby = postgresql_servers.standby_of(server)
    server.query("CREATE TABLE orders (id int); GRANT ALL ON orders TO brokerd")
    assert standby.is_in_recovery()
    with pytest.raises(ServerError, match="25006"):
        standby.query("INSERT INTO orders VALUES (1)")
    server.kill()
    standby.promote()
    assert not standby.is_in_recovery()
    connection = await asyncpg.connect(url_of_all([server, standby], "postgres"))
    await connection.execute("INSERT INTO orders VALUES (1)")
    await connection.close()


async def test_an_asynchronous_standby_keeps_nobody_waiting(
    postgresql_servers: Servers, server: Server
) -> None:
    standby = postgresql_servers.standby_of(server, synchronous=False)
    standby.pause()
    server.query("CREATE TABLE orders (id int)")


FILL = "INSERT INTO orders SELECT repeat('x', 1000) FROM generate_series(1, 4000)"


def test_a_full_tablespace_fails_statements(server: Server) -> None:
    ballast = server.create_tablespace("small", size="16m")
    server.create_database("orders", tablespace="small")
    server.query("CREATE TABLE orders (body text)", database="orders")
    ballast.take(leaving=1024**2)
    with pytest.raises(ServerError, match="53100"):
        server.query(FILL, database="orders")
    ballast.drop()
    server.query(FILL, database="orders")


def test_a_full_data_folder_ends_the_server(postgresql_servers: Servers) -> None:
    server = postgresql_servers.started(disk="64m")
    server.query("CREATE TABLE orders (body text)")
    server.ballast.take(leaving=8 * 1024**2)
    with pytest.raises((ServerError, OSError)):
        server.query(f"{FILL}; TRUNCATE orders; " * 20)
    assert "No space left on device" in server.log
    server.ballast.drop()
    if not server.is_running:
        server.start()
    wait(server._takes_connections, "it has recovered by itself")
    server.query(FILL)


HOLDER = """
import os, signal, sys
from tests.postgresql.servers import Servers
servers = Servers()
server = servers.started()
print(servers.folder, (server.data / "postmaster.pid").read_text().split()[-2], flush=True)
if sys.argv[1] == "paused":
    server.pause()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("state", ["running", "paused"])
def test_nothing_is_left_of_a_killed_run(state: str, postgresql_servers: Servers) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, state],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        # The end of the output is the end of all who held it, the guard's too.
        folder, segment = run.stdout.read().split()
    assert run.returncode == -signal.SIGKILL
    assert not Path(folder).exists()
    assert processes.within(Path(folder)) == []
    segments = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    assert segment not in [line.split()[1] for line in segments]
