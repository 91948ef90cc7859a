"""Backups: of one moment, while the store is written to, looked through, replacing nothing."""

import asyncio
import fcntl
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from brokerd.errors import BackupFailed, StoreDamaged
from brokerd.storage import backup
from brokerd.storage.changes import Changes
from brokerd.storage.store import Store
from brokerd.storage.verifying import verify
from tests.contract.test_verifying import a_queue

pytestmark = pytest.mark.of_files("a backup is a copy of a file")


async def begun(store, rows):
    """An endpoint that has sent nothing and received nothing, and a queue."""
    await a_queue(store)
    endpoint = rows.endpoint(store)
    changes = Changes()
    changes.create(endpoint)
    await store.commit(changes)
    return endpoint


def pair(store, rows, sequence, endpoint):
    """A message in a queue and one to send, committed together."""
    changes, queue = Changes(), store.catalog.queues["inbox"].key
    changes.enqueued.append(rows.message(store, endpoint, sequence, b"in", queue=queue))
    changes.outgoing.append(rows.outgoing(store, endpoint, sequence, b"out"))
    so_far = sequence + 1
    changes.move(replace(endpoint, send_sequence=so_far, receive_sequence=so_far))
    return changes


def counts(path):
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as copy:
        found = [
            copy.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("conversation_endpoints", "queue_messages", "transmission_queue")
        ]
    copy.close()
    return found


@pytest.mark.rule("MAN-11", "REL-30")
async def test_a_backup_is_of_one_moment_while_commits_go_on(store, rows, tmp_path):
    endpoint = await begun(store, rows)
    stop = asyncio.Event()

    async def write():
        for sequence in range(100_000):
            if stop.is_set():
                return sequence
            await store.commit(pair(store, rows, sequence, endpoint))
        return -1

    writing = asyncio.ensure_future(write())
    seen = []
    for number in range(5):
        await asyncio.sleep(0.02)
        target = tmp_path / f"copy{number}.db"
        size = await store.backup(target)
        assert size == target.stat().st_size > 0
        endpoints, queued, sent = counts(target)
        assert endpoints == 1
        assert queued == sent
        seen.append(queued)
    stop.set()
    assert seen == sorted(seen)
    assert await writing >= seen[-1] > 0
    assert not list(tmp_path.glob(".*"))


@pytest.mark.rule("MAN-11", "OBJ-2", "MAN-12", "REL-30")
async def test_a_backup_opens_as_what_it_was(store, rows, tmp_path, executor, open_store):
    endpoint = await begun(store, rows)
    first = pair(store, rows, 0, endpoint)
    await store.commit(first)
    received = Changes()
    received.dequeued.append(first.enqueued[0].queuing_order)
    await store.commit(received)
    target = tmp_path / "copy.db"
    await store.backup(target)
    copy = await Store.open(
        target,
        ids=rows.ids,
        clock=store._pipeline._clock,
        executor=executor,
        on_fault=lambda fault: pytest.fail(str(fault)),
    )
    try:
        assert copy.identity.broker_id == store.identity.broker_id
        assert copy.catalog == store.catalog
        assert copy.recovered.waiting == []  # what was received is not there again
        assert [row[1] for row in copy.recovered.outgoing] == [1]
        assert copy.next_endpoint_key() == store.next_endpoint_key()
    finally:
        await copy.close()


@pytest.mark.rule("MAN-11")
async def test_a_backup_replaces_nothing(store, tmp_path):
    target = tmp_path / "there.db"
    target.write_text("precious")
    with pytest.raises(BackupFailed, match=r"there\.db is there already"):
        await store.backup(target)
    assert target.read_text() == "precious"
    with pytest.raises(BackupFailed, match="cannot be written"):
        await store.backup(tmp_path / "no such directory" / "copy.db")


@pytest.mark.rule("MAN-11")
async def test_a_copy_that_is_not_sound_gets_no_name(store, tmp_path, monkeypatch):
    def spoil(_source, aside):
        aside.write_bytes(b"SQLite format 3\0" + bytes(5000))

    monkeypatch.setattr("brokerd.storage.backup._copy", spoil)
    target = tmp_path / "copy.db"
    with pytest.raises(StoreDamaged):
        await store.backup(target)
    assert not list(tmp_path.glob("*copy*"))


@pytest.mark.rule("MAN-11", "HK-10", "REL-30")
async def test_a_copy_that_verify_calls_not_whole_gets_no_name(store, rows, path, tmp_path):
    await store.commit(pair(store, rows, 0, await begun(store, rows)))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE queue_messages SET body = x'00'")
    target = tmp_path / "copy.db"
    with pytest.raises(StoreDamaged, match=r"the copy .* not whole: 1 thing .*the one"):
        await store.backup(target)
    assert not list(tmp_path.glob("*copy*"))


@pytest.mark.rule("MAN-11", "REL-36")
async def test_a_copy_with_what_a_start_deletes_is_a_backup(store, rows, path, tmp_path):
    await store.commit(pair(store, rows, 0, await begun(store, rows)))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE transmission_queue SET endpoint_key = 99")
    target = tmp_path / "copy.db"
    await store.backup(target)
    (left,) = [one for one in verify(target) if one.table == "transmission_queue"]
    assert left.is_left_over


@pytest.mark.rule("MAN-11")
async def test_what_a_killed_backup_left_goes_with_the_next_one(store, tmp_path):
    there = tmp_path / "backups"
    there.mkdir()
    cut_off = there / ".old.db.brokerd-backup"
    cut_off.write_bytes(b"half a copy")
    (there / ".old.db.brokerd-backup-journal").write_bytes(b"and its journal")
    being_written = there / ".now.db.brokerd-backup"
    being_written.write_bytes(b"half a copy")
    elsewhere = tmp_path / "precious"
    elsewhere.write_text("precious")
    (there / ".link.db.brokerd-backup").symlink_to(elsewhere)
    (there / "mine.db.new").write_text("mine")
    with being_written.open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        await store.backup(there / "copy.db")
    left = {one.name for one in there.iterdir()}
    assert left == {"copy.db", being_written.name, ".link.db.brokerd-backup", "mine.db.new"}
    assert elsewhere.read_text() == "precious"
    await store.backup(there / "second.db")
    assert not being_written.exists()


@pytest.mark.rule("MAN-11")
async def test_a_backup_that_is_being_written_is_left_to_its_writer(store, tmp_path, monkeypatch):
    seen: list[Path] = []
    copy = backup._copy

    def beside_another(source, aside):
        copy(source, aside)
        if not seen:
            seen.append(aside)
            backup.backup(source, tmp_path / "second.db")  # it clears up before it begins

    monkeypatch.setattr(backup, "_copy", beside_another)
    target = tmp_path / "first.db"
    await store.backup(target)
    assert verify(target) == verify(tmp_path / "second.db") == []
    assert seen[0].name == ".first.db.brokerd-backup"
    assert not seen[0].exists()


@pytest.mark.rule("MAN-11")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file away")
async def test_what_the_backup_of_another_user_left_stays(store, tmp_path):
    left = tmp_path / ".old.db.brokerd-backup"
    left.write_bytes(b"half a copy")
    os.chown(left, 65_534, -1)
    await store.backup(tmp_path / "copy.db")
    assert left.exists()
