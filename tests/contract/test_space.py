"""Space: what a store does not need goes back to the file system while it is in use."""

import sqlite3

import pytest

from brokerd.storage import space
from brokerd.storage.changes import Changes

pytestmark = pytest.mark.of_files("it measures files")


async def pass_through(store, rows, count, body):
    """Messages enqueued, received, and swept from the file."""
    endpoint = rows.endpoint(store)
    changes = Changes()
    changes.create(endpoint)
    changes.enqueued += [rows.message(store, endpoint, n, body) for n in range(count)]
    await store.commit(changes)
    orders = [row.queuing_order for row in changes.enqueued]
    changes = Changes()
    changes.dequeued += orders
    changes.remove(endpoint.key)
    await store.commit(changes)
    store.sweep()
    await store.commit(Changes())


def size(path):
    log = path.with_name(path.name + "-wal")
    return path.stat().st_size + (log.stat().st_size if log.exists() else 0)


@pytest.mark.rule("MAN-13", "PBT-19")
async def test_file_is_as_small_as_a_fresh_one_after_a_backlog_is_gone(store, rows, path):
    await store.run(space.fold)
    fresh = size(path)
    await pass_through(store, rows, 3000, bytes(2000))
    assert size(path) > 10 * fresh
    assert await store.reclaim() == 0, "what has just become free may be needed again"
    assert await store.reclaim() > 1000
    assert size(path) <= 1.2 * fresh
    kept = rows.endpoint(store)
    changes = Changes()
    changes.create(kept)
    await store.commit(changes)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert await store.endpoints.by_handle(kept.handle) == kept


@pytest.mark.rule("MAN-13")
async def test_space_that_was_filled_again_is_kept(store, rows, path):
    await pass_through(store, rows, 1000, bytes(2000))
    await store.reclaim()
    endpoint = rows.endpoint(store)
    changes = Changes()
    changes.create(endpoint)
    changes.enqueued += [rows.message(store, endpoint, n, bytes(2000)) for n in range(990)]
    await store.commit(changes)
    assert await store.reclaim() < 100


@pytest.mark.rule("MAN-13")
async def test_no_pass_gives_back_more_than_its_share(store, rows, monkeypatch):
    await pass_through(store, rows, 1000, bytes(2000))
    await store.reclaim()
    monkeypatch.setattr(space, "MOST", 10)
    assert await store.reclaim() == 10


@pytest.mark.rule("MAN-13", "REL-1")
async def test_somebody_who_reads_holds_nothing_up(store, rows, path):
    await pass_through(store, rows, 1000, bytes(2000))
    await store.reclaim()
    with sqlite3.connect(path, isolation_level=None) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM queue_messages").fetchall()
        assert await store.reclaim() > 100
        await store.commit(Changes())
    reader.close()


@pytest.mark.rule("MAN-13")
async def test_a_step_gives_back_all_it_is_asked_for(store, rows):
    await pass_through(store, rows, 1000, bytes(2000))
    assert await store.run(lambda connection: space.give_back(connection, 100)) == 100
