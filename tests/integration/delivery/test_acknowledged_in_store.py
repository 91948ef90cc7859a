"""What the peer acknowledges goes wherever it is; after a start, in the store alone (DLP-20)."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from brokerd.broker.broker import Broker
from brokerd.broker.outgoing import FEW, OutgoingOptions
from brokerd.client.session import Session
from brokerd.protocol.frames import ERROR, AckOnly, BrokerErrorItem, Fragment, Item
from brokerd.storage.verifying import verify
from brokerd.telemetry.logs import LOST_MESSAGES
from tests.integration.one_daemon import Daemon, closing, play
from tests.integration.shorthand import take
from tests.integration.telemetry.closing_lines import lines_by_day, logging
from tests.integration.two_brokers import EAST, Wire

LITTLE = OutgoingOptions(memory=1)
"""Four messages of a dialog in memory at a time."""
MANY = 12


class Place:
    """A daemon between whose two brokers acknowledgements get lost."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.wire = Wire(daemon)
        self.closed: list[dict[str, Any]] = []

    def lose_acks_of(self, *, initiator: bool) -> None:
        """Acknowledgements of that side get lost from now on, and what carries them."""

        def drops(item: Item) -> bool:
            if item.from_initiator is not initiator:
                return False
            return isinstance(item, AckOnly) or (isinstance(item, Fragment) and bool(item.ack))

        self.wire.drops = drops

    async def restart(self) -> None:
        """Nothing of what waits is in memory, and nothing is lost on the way any more."""
        await self.daemon.restart()
        self.wire = Wire(self.daemon)

    def broker(self, name: str) -> Broker:
        found: Broker = self.daemon.instance.brokers[name]
        return found

    async def count(self, broker: str, table: str) -> int:
        found: int = await self.broker(broker).store.run(
            lambda connection: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        )
        return found

    def warnings(self) -> list[dict[str, object]]:
        return [fields for event, fields in self.daemon.log.lines if event == LOST_MESSAGES]


def closing_line(tmp_path: Path, *, is_initiator: bool) -> dict[str, Any]:
    """The line in the metrics log of a daemon that has stopped."""
    days = lines_by_day(tmp_path / "metrics").values()
    (found,) = [
        line
        for day in days
        for line in day
        if line.get("state") == "closed" and line["is_initiator"] is is_initiator
    ]
    return found


async def conversation(place: Place, main: Session, east: Session) -> tuple[bytes, bytes]:
    """A dialog from `main` to `east` whose beginning is acknowledged; the handles of both sides."""
    mine = await main.begin_dialog("urn:desk", "urn:harbour", "talk")
    await main.send(mine, b"question", "Ask")
    (asked,) = await take(east, "harbour", wait=5)
    await place.daemon.pass_time(2)
    return mine, asked.handle


async def tell(session: Session, handle: bytes, count: int, *, end: bool) -> None:
    async with session.transaction() as tx:
        for number in range(count):
            await tx.send(handle, b"%d" % number, "Both")
        if end:
            await tx.end(handle)


@pytest.mark.of_files("it verifies the file")
@pytest.mark.rule("DLP-20", "DLG-T18", "REL-36")
@pytest.mark.parametrize("side", ["target", "initiator"])
def test_the_end_is_acknowledged_before_what_came_before_it_is_read(
    tmp_path: Path, side: str
) -> None:
    async def program(daemon: Daemon) -> None:
        main, east = await sessions(daemon, tmp_path)
        place = Place(daemon)
        mine, theirs = await conversation(place, main, east)
        place.lose_acks_of(initiator=side == "target")
        sender, handle, broker = (
            (east, theirs, "east") if side == "target" else (main, mine, "main")
        )
        await tell(sender, handle, MANY, end=True)
        await daemon.pass_time(2)
        assert await place.count(broker, "transmission_queue") == MANY + 1
        await main.close()
        await east.close()
        await place.restart()
        await daemon.pass_time(5)
        assert await place.count(broker, "transmission_queue") == 0
        assert place.warnings() == []
        await daemon.stop()
        line = closing_line(tmp_path, is_initiator=side == "initiator")
        assert (line["undelivered"], line["acknowledged"]) == (0, line["sent"])
        assert [verify(tmp_path / f"{name}.db") for name in ("main", "east")] == [[], []]
        await daemon.start()

    play(program, tmp_path, outgoing=LITTLE)


async def sessions(daemon: Daemon, tmp_path: Path) -> tuple[Session, Session]:
    await logging(daemon, tmp_path / "metrics")
    async with await daemon.session() as admin:
        await admin.apply(EAST)
    return await daemon.session(), await daemon.session(broker="east")


@pytest.mark.rule("DLP-20", "REL-25")
def test_a_dialog_goes_on_behind_what_was_acknowledged_in_the_store(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        main, east = await sessions(daemon, tmp_path)
        place = Place(daemon)
        mine, theirs = await conversation(place, main, east)
        place.lose_acks_of(initiator=True)
        await tell(east, theirs, MANY, end=False)
        await daemon.pass_time(2)
        place.wire.drops = lambda item: not item.from_initiator or isinstance(item, AckOnly)
        await tell(east, theirs, MANY, end=False)
        await main.close()
        await east.close()
        await place.restart()
        await daemon.pass_time(10)
        again = [one for one in place.wire.passed if isinstance(one, Fragment)]
        assert {one.sequence for one in again} == {*range(FEW), *range(MANY, 2 * MANY)}
        assert await place.count("east", "transmission_queue") == 0
        assert place.broker("east").memory.used == 0
        main, east = await daemon.session(), await daemon.session(broker="east")
        async with closing(main, east):
            got = await main.receive("desk", autocommit=True)
            assert [one.body for one in got] == [b"%d" % n for n in range(MANY)] * 2
            await tell(east, theirs, 1, end=True)
            *_, last = await main.receive("desk", wait=5, autocommit=True)
            assert last.is_end
            await main.end(mine)
            await daemon.pass_time(5)
        assert await place.count("east", "transmission_queue") == 0
        assert place.warnings() == []

    play(program, tmp_path, outgoing=LITTLE)


@pytest.mark.rule("DLG-T31", "PBT-4", "DLP-58")
def test_an_acknowledgement_of_the_end_that_got_lost_is_no_loss(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        main, east = await sessions(daemon, tmp_path)
        place = Place(daemon)
        mine, theirs = await conversation(place, main, east)
        place.lose_acks_of(initiator=True)
        await tell(east, theirs, MANY, end=True)
        got = [*await main.receive("desk", wait=5, autocommit=True)]
        assert [one.body for one in got[:-1]] == [b"%d" % n for n in range(MANY)]
        await main.end(mine)
        await daemon.pass_time(1)
        assert await place.count("main", "conversation_endpoints") == 0
        place.wire.drops = lambda _item: False
        await daemon.pass_time(30)
        assert any(isinstance(item, BrokerErrorItem) for item in place.wire.passed)
        assert await place.count("east", "transmission_queue") == 0
        assert place.warnings() == []
        await main.close()
        await east.close()
        await daemon.stop()
        line = closing_line(tmp_path, is_initiator=False)
        assert (line["undelivered"], line["acknowledged"]) == (0, MANY)
        assert line["outcome"] == "ended"
        await daemon.start()

    play(program, tmp_path)


@pytest.mark.rule("DLP-56", "PBT-4", "DLP-48")
def test_a_target_is_kept_for_the_guard_time_after_it_closed(tmp_path: Path) -> None:
    """However long its dialog was: what the initiator repeats had arrived, and is no loss."""

    async def program(daemon: Daemon) -> None:
        main, east = await sessions(daemon, tmp_path)
        place = Place(daemon)
        mine, theirs = await conversation(place, main, east)
        await main.send(mine, b"with FIRST_ACKED", "Ask")
        await daemon.pass_time(3600)
        place.lose_acks_of(initiator=False)
        await tell(main, mine, 2, end=True)
        assert len(await take(east, "harbour", wait=5)) == 4
        await east.end(theirs)
        await daemon.pass_time(60)
        place.wire.drops = lambda _item: False
        await daemon.pass_time(120)
        assert not any(isinstance(item, BrokerErrorItem) for item in place.wire.passed)
        assert place.warnings() == []
        assert await place.count("main", "conversation_endpoints") == 0
        await daemon.pass_time(1800)
        assert await place.count("east", "conversation_endpoints") == 0
        await main.close()
        await east.close()

    play(program, tmp_path)


@pytest.mark.of_files("it verifies the file")
@pytest.mark.rule("REL-36")
def test_a_start_deletes_what_dialogs_that_are_over_have_left(tmp_path: Path) -> None:
    """As versions did that kept rows whose endpoint was gone, or as a kill in the middle may."""

    async def program(daemon: Daemon) -> None:
        main, east = await sessions(daemon, tmp_path)
        place = Place(daemon)
        await conversation(place, main, east)
        _, failed = await conversation(place, main, east)
        _, going_on = await conversation(place, main, east)
        place.wire.drops = lambda item: not item.from_initiator
        for handle in (failed, going_on):
            await tell(east, handle, MANY, end=False)
        await main.close()
        await east.close()
        await daemon.stop()
        with closing_connection(tmp_path / "east.db") as store:
            first, second, _ = sorted(
                key for (key,) in store.execute("SELECT endpoint_key FROM conversation_endpoints")
            )
            store.execute("UPDATE conversation_endpoints SET state = 'DO', error_code = 7,"
                f" end_sequence = {MANY - 1} WHERE endpoint_key = {second}")  # fmt: skip
            for order, key in ((900, first), (901, 99)):
                store.execute(
                    f"INSERT INTO transmission_queue SELECT {order}, {key}, 0, 0, '', 9, 0, 1,"
                    " message_id, NULL, NULL FROM transmission_queue LIMIT 1"
                )
            store.execute("UPDATE conversation_endpoints SET state = 'CD', purge_at = 1"
                f" WHERE endpoint_key = {first}")  # fmt: skip
            store.execute(
                f"UPDATE transmission_queue SET flags = {ERROR}, message_type = ''"
                f" WHERE endpoint_key = {second} AND sequence = {MANY - 1}"
            )
            store.execute("UPDATE store SET next_transmission_order = 1000")
        wrong = [one for one in verify(tmp_path / "east.db") if not one.is_left_over]
        assert wrong == []
        await daemon.start()
        told = [f for e, f in daemon.log.lines if f.get("subclass") == "leftovers"]
        assert [(one["broker"], one["messages"]) for one in told] == [("east", MANY + 1)]
        place = Place(daemon)
        place.wire.drops = lambda item: not item.from_initiator
        await daemon.pass_time(1)
        assert await place.count("east", "transmission_queue") == 1 + MANY
        place.wire.drops = lambda _item: False
        await daemon.pass_time(30)
        got = []
        main = await daemon.session()
        async with closing(main):
            while some := await main.receive("desk", autocommit=True):
                got += some
        assert [one.is_error for one in got].count(True) == 1
        bodies = [one.body for one in got if not one.is_error]
        assert bodies == [b"%d" % number for number in range(MANY)]
        await daemon.stop()
        assert [verify(tmp_path / f"{name}.db") for name in ("main", "east")] == [[], []]
        await daemon.start()
        again = [f for e, f in daemon.log.lines if f.get("subclass") == "leftovers"]
        assert again == told

    play(program, tmp_path)


@contextmanager
def closing_connection(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path)
    with connection:
        yield connection
    connection.close()
