"""A backup chain of a real store: each state of one moment, whole after a kill, restored so."""

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from brokerd.clock import SECOND, Instant, SystemClock
from brokerd.errors import BackupFailed, ObjectNotFound, RestoreFailed, StoreDamaged, StoreLocked
from brokerd.ids import RandomIds
from brokerd.storage import space
from brokerd.storage.backup_chain import follower as follower_module
from brokerd.storage.backup_chain import snapshots
from brokerd.storage.backup_chain.chain_files import read_chain
from brokerd.storage.backup_chain.follower import Added, Follower, Settings
from brokerd.storage.backup_chain.manifests import Manifest
from brokerd.storage.backup_chain.restoring import Restored, restore
from brokerd.storage.backup_chain.snapshots import Unsettled
from brokerd.storage.changes import Changes
from brokerd.storage.options import StoreOptions
from brokerd.storage.verifying import verify
from tests.contract.test_backup import begun, counts, pair

pytestmark = pytest.mark.of_files("a backup chain has the pages of files")

OFTEN_FOLDED = StoreOptions(checkpoint_pages=20)
KEEP = Settings(timedelta(days=7), timedelta(days=1))
one_executor = pytest.mark.parametrize("executor", ["threaded"], indirect=True)
"""For what does not depend on how the store is written."""
DAY = 24 * 3600 * SECOND


class SetClock(SystemClock):
    """A clock whose UTC a test sets; each reading is a microsecond later."""

    def __init__(self, at: int = 1_800_000_000 * SECOND) -> None:
        self.at = at

    def utc(self) -> Instant:
        self.at += 1
        return Instant(self.at)


class Chained:
    """A chain of the store at `path`, in a directory of its own."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path, self.folder = path, folder
        self.directory = folder / "chain"
        self.clock = SetClock()
        self._open: list[Follower] = []

    def begin(self, where: Path | None = None) -> Follower:
        where = where or self.directory
        one = Follower(where, settings=KEEP, clock=self.clock, ids=RandomIds())
        self._open.append(one)
        return one

    def close(self) -> None:
        for one in self._open:
            one.close()

    def add(self, follower: Follower) -> Added:
        return follower.add(lambda: {"shop": self.path})

    def rebuilt(self, name: str = "r", at: datetime | None = None) -> Restored:
        return rebuilt(self.directory, self.folder / name, at)

    def counts(self, name: str = "r") -> list[int]:
        """The numbers of messages in the queue and to be sent, in a store that was rebuilt."""
        found: list[int] = counts(self.folder / name / "shop.db")[1:]
        return found


@pytest.fixture
def chain(path: Path, tmp_path: Path) -> Iterator[Chained]:
    it = Chained(path, tmp_path)
    yield it
    it.close()


def rebuilt(directory: Path, target: Path, at: datetime | None = None) -> Restored:
    return restore(directory, target, at=at, brokers=(), ids=RandomIds(), clock=SystemClock())


def all_rows(path: Path) -> str:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return "\n".join(
            line for line in connection.iterdump() if not line.startswith('INSERT INTO "store"')
        )


@pytest.mark.rule("REL-46", "REL-49")
async def test_each_state_is_of_one_moment_while_commits_and_folds_go_on(
    open_store, rows, path, tmp_path, chain
):
    store = await open_store(options=OFTEN_FOLDED)
    endpoint = await begun(store, rows)
    stop = asyncio.Event()
    confirmed = 0

    async def write():
        nonlocal confirmed
        for sequence in range(100_000):
            if stop.is_set():
                return
            await store.commit(pair(store, rows, sequence, endpoint))
            confirmed = sequence + 1

    writing = asyncio.ensure_future(write())
    follower, seen = chain.begin(), []
    try:
        while len(seen) < 12 or store.metrics.checkpoints < 10:
            before = confirmed
            added = await asyncio.to_thread(chain.add, follower)
            if added.manifest is not None:
                seen.append((added.manifest, before))
            await asyncio.sleep(0.01)
    finally:
        stop.set()
        await writing
    assert {one.number for one, _ in seen} == set(range(len(seen)))
    last = 0
    for manifest, before in seen:
        target = tmp_path / f"r{manifest.number}"
        done = rebuilt(chain.directory, target, manifest.taken_at)
        assert done.number == manifest.number
        endpoints, queued, sent = counts(target / "shop.db")
        assert endpoints == 1
        assert queued == sent >= max(before, last)  # all that was confirmed by then
        last = queued
    assert await asyncio.to_thread(verify, path) == []


@pytest.mark.rule("REL-46")
async def test_the_newest_state_is_the_store_row_by_row(open_store, rows, path, tmp_path, chain):
    store = await open_store(options=OFTEN_FOLDED)
    endpoint = await begun(store, rows)
    follower = chain.begin()
    for sequence in range(60):
        await store.commit(pair(store, rows, sequence, endpoint))
        chain.add(follower)
    await store.commit(pair(store, rows, 60, endpoint))
    follower.close()
    follower = chain.begin()  # it goes on with the chain that is there
    added = chain.add(follower)
    assert added.manifest is not None
    assert added.manifest.number > 0
    chain.rebuilt()
    copy = tmp_path / "copy.db"
    await store.backup(copy)
    assert all_rows(tmp_path / "r" / "shop.db") == all_rows(copy)


@pytest.mark.rule("REL-46")
async def test_an_increment_has_what_was_written_and_no_more(
    open_store, rows, path, monkeypatch, chain
):
    store = await open_store(options=StoreOptions(checkpoint_pages=1_000_000))
    endpoint = await begun(store, rows)
    for sequence in range(300):
        await store.commit(pair(store, rows, sequence, endpoint))
    follower = chain.begin()
    full = chain.add(follower).manifest
    await store.commit(pair(store, rows, 300, endpoint))

    def nothing(*_given: object) -> Iterator[tuple[int, bytes]]:
        raise AssertionError("the whole file was read, though the log has all that was written")

    monkeypatch.setattr(snapshots.Snapshot, "_all", nothing)
    increment = chain.add(follower).manifest
    assert 0 < increment.stores[0].changed < full.stores[0].changed / 5
    assert chain.add(follower).manifest is None


@one_executor
@pytest.mark.rule("REL-46")
async def test_where_nothing_changes_no_store_is_opened(store, rows, path, monkeypatch, chain):
    await begun(store, rows)
    follower = chain.begin()
    chain.add(follower)

    def nothing(*_given: object) -> None:
        raise AssertionError("a store was opened")

    monkeypatch.setattr(snapshots, "_opened", nothing)
    chain.clock.at += 60 * SECOND
    assert chain.add(follower).manifest is None
    done = chain.rebuilt()
    assert done.last_look.looked_at - done.taken_at >= timedelta(seconds=60)


@one_executor
@pytest.mark.rule("REL-47")
async def test_a_kill_at_any_moment_leaves_a_whole_chain(store, rows, tmp_path, monkeypatch, chain):
    endpoint = await begun(store, rows)
    copies: list[tuple[Path, int]] = []
    made = 0

    def copying(module: object, name: str) -> None:
        call = getattr(module, name)

        def wrapped(*given: object, **named: object) -> object:
            copy = tmp_path / f"copy{len(copies)}"
            shutil.copytree(chain.directory, copy)
            copies.append((copy, made))
            return call(*given, **named)

        monkeypatch.setattr(module, name, wrapped)

    copying(os, "fsync")
    copying(Path, "rename")
    copying(follower_module, "_write_all")
    follower = chain.begin()
    for sequence in range(3):
        await store.commit(pair(store, rows, sequence, endpoint))
        chain.add(follower)
        made = sequence + 1
    monkeypatch.undo()
    assert len(copies) > 20
    for copy, had in copies:
        again = Follower(copy, settings=KEEP, clock=SetClock(), ids=RandomIds())
        assert again.problem == ""
        (generation,) = read_chain(copy, with_hashes=True) or [None]
        assert generation is None or generation.problem == ""
        states = 0 if generation is None else len(generation.pieces)
        assert had <= states <= had + 1
        if states:
            target = copy.with_name(f"{copy.name}-r")
            rebuilt(copy, target)
            assert counts(target / "shop.db")[1:] == [states, states]
        chain.add(again)
        again.close()
        target = copy.with_name(f"{copy.name}-again")
        rebuilt(copy, target)
        assert counts(target / "shop.db")[1:] == [3, 3]


@pytest.fixture
async def three_states(store, rows, chain: Chained) -> list[Manifest]:
    """The manifests of a chain of three pieces; each has a message more than the one before."""
    endpoint = await begun(store, rows)
    follower, found = chain.begin(), []
    for sequence in range(3):
        await store.commit(pair(store, rows, sequence, endpoint))
        found.append(chain.add(follower).manifest)
    return found


@one_executor
@pytest.mark.rule("REL-48", "REL-49")
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("name", [".json", "-shop.pages"])
@pytest.mark.parametrize("how", ["removed", "cut off", "changed"])
async def test_a_broken_piece_is_named_and_states_before_it_stay(
    three_states, number, name, how, chain
):
    name = f"{number:08}{name}"
    broken = chain.directory / three_states[0].generation / name
    content = broken.read_bytes()
    if how == "removed":
        broken.unlink()
    elif how == "cut off":
        broken.write_bytes(content[: len(content) // 2])
    else:
        at = content.index(b'"seed"') + 1 if broken.suffix == ".json" else len(content) // 2
        broken.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    (generation,) = read_chain(chain.directory, with_hashes=True)
    assert f"{three_states[0].generation}/{name}" in generation.problem
    assert len(generation.pieces) == number
    with pytest.raises(RestoreFailed, match=name):
        chain.rebuilt()
    assert not list((chain.folder / "r").glob("*.db"))
    if number:
        chain.rebuilt("earlier", three_states[number - 1].taken_at)
        assert chain.counts("earlier") == [number, number]


@one_executor
@pytest.mark.rule("REL-48")
async def test_a_broken_chain_is_not_continued(three_states, path, tmp_path, chain):
    chain.begin(tmp_path / "other").close()
    (chain.directory / three_states[0].generation / "00000001-shop.pages").write_bytes(b"")
    shutil.copytree(chain.directory, tmp_path / "copy")
    follower = chain.begin(tmp_path / "copy")
    assert "00000001-shop.pages" in follower.problem
    added = chain.add(follower)
    assert added.manifest.number == 0
    assert added.manifest.generation.startswith("g000002-")
    rebuilt(tmp_path / "copy", tmp_path / "r")
    assert chain.counts() == [3, 3]


@one_executor
@pytest.mark.rule("REL-50", "REL-15")
async def test_a_restored_store_keeps_its_identity_and_begins_a_new_history(
    store, three_states, tmp_path, chain
):
    done = chain.rebuilt("r", three_states[1].taken_at)
    (one,) = done.stores
    with closing(sqlite3.connect(tmp_path / "r" / "shop.db")) as connection:
        query = "SELECT broker_id, incarnation, epoch FROM store"
        broker_id, incarnation, epoch = connection.execute(query).fetchone()
    assert broker_id == store.identity.broker_id
    assert incarnation != store.identity.incarnation
    assert epoch == store.identity.epoch
    assert one.incarnation != one.former_incarnation
    assert {path.name for path in (tmp_path / "r").iterdir()} == {
        "shop.db",
        "shop.db.lock",
        "msdb.db.lock",
    }
    assert verify(tmp_path / "r" / "shop.db") == []


@one_executor
@pytest.mark.rule("REL-50")
@pytest.mark.parametrize("there", ["shop.db", "shop.db-wal", "shop.db-shm"])
async def test_a_restore_replaces_nothing(three_states, tmp_path, there, chain):
    target = tmp_path / "r"
    target.mkdir()
    (target / there).write_text("precious")
    with pytest.raises(RestoreFailed, match=f"{there} is there already"):
        rebuilt(chain.directory, target)
    assert (target / there).read_text() == "precious"
    assert {one.name for one in target.iterdir()} == {there, "shop.db.lock", "msdb.db.lock"}


@one_executor
@pytest.mark.rule("REL-50")
async def test_a_restore_leaves_the_directory_of_a_running_daemon_alone(
    store, three_states, path, chain
):
    with pytest.raises(StoreLocked):
        rebuilt(chain.directory, path.parent)


@one_executor
@pytest.mark.rule("REL-49")
async def test_what_is_not_in_the_chain_is_said(three_states, tmp_path, chain):
    with pytest.raises(BackupFailed, match="no state of") as refused:
        chain.rebuilt("r", datetime(2020, 1, 1, tzinfo=UTC))
    assert f"{three_states[0].taken_at:%FT%T}" in refused.value.hint
    with pytest.raises(ObjectNotFound, match="no broker other"):
        restore(
            chain.directory,
            tmp_path / "r",
            at=None,
            brokers=["other"],
            ids=RandomIds(),
            clock=SystemClock(),
        )
    with pytest.raises(BackupFailed, match="no backup chain"):
        rebuilt(tmp_path, tmp_path / "r")
    assert not (tmp_path / "r").exists()


@one_executor
@pytest.mark.rule("REL-51")
async def test_generations_older_than_is_kept_go_once_a_newer_one_is_whole(
    store, rows, path, chain
):
    endpoint = await begun(store, rows)
    follower, removed = chain.begin(), []
    for sequence in range(11):
        await store.commit(pair(store, rows, sequence, endpoint))
        added = chain.add(follower)
        assert added.manifest.number == 0  # a day has passed
        removed += added.removed
        chain.clock.at += DAY
    assert [one[:7] for one in removed] == ["g000001", "g000002", "g000003"]
    first, *_, last = sorted(one.name for one in chain.directory.glob("g*"))
    assert first[:7] == "g000004"
    assert last[:7] == "g000011"
    assert not list(chain.directory.glob(".g*"))
    follower.close()
    (chain.directory / last / "00000000-shop.pages").unlink()
    chain.clock.at += 30 * DAY
    chain.add(chain.begin())
    left = sorted(one.name[:7] for one in chain.directory.glob("g*"))
    assert left == ["g000010", "g000011", "g000012"]  # g000011 is not whole, so it replaces nothing


@one_executor
@pytest.mark.rule("REL-47")
async def test_one_follower_writes_to_a_chain(store, chain):
    chain.begin()
    with pytest.raises(BackupFailed, match="another follower writes"):
        chain.begin()


@one_executor
@pytest.mark.rule("REL-47")
async def test_a_directory_that_was_unmounted_is_not_made_anew(store, path, chain):
    follower = chain.begin()
    chain.add(follower)
    chain.directory.rename(chain.directory.with_name("elsewhere"))
    with pytest.raises(BackupFailed, match="is not the directory any more"):
        chain.add(follower)
    assert not chain.directory.exists()
    chain.directory.mkdir()
    with pytest.raises(BackupFailed, match="is not the directory any more"):
        chain.add(follower)


@one_executor
@pytest.mark.rule("REL-46")
async def test_a_round_that_fails_leaves_the_chain_and_can_be_repeated(
    store, rows, monkeypatch, chain
):
    endpoint = await begun(store, rows)
    follower = chain.begin()
    chain.add(follower)
    await store.commit(pair(store, rows, 0, endpoint))

    def no_room(*_given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(follower_module, "_write_all", no_room)
    with pytest.raises(OSError, match="No space left"):
        chain.add(follower)
    (generation,) = read_chain(chain.directory, with_hashes=True)
    assert (len(generation.pieces), generation.problem) == (1, "")
    monkeypatch.undo()
    assert chain.add(follower).manifest.number == 1
    chain.rebuilt()
    assert chain.counts() == [1, 1]


@one_executor
@pytest.mark.rule("REL-52")
async def test_the_log_of_a_killed_daemon_is_read_if_it_is_whole(
    store, rows, path, tmp_path, chain
):
    endpoint = await begun(store, rows)
    for sequence in range(5):
        await store.commit(pair(store, rows, sequence, endpoint))
    left = tmp_path / "left"
    left.mkdir()
    for suffix in ("", "-wal", "-head"):
        shutil.copy(f"{path}{suffix}", left)
    left /= path.name
    chain.begin().add(lambda: {"shop": left})
    chain.rebuilt()
    assert chain.counts() == [5, 5]
    os.truncate(f"{left}-wal", 5000)
    with pytest.raises(StoreDamaged, match="that were confirmed are missing"):
        chain.begin(tmp_path / "second").add(lambda: {"shop": left})


@one_executor
@pytest.mark.rule("REL-52")
async def test_a_store_that_was_closed_is_read_as_it_lies(open_store, rows, path, tmp_path, chain):
    store = await open_store()
    await store.commit(pair(store, rows, 0, await begun(store, rows)))
    await store.close()
    follower = chain.begin()
    assert chain.add(follower).manifest is not None
    assert chain.add(follower).manifest is None
    assert {one.name for one in path.parent.glob("shop.db*")} <= {
        "shop.db",
        "shop.db-head",
        "shop.db.lock",
    }
    chain.rebuilt()
    assert chain.counts() == [1, 1]


@one_executor
@pytest.mark.rule("REL-52")
async def test_a_broker_that_is_made_meanwhile_comes_with_the_next_round(store, path, chain):
    follower = chain.begin()
    found = iter([{"shop": path}, {"shop": path, "new": path}])
    with pytest.raises(Unsettled, match="was made or removed"):
        follower.add(lambda: next(found))


@one_executor
@pytest.mark.rule("REL-46")
@pytest.mark.parametrize("how_often", [1, 3, 1_000_000])
async def test_stores_are_read_as_of_one_moment(store, tmp_path, monkeypatch, how_often):
    """Another store is changed, then this one, each time that the snapshot of this one began."""
    other = tmp_path / "other.db"
    for suffix in ("", "-wal", "-head"):
        shutil.copy(f"{store.path}{suffix}", f"{other}{suffix}")
    begin, changes = snapshots._Logged.begin, 0

    def change(path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("UPDATE store SET epoch = epoch + 1")

    def begin_and_change(held: snapshots._Logged) -> None:
        nonlocal changes
        begin(held)
        if held._path == store.path and changes < how_often:
            changes += 1
            change(other)
            change(store.path)

    monkeypatch.setattr(snapshots._Logged, "begin", begin_and_change)
    with snapshots.held_together([store.path, other]) as (held, is_one_moment):
        epochs = [one.snapshot.facts.epoch for one in held]
    assert is_one_moment == (how_often < snapshots._ATTEMPTS)
    assert (epochs[0] == epochs[1]) == is_one_moment


@one_executor
@pytest.mark.rule("REL-46")
@pytest.mark.parametrize("is_folded", [False, True])
async def test_a_store_may_shrink_and_grow(store, rows, tmp_path, chain, is_folded):
    endpoint = await begun(store, rows)

    async def fill(first: int) -> None:
        changes = Changes()
        for number in range(first, first + 100):
            row = rows.message(store, endpoint, number, b"x" * 3000)
            changes.enqueued.append(row._replace(queue=store.catalog.queues["inbox"].key))
        changes.move(replace(endpoint, receive_sequence=first + 100))
        await store.commit(changes)

    def shrink(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM queue_messages WHERE sequence >= 20")
        space.give_back(connection, 1000)

    follower, pages = chain.begin(), []
    for step in (lambda: fill(0), lambda: store.run(shrink), lambda: fill(100)):
        await step()
        if is_folded:
            await store.fold()
        pages.append(chain.add(follower).manifest.stores[0].pages)
        chain.rebuilt(f"r{len(pages)}")
    assert pages[1] < pages[0] - 50
    assert pages[2] > pages[1] + 50
    await store.backup(tmp_path / "copy.db")
    assert all_rows(tmp_path / "r3" / "shop.db") == all_rows(tmp_path / "copy.db")
