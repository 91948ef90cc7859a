"""The compiled flusher by itself, and what it says when something goes wrong."""

import asyncio
import select
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy import Column, Integer, LargeBinary, MetaData, Table

from brokerd.storage.compiled import library
from brokerd.storage.compiled.library import sqlite_error
from brokerd.storage.compiled.writer import CompiledWriter, compiled_writer
from brokerd.storage.connections import connect_writer
from brokerd.storage.sqlite_errors import is_busy, is_full
from brokerd.storage.statements import Deletes, Inserts, Script, Step

if not library.IS_BUILT:
    pytest.skip("it is not built: that needs a C compiler at set-up", allow_module_level=True)
DRIVER = library.driver()

pytestmark = pytest.mark.of_files("the compiled writer writes files")


@pytest.fixture
def connection(path: Path):
    with connect_writer(path) as made:
        made.execute("CREATE TABLE kept (number INTEGER PRIMARY KEY, value)")
        yield made
    made.close()


@pytest.fixture
def flusher(path: Path, connection: sqlite3.Connection):
    made = library.BUILT.Flusher(DRIVER, bytes(path), 100)
    yield made
    made.close()


def script(*rows, text="INSERT INTO kept VALUES (?, ?)"):
    made = Script()
    made.add(text, *rows)
    return made.steps()


def done(flusher):
    until = time.monotonic() + 20
    while (found := flusher.result()) is None:
        assert time.monotonic() < until, "no result"
    return found


def rows(connection):
    return connection.execute("SELECT * FROM kept ORDER BY number").fetchall()


def test_values_of_every_type_come_back_as_they_went(flusher, connection):
    values = [
        None,
        0,
        -(2**63),
        2**63 - 1,
        True,
        1.5,
        "",
        "ä\0ö",
        "x" * 70_000,
        b"",
        b"\0" * 9,
        [1],
    ]
    flusher.submit(script(*enumerate(values[:-1])), False)
    assert done(flusher)[0] == 0
    assert [value for _, value in rows(connection)] == [*values[:4], 1, *values[5:-1]]


@pytest.mark.parametrize(
    ("row", "error"),
    [((1, 2**63), OverflowError), ((1, [1]), TypeError), ((1,), ValueError), ([1, 1], TypeError)],
)
def test_what_cannot_be_stored_is_refused_and_nothing_is_under_way(flusher, connection, row, error):
    with pytest.raises(error):
        flusher.submit(script((5, 5), row), False)
    assert flusher.result() is None
    flusher.submit(script((6, 6)), False)
    assert done(flusher)[0] == 0
    assert rows(connection) == [(6, 6)]


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 203])
def test_many_rows_are_written_several_at_a_time_and_none_twice(flusher, connection, count):
    number = Column("number", Integer, primary_key=True)
    table = Table("kept", MetaData(), number, Column("value", LargeBinary))
    made = Script()
    Inserts(table).add(made, [(number, b"%d" % number) for number in range(count)])
    Deletes(table.c.number).add(made, range(0, count, 2))
    assert sum(step.at_a_time > 1 for step in made.steps()) == (count >= 8) + (count >= 15)
    flusher.submit(made.steps(), False)
    assert done(flusher)[0] == 0
    assert rows(connection) == [(number, b"%d" % number) for number in range(1, count, 2)]


@pytest.mark.parametrize(("rows", "at_a_time"), [(3, 2), (2, 0), (3, 3)])
def test_rows_that_do_not_come_out_even_are_refused(flusher, rows, at_a_time):
    step = Step("INSERT INTO kept VALUES (?, ?)", tuple((n, n) for n in range(rows)), at_a_time)
    with pytest.raises(ValueError, match="at a time, for a statement of 2 values"):
        flusher.submit((step,), False)
    assert flusher.result() is None


def test_a_statement_that_is_none_says_what_sqlite_says(flusher):
    with pytest.raises(library.SqliteError, match="no such table: lost") as caught:
        flusher.submit(script((1, 1), text="INSERT INTO lost VALUES (?, ?)"), False)
    assert caught.value.args[0] == sqlite3.SQLITE_ERROR


def test_a_text_without_a_statement_is_refused(flusher):
    with pytest.raises(ValueError, match="without a statement"):
        flusher.submit(script((1, 1), text="-- nothing"), False)


def test_a_row_that_is_refused_takes_all_others_back(flusher, connection):
    flusher.submit(script((1, 1), (2, 2), (1, 3)), False)
    code, message, _, is_committing, *_ = done(flusher)
    assert code == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY
    assert "UNIQUE" in message
    assert not is_committing
    assert rows(connection) == []


@pytest.mark.rule("RTE-55")
def test_nothing_is_written_behind_a_fence_that_finds_no_row(flusher, connection):
    connection.execute("INSERT INTO kept VALUES (1, 1)")
    made = Script()
    made.fence("UPDATE kept SET value = ? WHERE number = ?", (9, 1))
    made.add("INSERT INTO kept VALUES (?, ?)", (2, 2))
    flusher.submit(made.steps(), made.is_fenced)
    assert done(flusher)[2]
    made.parts[0] = made.parts[0]._replace(rows=((10, 7),))
    flusher.submit(made.steps(), made.is_fenced)
    code, _, is_fence_passed, is_committing, *_ = done(flusher)
    assert (code, is_fence_passed, is_committing) == (0, False, False)
    assert rows(connection) == [(1, 9), (2, 2)]


def test_a_lock_that_somebody_keeps_is_told(flusher, connection):
    connection.execute("BEGIN IMMEDIATE")
    flusher.submit(script((1, 1)), False)
    code, message, *_ = done(flusher)
    assert is_busy(sqlite_error(code, message))


def test_one_script_at_a_time_and_none_once_it_is_closed(flusher, connection):
    connection.execute("BEGIN IMMEDIATE")  # so that it waits
    flusher.submit(script((1, 1)), False)
    with pytest.raises(RuntimeError, match="under way"):
        flusher.submit(script((2, 2)), False)
    connection.execute("COMMIT")
    flusher.close()
    assert rows(connection) == [(1, 1)]
    assert flusher.result() is None
    with pytest.raises(ValueError, match="closed"):
        flusher.submit(script((3, 3)), False)


def test_it_writes_while_the_interpreter_is_given_to_nobody(flusher, connection):
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        flusher.submit(script(*((number, b"x" * 100) for number in range(2000))), False)
        assert done(flusher)[0] == 0
    finally:
        sys.setswitchinterval(before)
    assert len(rows(connection)) == 2000


def test_a_result_is_heard_of_whether_or_not_the_one_before_was_asked_for_early(flusher):
    def is_readable(seconds):
        return bool(select.select([flusher], [], [], seconds)[0])

    for number in range(150):
        flusher.submit(script((number, 1)), False)
        if number % 3:
            done(flusher)  # what rings for it may come when the next one is under way
            continue
        found = None
        while found is None:
            assert is_readable(20), "nothing rang"
            flusher.drain()
            found = flusher.result()
    until = time.monotonic() + 20
    while is_readable(0):
        assert time.monotonic() < until, "it rings for ever"
        flusher.drain()


def test_values_live_until_they_are_written(flusher, connection):
    for batch in range(50):
        flusher.submit(script(*((batch * 100 + n, f"{batch} {n}" * 9) for n in range(100))), False)
        assert done(flusher)[0] == 0
    assert all(value == f"{n // 100} {n % 100}" * 9 for n, value in rows(connection))


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        ("/absent.so", "absent.so"),
        (library.BUILT.__file__, "the driver hides sqlite3_"),
        (DRIVER, "this SQLite is not the one the driver uses"),  # which has no connection open
    ],
)
def test_another_sqlite_than_that_of_the_driver_is_not_taken(driver, said, tmp_path):
    program = (
        "import sys\nfrom brokerd.storage.compiled import _compiled\n"
        "try:\n    _compiled.Flusher(sys.argv[1], sys.argv[2].encode(), 100)\n"
        "except OSError as error:\n    print(error)"
    )
    command = [sys.executable, "-c", program, driver, str(tmp_path / "any.db")]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said in found.stdout


def test_a_file_that_cannot_be_opened_is_told(tmp_path: Path, connection):
    with pytest.raises(library.SqliteError, match="unable to open"):
        library.BUILT.Flusher(DRIVER, bytes(tmp_path / "absent" / "x.db"), 100)


@pytest.mark.parametrize(
    ("code", "name", "kind"),
    [
        (sqlite3.SQLITE_FULL, "SQLITE_FULL", sqlite3.OperationalError),
        (sqlite3.SQLITE_CORRUPT_INDEX, "SQLITE_CORRUPT_INDEX", sqlite3.DatabaseError),
        (sqlite3.SQLITE_CONSTRAINT_UNIQUE, "SQLITE_CONSTRAINT_UNIQUE", sqlite3.IntegrityError),
        (sqlite3.SQLITE_IOERR_FSYNC, "SQLITE_IOERR_FSYNC", sqlite3.OperationalError),
        (200, "SQLITE_UNKNOWN", sqlite3.OperationalError),
    ],
)
def test_errors_are_those_of_the_driver(code, name, kind):
    error = sqlite_error(code, "planted")
    assert type(error) is kind
    assert (error.sqlite_errorcode, error.sqlite_errorname) == (code, name)
    assert is_full(error) == (name == "SQLITE_FULL")


def test_what_is_not_built_or_does_not_fit_leaves_it_to_python(path, connection, monkeypatch):
    def writer(**kept):
        return compiled_writer(connection, path, pragmas=[], kept=kept, busy=1.0)

    assert writer(synchronous=99) is None
    monkeypatch.setattr(library, "BUILT", None)
    assert writer() is None


@pytest.fixture
def told() -> "asyncio.Queue[tuple[object, BaseException | None]]":
    return asyncio.Queue()


@pytest.fixture
async def writer(path: Path) -> CompiledWriter:
    connection = connect_writer(path)
    connection.execute("CREATE TABLE kept (number INTEGER PRIMARY KEY, value)")
    made = compiled_writer(connection, path, pragmas=[], kept={}, busy=1.0)
    assert made is not None
    return made


async def answers(told, count):
    return [await asyncio.wait_for(told.get(), 20) for _ in range(count)]


async def test_what_is_queued_when_it_closes_is_run_and_told(writer, told):
    for number in range(3):
        writer.submit(lambda _, n=number: n, lambda *answer: told.put_nowait(answer))
    writer.close()
    assert await answers(told, 3) == [(0, None), (1, None), (2, None)]


async def test_what_has_rung_is_heard_before_it_is_asked_for(writer, monkeypatch):
    """The other way round, what rings between the two is heard and never asked for."""
    called = []

    class Noted:
        def __getattr__(self, name):
            return lambda *_: called.append(name)

    monkeypatch.setattr(writer, "_written", object())
    flusher, writer._flusher = writer._flusher, Noted()
    try:
        writer._on_result()
    finally:
        writer._flusher, writer._written = flusher, None
        writer.close()
    assert called == ["drain", "result"]


async def test_a_job_waits_for_the_script_before_it_and_a_script_for_the_job(writer, told):
    class Writing:
        def __init__(self, number):
            self.number = number

        def script(self):
            made = Script()
            made.add("INSERT INTO kept VALUES (?, ?)", (self.number, "script"))
            return made

        def outcome(self, ended):
            return ended.error

    def count(connection):
        return connection.execute("SELECT count(*) FROM kept").fetchone()[0]

    for number in range(5):
        writer.write(Writing(number), lambda *answer: told.put_nowait(answer))
        writer.submit(count, lambda *answer: told.put_nowait(answer))
    found = await answers(told, 10)
    writer.close()
    assert found[::2] == [(None, None)] * 5
    assert [value for value, _ in found[1::2]] == [1, 2, 3, 4, 5]
