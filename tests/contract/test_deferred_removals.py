"""Messages that were received: gone at once for everybody, from the file with a sweep."""

import pytest

from brokerd.storage.changes import Changes
from brokerd.storage.store import StoreOptions


async def filled(store, rows, count):
    endpoint = rows.endpoint(store)
    changes = Changes()
    changes.create(endpoint)
    changes.enqueued += [rows.message(store, endpoint, n, b"body %d" % n) for n in range(count)]
    await store.commit(changes)
    return [row.queuing_order for row in changes.enqueued]


async def remove(store, orders):
    changes = Changes()
    changes.dequeued += orders
    await store.commit(changes)


def in_store(look):
    orders = look.rows("SELECT queuing_order FROM queue_messages ORDER BY 1")
    return [row[0] for row in orders], *look.counts("queue_removals")


async def seen(store):
    return [row.queuing_order for row in (await store.messages.browse(1, 100, 10_000)).rows]


@pytest.mark.rule("OBJ-47")
async def test_removed_message_is_not_seen_though_the_file_still_has_it(store, rows, look):
    orders = await filled(store, rows, 6)
    await remove(store, orders[:2])
    await remove(store, orders[4:5])
    assert await seen(store) == [orders[2], orders[3], orders[5]]
    page = await store.messages.browse(1, 2, 10_000)
    assert [row.queuing_order for row in page.rows] == orders[2:4], (
        "a page of removed ones ends nothing"
    )
    assert in_store(look) == (orders, 2)


@pytest.mark.rule("REL-1", "RCV-16")
async def test_removed_message_does_not_come_back_with_a_crash(open_store, rows, look):
    store = await open_store()
    orders = await filled(store, rows, 4)
    await remove(store, orders[1:3])
    await store.abandon()
    store = await open_store()
    assert [one[:3] for one in store.recovered.waiting] == [(1, 5, 2)]
    assert await seen(store) == [orders[0], orders[3]]
    assert in_store(look) == ([orders[0], orders[3]], 0)


async def test_sweep_deletes_what_is_noted_and_then_the_notes(store, rows, look):
    orders = await filled(store, rows, 5)
    assert store.sweep() == 0
    await remove(store, orders[3:])
    await remove(store, orders[:1])
    assert store.sweep() == 3
    await store.commit(Changes())
    assert in_store(look) == (orders[1:3], 0)
    assert await seen(store) == orders[1:3]


async def test_sweep_of_many_goes_on_by_itself_and_keeps_later_notes(open_store, rows, look):
    store = await open_store(options=StoreOptions(noted_removals=3000))
    orders = await filled(store, rows, 3500)
    await remove(store, orders[500:])
    await remove(store, orders[:10])
    await store.close()
    assert in_store(look) == (orders[10:500], 0)


async def test_without_notes_each_is_deleted_at_once(open_store, rows, look):
    store = await open_store(options=StoreOptions(noted_removals=0))
    orders = await filled(store, rows, 4)
    await remove(store, orders[:3])
    assert in_store(look) == (orders[3:], 0)


async def test_closing_deletes_what_is_noted(open_store, rows, look):
    store = await open_store()
    orders = await filled(store, rows, 3)
    await remove(store, orders[1:])
    await store.close()
    assert in_store(look) == (orders[:1], 0)


@pytest.mark.rule("REL-7")
@pytest.mark.of_files("it measures a file")
async def test_a_hundred_crashes_in_a_row_do_not_grow_the_store(open_store, rows, path):
    store = await open_store()
    endpoint = rows.endpoint(store)
    changes = Changes()
    changes.create(endpoint)
    changes.enqueued += [rows.message(store, endpoint, n, bytes(400)) for n in range(500)]
    await store.commit(changes)
    await store.abandon()
    before = sum(one.stat().st_size for one in path.parent.iterdir())
    for _ in range(100):
        store = await open_store(create=None)
        await store.abandon()
    assert sum(one.stat().st_size for one in path.parent.iterdir()) <= 1.1 * before
    store = await open_store(create=None)
    assert len((await store.messages.page(1, 5, -1, 1000, 10**6)).rows) == 500
