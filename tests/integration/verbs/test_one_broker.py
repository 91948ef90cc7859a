"""One broker, no peers: every rule of the verbs through the SDK, on virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import sqlalchemy

from brokerd.broker.state import Group
from brokerd.client.messages import FOREVER, Message
from brokerd.client.session import Session
from brokerd.errors import (
    ContractNotFound,
    ConversationNotFound,
    DeadlockVictim,
    DuplicateHandle,
    ErrorNeedsCodeAndText,
    GroupNotFound,
    GroupServiceMismatch,
    InvalidArgument,
    InvalidLifetime,
    InvalidName,
    InvalidState,
    LockTimeout,
    MessageTooLarge,
    MessageTypeNotFound,
    NoSuchTx,
    NotInContract,
    NullBody,
    QueueDisabled,
    QueueNotFound,
    QuotaExceeded,
    ReservedMessageType,
    ServiceNotFound,
    WrongDirection,
)
from brokerd.ids import GroupId
from brokerd.model import DIALOG_TIMER, END_DIALOG, ERROR
from brokerd.protocol.transitions import State
from tests.integration.one_daemon import Daemon, live_of, play, rows
from tests.integration.scenarios import scenario, with_limits
from tests.integration.shorthand import (
    answered,
    bodies,
    fails,
    pair,
    state,
    take,
    talk,
    types,
    undone,
)

# Beginning.


@pytest.mark.rule("DLG-1", "DLG-3", "DLG-4")
@scenario
async def test_a_begun_dialog_is_durable_and_nobody_hears_of_it(
    daemon: Daemon, session: Session
) -> None:
    handle = await talk(session)
    assert state(daemon, handle) is State.STARTED_OUTBOUND
    assert await rows(daemon, "conversation_endpoints") == 1
    async with undone(session) as tx:
        gone = await tx.begin_dialog("urn:desk", "urn:shop", "talk")
    await fails(ConversationNotFound, session.send(gone, b"x", "Ask"))
    assert len(daemon.broker.groups) == 1


@pytest.mark.rule("DLG-2", "DLG-7", "DLG-10", "ERR-8423", "ERR-8425", "ERR-8411")
@scenario
async def test_what_begin_dialog_refuses(daemon: Daemon, session: Session) -> None:
    begin, unknown = session.begin_dialog, b"?" * 16
    await fails(ServiceNotFound, begin("urn:none", "urn:shop", "talk"))
    await fails(ServiceNotFound, begin("URN:desk", "urn:shop", "talk"))
    await fails(ContractNotFound, begin("urn:desk", "urn:shop", "Talk"))
    await fails(InvalidName, begin("urn:desk", "", "talk"))
    await fails(InvalidName, begin("urn:desk", "x" * 257, "talk"))
    for lifetime in (0, -1, 2**31):
        await fails(InvalidLifetime, begin("urn:desk", "urn:shop", "talk", lifetime))
    related = begin("urn:desk", "urn:shop", "talk", related_conversation=unknown)
    await fails(ConversationNotFound, related)
    both = begin("urn:desk", "x", "talk", related_conversation=unknown, related_group=unknown)
    await fails(InvalidArgument, both)
    assert await begin("urn:desk", "x" * 256, "talk", 2**31 - 1)
    assert await begin("urn:shop", "urn:desk", "talk")  # an initiator needs not list it (OBJ-33)


@pytest.mark.rule("OBJ-30", "DLG-2")
@scenario
async def test_default_contract_and_type(daemon: Daemon, session: Session) -> None:
    handle = await session.begin_dialog("urn:desk", "urn:shop")
    await session.send(handle, b"x")
    (got,) = await take(session, "shop")
    assert (got.contract, got.message_type) == ("DEFAULT", "DEFAULT")
    undeclared = await session.begin_dialog("urn:desk", "urn:spare")
    await session.send(undeclared, b"x")
    (told,) = await take(session, "desk")
    assert told.error is not None
    assert (told.handle, told.error.number) == (undeclared, -8408)


@pytest.mark.rule("DLG-1")
@scenario
async def test_a_handle_in_use_is_refused_also_after_a_restart(
    daemon: Daemon, session: Session
) -> None:
    handle = await talk(session, b"1")
    for _ in range(2):
        error = await fails(InvalidArgument, begin_as(session, handle))
        assert "in use" in error.message
        await session.close()
        await daemon.restart()
        session = await daemon.session()
    await session.close()


def begin_as(session: Session, handle: bytes) -> Awaitable[object]:
    verb = ("begin_dialog", (handle, "urn:desk", "urn:shop", {"contract": "talk"}))
    return session._link.transact((verb,)).future


@pytest.mark.rule("DLG-7", "DLG-8", "DLG-9", "GRP-1", "ERR-9610")
@pytest.mark.parametrize("restart", [False, True])
def test_related_dialogs_share_a_group_of_one_service(tmp_path: Path, restart: bool) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        first = await talk(session, b"1")
        if restart:
            await session.close()
            await daemon.restart()
            session = await daemon.session()
        second = await talk(session, related_conversation=first)
        group = live_of(daemon, first).group
        third = await talk(session, related_group=group.group_id)
        assert await talk(session)
        assert sorted(one.endpoint.handle for one in group.members.values()) == sorted(
            [first, second, third]
        )
        for given in ({"related_conversation": first}, {"related_group": group.group_id}):
            other = session.begin_dialog("urn:spare", "urn:shop", "talk", **given)
            await fails(GroupServiceMismatch, other)
        own = await talk(session, related_group=b"n" * 16)
        assert live_of(daemon, own).group.group_id == b"n" * 16
        await session.close()

    play(program, tmp_path)


@pytest.mark.rule("DLG-8", "RCV-5")
@scenario
async def test_a_group_that_is_only_in_the_store_is_found(daemon: Daemon, session: Session) -> None:
    handle = await talk(session, b"1")
    group_id = live_of(daemon, handle).endpoint.group_id
    (asked,) = await take(session, "shop")
    await session.send(asked.handle, b"2", "Answer")
    await session.close()
    await daemon.restart()
    session = await daemon.session()
    other = session.begin_dialog("urn:spare", "urn:shop", "talk", related_group=group_id)
    await fails(GroupServiceMismatch, other)
    assert bodies(await take(session, "desk", group=group_id)) == [b"2"]
    await fails(GroupNotFound, take(session, "desk", group=b"?" * 16))
    await session.close()


@pytest.mark.rule("DLG-5", "DLG-6", "ERR-8490")
@scenario
async def test_current_database_pins_and_a_missing_service_is_an_error(
    daemon: Daemon, session: Session
) -> None:
    here = await session.begin_dialog("urn:desk", "urn:shop", "talk", broker_id="current_database")
    await session.send(here, b"x", "Ask")
    assert bodies(await take(session, "shop")) == [b"x"]
    lost = await session.begin_dialog(
        "urn:desk", "urn:nobody", "talk", broker_id="CURRENT_DATABASE"
    )
    await session.send(lost, b"x", "Ask")
    (told,) = await take(session, "desk", wait=30)
    assert told.error is not None
    assert told.error.number == -8490


# Sending.


@pytest.mark.rule("SND-14", "DLG-T2", "DLG-T5", "DLG-T9", "SND-5")
@scenario
async def test_inside_a_broker_a_send_writes_the_target_queue(
    daemon: Daemon, session: Session
) -> None:
    await talk(session, b"1", b"2")
    assert await rows(daemon, "transmission_queue") == 0
    got = await take(session, "shop")
    assert [(one.sequence, one.body) for one in got] == [(0, b"1"), (1, b"2")]
    assert state(daemon, got[0].handle) is State.CONVERSING


@pytest.mark.rule("SND-3", "SND-4", "RCV-14")
@scenario
async def test_nothing_leaves_before_the_commit_and_rollback_leaves_no_trace(
    daemon: Daemon, session: Session
) -> None:
    handle = await talk(session, b"1")
    await take(session, "shop")
    async with undone(session) as tx:
        await tx.receive("desk")  # from here on every verb is a request of its own
        await tx.send(handle, b"2", "Ask")
        await tx.send(handle, b"3", "Ask")
        assert await take(session, "shop") == []
    await session.send(handle, b"4", "Ask")
    assert [(one.sequence, one.body) for one in await take(session, "shop")] == [(1, b"4")]


@pytest.mark.rule("SND-2", "OBJ-26", "OBJ-27", "OBJ-28")
@pytest.mark.rule("ERR-8431", "ERR-8432", "ERR-8428", "ERR-8426")
@scenario
async def test_what_send_refuses(daemon: Daemon, session: Session) -> None:
    mine, yours = await answered(session)
    await fails(WrongDirection, session.send(mine, b"x", "Answer"))
    await fails(WrongDirection, session.send(yours, b"x", "Ask"))
    for handle in (mine, yours):
        await fails(NotInContract, session.send(handle, b"x", "Alone"))
        await fails(MessageTypeNotFound, session.send(handle, b"x", "ask"))
        for reserved in (END_DIALOG, ERROR, DIALOG_TIMER):
            await fails(ReservedMessageType, session.send(handle, b"x", reserved))
    for _ in range(2):  # in any order, as often as either side likes (OBJ-26)
        for handle in (mine, yours, yours):
            await session.send(handle, b"x", "Both")
    assert types(await take(session, "shop")) == ["Both"] * 2
    assert types(await take(session, "desk")) == ["Both"] * 4
    await fails(ConversationNotFound, session.send(b"?" * 16, b"x", "Ask"))
    with pytest.raises(NullBody):
        await session.send(mine, None, "Ask")  # type: ignore[arg-type]  # what is refused


@pytest.mark.rule("SND-11", "RCV-42", "OBJ-14")
@scenario
async def test_an_empty_body_is_an_absent_one(daemon: Daemon, session: Session) -> None:
    handle = await talk(session, b"")
    await session.send(handle, message_type="Ask")
    await session.send(handle, message_type="Nudge")
    assert bodies(await take(session, "shop")) == [None, None, None]


@pytest.mark.rule("SND-12", "SND-24", "ERR-8459", "BI-R5", "BI-R7")
@with_limits(max_message=1000, max_bytes=2500)
async def test_bodies_and_transactions_have_limits(daemon: Daemon, session: Session) -> None:
    handle = await talk(session, b"x" * 1000)
    await fails(MessageTooLarge, session.send(handle, b"x" * 1001, "Ask"))

    async def thrice() -> None:
        async with session.transaction() as tx:
            for _ in range(3):
                await tx.send(handle, b"x" * 1000, "Ask")

    await fails(QuotaExceeded, thrice())
    assert bodies(await take(session, "shop")) == [b"x" * 1000]


@pytest.mark.rule("BI-R7", "SND-24")
@with_limits(max_verbs=3)
async def test_a_transaction_has_so_many_verbs(daemon: Daemon, session: Session) -> None:
    handle = await talk(session)

    async def send(count: int, *, at_once: bool) -> None:
        async with session.transaction() as tx:
            if not at_once:
                await tx.receive("desk")  # so that each request travels by itself
            for _ in range(count):
                await tx.send(handle, b"x", "Ask")

    for at_once in (True, False):
        await send(3, at_once=at_once)
        await fails(QuotaExceeded, send(4, at_once=at_once))
    assert len(await take(session, "shop")) == 6


@pytest.mark.rule("SND-8", "SND-9", "ERR-8451")
@scenario
async def test_a_send_on_several_dialogs_is_all_or_nothing(
    daemon: Daemon, session: Session
) -> None:
    handles = [await talk(session) for _ in range(3)]
    error = await fails(DuplicateHandle, session.send([*handles, handles[1]], b"x", "Ask"))
    assert "position 3" in error.message
    error = await fails(
        ConversationNotFound, session.send([handles[0], b"?" * 16, handles[1]], b"x", "Ask")
    )
    assert "position 1" in error.message
    other = await session.begin_dialog("urn:desk", "urn:shop", "other")
    await fails(NotInContract, session.send([*handles, other], b"x", "Ask"))
    assert await take(session, "shop") == []
    await session.send(handles, b"x", "Ask")
    got = [*await take(session, "shop"), *await take(session, "shop"), *await take(session, "shop")]
    assert bodies(got) == [b"x"] * 3
    assert len({one.message_id for one in got}) == 3


@pytest.mark.rule("SND-9", "REL-6")
@scenario
async def test_what_is_sent_on_several_dialogs_is_one_body_in_memory_and_three_on_disk(
    daemon: Daemon, session: Session
) -> None:
    """Each has a hash of its own place: a damaged row harms one of the dialogs."""
    handles = [await talk(session) for _ in range(3)]
    body = b"shared " * 1000
    await session.send(handles, body, "Ask")
    ready = [one for group in daemon.broker.groups.values() for one in _ready(group)]
    here = [one.body for one in ready if one.body == body]
    assert len(here) == 3
    assert len({id(one) for one in here}) == 1
    asked = sqlalchemy.text("SELECT body_hash FROM queue_messages WHERE body = :body")
    stored = await daemon.broker.store._reader.rows(asked, {"body": body})
    assert len(stored) == 3
    assert len({bytes(row[0]) for row in stored}) == 3


def _ready(group: Any) -> list[Any]:
    return [message for live in group.members.values() for message in live.ready]


@pytest.mark.rule("SND-16", "OBJ-34", "DLG-T6", "DLG-T13", "DLG-44", "ERR-8408")
@scenario
async def test_a_refused_first_message_errors_the_dialog_not_the_send(
    daemon: Daemon, session: Session
) -> None:
    handle = await session.begin_dialog("urn:desk", "urn:shop", "other")
    await session.send(handle, b"x", "Both")
    assert state(daemon, handle) is State.ERROR
    (told,) = await take(session, "desk")
    body = orjson.loads(told.body or b"")
    assert (told.message_type, told.sequence) == (ERROR, -1)
    assert (body["code"], body["origin"]) == (-8408, "broker")
    assert await rows(daemon, "conversation_endpoints") == 1
    await session.end(handle)
    assert await rows(daemon, "conversation_endpoints") == 0


@pytest.mark.rule("DLG-43", "SND-16", "OBJ-18", "ERR-8430")
@scenario
async def test_a_message_that_fails_validation_errors_both_sides(
    daemon: Daemon, session: Session
) -> None:
    handle = await talk(session, b"1")
    await session.send(handle, b"not empty", "Nudge")
    mine = await take(session, "desk")
    yours = await take(session, "shop")
    assert [one.error.number for one in mine if one.error] == [-8430]
    assert types(yours) == [ERROR, "Ask"]


@pytest.mark.rule("SND-18", "SND-15", "DSP-11", "REL-22")
@scenario
async def test_what_waits_for_a_queue_comes_at_once_also_the_second_time(
    daemon: Daemon, session: Session
) -> None:
    """Messages are delivered directly between two times that the queue is off (SND-14)."""
    handle = await talk(session, b"0")
    for number in (1, 3):
        await session.alter("queue", "shop", status="off")
        await session.send(handle, b"%d" % number, "Ask")
        await session.alter("queue", "shop", status="on")
        await daemon.pass_time(0.5)
        assert await rows(daemon, "transmission_queue") == 0
        await session.send(handle, b"%d" % (number + 1), "Ask")
        assert daemon.instance.parts.dispatcher.buffered == 0
    assert bodies(await take(session, "shop")) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.rule("SND-18", "SND-15", "SND-14", "DLG-16", "OBJ-40")
@scenario
async def test_while_the_target_queue_is_off_messages_wait_in_order(
    daemon: Daemon, session: Session
) -> None:
    handle = await talk(session, b"1")
    await daemon.switch("shop", on=False)
    await session.send(handle, b"2", "Ask")
    await fails(QueueDisabled, take(session, "shop"))
    peer = live_of(daemon, handle).peer
    assert peer is not None
    arrived = daemon.instance.parts.dispatcher.received
    await session.send(peer.endpoint.handle, b"the other direction", "Answer")
    assert bodies(await take(session, "desk")) == [b"the other direction"]
    assert daemon.instance.parts.dispatcher.received == arrived  # it was delivered directly
    assert await rows(daemon, "transmission_queue") == 1
    await daemon.switch("shop", on=True)
    await session.send(handle, b"3", "Ask")  # may not overtake (SND-15)
    await session.end(handle)
    await daemon.pass_time(200)
    got = await take(session, "shop")
    assert [(one.sequence, one.body) for one in got] == [(0, b"1"), (1, b"2"), (2, b"3"), (3, None)]
    assert await rows(daemon, "transmission_queue") == 0
    assert state(daemon, handle) is None


@pytest.mark.rule("DLG-T3")
@pytest.mark.parametrize("error", [(), (7, "enough")])
def test_a_dialog_on_which_nothing_was_sent_ends_without_a_word(
    tmp_path: Path, error: tuple[int, str]
) -> None:
    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await session.end(await talk(session), *error)
            assert await rows(daemon, "conversation_endpoints") == 0
            assert await take(session, "shop") == []

    play(program, tmp_path)


# Ending.


@pytest.mark.rule("DLG-T10", "DLG-T12", "DLG-T16", "DLG-16", "DLG-33", "DLG-18")
@scenario
async def test_both_sides_end_and_nothing_is_left(daemon: Daemon, session: Session) -> None:
    mine, yours = await answered(session)
    await session.end(mine)
    assert state(daemon, mine) is None
    assert state(daemon, yours) is State.DISCONNECTED_INBOUND
    await fails(InvalidState, session.send(yours, b"x", "Answer"))
    assert types(await take(session, "shop")) == [END_DIALOG]
    await session.end(yours)
    for table in ("conversation_endpoints", "queue_messages", "endpoint_progress"):
        assert await rows(daemon, table) == 0
    assert not daemon.broker.groups
    assert not len(daemon.broker.endpoints)
    await fails(ConversationNotFound, session.end(yours))


@pytest.mark.rule("SND-2", "SND-8")
@scenario
async def test_a_send_on_several_dialogs_whose_other_sides_are_gone_is_refused(
    daemon: Daemon, session: Session
) -> None:
    sides = [await answered(session) for _ in range(2)]
    for mine, _ in sides:
        await session.end(mine)
    await daemon.restart()
    await fails(InvalidState, session.send([yours for _, yours in sides], b"x", "Answer"))


@pytest.mark.rule("DLG-T10", "DLG-T17", "DLG-T18")
@scenario
async def test_the_target_ends_first(daemon: Daemon, session: Session) -> None:
    mine, yours = await answered(session)
    await session.end(yours)
    assert state(daemon, yours) is None
    assert state(daemon, mine) is State.DISCONNECTED_INBOUND
    await session.end(mine, 7, "late")
    assert await rows(daemon, "conversation_endpoints") == 0
    assert types(await take(session, "desk")) == []


@pytest.mark.rule("DLG-T11", "DLG-T13", "DLG-T23", "RCV-8", "RCV-9", "RCV-24", "DLG-M2", "DLG-M5")
@scenario
async def test_an_error_comes_first_and_the_rest_can_still_be_received(
    daemon: Daemon, session: Session
) -> None:
    handle = await talk(session, b"1", b"2")
    await session.end(handle, 7, "enough")
    first = await take(session, "shop", 1)
    assert first[0].error is not None
    assert (first[0].error.number, first[0].error.description) == (7, "enough")
    assert bodies(await take(session, "shop")) == [b"1", b"2"]
    assert state(daemon, first[0].handle) is State.ERROR
    await fails(InvalidState, session.send(first[0].handle, b"x", "Answer"))
    await session.end(first[0].handle)
    assert await rows(daemon, "conversation_endpoints") == 0


@pytest.mark.rule("DLG-20", "ERR-8419")
@scenario
async def test_an_error_needs_code_and_text(daemon: Daemon, session: Session) -> None:
    handle = await talk(session, b"1")
    for code, text in ((7, None), (None, "x"), (0, "x"), (-8408, "x")):
        await fails(ErrorNeedsCodeAndText, session.end(handle, code, text))
    await fails(InvalidArgument, session.end(handle, 7, "x" * 3001))
    await session.end(handle, 7, "x" * 3000)


@pytest.mark.rule("DLG-M1", "DLG-22", "DLG-25", "DLG-T10")
@scenario
async def test_an_end_deletes_what_is_unread_and_follows_what_was_sent(
    daemon: Daemon, session: Session
) -> None:
    mine, yours = await answered(session)
    await session.send(mine, b"unread", "Ask")
    async with session.transaction() as tx:
        await tx.send(yours, b"last", "Answer")
        await tx.end(yours)
    assert await rows(daemon, "queue_messages") == 2
    got = await take(session, "desk")
    assert types(got) == ["Answer", END_DIALOG]
    assert await take(session, "shop") == []


@pytest.mark.rule("DLG-25", "RCV-15")
@scenario
async def test_an_end_and_the_receive_before_it_are_undone_together(
    daemon: Daemon, session: Session
) -> None:
    mine, yours = await answered(session)
    await session.send(mine, b"asked", "Ask")
    for _ in range(2):
        async with undone(session) as tx:
            assert bodies(await tx.receive("shop")) == [b"asked"]
            await tx.end(yours)
        assert state(daemon, yours) is state(daemon, mine) is State.CONVERSING
    async with session.transaction() as tx:
        assert bodies(await tx.receive("shop")) == [b"asked"]
        await tx.end(yours)
    assert types(await take(session, "desk")) == [END_DIALOG]
    assert await take(session, "shop") == []


@pytest.mark.rule("DLG-14", "GRP-6", "DLG-16")
@scenario
async def test_both_sides_of_a_dialog_may_be_of_one_service_and_its_queue(
    daemon: Daemon, session: Session
) -> None:
    mine = await session.begin_dialog("urn:shop", "urn:shop", "talk")
    await session.send(mine, b"ask", "Ask")
    (asked,) = await take(session, "shop")
    assert asked.handle != mine
    await session.send(asked.handle, b"answer", "Answer")
    (answer,) = await take(session, "shop")
    assert (answer.handle, answer.body) == (mine, b"answer")
    assert answer.conversation_id == asked.conversation_id
    assert answer.group_id != asked.group_id
    await session.end(mine)
    (told,) = await take(session, "shop")
    assert (told.handle, told.is_end) == (asked.handle, True)
    await session.end(asked.handle)
    assert await rows(daemon, "conversation_endpoints") == 0


@pytest.mark.rule("DLG-10", "DLG-11", "DLG-T14")
@scenario
async def test_a_lifetime_is_a_year_or_as_said(daemon: Daemon, session: Session) -> None:
    usual, short = await talk(session), await talk(session, b"1", lifetime=1)
    for handle, seconds in ((usual, 365 * 86_400), (short, 1)):
        endpoint = live_of(daemon, handle).endpoint
        assert endpoint.expires_at - endpoint.began_at == seconds * 1_000_000
    (told,) = await take(session, "desk", wait=1.5)
    assert told.error is not None
    assert (told.handle, told.error.number) == (short, -8489)


@pytest.mark.rule("DLG-T14", "DLG-M6", "DLG-26", "DLG-18")
@pytest.mark.parametrize("side", ["initiator", "target"])
def test_a_lifetime_ends_after_the_end_of_the_other_side(tmp_path: Path, side: str) -> None:
    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            mine = await talk(session, b"ask", lifetime=60)
            (asked,) = await take(session, "shop")
            here, there, queue = mine, asked.handle, "desk"
            if side == "target":
                here, there, queue = there, mine, "shop"
            await daemon.switch("shop" if side == "initiator" else "desk", on=False)
            await session.send(here, b"held", "Both")
            await session.send(there, b"unread", "Both")
            await session.end(there)
            found = await session.transmission_status(here)
            assert (str(state(daemon, here)), found.status_key) == ("DI", "held_after_end")
            await daemon.pass_time(3700)
            found = await session.transmission_status(here)
            assert (str(state(daemon, here)), found.status_key) == ("ER", "held_after_error")
            assert await rows(daemon, "transmission_queue") == 1
            told, *before = await take(session, queue)
            assert told.error is not None
            assert told.error.number == -8489
            assert types(before) == ["Both", END_DIALOG]
            await session.end(here)
            for table in ("transmission_queue", "conversation_endpoints"):
                assert await rows(daemon, table) == 0

    play(program, tmp_path)


@pytest.mark.rule("DLG-T14", "DLG-M6", "DLG-11", "DLG-T23", "ERR-8489", "DLG-18")
@scenario
async def test_both_sides_learn_that_the_lifetime_is_over(daemon: Daemon, session: Session) -> None:
    silent = await talk(session, lifetime=60)
    handle = await talk(session, b"1", lifetime=60)
    await daemon.pass_time(70)
    got = await take(session, "shop")
    assert types(got) == [ERROR, "Ask"]
    told = [*await take(session, "desk"), *await take(session, "desk")]
    assert sorted(one.handle for one in told) == sorted([silent, handle])
    assert [one.error.number for one in told if one.error] == [-8489] * 2
    await fails(InvalidState, session.send(handle, b"x", "Ask"))
    await daemon.pass_time(3600)
    assert await rows(daemon, "conversation_endpoints") == 3  # nobody else ends them
    for one in (silent, handle, got[0].handle):
        await session.end(one)
    assert await rows(daemon, "conversation_endpoints") == 0


@pytest.mark.rule("DLG-46", "DLG-26", "DLG-T16")
@scenario
async def test_an_arrival_between_verb_and_commit_is_not_undone(
    daemon: Daemon, session: Session
) -> None:
    mine, yours = await answered(session)
    other = await daemon.session()
    tx = session.transaction()
    async with tx:
        await tx.receive("shop")
        await tx.send(yours, b"too late", "Answer")
        await other.end(mine)  # needs no lock of the other side (GRP-7)
        await tx.send(yours, b"its view stays", "Answer")
    assert state(daemon, yours) is State.DISCONNECTED_INBOUND
    assert await rows(daemon, "transmission_queue") == 2
    await daemon.pass_time(100)
    assert await rows(daemon, "transmission_queue") == 2  # frozen
    assert types(await take(session, "shop")) == [END_DIALOG]
    await session.end(yours)
    assert await rows(daemon, "transmission_queue") == 0
    await other.close()


@pytest.mark.rule("DLG-46", "DLG-26", "DLG-T16", "DLG-T17", "DLG-T23")
@pytest.mark.parametrize("side", ["initiator", "target"])
@pytest.mark.parametrize("verb", ["send", "end", "end with an error"])
@pytest.mark.parametrize("met", ["end", "error"])
def test_a_verb_meets_what_the_other_side_has_done_before_the_commit(
    tmp_path: Path, side: str, verb: str, met: str
) -> None:
    async def program(daemon: Daemon) -> None:
        session, other = await daemon.session(), await daemon.session()
        handles = await answered(session)
        mine, theirs = handles if side == "initiator" else handles[::-1]
        async with session.transaction() as tx:
            await tx.receive("spare")  # from here on every verb is a request of its own
            if verb == "send":
                await tx.send(mine, b"too late", "Both")
            else:
                await tx.end(mine, *((8, "enough") if verb != "end" else ()))
            await tx.get_group("spare")  # answered, so the verb is done
            await other.end(theirs, *((7, "enough") if met == "error" else ()))
        await session.status()
        queue = "desk" if side == "initiator" else "shop"
        if verb == "send":
            assert state(daemon, mine) == ("DI" if met == "end" else "ER")
            (row,) = await session.view("transmission_queue")
            assert isinstance(row, dict)
            key = "held_after_end" if met == "end" else "held_after_error"
            assert row["status_key"] == key
            assert types(await take(session, queue)) == [END_DIALOG if met == "end" else ERROR]
            await session.end(mine)
        for table in ("conversation_endpoints", "queue_messages", "transmission_queue"):
            assert await rows(daemon, table) == 0
        for one in ("desk", "shop"):
            assert await take(session, one) == []
        await session.close()
        await other.close()

    play(program, tmp_path)


# Receiving.


@pytest.mark.rule("RCV-1", "RCV-2", "RCV-3", "RCV-4", "RCV-7", "GRP-15")
@scenario
async def test_one_group_a_call_the_oldest_first_each_conversation_whole(
    daemon: Daemon, session: Session
) -> None:
    first = await talk(session)
    second = await talk(session, related_conversation=first)
    lone = await talk(session)
    (one,) = [await pair(session, first, b"0")]
    await pair(session, second, b"0")
    (three,) = [await pair(session, lone, b"0")]
    for handle, body in ((three, b"a"), (one, b"b"), (one, b"c"), (three, b"d")):
        await session.send(handle, body, "Answer")
    assert bodies(await take(session, "desk")) == [b"a", b"d"]
    assert bodies(await take(session, "desk", 1)) == [b"b"]
    assert bodies(await take(session, "desk", 5)) == [b"c"]


@pytest.mark.rule("RCV-7")
@scenario
async def test_conversations_of_a_group_do_not_mix(daemon: Daemon, session: Session) -> None:
    first = await talk(session)
    second = await talk(session, related_conversation=first)
    one, two = await pair(session, first, b"0"), await pair(session, second, b"0")
    for handle, body in ((one, b"a"), (two, b"b"), (one, b"c"), (two, b"d")):
        await session.send(handle, body, "Answer")
    assert bodies(await take(session, "desk")) == [b"a", b"c", b"b", b"d"]


@pytest.mark.rule("RCV-5", "RCV-6", "RCV-10", "GRP-10", "ERR-8436")
@scenario
async def test_selectors(daemon: Daemon, session: Session) -> None:
    first = await talk(session)
    second = await talk(session, related_conversation=first)
    one, two = await pair(session, first, b"0"), await pair(session, second, b"0")
    await session.send(one, b"a", "Answer")
    await session.send(two, b"b", "Answer")
    group = live_of(daemon, first).endpoint.group_id
    other = await daemon.session()
    async with session.transaction() as tx:
        assert bodies(await tx.receive("desk", conversation=second)) == [b"b"]
        assert await take(other, "desk") == []  # the whole group is locked
        assert await take(other, "desk", group=group) == []
    assert await take(session, "desk", conversation=second) == []
    assert bodies(await take(session, "desk", group=group)) == [b"a"]
    await fails(ConversationNotFound, take(session, "desk", conversation=b"?" * 16))
    await fails(ConversationNotFound, take(session, "desk", conversation=one))
    await fails(GroupNotFound, take(session, "shop", group=group))
    await fails(GroupNotFound, take(session, "desk", group=b"?" * 16))
    await other.close()


@pytest.mark.rule("RCV-15", "SND-3", "RCV-30", "RCV-37", "RCV-20")
@scenario
async def test_rollback_puts_messages_back_where_they_were(
    daemon: Daemon, session: Session
) -> None:
    await talk(session, b"1", b"2", b"3")
    async with undone(session) as tx:
        first = await tx.receive("shop", 2)
    async with session.transaction() as tx:
        again = await tx.receive("shop")
    assert bodies(again) == [b"1", b"2", b"3"]
    assert [one.queuing_order for one in again[:2]] == [one.queuing_order for one in first]
    assert [one.delivery_count for one in again] == [1, 1, 0]
    assert await take(session, "shop") == []


@pytest.mark.rule("RCV-15", "RCV-9")
@scenario
async def test_what_arrived_meanwhile_stands_behind_what_comes_back(
    daemon: Daemon, session: Session
) -> None:
    handle = await talk(session, b"1", b"2")
    async with undone(session) as tx:
        await tx.receive("shop", 1)
        await session.send(handle, b"3", "Ask")
        await session.end(handle, 7, "enough")
    await session.status()
    got = await take(session, "shop")
    assert [one.sequence for one in got] == [-1, 0, 1, 2]


@pytest.mark.rule("RCV-12", "RCV-17", "ERR-9617")
@scenario
async def test_nothing_asked_for_and_queues_that_are_not_there(
    daemon: Daemon, session: Session
) -> None:
    await talk(session, b"1")
    assert await take(session, "shop", 0) == []
    assert bodies(await take(session, "shop")) == [b"1"]
    await fails(QueueNotFound, take(session, "none"))
    await daemon.switch("desk", on=False)
    await fails(QueueDisabled, take(session, "desk"))
    await fails(QueueDisabled, take(session, "desk", 0))
    began = daemon.loop.time()
    assert await take(session, "shop", 0, wait=FOREVER) == []
    assert daemon.loop.time() - began < 1


@pytest.mark.rule("RCV-4")
@with_limits(max_bytes=2500)
async def test_as_many_as_fit_into_the_bytes_of_one_transaction(
    daemon: Daemon, session: Session
) -> None:
    await talk(session, *(b"%d" % number * 1000 for number in range(5)))
    async with undone(session) as tx:
        assert len(await tx.receive("shop")) == 2
        assert len(await tx.receive("shop", 1)) == 1
        with pytest.raises(QuotaExceeded):
            await tx.receive("shop")
    assert [len(await take(session, "shop")) for _ in range(4)] == [2, 2, 1, 0]


@pytest.mark.rule("RCV-18", "RCV-20", "RCV-23")
@scenario
async def test_a_receive_waits_for_a_message_or_its_time(daemon: Daemon, session: Session) -> None:
    began = daemon.loop.time()
    assert await take(session, "shop", wait=5) == []
    assert 5 <= daemon.loop.time() - began < 5.1
    waiting = asyncio.create_task(take(session, "shop", wait=FOREVER))
    await daemon.pass_time(1000)
    assert not waiting.done()
    await talk(session, b"1")
    assert bodies(await waiting) == [b"1"]


@pytest.mark.rule("CLP-61", "RCV-18")
@scenario
async def test_a_transaction_that_waits_in_a_receive_is_neither_idle_nor_old(
    daemon: Daemon, session: Session
) -> None:
    async def read() -> list[Message]:
        async with session.transaction() as tx:
            got = await tx.receive("shop", wait=FOREVER)
            await daemon.pass_time(50)  # below the idle limit, after hours of waiting
            return got

    waiting = asyncio.create_task(read())
    await daemon.pass_time(7200)
    await talk(session, b"1")
    assert bodies(await waiting) == [b"1"]


@pytest.mark.rule("RCV-21", "RCV-20")
@scenario
async def test_who_waits_is_served_in_order_of_arrival(daemon: Daemon, session: Session) -> None:
    served: list[int] = []

    async def read(number: int) -> None:
        async with session.transaction() as tx:
            await tx.receive("shop", wait=FOREVER)
            served.append(number)
            await daemon.pass_time(5)

    readers = []
    for number in range(4):
        readers.append(asyncio.create_task(read(number)))
        await daemon.pass_time(0.1)
    for _ in range(4):
        await talk(session, b"x")
        await daemon.pass_time(0.1)
        assert served == list(range(len(served)))
    assert served == [0, 1, 2, 3]
    await asyncio.gather(*readers)


@pytest.mark.rule("RCV-20", "GRP-10", "RCV-15")
@scenario
async def test_an_unlocked_group_and_a_rollback_wake_who_waits(
    daemon: Daemon, session: Session
) -> None:
    handle = await talk(session, b"1", b"2")
    yours = (await take(session, "shop", 1))[0].handle
    async with undone(session) as tx:
        await tx.receive("shop", 1)
        plain = asyncio.create_task(take(session, "shop", wait=FOREVER))
        chosen = asyncio.create_task(take(session, "shop", conversation=yours, wait=FOREVER))
        await daemon.pass_time(1)
        assert not plain.done()
        assert not chosen.done()
    assert bodies(await plain) == [b"2"]
    await daemon.pass_time(1)
    assert not chosen.done()
    await session.send(handle, b"3", "Ask")
    assert bodies(await chosen) == [b"3"]


@pytest.mark.rule("RCV-20", "GRP-10")
@scenario
async def test_a_selector_is_served_although_its_group_was_ready_before(
    daemon: Daemon, session: Session
) -> None:
    first = await talk(session)
    second = await talk(session, related_conversation=first)
    one, two = await pair(session, first, b"0"), await pair(session, second, b"0")
    await session.send(one, b"a", "Answer")
    waiting = asyncio.create_task(take(session, "desk", conversation=second, wait=FOREVER))
    await daemon.pass_time(1)
    await session.send(two, b"b", "Answer")
    assert bodies(await asyncio.wait_for(waiting, 5)) == [b"b"]


@pytest.mark.rule("RCV-19", "OBJ-44")
@scenario
async def test_switching_the_queue_off_ends_the_waits(daemon: Daemon, session: Session) -> None:
    waiting = [
        asyncio.create_task(take(session, "shop", wait=FOREVER)),
        asyncio.create_task(take(session, "shop", wait=100)),
    ]
    await daemon.pass_time(1)
    await daemon.switch("shop", on=False)
    for one in waiting:
        await fails(QueueDisabled, one)


@pytest.mark.rule("RCV-19", "GRP-17")
@scenario
async def test_dropping_the_queue_ends_the_waits(daemon: Daemon, session: Session) -> None:
    waiting = [
        asyncio.create_task(take(session, "spare", wait=FOREVER)),
        asyncio.create_task(session.transaction().get_group("spare", FOREVER)),
    ]
    await daemon.pass_time(1)
    objects = dict(daemon.objects)
    for kind in ("queue", "service"):
        objects[kind] = [one for one in objects[kind] if "spare" not in one["name"]]
    await session.apply(objects)
    for one in waiting:
        await fails(QueueNotFound, asyncio.wait_for(one, 5))
    daemon.objects = objects


@pytest.mark.rule("RCV-19")
@scenario
async def test_dropping_the_service_ends_the_waits_for_its_dialogs(
    daemon: Daemon, session: Session
) -> None:
    await talk(session, b"1")
    (got,) = await take(session, "shop")
    by_handle = asyncio.create_task(take(session, "shop", conversation=got.handle, wait=FOREVER))
    by_group = asyncio.create_task(take(session, "shop", group=got.group_id, wait=FOREVER))
    for_any = asyncio.create_task(take(session, "shop", wait=FOREVER))
    await daemon.pass_time(1)
    await session.drop("service", "urn:shop", terminate_existing=True)
    await fails(ConversationNotFound, asyncio.wait_for(by_handle, 1))
    await fails(GroupNotFound, asyncio.wait_for(by_group, 1))
    assert not for_any.done()  # the queue is there
    await session.create("service", "urn:shop", queue="shop", contracts=["talk"])
    await talk(session, b"2")
    assert bodies(await asyncio.wait_for(for_any, 5)) == [b"2"]


@pytest.mark.rule("RCV-22")
@scenario
async def test_a_cancelled_receive_leaves_no_lock_and_takes_no_message(
    daemon: Daemon, session: Session
) -> None:
    waiting = asyncio.create_task(take(session, "shop", wait=FOREVER))
    await daemon.pass_time(1)
    waiting.cancel()
    await asyncio.wait([waiting])
    await daemon.pass_time(1)
    assert not daemon.broker.queues["shop"].waiting
    await talk(session, b"1")
    assert bodies(await take(session, "shop")) == [b"1"]


@pytest.mark.rule("RCV-3", "GRP-8")
@scenario
async def test_groups_of_the_same_transaction_are_candidates_too(
    daemon: Daemon, session: Session
) -> None:
    await talk(session, b"1", b"2")
    await talk(session, b"a")
    async with session.transaction() as tx:
        assert bodies(await tx.receive("shop", 1)) == [b"1"]
        assert bodies(await tx.receive("shop", 1)) == [b"2"]
        assert bodies(await tx.receive("shop", 1)) == [b"a"]
        assert await tx.receive("shop") == []


# Groups and locks.


@pytest.mark.rule("GRP-5", "GRP-7", "GRP-9", "SND-7")
@scenario
async def test_verbs_that_name_a_conversation_wait_for_its_lock_in_line(
    daemon: Daemon, session: Session
) -> None:
    mine, yours = await answered(session)
    await session.send(mine, b"1", "Ask")
    done: list[str] = []

    async def later(name: str, asked: Awaitable[None]) -> None:
        await asked
        done.append(name)

    other = await daemon.session()
    async with session.transaction() as tx:
        await tx.receive("shop")
        tasks = [
            asyncio.create_task(later(str(number), other.send(yours, b"%d" % number, "Answer")))
            for number in range(3)
        ]
        await session.send(mine, b"needs no lock of the other side", "Ask")
        await daemon.pass_time(1)
        assert done == []
    await asyncio.gather(*tasks)
    assert bodies(await take(session, "desk")) == [b"0", b"1", b"2"]
    await other.close()


@pytest.mark.rule("GRP-11")
@scenario
async def test_a_wait_for_a_lock_has_a_limit_and_names_the_holder(
    daemon: Daemon, session: Session
) -> None:
    _, yours = await answered(session)
    other = await daemon.session()
    began = daemon.loop.time()
    async with undone(session) as tx:
        await tx.end(yours)
        await tx.receive("shop")
        error = await fails(LockTimeout, other.send(yours, b"x", "Answer"))
    assert 29.9 < daemon.loop.time() - began < 31
    assert "client" in error.message
    assert "open for 30" in error.message
    await other.send(yours, b"y", "Answer")
    assert bodies(await take(session, "desk")) == [b"y"]
    await other.close()


@pytest.mark.rule("GRP-12")
@scenario
async def test_of_a_deadlock_the_youngest_is_the_victim(daemon: Daemon, session: Session) -> None:
    first, second = await talk(session, b"1"), await talk(session, b"2")
    old, young = session.transaction(), session.transaction()
    await old.__aenter__()
    await old.receive("spare")
    await old.send(first, b"old", "Ask")
    await daemon.pass_time(0.1)
    await young.__aenter__()
    await young.receive("spare")
    await young.send(second, b"young", "Ask")
    await daemon.pass_time(0.1)
    await old.send(second, b"old", "Ask")
    await daemon.pass_time(0.1)
    await young.send(first, b"young", "Ask")
    began = daemon.loop.time()
    await old.__aexit__(None, None, None)
    with pytest.raises(DeadlockVictim):
        await young.__aexit__(None, None, None)
    assert daemon.loop.time() - began < 1
    assert bodies(await take(session, "shop")) == [b"1", b"old"]
    assert bodies(await take(session, "shop")) == [b"2", b"old"]


@pytest.mark.rule("GRP-4", "REL-17")
@scenario
async def test_an_end_keeps_its_lock_until_it_is_durable(daemon: Daemon, session: Session) -> None:
    handle = await talk(session, b"1")
    group: Group = live_of(daemon, handle).group
    seen: list[bool] = []
    joined = daemon.broker.store.join

    def watch(changes: Any, done: Callable[[], None], *, urgent: bool = True) -> None:
        joined(changes, done, urgent=urgent)
        daemon.loop.call_soon(lambda: seen.append(group.holder is not None))

    daemon.broker.store.join = watch  # type: ignore[method-assign]  # to look on
    await session.end(handle)
    assert seen[0]
    assert group.holder is None


@pytest.mark.rule("GRP-2")
@scenario
async def test_a_group_ends_with_its_last_dialog(daemon: Daemon, session: Session) -> None:
    first = await talk(session, b"1")
    group_id = live_of(daemon, first).endpoint.group_id
    await session.end(first)
    await fails(GroupNotFound, take(session, "desk", group=group_id))
    reused = await session.begin_dialog("urn:spare", "urn:shop", "talk", related_group=group_id)
    assert state(daemon, reused) is State.STARTED_OUTBOUND


@pytest.mark.rule("GRP-22", "CLP-38", "REL-3")
@scenario
async def test_group_state_is_read_and_set_under_the_lock(daemon: Daemon, session: Session) -> None:
    handle = await talk(session, b"1", b"2")
    async with session.transaction() as tx:
        (one,) = await tx.receive("shop", 1)
        assert await tx.state(one.group_id) is None
        await tx.set_state(one.group_id, b"kept")
        assert await tx.state(one.group_id) == b"kept"
    async with undone(session) as tx:
        await tx.receive("shop", 1)
        await tx.set_state(one.group_id, b"lost")
    await session.close()
    await daemon.restart()
    session = await daemon.session()
    async with session.transaction() as tx:
        await tx.receive("shop", 1)
        assert await tx.state(one.group_id) == b"kept"
    async with undone(session) as tx:
        with pytest.raises(GroupNotFound):
            await tx.state(one.group_id)
    assert handle
    await session.close()


@pytest.mark.rule("CLP-38", "GRP-22")
@pytest.mark.parametrize("way", ["begin", "send", "end", "set_timer", "none"])
@pytest.mark.parametrize("asked", [False, True], ids=["transact", "transaction"])
def test_state_is_set_where_the_group_is_locked_by_what_was_done_in_it(
    tmp_path: Path, way: str, asked: bool
) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        handle = await talk(session, b"1")
        group = live_of(daemon, handle).group.group_id
        async with undone(session) as tx:
            if asked:
                await tx.receive("spare")
            if way == "begin":
                group = GroupId(b"a group of mine.")
                await tx.begin_dialog("urn:desk", "urn:shop", "talk", related_group=group)
            elif way == "send":
                await tx.send(handle, b"x", "Ask")
            elif way == "end":
                await tx.end(handle)
            elif way == "set_timer":
                await tx.set_timer(handle, 5)
            await tx.set_state(group, b"kept")
            if way == "none":
                await fails(GroupNotFound, tx.commit())
            else:
                await tx.commit()
        kept = await rows(daemon, "group_states")
        assert kept == (0 if way in ("end", "none") else 1)
        await session.close()

    play(program, tmp_path)


@pytest.mark.rule("GRP-2", "GRP-22", "GRP-18")
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("way", ["end", "clean_up", "move"])
def test_state_goes_with_its_group(tmp_path: Path, way: str, restart: bool) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        for body in (b"1", b"2"):
            await talk(session, body)
        (one,), (other,) = await take(session, "shop"), await take(session, "shop")
        async with session.transaction() as tx:
            await tx.state(one.group_id, take_lock=True)
            await tx.set_state(one.group_id, b"kept")
        assert await rows(daemon, "group_states") == 1
        if restart:
            await session.close()
            await daemon.restart()
            session = await daemon.session()
        if way == "end":
            async with session.transaction() as tx:
                await tx.state(one.group_id, take_lock=True)
                await tx.end(one.handle)
                await tx.set_state(one.group_id, b"too late")
        elif way == "clean_up":
            await session.admin.clean_up(one.handle, "nobody knows it")
        else:
            async with session.transaction() as tx:
                await tx.move(one.handle, other.group_id)
        assert await rows(daemon, "group_states") == 0
        again = await session.begin_dialog(
            "urn:spare", "urn:shop", "talk", related_group=one.group_id
        )
        async with session.transaction() as tx:
            assert await tx.state(one.group_id, take_lock=True) is None
        await session.end(again)
        await session.close()

    play(program, tmp_path)


@pytest.mark.rule("GRP-22", "GRP-2")
@scenario
async def test_state_set_as_a_dialog_ends_is_there_for_the_rest_of_its_group(
    daemon: Daemon, session: Session
) -> None:
    """The rest of it is in the store only, and the first state of all is set (D4)."""
    one = await talk(session, b"1")
    await session.begin_dialog("urn:desk", "urn:shop", "talk", related_conversation=one)
    group = live_of(daemon, one).group.group_id
    await session.close()
    await daemon.restart()
    session, other = await daemon.session(), await daemon.session()
    await session.send(one, b"2", "Ask")
    assert len(live_of(daemon, one).group.members) == 1

    async def look() -> bytes | None:
        async with other.transaction() as theirs:
            return await theirs.state(group, take_lock=True)

    async with session.transaction() as tx:
        assert await tx.state(group, take_lock=True) is None
        asked = asyncio.ensure_future(look())
        await daemon.pass_time(1)
        assert not asked.done()
        await tx.end(one)
        await tx.set_state(group, b"kept")
    assert await asked == b"kept"
    await session.close()
    await other.close()


# Restarts, transactions, tokens.


@pytest.mark.rule("SND-14", "DLG-14", "REL-8")
@scenario
async def test_a_dialog_goes_on_after_a_restart_of_the_daemon(
    daemon: Daemon, session: Session
) -> None:
    handle = await talk(session, b"1", b"2")
    (first,) = await take(session, "shop", 1)
    await session.close()
    await daemon.restart()
    session = await daemon.session()
    await session.send(first.handle, b"its first answer", "Answer")
    await session.send(handle, b"3", "Ask")
    assert bodies(await take(session, "desk")) == [b"its first answer"]
    assert [(one.sequence, one.body) for one in await take(session, "shop")] == [
        (1, b"2"),
        (2, b"3"),
    ]
    await session.close()
    await daemon.restart()
    session = await daemon.session()
    await session.end(handle)
    assert types(await take(session, "shop")) == [END_DIALOG]
    await session.end(first.handle)
    assert await rows(daemon, "conversation_endpoints") == 0
    await session.close()


@pytest.mark.rule("RCV-8", "DLG-M1")
@scenario
async def test_errors_and_ends_after_a_restart(daemon: Daemon, session: Session) -> None:
    failed, unread = await talk(session, b"1", b"2"), await talk(session, b"a", b"b")
    await session.end(failed, 7, "enough")
    await session.close()
    await daemon.restart()
    session = await daemon.session()
    assert types(await take(session, "shop", 1)) == [ERROR]
    assert bodies(await take(session, "shop")) == [b"1", b"2"]
    (first,) = await take(session, "shop", 1)
    await session.end(first.handle)  # deletes b, which is not in memory
    assert await rows(daemon, "queue_messages") == 1
    assert daemon.broker.queues["shop"].ready_count == 0
    assert types(await take(session, "desk", conversation=unread)) == [END_DIALOG]
    await session.close()


@pytest.mark.rule("REL-3", "CLP-32", "BI-R3")
@scenario
async def test_a_finished_transaction_takes_no_more_verbs(daemon: Daemon, session: Session) -> None:
    handle = await talk(session)
    async with session.transaction() as tx:
        await tx.send(handle, b"1", "Ask")
    with pytest.raises(NoSuchTx):
        await tx.send(handle, b"2", "Ask")
    assert bodies(await take(session, "shop")) == [b"1"]


@pytest.mark.rule("REL-3", "CLP-34")
@scenario
async def test_a_transaction_is_all_or_nothing(daemon: Daemon, session: Session) -> None:
    handle = await talk(session)

    async def several() -> None:
        async with session.transaction() as tx:
            await tx.send(handle, b"1", "Ask")
            await tx.begin_dialog("urn:desk", "urn:shop", "talk")
            await tx.send(handle, b"2", "Alone")

    await fails(NotInContract, several())
    assert await take(session, "shop") == []
    assert await rows(daemon, "conversation_endpoints") == 1


@pytest.mark.rule("GRP-23", "REL-18", "CLP-73")
@scenario
async def test_a_client_that_is_gone_holds_nothing(daemon: Daemon, session: Session) -> None:
    await talk(session, b"1")
    other = await daemon.session()
    tx = other.transaction()
    await tx.__aenter__()
    assert bodies(await tx.receive("shop")) == [b"1"]
    await other.close()
    await daemon.pass_time(1)
    assert bodies(await take(session, "shop")) == [b"1"]
