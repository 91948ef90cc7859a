"""Very many unread messages of a dialog that ends: gone at once for everybody, from the file some
at a time, whatever comes between (REL-35)."""

import asyncio
import sqlite3

import pytest
from msgspec.structs import replace

from brokerd.clock import Instant
from brokerd.storage.changes import BodyRow, Changes, Owner
from brokerd.storage.rows.deferred_drops import DropSweep
from brokerd.storage.rows.message_counts import Tally
from brokerd.storage.rows.sweeps import Sweeper
from brokerd.storage.store import StoreOptions
from brokerd.storage.stretches import EVERYWHERE
from tests.contract.test_full import begun, turns
from tests.contract.test_verifying import a_queue

FOUR = StoreOptions(shelf_messages=6, unread_at_once=4)


class Steps:
    """The steps of the sweep: as many as are let through, and what each has deleted."""

    def __init__(self, monkeypatch):
        self.left = 0
        self.deleted: list[int] = []
        resume, step = Sweeper.resume, DropSweep.step

        def counted_step(sweep, connection, **given):
            every = f"SELECT count(*) FROM ({EVERYWHERE}) AS every_"
            before = connection.execute(every).fetchone()[0]
            done = step(sweep, connection, **given)
            after = connection.execute(every).fetchone()[0]
            self.deleted.append(before - after)
            assert done.messages == before - after
            return done

        def resume_if_let(sweep):
            if self.left > 0 and sweep._due and not sweep._is_sweeping:
                self.left -= 1
                resume(sweep)

        monkeypatch.setattr(DropSweep, "step", counted_step)
        monkeypatch.setattr(Sweeper, "resume", resume_if_let)

    async def let(self, store, count):
        """So many steps; then all is quiet."""
        self.left = count
        sweep = store._pipeline.deletions._sweeper
        for _ in range(count + 3):
            sweep.resume()
            await store.run(lambda _: None)
        self.left = 0


@pytest.fixture(autouse=True)
def steps(monkeypatch):
    return Steps(monkeypatch)


@pytest.fixture
async def store(open_store, heard):
    store = await open_store(options=FOUR, on_full=lambda: bool(heard.append("full")))
    await a_queue(store)
    return store


@pytest.fixture
def heard():
    return []


def queue_of(store):
    return store.catalog.queues["inbox"].key


@pytest.fixture(params=["on shelves", "on no shelf"])
def on_shelves(request):
    return request.param == "on shelves"


def put(store, rows, endpoint, count, *, on_shelves=True, first=0):
    """A changeset with messages beyond the window of their queue."""
    changes = Changes()
    for number in range(first, first + count):
        order = store.next_queuing_order()
        place = store.shelves.place(queue_of(store)) if on_shelves else 1
        row = rows.message(store, endpoint, number, b"%d" % number, queue=queue_of(store))
        at = Instant(order)  # so that a test sees which message a time is of
        row = row._replace(queuing_order=order, paged=place, enqueued_at=at)
        changes.enqueued.append(row)
    return changes


async def mixed(store, rows, *, on_shelves):
    """Two dialogs with twenty and with ten messages, in turn; the orders of the second."""
    ending, other = await begun(store, rows), await begun(store, rows)
    left = []
    for at in range(10):
        await store.commit(put(store, rows, ending, 2, on_shelves=on_shelves, first=2 * at))
        more = put(store, rows, other, 1, on_shelves=on_shelves, first=at)
        left += [row.queuing_order for row in more.enqueued]
        await store.commit(more)
    for one, count in ((ending, 20), (other, 10)):
        changes = Changes()
        changes.move(replace(one, receive_sequence=count))
        await store.commit(changes)
    return ending, other, left


async def end(store, *endpoints, count=20):
    changes = Changes()
    for one in endpoints:
        changes.dequeued_of[one.key] = count
        changes.remove(one.key)
    await store.commit(changes)


def in_store(look):
    """Queuing orders of all messages, and how many notes."""
    orders = look.rows(f"SELECT queuing_order FROM ({EVERYWHERE}) AS every_ ORDER BY 1")
    return [row[0] for row in orders], *look.counts("queue_drops")


async def read(store, ending, other):
    """What everybody sees, in every way there is: the orders of all messages that wait."""
    found, after = [], -1
    while (page := await store.messages.page(queue_of(store), 5, after, 3, 10_000)).end is not None:
        found += [row.queuing_order for row in (*page.rows, *page.damaged)]
        after, _ = page.end
    browsed, after = [], -1
    while (page := await store.messages.browse(queue_of(store), 3, 10_000, after)).end is not None:
        browsed += [row.queuing_order for row in (*page.rows, *page.damaged)]
        after, _ = page.end
    assert browsed == found
    assert (await store.messages.page_for(ending.key, 99, 10_000)).rows == []
    assert await store.message_counts.tally(ending.key, -1, 1 << 60, set()) == Tally(0, 0)
    own = (await store.messages.page_for(other.key, 99, 10_000)).rows
    assert [row.queuing_order for row in own] == found
    unread = await store.listings.unread([ending.key, other.key])
    assert {key: count for key, (count, _) in unread.items()} == {other.key: len(found)}
    return found


@pytest.mark.rule("REL-35")
async def test_the_end_deletes_none_of_many_and_each_step_a_few(
    store, rows, look, steps, on_shelves
):
    ending, other, left = await mixed(store, rows, on_shelves=on_shelves)
    before = in_store(look)
    await end(store, ending)
    assert in_store(look) == (before[0], 1)
    assert await read(store, ending, other) == left
    assert look.findings() == []
    for most in (8, 20):
        await steps.let(store, most)
        assert await read(store, ending, other) == left
        assert look.findings() == []
    assert (in_store(look), sum(steps.deleted)) == ((left, 0), 20)
    assert max(steps.deleted) == 4
    await steps.let(store, 9)
    assert sum(steps.deleted) == 20
    assert store.metrics.dropped == 20
    assert store._pipeline.deletions.skip.ended() == set(), "what is gone is not known for ever"


@pytest.mark.rule("REL-35")
async def test_few_go_with_the_end_itself_and_all_of_one_flush_count(store, rows, look, steps):
    three = [await begun(store, rows) for _ in range(3)]
    made = [put(store, rows, one, 2) for one in three]
    for changes in made:
        await store.commit(changes)
    await end(store, *three, count=2)
    orders = [row.queuing_order for row in made[2].enqueued]
    assert in_store(look) == (orders, 1)
    await steps.let(store, 9)
    assert in_store(look) == ([], 0)


@pytest.mark.rule("REL-35")
async def test_what_nobody_has_counted_may_be_many(store, rows, look, steps):
    ending = await begun(store, rows)
    await store.commit(put(store, rows, ending, 2))
    await end(store, ending, count=None)
    assert in_store(look)[1] == 1
    await steps.let(store, 9)
    assert in_store(look) == ([], 0)


@pytest.mark.rule("REL-35")
async def test_what_joined_before_the_end_is_written_no_more(store, rows, look, steps):
    ending = await begun(store, rows)
    first = put(store, rows, ending, 1)
    await asyncio.gather(
        store.commit(first), store.commit(put(store, rows, ending, 9, first=1)), end(store, ending)
    )
    assert in_store(look) == ([], 1)
    await steps.let(store, 9)
    assert in_store(look) == ([], 0)


@pytest.mark.rule("REL-35", "REL-1", "MON-78")
@pytest.mark.parametrize("taken", [0, 1, 3, 8])
@pytest.mark.parametrize("how", ["crash", "stop"])
async def test_a_start_goes_on_with_what_is_left(
    open_store, store, rows, look, *, steps, on_shelves, how, taken, faults
):
    ending, other, left = await mixed(store, rows, on_shelves=on_shelves)
    await end(store, ending)
    await steps.let(store, taken)
    steps.left = 9 - taken
    store.sweep()  # a step is under way
    await (store.abandon() if how == "crash" else store.close())
    steps.left = 0
    is_over = in_store(look)[1] == 0
    assert is_over is (taken == 8)
    assert (in_store(look)[0] == left) is is_over
    assert look.findings() == []
    store = await open_store(options=FOUR)
    assert store.recovered.waiting == [(queue_of(store), 5, 10, left[0])]
    assert store.recovered.dropped == ([] if is_over else [ending.key])
    assert await read(store, ending, other) == left
    assert look.findings() == []
    steps.deleted.clear()
    await steps.let(store, 20)
    assert (in_store(look), faults) == ((left, 0), [])
    assert max(steps.deleted, default=0) <= 4
    assert await read(store, ending, other) == left


@pytest.mark.rule("REL-35")
async def test_a_start_goes_on_by_itself(open_store, store, rows, look, steps):
    ending, _, left = await mixed(store, rows, on_shelves=True)
    await end(store, ending)
    await store.abandon()
    steps.left = 99
    store = await open_store(options=FOUR)
    await turns(10)
    assert in_store(look) == (left, 0)


@pytest.mark.rule("REL-35")
async def test_a_queue_with_nothing_else_counts_none_after_a_start(open_store, store, rows):
    ending = await begun(store, rows)
    changes = put(store, rows, ending, 9)
    timer = rows.message(store, ending, -2, b"", queue=queue_of(store))
    changes.enqueued.append(timer)
    await store.commit(changes)
    await end(store, ending)
    await store.abandon()
    store = await open_store(options=FOUR)
    assert store.recovered.waiting == []
    assert store.recovered.timers_fired == []


@pytest.mark.rule("REL-35", "PBT-3")
async def test_a_held_group_counts_none_of_them_after_a_start(open_store, store, rows):
    ending = await begun(store, rows)
    await store.commit(put(store, rows, ending, 9))
    changes = Changes()
    changes.dequeued_of[ending.key] = 9  # and its endpoint stays, to recognise repeats
    await store.commit(changes)
    values = (ending.group_id, 1, 0, 0, None, None, "r", "e", b"c", b"m")
    hold = f"INSERT INTO held_groups VALUES ({','.join('?' * 10)})"
    await store.run(lambda connection: connection.execute(hold, values) and None)
    await store.abandon()
    store = await open_store(options=FOUR)
    assert [one.messages for one in store.recovered.held] == [0]


@pytest.mark.rule("REL-35", "DLG-M1")
@pytest.mark.parametrize("restarted", [False, True])
async def test_shelves_are_given_back_when_the_last_of_them_is_gone(
    open_store, store, rows, look, steps, *, restarted
):
    ending, other, _ = await mixed(store, rows, on_shelves=True)
    await end(store, ending)
    if restarted:
        await store.abandon()
        store = await open_store(options=FOUR)
    assert len(store.shelves.taken) == 5
    received = Changes()
    for row in (await store.messages.page_for(other.key, 99, 10_000)).rows:
        received.dequeue(row.paged, [row.queuing_order])
    await store.commit(received)
    assert len(in_store(look)[0]) == 30, "a shelf is not emptied by a count that is not right"
    for _ in range(4):
        await steps.let(store, 9)
        store.sweep()
        await turns(1)
    assert (in_store(look), store.shelves.taken) == (([], 0), [])
    await store.commit(put(store, rows, other, 3, first=10))
    assert len(store.shelves.taken) == 1


@pytest.mark.rule("REL-35", "REL-33")
async def test_bodies_in_pieces_go_with_their_messages(store, rows, look, steps):
    ending = await begun(store, rows)
    for number in range(9):
        changes = put(store, rows, ending, 1, first=number)
        (row,) = changes.enqueued
        key = await store.keep(b"large" * 10, 8)
        changes.bodies[key] = BodyRow(key, Owner.WAITING, row.queuing_order, 50)
        await store.commit(changes)

    def pieces():
        return look.counts("bodies WHERE owner = 2", "body_pieces")

    await end(store, ending)
    assert pieces() == [9, 63]
    await steps.let(store, 1)
    assert pieces()[0] == 5
    assert len(in_store(look)[0]) == 5
    await steps.let(store, 9)
    await turns(5)
    assert pieces() == [0, 0]
    assert in_store(look) == ([], 0)


@pytest.mark.rule("REL-35", "REL-26")
async def test_a_step_that_finds_no_room_is_taken_again(
    store, rows, look, steps, *, heard, faults, monkeypatch
):
    ending, other, left = await mixed(store, rows, on_shelves=True)
    await end(store, ending)
    await steps.let(store, 1)
    delete = DropSweep._delete

    def full(connection, place, orders, **given):
        delete(connection, place, orders, **given)
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_FULL, "SQLITE_FULL"
        raise error

    there = in_store(look)
    with monkeypatch.context() as patched:
        patched.setattr(DropSweep, "_delete", staticmethod(full))
        patched.setattr(DropSweep, "step", DropSweep.step)
        await steps.let(store, 2)
    assert heard
    assert in_store(look) == there
    assert await read(store, ending, other) == left
    steps.left = 1
    store.sweep()  # as each tick does
    await store.run(lambda _: None)  # behind the step
    assert len(in_store(look)[0]) == len(there[0]) - 4
    await steps.let(store, 20)
    assert (in_store(look), faults) == ((left, 0), [])


@pytest.mark.rule("REL-35")
@pytest.mark.parametrize("ends_meanwhile", [False, True])
async def test_a_page_that_is_under_way_meanwhile_has_none_of_them(
    store, rows, steps, monkeypatch, ends_meanwhile
):
    ending, _, left = await mixed(store, rows, on_shelves=False)
    page = store._reader.page
    if not ends_meanwhile:
        await end(store, ending)

    async def slowly(statement, values, **given):
        found = await page(statement, values, **given)
        await (end(store, ending) if ends_meanwhile else steps.let(store, 20))
        return found

    monkeypatch.setattr(store._reader, "page", slowly)
    found = await store.messages.page(queue_of(store), 5, -1, 99, 10_000)
    assert [row.queuing_order for row in found.rows] == left
    assert found.damaged == []


@pytest.mark.rule("REL-35", "HK-10")
async def test_a_note_for_a_dialog_that_goes_on_is_a_finding(store, rows, look):
    ending = await begun(store, rows)
    await end(store, ending, count=None)
    assert look.findings() == []
    going = await begun(store, rows)
    wrong = Changes()
    wrong.dequeued_of[going.key] = None
    await store.commit(wrong)
    assert [(one.table, one.where) for one in look.findings()] == [
        ("queue_drops", f"endpoint_key {going.key}, state CO")
    ]
