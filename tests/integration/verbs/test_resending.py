"""What a broken dialog could not send goes out on another one (PBT-12)."""

from pathlib import Path

import msgspec
import pytest

from brokerd.broker.outgoing import OutgoingOptions
from brokerd.client.session import Session
from brokerd.clock import SECOND
from brokerd.errors import (
    ConversationNotFound,
    InvalidArgument,
    InvalidState,
    NotInContract,
    QuotaExceeded,
)
from brokerd.protocol.frames import AckOnly
from brokerd.telemetry.status import InstanceStatus, concerns
from tests.integration.one_daemon import Daemon, live_of, play, rows
from tests.integration.scenarios import scenario, with_limits
from tests.integration.shorthand import bodies, fails, take, talk
from tests.integration.two_brokers import Wire, between


async def frozen(daemon: Daemon, session: Session, count: int, body: bytes = b"%d") -> bytes:
    """A dialog that broke with so many messages not sent."""
    mine = await talk(session, b"first")
    (asked,) = await take(session, "shop")
    await daemon.switch("shop", on=False)
    for number in range(count):
        await session.send(mine, body % number if b"%" in body else body, "Ask")
    await session.end(asked.handle, 7, "broken")
    await daemon.switch("shop", on=True)
    return mine


@pytest.mark.rule("PBT-12", "DLG-27")
@between
async def test_repeats_are_known_by_their_ids(wire: Wire, main: Session, east: Session) -> None:
    mine = await main.begin_dialog("urn:desk", "urn:harbour", "talk")
    await main.send(mine, b"0", "Ask")
    (first,) = await take(east, "harbour", wait=5)
    await wire.daemon.pass_time(1)
    wire.drops = lambda item: isinstance(item, AckOnly)
    for number in (1, 2):
        await main.send(mine, b"%d" % number, "Ask")
    had = await take(east, "harbour", wait=5)
    had += await take(east, "harbour", wait=1)
    assert bodies(had) == [b"1", b"2"]
    wire.drops = lambda item: item.from_initiator
    for number in (3, 4, 5):
        await main.send(mine, b"%d" % number, "Ask")
    await east.end(first.handle, 9, "broken")
    wire.drops = lambda _item: False
    (told,) = await take(main, "desk", wait=5)
    assert told.is_error
    waiting = await rows(wire.daemon, "transmission_queue")
    assert waiting >= 3
    async with main.transaction() as tx:
        new = await tx.begin_dialog("urn:desk", "urn:harbour", "talk")
        resent = await tx.resend_pending(mine, new)
    again = await take(east, "harbour", wait=5)
    assert bodies(again) == [b"%d" % number for number in range(6 - waiting, 6)]
    assert [one.message_id for one in resent] == [one.message_id for one in again]
    assert [one.sequence for one in resent] == list(range(6 - waiting, 6))
    known = {one.message_id for one in had}
    repeats = [one.body for one in again if one.message_id in known]
    assert set(repeats) <= {b"1", b"2"}
    for one in resent:
        if one.message_id in known:
            assert one.may_have_arrived


@pytest.mark.rule("PBT-12", "REL-33")
def test_large_ones_are_stored_again_before_they_are_sent(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        mine = await frozen(daemon, session, 12)
        new = await talk(session)
        assert len(await session.resend_pending(mine, new)) == 12
        assert await rows(daemon, "bodies WHERE owner = 2") == 2  # those of two digits
        assert bodies(await take(session, "shop")) == [b"%d" % number for number in range(12)]
        await session.end(mine)
        assert await rows(daemon, "bodies") == 0
        await session.close()

    play(program, tmp_path, large_body=2)


@pytest.mark.rule("PBT-12", "REL-33")
def test_each_of_those_that_share_a_body_has_its_own_copy(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        mine = await frozen(daemon, session, 3, b"x")
        out = live_of(daemon, mine).outgoing
        assert out is not None
        first, *others = out.window.messages()
        assert all(one.body is first.body for one in others)  # Python keeps one of each byte
        new = await talk(session)
        assert len(await session.resend_pending(mine, new)) == 3
        assert await rows(daemon, "bodies WHERE owner = 2") == 3
        await session.close()

    play(program, tmp_path, large_body=1)


@pytest.mark.rule("PBT-12", "CLP-103")
@pytest.mark.parametrize("restart", [False, True])
def test_all_of_them_in_order_also_after_a_restart(tmp_path: Path, restart: bool) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        mine = await frozen(daemon, session, 30)
        if restart:
            await session.close()
            await daemon.restart()
            session = await daemon.session()
        new = await talk(session)
        resent = await session.resend_pending(mine, new)
        assert len(resent) == 30
        assert all(one.may_have_arrived for one in resent) or not restart
        assert bodies(await take(session, "shop")) == [b"%d" % number for number in range(30)]
        await session.end(mine)
        assert await rows(daemon, "transmission_queue") == 0
        await session.close()

    play(program, tmp_path, outgoing=OutgoingOptions(page_messages=8))


@pytest.mark.rule("PBT-12")
@scenario
async def test_what_cannot_be_resent(daemon: Daemon, session: Session) -> None:
    mine = await frozen(daemon, session, 2)
    healthy = await talk(session, b"x")
    await fails(InvalidState, session.resend_pending(healthy, mine))
    await fails(InvalidArgument, session.resend_pending(mine, mine))
    await fails(ConversationNotFound, session.resend_pending(mine, b"?" * 16))
    other = await session.begin_dialog("urn:desk", "urn:shop", "other")
    await fails(NotInContract, session.resend_pending(mine, other))
    await take(session, "shop")
    tx = session.transaction()
    assert len(await tx.resend_pending(mine, healthy)) == 2
    tx.rollback()
    await session.status()
    assert await take(session, "shop") == []


@pytest.mark.rule("PBT-12")
@with_limits(max_verbs=5)
async def test_no_more_than_a_transaction_may_have(daemon: Daemon, session: Session) -> None:
    mine = await frozen(daemon, session, 6)
    await fails(QuotaExceeded, session.resend_pending(mine, await talk(session)))


@pytest.mark.rule("DLP-50", "MON-8")
@between
async def test_what_a_broken_dialog_holds_is_told_before_a_restart_as_after_it(
    wire: Wire, main: Session, east: Session
) -> None:
    """Its way led somewhere until it broke; now it leads nowhere."""
    mine = await main.begin_dialog("urn:desk", "urn:harbour", "talk")
    await main.send(mine, b"0", "Ask")
    (first,) = await take(east, "harbour", wait=5)
    await wire.daemon.pass_time(1)
    wire.drops = lambda item: item.from_initiator
    await main.send(mine, b"1", "Ask")
    await east.end(first.handle, 9, "broken")
    wire.drops = lambda _item: False
    await wire.daemon.pass_time(5)
    assert live_of(wire.daemon, mine).outgoing is not None
    status = msgspec.convert(await main.status(), InstanceStatus, strict=False)
    (held,) = [one for one in status.destinations if one.messages]
    assert (held.state, held.status_key, held.broker) == ("delayed", "held_after_error", "main")
    assert any("the dialog is in error" in one for one in concerns(status))


@pytest.mark.rule("VIEW-4", "MON-8")
@scenario
async def test_the_age_of_what_waits_is_known_after_a_restart(
    daemon: Daemon, session: Session
) -> None:
    began = daemon.broker.clock.utc()
    await talk(session, b"first")
    await daemon.pass_time(100)
    await daemon.restart()
    async with await daemon.session() as again:
        (row,) = await again.view("service_queues", where={"name": "shop"})
    assert row["ready_count"] == 1
    assert 0 <= row["oldest_ready_at"] - began < SECOND
