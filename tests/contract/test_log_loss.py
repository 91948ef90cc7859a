"""A log that lacks what was confirmed keeps its store from being opened (REL-6, FD-9)."""

import os
import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from brokerd.cli.main import main
from brokerd.clock import SystemClock
from brokerd.errors import StoreDamaged, StoreFault, StoreFull, StoreLocked, UnsafeFile
from brokerd.ids import SeededIds
from brokerd.storage import opening
from brokerd.storage.changes import Changes
from brokerd.storage.files import log_check, log_head
from brokerd.storage.files.log_check import Loss, find_loss, refuse_loss
from brokerd.storage.files.log_head import (
    LogHead,
    Record,
    State,
    head_path,
    index_path,
    log_path,
    read_record,
)
from brokerd.storage.loss_acceptance import Accepted, accept_loss
from brokerd.storage.store import Store
from brokerd.storage.verifying import verify
from brokerd.storage.writers import fold
from tests.contract.test_backup import begun, pair

FRAME = 4096 + 24

pytestmark = pytest.mark.of_files("a log is a file beside that of the store")


async def confirm(store, rows, count):
    """So many messages, each confirmed by itself."""
    for _ in range(count):
        changes = Changes()
        endpoint = rows.endpoint(store)
        changes.put(endpoint)
        changes.enqueued.append(rows.message(store, endpoint, 0, b"b" * 100))
        await store.commit(changes)


def killed(path: Path, name: str) -> Path:
    """The files as a kill of the process would leave them now, in a directory of their own."""
    copy = path.parent / name / path.name
    copy.parent.mkdir()
    for one in (path, log_path(path), head_path(path)):
        if one.exists():
            shutil.copy(one, f"{copy.parent}/{one.name}")
    return copy


def messages(path: Path) -> int:
    """How many SQLite finds, as it opens the file."""
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT count(*) FROM queue_messages").fetchone()[0])


def lost(path: Path) -> Loss:
    found = find_loss(path)
    assert found is not None
    return found


def recorded(path: Path) -> Record:
    found = read_record(path)
    assert found is not None
    return found


def accept(path: Path, ids: SeededIds) -> Accepted:
    accepted = accept_loss(path, ids=ids, clock=SystemClock())
    assert accepted is not None
    return accepted


@pytest.fixture
async def left(open_store, rows, path):
    """Files left by a kill after twenty messages, with a log that begins at the opening."""
    store = await open_store()
    await confirm(store, rows, 20)
    return killed(path, "left")


def test_what_a_kill_leaves_has_everything(left):
    record = recorded(left)
    assert record.state is State.OPEN
    assert record.frames == (log_path(left).stat().st_size - 32) // FRAME
    assert find_loss(left) is None
    assert messages(left) == 20


@pytest.mark.rule("REL-39", "REL-6")
@pytest.mark.parametrize("seed", range(25))
def test_a_flipped_bit_is_told_or_has_no_effect(left, seed):
    """Everywhere: header of the log, headers of frames, pages; the last commit, too."""
    rng = Random(seed)
    log = bytearray(log_path(left).read_bytes())
    at = rng.randrange(32) if seed % 5 == 0 else rng.randrange(len(log))
    log[at] ^= 1 << rng.randrange(8)
    log_path(left).write_bytes(log)
    loss = find_loss(left)
    assert loss is not None or messages(left) == 20, at


def last_frame(log: bytearray) -> int:
    return len(log) - FRAME


def cut_last(log: bytearray) -> None:
    del log[last_frame(log) :]


def cut_half(log: bytearray) -> None:
    del log[len(log) // 2 :]


def cut_all(log: bytearray) -> None:
    log.clear()


def zero_page(log: bytearray) -> None:
    at = 32 + FRAME * (len(log) // FRAME // 2)
    log[at : at + FRAME] = bytes(FRAME)


def swap_frames(log: bytearray) -> None:
    one, other = 32 + FRAME, 32 + 4 * FRAME
    first, second = log[one : one + FRAME], log[other : other + FRAME]
    log[one : one + FRAME], log[other : other + FRAME] = second, first


def flip_header(log: bytearray) -> None:
    log[17] ^= 1


def flip_salt(log: bytearray) -> None:
    log[32 + 3 * FRAME + 9] ^= 1


def flip_last_commit(log: bytearray) -> None:
    log[last_frame(log) + 100] ^= 1


def flip_middle(log: bytearray) -> None:
    log[len(log) // 2] ^= 1


DAMAGE = [
    cut_last,
    cut_half,
    cut_all,
    zero_page,
    swap_frames,
    flip_header,
    flip_salt,
    flip_last_commit,
    flip_middle,
]


@pytest.mark.rule("REL-39", "REL-6", "FD-8", "BI-D2")
@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_damaged_log_keeps_the_store_closed_and_nothing_changes(
    left, executor, rows, damage
):
    log = bytearray(log_path(left).read_bytes())
    damage(log)
    log_path(left).write_bytes(log)
    before = {one.name: one.read_bytes() for one in left.parent.iterdir()}
    with pytest.raises(StoreDamaged) as refused:
        await open_at(left, executor, rows)
    told = refused.value.message
    assert str(log_path(left)) in told
    assert "confirmed" in told
    assert f"store accept-loss {left}" in refused.value.hint
    after = {one.name: one.read_bytes() for one in left.parent.iterdir()}
    after.pop("shop.db.lock")
    assert after == before
    (finding,) = verify(left)
    assert finding.problem in told


@pytest.mark.rule("REL-39")
async def test_a_log_that_another_program_has_folded_may_be_accepted(left, executor, rows):
    assert messages(left) == 20  # SQLite folds the log, and removes it as it closes the file
    assert not log_path(left).exists()
    with pytest.raises(StoreDamaged) as refused:
        await open_at(left, executor, rows)
    assert "such as sqlite3" in refused.value.hint
    assert "nothing is lost: accept-loss is right then" in refused.value.hint
    accept(left, rows.ids)
    again = await open_at(left, executor, rows)
    await again.close()
    assert messages(left) == 20


@pytest.mark.rule("REL-39")
async def test_a_log_that_is_damaged_was_folded_by_nobody(left, executor, rows):
    log = bytearray(log_path(left).read_bytes())
    log[32 + 10 * FRAME + 500] ^= 1
    log_path(left).write_bytes(log)
    with pytest.raises(StoreDamaged) as refused:
        await open_at(left, executor, rows)
    assert "sqlite3" not in refused.value.hint


@pytest.mark.rule("REL-39", "REL-37")
def test_no_loss_is_accepted_beside_a_saved_log(left, rows, tmp_path):
    saved = left.with_name("shop.db-wal.saved-3")
    log_path(left).rename(saved)
    before = {one.name: one.read_bytes() for one in left.parent.iterdir()}
    assert lost(left).saved == (str(saved),)
    (finding,) = verify(left)
    assert f"mv {saved} {log_path(left)}" in finding.problem
    with pytest.raises(StoreDamaged, match="the loss is not accepted") as refused:
        accept(left, rows.ids)
    assert f"mv {saved} {log_path(left)}" in refused.value.hint
    after = {one.name: one.read_bytes() for one in left.parent.iterdir()}
    after.pop("shop.db.lock")
    assert after == before
    saved.rename(tmp_path / "away")
    assert accept(left, rows.ids).loss.saved == ()


async def open_at(path, executor, rows):
    return await Store.open(
        path, ids=rows.ids, clock=SystemClock(), executor=executor, on_fault=lambda _: None
    )


@pytest.mark.rule("REL-39", "REL-6")
def test_the_place_and_what_is_missing_are_told(left):
    log = bytearray(log_path(left).read_bytes())
    log[32 + 10 * FRAME + 500] ^= 1
    log_path(left).write_bytes(log)
    record = recorded(left)
    loss = lost(left)
    assert f"offset {32 + 10 * FRAME}, in frame 11" in loss.problem
    found = messages(left)
    assert loss.commits >= 20 - found > 0
    assert loss.frames >= record.frames - 10
    assert loss.confirmed_at == record.written_at


@pytest.mark.rule("REL-39", "REL-6")
def test_a_torn_end_that_nobody_was_told_of_is_none(left):
    """A transaction was being written when the power went: its frames are there in part."""
    log = log_path(left).read_bytes()
    torn = bytearray(log[-2 * FRAME :])
    torn[4:8] = bytes(4)
    for end in (torn, torn[: FRAME + 100], bytes(3 * FRAME)):
        log_path(left).write_bytes(log + end)
        assert find_loss(left) is None


@pytest.mark.rule("REL-39", "FD-9")
async def test_a_log_that_is_gone_keeps_the_store_closed(left, executor, rows):
    log_path(left).unlink()
    with pytest.raises(StoreDamaged, match=r"shop\.db-wal is missing"):
        await open_at(left, executor, rows)
    assert not log_path(left).exists()


@pytest.mark.rule("REL-39", "FD-9")
async def test_the_log_of_another_store_or_time_keeps_it_closed(open_store, path, executor, rows):
    store = await open_store()
    await confirm(store, rows, 3)
    early = killed(path, "early")
    await confirm(store, rows, 3)
    late = killed(path, "late")
    await store.fold()
    await confirm(store, rows, 1)
    later = killed(path, "later")
    for of, where in ((early, late), (late, later), (early, later)):
        shutil.copy(log_path(of), log_path(where))
        with pytest.raises(StoreDamaged, match="-wal"):
            await open_at(where, executor, rows)
    await store.close()
    closed = killed(path, "closed")
    shutil.copy(log_path(later), log_path(closed))
    with pytest.raises(StoreDamaged, match="closed without one"):
        await open_at(closed, executor, rows)


@pytest.mark.rule("REL-39", "REL-6", "REL-7")
async def test_no_moment_at_which_a_healthy_store_is_killed_is_told(open_store, rows, path):
    """Also while its log is folded, begun anew and cut, at each call for the record."""
    moments: list[Path] = []
    wrong: list[str] = []

    def look() -> None:
        copy = killed(path, f"moment-{len(moments)}")
        moments.append(copy)
        loss = find_loss(copy)
        if loss is not None:
            wrong.append(f"{len(moments)}: {loss.show()}")
        shutil.rmtree(copy.parent)

    class Watched(log_head.LogHead):
        def _write(self, data):
            look()
            super()._write(data)
            look()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("brokerd.storage.connections.LogHead", Watched)
        for _ in range(3):
            store = await open_store()
            look()
            for _ in range(4):
                await confirm(store, rows, 2)
                await store.run(fold)
                look()
                await confirm(store, rows, 1)
                look()
                await store.fold()
                look()
            await confirm(store, rows, 1)
            await (store.close() if Random(len(moments)).random() < 0.5 else store.abandon())
            look()
    assert not wrong
    assert len(moments) > 60


@pytest.mark.rule("REL-39", "REL-6")
async def test_a_power_cut_finds_no_less_than_the_record_that_was_synced_says(
    open_store, rows, path, monkeypatch
):
    """What was written and not synced may be gone of the record; never what it has to say first."""
    store = await open_store()
    record = head_path(path)
    durable = record.read_bytes()
    sync = log_head.LogHead._sync

    def synced(self):
        nonlocal durable
        sync(self)
        durable = record.read_bytes()

    monkeypatch.setattr(log_head.LogHead, "_sync", synced)
    steps = (1, 5, fold, 1, 3, store.fold, 1, fold, 1, fold, 2)
    for at, step in enumerate(steps):
        if isinstance(step, int):
            await confirm(store, rows, step)
        elif step is fold:
            await store.run(fold)
        else:
            await step()
        cut = killed(path, f"cut-{at}")
        head_path(cut).write_bytes(durable)
        assert find_loss(cut) is None, at
    await store.sync_head()
    assert record.read_bytes() == durable
    assert store.is_head_synced


@pytest.mark.rule("REL-39", "REL-6")
async def test_a_log_all_of_which_is_folded_and_is_damaged_loses_nothing(open_store, rows, path):
    store = await open_store()
    await confirm(store, rows, 9)
    await store.run(fold)
    left = killed(path, "left")
    log = bytearray(log_path(left).read_bytes())
    log[len(log) // 2] ^= 1
    log_path(left).write_bytes(log)
    loss = lost(left)
    assert loss.is_in_file
    assert (loss.frames, loss.commits) == (0, 0)
    log_path(left).unlink()
    assert find_loss(left) is None
    assert messages(left) == 9


@pytest.mark.rule("REL-39", "REL-6")
@pytest.mark.parametrize("at", [3, 20, 30, 50])
def test_a_damaged_record_is_told(left, at):
    data = bytearray(head_path(left).read_bytes())
    data[at] ^= 4
    head_path(left).write_bytes(data)
    assert str(head_path(left)) in lost(left).show()


@pytest.mark.rule("REL-39")
def test_there_is_one_cure_wherever_a_loss_is_told(left, capsys):
    log = bytearray(log_path(left).read_bytes())
    cut_half(log)
    log_path(left).write_bytes(log)
    with pytest.raises(StoreDamaged) as refused:
        refuse_loss(left)
    hint = refused.value.hint
    assert hint.endswith(f"brokerd store accept-loss {left} --yes")
    (finding,) = verify(left)
    assert finding.cure == hint
    for command in ("verify", "accept-loss"):
        assert main(["store", command, str(left)]) == 65
        assert f"  fix: {hint}" in capsys.readouterr().err


@pytest.mark.rule("REL-41")
@pytest.mark.parametrize("without", ["record", "log and record"])
def test_what_a_copy_without_its_log_or_record_may_lack_is_said(left, without):
    head_path(left).unlink()
    if without != "record":
        log_path(left).unlink()
        index_path(left).unlink(missing_ok=True)
    (finding,) = [one for one in verify(left) if one.is_unknown]
    assert not finding.is_damage
    assert str(head_path(left)) in finding.problem
    assert (str(log_path(left)) in finding.problem) is (without != "record")


@pytest.mark.rule("REL-39", "REL-6")
def test_without_a_record_commits_behind_a_bad_frame_are_told(left):
    head_path(left).unlink()
    assert find_loss(left) is None
    log = bytearray(log_path(left).read_bytes())
    log[len(log) // 2] ^= 1
    log_path(left).write_bytes(log)
    assert "damaged at offset" in lost(left).problem


@pytest.mark.rule("REL-39", "REL-7")
async def test_a_start_that_fails_and_is_killed_as_it_closes_leaves_no_loss(
    left, executor, rows, monkeypatch
):
    """SQLite removes the log as the connection closes: the record has to say so before."""

    def fail(*_: object) -> None:
        raise StoreFault("it cannot be recovered just now")

    def killed_before(head: LogHead, **_: object) -> None:
        os.close(head._file)

    monkeypatch.setattr(opening, "read_recovered", fail)
    monkeypatch.setattr(LogHead, "close", killed_before)
    with pytest.raises(StoreFault):
        await open_at(left, executor, rows)
    assert not log_path(left).exists()
    assert find_loss(left) is None
    assert messages(left) == 20


async def test_the_first_start_makes_the_record(open_store, rows, path):
    store = await open_store()
    await store.close()
    head_path(path).unlink()
    store = await open_store()
    await confirm(store, rows, 1)
    assert recorded(path).state is State.OPEN
    assert head_path(path).stat().st_mode & 0o777 == 0o600
    await store.close()
    assert recorded(path).state is State.CLOSED


async def test_a_backup_in_the_place_of_a_store_is_not_held_against_its_record(
    open_store, rows, path, executor, tmp_path
):
    store = await open_store()
    endpoint = await begun(store, rows)
    for sequence in range(2):
        await store.commit(pair(store, rows, sequence, endpoint))
    (tmp_path / "copies").mkdir()
    await store.backup(tmp_path / "copies" / "copy.db")
    left = killed(path, "left")
    log_path(left).unlink()
    shutil.copy(tmp_path / "copies" / "copy.db", left)
    opened = await open_at(left, executor, rows)
    await opened.close()
    assert messages(left) == 2


@pytest.mark.rule("REL-37", "FD-9", "REL-5")
@pytest.mark.parametrize("which", [log_path, index_path])
@pytest.mark.parametrize("how", ["removed", "replaced", "moved"])
async def test_a_log_that_goes_under_a_running_store_stops_it_before_a_checkpoint(
    open_store, rows, path, which, how
):
    store = await open_store()
    await confirm(store, rows, 4)
    gone = which(path)
    if how == "replaced":
        shutil.copy(gone, f"{gone}.copy")
        shutil.move(f"{gone}.copy", gone)
    elif how == "moved":
        gone.rename(f"{gone}.elsewhere")
    else:
        gone.unlink()
    fault = store.moved()
    assert str(gone) in fault.message
    with pytest.raises(StoreFault, match="nothing is confirmed any more"):
        await store.fold()


@pytest.mark.rule("REL-37", "FD-9")
async def test_what_a_removed_log_held_is_saved_and_can_be_put_back(
    open_store, rows, path, executor
):
    store = await open_store()
    await confirm(store, rows, 4)
    content = log_path(path).read_bytes()
    log_path(path).unlink()
    await confirm(store, rows, 1)
    fault = store.moved()
    saved = path.with_name("shop.db-wal.saved-0")
    assert str(saved) in fault.message
    assert f"move {saved} to {log_path(path)}" in fault.hint
    assert len(saved.read_bytes()) > len(content)
    left = killed(path, "left")
    assert "is missing" in lost(left).problem
    shutil.copy(saved, log_path(left))
    again = await open_at(left, executor, rows)
    await again.close()
    assert messages(left) == 5
    with suppress(FileNotFoundError):
        log_path(path).unlink()


def harm(left: Path, damage: Any, early: Path) -> None:
    """Damage the log, or what belongs to it."""
    if damage == "removed":
        log_path(left).unlink()
    elif damage == "record":
        record = bytearray(head_path(left).read_bytes())
        record[30] ^= 1
        head_path(left).write_bytes(record)
    elif damage == "of another time":
        shutil.copy(log_path(early), log_path(left))
    else:
        log = bytearray(log_path(left).read_bytes())
        damage(log)
        log_path(left).write_bytes(log)


@pytest.mark.rule("REL-39", "REL-6", "REL-15")
@pytest.mark.parametrize("damage", [*DAMAGE, "removed", "record"])
async def test_an_administrator_goes_on_with_what_is_left(left, executor, rows, damage):
    harm(left, damage, left)
    log = log_path(left).read_bytes() if damage != "removed" else b""
    before = incarnation(left)
    loss = lost(left)
    accepted = accept(left, rows.ids)
    assert accepted.loss == loss
    assert accepted.problems == []
    if damage == "removed":
        assert accepted.kept is None
    else:
        assert accepted.kept is not None
        assert accepted.kept.read_bytes() == log
        assert accepted.kept.stat().st_mode & 0o777 == 0o600
    assert find_loss(left) is None
    assert accept_loss(left, ids=rows.ids, clock=SystemClock()) is None
    store = await open_at(left, executor, rows)
    assert store.identity.incarnation != before
    await confirm(store, rows, 1)
    await store.close()
    assert messages(left) <= 21


@pytest.mark.rule("REL-39", "BI-D2")
def test_an_acceptance_refused_because_of_a_trigger_changes_nothing(left, rows, tmp_path):
    """However often it is repeated, the log stays as it is and is not copied."""
    harm(left, flip_header, left)
    apart = tmp_path / "apart.db"
    shutil.copy(left, apart)
    with closing(sqlite3.connect(apart)) as connection, connection:
        connection.execute("CREATE TRIGGER t AFTER UPDATE ON store BEGIN SELECT 1; END")
    shutil.copy(apart, left)
    before = {one.name: one.read_bytes() for one in left.parent.iterdir()}
    for _ in range(2):
        with pytest.raises(StoreDamaged, match="foreign trigger t"):
            accept(left, rows.ids)
    after = {one.name: one.read_bytes() for one in left.parent.iterdir()}
    after.pop("shop.db.lock")
    assert after == before


@pytest.mark.rule("REL-39")
async def test_a_file_that_only_its_log_completes_is_no_reason_to_refuse(open_store, rows, path):
    """Its pages may have been written in part when the machine went down."""
    store = await open_store()
    changes = Changes()
    endpoint = rows.endpoint(store)
    changes.put(endpoint)
    changes.enqueued.append(rows.message(store, endpoint, 0, b"b" * 500_000))
    await store.commit(changes)  # the file grows, so the log has its first page
    await confirm(store, rows, 1)
    left = killed(path, "left")
    harm(left, cut_last, left)
    file = bytearray(left.read_bytes())
    page_size = FRAME - 24
    file[100:page_size] = bytes([0xFF]) * (page_size - 100)
    left.write_bytes(file)
    with pytest.raises(sqlite3.DatabaseError):
        incarnation(left)
    assert accept(left, rows.ids).problems == []


@pytest.mark.rule("REL-39", "BI-D2")
async def test_no_loss_is_accepted_of_a_store_with_a_trigger(left, executor, rows):
    harm(left, "removed", left)
    with closing(sqlite3.connect(left)) as connection, connection:
        connection.execute(
            "CREATE TRIGGER t AFTER UPDATE ON store BEGIN DELETE FROM alembic_version; END"
        )
        (before,) = connection.execute("SELECT count(*) FROM alembic_version").fetchone()
    with pytest.raises(StoreDamaged, match="foreign trigger t"):
        accept(left, rows.ids)
    with closing(sqlite3.connect(left)) as connection:
        found = connection.execute("SELECT count(*) FROM alembic_version").fetchone()
    assert found == (before,)
    assert before > 0
    with pytest.raises(StoreDamaged):
        await open_at(left, executor, rows)


def incarnation(path: Path) -> bytes:
    """As the file has it, without its log."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        (found,) = connection.execute("SELECT incarnation FROM store").fetchone()
    return bytes(found)


def after_each_call(run: Callable[[], object], look: Callable[[], None]) -> None:
    """Run it, and look after each call of what is not written in Python: whatever changes a file
    is one."""

    def called(_frame: object, event: str, _called: object) -> None:
        if event == "c_return":
            look()

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        run()
    finally:
        sys.setprofile(before)


@pytest.mark.rule("REL-39", "REL-6", "REL-15")
@pytest.mark.parametrize("damage", [*DAMAGE, "removed", "record", "of another time"])
async def test_an_acceptance_that_is_killed_at_any_moment_forgets_no_loss(
    open_store, rows, path, executor, damage
):
    store = await open_store()
    await confirm(store, rows, 3)
    early = killed(path, "early")
    await store.fold()
    await confirm(store, rows, 8)
    left = killed(path, "left")
    harm(left, damage, early)
    before = incarnation(left)
    moments: list[Path] = []
    seen: set[bytes] = set()

    def look() -> None:
        there = (one for one in (left, log_path(left), head_path(left)) if one.exists())
        content = b"|".join(one.name.encode() + one.read_bytes() for one in there)
        if content not in seen:
            seen.add(content)
            moments.append(killed(left, f"moment-{len(moments)}"))

    after_each_call(lambda: accept(left, rows.ids), look)
    *begun, last = moments
    assert recorded(last).state is State.ACCEPTED
    assert len(begun) > 3
    assert "accept it again" in lost(begun[-1]).problem
    for moment in begun:
        with pytest.raises(StoreDamaged) as refused:
            await open_at(moment, executor, rows)
        assert "store accept-loss" in refused.value.hint
        assert accept(moment, rows.ids).problems == []
        again = await open_at(moment, executor, rows)
        assert again.loss_accepted_at is not None
        assert again.identity.incarnation != before
        await again.close()
        assert messages(moment) == messages(last)


@pytest.mark.rule("REL-39", "REL-26")
@pytest.mark.parametrize("damage", [cut_last, "removed"])
def test_an_acceptance_for_which_there_is_no_room_forgets_no_loss(left, rows, monkeypatch, damage):
    def full(*_args, **_given):
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    harm(left, damage, left)
    with monkeypatch.context() as patch:
        patch.setattr(opening, "change_facts", full)
        with pytest.raises(StoreFull, match="no room left"):
            accept(left, rows.ids)
    lost(left)
    assert accept(left, rows.ids).problems == []
    assert find_loss(left) is None


@pytest.mark.rule("REL-39", "REL-6")
def test_a_reader_that_keeps_the_log_from_being_folded_is_told_and_forgets_no_loss(
    left, rows, monkeypatch
):
    """It has come while the loss was being accepted."""
    harm(left, cut_last, left)
    monkeypatch.setattr("brokerd.storage.connections.BUSY_SECONDS", 0)
    change, readers = opening.change_facts, []

    def change_after_a_reader_came(connection, facts):
        reader = sqlite3.connect(left, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM queue_messages").fetchone()
        readers.append(reader)
        change(connection, facts)

    with monkeypatch.context() as patch:
        patch.setattr(opening, "change_facts", change_after_a_reader_came)
        with pytest.raises(StoreLocked, match="read by another program"):
            accept(left, rows.ids)
    lost(left)
    readers[0].close()
    accept(left, rows.ids)
    assert find_loss(left) is None


@pytest.mark.rule("REL-39", "REL-6", "REL-16")
async def test_a_loss_is_not_accepted_under_a_daemon(store, rows, path):
    with pytest.raises(StoreLocked):
        accept_loss(path, ids=rows.ids, clock=SystemClock())


@pytest.mark.rule("REL-36", "FD-3")
async def test_a_log_that_cannot_be_read_keeps_the_store_closed(left, executor, rows):
    log_path(left).unlink()
    log_path(left).mkdir()
    with pytest.raises(UnsafeFile, match=r"shop\.db-wal is no regular file"):
        await open_at(left, executor, rows)


@pytest.mark.rule("REL-36", "SX-24")
async def test_the_record_is_not_written_through_a_link(left, executor, rows, tmp_path):
    other = tmp_path / "of somebody else"
    head_path(left).rename(other)
    before = other.read_bytes()
    head_path(left).symlink_to(other)
    with pytest.raises(UnsafeFile, match=r"shop\.db-head is a symbolic link"):
        await open_at(left, executor, rows)
    assert other.read_bytes() == before


@pytest.mark.rule("REL-36")
async def test_a_store_in_use_is_looked_at_again_before_it_is_called_damaged(
    store, rows, path, monkeypatch
):
    """What is read while it is written is not all of one moment."""
    await confirm(store, rows, 3)
    whole = log_check._examine
    torn = iter([True, False])

    def examine(path, page_size):
        loss = whole(path, page_size)
        return Loss(str(path), "is read in the middle", 1, 1, None) if next(torn) else loss

    monkeypatch.setattr(log_check, "_examine", examine)
    assert find_loss(path, is_in_use=True) is None
