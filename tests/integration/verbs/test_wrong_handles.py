"""Handles that name no conversation of this broker, and those of one that is over (BI-R2)."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from brokerd.client.session import Session
from brokerd.errors import BrokerError, ConversationNotFound, InvalidState
from brokerd.ids import show
from tests.integration.one_daemon import Daemon, play
from tests.integration.shorthand import take, talk
from tests.integration.two_brokers import EAST

Verb = Callable[[Session, bytes], Awaitable[object]]


async def move(session: Session, handle: bytes) -> None:
    other = await session.begin_dialog("urn:desk", "urn:shop", "talk")
    rows = await session.view("conversation_endpoints")
    group = next(
        row["conversation_group_id"]
        for row in rows
        if row["conversation_handle"].replace("-", "") == other.hex()
    )
    await session.move(handle, bytes.fromhex(group.replace("-", "")))


VERBS: dict[str, tuple[Verb, int]] = {
    "send": (lambda session, handle: session.send(handle, b"x", "Both"), 8429),
    "end": (lambda session, handle: session.end(handle), 8427),
    "end with an error": (lambda session, handle: session.end(handle, 1, "no"), 8427),
    "set_timer": (lambda session, handle: session.set_timer(handle, 5), 8458),
    "move": (move, 8438),
}


async def refusal(asked: Awaitable[object]) -> BrokerError:
    with pytest.raises(BrokerError) as caught:
        await asked
    return caught.value


@pytest.mark.rule("BI-R2", "SND-2", "DLG-19", "ERR-8426", "ERR-8427", "BI-R3")
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("restart", [False, True])
def test_what_is_not_here_is_told_alike_and_what_is_over_by_its_state(
    tmp_path: Path, verb: str, restart: bool
) -> None:
    ask, number = VERBS[verb]

    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        await session.apply(EAST)
        east = await daemon.session(broker="east")
        gone = await talk(session, b"1")
        (got,) = await take(session, "shop")
        await session.end(got.handle)
        await session.end(gone)  # an initiator leaves nothing behind (DLG-T17)
        far = await session.begin_dialog("urn:desk", "urn:harbour", "talk")
        await session.send(far, b"1", "Ask")
        await daemon.pass_time(1)
        (asked,) = await take(east, "harbour")
        await east.end(asked.handle)
        await daemon.pass_time(1)  # acknowledged: its endpoint is kept, in CD
        if restart:
            await session.close()
            await east.close()
            await daemon.restart()
            session, east = await daemon.session(), await daemon.session(broker="east")
        handles = (gone, bytes(16), asked.handle)
        strangers = [await refusal(ask(session, one)) for one in handles]
        assert {type(one) for one in strangers} == {ConversationNotFound}
        told = zip(strangers, handles, strict=True)
        assert len({one.message.replace(show(handle), "") for one, handle in told}) == 1
        (row,) = await east.view("conversation_endpoints")
        assert row["state"] == "CD"
        if verb != "move":
            over = await refusal(ask(east, asked.handle))
            assert (type(over), over.ssb_code) == (InvalidState, number)
            assert "CD" in over.message
        await session.close()
        await east.close()

    play(program, tmp_path)
