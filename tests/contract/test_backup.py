"""Backups: of one moment, while the store is written to, looked through, replacing nothing."""

import asyncio
import sqlite3

import pytest

from brokerd.errors import BackupFailed, StoreDamaged
from brokerd.storage.changes import Changes
from brokerd.storage.store import Store


def pair(store, rows, sequence, endpoint):
    """A message in a queue and one to send, committed together."""
    changes = Changes()
    changes.enqueued.append(rows.message(store, endpoint, sequence, b"in"))
    changes.outgoing.append(rows.outgoing(store, endpoint, sequence, b"out"))
    return changes


def counts(path):
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as copy:
        found = [
            copy.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("conversation_endpoints", "queue_messages", "transmission_queue")
        ]
    copy.close()
    return found


@pytest.mark.rule("MAN-11")
async def test_a_backup_is_of_one_moment_while_commits_go_on(store, rows, tmp_path):
    endpoint = rows.endpoint(store)
    first = Changes()
    first.create(endpoint)
    await store.commit(first)
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
    assert not list(tmp_path.glob("*.new"))


@pytest.mark.rule("MAN-11", "OBJ-2", "MAN-12")
async def test_a_backup_opens_as_what_it_was(store, rows, tmp_path, executor, open_store):
    endpoint = rows.endpoint(store)
    first = pair(store, rows, 0, endpoint)
    first.create(endpoint)
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
    assert not list(tmp_path.glob("copy*"))
