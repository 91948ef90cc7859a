"""The straight way of a send and the long one do the same (`delivery.direct`)."""

import gc
from pathlib import Path
from typing import Any

import pytest

from brokerd.client.session import Session
from brokerd.delivery import direct
from brokerd.errors import WrongDirection
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
    taken: list[int] = []
    straight = direct.send_each

    def counting(*args: Any, **options: Any) -> int:
        taken.append(straight(*args, **options))
        return taken[-1]

    monkeypatch.setattr(express, "send_each", counting)
    (tmp_path / "straight").mkdir()
    by_the_straight_way = outcome(tmp_path / "straight")
    assert sum(taken) == 2 * len(BODIES) - 1  # the first message opens the dialog
    monkeypatch.setattr(express, "send_each", lambda *_args, **_options: 0)
    (tmp_path / "long").mkdir()
    assert outcome(tmp_path / "long") == by_the_straight_way


@pytest.mark.rule("CLP-31", "SND-5")
def test_sends_written_together_keep_their_order_around_one_that_is_not_simple(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    straight = direct.send_each

    def counting(*args: Any, **options: Any) -> int:
        sizes.append(straight(*args, **options))
        return sizes[-1]

    monkeypatch.setattr(express, "send_each", counting)

    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        first, second = [await session.begin_dialog("urn:desk", "urn:shop", "talk") for _ in "ab"]
        await session.send(first, b"0", "Ask")
        await session.send(second, b"0", "Ask")
        sizes.clear()
        futures = [session.submit_send(one, b"%d" % at, "Ask") for at in (1, 2)
                   for one in (first, second)]  # fmt: skip
        refused = session.submit_send(first, b"no", "Answer")  # the other side alone sends it
        futures += [session.submit_send(one, b"%d" % at, "Ask") for at in (3, 4)
                    for one in (first, second)]  # fmt: skip
        for future in futures:
            await future
        with pytest.raises(WrongDirection):
            await refused
        for _ in "ab":
            async with session.transaction() as tx:
                got = await tx.receive("shop")
            assert [one.body for one in got] == [b"0", b"1", b"2", b"3", b"4"]
        await session.close()

    play(program, tmp_path)
    assert sizes == [4, 0, 4], "those before and those behind the refused one went together"


@pytest.mark.rule("CLP-30")
def test_sends_written_together_are_not_more_than_may_be_outstanding(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        there = await session.begin_dialog("urn:desk", "urn:shop", "talk")
        await session.send(there, b"", "Ask")
        for future in [session.submit_send(there, b"", "Ask") for _ in range(3000)]:
            await future
        await session.close()
        queue = daemon.broker.queues["shop"]
        assert queue.ready_count == 3001

    play(program, tmp_path)


def test_messages_leave_nothing_to_the_collector(tmp_path: Path) -> None:
    """Circles in the way of every message once cost 100 ms of collecting each second."""

    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        there = await session.begin_dialog("urn:desk", "urn:shop", "talk")
        await session.send(there, b"first", "Ask")
        await converse_once(session, there)
        gc.collect()
        gc.disable()
        try:
            await converse_once(session, there)
            left = gc.collect()
        finally:
            gc.enable()
        await session.close()
        assert left < SENDS

    play(program, tmp_path)


SENDS = 600


async def converse_once(session: Session, there: bytes) -> None:
    for future in [session.submit_send(there, b"body", "Ask") for _ in range(SENDS)]:
        await future
    while True:
        async with session.transaction() as tx:
            if not await tx.receive("shop", 100):
                return
