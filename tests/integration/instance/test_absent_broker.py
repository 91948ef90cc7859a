"""A broker whose file cannot be opened: the others work, and it comes back by itself (CLK-6)."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from brokerd.broker.broker import Broker
from brokerd.errors import BrokerUnavailable, StoreDamaged
from brokerd.instance.preflight import check_start
from brokerd.storage import connections, opening
from brokerd.storage.changes import Changes
from brokerd.storage.files.lock import OwnerLock, lock_path
from brokerd.telemetry.logs import STORE
from tests.integration.instance.second_broker import (
    EAST,
    FIVE_TICKS,
    arrival,
    bodies,
    settings,
    view,
)
from tests.integration.one_daemon import Daemon, play
from tests.integration.scenarios import given

pytestmark = pytest.mark.of_files("it damages and moves store files")

GARBAGE = b"a shopping list\n" * 20


class Place:
    """A running daemon with a second broker, whose file can be spoilt while it is down."""

    def __init__(self, daemon: Daemon, folder: Path) -> None:
        self.daemon = daemon
        self.file = folder / "east.db"
        self._good = folder / "good"

    async def declare(self) -> None:
        """Make the broker."""
        async with await self.daemon.session() as admin:
            await admin.apply(EAST)

    async def spoil(self) -> None:
        """Start the daemon again with garbage where the broker's file was."""
        await self.daemon.stop()
        self.file.rename(self._good)
        self.file.write_bytes(GARBAGE)
        await self.daemon.start()

    async def repair(self) -> None:
        """Put the file back and let it be tried."""
        self._good.replace(self.file)
        await self.daemon.pass_time(FIVE_TICKS)

    async def refusal(self) -> BrokerUnavailable:
        """What a client of the broker is told."""
        with pytest.raises(BrokerUnavailable) as caught:
            await self.daemon.session(broker="east")
        return caught.value

    def told(self, subclass: str) -> list[dict[str, object]]:
        """What the log says of stores."""
        return [
            fields
            for event, fields in self.daemon.log.lines
            if event == STORE and fields["subclass"] == subclass
        ]


@asynccontextmanager
async def with_the_other(daemon: Daemon, folder: Path) -> AsyncIterator[tuple[Place]]:
    """A daemon that has the second broker."""
    place = Place(daemon, folder)
    await place.declare()
    yield (place,)


scenario = given(with_the_other)


# While it is absent.


@pytest.mark.rule("CLK-6", "VIEW-10", "PER-17", "CLP-12")
@scenario
async def test_the_others_work_and_everyone_is_told_why_it_does_not(place: Place) -> None:
    await place.spoil()
    why = f"{place.file} is not an SQLite file"
    refusal = await place.refusal()
    assert refusal.message == f"broker 'east' cannot be opened: {why}"
    assert refusal.hint == StoreDamaged.hint
    assert refusal.retryable
    async with await place.daemon.session() as session:
        handle = await session.begin_dialog("urn:desk", "urn:shop", "talk")
        await session.send(handle, b"ask", "Ask")
        assert await bodies(session, "shop") == [b"ask"]
        status = await session.status()
        assert [
            (one["broker"], one["state"], one["reason"])
            for one in msgspec.convert(status["stores"], list[dict[str, object]])
        ] == [("msdb", "ok", ""), ("main", "ok", ""), ("east", "refused", why)]
        assert {
            str(row["name"]): row["start_failure"] for row in await view(session, "brokers")
        } == {"msdb": "", "main": "", "east": why}
        for dry_run in (True, False):
            with pytest.raises(BrokerUnavailable, match="not an SQLite file"):
                await session.apply(EAST, dry_run=dry_run)
    assert place.file.read_bytes() == GARBAGE


@pytest.mark.rule("XMT-19", "RTE-33")
@scenario
async def test_what_waits_for_one_that_does_not_serve_says_which_it_is_and_why(
    place: Place,
) -> None:
    async with await place.daemon.session() as session:
        east = place.daemon.instance.brokers["east"].broker_id
        handle = await session.begin_dialog("urn:desk", "urn:harbour", "talk", broker_id=east)
        await session.admin.disable("east")
        await session.send(handle, b"ask", "Ask")
        await place.daemon.pass_time(1)
        found = await session.transmission_status(handle)
        assert found.status_key == "broker_not_here"
        assert "delivery of broker 'east' of this instance is off" in found.transmission_status
        await session.admin.enable("east")
    await place.spoil()
    async with await place.daemon.session() as session:
        handle = await session.begin_dialog("urn:desk", "urn:harbour", "talk", broker_id=east)
        await session.send(handle, b"ask", "Ask")
        await place.daemon.pass_time(1)
        found = await session.transmission_status(handle)
        assert found.status_key == "broker_not_here"
        why = "broker 'east' of this instance cannot be opened: "
        assert why + f"{place.file} is not an SQLite file" in found.transmission_status
        explained = await session.admin.explain_route(handle=handle)
        assert any(why in str(step) for step in explained.steps)


@pytest.mark.rule("CLK-6")
@scenario
async def test_a_reason_is_logged_once_and_again_when_it_is_another_one(place: Place) -> None:
    await place.spoil()
    await place.daemon.pass_time(3 * FIVE_TICKS)
    (told,) = place.told("refused")
    assert told == {
        "subclass": "refused",
        "broker": "east",
        "reason": f"{place.file} is not an SQLite file",
        "hint": StoreDamaged.hint,
    }
    place.file.write_bytes(b"")
    await place.daemon.pass_time(3 * FIVE_TICKS)
    _, second = place.told("refused")
    assert second["reason"] == f"{place.file} is an empty file, not a store"
    assert "empty file" in (await place.refusal()).message


@pytest.mark.rule("CLK-6")
@scenario
async def test_a_file_that_is_missing_is_not_made_anew(place: Place) -> None:
    await place.spoil()
    place.file.unlink()
    await place.daemon.pass_time(FIVE_TICKS)
    assert not place.file.exists()
    await place.repair()
    async with await place.daemon.session(broker="east"):
        pass


@pytest.mark.rule("CLK-6", "DSP-12", "RTE-33", "BI-F9")
@scenario
async def test_what_arrives_for_it_is_neither_taken_nor_refused(place: Place) -> None:
    east = place.daemon.instance.brokers["east"].broker_id
    await place.spoil()
    dispatcher = place.daemon.instance.parts.dispatcher
    for to_broker in (b"", east):
        dispatcher.arrived([arrival(to_broker)])
    await place.daemon.pass_time(1)
    assert dict(dispatcher.dropped) == {"broker_not_here": 1, "local_service_missing": 1}
    assert dispatcher.buffered == 0
    assert place.daemon.instance.parts.orphan_replies.dequeue("LOCAL", 100) == []


@pytest.mark.rule("CLK-6", "RTE-33")
@scenario
async def test_nothing_is_delivered_to_it_while_it_is_still_being_opened(place: Place) -> None:
    instance = place.daemon.instance
    east = instance.brokers["east"].broker_id
    instance.parts.absent_brokers.reasons["east"] = StoreDamaged("is read just now")
    instance.parts.router.rebuild()
    for to_broker in (b"", east):
        instance.parts.dispatcher.arrived([arrival(to_broker)])
    assert instance.parts.dispatcher.dropped.total() == 2
    assert instance.parts.dispatcher.buffered == 0


# When it is back.


@pytest.mark.rule("CLK-6", "PER-17")
@scenario
async def test_it_is_tried_every_fifth_tick_until_it_serves_again(place: Place) -> None:
    async with await place.daemon.session(broker="east") as session:
        back = await session.begin_dialog("urn:harbour", "urn:shop", "talk")
        await place.daemon.switch("shop", on=False)
        await session.send(back, b"from before", "Ask")
    async with await place.daemon.session() as session:
        before = await session.begin_dialog("urn:desk", "urn:harbour", "talk")
        await session.send(before, b"one", "Ask")
        await place.daemon.pass_time(1)
    await place.spoil()
    await place.daemon.switch("shop", on=True)
    async with await place.daemon.session() as session:
        await session.send(before, b"two", "Ask")
        after = await session.begin_dialog("urn:desk", "urn:harbour", "talk")
        await session.send(after, b"three", "Ask")
        await place.daemon.pass_time(10 * FIVE_TICKS)
        assert sorted(
            (row["status_key"], row["message_sequence_number"])
            for row in await view(session, "transmission_queue")
        ) == [("broker_not_here", 1), ("local_service_missing", 0)]

        await place.repair()
        assert place.told("opened") == [{"subclass": "opened", "broker": "east"}]
        async with await place.daemon.session(broker="east") as there:
            assert await bodies(there, "harbour") == [b"one", b"two"]
            assert await bodies(there, "harbour") == [b"three"]
        assert await bodies(session, "shop") == [b"from before"]
        await place.daemon.pass_time(FIVE_TICKS)
        assert await view(session, "transmission_queue") == []
        assert {row["state"] for row in await view(session, "conversation_endpoints")} == {"CO"}
        stores = msgspec.convert((await session.status())["stores"], list[dict[str, object]])
        assert {one["state"] for one in stores} == {"ok"}


@pytest.mark.rule("CLK-6")
@scenario
async def test_a_client_that_waits_gets_in_when_it_is_back(place: Place) -> None:
    await place.spoil()
    waiting = place.daemon.loop.create_task(open_when_back(place))
    await place.repair()
    assert await waiting == "east"


async def open_when_back(place: Place) -> str:
    async with await place.daemon.session(broker="east", wait=600) as session:
        return session.welcome.broker


@pytest.mark.rule("CLK-6", "REL-16")
@scenario
async def test_one_that_another_process_has_open_comes_when_it_is_free(place: Place) -> None:
    await place.daemon.stop()
    lock = OwnerLock(place.file, clock=place.daemon.clock)
    await place.daemon.start()
    assert "is open in process" in (await place.refusal()).message
    lock.release()
    await place.daemon.pass_time(FIVE_TICKS)
    async with await place.daemon.session(broker="east"):
        pass


# What counts as one that cannot be opened.


@pytest.mark.rule("CLK-6", "SX-24")
@scenario
async def test_one_whose_lock_file_cannot_be_used(place: Place) -> None:
    await place.daemon.stop()
    lock = lock_path(place.file)
    lock.unlink()
    lock.symlink_to(lock)
    check_start(settings(place.file.parent), place.daemon.declared())
    await place.daemon.start()
    refusal = await place.refusal()
    assert f"{lock} is a symbolic link" in refusal.message
    assert str(lock) in refusal.hint


@pytest.mark.rule("CLK-6", "REL-16")
@scenario
async def test_the_store_of_another_broker_does_not_take_its_place(place: Place) -> None:
    await place.spoil()
    main = place.daemon.broker
    copy = sqlite3.connect(place.file.with_name("main.db")).execute
    place.file.unlink()
    copy("VACUUM INTO ?", (str(place.file),))
    await place.daemon.pass_time(FIVE_TICKS)
    refusal = await place.refusal()
    assert "is the store of broker main, not of east" in refusal.message
    assert "move it to another directory, as main.db is there" in refusal.hint  # and in use
    assert place.daemon.broker is main


@pytest.mark.rule("CLK-6", "REL-16")
@scenario
async def test_a_store_that_was_called_otherwise_is_to_be_called_as_before(place: Place) -> None:
    await place.daemon.stop()
    renamed = place.file.replace(place.file.with_name("west.db"))
    await place.daemon.start(declare=False)
    reason = place.daemon.instance.parts.absent_brokers.reasons["west"]
    assert reason.message == f"{renamed} is the store of broker east, not of west"
    assert "call the file east.db again" in reason.hint


@pytest.mark.rule("CLK-6")
@pytest.mark.parametrize("table", ["store", "services", "conversation_endpoints"])
def test_a_damaged_page_that_a_start_reads_keeps_out_this_broker_alone(
    table: str, tmp_path: Path
) -> None:
    async def program(daemon: Daemon) -> None:
        place = Place(daemon, tmp_path)
        await place.declare()
        await daemon.stop()
        spoil_page(place.file, table)
        await daemon.start()
        refusal = await place.refusal()
        assert "malformed" in refusal.message
        async with await daemon.session() as session:
            await session.status()

    play(program, tmp_path)


@pytest.mark.rule("CLK-6", "MAN-10")
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("UPDATE conversation_endpoints SET state = 'XX'", "ValueError: 'XX'"),
        ("UPDATE queue_messages SET queue_key = 77", "KeyError: 77"),
        ("UPDATE service_message_types SET validation = 'magic'", "ValueError: 'magic'"),
        ("DELETE FROM endpoint_progress", "has no row in endpoint_progress"),
    ],
)
def test_rows_that_no_program_wrote_keep_out_this_broker_alone(
    change: str, error: str, tmp_path: Path
) -> None:
    async def program(daemon: Daemon) -> None:
        place = Place(daemon, tmp_path)
        await place.declare()
        async with await daemon.session(broker="east") as session:
            handle = await session.begin_dialog("urn:harbour", "urn:harbour", "talk")
            await session.send(handle, b"unread", "Ask")
            away = await session.begin_dialog("urn:harbour", "urn:nowhere", "talk")
            await session.send(away, b"unsent", "Ask")
        await daemon.stop()
        good = place.file.read_bytes()
        with sqlite3.connect(place.file) as connection:
            connection.execute(change)
        connection.close()
        await daemon.start()
        refusal = await place.refusal()
        assert error in refusal.message
        async with await daemon.session() as session:
            await session.status()
        place.file.with_name("east.db-wal").unlink(missing_ok=True)
        place.file.write_bytes(good)
        await daemon.pass_time(FIVE_TICKS)
        async with await daemon.session(broker="east") as session:
            assert await bodies(session, "harbour") == [b"unread"]

    play(program, tmp_path)


@pytest.mark.rule("MAN-10", "CLK-6")
def test_a_file_that_cannot_be_written_keeps_out_this_broker_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write whatever the mode says, so SQLite is told to open the file for reading."""

    def connect_writer(path: Path) -> sqlite3.Connection:
        if path.stem != "east":
            return connections.connect_writer(path)
        return sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)

    async def program(daemon: Daemon) -> None:
        place = Place(daemon, tmp_path)
        await place.declare()
        await daemon.stop()
        monkeypatch.setattr(opening, "connect_writer", connect_writer)
        await daemon.start()
        refusal = await place.refusal()
        assert refusal.message.endswith("east.db cannot be written: it is read-only")
        async with await daemon.session() as session:
            (row,) = await session.view("brokers", where={"name": "east"})
            assert row["start_failure"] == f"{place.file} cannot be written: it is read-only"
            await session.status()
        monkeypatch.undo()
        await daemon.pass_time(FIVE_TICKS)
        async with await daemon.session(broker="east"):
            pass

    play(program, tmp_path)


@pytest.mark.rule("CLK-6", "PER-22")
@scenario
async def test_a_broker_that_is_slow_to_open_does_not_hold_up_the_other_passes(
    place: Place,
) -> None:
    await place.spoil()
    instance = place.daemon.instance
    open_broker = instance.parts.absent_brokers._open_broker

    async def slowly(name: str) -> Broker:
        await place.daemon.pass_time(40)
        return await open_broker(name)

    instance.parts.absent_brokers._open_broker = slowly
    await place.daemon.pass_time(61)
    states = instance.parts.ticker.states
    assert states["dispatcher"].runs == 12
    assert (states["absent_brokers"].runs, states["absent_brokers"].skips) == (0, 1)
    await place.repair()
    await place.daemon.pass_time(100)
    async with await place.daemon.session(broker="east"):
        pass


@pytest.mark.rule("REL-28")
@scenario
async def test_a_stop_ends_what_reads_before_it_closes_what_is_read(place: Place) -> None:
    failed: list[BaseException] = []
    instance = place.daemon.instance
    store = place.daemon.broker.store

    async def read() -> None:
        while True:
            try:
                await store.endpoints.count_by_state()
                await store.commit(Changes())
            except Exception as error:
                failed.append(error)
                raise

    instance.parts.tasks.spawn(read())
    await place.daemon.stop()
    assert failed == []
    await place.daemon.start()


# Those without which nothing starts.


@pytest.mark.rule("CLK-6", "BI-D1")
@pytest.mark.parametrize("needed", ["msdb", "main"])
def test_without_msdb_or_the_declared_broker_it_does_not_start(needed: str, tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        await daemon.stop()
        file = tmp_path / f"{needed}.db"
        good = file.read_bytes()
        file.write_bytes(GARBAGE)
        with pytest.raises(StoreDamaged, match=f"{needed}.db is not an SQLite file"):
            await daemon.start()
        with pytest.raises(StoreDamaged, match=f"{needed}.db is not an SQLite file"):
            check_start(settings(tmp_path), daemon.declared())
        file.write_bytes(good)
        await daemon.start()

    play(program, tmp_path)


@pytest.mark.rule("CLK-6")
def test_a_start_that_would_serve_nobody_is_refused(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        await Place(daemon, tmp_path).declare()
        await daemon.stop()
        main, east = tmp_path / "main.db", tmp_path / "east.db"
        good = main.read_bytes(), east.read_bytes()
        main.write_bytes(GARBAGE)
        check_start(settings(tmp_path), None)
        await daemon.start(declare=False)
        assert list(daemon.instance.brokers) == ["msdb", "east"]
        await daemon.stop()
        east.write_bytes(GARBAGE)
        with pytest.raises(StoreDamaged, match=r"east\.db is not an SQLite file"):
            check_start(settings(tmp_path), None)
        with pytest.raises(StoreDamaged, match=r"east\.db is not an SQLite file"):
            await daemon.start(declare=False)
        main.write_bytes(good[0])
        east.write_bytes(good[1])
        await daemon.start()

    play(program, tmp_path)


@pytest.mark.rule("CLK-6")
def test_a_start_looks_past_what_it_can_do_without(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        place = Place(daemon, tmp_path)
        await place.declare()
        await daemon.stop()
        good = place.file.read_bytes()
        place.file.write_bytes(GARBAGE)
        check_start(settings(tmp_path), daemon.declared())
        place.file.write_bytes(good)
        await daemon.start()

    play(program, tmp_path)


def spoil_page(file: Path, table: str) -> None:
    """Overwrite the first page of a table."""
    connection = sqlite3.connect(file)
    size = connection.execute("PRAGMA page_size").fetchone()[0]
    (page,) = connection.execute(
        "SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)
    ).fetchone()
    connection.close()
    with file.open("r+b") as raw:
        raw.seek((page - 1) * size)
        raw.write(b"\xff" * size)
