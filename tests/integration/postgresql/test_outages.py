"""A server that stops, is cut off, or has no room, while a store is open."""

import asyncio
import ctypes
import socket
import struct
import time
from datetime import timedelta

import pytest

from brokerd.errors import Busy, StoreFault, StoreFull
from brokerd.storage.postgresql import connecting, executor
from brokerd.storage.store import StoreOptions
from tests.integration.postgresql.conftest import FLUSH, is_waiting, noise
from tests.postgresql.fixtures import SHARED
from tests.postgresql.servers import url_of_all

DATABASE = "shop"
SO_ATTACH_FILTER = 26


@pytest.fixture
def quick_reads(monkeypatch):
    monkeypatch.setattr(executor, "READ_LIMIT", 0.3)
    monkeypatch.setattr(executor, "_GRACE", 0.3)


@pytest.mark.rule("REL-1", "REL-5")
@pytest.mark.parametrize("end", ["fast", "immediate", "kill"])
async def test_a_server_ends_and_starts_again(daemons, postgresql_servers, end):
    server = postgresql_servers.started()
    server.create_database(DATABASE)
    daemon = await daemons.open(server.url(DATABASE), "shop")
    first = await daemon.begin(token=0)
    assert await daemon.has(first)
    if end == "kill":
        server.kill()
    else:
        server.stop(end)
    with pytest.raises(StoreFault, match="reading the store failed"):
        await daemon.has(first)
    with pytest.raises(StoreFault, match="CONNECTION_LOST"):
        await daemon.begin(token=1)
    assert len(daemon.faults) == 1
    with pytest.raises(StoreFault, match=r"shop cannot be used.*connection") as refusal:
        await daemons.open(server.url(DATABASE), "shop")
    assert refusal.value.hint == "check store.url, and that the server runs"

    server.start()
    assert await daemon.has(first)  # reads connect again by themselves; writing is over
    with pytest.raises(StoreFault, match="CONNECTION_LOST"):
        await daemon.begin()
    again = await daemons.open(server.url(DATABASE), "shop")
    assert await again.has(first)
    assert [again.outcome(0), again.outcome(1)] == ["committed", "not_committed"]
    await again.begin(token=1)


@pytest.mark.rule("REL-5")
async def test_connections_are_reset(daemons, relay, relayed):
    daemon = await daemons.open(*relayed)
    first = await daemon.begin()
    assert await daemon.has(first)
    relay.reset()
    with pytest.raises(StoreFault, match="CONNECTION_LOST"):
        await daemon.begin()
    assert len(daemon.faults) == 1
    assert await daemon.has(first)


def cut(relay):
    """Let nothing more arrive from the clients of a relay, and answer them nothing: no reset."""
    drop_all = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))  # return 0
    program = struct.pack("HP", 1, ctypes.addressof(drop_all))
    cut_off = 0
    for line in list(relay._lines):
        found = line[0].transport.get_extra_info("socket")
        if found is not None:
            found.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
            cut_off += 1
    return cut_off


@pytest.mark.rule("REL-54")
@pytest.mark.parametrize("when", ["before the flush", "before the answer"])
async def test_a_network_that_is_cut_without_a_word_is_noticed(
    daemons, relay, relayed, monkeypatch, when
):
    """After a second instead of six, so that the test is quick."""
    quick = {"TCP_USER_TIMEOUT": 1000, "TCP_KEEPIDLE": 1}
    monkeypatch.setattr(connecting, "_ALIVE", tuple((dict(connecting._ALIVE) | quick).items()))
    daemon = await daemons.open(*relayed)
    await daemon.begin()
    held = relay.hold(FLUSH)
    if when == "before the flush":
        assert cut(relay)
        writing = asyncio.ensure_future(daemon.begin())
    else:
        writing = asyncio.ensure_future(daemon.begin())
        await held.answered()
        assert cut(relay)
    with pytest.raises(StoreFault, match="not known"):
        await writing
    held.reset()


@pytest.mark.rule("REL-81")
async def test_a_server_that_hangs_costs_one_connection_its_patience(postgresql_servers):
    """Each connection of a start would wait for it otherwise."""
    hangs, other = (postgresql_servers.started(name) for name in ("hangs", "other"))
    for server in (hangs, other):
        server.create_database(DATABASE)
    hangs.pause()
    url = url_of_all([hangs, other], DATABASE)
    patience = 3.0

    async def takes() -> float:
        begun = time.monotonic()
        (await connecting.connect(url, "shop", settings={}, patience=patience)).terminate()
        return time.monotonic() - begun

    assert await takes() >= patience
    assert await takes() < patience
    other.stop()
    hangs.resume()
    assert await takes() < patience  # the others are still tried


@pytest.mark.rule("FD-10")
async def test_a_read_that_takes_too_long_is_busy(
    daemons, postgresql_server, postgresql_schema, quick_reads
):
    daemon = await daemons.open(*postgresql_schema)
    first = await daemon.begin()
    with postgresql_server.session(SHARED) as other:
        other.query(f"BEGIN; LOCK {postgresql_schema.name}.conversation_endpoints")
        with pytest.raises(Busy, match="took over"):
            await daemon.has(first)
        other.query("COMMIT")
    assert await daemon.has(first)
    assert daemon.faults == []


@pytest.mark.rule("FD-10")
async def test_a_read_without_an_answer_is_given_up_and_the_next_one_connects_again(
    daemons, relay, relayed, quick_reads
):
    daemon = await daemons.open(*relayed)
    first = await daemon.begin()
    assert await daemon.has(first)
    relay.stall("answers")
    with pytest.raises(StoreFault, match="reading the store failed"):
        await daemon.has(first)
    relay.heal()
    assert await daemon.has(first)
    assert daemon.faults == []


@pytest.mark.rule("REL-26", "FD-5")
@pytest.mark.parametrize("size", [500_000, 4_000_000], ids=["statement", "transaction"])
async def test_a_flush_waits_while_the_disk_of_the_server_is_full(daemons, postgresql_server, size):
    ballast = postgresql_server.create_tablespace(f"small{size}", size="24m")
    postgresql_server.create_database(f"full{size}", tablespace=f"small{size}")
    url = postgresql_server.url(f"full{size}")
    options = StoreOptions(full_retry=timedelta(milliseconds=5))
    daemon = await daemons.open(url, "shop", options=options)
    first = await daemon.begin(token=0)
    ballast.take()
    changes, large = daemon.changes(token=1, size=size // 4)
    if size > 1_000_000:
        changes.enqueued += [
            daemon.rows.message(daemon.store, large, sequence, noise(size // 300))
            for sequence in range(1, 300)
        ]
    waiting = asyncio.ensure_future(daemon.store.commit(changes))
    while len(daemon.heard) < 3:  # it is tried again and again
        await asyncio.wait([waiting], timeout=0.01)
        assert not waiting.done()
    assert set(daemon.heard) == {"full"}
    behind = asyncio.ensure_future(daemon.begin(token=2))
    assert await is_waiting(waiting)
    assert await is_waiting(behind)
    assert await daemon.has(first)
    assert not await daemon.has(large)
    ballast.drop()
    await asyncio.gather(waiting, behind)
    assert daemon.heard[-1] == "room"
    assert daemon.heard.count("room") == 1
    assert daemon.faults == []
    await daemon.store.close()
    again = await daemons.open(url, "shop")
    assert [again.outcome(token) for token in range(3)] == ["committed"] * 3


@pytest.mark.rule("REL-26")
async def test_no_store_is_made_without_room(daemons, postgresql_server):
    ballast = postgresql_server.create_tablespace("tiny", size="16m")
    postgresql_server.create_database("tiny", tablespace="tiny")
    url = postgresql_server.url("tiny")
    postgresql_server.query("SELECT 1", database="tiny")  # the first session writes a file
    ballast.take()
    with pytest.raises(StoreFull, match="the store shop cannot be opened: the server has no room"):
        await daemons.open(url, "shop")
    ballast.drop()
    daemon = await daemons.open(url, "shop")  # nobody has its lock
    await daemon.begin()
    assert daemon.store.is_new


@pytest.mark.rule("REL-5")
async def test_a_server_that_becomes_read_only_stops_the_store(daemons, postgresql_schema):
    daemon = await daemons.open(*postgresql_schema)
    first = await daemon.begin()
    await daemon.store.run(
        lambda connection: connection.execute("SET default_transaction_read_only = on"),
        writes=False,
    )
    with pytest.raises(StoreFault, match=r"READONLY \(25006\).*rolled back"):
        await daemon.begin()
    assert await daemon.has(first)


async def test_a_session_has_its_own_settings_whatever_those_of_its_role_are(
    daemons, postgresql_server, postgresql_schema
):
    postgresql_server.query("ALTER ROLE brokerd SET statement_timeout = '1s'")
    postgresql_server.query("ALTER ROLE brokerd SET idle_session_timeout = '1s'")
    postgresql_server.query("ALTER ROLE brokerd SET default_transaction_isolation = serializable")
    postgresql_server.query("ALTER ROLE brokerd SET client_min_messages = error")
    try:
        daemon = await daemons.open(*postgresql_schema)
    finally:
        postgresql_server.query("ALTER ROLE brokerd RESET ALL")

    def settings(connection):
        names = (
            "statement_timeout",
            "idle_session_timeout",
            "default_transaction_isolation",
            "client_min_messages",
            "synchronous_commit",
        )
        return [connection.execute(f"SHOW {name}").fetchone()[0] for name in names]

    found = await daemon.store.run(settings, writes=False)
    assert found == ["0", "0", "read committed", "warning", "on"]
