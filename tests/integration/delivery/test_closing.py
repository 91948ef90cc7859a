"""How dialogs between two brokers go away: tombstones, lost notices, repeats (DLP-54 to DLP-57)."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing as closing_file
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from brokerd.client.session import Session
from brokerd.errors import ConversationNotFound
from brokerd.ids import BrokerId, show
from brokerd.maintenance import dialog_expiry, unsettled_endpoints
from brokerd.model import ERROR
from brokerd.protocol.frames import END, Ack, AckOnly, BrokerErrorItem, Fragment, Hop, Item
from brokerd.protocol.frames import ERROR as ERROR_FLAG
from brokerd.protocol.transitions import State
from brokerd.storage.executors import Inline
from tests import stores
from tests.integration.delivery.closed_endpoints import HALF_HOUR, endpoints, fire_and_forget
from tests.integration.one_daemon import Daemon, play
from tests.integration.one_daemon import closing as closing_sessions
from tests.integration.scenarios import given
from tests.integration.shorthand import fails, take
from tests.integration.two_brokers import EAST, Wire, between, clients


def settles(item: Item) -> bool:
    """Whether an item says that message 0 is settled."""
    ack = item.ack if isinstance(item, AckOnly | Fragment) else None
    return ack is not None and item.from_initiator and ack.first_acked


@pytest.mark.rule("PBT-5", "DLP-57", "NBT-14", "DLG-32", "DLG-31", "DLG-T26")
@between
async def test_fire_and_forget_leaves_nothing_after_half_an_hour(
    wire: Wire, main: Session, east: Session
) -> None:
    conversations = [await fire_and_forget(main, east, wire) for _ in range(20)]
    assert await endpoints(main) == []
    assert {row["state"] for row in await endpoints(east)} == {"CD"}
    first = [one for one in wire.passed if isinstance(one, Fragment) and one.sequence == 0]
    for item in first:  # a replay within that time is a duplicate
        wire.deliver([item])
    await wire.daemon.pass_time(1)
    assert await take(east, "harbour") == []
    assert len(await endpoints(east)) == len(conversations)
    await wire.daemon.pass_time(HALF_HOUR + 60)
    assert await endpoints(east) == []


@pytest.mark.rule("DLG-T17", "DLP-58", "PBT-5", "REL-14")
@pytest.mark.parametrize("several", [False, True])
def test_an_initiator_whose_target_has_ended_leaves_nothing(tmp_path: Path, several: bool) -> None:
    @between
    async def run(wire: Wire, main: Session, east: Session) -> None:
        handles: list[bytes] = []
        for _ in range(2):
            handles.append(await main.begin_dialog("urn:desk", "urn:harbour", "talk"))
            await main.send(handles[-1], b"once", "Ask")
        for _ in handles:
            (got,) = await take(east, "harbour", 1, wait=5)
            await east.end(got.handle)
        for _ in handles:
            async with main.transaction() as tx:
                (told,) = await tx.receive("desk", wait=5)
                assert told.is_end
                if not several:
                    await tx.end(told.handle)
        if several:
            await main.end(handles)
        assert await endpoints(main) == []
        await wire.daemon.pass_time(HALF_HOUR + 60)
        assert await endpoints(east) == []

    run(tmp_path)


@pytest.mark.rule("DLP-57", "PBT-5", "DLG-32")
@between
async def test_a_lost_notice_is_asked_for(wire: Wire, main: Session, east: Session) -> None:
    wire.drops = settles
    await fire_and_forget(main, east, wire)
    await wire.daemon.pass_time(60)
    (row,) = await endpoints(east)
    assert row["security_timestamp"] > wire.daemon.clock.utc() + 364 * 86400 * 1_000_000  # type: ignore[operator]
    asked = [one for one in wire.passed if isinstance(one, AckOnly) and not one.from_initiator]
    assert 3 <= len(asked) <= 8
    wire.drops = lambda _item: False
    await wire.daemon.pass_time(70)
    (row,) = await endpoints(east)
    assert row["security_timestamp"] <= wire.daemon.clock.utc() + HALF_HOUR * 1_000_000  # type: ignore[operator]
    before = len(wire.passed)
    await wire.daemon.pass_time(HALF_HOUR - 100)
    assert len(wire.passed) == before  # it has been told, and asks no more
    await wire.daemon.pass_time(200)
    assert await endpoints(east) == []


@pytest.mark.rule("DLP-57", "DLP-26")
def test_so_many_ask_at_a_time_on_the_schedule_of_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unsettled_endpoints, "MOST", 2)
    monkeypatch.setattr(unsettled_endpoints, "BATCH", 1)

    @between
    async def run(wire: Wire, main: Session, east: Session) -> None:
        wire.drops = settles
        began = wire.daemon.clock.monotonic()
        conversations = [await fire_and_forget(main, east, wire) for _ in range(3)]
        asked: dict[bytes, list[float]] = {}

        def note(item: Item) -> bool:
            if isinstance(item, AckOnly) and not item.from_initiator:
                asked.setdefault(item.conversation_id, []).append(
                    wire.daemon.clock.monotonic() - began
                )
            return settles(item)

        wire.drops = note
        await wire.daemon.pass_time(250)
        assert asked.keys() == set(conversations[:2])
        for times in asked.values():
            waits = [after - before for before, after in pairwise(times)]
            assert waits == pytest.approx([10, 20, 35, 65, 65])  # 8 to 64 s, at the next tick
        wire.drops = lambda _item: False
        await wire.daemon.pass_time(200)
        await wire.daemon.pass_time(HALF_HOUR)
        assert await endpoints(east) == []

    run(tmp_path)


@pytest.mark.rule("PBT-9", "DLG-24", "DLG-T27", "DLG-M3")
@pytest.mark.parametrize("tell", [False, True])
def test_cleanup_at_the_target_leaves_a_tombstone(tmp_path: Path, tell: bool) -> None:
    @between
    async def run(wire: Wire, main: Session, east: Session) -> None:
        wire.drops = lambda item: isinstance(item, AckOnly)
        mine = await main.begin_dialog("urn:desk", "urn:harbour", "talk")
        await main.send(mine, b"once", "Ask")
        (got,) = await take(east, "harbour", wait=5)
        await east.admin.clean_up(got.handle, "a test", tell_peer=tell)
        wire.drops = lambda _item: False
        if tell:
            (told,) = await take(main, "desk", wait=5)
            assert (told.message_type, told.error and told.error.number) == (ERROR, -8462)
        else:
            await wire.daemon.pass_time(100)  # the initiator repeats message 0
            assert await take(main, "desk") == []
            assert (await main.transmission_status(mine)).status_key == ""
            await main.send(mine, b"more", "Ask")
            (told,) = await take(main, "desk", wait=5)
            assert (told.message_type, told.error and told.error.number) == (ERROR, -8462)
        assert await take(east, "harbour", wait=100) == []
        (row,) = await endpoints(east)
        assert row["state"] == "CD"
        await main.end(mine)
        await wire.daemon.pass_time(HALF_HOUR + 200)
        assert await endpoints(east) == await endpoints(main) == []
        await fails(ConversationNotFound, main.transmission_status(mine))

    run(tmp_path)


@pytest.mark.rule("DLG-T27", "DLG-23")
@between
async def test_cleanup_of_a_closed_row_removes_it(wire: Wire, main: Session, east: Session) -> None:
    conversation = await fire_and_forget(main, east, wire)
    live = wire.at_east(conversation)
    assert live is not None
    assert live.endpoint.state is State.CLOSED
    await east.admin.clean_up(live.endpoint.handle, "nobody will repeat it")
    assert await endpoints(east) == []


@pytest.mark.rule("DLG-T28", "ERR-8462", "DLP-53", "DLG-24")
@between
async def test_what_is_said_to_nobody(wire: Wire, main: Session, east: Session) -> None:
    mine = await main.begin_dialog("urn:desk", "urn:harbour", "talk")
    await main.send(mine, b"1", "Ask")
    (got,) = await take(east, "harbour", wait=5)
    await wire.daemon.pass_time(1)
    (first,) = [one for one in wire.passed if isinstance(one, Fragment)]
    wire.passed.clear()
    await main.admin.clean_up(mine, "a test")
    await wire.daemon.pass_time(100)
    assert wire.passed == []  # nobody is told
    await east.send(got.handle, b"nobody", "Answer")
    (told,) = await take(east, "harbour", wait=5)  # none at the initiator: 8462
    assert told.error is not None
    assert told.error.number == -8462
    await east.end(got.handle)
    # What a target repeats to an initiator that is gone: its ends are acknowledged only.
    away = msgspec.structs.replace(
        first,
        from_initiator=False,
        from_service="urn:harbour",
        to_service="urn:desk",
        from_broker=wire.east.broker_id,
        hop=Hop(wire.daemon.broker.broker_id, 10, 60_000, 0, wire.daemon.broker.broker_id),
        ack=None,
    )
    for flags, kind in ((0, BrokerErrorItem), (END, AckOnly), (ERROR_FLAG, AckOnly)):
        wire.passed.clear()
        message_type = "" if flags else "Answer"
        wire.deliver([msgspec.structs.replace(away, flags=flags, message_type=message_type)])
        await wire.daemon.pass_time(1)
        assert [type(one) for one in wire.passed if one.from_initiator] == [kind]
        assert await endpoints(main) == []
    # A message that is settled cannot begin a dialog, and a repeated end is acknowledged only.
    await wire.daemon.pass_time(HALF_HOUR * 2)
    assert await endpoints(east) == []
    for flags, kind in ((0, BrokerErrorItem), (END, AckOnly), (ERROR_FLAG, AckOnly)):
        wire.passed.clear()
        wire.deliver([settled(first, flags=flags)])
        await wire.daemon.pass_time(1)
        (answer,) = [one for one in wire.passed if not one.from_initiator]
        assert type(answer) is kind
        if isinstance(answer, BrokerErrorItem):
            assert answer.code == -8462
    assert await endpoints(east) == []
    assert await take(east, "harbour") == []


@pytest.mark.rule("DLG-T30", "DLP-48", "DLG-T4")
@between
async def test_an_error_for_a_dialog_that_never_began_leaves_a_tombstone(
    wire: Wire, main: Session, east: Session
) -> None:
    """Its message 0 was withdrawn for it (DLG-T11), so nothing else of the dialog will come."""
    wire.drops = lambda item: isinstance(item, Fragment)
    mine = await main.begin_dialog("urn:desk", "urn:harbour", "talk")
    await main.send(mine, b"0", "Ask")
    await main.send(mine, b"1", "Ask")
    await wire.daemon.pass_time(1)
    opening, later, *_ = [one for one in wire.passed if isinstance(one, Fragment)]
    wire.deliver([later])  # alone it begins nothing, and is answered with nothing
    await wire.daemon.pass_time(30)
    assert await endpoints(east) == []
    assert not [one for one in wire.passed if not one.from_initiator]
    wire.drops = lambda _item: False
    await main.end(mine, 7, "enough")
    await wire.daemon.pass_time(10)
    assert await endpoints(main) == []  # it was acknowledged
    (row,) = await endpoints(east)
    assert row["state"] == "CD"
    wire.deliver([opening, later])
    await wire.daemon.pass_time(1)
    assert await take(east, "harbour") == []
    assert len(await endpoints(east)) == 1
    await wire.daemon.pass_time(HALF_HOUR + 60)
    assert await endpoints(east) == []


@pytest.mark.rule("DLG-T7", "DLG-T30", "DLP-48", "DLG-T4")
@pytest.mark.parametrize("late", ["all of message 0", "a part of it"])
def test_an_error_for_a_dialog_that_began_in_part_leaves_a_tombstone(
    tmp_path: Path, late: str
) -> None:
    """What comes late of message 0, which was withdrawn, neither begins the dialog nor stays."""

    async def run(wire: Wire, main: Session, east: Session) -> None:
        wire.drops = lambda item: isinstance(item, Fragment) and item.fragment == 2
        mine = await main.begin_dialog("urn:desk", "urn:harbour", "talk")
        await main.send(mine, b"x" * 3000, "Ask")
        await wire.daemon.pass_time(1)
        parts = [one for one in wire.passed if isinstance(one, Fragment)][:3]
        assert [row["state"] for row in await endpoints(east)] == ["SI"]
        page = await east.browse_page("harbour")
        assert [(one.status, one.sequence) for one in page.messages] == [(2, 0)]
        assert await take(east, "harbour") == []
        ended = wire.daemon.clock.utc()
        await main.end(mine, 7, "enough")
        await wire.daemon.pass_time(10)
        assert await endpoints(main) == []  # it was acknowledged
        (row,) = await endpoints(east)
        assert (row["state"], row["error_code"]) == ("CD", 7)
        until = row["security_timestamp"]
        assert isinstance(until, int)
        assert 0 <= until - ended - HALF_HOUR * 1_000_000 < 1_000_000
        wire.deliver(parts if late == "all of message 0" else parts[:1])
        await wire.daemon.pass_time(10)
        assert await take(east, "harbour") == []
        assert [row["state"] for row in await endpoints(east)] == ["CD"]
        stored = await wire.east.store.run(lambda on: on.execute(_PIECES).fetchone()[0])
        assert stored == 0
        await wire.daemon.pass_time(HALF_HOUR + 60)
        assert await endpoints(east) == []

    given(clients, fragment_size=1000)(run)(tmp_path)


_PIECES = "SELECT count(*) FROM body_pieces"


def settled(item: Fragment, *, flags: int) -> Fragment:
    """The same as message 3, with FIRST_ACKED."""
    ack = Ack(-1, -1, -1, 0, item.from_broker, first_acked=True)
    kind = "" if flags else item.message_type
    return msgspec.structs.replace(item, sequence=3, flags=flags, message_type=kind, ack=ack)


@pytest.mark.rule("REL-13", "DLP-45", "ERR-8495", "DLG-45", "DLG-5", "BI-F7")
@between
async def test_a_second_broker_that_acknowledges_is_refused(
    wire: Wire, main: Session, east: Session
) -> None:
    """The first one that acknowledged has the dialog; the stray is told, and its ack is nothing."""
    mine = await main.begin_dialog("urn:desk", "urn:harbour", "talk")
    await main.send(mine, b"0", "Ask")
    (got,) = await take(east, "harbour", wait=5)
    await wire.daemon.pass_time(1)
    wire.drops = lambda item: isinstance(item, AckOnly) and not item.from_initiator
    await main.send(mine, b"1", "Ask")
    await wire.daemon.pass_time(1)
    ack = next(one for one in reversed(wire.passed) if isinstance(one, AckOnly))
    stray = BrokerId(b"a second target.")
    said = msgspec.structs.replace(ack.ack, broker_id=stray)
    loose: Any = wire.daemon.instance.parts.orphan_replies
    told: list[tuple[bytes, int]] = []
    refuse = loose.refuse_ack

    def noting(broker: Any, live: Any, block: Ack, code: int, text: str) -> None:
        told.append((block.broker_id, code))
        refuse(broker, live, block, code, text)

    loose.refuse_ack = noting
    wire.deliver([msgspec.structs.replace(ack, from_broker=stray, ack=said)])
    await wire.daemon.pass_time(1)
    assert told == [(stray, -8495)]
    waiting = await main.view("transmission_queue")
    assert len(waiting) == 1, "the ack of a stray took it away"
    wire.drops = lambda _item: False
    await wire.daemon.pass_time(10)
    assert await main.view("transmission_queue") == []
    (row,) = await endpoints(main)
    assert row["state"] == "CO"
    await main.end(mine)
    await east.end(got.handle)


@pytest.mark.rule("DLG-34", "DLP-54", "PER-24")
@between
async def test_purging_goes_on_in_batches_and_keeps_what_owes_an_ack(
    wire: Wire, main: Session, east: Session
) -> None:
    conversations = [await fire_and_forget(main, east, wire) for _ in range(7)]
    owing = wire.at_east(conversations[-1])  # the others have left memory
    assert owing is not None
    out = wire.east.outgoing(owing)
    await wire.daemon.pass_time(HALF_HOUR - 60)
    wire.daemon.instance._tick_task.cancel()
    await wire.daemon.pass_time(120)
    out.acks.due_at = wire.daemon.clock.monotonic()
    flushes = wire.east.store.metrics.flushes
    batch, dialog_expiry.BATCH = dialog_expiry.BATCH, 2
    assert batch == 1000
    try:
        assert await dialog_expiry.purge(wire.east) == 6
    finally:
        dialog_expiry.BATCH = batch
    assert wire.east.store.metrics.flushes - flushes >= 3
    assert len(await endpoints(east)) == 1
    out.acks.due_at = None
    assert await dialog_expiry.purge(wire.east) == 1
    assert await endpoints(east) == []


@pytest.mark.rule("DLG-34", "PER-24")
@between
async def test_those_that_owe_an_ack_do_not_hold_up_what_may_go_behind_them(
    wire: Wire, main: Session, east: Session
) -> None:
    first = await fire_and_forget(main, east, wire)
    owing = wire.at_east(first)
    assert owing is not None
    out = wire.east.outgoing(owing)
    out.acks.due_at = wire.daemon.clock.monotonic()  # its peer is away, say
    for _ in range(3):
        await fire_and_forget(main, east, wire)
    wire.daemon.instance._tick_task.cancel()
    await wire.daemon.pass_time(HALF_HOUR + 60)
    batch, dialog_expiry.BATCH = dialog_expiry.BATCH, 1
    try:
        assert await dialog_expiry.purge(wire.east) == 3
    finally:
        dialog_expiry.BATCH = batch
    (row,) = await endpoints(east)
    assert row["conversation_id"] == show(first)
    out.acks.due_at = None
    assert await dialog_expiry.purge(wire.east) == 1


@pytest.mark.rule("OBJ-37", "DLG-M7", "DLG-T27")
@between
async def test_a_dropped_service_leaves_no_tombstone(
    wire: Wire, main: Session, east: Session
) -> None:
    mine = await main.begin_dialog("urn:desk", "urn:harbour", "talk")
    await main.send(mine, b"1", "Ask")
    assert len(await take(east, "harbour", wait=5)) == 1
    await east.drop("service", "urn:harbour", terminate_existing=True)
    assert await endpoints(east) == []
    (told,) = await take(main, "desk", wait=5)
    assert told.error is not None
    assert told.error.number == -8470


@pytest.mark.of_files("it reads the file meanwhile")
@pytest.mark.rule("REL-4", "REL-14", "DLP-57")
def test_the_notice_leaves_only_when_the_file_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a crash in between has the initiator send message 0 again to one who forgot it."""

    def slowly() -> Inline:
        def late(done: Callable[[], None]) -> None:
            asyncio.get_running_loop().call_later(0.02, done)

        return Inline(late)

    monkeypatch.setattr(stores, "Inline", slowly)
    noted: list[bool] = []

    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as admin:
            await admin.apply(EAST)
        wire, file = Wire(daemon), tmp_path / "main.db"

        def is_noted(item: Item) -> bool:
            if settles(item):
                with closing_file(sqlite3.connect(file)) as store:
                    noted.append(store.execute(_IS_NOTED).fetchone() == (1,))
            return False

        wire.drops = is_noted
        main = await daemon.session()
        async with closing_sessions(main):
            mine = await main.begin_dialog("urn:desk", "urn:harbour", "talk")
            async with main.transaction() as tx:
                for _ in range(600):  # more than a window: acks come while there is more to send
                    await tx.send(mine, b"x", "Both")
            await daemon.pass_time(5)

    play(program, tmp_path)
    assert noted
    assert all(noted)


_IS_NOTED = "SELECT first_acked FROM conversation_endpoints WHERE is_initiator = 1"
