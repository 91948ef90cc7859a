"""A send inside a transaction does the same without the general forms."""

from pathlib import Path
from typing import Any

import pytest

from brokerd.client.session import Session
from brokerd.delivery.fastpath.plain_sends import send_plainly
from brokerd.errors import InvalidState, WrongDirection
from brokerd.sessions import fast_requests, verb_dispatch
from tests.integration.one_daemon import Daemon, play
from tests.integration.scenarios import scenario
from tests.integration.test_one_broker import bodies, fails, take, talk

BODIES = [b"", b"a", b"b" * 300, b"c" * 40_000]


async def converse(daemon: Daemon, session: Session) -> list[Any]:
    """Sends of both sides in transactions; what both receive, and endpoints as stored."""
    there = await talk(session, b"first")
    async with session.transaction() as tx:
        asked = await tx.receive("shop")
        for body in BODIES:
            await tx.send(asked[0].handle, body, "Answer")
    async with session.transaction() as tx:  # collected: one request, which does not only send
        for body in BODIES:
            await tx.send(there, body, "Ask")
        await tx.send(there, message_type="Nudge")
        await tx.set_timer(there, None)
    async with session.transaction() as tx:  # one request each, and a part undone
        async with tx.savepoint() as point:
            await tx.send(there, b"undone", "Ask")
            await point.undo()
        await tx.send(there, b"kept", "Ask")
    got = [*await take(session, "shop"), *await take(session, "desk")]
    stored = await daemon.broker.store.endpoints.page(10)
    return [
        [(one.message_type, one.sequence, one.body, one.priority) for one in got],
        [
            (one.is_initiator, one.state, one.send_sequence, one.receive_sequence, one.bound)
            for one in stored
        ],
    ]


def outcome(folder: Path) -> list[Any]:
    """Of one daemon in that folder."""
    found: list[Any] = []

    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        found.extend(await converse(daemon, session))
        await session.close()

    folder.mkdir()
    play(program, folder)
    return found


@pytest.mark.rule("SND-3", "SND-5", "SND-14", "DLG-T8", "DLG-T9", "GRP-21")
def test_both_ways_leave_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bool] = []

    def counting(*args: Any) -> bool:
        taken.append(send_plainly(*args))
        return taken[-1]

    for place in (fast_requests, verb_dispatch):
        monkeypatch.setattr(place, "send_plainly", counting)
    plain = outcome(tmp_path / "plain")
    assert taken.count(True) == 2 * len(BODIES) + 3  # all but the one that opens the dialog
    for place in (fast_requests, verb_dispatch):
        monkeypatch.setattr(place, "send_plainly", lambda *_args: False)
    assert outcome(tmp_path / "general") == plain


@pytest.mark.rule("SND-4", "SND-5", "DLG-43")
@scenario
async def test_what_is_refused_at_the_other_side_breaks_what_was_sent_with_it(
    daemon: Daemon, session: Session
) -> None:
    there = await talk(session, b"first")
    async with session.transaction() as tx:
        await tx.send(there, b"good", "Ask")
        await tx.send(there, b"not empty", "Nudge")
        await tx.send(there, b"late", "Ask")
    got = await take(session, "desk")
    assert [one.is_error for one in got] == [True]
    assert bodies(await take(session, "shop"))[-2:] == [b"first", b"good"]


@pytest.mark.rule("SND-2", "SND-4")
@scenario
async def test_it_judges_the_dialog_as_the_transaction_has_made_it(
    daemon: Daemon, session: Session
) -> None:
    there = await talk(session, b"first")

    async def then(verb: str, *args: Any) -> None:
        async with session.transaction() as tx:
            await tx.send(there, b"before", "Ask")
            if verb == "end":
                await tx.end(there)
            await tx.send(there, *args)

    await fails(InvalidState, then("end", b"behind", "Ask"))
    await fails(WrongDirection, then("send", b"not mine to send", "Answer"))
    assert bodies(await take(session, "shop")) == [b"first"]
