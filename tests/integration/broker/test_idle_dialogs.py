"""Dialogs without a message for long are announced, and ended later (REL-43, REL-44)."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from brokerd.client.session import Session
from brokerd.clock import SECOND
from brokerd.config.settings import Dialog
from brokerd.maintenance import idle_dialogs
from brokerd.telemetry.logs import IDLE
from tests.integration.one_daemon import Daemon, live_of, play, rows
from tests.integration.peers import Net, Peer, peers
from tests.integration.shorthand import take, talk

MINUTE = 60
SHORT = Dialog(idle_after=timedelta(minutes=30), idle_notice=timedelta(minutes=10))


def told(daemon: Daemon, subclass: str) -> list[dict[str, object]]:
    return [
        fields
        for event, fields in daemon.log.lines
        if event == IDLE and fields["subclass"] == subclass
    ]


def idle(
    test: Callable[[Daemon, Session], Awaitable[None]], options: Dialog = SHORT
) -> Callable[[Path], None]:
    """Run a test against a daemon that announces after 30 minutes and ends 10 minutes later."""

    def run(tmp_path: Path) -> None:
        async def program(daemon: Daemon) -> None:
            await daemon.restart(dialog=options)
            async with await daemon.session() as session:
                await test(daemon, session)

        play(program, tmp_path)

    run.__name__ = test.__name__
    return run


async def shown(session: Session, handle: bytes) -> dict[str, Any]:
    found: list[dict[str, Any]] = await session.view("conversation_endpoints")
    wanted = bytes(handle).hex()
    (row,) = [one for one in found if str(one["conversation_handle"]).replace("-", "") == wanted]
    return row


async def errors(session: Session, queue: str) -> list[Any]:
    found = []
    while messages := await take(session, queue):
        found += [one.error for one in messages if one.error is not None]
    return found


@pytest.mark.rule("REL-44", "PER-23", "ERR-B4")
@idle
async def test_a_silent_dialog_is_announced_and_then_ended_at_both_sides(
    daemon: Daemon, session: Session
) -> None:
    handle = await talk(session, b"1")
    (got,) = await take(session, "shop")
    await daemon.pass_time(29 * MINUTE)
    assert told(daemon, "announced") == []
    assert (await shown(session, handle))["idle_since"] is None
    await daemon.pass_time(6 * MINUTE)
    (line,) = told(daemon, "announced")
    assert line["endpoints"] == 2
    assert "dialog.idle_after" in str(line["reason"])
    row = await shown(session, handle)
    assert row["idle_announced_at"] - row["idle_since"] >= 30 * MINUTE * SECOND
    status: Any = await session.status()
    assert "2 dialogs have had no message" in status["idle_dialogs"]["main"]
    assert str(live_of(daemon, handle).endpoint.state) == "CO"
    assert told(daemon, "ended") == []
    await daemon.pass_time(11 * MINUTE)
    for queue in ("desk", "shop"):
        (error,) = await errors(session, queue)
        assert error.number == -60002
        assert "dialog.idle_after 30min" in error.description
        assert error.code == "dialog_idle"
        assert error.retryable
    await session.end(handle)
    await session.end(got.handle)
    assert await rows(daemon, "idle_dialogs") == 0
    status = await session.status()
    assert status["idle_dialogs"] == {}


@pytest.mark.rule("REL-44")
@idle
async def test_a_message_either_way_begins_the_time_anew(daemon: Daemon, session: Session) -> None:
    handle = await talk(session, b"1")
    (got,) = await take(session, "shop")
    for answers in (True, False, True):
        await daemon.pass_time(35 * MINUTE)
        assert (await shown(session, handle))["idle_since"] is not None
        if answers:
            await session.send(got.handle, b"x", "Answer")
        else:
            await session.send(handle, b"x", "Ask")
        await daemon.pass_time(6 * MINUTE)
        assert (await shown(session, handle))["idle_since"] is None
    assert told(daemon, "ended") == []
    assert str(live_of(daemon, handle).endpoint.state) == "CO"


@pytest.mark.rule("REL-44")
@idle
async def test_a_message_at_the_last_moment_is_seen(daemon: Daemon, session: Session) -> None:
    handle = await talk(session, b"1")
    await take(session, "shop")
    await daemon.pass_time(42 * MINUTE)  # announced after 32 minutes at the latest
    assert told(daemon, "announced")
    await session.send(handle, b"2", "Ask")
    await daemon.pass_time(20 * MINUTE)
    assert told(daemon, "ended") == []
    await daemon.pass_time(40 * MINUTE)
    assert len(told(daemon, "ended")) in (1, 2)


@pytest.mark.rule("REL-44")
def test_a_restart_forgets_neither_the_time_nor_the_announcement(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        await daemon.restart(dialog=SHORT)
        async with await daemon.session() as session:
            await talk(session, b"1")
        for _ in range(3):
            await daemon.pass_time(11 * MINUTE)
            await daemon.restart(dialog=SHORT, declare=False)
        await daemon.pass_time(2 * MINUTE)
        assert len(told(daemon, "announced")) == 1
        assert told(daemon, "ended") == []
        await daemon.restart(dialog=SHORT, declare=False)
        await daemon.pass_time(11 * MINUTE)
        assert len(told(daemon, "ended")) == 1

    play(program, tmp_path)


@pytest.mark.rule("REL-44")
@pytest.mark.parametrize(
    "options",
    [
        Dialog(idle_after=timedelta(minutes=30), idle_notice=timedelta(0)),
        Dialog(idle_after=timedelta(0)),
        Dialog(),
    ],
)
def test_nothing_is_ended_without_notice_or_by_default_soon(
    tmp_path: Path, options: Dialog
) -> None:
    async def program(daemon: Daemon) -> None:
        await daemon.restart(dialog=options)
        async with await daemon.session() as session:
            handle = await talk(session, b"1")
            await daemon.pass_time(90 * MINUTE)
            assert bool(told(daemon, "announced")) == (options.idle_after == timedelta(minutes=30))
            assert told(daemon, "ended") == []
            assert str(live_of(daemon, handle).endpoint.state) == "CO"

    play(program, tmp_path)


@pytest.mark.rule("REL-44")
def test_many_dialogs_are_looked_at_by_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_dialogs, "PAGE", 3)
    monkeypatch.setattr(idle_dialogs, "BATCH", 4)

    async def program(daemon: Daemon) -> None:
        await daemon.restart(dialog=SHORT)
        async with await daemon.session() as session:
            for _ in range(10):
                await talk(session, b"1")
            await daemon.pass_time(36 * MINUTE)
            (line,) = told(daemon, "announced")
            assert line["endpoints"] == 20
            await daemon.pass_time(12 * MINUTE)
            assert len(await errors(session, "shop")) == 10
            assert len(await errors(session, "desk")) == 10

    play(program, tmp_path)


@pytest.mark.rule("REL-44", "DLG-43")
@peers(
    "west",
    "east",
    dialog=SHORT,
)
async def test_the_peer_elsewhere_gets_the_error_too(net: Net, west: Peer, east: Peer) -> None:
    await west.talk("urn:east", b"1")
    await net.wait(1)
    assert await east.bodies() == [b"1"]
    await net.wait(46 * MINUTE)
    for one in (west, east):
        (message,) = await one.messages()
        assert message.error is not None
        assert message.error.number == -60002


@pytest.mark.rule("REL-44")
@peers(
    "west",
    "east",
    dialog=SHORT,
)
async def test_what_waits_to_be_sent_keeps_its_dialog_open(
    net: Net, west: Peer, east: Peer
) -> None:
    await east.queue(on=False)
    handle = await west.talk("urn:east", b"1")
    await net.wait(90 * MINUTE)
    assert str(west.live(handle).endpoint.state) == "CO"
    assert west.out(handle).pending == 1
