"""A queue with limits: what it refuses, what it never refuses, and what counts (REL-42)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from brokerd.broker.window import WindowOptions
from brokerd.client.session import Session
from brokerd.errors import ObjectInvalid, QueueFull
from tests.integration.one_daemon import Daemon, play
from tests.integration.scenarios import given, with_client
from tests.integration.shorthand import bodies, fails, take, talk, types, undone

scenario = given(with_client)
SMALL = WindowOptions(window_messages=4, page_messages=2)


async def row(session: Session, queue: str = "shop") -> dict[str, Any]:
    """The queue in the view `service_queues`."""
    found: list[dict[str, Any]] = await session.view("service_queues", where={"name": queue})
    return found[0]


async def status(session: Session, queue: str = "shop") -> dict[str, Any]:
    """The queue in the answer to `status`."""
    queues: list[dict[str, Any]] = (await session.status())["queues"]
    return next(one for one in queues if one["name"] == queue)


@pytest.mark.rule("REL-42", "MON-86")
@scenario
async def test_a_send_at_the_limit_is_refused_and_names_queue_limit_and_way_out(
    daemon: Daemon, session: Session
) -> None:
    await session.alter("queue", "shop", max_messages=3)
    handle = await talk(session, b"1", b"2", b"3")
    shop = await status(session)
    assert shop["full"] == "3 messages, its limit is 3 messages"
    assert (shop["max_messages"], shop["refused_at"]) == (3, None)
    before = daemon.clock.utc()
    error = await fails(QueueFull, session.send(handle, b"4", "Ask"))
    shop = await status(session)
    assert shop["full"].endswith("; 1 send or arrival was refused")
    assert before <= shop["refused_at"] <= daemon.clock.utc()
    assert error.retryable
    assert "'shop'" in error.message
    assert "3 messages" in error.message
    assert "brokerd queue alter shop" in error.hint
    seen = await row(session)
    assert (seen["ready_count"], seen["is_full"], seen["refused_count"]) == (3, True, 1)
    assert bodies(await take(session, "shop")) == [b"1", b"2", b"3"]
    await session.send(handle, b"4", "Ask")
    assert bodies(await take(session, "shop")) == [b"4"]
    assert not (await row(session))["is_full"]


@pytest.mark.rule("REL-42")
@scenario
async def test_a_first_message_is_refused_and_the_dialog_can_send_it_later(
    daemon: Daemon, session: Session
) -> None:
    await session.alter("queue", "shop", max_messages=1)
    await talk(session, b"1")
    other = await session.begin_dialog("urn:desk", "urn:shop", "talk")
    await fails(QueueFull, session.send(other, b"2", "Ask"))
    assert bodies(await take(session, "shop")) == [b"1"]
    await session.send(other, b"2", "Ask")
    assert bodies(await take(session, "shop")) == [b"2"]


@pytest.mark.rule("REL-42")
@scenario
async def test_bytes_are_limited_and_no_message_is_too_large(
    daemon: Daemon, session: Session
) -> None:
    await session.alter("queue", "shop", max_bytes="1KiB")
    handle = await talk(session, bytes(1023))
    await session.send(handle, bytes(5000), "Ask")  # the limit was not reached
    await fails(QueueFull, session.send(handle, b"x", "Ask"))
    assert (await row(session))["message_bytes"] == 6023
    (large,) = await take(session, "shop", 1)
    assert len(large.body or b"") == 1023
    await fails(QueueFull, session.send(handle, b"x", "Ask"))
    await take(session, "shop")
    await session.send(handle, b"x", "Ask")
    assert (await row(session))["message_bytes"] == 1


@pytest.mark.rule("REL-42")
@scenario
async def test_sends_written_together_stop_at_the_limit(daemon: Daemon, session: Session) -> None:
    limits: list[dict[str, Any]] = [
        {"max_messages": 10},
        {"max_messages": "off", "max_bytes": 100},
    ]
    for limit in limits:
        await session.alter("queue", "shop", **limit)
        handle = await talk(session, bytes(10))
        sends = [session.send(handle, bytes(10), "Ask") for _ in range(30)]
        done = await asyncio.gather(*sends, return_exceptions=True)
        refused = [one for one in done if isinstance(one, Exception)]
        assert {type(one) for one in refused} == {QueueFull}
        assert len(refused) == 21
        assert (await row(session))["ready_count"] == 10
        while await take(session, "shop"):
            pass


@pytest.mark.rule("REL-42")
@scenario
async def test_dialogs_of_one_message_stop_at_the_limit_too(
    daemon: Daemon, session: Session
) -> None:
    await session.alter("queue", "shop", max_messages=5)

    async def short() -> None:
        async with session.transaction() as tx:
            handle = await tx.begin_dialog("urn:desk", "urn:shop", "talk")
            await tx.send(handle, b"x", "Ask")
            await tx.end(handle)

    done = await asyncio.gather(*(short() for _ in range(9)), return_exceptions=True)
    refused = [one for one in done if one is not None]
    assert {type(one) for one in refused} == {QueueFull}
    found = await row(session)
    assert 5 <= found["ready_count"] <= 6  # its END comes with a message that fitted
    assert len(refused) == 6


@pytest.mark.rule("REL-42", "SND-3", "GRP-21")
@scenario
async def test_messages_of_open_transactions_count_until_they_are_undone(
    daemon: Daemon, session: Session
) -> None:
    await session.alter("queue", "shop", max_messages=4)
    first, second = await talk(session, b"1"), await talk(session, b"2")
    async with undone(session) as tx:
        await tx.send(first, b"3", "Ask")
        await tx.send(first, b"4", "Ask")
        assert await tx.receive("spare") == []  # the daemon has both
        await fails(QueueFull, session.send(second, b"5", "Ask"))
    await session.send(second, b"5", "Ask")
    async with session.transaction() as tx:
        async with tx.savepoint():
            await tx.send(first, b"6", "Ask")
        with pytest.raises(QueueFull):
            async with tx.savepoint():
                await tx.send(first, b"7", "Ask")
    got = [*bodies(await take(session, "shop")), *bodies(await take(session, "shop"))]
    assert {*got} == {b"1", b"2", b"5", b"6"}


@pytest.mark.rule("REL-42")
@scenario
async def test_what_is_received_and_not_committed_still_counts(
    daemon: Daemon, session: Session
) -> None:
    await session.alter("queue", "shop", max_messages=1)
    handle = await talk(session, b"1")
    async with undone(session) as tx:
        assert bodies(await tx.receive("shop")) == [b"1"]
        other = await session.begin_dialog("urn:desk", "urn:shop", "talk")
        await fails(QueueFull, session.send(other, b"2", "Ask"))
    assert (await row(session))["ready_count"] == 1
    assert bodies(await take(session, "shop")) == [b"1"]
    await session.send(handle, b"2", "Ask")


@pytest.mark.rule("REL-42", "DLG-41", "DLG-20")
@scenario
async def test_messages_of_the_broker_are_never_refused(daemon: Daemon, session: Session) -> None:
    for queue in ("shop", "desk"):
        await session.alter("queue", queue, max_messages=1)
    ended, broken = (
        await talk(session, b"1"),
        await session.begin_dialog("urn:desk", "urn:spare", "talk", lifetime=30),
    )
    await session.send(broken, b"1", "Ask")
    await session.set_timer(ended, 1, name="bell")
    await daemon.pass_time(40)
    kinds = [*types(await take(session, "desk")), *types(await take(session, "desk"))]
    assert {"urn:brokerd:DialogTimer", "urn:brokerd:Error"} <= {*kinds}
    await session.end(ended)
    assert types(await take(session, "shop")) == ["Ask", "urn:brokerd:EndDialog"]


@pytest.mark.rule("REL-42")
@pytest.mark.parametrize("windowed", [True, False])
def test_what_is_beyond_memory_counts_also_after_a_restart(windowed: bool, tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await session.alter("queue", "shop", max_messages=20, max_bytes=2000)
            handle = await talk(session, *(bytes(90) for _ in range(20)))
            assert (await row(session))["message_bytes"] == 1800
            await fails(QueueFull, session.send(handle, b"x", "Ask"))
        await daemon.restart(declare=False)
        async with await daemon.session() as session:
            await session.alter("queue", "shop", max_messages="off")
            assert (await row(session))["message_bytes"] == 1800
            await session.send(handle, bytes(200), "Ask")
            await fails(QueueFull, session.send(handle, b"x", "Ask"))
            while await take(session, "shop", 3):
                pass
            assert (await row(session))["message_bytes"] == 0
            await session.send(handle, b"x", "Ask")

    play(program, tmp_path, window=SMALL if windowed else WindowOptions())


@pytest.mark.rule("REL-42")
@scenario
async def test_a_conversation_that_ends_with_unread_messages_makes_room(
    daemon: Daemon, session: Session
) -> None:
    await session.alter("queue", "desk", max_messages=3, max_bytes=100)
    handle = await talk(session, b"1")
    (got,) = await take(session, "shop")
    await session.send(got.handle, bytes(99), "Answer")
    await session.send(got.handle, bytes(1), "Answer")
    await fails(QueueFull, session.send(got.handle, b"x", "Answer"))
    await session.end(handle)
    found = await row(session, "desk")
    assert (found["ready_count"], found["message_bytes"], found["is_full"]) == (0, 0, False)


@pytest.mark.rule("REL-42", "MON-20")
@scenario
async def test_a_full_queue_is_shown(daemon: Daemon, session: Session) -> None:
    await session.alter("queue", "shop", max_messages=1)
    handle = await talk(session, b"12345")
    await fails(QueueFull, session.send(handle, b"2", "Ask"))
    status: Any = await session.status()
    (shop,) = [one for one in status["queues"] if one["name"] == "shop"]
    assert shop["full"] == "1 message, its limit is 1 message; 1 send or arrival was refused"
    await session.alter("queue", "shop", max_messages="off")
    await session.send(handle, b"2", "Ask")
    assert not (await row(session))["is_full"]


@pytest.mark.rule("REL-42", "BI-C3")
@scenario
async def test_limits_are_numbers_above_0_or_off(daemon: Daemon, session: Session) -> None:
    wrong: list[tuple[str, Any]] = [
        ("max_messages", 0),
        ("max_messages", "1KiB"),
        ("max_bytes", "1 mile"),
    ]
    for key, value in wrong:
        error = await fails(ObjectInvalid, session.alter("queue", "shop", **{key: value}))
        assert f"{key}: off, or a number above 0" in error.message
    (change,) = await session.alter("queue", "shop", max_messages=7, max_bytes="3KiB")
    assert "max_messages changes from off to 7" in str(change)
    assert "max_bytes changes from off to 3072" in str(change)
    assert await session.alter("queue", "shop", max_bytes=3072) == []
