"""Messages beyond a window go on shelves, which are emptied at once; whatever happens, none that
waits goes with those that were received (design D4)."""

import asyncio
import sqlite3
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.errors import StoreFault
from brokerd.ids import QueueKey
from brokerd.storage.changes import Changes, QueueRow
from brokerd.storage.rows import deferred_removals, queues
from brokerd.storage.rows.deferred_removals import Removals
from brokerd.storage.rows.stored_messages import StoredMessages
from brokerd.storage.shelves import NO_SHELF, SHELVES, Place, Places, Shelf, Shelves
from brokerd.storage.store import StoreOptions
from brokerd.storage.stretches import EVERYWHERE, table_at
from tests.contract.test_full import begun, fill, turns

FIVE = StoreOptions(shelf_messages=5)


@pytest.fixture
async def store(open_store):
    return await open_store(options=FIVE)


@pytest.fixture
async def endpoint(store, rows):
    return await begun(store, rows)


async def put(store, rows, endpoint, count, *, queue=1, first=0):
    """Messages beyond the window of the queue, each in a flush of its own."""
    made = []
    for number in range(first, first + count):
        changes = Changes()
        order = store.next_queuing_order()
        place = store.shelves.place(queue)
        row = rows.message(store, endpoint, number, b"%d" % number, queue=queue)
        made.append(row._replace(queuing_order=order, paged=place))
        changes.enqueued.append(made[-1])
        await store.commit(changes)
    return made


async def receive(store, messages):
    changes = Changes()
    for row in messages:
        changes.dequeue(row.paged, [row.queuing_order])
    await store.commit(changes)


async def swept(store, *, passes=3):
    """After so many passes: what is noted on a shelf is swept if nothing was between two, and then
    it may be found empty."""
    for _ in range(passes):
        store.sweep()
        await store.run(lambda _: None)
        for _ in range(20):
            await store.commit(Changes())


def in_store(look):
    """Queuing orders by the number of the shelf, and how many notes."""
    found = {
        number: [row[0] for row in look.rows(f"SELECT queuing_order FROM {table_at(number)}")]
        for number in SHELVES
    }
    (notes,) = look.counts("queue_removals")
    return {number: orders for number, orders in found.items() if orders}, notes


async def seen(store, queue=1):
    """What a queue has beyond its window, page after page."""
    found, after = [], -1
    while (page := await store.messages.page(queue, 5, after, 3, 10_000)).end is not None:
        found += [row.queuing_order for row in page.rows]
        after, _ = page.end
    return found


def orders(messages):
    return [row.queuing_order for row in messages]


async def test_a_shelf_is_emptied_when_all_of_it_is_received(store, rows, endpoint, look):
    made = await put(store, rows, endpoint, 12)
    assert [row.paged for row in made] == [2] * 5 + [3] * 5 + [4] * 2
    assert await seen(store) == orders(made)
    await receive(store, made[1:5])
    await receive(store, made[5:7])
    await receive(store, made[:1])
    assert await seen(store) == orders(made[7:])
    assert in_store(look) == ({3: orders(made[5:10]), 4: orders(made[10:])}, 1)
    await receive(store, made[7:])
    assert in_store(look) == ({}, 0)
    assert store.shelves.taken == []
    again = await put(store, rows, endpoint, 1, first=12)
    assert await seen(store) == orders(again)


@pytest.mark.rule("REL-1", "RCV-16")
async def test_after_a_crash_a_shelf_has_what_was_not_received(
    open_store, store, rows, endpoint, look
):
    made = await put(store, rows, endpoint, 7)
    await receive(store, [made[0], made[2], made[6]])
    await store.abandon()
    store = await open_store(options=FIVE)
    left = [made[1], *made[3:6]]
    assert [one[:3] for one in store.recovered.waiting] == [(1, 5, 4)]
    assert await seen(store) == orders(left)
    assert in_store(look) == ({2: orders(left[:3]), 3: orders(left[3:])}, 0)
    more = await put(store, rows, endpoint, 2, first=7)
    assert [row.paged for row in more] == [3, 3], "the newest goes on"
    await receive(store, left[:3])
    assert in_store(look) == ({3: orders([*left[3:], *more])}, 0)
    assert await seen(store) == orders([*left[3:], *more])


@pytest.mark.rule("REL-10")
async def test_what_a_start_finds_on_no_shelf_is_read_between_what_is_on_one(
    open_store, store, rows, endpoint
):
    on_shelves = await put(store, rows, endpoint, 3)
    changes = Changes()
    changes.enqueued += [rows.message(store, endpoint, 3 + n, b"x", paged=0) for n in range(2)]
    await store.commit(changes)
    on_shelves += await put(store, rows, endpoint, 4, first=5)
    await store.close()
    store = await open_store(options=FIVE)
    every = sorted([*orders(on_shelves), *orders(changes.enqueued)])
    assert await seen(store) == every
    found, after = [], None
    while (page := await store.messages.page_for(endpoint.key, 2, 10_000, after)).end is not None:
        found += [row.sequence for row in page.rows]
        after = page.end
    assert found == list(range(9))
    assert (
        await store.message_counts.tally(endpoint.key, -1, store.coming_order, set())
    ).messages == 9


async def test_what_is_left_behind_is_swept_and_the_shelf_goes_on(store, rows, endpoint, look):
    made = await put(store, rows, endpoint, 6)
    await receive(store, made[:4])
    await swept(store, passes=1)
    assert in_store(look)[0][2] == orders(made[:5]), "it may be emptied soon"
    await swept(store, passes=1)
    assert in_store(look) == ({2: orders(made[4:5]), 3: orders(made[5:])}, 0)
    assert await seen(store) == orders(made[4:])
    await receive(store, made[4:5])
    assert (in_store(look), store.shelves.taken) == (({3: orders(made[5:])}, 0), [3])


async def test_where_all_shelves_are_taken_the_newest_grows(open_store, rows, look):
    store = await open_store(options=StoreOptions(shelf_messages=1))
    endpoint = await begun(store, rows)
    made = await put(store, rows, endpoint, 20)
    assert [row.paged for row in made] == [*SHELVES, 17, 17, 17, 17]
    other = await put(store, rows, endpoint, 1, queue=2, first=20)
    assert [row.paged for row in other] == [NO_SHELF]
    assert (await seen(store), await seen(store, 2)) == (orders(made), orders(other))
    await receive(store, [made[3], *other])
    assert await seen(store) == orders([*made[:3], *made[4:]])
    assert [row.paged for row in await put(store, rows, endpoint, 1, first=21)] == [17]
    changed = await put(store, rows, endpoint, 2, queue=2, first=22)
    assert [row.paged for row in changed] == [5, 5], "the one that was given back"
    assert await seen(store, 2) == orders(changed)


async def test_a_flush_that_puts_a_message_on_a_shelf_does_not_empty_it(
    store, rows, endpoint, look
):
    made = await put(store, rows, endpoint, 2)
    changes = Changes()
    row = rows.message(store, endpoint, 2, b"", paged=store.shelves.place(1))
    changes.enqueued.append(row)
    changes.dequeue(2, [*orders(made), row.queuing_order])
    await store.commit(changes)
    assert in_store(look) == ({2: orders([*made, row])}, 1)
    await swept(store)
    assert (in_store(look), store.shelves.taken) == (({}, 0), [])


async def test_a_message_that_has_its_place_and_is_not_written_keeps_the_shelf(
    store, rows, endpoint, look
):
    made = await put(store, rows, endpoint, 2)
    place, order = store.shelves.place(1), store.next_queuing_order()
    await receive(store, made)
    await swept(store)
    assert store.shelves.taken == [place]
    changes = Changes()
    late = rows.message(store, endpoint, 2, b"late", queuing_order=order, paged=place)
    changes.enqueued.append(late)
    await store.commit(changes)
    assert await seen(store) == [order]
    assert in_store(look) == ({place: [order]}, 0)


@pytest.mark.rule("DLG-M1")
async def test_where_messages_went_by_index_nothing_is_emptied_without_a_look(
    store, rows, endpoint, look
):
    stays = await begun(store, rows)
    gone = await put(store, rows, endpoint, 2)
    kept = await put(store, rows, stays, 3)
    changes = Changes()
    changes.dequeued_of[endpoint.key] = 1000
    await store.commit(changes)
    assert in_store(look) == ({2: orders(kept)}, 0)
    await receive(store, gone)  # by a transaction that had received them before
    await receive(store, kept[:1])
    assert await seen(store) == orders(kept[1:])
    assert in_store(look)[0] == {2: orders(kept)}
    await receive(store, kept[1:])
    assert in_store(look)[0] == {2: orders(kept)}
    await swept(store)
    assert (in_store(look), store.shelves.taken) == (({}, 0), [])


@pytest.mark.rule("REL-1")
async def test_what_went_by_index_does_not_count_for_the_next_who_has_the_shelf(
    store, rows, endpoint, look
):
    gone = await put(store, rows, endpoint, 2)
    changes = Changes()
    changes.dequeued_of[endpoint.key] = 1000
    await store.commit(changes)
    await swept(store)
    await receive(store, gone[:1])  # nobody has it
    assert (store.shelves.taken, in_store(look)) == ([], ({}, 0))
    made: list[QueueRow] = []
    while not made or made[-1].paged != gone[0].paged:
        if made:
            await receive(store, made[-5:])
        made += await put(store, rows, endpoint, 5, first=10 + len(made))
    await receive(store, [*made[-5:-1], gone[1]])
    assert await seen(store) == orders(made[-1:])
    assert in_store(look)[0] == {gone[0].paged: orders(made[-5:])}


@pytest.mark.rule("REL-5")
async def test_a_shelf_with_more_than_is_noted_is_never_emptied(
    open_store, store, rows, endpoint, faults
):
    """It cannot be, as far as anybody knows; if it were, a message would be lost."""
    made = await put(store, rows, endpoint, 2)
    unknown = rows.message(store, endpoint, 9, b"nobody counted it", paged=2, queuing_order=2)
    asked = f"INSERT INTO shelf_2 VALUES ({','.join('?' * len(unknown))})"
    await store.run(lambda connection: connection.execute(asked, unknown) and None)
    waiting = asyncio.ensure_future(receive(store, made))
    await asyncio.wait([waiting])
    assert waiting.exception() is not None
    assert len(faults) == 1
    await store.abandon()
    store = await open_store(options=FIVE)
    assert sorted(await seen(store)) == sorted(orders([*made, unknown]))


@pytest.mark.rule("OBJ-35")
async def test_messages_of_a_service_that_changes_its_queue_are_found_on_the_shelves_of_the_old_one(
    store, rows, endpoint, look
):
    made = await put(store, rows, endpoint, 6)
    store.redirect({endpoint.key}, QueueKey(2))

    def move(connection):
        for table in map(table_at, SHELVES):
            connection.execute(f"UPDATE {table} SET queue_key = 2")

    await store.run(move)
    assert (await seen(store), await seen(store, 2)) == ([], orders(made))
    await receive(store, made)
    assert in_store(look) == ({}, 0)


async def test_what_comes_while_places_are_read_is_left_to_the_next_page(store, rows, endpoint):
    made = await put(store, rows, endpoint, 4)
    places = Places([Place(2, 0)], made[2].queuing_order)
    shelves: Any = SimpleNamespace(places_for=lambda _queue: places)
    none = queues.Skip(lambda _: set(), frozenset)
    messages = StoredMessages(store._reader, shelves=shelves, skip=none)

    page = await messages.page(QueueKey(1), 5, -1, 9, 99)
    assert (orders(page.rows), page.end) == (orders(made[:2]), (made[1].queuing_order, 1))
    page = await messages.page_for(endpoint.key, 9, 99, (made[1].queuing_order, 1))
    assert (page.rows, page.end) == ([], None)


def test_a_shelf_is_full_with_as_many_bytes_as_a_window_has():
    shelves = Shelves(size=100, size_bytes=1000, found=[], has_others=False, coming_order=lambda: 1)
    one = QueueKey(1)
    assert [shelves.place(one) for _ in range(3)] == [2, 2, 2]
    shelves.joined(2, 2, 999)
    assert shelves.place(one) == 2
    shelves.joined(2, 1, 1)
    assert shelves.place(one) == 3


@pytest.mark.rule("RCV-16")
def test_a_message_that_is_removed_twice_counts_once():
    shelves = Shelves(size=9, size_bytes=99, found=[], has_others=False, coming_order=lambda: 1)
    noted = Removals(most=100, shelves=shelves)
    for _ in range(2):
        shelves.place(QueueKey(1))
    shelves.joined(2, 2, 0)
    shelves.begin()
    assert noted.plan([], {2: [1]}).emptied == []
    assert noted.plan([], {2: [1]}).emptied == []
    assert noted.plan([], {2: [2]}).emptied == [(2, 2)]


def test_notes_of_a_shelf_are_told_from_those_of_others():
    assert deferred_removals._keys(NO_SHELF) == (0, (1 << 40) - 1)
    assert deferred_removals._keys(2)[0] > deferred_removals._keys(NO_SHELF)[1]
    assert deferred_removals._keys(3)[0] == deferred_removals._keys(2)[1] + 1


def test_all_places_are_everywhere():
    assert EVERYWHERE.count("SELECT") == 1 + len(SHELVES)


# Found by reading.


def coming(store, rows, endpoint, sequence, body=b"x", *, queue=1):
    changes, place = Changes(), store.shelves.place(queue)
    row = rows.message(store, endpoint, sequence, body, paged=place, queue=queue)
    changes.enqueued.append(row)
    return changes


@pytest.mark.rule("REL-26")
async def test_while_the_disk_is_full_nobody_gives_away_the_shelf_of_what_waits(
    open_store, rows, faults
):
    store = await open_store(options=StoreOptions(shelf_messages=100))
    one, other = await begun(store, rows), await begun(store, rows)
    await store.commit(coming(store, rows, one, 0))
    changes = Changes()
    changes.dequeued_of[one.key] = 1000
    await store.commit(changes)
    await fill(store)
    late = coming(store, rows, other, 0, bytes(500_000))
    waiting = asyncio.ensure_future(store.commit(late))
    await turns(3)
    assert not waiting.done()
    store.sweep()
    await turns(3)
    await fill(store, 1000)
    await waiting
    assert (faults, store.shelves.taken, await seen(store)) == ([], [2], orders(late.enqueued))


@pytest.mark.rule("REL-10")
async def test_what_has_no_shelf_is_not_passed_over_for_what_gets_one_later(
    open_store, rows, monkeypatch
):
    """All shelves are taken for the first time, and one comes back, while a page is read."""
    store = await open_store(options=StoreOptions(shelf_messages=1))
    endpoint = await begun(store, rows)
    first = [coming(store, rows, endpoint, at, queue=at + 2) for at in range(16)]
    for changes in first:
        await store.commit(changes)
    one = coming(store, rows, endpoint, 20)
    await receive(store, first[0].enqueued)
    other = coming(store, rows, endpoint, 21)
    assert (one.enqueued[0].paged, other.enqueued[0].paged) == (NO_SHELF, 2)
    really, written = store._reader.page, asyncio.Event()

    async def late(*args, **given):
        await written.wait()
        return await really(*args, **given)

    monkeypatch.setattr(store._reader, "page", late)
    reading = asyncio.ensure_future(store.messages.page(1, 5, 0, 9, 99))
    await asyncio.sleep(0)
    one.enqueued += other.enqueued
    await store.commit(one)
    written.set()
    assert orders((await reading).rows) == orders(one.enqueued)


async def test_what_other_queues_and_peers_get_fills_no_shelf(open_store, rows):
    store = await open_store(options=StoreOptions(shelf_bytes=100_000))
    endpoint = await begun(store, rows)
    for at in range(5):
        changes = coming(store, rows, endpoint, at)
        changes.outgoing.append(rows.outgoing(store, endpoint, at, bytes(100_000)))
        await store.commit(changes)
    assert store.shelves.taken == [2]


async def test_without_notes_shelves_are_given_back_too(open_store, rows, look):
    store = await open_store(options=StoreOptions(noted_removals=0))
    made = await put(store, rows, await begun(store, rows), 2)
    await receive(store, made)
    await swept(store)
    assert (store.shelves.taken, in_store(look)) == ([], ({}, 0))


def test_where_no_shelf_is_to_be_used_those_found_at_a_start_are_not_used_again():
    found = [Shelf(2, QueueKey(1), 5, 1)]
    shelves = Shelves(size=0, size_bytes=0, found=found, has_others=False, coming_order=lambda: 9)
    assert shelves.removed(2, 1)
    shelves.give_back(2)
    assert shelves.place(QueueKey(1)) == NO_SHELF


async def test_what_a_flush_writes_and_removes_is_gone_though_it_begins_a_sweep(
    open_store, rows, faults, path
):
    store = await open_store(options=StoreOptions(noted_removals=1))
    endpoint, changes = await begun(store, rows), Changes()
    for at in range(9):
        changes.enqueued += coming(store, rows, endpoint, at).enqueued
    await receive(store, (await put(store, rows, endpoint, 9, first=20))[:8])
    changes.dequeue(2, orders(changes.enqueued[:8]))
    await store.commit(changes)
    await store.commit(Changes())
    left = [order for order in await seen(store) if order in orders(changes.enqueued)]
    assert left == orders(changes.enqueued[8:])
    assert faults == []


@pytest.mark.rule("OBJ-47")
async def test_who_browses_sees_what_comes_meanwhile_now_or_with_the_next_page(
    open_store, rows, monkeypatch
):
    store = await open_store()
    endpoint = await begun(store, rows)
    really, go, asked = store._reader.rows, asyncio.Event(), asyncio.Event()

    async def late(*args, **given):
        asked.set()
        await go.wait()
        return await really(*args, **given)

    monkeypatch.setattr(store._reader, "rows", late)
    reading = asyncio.ensure_future(store.messages.browse(1, 10, 10_000))
    await asked.wait()
    both = coming(store, rows, endpoint, 1)
    both.enqueued.append(rows.message(store, endpoint, -1, b"y", paged=0))
    await store.commit(both)
    go.set()
    first = await reading
    second = await store.messages.browse(1, 10, 10_000, first.end[0] if first.end else 0)
    assert orders([*first.rows, *second.rows]) == orders(both.enqueued)


@pytest.mark.of_files("it damages an index of the file")
@pytest.mark.rule("REL-6")
async def test_a_message_that_an_index_lacks_is_not_deleted_with_its_shelf(
    open_store, rows, path, faults
):
    store = await open_store()
    endpoint = await begun(store, rows)
    made = await put(store, rows, endpoint, 2)
    await store.close()

    def do(statement, *values):
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA writable_schema = ON")
            return connection.execute(statement, values).fetchone()

    index = do("SELECT * FROM sqlite_schema WHERE name = 'shelf_2_paged'")
    row = do("SELECT * FROM shelf_2 WHERE queuing_order = ?", made[1].queuing_order)
    do("DELETE FROM shelf_2 WHERE queuing_order = ?", made[1].queuing_order)
    do("DELETE FROM sqlite_schema WHERE name = 'shelf_2_paged'")
    do(f"INSERT INTO shelf_2 VALUES ({', '.join('?' * len(row))})", *row)
    do("INSERT INTO sqlite_schema VALUES (?, ?, ?, ?, ?)", *index)
    store = await open_store()
    assert [one[:3] for one in store.recovered.waiting] == [(1, 5, 1)]
    with pytest.raises(StoreFault, match="CHECK"):
        await receive(store, made[:1])
    await store.abandon()
    store = await open_store()
    page = await store.messages.page_for(endpoint.key, 9, 1000)
    assert orders(page.rows) == orders(made)
    assert len(faults) == 1
