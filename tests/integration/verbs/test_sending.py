"""SEND and what becomes of it, where the other side is near, far, late or not to be reached."""

import asyncio
from pathlib import Path

import pytest

from brokerd.client.session import Session
from brokerd.errors import (
    ConversationNotFound,
    InvalidArgument,
    InvalidState,
    RemoteError,
    WrongDirection,
)
from brokerd.protocol.frames import AckOnly
from brokerd.protocol.transitions import State
from tests.integration.one_daemon import Daemon, live_of, play, rows
from tests.integration.scenarios import scenario
from tests.integration.shorthand import answered, bodies, fails, state, take, talk
from tests.integration.two_brokers import Wire, between

AWAY = {"name": "away", "service": "urn:away", "address": "TCP://far:9999"}


async def with_route(daemon: Daemon) -> None:
    daemon.objects = {**daemon.objects, "route": [AWAY]}
    async with await daemon.session() as admin:
        await admin.apply(daemon.objects)


@pytest.mark.rule("DLG-12", "ERR-9727")
@scenario
async def test_a_dialog_to_be_encrypted_never_leaves_in_clear(
    daemon: Daemon, session: Session
) -> None:
    await with_route(daemon)
    mine = await session.begin_dialog("urn:desk", "urn:away", "talk", encryption=True)
    await session.send(mine, b"secret", "Ask")
    (told,) = await take(session, "desk", wait=5)
    assert told.error is not None
    assert (told.error.number, told.error.code) == (-9727, "no_binding")
    assert state(daemon, mine) is State.ERROR
    (row,) = [one for one in await session.view("transmission_queue") if isinstance(one, dict)]
    assert row["status_key"] == "held_after_error"
    # Within the instance nothing is encrypted, whatever was asked for.
    near = await talk(session, b"near", encryption=True)
    assert bodies(await take(session, "shop")) == [b"near"]
    await session.end(near)
    clear = await session.begin_dialog("urn:desk", "urn:away", "talk", encryption=False)
    await session.send(clear, b"open", "Ask")
    await daemon.pass_time(5)
    assert state(daemon, clear) is State.CONVERSING


@pytest.mark.rule("DLG-12", "OBJ-1")
@between
async def test_between_brokers_of_an_instance_nothing_is_encrypted(
    wire: Wire, main: Session, east: Session
) -> None:
    await main.apply({"broker": {"name": "plain"}})
    assert wire.daemon.instance.brokers["plain"].store.identity.default_encryption
    mine = await main.begin_dialog("urn:desk", "urn:harbour", "talk", encryption=True)
    await main.send(mine, b"near", "Ask")
    (got,) = await take(east, "harbour", wait=5)
    assert got.body == b"near"
    await east.send(got.handle, b"back", "Answer")
    assert bodies(await take(main, "desk", wait=5)) == [b"back"]


@pytest.mark.rule("DLG-5", "OBJ-5")
@between
async def test_a_broker_that_is_named_has_the_dialog_also_where_others_have_the_service(
    wire: Wire, main: Session, east: Session
) -> None:
    service = {"name": "urn:shop", "queue": "harbour", "contracts": ["talk"]}
    await east.create("service", "urn:shop", queue="harbour", contracts=service["contracts"])
    far, own = wire.east.broker_id, wire.daemon.broker.broker_id
    for named, there in ((far, True), (own, False), ("Current_Database", False)):
        mine = await main.begin_dialog("urn:desk", "urn:shop", "talk", broker_id=named)
        await main.send(mine, b"x", "Ask")
        await wire.daemon.pass_time(1)
        assert len(await take(east, "harbour")) == there
        assert len(await take(main, "shop")) == (not there)


@pytest.mark.rule("DLG-12")
@scenario
async def test_the_default_is_an_option_of_the_broker(daemon: Daemon, session: Session) -> None:
    await with_route(daemon)
    broker = {**daemon.objects["broker"], "default_encryption": "on"}
    await session.apply({**daemon.objects, "broker": broker})
    mine = await session.begin_dialog("urn:desk", "urn:away", "talk")
    assert live_of(daemon, mine).endpoint.encryption is True
    await session.apply(daemon.objects)
    other = await session.begin_dialog("urn:desk", "urn:away", "talk")
    assert live_of(daemon, other).endpoint.encryption is False


@pytest.mark.rule("DLG-13", "RCV-38")
@scenario
async def test_the_handles_differ_and_the_conversation_is_one(
    daemon: Daemon, session: Session
) -> None:
    mine = await talk(session, b"x")
    (got,) = await take(session, "shop")
    assert got.handle != mine
    assert got.conversation_id == live_of(daemon, mine).endpoint.conversation_id
    await fails(WrongDirection, session.send(got.handle, b"x", "Ask"))
    await fails(ConversationNotFound, session.send(got.conversation_id, b"x", "Answer"))


@pytest.mark.rule("SND-1", "SND-11")
@scenario
async def test_one_handle_or_several_a_body_or_none_a_type_or_default(
    daemon: Daemon, session: Session
) -> None:
    one = await session.begin_dialog("urn:desk", "urn:shop")
    two = await session.begin_dialog("urn:desk", "urn:shop")
    await session.send(one)
    await session.send([one, two], b"both")
    got = [message for _ in range(2) for message in await take(session, "shop")]
    assert {message.message_type for message in got} == {"DEFAULT"}
    assert bodies(got) == [None, b"both", b"both"]


@pytest.mark.rule("ERR-8426", "SND-2", "SND-8")
@scenario
async def test_an_unknown_handle_is_named_with_its_position(
    daemon: Daemon, session: Session
) -> None:
    mine = await talk(session)
    error = await fails(ConversationNotFound, session.send([mine, b"?" * 16], b"x", "Ask"))
    assert error.ssb_code == 8435
    assert "position 1" in error.message
    error = await fails(ConversationNotFound, session.send(b"?" * 16, b"x", "Ask"))
    assert error.ssb_code == 8426
    assert await take(session, "shop") == []


@pytest.mark.rule("SND-6", "RCV-10")
@scenario
async def test_the_order_holds_within_a_conversation_and_not_across(
    daemon: Daemon, session: Session
) -> None:
    one = await talk(session, b"a1")
    two = await talk(session, b"b1", related_conversation=one)
    await session.send(one, b"a2", "Ask")
    await session.send(two, b"b2", "Ask")
    got = [bodies(await take(session, "shop")) for _ in range(2)]
    assert got == [[b"a1", b"a2"], [b"b1", b"b2"]]


@pytest.mark.rule("SND-13")
@scenario
async def test_a_body_is_bytes_and_stays_the_bytes_it_was(daemon: Daemon, session: Session) -> None:
    mine = await talk(session)
    for wrong in ("text", {"a": 1}, 7):
        await fails(InvalidArgument, session.send(mine, wrong, "Ask"))  # type: ignore[arg-type]
    given: list[bytes | bytearray | memoryview] = [
        b"\xff\x00",
        b'{"a": 1}',
        bytearray(b"12"),
        memoryview(b"34"),
    ]
    for body in given:
        await session.send(mine, body, "Ask")
    assert bodies(await take(session, "shop")) == [bytes(one) for one in given]


@pytest.mark.rule("SND-20", "XMT-14")
@scenario
async def test_where_delivery_is_off_messages_stay_and_say_why(
    daemon: Daemon, session: Session
) -> None:
    await session.admin.disable()
    mine = await talk(session, b"1", b"2")
    found = await session.transmission_status(mine)
    assert (found.status_key, found.pending) == ("sender_disabled", 2)
    assert await take(session, "shop", wait=60) == []
    await session.admin.enable()
    got = bodies(await take(session, "shop", wait=60))
    got += bodies(await take(session, "shop", wait=1)) if len(got) < 2 else []
    assert got == [b"1", b"2"]


@pytest.mark.rule("SND-21", "DLG-27", "DLP-20")
@between
async def test_a_row_goes_when_the_ack_has_come_and_says_nothing_before(
    wire: Wire, main: Session, east: Session
) -> None:
    wire.drops = lambda item: isinstance(item, AckOnly)
    mine = await main.begin_dialog("urn:desk", "urn:harbour", "talk")
    await main.send(mine, b"1", "Ask")
    assert bodies(await take(east, "harbour", wait=5)) == [b"1"]  # the other side has it
    assert await rows(wire.daemon, "transmission_queue") == 1
    assert (await main.transmission_status(mine)).status_key == "awaiting_ack"
    wire.drops = lambda _item: False
    await wire.daemon.pass_time(70)
    assert await rows(wire.daemon, "transmission_queue") == 0
    assert await take(east, "harbour") == []


@pytest.mark.rule("SND-3", "SND-5")
@between
async def test_what_is_sent_elsewhere_leaves_with_the_commit(
    wire: Wire, main: Session, east: Session
) -> None:
    mine = await main.begin_dialog("urn:desk", "urn:harbour", "talk")
    other = await wire.daemon.session()
    for body, kept in ((b"undone", False), (b"kept", True)):
        tx = main.transaction()
        await tx.__aenter__()
        await tx.receive("spare")  # from here on every verb is a request of its own
        await tx.send(mine, body, "Ask")
        await tx.get_group("spare")  # answered, so the send is done
        await wire.daemon.pass_time(10)
        assert await other.view("transmission_queue") == []
        assert wire.passed == []
        if kept:
            await tx.commit()
        else:
            tx.rollback()
    (got,) = await take(east, "harbour", wait=5)
    assert (got.body, got.sequence) == (b"kept", 0)
    await other.close()


@pytest.mark.rule("SND-8", "OBJ-28")
@scenario
async def test_a_send_on_several_has_to_be_right_for_each_side(
    daemon: Daemon, session: Session
) -> None:
    mine, theirs = await answered(session)
    for wrong in ("Ask", "Answer"):
        await fails(WrongDirection, session.send([mine, theirs], b"x", wrong))
    assert await take(session, "desk") == await take(session, "shop") == []
    await session.send([mine, theirs], b"x", "Both")
    assert bodies(await take(session, "desk")) == bodies(await take(session, "shop")) == [b"x"]


STATES = ("DI", "DO", "ER")


@pytest.mark.rule("SND-2", "SND-8", "ERR-8427")
@pytest.mark.parametrize("where", STATES)
@pytest.mark.parametrize("initiator", [True, False], ids=["initiator", "target"])
def test_a_refused_send_names_the_state(tmp_path: Path, where: str, initiator: bool) -> None:
    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            handles = await answered(session)
            mine, theirs = handles if initiator else handles[::-1]
            if where == "DO":
                await daemon.switch("shop" if initiator else "desk", on=False)
                await session.end(mine)
            else:
                await session.end(theirs, *((7, "enough") if where == "ER" else ()))
            free = await talk(session)
            for handle in (mine, [free, mine], [mine, free]):
                error = await fails(InvalidState, session.send(handle, b"x", "Both"))
                assert error.ssb_code == 8429
                assert where in error.message
            assert await rows(daemon, "transmission_queue") == (where == "DO")

    play(program, tmp_path)


@pytest.mark.rule("SND-10", "DLG-47", "GRP-12")
@pytest.mark.parametrize("verb", ["send", "end"])
def test_several_dialogs_are_locked_in_one_order_whatever_order_they_are_named_in(
    tmp_path: Path, verb: str
) -> None:
    async def program(daemon: Daemon) -> None:
        session, other, holder = [await daemon.session() for _ in "abc"]
        handles = [(await answered(session))[0] for _ in range(3)]
        handles.sort(key=lambda one: live_of(daemon, one).group.group_id)
        first, second, third = (live_of(daemon, one).group for one in handles)
        tx = holder.transaction()
        await tx.__aenter__()
        await tx.send(handles[0], b"held", "Ask")
        await tx.get_group("spare")  # answered, so the lock is there
        asked = []
        for one, order in ((session, handles), (other, handles[::-1])):
            if verb == "send":
                asked.append(asyncio.ensure_future(one.send(order, b"y", "Ask")))
            else:
                asked.append(asyncio.ensure_future(one.end(order)))
        await daemon.pass_time(1)
        assert first.holder is not None
        assert second.holder is third.holder is None
        await tx.commit()
        done = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(one) for one in done if one is not None] == (
            [] if verb == "send" else [ConversationNotFound]
        )
        for one in (session, other, holder):
            await one.close()

    play(program, tmp_path)


@pytest.mark.rule("SND-24", "SND-2", "ERR-8489", "DLG-T2")
@scenario
async def test_who_cannot_be_reached_is_waited_for_until_the_lifetime_ends(
    daemon: Daemon, session: Session
) -> None:
    await with_route(daemon)
    mine = await session.begin_dialog("urn:desk", "urn:away", "talk", lifetime=1000)
    for number in range(3):
        await session.send(mine, b"%d" % number, "Ask")
    await daemon.pass_time(900)
    assert state(daemon, mine) is State.CONVERSING
    found = await session.transmission_status(mine)
    assert found.status_key == "transport_unavailable"
    assert found.pending == 3
    assert found.destination is not None
    (told,) = await take(session, "desk", wait=200)
    assert told.error is not None
    assert told.error.number == -8489


@pytest.mark.rule("ERR-1")
def test_which_errors_are_worth_sending_again() -> None:
    helps = {-8489, -8462, -9719}
    for number in (-8489, -8462, -9719, -8408, -8425, -8490, -8494, -8495, -9616, -60001, 7):
        assert RemoteError(number, "").resend_may_help is (number in helps)


@pytest.mark.rule("SND-7", "GRP-9")
@scenario
async def test_a_send_on_several_waits_for_each_lock(daemon: Daemon, session: Session) -> None:
    one, other = await answered(session)
    two = await talk(session)
    await session.send(other, b"x", "Answer")
    tx = session.transaction()
    assert await tx.receive("desk", conversation=one)
    sending = asyncio.ensure_future(session.send([two, one], b"y", "Ask"))
    await daemon.pass_time(1)
    assert not sending.done()
    await tx.commit()
    await sending
