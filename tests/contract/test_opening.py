"""Opening: one owner, a whole and known file, numbers that go on."""

import errno
import hashlib
import os
import sqlite3

import pytest

from brokerd.errors import StoreDamaged, StoreFull, StoreLocked, StoreVersion
from brokerd.process.exit_statuses import exit_status
from brokerd.storage import opening, schema
from brokerd.storage.changes import Changes
from brokerd.storage.store import Store
from brokerd.storage.tables import APPLICATION_ID
from brokerd.storage.verifying import verify


def sqlite_error(code):
    error = sqlite3.OperationalError("what SQLite says")
    error.sqlite_errorcode = code
    return error


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.rule("REL-16")
async def test_second_owner_is_refused_and_told_who_has_it(open_store, store, rows):
    with pytest.raises(StoreLocked, match=r"(process \d+|brokerd) on .+ since .+Z") as refused:
        await open_store()
    assert exit_status(refused.value) == 73
    changes = Changes()
    changes.create(rows.endpoint(store))
    await store.commit(changes)


@pytest.mark.rule("REL-16")
async def test_lock_is_free_after_close_and_after_a_crash(open_store):
    for end in (Store.close, Store.abandon):
        await end(await open_store())
    await open_store()


@pytest.mark.rule("REL-15")
async def test_open_counts_and_keeps_who_the_store_is(open_store):
    first = await open_store()
    await first.close()
    second = await open_store(create=None)
    assert (first.identity.epoch, second.identity.epoch) == (1, 2)
    assert second.identity.incarnation == first.identity.incarnation != b""
    assert second.identity.broker_name == "shop"
    assert second.identity.broker_id == b"b" * 16
    assert second.identity.instance_id == b"i" * 16
    assert second.identity.is_broker_enabled
    assert not second.identity.default_encryption


@pytest.mark.rule("RCV-37")
@pytest.mark.parametrize("end", [Store.close, Store.abandon])
async def test_numbers_are_not_used_again_after_a_restart(open_store, rows, end):
    store = await open_store()
    changes = Changes()
    endpoint = rows.endpoint(store)
    changes.create(endpoint)
    changes.enqueued.append(message := rows.message(store, endpoint, 0, b""))
    changes.outgoing.append(outgoing := rows.outgoing(store, endpoint, 0, b""))
    await store.commit(changes)
    gone = Changes()
    gone.remove(endpoint.key)
    gone.dequeued.append(message.queuing_order)
    gone.acknowledged.append(outgoing.transmission_order)
    await store.commit(gone)
    await end(store)
    again = await open_store()
    assert again.next_endpoint_key() > endpoint.key
    assert again.next_queuing_order() > message.queuing_order
    assert again.next_transmission_order() > outgoing.transmission_order


async def test_restart_finds_every_message_by_index_and_counts_them(open_store, rows):
    store = await open_store()
    one, two = rows.endpoint(store), rows.endpoint(store)
    changes = Changes()
    for endpoint in (one, two):
        changes.create(endpoint)
        changes.enqueued += [rows.message(store, endpoint, n, b"x", paged=n % 2) for n in range(3)]
    changes.enqueued.append(rows.message(store, two, 3, b"x", priority=9))
    changes.outgoing += [rows.outgoing(store, two, n, b"xy", paged=0) for n in (4, 5)]
    await store.commit(changes)
    await store.close()
    again = await open_store()
    since, other = changes.enqueued[0].enqueued_at, changes.enqueued[-1].enqueued_at
    assert again.recovered.waiting == [(1, 5, 6, since), (1, 9, 1, other)]
    assert again.recovered.outgoing == [(two.key, 2, 4, 4)]
    assert len((await again.messages.page(1, 5, -1, 10, 100)).rows) == 6


@pytest.mark.of_files("it looks for the file")
async def test_file_that_is_not_there_is_not_made_unasked(open_store, path):
    with pytest.raises(StoreDamaged):
        await open_store(create=None)
    assert not path.exists()


@pytest.mark.of_files("a server makes a store in one transaction")
@pytest.mark.rule("REL-5")
async def test_left_over_of_an_interrupted_creation_is_no_store(open_store, path):
    path.with_name("shop.db.new").write_bytes(b"half")
    await open_store()
    assert not path.with_name("shop.db.new").exists()


def write_sqlite(path, application_id):
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA application_id = {application_id}")
    connection.execute("CREATE TABLE t (a)")
    connection.close()


@pytest.mark.of_files("it is about the header of a file")
@pytest.mark.rule("BI-D1")
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.write_bytes(b""), "empty"),
        (lambda path: path.write_bytes(b"<html>" * 100), "not an SQLite file"),
        (lambda path: path.write_bytes(b"SQLite format 3\0"), "not an SQLite file"),
        (lambda path: write_sqlite(path, 0), "another application"),
        (lambda path: write_sqlite(path, 0x42), "another application"),
        (lambda path: write_sqlite(path, APPLICATION_ID), "alembic_version"),
    ],
    ids=["empty", "html", "short", "no_id", "other_id", "no_version"],
)
async def test_what_is_no_store_is_named_and_left_alone(open_store, path, make, said):
    make(path)
    before = digest(path)
    with pytest.raises(StoreDamaged, match=said) as refused:
        await open_store()
    assert exit_status(refused.value) == 65
    assert digest(path) == before


@pytest.mark.of_files("it compares bytes of the file")
@pytest.mark.rule("REL-29", "BI-D1")
async def test_newer_store_is_refused_and_left_alone(open_store, path):
    await (await open_store()).close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    before = digest(path)
    with pytest.raises(StoreVersion, match=rf"9999.*{schema.REVISIONS[-1]}") as refused:
        await open_store()
    assert exit_status(refused.value) == 78
    assert digest(path) == before


@pytest.mark.of_files("it is about objects in a file")
@pytest.mark.rule("BI-D2")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("DROP TABLE dialog_log", "lacks table dialog_log"),
        ("DROP INDEX queue_messages_of", "lacks index queue_messages_of"),
        (
            "CREATE TRIGGER t AFTER INSERT ON dialog_log BEGIN DELETE FROM dialog_log; END",
            "foreign trigger t",
        ),
        ("CREATE VIEW v AS SELECT 1", "foreign view v"),
        ("CREATE TABLE t (x)", "foreign table t"),
        ("CREATE INDEX i ON dialog_log (line)", "foreign index i"),
        ("ALTER TABLE dialog_log DROP COLUMN line", "lacks column line of table dialog_log"),
        ("ALTER TABLE dialog_log RENAME COLUMN line TO a", "lacks column line of table dialog_log"),
        ("ALTER TABLE dialog_log ADD COLUMN x", "foreign column x of table dialog_log"),
        (
            "ALTER TABLE dialog_log ADD COLUMN x AS (abs(line)) VIRTUAL",
            "foreign column x of table dialog_log",
        ),
        ("DELETE FROM store", "whose store"),
    ],
)
async def test_store_with_other_objects_is_refused(open_store, path, change, said):
    await (await open_store()).close()
    connection = sqlite3.connect(path)
    connection.execute(change)
    connection.commit()
    connection.close()
    with pytest.raises(StoreDamaged, match=said):
        await open_store()


@pytest.mark.of_files("it is about code in a file")
@pytest.mark.rule("BI-D2", "BI-D4", "REL-29")
@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (
            "trigger",
            "CREATE TRIGGER t AFTER UPDATE ON alembic_version BEGIN DELETE FROM store; END",
        ),
        (
            "view",
            "ALTER TABLE alembic_version RENAME TO kept; CREATE VIEW alembic_version AS"
            " WITH RECURSIVE endless (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM endless)"
            " SELECT count(*) AS version_num FROM endless",
        ),
    ],
)
async def test_code_in_a_store_of_any_version_is_refused_before_it_could_run(
    open_store, path, kind, code
):
    await (await open_store()).close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE alembic_version SET version_num = ?", (schema.REVISIONS[-2],))
    connection.executescript(code)
    connection.commit()
    connection.close()
    before = digest(path)
    with pytest.raises(StoreDamaged, match=f"foreign {kind}"):
        await open_store(create=None)
    with pytest.raises(StoreDamaged, match=f"foreign {kind}"):
        verify(path)
    assert digest(path) == before


@pytest.mark.of_files("a log is a file")
@pytest.mark.rule("MAN-11", "REL-5")
async def test_the_log_of_another_file_is_not_taken_for_that_of_a_backup(
    open_store, rows, path, tmp_path
):
    store = await open_store()
    copy = tmp_path / "copy.db"
    await store.backup(copy)
    changes = Changes()
    changes.create(rows.endpoint(store))
    await store.commit(changes)
    log = path.with_name(path.name + "-wal")
    kept = log.read_bytes()
    assert kept
    await store.abandon()
    log.write_bytes(kept)
    path.write_bytes(copy.read_bytes())
    before = digest(path)
    with pytest.raises(StoreDamaged, match=r"is a backup.*-wal") as refused:
        await open_store(create=None)
    assert "move" in refused.value.hint
    assert digest(path) == before
    log.unlink()
    await (await open_store(create=None)).close()
    await (await open_store(create=None)).close()


@pytest.mark.of_files("a log is a file")
@pytest.mark.rule("MAN-11")
async def test_no_new_store_is_made_beside_the_log_of_one_that_is_missing(open_store, path):
    await (await open_store()).close()
    path.with_name(path.name + "-wal").write_bytes(b"what was not folded into the file")
    path.unlink()
    with pytest.raises(StoreDamaged, match="is missing, and its log is there"):
        await open_store()
    assert not path.exists()


@pytest.mark.of_files("SQLite says that the disk is full")
@pytest.mark.rule("REL-26")
async def test_a_disk_that_is_full_is_no_damage(open_store, monkeypatch):
    def full(*_args, **_given):
        raise sqlite_error(sqlite3.SQLITE_FULL)

    monkeypatch.setattr(opening, "connect_writer", full)
    with pytest.raises(StoreFull) as refused:
        await open_store()
    assert exit_status(refused.value) == 75


@pytest.mark.of_files("it looks at the files that are left")
@pytest.mark.rule("REL-26", "FD-5")
@pytest.mark.parametrize(
    ("call", "error"),
    [
        ((os, "pwrite"), OSError(errno.ENOSPC, "no room")),  # who has the lock
        (
            (opening, "table_definitions"),
            OSError(errno.EDQUOT, "no more for you"),
        ),  # while it is made aside
        ((opening, "connect_writer"), sqlite_error(sqlite3.SQLITE_FULL)),
        ((opening, "connect_writer"), sqlite_error(sqlite3.SQLITE_IOERR_SHMSIZE)),
    ],
)
async def test_a_store_for_which_there_is_no_room_is_not_made(
    open_store, path, monkeypatch, call, error
):
    def fails(*_args, **_given):
        raise error

    with monkeypatch.context() as full:
        full.setattr(*call, fails)
        with pytest.raises(StoreFull) as refused:
            await open_store()
    assert exit_status(refused.value) == 75
    assert [one.name for one in path.parent.iterdir()] == [f"{path.name}.lock"]
    assert (await open_store()).identity.epoch == 1
