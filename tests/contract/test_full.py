"""A disk without room: what was not written is kept, and written when there is some (REL-26)."""

import asyncio
import sqlite3

import pytest

from brokerd.errors import StoreFault, StoreFull
from brokerd.storage.changes import Changes
from tests.full_disk import Ballast, mounted


async def fill(store, pages=0):
    """Let the store have no more pages than it has, and a few, on each connection that writes."""
    flusher = getattr(store._parts.pipeline._writer, "_flusher", None)

    def limit(connection):
        if not isinstance(connection, sqlite3.Connection):
            limit_on_server(connection, pages)
            return
        count = connection.execute("PRAGMA page_count").fetchone()[0] + pages
        connection.execute(f"PRAGMA max_page_count = {count}").fetchall()
        if flusher is not None:  # it has nothing to do while a job runs
            flusher.execute(f"PRAGMA max_page_count = {count}")

    await store.run(limit)


def limit_on_server(connection, pages):
    """A server whose disk is full refuses rows with the same error as this trigger, all large ones.

    With more pages than any test writes, it refuses none."""
    connection.execute(
        "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        f" 'BEGIN IF {pages} < 1000 AND pg_column_size(NEW) > 8000 THEN RAISE disk_full;"
        " END IF; RETURN NEW; END'"
    )
    for table in ("queue_messages", "shelf_2", "body_pieces"):
        connection.execute(
            f"CREATE OR REPLACE TRIGGER refuse BEFORE INSERT ON {table}"
            " FOR EACH ROW EXECUTE FUNCTION refuse()"
        )


def message(store, rows, endpoint, size):
    changes = Changes()
    changes.enqueued.append(rows.message(store, endpoint, 0, bytes(size)))
    return changes


async def begun(store, rows):
    endpoint = rows.endpoint(store)
    changes = Changes()
    changes.create(endpoint)
    await store.commit(changes)
    return endpoint


async def turns(count=30):
    for _ in range(count):
        await asyncio.sleep(0.02)


@pytest.mark.rule("REL-26", "FD-5")
async def test_a_flush_without_room_waits_and_is_written_once(open_store, rows, faults, look):
    heard = []

    def full():
        heard.append("full")
        return False

    store = await open_store(on_full=full, on_room=lambda: heard.append("room"))
    endpoint = await begun(store, rows)
    await fill(store)
    waiting = asyncio.ensure_future(store.commit(message(store, rows, endpoint, 500_000)))
    behind = asyncio.ensure_future(store.commit(message(store, rows, endpoint, 10)))
    await turns()
    assert not waiting.done()
    assert not behind.done()
    assert set(heard) == {"full"}
    assert (await store.endpoints.by_handle(endpoint.handle)) is not None  # it reads on
    await fill(store, 1000)
    await asyncio.gather(waiting, behind)
    assert heard[-1] == "room"
    assert faults == []
    assert look.rows("SELECT length(body) FROM queue_messages ORDER BY 1") == [(10,), (500_000,)]


@pytest.mark.rule("REL-26", "FD-5")
async def test_a_job_without_room_fails_and_the_store_goes_on(store, rows, faults):
    endpoint = await begun(store, rows)
    await fill(store)

    def job(connection):
        piece = "INSERT INTO body_pieces VALUES (77, 1, ?, ?)"
        connection.execute(piece, (b"hash", bytes(500_000)))

    with pytest.raises(StoreFull):
        await store.run(job)
    await fill(store, 1000)
    await store.commit(message(store, rows, endpoint, 500_000))
    assert faults == []


@pytest.mark.rule("REL-26")
async def test_what_still_waits_when_the_store_closes_is_given_up(open_store, rows, faults):
    store = await open_store()
    endpoint = await begun(store, rows)
    await fill(store)
    waiting = asyncio.ensure_future(store.commit(message(store, rows, endpoint, 500_000)))
    await turns()
    await store.close()
    with pytest.raises(StoreFault, match="disk is full"):
        await waiting
    again = await open_store()
    assert await again.messages.browse(1, 10, 10_000) is not None
    assert (await again.endpoints.by_handle(endpoint.handle)) is not None


@pytest.mark.rule("REL-26", "REL-28")
async def test_a_store_that_finds_no_room_while_it_closes_is_closed(open_store, rows):
    store = await open_store()
    endpoint = await begun(store, rows)
    await fill(store)
    waiting = asyncio.ensure_future(store.commit(message(store, rows, endpoint, 500_000)))
    await asyncio.sleep(0)
    await asyncio.wait_for(store.close(), 20)
    with pytest.raises(StoreFault, match="disk is full"):
        await waiting


@pytest.mark.rule("REL-5", "REL-26")
async def test_a_checkpoint_that_fails_while_room_is_looked_for_is_a_fault(
    open_store, rows, faults, monkeypatch
):
    def broken(_connection):
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_IOERR, "SQLITE_IOERR"
        raise error

    store = await open_store(on_full=lambda: True)
    endpoint = await begun(store, rows)
    await fill(store)
    monkeypatch.setattr("brokerd.storage.space.fold", broken)
    with pytest.raises(StoreFault, match="SQLITE_IOERR"):
        await asyncio.wait_for(store.commit(message(store, rows, endpoint, 500_000)), 20)
    assert [one.message for one in faults] != []


@pytest.fixture
def small_disk(tmp_path):
    with mounted(tmp_path / "disk") as folder:
        yield folder


@pytest.mark.of_files("the file is on a disk of the test")
class TestOnASmallDisk:
    @pytest.fixture
    def path(self, small_disk):
        return small_disk / "shop.db"

    @pytest.mark.rule("REL-26", "FD-5", "REL-1")
    async def test_a_real_disk_that_is_full_at_the_commit(self, open_store, rows, faults, path):
        """The log finds no room at COMMIT, not before: nothing counts, and all of it later."""
        store = await open_store()
        small_disk = path.parent
        endpoint = await begun(store, rows)
        ballast = Ballast(small_disk)
        for size in (40_000, 300_000, 3_000_000):
            ballast.take(leaving=size // 2)
            waiting = asyncio.ensure_future(store.commit(message(store, rows, endpoint, size)))
            await turns(10)
            assert not waiting.done()
            ballast.drop()
            await waiting
        assert faults == []
        await store.close()
        again = await open_store()
        assert len((await again.messages.browse(1, 10, 10_000_000)).rows) == 3
        with sqlite3.connect(path) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
