"""Rows of the transition table that need a peer elsewhere: both sides, each state (DLG-T)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from brokerd.client.session import Session
from brokerd.errors import InvalidState
from brokerd.protocol.frames import END, AckOnly, BrokerErrorItem, Fragment, Hop, Item
from brokerd.protocol.frames import ERROR as ERROR_FLAG
from brokerd.protocol.transitions import State
from tests.integration.delivery.closed_endpoints import HALF_HOUR, endpoints
from tests.integration.one_daemon import live_of
from tests.integration.scenarios import given
from tests.integration.shorthand import bodies, fails, take, types
from tests.integration.two_brokers import Wire, between, clients

SIDES = pytest.mark.parametrize("initiator", [True, False], ids=["initiator", "target"])
Program = Callable[[Wire, Session, Session], Any]


def run(test: Program, folder: Path, **limits: Any) -> None:
    given(clients, **limits)(test)(folder)


def everything(_item: Item) -> bool:
    return True


def nothing(_item: Item) -> bool:
    return False


async def opened(wire: Wire, main: Session, east: Session, **options: Any) -> tuple[bytes, bytes]:
    """A dialog from `main` to `east` on which nothing is owed: the two handles."""
    mine = await main.begin_dialog("urn:desk", "urn:harbour", "talk", **options)
    await main.send(mine, b"0", "Ask")
    (got,) = await take(east, "harbour", wait=5)
    await wire.daemon.pass_time(1)
    return mine, got.handle


async def states(session: Session) -> list[str]:
    return sorted(str(row["state"]) for row in await endpoints(session))


async def pending(session: Session) -> list[object]:
    """What the transmission queue has: flags tell ends and errors from messages."""
    return [row["message_sequence_number"] for row in await queue(session)]


async def queue(session: Session) -> list[dict[str, Any]]:
    found = await session.view("transmission_queue")
    return [row for row in found if isinstance(row, dict)]


async def end(session: Session, handle: bytes, code: int | None) -> None:
    await session.end(handle, code, None if code is None else "enough")


@pytest.mark.rule("DLG-T18", "DLG-T19", "DLG-T20", "DLG-T21", "DLG-16", "DLG-44", "PBT-4")
@pytest.mark.parametrize(("mine", "theirs"), [(None, None), (7, None), (None, 8), (7, 8)], ids=str)
def test_both_sides_end_at_once(mine: int | None, theirs: int | None, tmp_path: Path) -> None:
    """What crosses the end of the other side is seen by nobody, and nothing is left of it."""

    async def test(wire: Wire, main: Session, east: Session) -> None:
        here, there = await opened(wire, main, east)
        wire.drops = everything
        await main.send(here, b"crosses", "Ask")
        await east.send(there, b"crosses", "Answer")
        await end(main, here, mine)
        await end(east, there, theirs)
        assert await states(main) == await states(east) == ["DO"]
        await wire.daemon.pass_time(1)
        assert await states(main) == await states(east) == ["DO"]
        assert await pending(main) == ([1, 2] if mine is None else [2])
        assert await pending(east) == ([0, 1] if theirs is None else [1])
        wire.drops = lambda item: isinstance(item, Fragment) and not item.flags & ERROR_FLAG
        await wire.daemon.pass_time(70)
        wire.drops = nothing
        await wire.daemon.pass_time(70)
        assert await states(main) == []
        assert await states(east) == ["CD"]
        assert await pending(main) == await pending(east) == []
        assert await take(main, "desk") == await take(east, "harbour") == []
        lost = {
            (line["service"], line["code"])
            for event, line in wire.daemon.log.lines
            if event == "broker.lost_messages"
        }
        assert lost <= {("urn:desk", theirs), ("urn:harbour", mine)}
        assert len(lost) == (mine is not None or theirs is not None)  # the first closes both
        await wire.daemon.pass_time(HALF_HOUR + 60)
        assert await states(east) == []

    run(test, tmp_path)


@pytest.mark.rule("DLG-T22", "DLG-T11", "DLG-T10")
@SIDES
@pytest.mark.parametrize("code", [None, 7])
def test_an_end_that_nobody_acknowledges_is_given_up_with_the_lifetime(
    initiator: bool, code: int | None, tmp_path: Path
) -> None:
    async def test(wire: Wire, main: Session, east: Session) -> None:
        here, there = await opened(wire, main, east, lifetime=100)
        wire.drops = everything
        session, handle = (main, here) if initiator else (east, there)
        await end(session, handle, code)
        await wire.daemon.pass_time(90)
        assert await states(session) == ["DO"]
        wire.daemon.log.lines.clear()
        await wire.daemon.pass_time(20)
        assert await states(session) == ([] if initiator else ["CD"])
        assert await pending(session) == []
        (line,) = [line for _, line in wire.daemon.log.lines if line.get("subclass") == "terminate"]
        assert line["role"] == ("initiator" if initiator else "target")
        other, box = (east, "harbour") if initiator else (main, "desk")
        assert await states(other) == ["ER"]
        assert types(await take(session, "desk" if initiator else "harbour")) == []
        (told,) = await take(other, box)
        assert told.error is not None
        assert told.error.number == -8489  # by its own clock

    run(test, tmp_path)


@pytest.mark.rule("DLG-T15", "MAN-5")
@between
async def test_a_fault_strikes_each_open_dialog_and_is_said_to_peers_that_go_on(
    wire: Wire, main: Session, east: Session
) -> None:
    await main.begin_dialog("urn:desk", "urn:harbour", "talk")
    for side in ("initiator", "target"):
        for ended in (False, True):
            if side == "initiator":
                _, theirs = await opened(wire, main, east)
            else:
                theirs = await east.begin_dialog("urn:harbour", "urn:shop", "talk")
                await east.send(theirs, b"0", "Ask")
                await take(main, "shop", wait=5)
            if ended:
                await east.end(theirs)
                await wire.daemon.pass_time(1)
    assert await states(main) == ["CO", "CO", "DI", "DI", "SO"]
    assert await states(east) == ["CD", "CO", "CO"]
    state = await main.admin.error_conversations()
    assert state.endpoints == {"CO": 2, "DI": 2, "SO": 1}
    await wire.daemon.pass_time(70)
    assert {(row["state"], row["error_code"]) for row in await endpoints(main)} == {("ER", -9719)}
    assert len(await endpoints(main)) == 5
    assert await states(east) == ["CD", "ER", "ER"]
    told = [one for _ in "ab" for one in await take(east, "harbour")]
    assert [one.error.number for one in told if one.error] == [-9720] * 2
    assert len(told) == 2


ENDED = {"CO": None, "DI": None, "ER": 7}


@pytest.mark.rule("DLG-T27", "DLG-23", "DLG-M3", "DLG-19", "SND-2", "PBT-9", "DLG-41")
@pytest.mark.parametrize("where", ["SI", "CO", "DI", "DO", "ER"])
def test_cleanup_at_a_target_leaves_a_tombstone_in_every_state(where: str, tmp_path: Path) -> None:
    async def test(wire: Wire, main: Session, east: Session) -> None:
        if where == "SI":
            wire.drops = lambda item: isinstance(item, Fragment) and item.fragment == 2
            opening = await main.begin_dialog("urn:desk", "urn:harbour", "talk")
            await main.send(opening, b"x" * 3000, "Ask")
            await wire.daemon.pass_time(1)
        else:
            mine, theirs = await opened(wire, main, east)
            wire.drops = lambda item: isinstance(item, Fragment) and not item.from_initiator
            await east.set_timer(theirs, 500, "late")
            await east.send(theirs, b"untransmitted", "Answer")
            await main.send(mine, b"unread", "Ask")
            if where in ("DI", "ER"):
                await end(main, mine, ENDED[where])
            elif where == "DO":
                await east.end(theirs)
        await wire.daemon.pass_time(1)
        first = next(one for one in wire.passed if isinstance(one, Fragment))
        live = wire.at_east(first.conversation_id)
        assert live is not None
        assert live.endpoint.state == where
        handle = live.endpoint.handle
        if where == "SI":  # it is nobody's yet
            refused = await fails(InvalidState, east.send(handle, b"x", "Answer"))
            assert (refused.ssb_code, "SI" in refused.message) == (8429, True)
            refused = await fails(InvalidState, east.end(handle))
            assert (refused.ssb_code, "SI" in refused.message) == (8427, True)
        wire.passed.clear()
        await east.admin.clean_up(handle, "a test")
        assert await states(east) == ["CD"]
        assert await pending(east) == []
        assert await take(east, "harbour") == []
        assert wire.passed == []
        for table in ("conversation_timers", "body_pieces"):
            count = f"SELECT count(*) FROM {table}"
            assert await wire.east.store.run(lambda on, q=count: on.execute(q).fetchone()[0]) == 0
        wire.drops = nothing
        wire.deliver([first])
        await wire.daemon.pass_time(1)
        assert await states(east) == ["CD"]
        assert await take(east, "harbour") == []

    run(test, tmp_path, fragment_size=1000)


@pytest.mark.rule("DLG-30", "DLP-3", "DLG-T11", "DLG-T18")
@SIDES
def test_an_error_is_repeated_until_it_is_acknowledged(initiator: bool, tmp_path: Path) -> None:
    async def test(wire: Wire, main: Session, east: Session) -> None:
        here, there = await opened(wire, main, east)
        errors: list[Item] = []

        def loses(item: Item) -> bool:
            is_error = isinstance(item, Fragment) and bool(item.flags & ERROR_FLAG)
            if is_error:
                errors.append(item)
            return is_error and len(errors) < 3

        wire.drops = loses
        if initiator:
            await main.end(here, 7, "enough")
        else:
            await east.end(there, 7, "enough")
        await wire.daemon.pass_time(30)
        assert len(errors) == 3
        assert await states(main) == ([] if initiator else ["ER"])
        assert await states(east) == (["ER"] if initiator else ["CD"])
        (told,) = await take(east, "harbour") if initiator else await take(main, "desk")
        assert told.error is not None
        assert (told.error.number, told.error.description) == (7, "enough")
        await wire.daemon.pass_time(100)
        assert len(errors) == 3

    run(test, tmp_path)


@pytest.mark.rule("DLG-30", "DLP-51", "DLG-T13")
@pytest.mark.parametrize("by", ["application", "broker"])
def test_an_error_waits_for_no_gap_to_close(by: str, tmp_path: Path) -> None:
    async def test(wire: Wire, main: Session, east: Session) -> None:
        mine, _ = await opened(wire, main, east)
        await main.send(mine, b"1", "Ask")
        await wire.daemon.pass_time(1)
        wire.drops = lambda item: isinstance(item, Fragment) and item.sequence == 2
        for body in (b"2", b"3"):
            await main.send(mine, body, "Ask")
        await wire.daemon.pass_time(1)
        assert wire.daemon.instance.parts.dispatcher.buffered == 1
        if by == "application":
            await main.end(mine, 7, "enough")
        else:
            await main.admin.error_conversations()
        await wire.daemon.pass_time(1)
        got = await take(east, "harbour")
        assert got[0].error is not None
        assert got[0].error.number == (7 if by == "application" else -9720)
        assert bodies(got[1:]) == [b"1"]
        wire.drops = nothing
        await wire.daemon.pass_time(70)
        assert await take(east, "harbour") == []
        assert wire.daemon.instance.parts.dispatcher.buffered == 0

    run(test, tmp_path)


@pytest.mark.rule("DLG-M1", "DLG-M4", "DLG-T12", "DLG-22", "DLG-26", "DLG-16", "DLG-17")
@between
async def test_an_end_comes_behind_all_that_was_sent_and_the_peer_s_own_go_without_a_word(
    wire: Wire, main: Session, east: Session
) -> None:
    here, there = await opened(wire, main, east)
    wire.drops = everything
    await east.send(there, b"unsent", "Answer")
    for number in (1, 2):
        await main.send(here, b"%d" % number, "Ask")
    await main.end(here)
    assert await pending(main) == [1, 2, 3]
    assert await states(main) == ["DO"]
    wire.drops = lambda item: isinstance(item, Fragment) and not item.from_initiator
    await wire.daemon.pass_time(70)
    got = await take(east, "harbour", 2)
    assert bodies(got) == [b"1", b"2"]
    assert await states(main) == []
    assert await states(east) == ["DI"]
    (row,) = await queue(east)
    assert (row["message_sequence_number"], row["status_key"]) == (0, "held_after_end")
    assert types(await take(east, "harbour")) == ["urn:brokerd:EndDialog"]
    assert await pending(east) == [0]  # frozen until this side ends
    wire.drops = nothing
    wire.passed.clear()
    await wire.daemon.pass_time(70)
    assert not [one for one in wire.passed if isinstance(one, Fragment)]
    await east.end(there)
    assert await pending(east) == []
    await wire.daemon.pass_time(70)
    assert not [one for one in wire.passed if isinstance(one, Fragment)]
    assert await take(main, "desk") == []


@pytest.mark.rule("DLG-M2", "DLG-T11")
@between
async def test_an_error_withdraws_what_is_not_acknowledged_wherever_it_has_got(
    wire: Wire, main: Session, east: Session
) -> None:
    mine, _ = await opened(wire, main, east)
    wire.drops = lambda item: isinstance(item, AckOnly)
    await main.send(mine, b"arrived", "Ask")
    await wire.daemon.pass_time(1)
    wire.drops = everything
    await main.send(mine, b"on its way", "Ask")
    assert await pending(main) == [1, 2]
    await main.end(mine, 7, "enough")
    assert await pending(main) == [3]
    wire.drops = nothing
    await wire.daemon.pass_time(70)
    got = await take(east, "harbour")
    assert [one.is_error for one in got] == [True, False]
    assert bodies(got[1:]) == [b"arrived"]
    assert await states(main) == []


@pytest.mark.rule("DLG-15", "DLG-T12")
@pytest.mark.parametrize("flags", [0, END])
def test_what_comes_behind_an_end_is_logged_and_changes_nothing(flags: int, tmp_path: Path) -> None:
    async def test(wire: Wire, main: Session, east: Session) -> None:
        mine, _ = await opened(wire, main, east)
        first = next(one for one in wire.passed if isinstance(one, Fragment))
        await main.end(mine)
        await wire.daemon.pass_time(1)
        live = wire.at_east(first.conversation_id)
        assert live is not None
        before = live.endpoint
        assert before.state is State.DISCONNECTED_INBOUND
        kind = "" if flags else "Ask"
        behind = msgspec.structs.replace(first, sequence=2, flags=flags, message_type=kind)
        wire.daemon.log.lines.clear()
        wire.deliver([behind])
        await wire.daemon.pass_time(1)
        assert live.endpoint == before
        (line,) = [
            line for event, line in wire.daemon.log.lines if event == "broker.message_undeliverable"
        ]
        assert "in state DI" in str(line["reason"])
        assert types(await take(east, "harbour")) == ["urn:brokerd:EndDialog"]
        await opened(wire, main, east)

    run(test, tmp_path)


@pytest.mark.rule("DLG-15", "DLP-48", "DLG-T29")
@pytest.mark.parametrize("state", ["SO", "DI", "ER"])
def test_a_broker_s_error_that_has_no_place_changes_nothing(state: str, tmp_path: Path) -> None:
    """It is logged, but for one that comes again because what it is about did."""

    async def test(wire: Wire, main: Session, east: Session) -> None:
        mine, theirs = await opened(wire, main, east)
        if state != "SO":
            await end(east, theirs, 7 if state == "ER" else None)
            await wire.daemon.pass_time(1)
        else:
            mine = await main.begin_dialog("urn:desk", "urn:harbour", "talk")
        before = live_of(wire.daemon, mine).endpoint
        assert before.state == state
        wire.daemon.log.lines.clear()
        here = wire.daemon.broker.broker_id
        hop = Hop(here, 10, 60_000, 0, here)
        conversation, far = before.conversation_id, wire.east.broker_id
        services = ("urn:harbour", "urn:desk")
        wire.deliver([BrokerErrorItem(conversation, False, *services, far, -8408, "no", hop)])
        await wire.daemon.pass_time(1)
        assert live_of(wire.daemon, mine).endpoint == before
        logged = [one for one, _ in wire.daemon.log.lines if one == "broker.message_undeliverable"]
        assert len(logged) == (state == "SO")
        assert len(await take(main, "desk")) == (state != "SO")  # the end, or the first error

    run(test, tmp_path)
