"""Reads: by index, bounded, and never a damaged body."""

import asyncio
import sqlite3
import threading

import pytest
from sqlalchemy import create_engine

from brokerd.clock import Instant, SystemClock
from brokerd.errors import StoreDamaged
from brokerd.model import END_DIALOG, ERROR
from brokerd.protocol.transitions import State
from brokerd.storage.changes import BodyRow, Changes, Owner, PieceRow
from brokerd.storage.readers import AsyncReader
from brokerd.storage.rows import dialogs, message_counts, stored_messages, transmission
from brokerd.storage.shelves import NO_SHELF
from brokerd.storage.tables import metadata
from brokerd.testing.left import run_now
from tests.contract.look import spoil


async def stored(store, rows, count=5, **given):
    endpoint = rows.endpoint(store)
    changes = Changes()
    changes.create(endpoint)
    changes.enqueued += [
        rows.message(store, endpoint, n, b"body %d" % n, **given) for n in range(count)
    ]
    changes.outgoing += [rows.outgoing(store, endpoint, n, b"body %d" % n) for n in range(count)]
    await store.commit(changes)
    return endpoint, changes


@pytest.mark.rule("REL-23")
@pytest.mark.parametrize("executor", ["threaded"], indirect=True)  # the other has no connections
async def test_reads_beyond_the_connections_wait_their_turn(store, rows):
    endpoint, _ = await stored(store, rows)
    pool = store._reader._engine.pool
    before = {thread.name for thread in threading.enumerate()}
    found = await asyncio.gather(
        *(store.endpoints.by_handle(endpoint.handle) for _ in range(300)),
    )
    assert all(one is not None for one in found)
    assert len({thread.name for thread in threading.enumerate()} - before) <= 4
    if hasattr(pool, "_max_overflow"):
        assert (pool._max_overflow, pool._timeout) == (0, None)


async def test_page_goes_by_queue_priority_and_order(store, rows):
    _, changes = await stored(store, rows)
    other = Changes()
    endpoint = rows.endpoint(store)
    other.create(endpoint)
    other.enqueued += [
        rows.message(store, endpoint, 0, b"x", priority=6),
        rows.message(store, endpoint, 1, b"x", queue=2),
        rows.message(store, endpoint, 2, b"x", paged=0),
    ]
    await store.commit(other)
    page = await store.messages.page(1, 5, changes.enqueued[1].queuing_order, 2, 1000)
    assert page.rows == changes.enqueued[2:4]
    assert page.damaged == []
    browsed = await store.messages.browse(1, 100, 10_000)
    assert len(browsed.rows) == 7
    listed = await store.outgoing.listed(2, 1000, changes.outgoing[0].transmission_order)
    assert listed.rows == changes.outgoing[1:3]


async def test_page_ends_once_bodies_reach_the_limit_but_has_one_row_at_least(store, rows):
    endpoint, changes = await stored(store, rows)
    assert (await store.messages.page(1, 5, -1, 9, 12)).rows == changes.enqueued[:2]
    assert (await store.messages.page(1, 5, -1, 9, 13)).rows == changes.enqueued[:3]
    assert (await store.outgoing.page(endpoint.key, 2, 9, 1)).rows == changes.outgoing[2:3]


async def test_messages_of_an_endpoint_come_by_sequence(store, rows):
    first, first_changes = await stored(store, rows, 3)
    await stored(store, rows, 2)
    error = Changes()
    error.enqueued.append(rows.message(store, first, -1, b"error"))
    await store.commit(error)
    wanted = [*error.enqueued, *first_changes.enqueued]
    page = await store.messages.page_for(first.key, 9, 1000)
    assert page.rows == wanted
    rest = await store.messages.page_for(first.key, 9, 1000, (wanted[1].queuing_order, 0))
    assert rest.rows == wanted[2:]


@pytest.mark.rule("BI-R4")
async def test_a_message_type_with_a_nul_or_a_line_end_comes_back_whole(store, rows):
    endpoint = rows.endpoint(store, far_service="far\x00away\n")
    changes, names = Changes(), ["a\x00b", "\x00", "a\r\n\x1bb", "\u202e"]
    changes.create(endpoint)
    for sequence, name in enumerate(names):
        changes.enqueued.append(rows.message(store, endpoint, sequence, b"x", message_type=name))
        changes.outgoing.append(rows.outgoing(store, endpoint, sequence, b"x", message_type=name))
    await store.commit(changes)
    assert (await store.messages.page(1, 5, -1, 9, 1000)).rows == changes.enqueued
    assert (await store.outgoing.page(endpoint.key, 0, 9, 1000)).rows == changes.outgoing
    assert await store.endpoints.by_handle(endpoint.handle) == endpoint


@pytest.mark.rule("DLP-10")
async def test_outgoing_message_keeps_its_cut(store, rows):
    endpoint = rows.endpoint(store)
    changes = Changes()
    changes.create(endpoint)
    changes.outgoing.append(rows.outgoing(store, endpoint, 0, b"x", fragment_size=17))
    await store.commit(changes)
    (row,) = (await store.outgoing.page(endpoint.key, 0, 1, 1)).rows
    assert row.fragment_size == 17


@pytest.mark.rule("REL-33", "REL-18")
@pytest.mark.parametrize("executor", ["threaded"], indirect=True)
@pytest.mark.parametrize("then", ["read", "close"])
async def test_a_long_read_that_nobody_waits_for_keeps_its_connection(path, store, then):
    """Another read would begin in the middle of it, or the connection close under it."""
    reader = AsyncReader(path, SystemClock(), compiled=False)
    begun, go_on = threading.Event(), threading.Event()

    def long(connection):
        connection.execute("BEGIN")
        begun.set()
        go_on.wait(10)
        connection.execute("SELECT count(*) FROM bodies").fetchone()
        connection.execute("ROLLBACK")

    reading = asyncio.ensure_future(reader.job(long))
    await asyncio.to_thread(begun.wait, 10)
    reading.cancel()
    await asyncio.wait([reading])
    following = asyncio.ensure_future(reader.job(in_one_read) if then == "read" else reader.close())
    for _ in range(20):
        await asyncio.to_thread(int)  # what was handed to a thread before has begun by then
    assert not following.done()
    go_on.set()
    assert await following == (1 if then == "read" else None)
    await reader.close()


def in_one_read(connection):
    connection.execute("BEGIN")
    (found,) = connection.execute("SELECT 1").fetchone()
    connection.execute("ROLLBACK")
    return found


async def test_fragments_come_in_order(store, rows):
    endpoint = rows.endpoint(store)
    changes = Changes()
    key = store.next_body_key()
    changes.bodies[key] = BodyRow(key, Owner.ARRIVING, endpoint.key, 0)
    changes.pieces += [PieceRow(key, n, b"%d" % n) for n in (2, 0, 1)]
    await store.commit(changes)
    assert await store.incomplete.parts(endpoint.key) == (key, [b"0", b"1", b"2"])
    assert await store.incomplete.parts(endpoint.key + 1) == (None, [])


@pytest.mark.rule("REL-6", "REL-33")
@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE body_pieces SET data = x'00' WHERE piece = 1",
        "UPDATE body_pieces SET hash = x'00' WHERE piece = 0",
        "UPDATE body_pieces SET piece = 7 WHERE piece = 2",
        "DELETE FROM body_pieces WHERE piece = 1",
    ],
)
async def test_fragments_that_are_damaged_are_not_given_out(store, rows, damage):
    endpoint = rows.endpoint(store)
    changes = Changes()
    key = store.next_body_key()
    changes.bodies[key] = BodyRow(key, Owner.ARRIVING, endpoint.key, 0)
    changes.pieces += [PieceRow(key, n, b"%d" % n) for n in (0, 1, 2)]
    await store.commit(changes)
    await spoil(store, damage)
    assert await store.incomplete.parts(endpoint.key) == (key, None)


@pytest.mark.rule("REL-6")
@pytest.mark.parametrize(
    "damage",
    [
        "body = x'00'",
        "body = NULL",
        "body_hash = NULL",
        "sequence = 99",
        "endpoint_key = 12345",
    ],
)
async def test_damaged_body_is_set_apart_and_hides_no_other(store, rows, damage):
    _, changes = await stored(store, rows)
    bad = changes.enqueued[2].queuing_order

    for table, key in (
        ("queue_messages", "queuing_order"),
        ("transmission_queue", "transmission_order"),
    ):
        await spoil(store, f"UPDATE {table} SET {damage} WHERE {key} = ?", bad)
    page = await store.messages.page(1, 5, -1, 9, 1000)
    assert [row.queuing_order for row in page.damaged] == [bad]
    assert page.rows == [*changes.enqueued[:2], *changes.enqueued[3:]]
    listed = await store.outgoing.listed(9, 1000)
    assert len(listed.damaged) == 1


@pytest.mark.rule("REL-6")
async def test_page_of_nothing_but_damage_says_where_it_ended(store, rows):
    _, changes = await stored(store, rows)
    bad = [row.queuing_order for row in changes.enqueued[:2]]
    await spoil(store, "UPDATE queue_messages SET body = x'00' WHERE queuing_order <= ?", bad[-1])
    page = await store.messages.page(1, 5, -1, 2, 1000)
    assert (page.rows, page.end) == ([], (bad[-1], 1))
    rest = await store.messages.page(1, 5, bad[-1], 9, 1000)
    assert rest.rows == changes.enqueued[2:]
    assert (await store.messages.page(1, 5, rest.end[0], 9, 1000)).end is None


async def test_bodies_of_any_bytes_come_back_as_they_were(store, rows):
    endpoint = rows.endpoint(store)
    changes = Changes()
    changes.create(endpoint)
    bodies = [b"\x00", b"\xff\xfe\x00", bytes(range(256)) * 5, b'"[1]', "ü€".encode("utf-16")]
    changes.enqueued += [rows.message(store, endpoint, n, body) for n, body in enumerate(bodies)]
    changes.outgoing += [rows.outgoing(store, endpoint, n, body) for n, body in enumerate(bodies)]
    await store.commit(changes)
    assert (await store.messages.page(1, 5, -1, 9, 1 << 20)).rows == changes.enqueued
    assert (await store.outgoing.page(endpoint.key, 0, 9, 1 << 20)).rows == changes.outgoing


@pytest.mark.rule("REL-6")
async def test_message_without_a_body_is_sound(store, rows):
    endpoint = rows.endpoint(store)
    changes = Changes()
    changes.create(endpoint)
    changes.enqueued.append(
        rows.message(store, endpoint, 0, b"")._replace(body=None, body_hash=None)
    )
    changes.enqueued.append(rows.message(store, endpoint, 1, b""))
    await store.commit(changes)
    assert (await store.messages.page(1, 5, -1, 9, 1)).rows == changes.enqueued


async def test_endpoints_past_their_lifetime_and_guard_time(store, rows):
    changes = Changes()
    made = {}
    for n, state in enumerate(State):
        if state is not State.NONE:
            purge_at = Instant(50) if state is State.CLOSED else None
            expires_at = Instant(100 - n)
            made[state] = rows.endpoint(
                store, state=state, expires_at=expires_at, purge_at=purge_at
            )
            changes.create(made[state])
    await store.commit(changes)
    due = await store.endpoints.expired(Instant(100), 100)
    assert {it.state for it in due} == set(made) - {State.CLOSED, State.ERROR}
    assert [it.expires_at for it in due] == sorted(it.expires_at for it in due)
    assert len(await store.endpoints.expired(Instant(100), 2)) == 2
    assert await store.endpoints.purgeable(Instant(49), 9) == []
    assert await store.endpoints.purgeable(Instant(50), 9) == [made[State.CLOSED].key]
    counts = {state.value: 1 for state in made}
    assert await store.endpoints.count_by_state() == counts


@pytest.mark.rule("MON-117")
async def test_endpoints_of_each_state_are_counted_again_only_after_a_write(store, rows):
    async def begin(state: State) -> None:
        changes = Changes()
        changes.create(rows.endpoint(store, state=state))
        await store.commit(changes)

    await begin(State.CONVERSING)
    first = await store.endpoints.count_by_state()
    assert first == {"CO": 1}
    first.clear()  # the caller's copy
    assert run_now(store.endpoints.count_by_state()) == {"CO": 1}  # a read would wait for a thread
    await begin(State.ERROR)
    assert await store.endpoints.count_by_state() == {"CO": 1, "ER": 1}


class HeldClock(SystemClock):
    """A clock that moves only as the test says."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.rule("MON-117")
async def test_a_count_of_many_endpoints_lasts_longer_the_more_there_are(open_store, rows):
    clock = HeldClock()
    store = await open_store(clock=clock)

    async def begin(count: int) -> None:
        changes = Changes()
        for _ in range(count):
            changes.create(rows.endpoint(store))
        await store.commit(changes)

    await begin(10_000)
    assert await store.endpoints.count_by_state() == {"CO": 10_000}
    await begin(1)
    assert await store.endpoints.count_by_state() == {"CO": 10_001}, "few are counted every time"
    await begin(1)
    clock.now += 0.2
    assert await store.endpoints.count_by_state() == {"CO": 10_001}
    clock.now += 0.001
    assert await store.endpoints.count_by_state() == {"CO": 10_002}


@pytest.mark.rule("BI-D3")
async def test_endpoint_that_lost_its_progress_is_damage_not_absence(store, rows):
    endpoint, _ = await stored(store, rows, 1)
    await spoil(store, "DELETE FROM endpoint_progress")
    with pytest.raises(StoreDamaged, match="endpoint_progress"):
        await store.endpoints.by_handle(endpoint.handle)


@pytest.mark.rule("REL-4")
async def test_read_does_not_see_what_is_not_committed_nor_wait_for_it(store, rows):
    endpoint, _ = await stored(store, rows, 1)

    def leave_open(connection):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("DELETE FROM conversation_endpoints")

    await store.run(leave_open)
    assert await store.endpoints.by_handle(endpoint.handle) == endpoint
    await spoil(store, "ROLLBACK")


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        (stored_messages.statements(NO_SHELF).page.rows, "queue_messages_paged"),
        (stored_messages.statements(NO_SHELF).page.packed, "queue_messages_paged"),
        (stored_messages.statements(NO_SHELF).page_of.rows, "queue_messages_of"),
        (stored_messages.statements(NO_SHELF).page_of.packed, "queue_messages_of"),
        (stored_messages.statements(5).page.rows, "shelf_5_paged"),
        (stored_messages.statements(5).page.packed, "shelf_5_paged"),
        (stored_messages.statements(5).page_of.rows, "shelf_5_of"),
        (stored_messages.statements(5).page_of.packed, "shelf_5_of"),
        (transmission.PAGE.rows, "transmission_of"),
        (transmission.PAGE.packed, "transmission_of"),
        (dialogs.EXPIRED, "endpoints_expiry"),
        (dialogs.PURGEABLE, "endpoints_purge"),
        (dialogs.BY_HANDLE, "endpoints_handle"),
        (dialogs.BY_CONVERSATION, "endpoints_conversation"),
    ],
)
def test_reads_find_their_rows_by_index(statement, index):
    engine = create_engine("sqlite://")
    metadata.create_all(engine)
    with engine.connect() as connection:
        compiled = statement.compile(engine, compile_kwargs={"render_postcompile": True})
        values = [1] * len(compiled.positiontup or ())
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled}", tuple(values))
        steps = [row[3] for row in plan]
    engine.dispose()
    assert any(index in step for step in steps), steps
    scans = [step for step in steps if step.startswith("SCAN ")]
    assert not any(table in step for step in scans for table in metadata.tables), steps


@pytest.mark.of_files("it reads a plan of SQLite")
@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM transmission_queue WHERE endpoint_key IN (?) AND paged = 1",
        "DELETE FROM transmission_queue WHERE endpoint_key IN (?, ?) AND paged = 1",
    ],
)
async def test_removal_by_endpoint_finds_its_rows_by_index(store, statement):
    values = [1] * statement.count("?")
    plan = await store.run(
        lambda connection: connection.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
    )
    assert "transmission_of" in plan[0][3]


def test_sqlite_here_is_the_one_the_statements_need():
    assert sqlite3.sqlite_version_info >= (3, 37)


@pytest.mark.rule("REL-25", "DLG-T10")
@pytest.mark.parametrize("few", [3, 100])
async def test_messages_of_an_endpoint_are_counted_without_reading_them(
    store, rows, few, monkeypatch
):
    """Those between two orders, without those that others count."""
    monkeypatch.setattr(message_counts, "FEW", few)
    endpoint, changes = rows.endpoint(store), Changes()
    changes.create(endpoint)
    changes.enqueued += [rows.message(store, endpoint, n, b"x") for n in range(10)]
    changes.enqueued += [
        rows.message(store, endpoint, 10, b"", message_type=END_DIALOG),
        rows.message(store, endpoint, -1, b"", message_type=ERROR),
        rows.message(store, endpoint, 11, b"x", paged=0),
    ]
    await store.commit(changes)
    orders = [row.queuing_order for row in changes.enqueued]

    async def counted(after=-1, but=()):
        return tuple(
            await store.message_counts.tally(
                endpoint.key, after, store.coming_order, frozenset(but)
            )
        )

    assert await counted() == (12, 10)
    assert await counted(after=orders[3]) == (8, 6)
    assert await counted(but=[orders[2], orders[11]]) == (10, 9)
    assert await counted(but=[orders[10]]) == (11, 10)
    gone = Changes()
    gone.dequeued += [orders[0], orders[10]]
    await store.commit(gone)
    assert await counted() == (10, 9)
    assert tuple(await store.message_counts.tally(endpoint.key, -1, orders[5], frozenset())) == (
        4,
        4,
    )
