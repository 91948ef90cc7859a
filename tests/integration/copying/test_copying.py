"""Copying a store between engines: equal row for row, one history, never two or none (REL-61)."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from random import Random

import pytest

from brokerd.cli.main import main
from brokerd.clock import SystemClock
from brokerd.errors import (
    CopyFailed,
    StoreDamaged,
    StoreFault,
    StoreLocked,
    StoreMoved,
    StoreVersion,
    UsageError,
)
from brokerd.ids import BrokerId, InstanceId, QueueKey, SeededIds
from brokerd.model import Queue
from brokerd.storage import tables
from brokerd.storage.changes import Changes
from brokerd.storage.copying.files import FileSource
from brokerd.storage.copying.moving import Pair, verify_place
from brokerd.storage.copying.places import FilePlace, SchemaPlace, place_of
from brokerd.storage.copying.server import ServerSource
from brokerd.storage.executors import Inline
from brokerd.storage.opening import NewStore
from brokerd.storage.postgresql.executor import OnServer
from brokerd.storage.rows.catalog import CatalogChanges
from brokerd.storage.schema import REVISIONS
from brokerd.storage.statements import Inserts
from brokerd.storage.store import Store
from brokerd.storage.verifying import verify
from tests.contract.conftest import Rows
from tests.integration.copying.conftest import UNSYNCED, fill, rows_in_file
from tests.postgresql.fixtures import SHARED

ROOT = Path(__file__).parents[3]
_B, _I = b"b" * 16, b"i" * 16


def go(mover, source, target):
    return mover.move([Pair(source, lambda _facts: target)])[0]


def column(rows, name):
    at = [column.name for column in tables.store.columns].index(name)
    return rows["store"][0][at]


def without_host(rows):
    at = [column.name for column in tables.store.columns].index("host")
    (facts,) = rows["store"]
    return rows | {"store": [facts[:at] + facts[at + 1 :]]}


def version_of(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT version_num FROM alembic_version").fetchone()[0]


def change(place, statement, server):
    """Change a store as nobody should."""
    if isinstance(place, SchemaPlace):
        server.query(f'SET search_path = "{place.schema}"; {statement}', database=SHARED)
    else:
        with closing(sqlite3.connect(place.path)) as connection, connection:
            connection.execute(statement)


@pytest.fixture(params=["to a server", "to a file"])
def both(request, source, schema, mover, tmp_path):
    """A source and a free target, in both directions."""
    if request.param == "to a server":
        return source, schema
    go(mover(), source, schema)
    return schema, FilePlace(tmp_path / "back.db")


def test_the_store_of_these_tests_is_whole_and_has_rows_in_every_table(source):
    assert [one for one in verify(source.path) if one.is_damage] == []
    assert all(rows_in_file(source.path).values())


@pytest.mark.rule("REL-61", "REL-62")
def test_there_and_back_again_every_row_is_the_same(source, schema, mover, tmp_path):
    before = rows_in_file(source.path)
    there = go(mover(), source, schema)
    assert there.rows == sum(map(len, before.values()))
    assert verify_place(schema) == []
    back = FilePlace(tmp_path / "back.db")
    assert go(mover(), schema, back).tables == there.tables
    after = rows_in_file(back.path)
    assert without_host(after) == without_host(before)
    assert column(after, "host") is None  # the next daemon is at home there (MAN-7)
    with closing(sqlite3.connect(back.path)) as connection:
        sequence = dict(connection.execute("SELECT * FROM sqlite_sequence"))
    assert sequence["audit"] == 5000


@pytest.mark.rule("REL-82")
def test_a_text_with_nul_is_the_same_there_and_back(source, schema, mover, tmp_path):
    with closing(sqlite3.connect(source.path)) as connection, connection:
        connection.execute("UPDATE held_groups SET error = 'a' || char(0) || char(0xfdd0)")
        # As keys they have another order in PostgreSQL, which stores U+0000 as U+FDD0 and a digit.
        for key in ("a\0", "a\1"):
            connection.execute("INSERT INTO known_brokers VALUES (?, ?)", (key, b"k" * 16))
    before = rows_in_file(source.path)
    go(mover(), source, schema)
    assert verify_place(schema) == []
    back = FilePlace(tmp_path / "back.db")
    go(mover(), schema, back)
    assert without_host(rows_in_file(back.path)) == without_host(before)


@pytest.mark.rule("REL-61")
async def test_numbers_that_were_given_are_not_given_again(
    source, schema, mover, postgresql_server
):
    go(mover(), source, schema)
    ((key,),) = postgresql_server.query(
        f'SET search_path = "{schema.schema}"; INSERT INTO audit'
        " (at, action, actor, subject, outcome, detail) VALUES (1, '', '', '', '', '')"
        " RETURNING audit_key",
        database=SHARED,
    )
    assert key == "5001"


@pytest.mark.rule("REL-61")
async def test_a_store_that_was_moved_is_not_opened_again(source, schema, mover):
    go(mover(), source, schema)
    with pytest.raises(StoreMoved, match=rf"was moved to postgresql://.*schema={schema.schema}"):
        await opened(source.path, Inline())
    with pytest.raises(StoreMoved):
        verify(source.path)
    other = FilePlace(source.path.with_name("other.db"))
    with pytest.raises(StoreMoved):
        go(mover(), source, other)
    assert not other.path.exists()
    # Programs before this one know no marks, and refuse the version.
    assert version_of(source.path) not in REVISIONS


@pytest.mark.rule("REL-61")
def test_a_schema_that_was_moved_is_not_opened_again(source, schema, mover, tmp_path):
    go(mover(), source, schema)
    go(mover(), schema, FilePlace(tmp_path / "back.db"))
    with pytest.raises(StoreMoved, match=r"was moved to .*back\.db"):
        verify_place(schema)


@pytest.mark.rule("REL-61")
def test_a_copy_that_is_there_already_is_told_and_left_alone(both, mover):
    source, target = both
    assert not go(mover(), source, target).was_done
    assert go(mover(), source, target).was_done


@pytest.mark.rule("REL-62")
def test_a_copy_beside_its_source_has_another_history_and_delivers_nothing(
    source, schema, mover, tmp_path
):
    before = rows_in_file(source.path)
    assert not go(mover(keep_source=True), source, schema).is_moved
    assert rows_in_file(source.path) == before
    assert version_of(source.path) == REVISIONS[-1]
    back = FilePlace(tmp_path / "back.db")
    go(mover(), schema, back)
    after = rows_in_file(back.path)
    assert column(after, "incarnation") != column(before, "incarnation")
    assert column(after, "broker_id") == column(before, "broker_id")
    assert column(after, "is_broker_enabled") == 0
    assert column(after, "disabled_reason") == "foreign_fingerprint"
    assert {name for name in after if after[name] != before[name]} == {"store"}


@pytest.mark.rule("REL-61", "REL-16")
def test_a_source_in_use_is_refused_with_its_owner(both, mover):
    source, target = both
    if isinstance(source, FilePlace):
        owner, name = FileSource(source, clock=SystemClock()), f"process {os.getpid()}"
    else:
        owner, name = ServerSource(source, UNSYNCED), "brokerd store copy"
    with closing(owner), pytest.raises(StoreLocked, match=name):
        go(mover(), source, target)
    go(mover(), source, target)


@pytest.mark.rule("REL-61")
def test_a_target_that_is_there_is_refused_and_left_alone(both, mover, postgresql_server):
    source, target = both
    if isinstance(target, FilePlace):
        fill(target.path)
        before = rows_in_file(target.path)
    else:
        other = FilePlace(source.path.with_name("other.db"))
        fill(other.path)
        go(mover(), other, target)
    with pytest.raises(CopyFailed, match="is there already, as the store of broker shop"):
        go(mover(), source, target)
    assert verify_place(source) == []
    assert verify_place(target) == []
    if isinstance(target, FilePlace):
        assert rows_in_file(target.path) == before


@pytest.mark.rule("REL-61")
def test_a_schema_with_something_else_is_refused(source, schema, mover, postgresql_server):
    postgresql_server.query(
        f'CREATE SCHEMA "{schema.schema}" AUTHORIZATION brokerd;'
        f' CREATE TABLE "{schema.schema}".invoices ()', database=SHARED
    )  # fmt: skip
    with pytest.raises(CopyFailed, match="something else, such as invoices"):
        go(mover(), source, schema)


@pytest.mark.rule("REL-61")
def test_a_schema_that_was_made_for_the_store_is_used(source, schema, mover, postgresql_server):
    postgresql_server.query(
        f'CREATE SCHEMA "{schema.schema}" AUTHORIZATION brokerd', database=SHARED
    )
    assert go(mover(), source, schema).is_moved


WRONG_TYPE = "UPDATE held_groups SET error = x'00'"
DAMAGE = "UPDATE transmission_queue SET body = {} WHERE sequence = 1"


@pytest.mark.rule("REL-61", "HK-10")
def test_a_damaged_row_is_found_in_both_engines_and_not_copied(
    both, mover, postgresql_server, capsys
):
    source, target = both
    is_file = isinstance(source, FilePlace)
    change(source, DAMAGE.format("x'00'" if is_file else r"'\x00'"), postgresql_server)
    (found,) = [one for one in verify_place(source) if one.is_damage]
    assert (found.table, found.problem) == (
        "transmission_queue",
        "has a body that is not the one that was written",
    )
    with pytest.raises(StoreDamaged, match=r"is not whole.*transmission_queue"):
        go(mover(), source, target)
    if isinstance(target, FilePlace):
        assert not target.path.exists()
    assert main(["store", "verify", str(source), "--json"]) == 65
    (line,) = [
        one for one in json.loads(capsys.readouterr().out)["rows"] if not one["is_left_over"]
    ]
    assert line["table"] == "transmission_queue"


@pytest.mark.rule("HK-10")
def test_a_row_that_refers_to_nothing_is_found_on_a_server(
    source, schema, mover, postgresql_server, capsys
):
    go(mover(), source, schema)
    assert main(["store", "verify", str(schema)]) == 0
    assert capsys.readouterr().out.endswith(": nothing is wrong\n")
    statement = "SET session_replication_role = replica; DELETE FROM service_queues"
    change(schema, statement, postgresql_server)
    problems = {(one.table, one.problem.partition(" the ")[0]) for one in verify_place(schema)}
    assert ("service", "names") in problems
    assert ("queue_messages", "is in a queue that does not exist") in problems


@pytest.mark.rule("REL-61")
def test_a_value_that_the_server_cannot_keep_is_named(source, schema, mover, postgresql_server):
    with closing(sqlite3.connect(source.path)) as connection, connection:
        connection.execute(WRONG_TYPE)
    with pytest.raises(StoreDamaged, match=r"held_groups, group_id .*error has a value of another"):
        go(mover(), source, schema)
    assert version_of(source.path) == REVISIONS[-1]
    assert postgresql_server.query(
        f"SELECT count(*) FROM pg_class WHERE relnamespace = '\"{schema.schema}\"'::regnamespace",
        database=SHARED,
    ) == [("0",)]


@pytest.mark.rule("REL-61", "REL-29")
def test_a_store_of_an_older_version_is_refused(source, schema, mover):
    with closing(sqlite3.connect(source.path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '0023_headers'")
    with pytest.raises(StoreVersion):
        go(mover(), source, schema)


def test_a_server_that_is_not_there_is_named_without_the_password(source, mover):
    there = place_of("postgresql://me:secret@/db?host=/nowhere&schema=shop")
    with pytest.raises(StoreFault, match="cannot be used") as raised:
        go(mover(), source, there)
    assert "secret" not in str(raised.value)


@pytest.mark.rule("REL-61")
def test_a_copy_that_lacks_a_row_is_given_up(both, mover, monkeypatch):
    source, target = both
    add = Inserts.add

    def lose(self, script, rows):
        is_lossy = self._texts.columns[0].table is tables.group_states
        add(self, script, rows[:1] if is_lossy else rows)

    # As if the engine of the target had lost a row.
    monkeypatch.setattr(Inserts, "add", lose)
    with pytest.raises(CopyFailed, match=r"group_states .* is not what was written: 1 rows of 2"):
        go(mover(), source, target)
    monkeypatch.undo()
    assert can_be_opened(source)
    assert not go(mover(), source, target).was_done


KILLS = ["copying transmission_queue", "copy.filled", "copy.staged", "copy.marked"]


def run_and_kill(source, target, point):
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.copying.killed", str(source), str(target), point],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def can_be_opened(place):
    with suppress(StoreMoved, StoreDamaged):
        return verify_place(place) == []
    return False


@pytest.mark.rule("REL-61")
@pytest.mark.parametrize("point", KILLS)
def test_a_kill_leaves_one_store_and_the_same_command_finishes(both, mover, point):
    source, target = both
    run_and_kill(source, target, point)
    assert can_be_opened(source) is (point != "copy.marked")
    if not (isinstance(target, FilePlace) and not target.path.exists()):
        assert not can_be_opened(target)
    done = go(mover(), source, target)
    assert done.was_done is (point == "copy.marked")
    assert can_be_opened(target)
    assert not can_be_opened(source)
    if isinstance(target, FilePlace):
        left = [one.name for one in target.path.parent.iterdir() if ".copy-" in one.name]
        assert left == []


@pytest.mark.rule("REL-61")
def test_of_several_stores_all_are_moved_or_none(source, schema, mover, tmp_path):
    other = FilePlace(tmp_path / "other.db")
    fill(other.path)
    with closing(sqlite3.connect(other.path)) as connection, connection:
        connection.execute(WRONG_TYPE)
    places = {source: schema, other: SchemaPlace(schema.url, f"{schema.schema}_other")}
    pairs = [Pair(one, lambda _facts, to=to: to) for one, to in places.items()]
    with pytest.raises(StoreDamaged):
        mover().move(pairs)
    assert can_be_opened(source)
    assert not can_be_opened(schema)


@pytest.mark.rule("REL-61", "REL-62")
async def test_the_moved_store_continues_where_the_source_stopped(schema, mover, tmp_path):
    place = FilePlace(tmp_path / "shop.db")
    rows, new = Rows(SeededIds(Random(7))), NewStore("shop", BrokerId(_B), InstanceId(_I))
    store = await opened(place.path, Inline(), create=new)
    before = store.identity
    endpoint = rows.endpoint(store, send_sequence=2, receive_sequence=3)
    made = await store.apply_catalog(CatalogChanges(queues=(Queue(QueueKey(0), "inbox"),)))
    queue = made.queues["inbox"].key
    changes = Changes()
    changes.create(endpoint)
    changes.enqueued += [
        rows.message(store, endpoint, n, b"in %d" % n, queue=queue) for n in range(3)
    ]
    changes.outgoing += [rows.outgoing(store, endpoint, n, b"out %d" % n) for n in range(2)]
    await store.commit(changes)
    following = store.next_queuing_order()
    await store.close()
    go(mover(), place, schema)
    store = await opened(Path(f"/{schema.schema}.db"), OnServer(schema.url, UNSYNCED))
    try:
        after = store.identity
        assert after.epoch == before.epoch + 1
        assert (after.broker_id, after.instance_id) == (before.broker_id, before.instance_id)
        assert after.incarnation == before.incarnation
        assert store.next_queuing_order() >= following
        assert [row[1:3] for row in store.recovered.outgoing] == [(2, 0)]
        assert sum(row[2] for row in store.recovered.waiting) == 3
    finally:
        await store.close()


async def opened(path, executor, create=None):
    return await Store.open(
        path,
        ids=SeededIds(Random(5)),
        clock=SystemClock(),
        executor=executor,
        on_fault=lambda _fault: None,
        create=create,
    )


# The notation of places.


@pytest.mark.parametrize(
    ("text", "url", "schema"),
    [
        ("postgresql://me@db/x?schema=a", "postgresql://me@db/x", "a"),
        ("postgresql:///x?host=/run&schema=a&port=1", "postgresql:///x?host=/run&port=1", "a"),
        ("postgres://db1,db2/x", "postgres://db1,db2/x", "shop"),
    ],
)
def test_a_schema_is_a_parameter_of_the_url(text, url, schema):
    assert place_of(text, broker="shop") == SchemaPlace(url, schema)


@pytest.mark.parametrize(
    "text",
    ["postgresql://db/x#shop", "postgresql://db/?schema=a", "postgresql://db/x?schema=",
     "postgresql://db/x?schema=a&schema=b", "postgresql://[db/x"],
)  # fmt: skip
def test_a_url_that_names_no_store_is_refused(text):
    with pytest.raises(UsageError):
        place_of(text, broker="shop")


@pytest.mark.rule("SX-6")
def test_a_place_shows_no_password():
    place = place_of("postgresql://me:secret@db/x?password=secret&schema=a")
    assert str(place) == "postgresql://me@db/x?schema=a"
