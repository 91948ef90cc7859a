"""Messages beyond the window are found by conversation in whatever stretches they lie (D4)."""

import re
import sqlite3
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from sqlalchemy import Select
from sqlalchemy.sql.compiler import SQLCompiler

from brokerd.model import END_DIALOG, ERROR
from brokerd.storage import recovery, schema
from brokerd.storage.changes import Changes, QueueRow
from brokerd.storage.rows import (
    bodies,
    deferred_drops,
    deferred_removals,
    held_groups,
    listings,
    message_counts,
    queues,
    stored_messages,
)
from brokerd.storage.shelves import NO_SHELF
from brokerd.storage.statements import DIALECT, Script, sql
from brokerd.storage.store import StoreOptions
from brokerd.storage.stretches import EVERYWHERE, table_at

FAR_APART = 60 << 14
"""Few rows lie in many stretches, or several in one."""


@pytest.fixture
def random(request: pytest.FixtureRequest) -> Random:
    return Random(request.param)


@pytest.fixture(params=[0, 30, 400], ids=["no shelves", "many shelves", "one shelf"])
async def store(open_store, request):
    return await open_store(options=StoreOptions(shelf_messages=request.param))


@pytest.fixture
async def spread(store, rows, random):
    """Five endpoints and their rows: numbers rise with orders, save for those below 0.

    Some lie on no shelf though there is one, as after a start, and all whose number is below 0."""
    endpoints, changes = [rows.endpoint(store) for _ in range(5)], Changes()
    every: list[QueueRow] = []
    numbers = dict.fromkeys(range(5), 0)
    for endpoint in endpoints:
        changes.create(endpoint)
    for order in sorted(random.sample(range(1, FAR_APART), 250)):
        at = random.choices(range(5), [30, 10, 3, 1, 0])[0]
        sequence = random.choice([-1, -2]) if random.random() < 0.1 else numbers[at]
        numbers[at] += sequence >= 0
        kind = ERROR if sequence < 0 else "urn:shop/line"
        place = int(random.random() < 0.9)
        if place and sequence >= 0 and random.random() < 0.9:
            store._numbers.next_queuing_order = order + 1
            place = store.shelves.place(1)
        row = rows.message(
            store,
            endpoints[at],
            sequence,
            b"x" * random.randrange(9),
            queuing_order=order,
            paged=place,
            message_type=kind,
        )
        changes.enqueued.append(row)
        every.append(row)
        if random.random() < 0.1:
            await store.commit(changes)
            changes = Changes()
    last = [row for row in every if row.endpoint == endpoints[0].key][-1]
    if last.sequence >= 0 and last in changes.enqueued:
        every[every.index(last)] = ended = last._replace(message_type=END_DIALOG)
        changes.enqueued[changes.enqueued.index(last)] = ended
    await store.commit(changes)
    paged = [row for row in every if row.paged]
    return endpoints, sorted(paged, key=lambda row: (row.sequence, row.queuing_order))


seeds = pytest.mark.parametrize("random", range(6), indirect=True)


def page_of(found, key, limit, size, after):
    """Return the page of a conversation that the store should read, filtered in Python."""
    place = (-9, 0) if after is None else (after[1], after[0])
    mine = [row for row in found if row.endpoint == key]
    rest = [row for row in mine if (row.sequence, row.queuing_order) > place][:limit]
    sizes = [sum(len(one.body) for one in rest[:at]) for at in range(len(rest))]
    return [row for row, before in zip(rest, sizes, strict=True) if before < size]


@seeds
@pytest.mark.rule("RCV-7", "RCV-9")
async def test_pages_of_a_conversation_are_those_of_a_plain_answer(store, spread, random):
    endpoints, found = spread
    for _ in range(150):
        key = random.choice(endpoints).key
        known = [row for row in found if row.endpoint == key]
        after = None
        if known and random.random() < 0.8:
            row = random.choice(known)
            after = row.queuing_order, row.sequence
        limit, size = random.choice([1, 2, 7, 40, 500]), random.choice([1, 20, 10_000])
        page = await store.messages.page_for(key, limit, size, after)
        wanted = page_of(found, key, limit, size, after)
        assert page.rows == wanted
        end = (wanted[-1].queuing_order, wanted[-1].sequence) if wanted else None
        assert (page.end, page.damaged) == (end, [])


@seeds
@pytest.mark.rule("RCV-8", "RCV-9")
async def test_page_after_page_gives_every_message_of_a_conversation_once(store, spread, random):
    endpoints, found = spread
    for endpoint in endpoints:
        after: tuple[int, int] | None = None
        read: list[QueueRow] = []
        while True:
            page = await store.messages.page_for(endpoint.key, random.choice([1, 3, 9]), 64, after)
            if page.end is None:
                break
            read, after = read + page.rows, page.end
        assert read == [row for row in found if row.endpoint == endpoint.key]


@seeds
@pytest.mark.rule("REL-25")
@pytest.mark.parametrize("few", [3, 500])
async def test_counts_are_those_of_a_plain_answer(store, spread, random, few, monkeypatch):
    monkeypatch.setattr(message_counts, "FEW", few)
    endpoints, found = spread
    for _ in range(100):
        key = random.choice(endpoints).key
        after = random.choice([-1, random.randrange(FAR_APART)])
        before = random.choice([FAR_APART, random.randrange(FAR_APART)])
        mine = [row for row in found if row.endpoint == key]
        but = {row.queuing_order for row in mine if random.random() < 0.1}
        wanted = [row for row in mine if after < row.queuing_order < before]
        wanted = [row for row in wanted if row.queuing_order not in but]
        application = sum(row.message_type == "urn:shop/line" for row in wanted)
        assert tuple(await store.message_counts.tally(key, after, before, but)) == (
            len(wanted),
            application,
        )
    unread = await store.listings.unread({one.key for one in endpoints[1:]})
    for endpoint in endpoints:
        count = sum(row.endpoint == endpoint.key for row in found)
        assert unread.get(endpoint.key, (0, 2))[0] == (0 if endpoint is endpoints[0] else count)


@seeds
@pytest.mark.rule("REL-25")
@pytest.mark.parametrize(
    "limits", [(2000, 4096), (20, 300), (2000, 10)], ids=["all", "in parts", "none"]
)
async def test_many_are_counted_together_as_one_by_one(store, spread, random, limits, monkeypatch):
    few, seeks = limits
    monkeypatch.setattr(message_counts, "_FEW_TOGETHER", few)
    monkeypatch.setattr(message_counts, "_SEEKS", seeks)
    endpoints, found = spread
    for _ in range(8):
        after = random.choice([-1, random.randrange(FAR_APART)])
        asked = random.sample(endpoints, random.randrange(6))
        but = {
            one.key: {
                row.queuing_order
                for row in found
                if row.endpoint == one.key and random.random() < 0.1
            }
            for one in asked
        }
        counted = await store.message_counts.tallies(but, after, store.coming_order, 1)
        for key, tally in counted.items():
            assert tally == await store.message_counts.tally(
                key, after, store.coming_order, but[key], 1
            )
        if few == 2000:
            assert counted.keys() == (but.keys() if seeks == 4096 else set())


@seeds
@pytest.mark.rule("DLG-M1", "REL-33")
async def test_what_goes_with_endpoints_is_what_a_plain_answer_says(store, spread, random):
    endpoints, found = spread
    gone = {one.key for one in random.sample(endpoints, random.choice([1, 2, 4]))}
    orders = {row.queuing_order for row in found if row.endpoint in gone}

    def run(adding, connection, *arguments):
        script = Script()
        adding(script, *arguments)
        script.run(connection)

    def remove(connection):
        asked = f"SELECT queuing_order FROM ({EVERYWHERE}) AS every_"
        every = {row for (row,) in connection.execute(asked)}
        for order in every:
            connection.execute("INSERT INTO bodies VALUES (?, 2, ?, 0)", (order, order))
        run(bodies.leave_waiting, connection, list(gone), store.shelves.taken)
        left = {row for (row,) in connection.execute("SELECT number FROM bodies WHERE owner = 0")}
        run(queues.remove_of, connection, list(gone), store.shelves.taken)
        rest = {row for (row,) in connection.execute(asked)}
        return left, every - rest

    assert await store.run(remove) == (orders, orders)


@seeds
@pytest.mark.rule("PBT-3", "RCV-8")
async def test_a_start_finds_what_groups_hold_and_which_timers_fired(store, spread, random):
    endpoints, found = spread
    groups = {one.key: one.group_id for one in endpoints[1:]}

    def recover(connection):
        held_by = {each.row.group_id: each.messages for each in held_groups.recovered(connection)}
        held_by = {group: count for group, count in held_by.items() if count}
        return held_by, {tuple(row) for row in connection.execute(recovery._fired)}

    def hold(connection):
        for group in groups.values():
            values = (group, 1, 0, 0, None, None, "r", "e", b"c", b"m")
            connection.execute(f"INSERT INTO held_groups VALUES ({','.join('?' * 10)})", values)

    await store.run(hold)
    counts, fired = await store.run(recover)
    wanted: dict[bytes, int] = {}
    for row in found:
        if row.endpoint in groups:
            wanted[groups[row.endpoint]] = wanted.get(groups[row.endpoint], 0) + 1
    assert counts == wanted
    assert fired == {(1, row.endpoint) for row in found if row.sequence == -2}


# What it costs.


@pytest.fixture(scope="module")
def backlog() -> Iterator[sqlite3.Connection]:
    """Thirty stretches: of one conversation all but one message in a hundred."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for statement in schema.table_definitions():
        connection.execute(statement)
    connection.execute("BEGIN")
    for table in ("queue_messages", "shelf_2"):
        connection.executemany(
            f"INSERT INTO {table} VALUES (?, 1, ?, ?, 't', 5, 1, 0, x'00', NULL, NULL, 0)",
            [(1 + 64 * at, 1 if at % 100 else 2, at) for at in range(8000)],
        )
    connection.execute("COMMIT")
    yield connection
    connection.close()


def work(connection: sqlite3.Connection, statement: Select[Any], **given: object) -> int:
    """Hundreds of steps of SQLite's machine that a statement takes."""
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    compiled = statement.compile(dialect=DIALECT)
    assert isinstance(compiled, SQLCompiler)
    params = {**compiled.params, **given}
    values = [params[name] for name in compiled.positiontup or ()]
    connection.set_progress_handler(count, 100)
    rows = connection.execute(str(compiled), values).fetchall()
    connection.set_progress_handler(None, 0)
    assert rows
    return steps


@pytest.mark.rule("RCV-7", "REL-25")
@pytest.mark.parametrize(
    ("key", "after"), [(1, (-1, -9)), (1, (64_001, 1000)), (1, (448_001, 7000)), (2, (-1, -9))]
)
def test_a_page_looks_at_no_more_of_a_conversation_than_it_takes(backlog, key, after):
    order, sequence = after
    given = {"key": key, "after_order": order, "after_sequence": sequence, "max_bytes": 9}
    least = order if sequence >= 0 else -1
    for place in (NO_SHELF, 2):
        page = stored_messages.statements(place).page_of
        for statement in (page.rows, page.packed):
            assert work(backlog, statement, **given, least=least, limit=10) < 30


@pytest.mark.rule("REL-25")
@pytest.mark.parametrize("place", [NO_SHELF, 2])
@pytest.mark.parametrize(
    "made",
    [
        lambda place: sql(stored_messages.statements(place).page_of.rows),
        lambda place: sql(stored_messages.statements(place).page_of.packed),
        lambda place: sql(message_counts.FEW_OF),
        lambda place: sql(message_counts.count_many(place)),
        lambda place: sql(listings._unread(place)),
        lambda place: queues._deletes_of[place]._texts[1],
        lambda place: queues._deletes_of[place]._texts[8],
        lambda place: bodies._LEAVE_WAITING[place],
        lambda place: held_groups._counts[place - 1],
        lambda place: re.sub(r":\w+", "?", deferred_drops._first_orders(place)),
        deferred_drops._count,
    ],
    ids=[
        *("page", "packed page", "few", "count", "unread", "delete", "delete many", "leave"),
        *("held", "look for dropped", "count dropped"),
    ],
)
def test_what_is_found_by_conversation_reads_no_whole_table(backlog, made, place):
    statement, name = made(place), table_at(place)
    values = [1] * statement.count("?")
    plan = [row[3] for row in backlog.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
    (least, *_) = [step for step in plan if f"{name}_of (<expr>=?" in step]
    assert f"{name}_of (<expr>=? AND endpoint_key=?" in least
    tables = name, "conversation_endpoints", "bodies"
    scans = [step for step in plan if step.startswith("SCAN ")]
    assert not any(table in step.split() for step in scans for table in (*tables, "m", "e")), plan
    others = [step for step in plan if f"{name}_paged" in step]
    assert others == []


@pytest.mark.rule("REL-4")
def test_what_is_removed_is_deleted_by_its_order(backlog):
    delete = deferred_removals._deletes[NO_SHELF]._texts[8]
    plan = backlog.execute(f"EXPLAIN QUERY PLAN {delete}", range(8)).fetchall()
    assert "INTEGER PRIMARY KEY" in plan[0][3]
