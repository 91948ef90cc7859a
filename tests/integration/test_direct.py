"""The straight way of a send and the long one do the same (`delivery.direct`)."""

from pathlib import Path
from typing import Any

import pytest

from brokerd.client.session import Session
from brokerd.delivery import direct
from brokerd.sessions import express
from tests.integration.one_daemon import Daemon, play

BODIES = [b"", b"a", b"b" * 300, b"c" * 40_000]


def outcome(tmp_path: Path) -> tuple[list[Any], list[Any]]:
    """What a run of sends leaves: messages as received, and endpoints as stored."""
    found: list[Any] = []

    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        await converse(daemon, session, found)
        await session.close()

    play(program, tmp_path)
    return found[0], found[1]


async def converse(daemon: Daemon, session: Session, found: list[Any]) -> None:
    there = await session.begin_dialog("urn:desk", "urn:shop", "talk")
    for body in BODIES:
        await session.send(there, body, "Ask")
    async with session.transaction() as tx:
        asked = await tx.receive("shop")
    back = asked[0].handle
    for body in BODIES:
        await session.send(back, body, "Answer")
    async with session.transaction() as tx:
        answered = await tx.receive("desk")
    found.append(
        [(one.message_type, one.sequence, one.body, one.priority) for one in (*asked, *answered)]
    )
    stored = await daemon.broker.store.conversation_endpoints(10)
    found.append(
        [
            (one.is_initiator, one.state, one.send_sequence, one.receive_sequence, one.bound)
            for one in stored
        ]
    )


@pytest.mark.rule("SND-14", "SND-5", "DLG-T8", "DLG-T9")
def test_both_ways_leave_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bool] = []
    straight = direct.send_one

    def counting(*args: Any, **options: Any) -> bool:
        taken.append(straight(*args, **options))
        return taken[-1]

    monkeypatch.setattr(express, "send_one", counting)
    (tmp_path / "straight").mkdir()
    by_the_straight_way = outcome(tmp_path / "straight")
    assert taken.count(True) == 2 * len(BODIES) - 1  # the first message opens the dialog
    monkeypatch.setattr(express, "send_one", lambda *_args, **_options: False)
    (tmp_path / "long").mkdir()
    assert outcome(tmp_path / "long") == by_the_straight_way
