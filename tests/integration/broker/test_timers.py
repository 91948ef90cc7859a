"""Conversation timers and lifetimes: what falls due, through the SDK, on virtual time."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from brokerd.broker.transaction import Transaction
from brokerd.broker.window import WindowOptions
from brokerd.client.messages import Message
from brokerd.client.session import Session
from brokerd.errors import (
    BrokerError,
    ConversationNotFound,
    InvalidArgument,
    InvalidState,
    TimerBeyondLifetime,
)
from brokerd.ids import Handle
from brokerd.maintenance import timers as timers_pass
from brokerd.model import DIALOG_TIMER, END_DIALOG, ERROR
from brokerd.storage.rows.timers import Timer
from brokerd.verbs.timers import set_timer
from tests.integration.delivery.tap import Tap
from tests.integration.one_daemon import Daemon, live_of, play, rows
from tests.integration.peers import Net, Peer, peers
from tests.integration.scenarios import scenario
from tests.integration.shorthand import fails, take, talk

TICK = 5.0


async def timers(daemon: Daemon) -> int:
    return await rows(daemon, "conversation_timers")


async def due(session: Session, queue: str = "desk", **options: Any) -> list[Message]:
    return await take(session, queue, **options)


@pytest.mark.rule("DLG-35", "DLG-36", "DLG-42", "RCV-9")
@scenario
async def test_a_timer_is_one_message_for_its_own_side(daemon: Daemon, session: Session) -> None:
    mine = await talk(session, b"ask")
    await session.set_timer(mine, 30)
    assert await due(session, wait=29.9) == []
    (told,) = await due(session, wait=1)
    assert (told.message_type, told.sequence, told.body) == (DIALOG_TIMER, -2, None)
    assert (told.handle, told.timer_name, told.is_timer) == (mine, None, True)
    assert [one.message_type for one in await due(session, "shop")] == ["Ask"]
    assert await due(session, wait=1000) == []
    assert await timers(daemon) == 0


@pytest.mark.rule("DLG-42")
@peers("west", "east")
async def test_a_timer_message_never_leaves_its_side(net: Net, west: Peer, east: Peer) -> None:
    mine = await west.talk("urn:east", b"ask")
    await net.wait(1)
    (asked,) = await east.messages()
    await net.wait(1)
    there, back = Tap(east), Tap(west)
    await west.session.set_timer(mine, 10)
    await east.session.set_timer(asked.handle, 10)
    await net.wait(100)
    for one in (west, east):
        assert [(got.message_type, got.body) for got in await one.messages()] == [
            (DIALOG_TIMER, None)
        ]
    assert there.items == back.items == []
    assert west.out(mine).pending == 0
    assert west.live(mine).endpoint.send_sequence == 1


@pytest.mark.rule("DLG-35", "DLG-40")
@scenario
async def test_setting_it_again_replaces_it_and_none_cancels(
    daemon: Daemon, session: Session
) -> None:
    mine = await talk(session, b"ask")
    await session.set_timer(mine, 10)
    await session.set_timer(mine, 60)
    assert await timers(daemon) == 1
    assert await due(session, wait=59) == []
    assert len(await due(session, wait=2)) == 1
    await session.set_timer(mine, 10)
    await session.set_timer(mine, None)
    assert await timers(daemon) == 0
    assert await due(session, wait=100) == []
    await session.set_timer(mine, None)  # nothing to cancel is no error


@pytest.mark.rule("PBT-23", "RCV-30", "CLP-100")
@scenario
async def test_named_timers_fire_independently_and_one_is_cancelled(
    daemon: Daemon, session: Session
) -> None:
    mine = await talk(session, b"ask")
    for name, seconds in ((None, 40), ("zwei", 20), ("anfang", 10), ("späte", 30)):
        await session.set_timer(mine, seconds, name)
    await session.set_timer(mine, None, "zwei")
    names = []
    for _ in range(3):
        (told,) = await due(session, wait=60)
        assert told.body is None
        names.append(told.timer_name)
    assert names == ["anfang", "späte", None]
    assert await due(session, wait=60) == []
    for name in ("", "x" * 129):
        await fails(InvalidArgument, session.set_timer(mine, 1, name))


@pytest.mark.rule("DLG-37", "PER-23")
def test_a_timer_that_fell_due_while_down_fires_once_after_the_restart(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            mine = await talk(session, b"ask")
            await session.set_timer(mine, 30, "down")
            await session.set_timer(mine, 5000, "later")
        await daemon.stop()
        await daemon.pass_time(100)
        await daemon.start()
        async with await daemon.session() as session:
            (told,) = await due(session, wait=0.2)
            assert told.timer_name == "down"
            assert await due(session, wait=100) == []
        await daemon.restart()
        async with await daemon.session() as session:
            assert await due(session, wait=4000) == []
            (told,) = await due(session, wait=1000)
            assert told.timer_name == "later"

    play(program, tmp_path)


@pytest.mark.rule("DLG-37", "RCV-8")
def test_a_timer_message_survives_a_restart_and_comes_before_a_backlog(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            mine = await talk(session, b"ask")
            (asked,) = await take(session, "shop")
            for number in range(70):
                await session.send(asked.handle, b"%d" % number, "Answer")
            for number in range(40):
                await session.set_timer(mine, 1, f"t{number:02}")
            await daemon.pass_time(2)
        await daemon.restart()
        async with await daemon.session() as session:
            got = [one for _ in range(110) for one in await take(session, "desk", 1)]
            assert [one.timer_name for one in got[:40]] == [f"t{n:02}" for n in range(40)]
            assert [one.body for one in got[40:]] == [b"%d" % number for number in range(70)]
            assert await take(session, "desk") == []

    play(program, tmp_path, window=WindowOptions(page_messages=40))


@pytest.mark.rule("RCV-8", "RCV-9")
@pytest.mark.parametrize("first", ["timer", "error"])
def test_a_timer_comes_before_an_error_whichever_came_first(tmp_path: Path, first: str) -> None:
    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            mine = await talk(session, b"ask")
            (asked,) = await take(session, "shop")
            await session.send(asked.handle, b"answer", "Answer")
            await session.set_timer(mine, 10, "named")
            if first == "timer":
                await daemon.pass_time(11)
            await session.end(asked.handle, 7, "enough")
            await daemon.pass_time(11)
            got = await due(session)
            assert [one.message_type for one in got] == [DIALOG_TIMER, ERROR, "Answer"]
            assert [one.sequence for one in got] == [-2, -1, 0]
            orders = [one.queuing_order for one in got]
            assert (orders[0] < orders[1]) == (first == "timer")

    play(program, tmp_path)


@pytest.mark.rule("DLG-37", "SND-3", "GRP-5", "GRP-9")
@scenario
async def test_set_timer_is_transactional_and_locks_the_group(
    daemon: Daemon, session: Session
) -> None:
    mine = await talk(session, b"ask")
    tx = session.transaction()
    await tx.set_timer(mine, 5)
    await tx.state(daemon.broker.endpoints.find(mine).endpoint.group_id)  # type: ignore[arg-type,union-attr]
    other = await daemon.session(b"o" * 16)
    later = session.transaction()
    async with other:
        waiting = daemon.loop.create_task(other.set_timer(mine, 50))
        await daemon.pass_time(3)
        assert not waiting.done()
        tx.rollback()
        await waiting
    later.rollback()
    assert await due(session, wait=48) == []
    assert len(await due(session, wait=5)) == 1


@pytest.mark.rule("DLG-38", "ERR-8410", "ERR-8427", "DLG-39")
@scenario
async def test_what_set_timer_refuses(daemon: Daemon, session: Session) -> None:
    mine = await talk(session, b"ask", lifetime=100)
    error = await fails(TimerBeyondLifetime, session.set_timer(mine, 101))
    assert (error.ssb_code, error.retryable) == (8410, False)
    await session.set_timer(mine, 99)
    for wrong in (0, -1, 2**31, float("nan")):
        await fails(InvalidArgument, session.set_timer(mine, wrong))
    await fails(ConversationNotFound, session.set_timer(b"?" * 16, 1))
    (asked,) = await take(session, "shop")
    await daemon.switch("desk", on=False)  # so that the end of the other side stays visible
    await session.end(asked.handle)
    error = await fails(InvalidState, session.set_timer(asked.handle, 1))
    assert "DO" in error.message
    assert error.ssb_code == 8458
    error = await fails(InvalidState, session.send(asked.handle, b"x", "Answer"))
    assert error.ssb_code == 8429
    error = await fails(InvalidState, session.end(asked.handle))
    assert error.ssb_code == 8427


@pytest.mark.rule("DLG-38")
@scenario
async def test_a_timer_may_be_due_when_the_dialog_expires(daemon: Daemon, session: Session) -> None:
    mine = await talk(session, b"ask", lifetime=100)
    live = live_of(daemon, mine)

    def left() -> int:
        return live.endpoint.expires_at - daemon.clock.utc()

    await daemon.pass_time(left() % 1000 / 1e6)  # so that whole milliseconds are left
    assert left() % 1000 == 0
    tx = Transaction(daemon.broker, "test")
    with pytest.raises(TimerBeyondLifetime):
        set_timer(tx, Handle(mine), left() // 1000 + 1, "")
    assert set_timer(tx, Handle(mine), left() // 1000, "") is None
    await tx.committed()
    assert await timers(daemon) == 1


@pytest.mark.rule("DLG-39", "DLG-41")
@scenario
async def test_timers_are_legal_while_the_application_owns_the_dialog(
    daemon: Daemon, session: Session
) -> None:
    mine = await session.begin_dialog("urn:desk", "urn:shop", "talk")
    await session.set_timer(mine, 1)  # SO
    assert len(await due(session, wait=2)) == 1
    await session.send(mine, b"x", "Ask")
    (asked,) = await take(session, "shop")
    await session.set_timer(asked.handle, 1)  # CO, at the target
    assert len(await due(session, "shop", wait=2)) == 1
    await session.end(asked.handle)
    await session.set_timer(mine, 1)  # DI
    await daemon.pass_time(2)
    assert [one.message_type for one in await due(session)] == [DIALOG_TIMER, END_DIALOG]
    failed = await talk(session, b"x")
    (asked,) = await take(session, "shop")
    await session.end(asked.handle, 7, "enough")
    await session.set_timer(failed, 1)  # ER
    await daemon.pass_time(2)
    assert [one.message_type for one in await due(session)] == [DIALOG_TIMER, ERROR]


@pytest.mark.rule("DLG-41", "DLG-T3", "DLG-T10", "DLG-T11", "DLG-T17", "DLG-T23", "DLG-T27")
@pytest.mark.parametrize(
    "how", ["end", "error", "same_tx", "so", "di", "er", "late", "cleanup", "several"]
)
def test_an_end_in_any_form_discards_its_timers(tmp_path: Path, how: str) -> None:
    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            mine = await talk(session, *([] if how == "so" else [b"x"]))
            await session.set_timer(mine, 5)
            await session.set_timer(mine, 6, "named")
            if how in ("di", "er"):
                (asked,) = await take(session, "shop")
                await session.end(asked.handle, *((7, "enough") if how == "er" else ()))
            if how == "late":  # its message waits on the queue
                await daemon.pass_time(5.5)
            if how == "cleanup":
                await session.admin.clean_up(mine, "a test")
            elif how == "several":
                await session.end([mine, await talk(session, b"x")])
            elif how == "same_tx":
                async with session.transaction() as tx:
                    await tx.set_timer(mine, 7, "more")
                    await tx.end(mine)
            elif how == "error":
                await session.end(mine, 3, "enough")
            else:
                await session.end(mine)
            assert await timers(daemon) == 0
            assert await due(session, wait=60) == []

    play(program, tmp_path)


@pytest.mark.rule("DLG-41")
@pytest.mark.parametrize("restart", [False, True])
def test_a_timer_due_while_its_queue_is_off_comes_when_it_is_on(
    tmp_path: Path, restart: bool
) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        mine = await talk(session, b"x")
        await session.set_timer(mine, 5, "held")
        await session.set_timer(mine, 300, "free")
        await daemon.switch("desk", on=False)
        await daemon.pass_time(60)
        assert await rows(daemon, "queue_messages WHERE sequence = -2") == 0
        if restart:
            await session.close()
            await daemon.restart()
            session = await daemon.session()
            await daemon.pass_time(30)
            assert await rows(daemon, "queue_messages WHERE sequence = -2") == 0
        await daemon.switch("desk", on=True)
        (told,) = await due(session, wait=1)
        assert told.timer_name == "held"
        (told,) = await due(session, wait=300)
        assert told.timer_name == "free"
        await session.close()

    play(program, tmp_path)


@pytest.mark.rule("PER-23")
@scenario
async def test_neither_early_nor_a_tick_late(daemon: Daemon, session: Session) -> None:
    daemon.instance._tick_task.cancel()  # the event alone
    mine = await talk(session, b"x", lifetime=200)
    for seconds in (17.25, 3.5, 61):
        await session.set_timer(mine, seconds)
        began = daemon.clock.monotonic()
        (told,) = await due(session, wait=100)
        assert told.is_timer
        assert seconds <= daemon.clock.monotonic() - began < seconds + 0.5
    began = daemon.clock.utc()
    (told,) = await due(session, wait=200)
    assert told.error is not None
    assert told.error.number == -8489
    assert daemon.clock.utc() - began < 120e6
    await daemon.pass_time(1)


@pytest.mark.rule("PER-23")
@scenario
async def test_the_tick_finds_what_the_event_missed(daemon: Daemon, session: Session) -> None:
    mine = await talk(session, b"x", lifetime=100)
    await session.set_timer(mine, 20)
    daemon.broker.timers.deadline.close()
    daemon.broker.lifetimes.close()
    assert await due(session, wait=19.9) == []
    assert len(await due(session, wait=TICK + 0.5)) == 1
    (told,) = await due(session, wait=80 + TICK)
    assert told.is_error


@pytest.mark.rule("PER-23", "DLG-36")
def test_many_timers_cost_rows_and_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 400
    monkeypatch.setattr(timers_pass, "BATCH", 50)

    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            for _ in range(count):
                async with session.transaction() as tx:
                    handle = await tx.begin_dialog("urn:desk", "urn:shop", "talk")
                    await tx.set_timer(handle, 500)
            assert await timers(daemon) == count
            assert len(daemon.broker.endpoints) <= 100
            await daemon.pass_time(510)
            state = daemon.broker.queues["desk"]
            assert await timers(daemon) > 200  # they wait there while the window is full
            got = 0
            while got < count:
                told = await due(session, wait=TICK + 1)
                assert told
                assert state.ready_count <= 150
                got += len(told)
            assert await timers(daemon) == 0
            assert await due(session, wait=TICK * 2) == []

    play(program, tmp_path, endpoints=50, window=WindowOptions(window_messages=20))


@pytest.mark.rule("DLG-37")
@scenario
async def test_a_timer_set_anew_while_it_is_being_fired_does_not_fire(
    daemon: Daemon, session: Session
) -> None:
    mine = await talk(session, b"x")
    await session.set_timer(mine, 10)
    reads = daemon.broker.store.timers.due

    async def slow(*args: Any) -> list[Timer]:
        found = await reads(*args)
        if found:
            await session.set_timer(mine, 100)
        return found

    daemon.broker.store.timers.due = slow  # type: ignore[method-assign,assignment]
    assert await due(session, wait=90) == []
    daemon.broker.store.timers.due = reads  # type: ignore[method-assign]
    assert len(await due(session, wait=30)) == 1


def test_the_error_of_a_timer_says_what_to_do() -> None:
    error: BrokerError = TimerBeyondLifetime()
    assert error.hint


@pytest.mark.rule("DLG-37", "GRP-21")
@scenario
async def test_a_savepoint_undoes_timers_set_since(daemon: Daemon, session: Session) -> None:
    mine = await talk(session, b"x")
    async with session.transaction() as tx:
        await tx.set_timer(mine, 10, "stays")
        with suppress(ZeroDivisionError):
            async with tx.savepoint():
                await tx.set_timer(mine, 5, "undone")
                raise ZeroDivisionError
    assert await timers(daemon) == 1
    assert [one.timer_name for one in await due(session, wait=60)] == ["stays"]
    assert await due(session, wait=60) == []
