"""The compiled reader by itself, and beside Python's way of reading the same."""

import asyncio
import select
import sqlite3
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.clock import SystemClock
from brokerd.errors import Busy, StoreDamaged, StoreFault
from brokerd.ids import QueueKey
from brokerd.storage.changes import Changes
from brokerd.storage.compiled import library
from brokerd.storage.compiled import reader as compiled
from brokerd.storage.connections import READ_PRAGMAS, connect_writer
from brokerd.storage.read_cache import ReadCache
from brokerd.storage.readers import AsyncReader
from brokerd.storage.rows import stored_messages
from brokerd.storage.rows.dialogs import StoredEndpoints
from brokerd.storage.rows.paging import Page
from brokerd.storage.rows.queues import Skip
from brokerd.storage.rows.stored_messages import StoredMessages
from brokerd.storage.rows.transmission import OutgoingMessages
from brokerd.storage.shelves import NO_SHELF, Place, Places

if not library.IS_BUILT:
    pytest.skip("it is not built: that needs a C compiler at set-up", allow_module_level=True)

ALL = compiled.ALL
ENDLESS = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n) SELECT count(*) FROM n"
COUNTING = ENDLESS.replace("FROM n)", "FROM n LIMIT 100000)").replace("(*)", "(*) + ?")

pytestmark = pytest.mark.of_files("the compiled reader reads files")


@pytest.fixture
def connection(path: Path):
    with connect_writer(path) as made:
        made.execute("CREATE TABLE kept (number INTEGER PRIMARY KEY, value, size)")
        yield made
    made.close()


@pytest.fixture
def reader(path: Path, connection: sqlite3.Connection):
    made = library.BUILT.Reader(library.driver(), bytes(path), 20.0)
    yield made
    made.close()


def done(reader):
    until = time.monotonic() + 20
    while (found := reader.result()) is None:
        assert time.monotonic() < until, "no result"
    return found


def read(reader, text, *values, most=ALL):
    reader.submit(text, values, most)
    code, message, rows = done(reader)
    assert (code, message) == (0, "")
    return rows


VALUES = [
    None,
    0,
    -(2**63),
    2**63 - 1,
    1.5,
    "",
    "ä\0ö",
    "ä\0ö",
    "x" * 70_000,
    b"",
    b"\0" * 9,
    b"y" * 3_000_000,
]


def test_values_of_every_type_come_back_as_they_went(reader, connection):
    connection.executemany("INSERT INTO kept VALUES (?, ?, 0)", enumerate(VALUES))
    assert read(reader, "SELECT value FROM kept ORDER BY number") == [(one,) for one in VALUES]
    for one in VALUES:
        assert read(reader, "SELECT ?, typeof(?)", one, one)[0][0] == one


@pytest.mark.parametrize(
    ("most", "count"), [(0, 1), (1, 1), (10, 1), (11, 2), (20, 2), (21, 3), (10**9, 5)]
)
def test_it_ends_once_the_sizes_are_so_large_but_has_one_row_at_least(
    reader, connection, most, count
):
    connection.executemany("INSERT INTO kept VALUES (?, NULL, 10)", [(n,) for n in range(5)])
    text = "SELECT number, size FROM kept ORDER BY number"
    assert read(reader, text, most=most) == [(number,) for number in range(count)]


def test_no_row_is_read_past_what_it_may_bring(reader, connection):
    connection.executemany("INSERT INTO kept VALUES (?, NULL, 10)", [(n,) for n in range(5)])
    fails = "CASE number WHEN 1 THEN abs(-9223372036854775807 - 1) END"
    assert read(reader, f"SELECT {fails}, size FROM kept ORDER BY number", most=10) == [(None,)]


@pytest.mark.rule("REL-25")
def test_a_statement_that_was_not_read_to_its_end_holds_no_read_open(reader, connection):
    connection.executemany("INSERT INTO kept VALUES (?, NULL, 10)", [(n,) for n in range(5)])
    assert len(read(reader, "SELECT number, size FROM kept", most=1)) == 1
    connection.execute("DELETE FROM kept")
    blocked, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert not blocked
    assert read(reader, "SELECT number, size FROM kept", most=1) == []


@pytest.mark.parametrize(
    ("values", "most", "error"),
    [
        ((2**63,), ALL, OverflowError),
        (([1],), ALL, TypeError),
        ((), ALL, ValueError),
        ([1], ALL, TypeError),
        ((1,), 2**63, OverflowError),
    ],
)
def test_what_cannot_be_asked_is_refused_and_nothing_is_under_way(reader, values, most, error):
    with pytest.raises(error):
        reader.submit("SELECT ?", values, most)
    assert reader.result() is None
    assert read(reader, "SELECT ?", 7) == [(7,)]


def test_errors_come_with_code_and_message(reader, connection):
    with pytest.raises(library.SqliteError, match="no such table: lost") as caught:
        reader.submit("SELECT * FROM lost", (), ALL)
    assert caught.value.args[0] == sqlite3.SQLITE_ERROR
    reader.submit("SELECT abs(-9223372036854775807 - 1)", (), ALL)
    assert done(reader) == (sqlite3.SQLITE_ERROR, "integer overflow", [])
    reader.submit("INSERT INTO kept VALUES (1, 1, 1)", (), ALL)
    assert done(reader)[0] & 0xFF == sqlite3.SQLITE_READONLY
    assert read(reader, "SELECT 1") == [(1,)]


def test_text_that_is_none_is_an_error_and_not_the_last_one(reader):
    reader.submit("SELECT CAST(x'ff' AS TEXT)", (), ALL)
    with pytest.raises(UnicodeDecodeError):
        done(reader)
    assert read(reader, "SELECT 1") == [(1,)]


def test_one_at_a_time_and_none_once_it_is_closed(reader):
    reader.submit("SELECT 1", (), ALL)
    with pytest.raises(RuntimeError, match="under way"):
        reader.submit("SELECT 2", (), ALL)
    assert done(reader)[2] == [(1,)]
    reader.close()
    assert reader.result() is None
    with pytest.raises(ValueError, match="closed"):
        reader.submit("SELECT 3", (), ALL)


def test_it_reads_while_the_interpreter_is_given_to_nobody(reader, connection):
    rows = [(number, b"x" * 100, 100) for number in range(2000)]
    connection.executemany("INSERT INTO kept VALUES (?, ?, ?)", rows)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        assert read(reader, "SELECT * FROM kept ORDER BY number") == rows
    finally:
        sys.setswitchinterval(before)


def test_values_live_until_they_are_read(reader):
    for number in range(200):
        assert read(reader, "SELECT ?, ?", f"{number}" * 9, b"%d" % number) == [
            (f"{number}" * 9, b"%d" % number)
        ]


def test_it_rings_once_it_has_found_something(reader):
    for number in range(100):
        reader.submit("SELECT ?", (number,), ALL)
        assert select.select([reader], [], [], 20)[0]
        reader.drain()
        assert done(reader)[2] == [(number,)]


@pytest.mark.rule("REL-23")
def test_what_takes_too_long_is_cut(path, connection):
    reader = library.BUILT.Reader(library.driver(), bytes(path), 0.05)
    reader.submit(ENDLESS, (), ALL)
    code, *_ = done(reader)
    reader.close()
    assert code == sqlite3.SQLITE_INTERRUPT


def test_what_is_not_built_or_does_not_fit_leaves_it_to_python(path, connection, monkeypatch):
    assert compiled.compiled_reader(path, pragmas=["no pragma at all"], limit=1.0) is None
    assert compiled.compiled_reader(path.with_name("absent"), pragmas=[], limit=1.0) is None
    monkeypatch.setattr(library, "BUILT", None)
    assert compiled.compiled_reader(path, pragmas=[], limit=1.0) is None


async def opened(path, limit=20.0):
    made = compiled.compiled_reader(path, pragmas=READ_PRAGMAS, limit=limit)
    assert made is not None
    return made


async def test_answers_go_to_who_asked_in_the_order_of_asking(path, connection):
    made = await opened(path)
    asked = [asyncio.ensure_future(made.rows("SELECT ?", (number,))) for number in range(50)]
    asked.insert(20, asyncio.ensure_future(made.rows("SELECT lost", ())))
    await asyncio.wait(asked[20:21])
    with pytest.raises(sqlite3.OperationalError, match="no such column: lost"):
        await asked.pop(20)
    assert [await one for one in asked] == [[(number,)] for number in range(50)]
    await made.close()


async def test_who_gives_up_gets_nothing_and_keeps_nobody_waiting(path, connection):
    made = await opened(path)
    loop = asyncio.get_running_loop()
    loop.remove_reader(made._reader.fileno())  # so that nothing is heard until both have given up
    asked = [asyncio.ensure_future(made.rows("SELECT ?", (number,))) for number in range(4)]
    await asyncio.wait(asked, timeout=0)
    asked[0].cancel()  # it is being read
    asked[2].cancel()  # it is not
    loop.add_reader(made._reader.fileno(), made._on_result)
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert [one for one in found if isinstance(one, list)] == [[(1,)], [(3,)]]
    await made.close()


@pytest.mark.rule("REL-18")
@pytest.mark.parametrize("given_up", [0, 1, 3])
async def test_what_was_asked_for_is_read_before_it_closes(path, connection, given_up):
    made = await opened(path)
    asked = [asyncio.ensure_future(made.rows(COUNTING, (n,))) for n in range(3)]
    await asyncio.wait(asked, timeout=0.001)
    for one in asked[:given_up]:
        one.cancel()
    await asyncio.wait_for(made.close(), 20)
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert [one for one in found if isinstance(one, list)] == [
        [(100_000 + n,)] for n in range(given_up, 3)
    ]


async def test_it_may_be_closed_by_several_and_again(path, connection):
    made = await opened(path)
    asked = asyncio.ensure_future(made.rows(COUNTING, (0,)))
    await asyncio.wait([asked], timeout=0.001)
    await asyncio.wait_for(asyncio.gather(made.close(), made.close()), 20)
    await made.close()
    assert await asked == [(100_000,)]


@pytest.mark.rule("REL-23", "REL-33")
@pytest.mark.parametrize("executor", ["compiled"], indirect=True)
async def test_errors_are_those_of_a_store(store, path, monkeypatch):
    monkeypatch.setattr("brokerd.storage.readers.READ_LIMIT", 0.05)
    reader = AsyncReader(path, SystemClock(), compiled=True)
    slow = stored_messages.statements(NO_SHELF).page._replace(rows=sqlite_text(ENDLESS))
    with pytest.raises(Busy, match="a read of the store took over"):
        await reader.page(slow, {"max_bytes": 1})
    with pytest.raises(StoreFault, match="no such table: lost"):
        await reader.page(slow._replace(rows=sqlite_text("SELECT * FROM lost")), {"max_bytes": 1})
    await reader.close()


def sqlite_text(text):
    from sqlalchemy import literal_column, select  # noqa: PLC0415

    return select(literal_column(f"({text})"))


@pytest.mark.parametrize("executor", ["compiled"], indirect=True)
@pytest.mark.parametrize("limit", [1, 3, 100])
@pytest.mark.parametrize("most", [1, 20, 10_000])
async def test_pages_are_those_that_python_reads(store, rows, path, limit, most):
    """Bodies that are absent, empty and long; sequences that go before; endpoints that are gone."""
    changes = Changes()
    ends = [rows.endpoint(store, is_initiator=number % 2 == 0) for number in range(3)]
    for end in ends[:2]:
        changes.create(end)
    for number in range(12):
        end = ends[number % 3]
        body = b"" if number == 4 else b"b" * number * 7
        kind = "ä" if number == 5 else "urn:shop/line"
        waiting = rows.message(store, end, -2 if number == 9 else number, body, message_type=kind)
        outgoing = rows.outgoing(store, end, number, body)
        if number == 7:
            waiting = waiting._replace(body=None, body_hash=None)
            outgoing = outgoing._replace(body=None, body_hash=None)
        changes.enqueued.append(waiting)
        changes.outgoing.append(outgoing)
    await store.run(lambda connection: connection.execute("PRAGMA foreign_keys = OFF") and None)
    await store.commit(changes)
    found: list[list[Page[Any]]] = []
    for is_compiled in (True, False):
        reader = AsyncReader(path, SystemClock(), compiled=is_compiled)
        pages: list[Page[Any]] = [
            await messages(reader, removed={4}).page(QueueKey(1), 5, 2, limit, most),
            await messages(reader).browse(QueueKey(1), limit, most, 0, reads=1),
            await OutgoingMessages(reader).listed(limit, most, 0),
        ]
        for end in ends:
            pages += [
                await messages(reader, removed={3}).page_for(end.key, limit, most, after)
                for after in (None, (6, 3), (1, -2))
            ]
            pages.append(await OutgoingMessages(reader).page(end.key, 1, limit, most))
        assert (reader._compiled is not None) == is_compiled
        await reader.close()
        found.append(pages)
    assert found[0] == found[1]
    assert any(page.damaged for page in found[0])
    assert sum(bool(page.rows) for page in found[0]) > len(found[0]) / 2


PLACES = Places([Place(NO_SHELF, 0)], 1 << 60)


def messages(reader, removed=frozenset()):
    """The messages of one place, except those that are removed."""
    shelves: Any = SimpleNamespace(places_for=lambda _queue: PLACES, all_places=lambda: PLACES)
    return StoredMessages(reader, shelves=shelves, skip=Skip(lambda _: removed, frozenset))


DAMAGE = {
    "body is text": "UPDATE queue_messages SET body = CAST(body AS TEXT) WHERE sequence = 1",
    "body is a number": "UPDATE queue_messages SET body = 7 WHERE sequence = 1",
    "hash is text": "UPDATE queue_messages SET body_hash = 'abcdefgh' WHERE sequence = 1",
    "id is text": "UPDATE queue_messages SET message_id = 'abcdefghabcdefgh' WHERE sequence = 1",
    "type is a blob": "UPDATE queue_messages SET message_type = x'4142' WHERE sequence = 1",
    "place is text": "UPDATE conversation_endpoints SET conversation_id = 'abcdefghabcdefgh'",
}


@pytest.mark.rule("REL-6")
@pytest.mark.parametrize("executor", ["compiled"], indirect=True)
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
async def test_damaged_rows_are_those_that_python_finds(store, rows, path, damage):
    await of_one_dialog(store, rows)
    await store.run(lambda connection: connection.execute(damage) and None)
    found = []
    for is_compiled in (True, False):
        reader = AsyncReader(path, SystemClock(), compiled=is_compiled)
        page = await messages(reader).page(QueueKey(1), 5, 0, 9, 1000)
        await reader.close()
        found.append(page)
    assert found[0] == found[1]
    assert len(found[0].rows) + len(found[0].damaged) == 4


async def of_one_dialog(store, rows):
    changes = Changes()
    endpoint = rows.endpoint(store)
    changes.create(endpoint)
    changes.enqueued += [rows.message(store, endpoint, n, b"body%d" % n) for n in range(4)]
    await store.commit(changes)
    return endpoint


@pytest.mark.rule("REL-6", "REL-18")
@pytest.mark.parametrize("executor", ["compiled"], indirect=True)
async def test_a_name_that_is_no_text_is_damage_and_the_next_read_goes_on(store, rows, path):
    endpoint = await of_one_dialog(store, rows)
    wrong = "UPDATE queue_messages SET message_type = CAST(x'ff41' AS TEXT)"
    await store.run(lambda connection: connection.execute(wrong) and None)
    reader = AsyncReader(path, SystemClock(), compiled=True)
    async with asyncio.timeout(20):
        with pytest.raises(StoreDamaged, match="a name that is no text"):
            await messages(reader).page(QueueKey(1), 5, 0, 9, 1000)
        assert list(
            await StoredEndpoints(reader, ReadCache(lambda: 0, lambda: 0.0)).by_keys([endpoint.key])
        ) == [endpoint.key]
        await reader.close()
