"""One dialog seen from outside: why its messages wait, and its removal by an administrator."""

from pathlib import Path

import pytest

from brokerd.client.session import Session
from brokerd.errors import BadRequest, ConversationNotFound, InvalidArgument
from brokerd.model import ERROR
from brokerd.protocol.client_verbs import parse_request
from brokerd.protocol.transitions import State
from tests.integration.one_daemon import Daemon, play, rows
from tests.integration.scenarios import scenario
from tests.integration.shorthand import (
    answered,
    bodies,
    fails,
    state,
    take,
    talk,
    types,
)

# Transmission status.


@pytest.mark.rule("SND-23", "XMT-16", "XMT-17", "CLP-101")
@scenario
async def test_the_status_is_empty_only_where_nothing_waits(
    daemon: Daemon, session: Session
) -> None:
    begun = await talk(session)
    for handle in (begun, await talk(session, b"delivered")):
        found = await session.transmission_status(handle)
        assert (found.status_key, found.transmission_status, found.pending) == ("", "", 0)
    far = await session.begin_dialog("urn:desk", "urn:nowhere", "talk")
    await session.send(far, b"1", "Ask")
    await session.send(far, b"2", "Ask")
    found = await session.transmission_status(far)
    assert (found.status_key, found.pending) == ("local_service_missing", 2)
    assert "which has no such service" in found.transmission_status
    assert found.status_since is not None
    await fails(ConversationNotFound, session.transmission_status(b"?" * 16))
    await session.end(far)
    assert (await session.transmission_status(far)).pending == 3


@pytest.mark.rule("SND-18", "SND-19", "PBT-2", "XMT-18")
@pytest.mark.parametrize("restart", [False, True])
def test_a_disabled_target_queue_is_named_and_delivery_needs_nobody(
    tmp_path: Path, restart: bool
) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        mine = await talk(session, b"1")
        await daemon.switch("shop", on=False)
        await session.send(mine, b"2", "Ask")
        assert (await session.transmission_status(mine)).status_key
        if restart:
            await session.close()
            await daemon.restart()
            session = await daemon.session()
            assert (await session.transmission_status(mine)).status_key
        await daemon.pass_time(5)
        found = await session.transmission_status(mine)
        assert found.status_key == "peer_queue_disabled"
        assert found.attempts >= 1
        assert found.next_attempt_at is not None
        since = found.status_since
        await daemon.pass_time(200)
        found = await session.transmission_status(mine)
        assert (found.status_key, found.status_since) == ("peer_queue_disabled", since)
        (row,) = await session.view("transmission_queue")
        assert isinstance(row, dict)
        assert row["status_key"] == "peer_queue_disabled"
        await daemon.switch("shop", on=True)
        assert bodies(await take(session, "shop")) == [b"1", b"2"]  # resumed at once (DSP-11)
        await daemon.pass_time(1)
        assert (await session.transmission_status(mine)).status_key == ""
        await session.close()

    play(program, tmp_path)


@pytest.mark.rule("DLG-26", "DLP-50", "SND-23")
@scenario
async def test_what_is_held_says_so(daemon: Daemon, session: Session) -> None:
    for error, key in ((None, "held_after_end"), (7, "held_after_error")):
        mine = await talk(session, b"1")
        (asked,) = await take(session, "shop")
        await daemon.switch("shop", on=False)
        await session.send(mine, b"2", "Ask")
        await session.end(asked.handle, error, "enough" if error else None)
        found = await session.transmission_status(mine)
        assert (found.status_key, found.pending) == (key, 1)
        await daemon.switch("shop", on=True)
        arrived = daemon.instance.parts.dispatcher.received
        await daemon.pass_time(100)
        assert daemon.instance.parts.dispatcher.received == arrived  # it is not sent
        assert (await session.transmission_status(mine)).status_key == key
        assert await rows(daemon, "transmission_queue") == 1
        await session.end(mine)
        assert await rows(daemon, "transmission_queue") == 0


# Clean-up.


@pytest.mark.rule("DLG-23", "DLG-24", "DLG-T27", "DLG-M3", "CLP-102")
@pytest.mark.parametrize("where", ["SO", "CO", "DI", "DO", "ER"])
def test_cleanup_removes_an_initiator_in_every_state(tmp_path: Path, where: str) -> None:
    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            mine = await talk(session, *([] if where == "SO" else [b"1"]))
            if where in ("DI", "ER"):
                (asked,) = await take(session, "shop")
                told = (3, "bad") if where == "ER" else (None, None)
                await session.end(asked.handle, *told)
            elif where == "DO":
                await daemon.switch("shop", on=False)
                await session.end(mine)
            elif where == "CO":
                await session.set_timer(mine, 600)
            assert state(daemon, mine) == State(where)
            await session.admin.clean_up(mine, "it is a test")
            assert state(daemon, mine) is None
            for table in ("conversation_timers", "transmission_queue"):
                assert await rows(daemon, table) == 0
            assert await take(session, "desk") == []
            await fails(ConversationNotFound, session.admin.clean_up(mine, "again"))
            (line,) = [
                fields
                for event, fields in daemon.log.lines
                if fields.get("subclass") == "end_with_cleanup"
            ]
            assert (line["reason"], line["state"]) == ("it is a test", where)
            assert str(line["by"]).startswith("client ")

    play(program, tmp_path)


@pytest.mark.rule("DLG-23", "PBT-9")
@scenario
async def test_cleanup_is_no_verb_of_applications_and_needs_a_reason(
    daemon: Daemon, session: Session
) -> None:
    mine, _ = await answered(session)
    for reason in ("", "  ", "x" * 1001):
        await fails(InvalidArgument, session.admin.clean_up(mine, reason))
    for tx, verb, args in (
        (None, "transact", [0, [["clean_up", [mine, "no"]]]]),
        (None, "transact", [0, [["end", [mine, None, None, True]]]]),
        (1, "clean_up", [mine, "no"]),
        (1, "end", [mine, None, None, True]),
    ):
        with pytest.raises(BadRequest):
            parse_request(tx, verb, args)
    assert state(daemon, mine) is State.CONVERSING


@pytest.mark.rule("DLG-23", "GRP-5", "GRP-9")
@scenario
async def test_cleanup_waits_for_the_group_lock(daemon: Daemon, session: Session) -> None:
    mine, theirs = await answered(session)
    await session.send(theirs, b"more", "Answer")
    tx = session.transaction()
    assert await tx.receive("desk")
    cleaning = daemon.loop.create_task(session.admin.clean_up(mine, "waits"))
    await daemon.pass_time(1)
    assert not cleaning.done()
    await tx.commit()
    await cleaning
    assert state(daemon, mine) is None


@pytest.mark.rule("DLG-24", "DLG-T27", "DLG-M3", "DLG-T28")
@pytest.mark.parametrize("tell", [False, True])
def test_the_other_side_in_this_broker_is_told_only_if_asked(tmp_path: Path, tell: bool) -> None:
    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            mine, theirs = await answered(session)
            await session.send(theirs, b"unread", "Answer")
            await session.admin.clean_up(mine, "test", tell_peer=tell)
            assert state(daemon, mine) is None
            if tell:
                (told,) = await take(session, "shop")
                assert (told.message_type, told.error and told.error.number) == (ERROR, -8462)
            else:
                assert await take(session, "shop") == []
                await session.send(theirs, b"nobody", "Answer")
                assert types(await take(session, "shop", wait=1)) == [ERROR]
            await session.end(theirs)
            assert await rows(daemon, "conversation_endpoints") == 0

    play(program, tmp_path)
