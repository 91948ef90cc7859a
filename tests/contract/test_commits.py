"""What a commit promises, on every executor."""

import asyncio
import sqlite3

import pytest
from msgspec.structs import replace

from brokerd.errors import IO_FAULT, StoreFault
from brokerd.ids import EndpointKey
from brokerd.protocol.transitions import State
from brokerd.storage.changes import (
    HIGHEST_SEQUENCE,
    BodyRow,
    Changes,
    DialogLogRow,
    OutgoingRemoval,
    Owner,
    PieceRow,
)
from brokerd.storage.store import StoreOptions


@pytest.mark.rule("REL-1", "REL-4")
async def test_done_is_called_only_after_the_commit_in_the_order_of_joining(store, rows, look):
    seen = []
    finished = asyncio.Event()
    endpoint = rows.endpoint(store)
    for sequence in range(20):
        changes = Changes()
        if sequence == 0:
            changes.create(endpoint)
        changes.enqueued.append(rows.message(store, endpoint, sequence, b"x"))

        def done(sequence=sequence):
            seen.append((sequence, *look.counts("queue_messages")))
            if sequence == 19:
                finished.set()

        store.join(changes, done)
        assert seen == []
    await finished.wait()
    assert [sequence for sequence, _ in seen] == list(range(20))
    assert all(stored > sequence for sequence, stored in seen)


@pytest.mark.of_files("these are settings of SQLite")
@pytest.mark.rule("REL-1")
async def test_writing_connection_syncs_fully(store):
    def pragmas(connection):
        names = ("synchronous", "journal_mode", "foreign_keys", "trusted_schema", "cell_size_check")
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    assert await store.run(pragmas) == [2, "wal", 1, 0, 1]


async def test_changesets_that_join_together_share_a_flush(store, rows):
    changesets = []
    for _ in range(50):
        changes = Changes()
        changes.create(rows.endpoint(store))
        changesets.append(changes)
    await asyncio.gather(*(store.commit(changes) for changes in changesets))
    assert store.metrics.changesets == 50
    assert store.metrics.flushes <= 2


async def test_flush_has_a_limit_and_the_rest_follows(open_store, rows):
    store = await open_store(options=StoreOptions(flush_transactions=3))
    changesets = []
    for _ in range(10):
        changes = Changes()
        changes.create(rows.endpoint(store))
        changesets.append(changes)
    await asyncio.gather(*(store.commit(changes) for changes in changesets))
    assert store.metrics.flushes == 4
    assert sum((await store.endpoints.count_by_state()).values()) == 10


async def test_lazy_changeset_waits_for_an_urgent_one_or_its_time(open_store, rows):
    store = await open_store()
    order = []
    timed_out = asyncio.Event()
    lazy, urgent, late = Changes(), Changes(), Changes()
    lazy.create(rows.endpoint(store))
    urgent.create(rows.endpoint(store))
    late.create(rows.endpoint(store))
    store.join(lazy, lambda: order.append("lazy"), urgent=False)
    assert store.oldest_unflushed_age >= 0
    await store.commit(urgent)
    assert order == ["lazy"]
    assert store.metrics.flushes == 1
    store.join(late, timed_out.set, urgent=False)
    await timed_out.wait()
    assert store.metrics.flushes == 2


@pytest.mark.rule("REL-3")
@pytest.mark.parametrize("point", ["store.begin", "store.before_commit"])
async def test_fault_before_commit_leaves_nothing_and_confirms_nobody(
    open_store, rows, faults, look, point
):
    armed: list[bool] = []

    def fault(name):
        if armed and name == point:
            raise OSError("planted")

    store = await open_store(fault=fault)
    armed.append(True)
    changes = Changes()
    endpoint = rows.endpoint(store)
    changes.create(endpoint)
    changes.enqueued.append(rows.message(store, endpoint, 0, b"body"))
    changes.outgoing.append(rows.outgoing(store, endpoint, 0, b"body"))
    confirmed = []
    store.join(changes, lambda: confirmed.append(True))
    with pytest.raises(StoreFault, match="rolled back"):
        await store.commit(Changes())
    assert confirmed == []
    assert len(faults) == 1
    with pytest.raises(StoreFault):
        store.join(Changes(), lambda: None)
    await store.close()
    again = await open_store()
    assert await again.endpoints.by_handle(endpoint.handle) is None
    assert look.counts("queue_messages", "transmission_queue") == [0, 0]


@pytest.mark.rule("REL-5")
async def test_outcome_of_a_fault_after_commit_is_not_claimed(open_store, rows, faults):
    armed: list[bool] = []

    def fault(name):
        if armed and name == "store.after_commit":
            raise OSError("planted")

    store = await open_store(fault=fault)
    armed.append(True)
    changes = Changes()
    endpoint = rows.endpoint(store)
    changes.create(endpoint)
    with pytest.raises(StoreFault, match="not known"):
        await store.commit(changes)
    assert [fault.exit_status for fault in faults] == [74]
    await store.close()
    again = await open_store()
    assert await again.endpoints.by_handle(endpoint.handle) == endpoint


@pytest.mark.rule("REL-5")
async def test_broken_constraint_stops_the_store(store, rows, faults):
    first = rows.endpoint(store)
    changes = Changes()
    changes.create(first)
    await store.commit(changes)
    twin = Changes()
    twin.create(rows.endpoint(store, handle=first.handle))
    with pytest.raises(StoreFault, match=r"(SQLITE|SERVER)_CONSTRAINT"):
        await store.commit(twin)
    assert [fault.exit_status for fault in faults] == [70]


@pytest.mark.rule("REL-5")
@pytest.mark.parametrize(
    ("code", "status"),
    [
        (sqlite3.SQLITE_CORRUPT, 65),
        (sqlite3.SQLITE_CORRUPT_VTAB, 65),
        (sqlite3.SQLITE_NOTADB, 65),
        (sqlite3.SQLITE_CONSTRAINT_UNIQUE, 70),
        (sqlite3.SQLITE_IOERR_FSYNC, 74),
        (sqlite3.SQLITE_READONLY, 74),
        (sqlite3.SQLITE_NOMEM, 74),
        (sqlite3.SQLITE_INTERRUPT, 74),
        (None, 74),
    ],
)
async def test_exit_status_says_what_kind_of_fault_it_was(open_store, faults, code, status):
    error: Exception = OSError("planted")
    if code is not None:
        error = planted = sqlite3.DatabaseError("planted")
        planted.sqlite_errorcode = code

    def fault(name):
        if name == "store.before_commit":
            raise error

    store = await open_store(fault=fault)
    with pytest.raises(StoreFault):
        await store.commit(Changes())
    assert [fault.exit_status for fault in faults] == [status]


@pytest.mark.of_files("it damages a page of the file")
@pytest.mark.rule("REL-5")
async def test_file_damaged_under_way_stops_the_store_for_good(store, rows, faults, path):
    changes = Changes()
    changes.create(rows.endpoint(store))
    await store.commit(changes)

    def spoil(connection):
        (root,) = connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'endpoint_progress'"
        ).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA shrink_memory")
        with path.open("r+b") as file:
            file.seek((root - 1) * size)
            file.write(b"\xff" * size)

    await store.run(spoil)
    changes = Changes()
    changes.move(rows.endpoint(store))
    with pytest.raises(StoreFault, match="SQLITE_CORRUPT"):
        await store.commit(changes)
    assert [fault.exit_status for fault in faults] == [65]


@pytest.mark.rule("REL-1", "REL-3", "HK-3")
async def test_crash_keeps_what_was_confirmed_and_confirms_nothing_after_it(open_store, rows):
    store = await open_store()
    kept, lost = Changes(), Changes()
    endpoint = rows.endpoint(store)
    kept.create(endpoint)
    await store.commit(kept)
    confirmed = []
    lost.put(replace(endpoint, send_sequence=9))
    store.join(lost, lambda: confirmed.append(True))
    await store.abandon()
    again = await open_store()
    assert await again.endpoints.by_handle(endpoint.handle) == endpoint
    assert confirmed == []


async def test_endpoint_is_written_once_with_its_last_value(store, rows):
    endpoint = rows.endpoint(store)
    created, first, second = Changes(), Changes(), Changes()
    created.create(endpoint)
    first.put(replace(endpoint, send_sequence=1))
    second.put(last := replace(endpoint, send_sequence=2, state=State.CLOSED, purge_at=5))
    await asyncio.gather(*map(store.commit, (created, first, second)))
    assert store.metrics.rows <= 2
    assert await store.endpoints.by_handle(endpoint.handle) == last
    reopened = replace(last, error_code=None, purge_at=None, state=State.ERROR, error_text="late")
    for value in (reopened, replace(reopened, error_text=None)):
        changes = Changes()
        changes.put(value)
        await store.commit(changes)
        assert await store.endpoints.by_handle(endpoint.handle) == value


async def test_endpoint_created_and_removed_in_one_flush_leaves_no_row(store, rows, look):
    endpoint = rows.endpoint(store)
    created, changed, removed = Changes(), Changes(), Changes()
    created.create(endpoint)
    changed.put(replace(endpoint, send_sequence=1))
    removed.remove(endpoint.key)
    await asyncio.gather(*map(store.commit, (created, changed, removed)))
    assert store.metrics.flushes == 1
    assert look.counts("conversation_endpoints", "endpoint_progress") == [0, 0]


ORDERS = [
    "create",
    "create move",
    "create put move",
    "put",
    "move",
    "move put",
    "put move",
    "move put move move",
]


@pytest.mark.parametrize("calls", ORDERS)
@pytest.mark.parametrize("together", [True, False])
async def test_endpoint_reads_as_it_was_last_put_or_moved(store, rows, calls, together):
    endpoint, other = rows.endpoint(store), rows.endpoint(store)
    first = Changes()
    first.create(other)
    if "create" not in calls:
        first.create(endpoint)
    await store.commit(first)
    changesets = []
    for n, call in enumerate(calls.split(), 1):
        endpoint = replace(endpoint, send_sequence=n, receive_sequence=n + 10, receive_fragment=2)
        if call == "put":
            endpoint = replace(endpoint, first_acked=True, discarded=n, route=f"r{n}")
        changes = Changes()
        getattr(changes, call)(endpoint)
        changesets.append(changes)
        if not together:
            await store.commit(changes)
    if together:
        await asyncio.gather(*map(store.commit, changesets))
    assert await store.endpoints.by_handle(endpoint.handle) == endpoint
    by_key = await store.endpoints.by_keys([endpoint.key, other.key])
    assert by_key == {endpoint.key: endpoint, other.key: other}
    listed = await store.endpoints.page(10)
    assert listed == sorted(by_key.values(), key=lambda it: it.key)


async def test_moving_writes_the_small_row_only(store, rows):
    endpoint = rows.endpoint(store)
    made, moved = Changes(), Changes()
    made.create(endpoint)
    await store.commit(made)
    await store.run(
        lambda connection: connection.execute("UPDATE conversation_endpoints SET route = 'kept'")
    )
    moved.move(replace(endpoint, send_sequence=1))
    await store.commit(moved)
    assert store.metrics.rows == 3
    found = await store.endpoints.by_handle(endpoint.handle)
    assert found == replace(endpoint, send_sequence=1, route="kept")


async def test_endpoint_that_moves_after_its_removal_leaves_no_row(store, rows, look):
    endpoint = rows.endpoint(store)
    created, removed, late = Changes(), Changes(), Changes()
    created.create(endpoint)
    await store.commit(created)
    removed.remove(endpoint.key)
    late.move(replace(endpoint, send_sequence=1))
    await asyncio.gather(*map(store.commit, (removed, late)))
    assert look.counts("conversation_endpoints", "endpoint_progress") == [0, 0]


async def test_conversation_may_begin_anew_in_the_flush_that_removes_it(store, rows):
    old = rows.endpoint(store)
    begun, gone, anew = Changes(), Changes(), Changes()
    begun.create(old)
    await store.commit(begun)
    new = rows.endpoint(store, conversation_id=old.conversation_id)
    gone.remove(old.key)
    anew.create(new)
    await asyncio.gather(store.commit(gone), store.commit(anew))
    assert await store.endpoints.by_conversation(old.conversation_id, False) == new


def arriving(store, changes, endpoint, data):
    """The first piece of a message that is not complete."""
    key = store.next_body_key()
    changes.bodies[key] = BodyRow(key, Owner.ARRIVING, endpoint.key, 0)
    changes.pieces.append(PieceRow(key, 0, data))


@pytest.mark.parametrize("together", [True, False])
async def test_rows_removed_by_endpoint_go_but_those_of_the_same_changeset_stay(
    store, rows, together
):
    endpoint, other = rows.endpoint(store), rows.endpoint(store)
    before, removing = Changes(), Changes()
    before.create(endpoint)
    before.create(other)
    before.enqueued += [rows.message(store, it, 0, b"old") for it in (endpoint, other)]
    before.outgoing += [rows.outgoing(store, it, 0, b"old") for it in (endpoint, other)]
    arriving(store, before, endpoint, b"old")
    arriving(store, before, other, b"old")
    removing.dequeued_of[endpoint.key] = 1000
    removing.remove_outgoing(endpoint.key, OutgoingRemoval([], HIGHEST_SEQUENCE, 1))
    (old,) = [key for key, row in before.bodies.items() if row.number == endpoint.key]
    removing.bodies[old] = BodyRow(old, Owner.NOBODY, old, 0)
    removing.enqueued.append(rows.message(store, endpoint, 1, b"new"))
    removing.outgoing.append(rows.outgoing(store, endpoint, 1, b"new"))
    arriving(store, removing, endpoint, b"new")
    if together:
        await asyncio.gather(store.commit(before), store.commit(removing))
    else:
        await store.commit(before)
        await store.commit(removing)
    for it, body in ((endpoint, b"new"), (other, b"old")):
        waiting = await store.messages.page_for(it.key, 10, 1000)
        assert [row.body for row in waiting.rows] == [body]
        outgoing = await store.outgoing.page(it.key, 0, 10, 1000)
        assert [row.body for row in outgoing.rows] == [body]
        assert (await store.incomplete.parts(it.key)).bodies == [body]


async def test_many_rows_of_every_kind_arrive_and_go(store, rows, look):
    endpoints = [rows.endpoint(store) for _ in range(700)]
    coming = Changes()
    for endpoint in endpoints:
        coming.create(endpoint)
    coming.enqueued += [rows.message(store, it, 0, b"q") for it in endpoints]
    coming.outgoing += [rows.outgoing(store, it, 0, b"t") for it in endpoints]
    await store.commit(coming)
    assert look.counts("queue_messages", "transmission_queue") == [700, 700]
    moving = Changes()
    for endpoint in endpoints:
        moving.move(replace(endpoint, receive_sequence=endpoint.key))
    await store.commit(moving)
    moved = await store.endpoints.by_keys(it.key for it in endpoints)
    assert all(it.receive_sequence == key for key, it in moved.items())
    assert len(await store.endpoints.by_keys(it.key for it in endpoints)) == 700
    going = Changes()
    going.dequeued += [row.queuing_order for row in coming.enqueued[1:]]
    going.acknowledged += [row.transmission_order for row in coming.outgoing[1:]]
    for endpoint in endpoints[1:]:
        going.remove(endpoint.key)
    await store.commit(going)
    store.sweep()
    await store.commit(Changes())
    tables = ("queue_messages", "transmission_queue", "endpoint_progress")
    assert look.counts(*tables) == [1, 1, 1]
    assert [it.key for it in await store.endpoints.page(10)] == [endpoints[0].key]


async def test_group_states_and_closing_lines(store, rows):
    group = rows.endpoint(store).group_id
    changes = Changes()
    changes.group_states[group] = b"state"
    changes.closed += [DialogLogRow(EndpointKey(n), b"%d" % n) for n in (1, 2)]
    await store.commit(changes)
    changes = Changes()
    changes.closed.append(DialogLogRow(EndpointKey(3), b"3"))
    await store.commit(changes)
    assert await store.endpoints.group_state(group) == b"state"
    assert await store.endpoints.closing_lines(10) == [(1, b"1\n2"), (3, b"3")]
    changes = Changes()
    changes.group_states[group] = None
    changes.logged.append(EndpointKey(1))
    await store.commit(changes)
    assert await store.endpoints.group_state(group) is None
    assert [line.endpoint for line in await store.endpoints.closing_lines(10)] == [3]


@pytest.mark.rule("GRP-2", "GRP-22")
async def test_state_of_a_group_goes_with_its_last_open_endpoint(store, rows, look):
    group = rows.endpoint(store).group_id
    first, second = (rows.endpoint(store, group_id=group) for _ in range(2))
    changes = Changes()
    changes.create(first)
    changes.create(second)
    changes.group_states[group] = b"state"
    await store.commit(changes)
    changes = Changes()
    changes.put(replace(first, state=State.CLOSED))
    changes.rarely().groups_left.append(group)
    await store.commit(changes)
    assert await store.endpoints.group_state(group) == b"state"
    changes = Changes()
    changes.group_states[group] = b"the last"
    changes.remove(second.key)
    changes.rarely().groups_left.append(group)
    await store.commit(changes)
    assert look.counts("group_states") == [0]


async def test_checkpoint_folds_the_log_into_the_file(open_store, rows):
    store = await open_store(options=StoreOptions(checkpoint_pages=1))
    for _ in range(3):
        changes = Changes()
        changes.create(rows.endpoint(store))
        await store.commit(changes)
    await store.run(lambda connection: None)
    assert store.metrics.checkpoints == 3


async def test_failing_callback_stops_the_store_instead_of_stranding_the_others(store, faults):
    def fails():
        raise ValueError("planted")

    unhandled = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: unhandled.append(told))
    store.join(Changes(), fails)
    with pytest.raises(StoreFault):
        await store.commit(Changes())
    assert len(faults) == len(unhandled) == 1


async def test_backlog_is_told_until_it_is_durable(store, rows):
    endpoint = rows.endpoint(store)
    changes = Changes()
    changes.create(endpoint)
    changes.enqueued.append(rows.message(store, endpoint, 0, b"x" * 100))
    assert store.backlog_bytes == 0
    store.join(changes, lambda: None)
    assert store.backlog_bytes == 100
    await store.commit(Changes())
    assert store.backlog_bytes == 0
    assert store.oldest_unflushed_age == 0.0


@pytest.mark.rule("RTE-55", "REL-16")
async def test_a_store_that_somebody_else_has_opened_is_written_no_more(store, rows, look, faults):
    changes = Changes()
    changes.create(rows.endpoint(store))
    await store.commit(changes)
    look.change("UPDATE store SET epoch = epoch + 1")
    more = Changes()
    more.create(rows.endpoint(store))
    with pytest.raises(StoreFault, match="opened by another process"):
        await store.commit(more)
    (fault,) = faults
    assert fault.exit_status == IO_FAULT
    assert look.counts("conversation_endpoints") == [1]


async def test_soon_is_when_all_of_a_flush_has_been_told_the_last_first(store, rows):
    seen = []
    confirmed = asyncio.Event()

    def done(number):
        seen.append(f"done {number}")
        store.soon(lambda: seen.append(f"soon {number}"))
        store.behind(lambda: seen.append(f"behind {number}"))
        asyncio.get_running_loop().call_soon(confirmed.set)

    for number in range(2):
        changes = Changes()
        changes.create(rows.endpoint(store))
        store.join(changes, lambda number=number: done(number))
    store.soon(lambda: seen.append("soon, with nothing to be told"))
    await confirmed.wait()
    assert seen == [
        "soon, with nothing to be told",
        *("done 0", "done 1", "behind 0", "behind 1", "soon 1", "soon 0"),
    ]


async def test_what_goes_wrong_soon_is_not_the_stores_fault(store, rows, faults):
    seen = []
    told = []

    def done():
        store.soon(lambda: seen.append("first"))
        store.soon(lambda: 1 // 0)
        store.soon(lambda: seen.append("last"))

    asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what))
    changes = Changes()
    changes.create(rows.endpoint(store))
    store.join(changes, done)
    await store.commit(Changes())
    assert seen == ["last", "first"]
    assert not faults
    assert [type(what["exception"]) for what in told] == [ZeroDivisionError]


async def test_soon_is_kept_where_telling_breaks_off(store, rows, faults):
    seen = []

    def done():
        store.soon(lambda: seen.append("soon"))
        raise LookupError

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    changes = Changes()
    changes.create(rows.endpoint(store))
    store.join(changes, done)
    with pytest.raises(StoreFault):
        await store.commit(Changes())
    assert faults
    assert seen == ["soon"]
    store.soon(lambda: seen.append("later"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert seen == ["soon", "later"]
