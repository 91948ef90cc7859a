"""Readers that are started by somebody else: when a queue's subscribers are notified (ACT-34)."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from brokerd.client.session import Session
from brokerd.model import POST_EVENT_NOTIFICATION
from tests.integration.one_daemon import OBJECTS, Daemon, play

TELLING = {
    "service": [
        *OBJECTS["service"],
        {"name": "ops", "queue": "spare", "contracts": [POST_EVENT_NOTIFICATION]},
    ]
}


def subscription(name: str = "wake", **given: Any) -> dict[str, Any]:
    told = {"name": name, "queue": "shop", "service": "ops", "events": ["QUEUE_ACTIVATION"]}
    return {**told, **given}


async def subscribe(daemon: Daemon, session: Session, *told: dict[str, Any]) -> None:
    daemon.objects = {**OBJECTS, **TELLING, "event_notification": list(told)}
    await session.apply(daemon.objects)
    await daemon.pass_time(0.1)


async def told(daemon: Daemon, session: Session) -> list[dict[str, Any]]:
    """The notifications that have come since it was asked last."""
    await daemon.pass_time(0.1)
    found = []
    while more := await session.receive("spare", autocommit=True):
        found += [orjson.loads(one.body or b"") for one in more]
    return found


async def arrive(session: Session, count: int = 1) -> None:
    """As many messages, each of a group of its own."""
    for _ in range(count):
        await session.send(await session.begin_dialog("urn:desk", "urn:shop", "talk"), b"x", "Ask")


@pytest.mark.rule("VIEW-12", "ACT-3", "ACT-34", "ACT-36", "ACT-37", "ACT-38", "ACT-39")
def test_an_arrival_is_told_once_and_again_after_the_time_out(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await subscribe(daemon, session, subscription(), subscription("also"))
            await arrive(session, 3)
            first, second = await told(daemon, session)
            assert first["event"] == second["event"] == "QUEUE_ACTIVATION"
            assert (first["broker"], first["queue"]) == ("main", "shop")
            assert first["ready_messages"] == 1
            assert first["oldest_ready_at"] is not None
            await arrive(session, 2)
            await daemon.pass_time(8)
            assert await told(daemon, session) == []
            await daemon.pass_time(8)
            assert [one["ready_messages"] for one in await told(daemon, session)] == [5, 5]
            (row,) = await session.view("queue_monitors", where={"queue_id": "shop"})
            assert (row["state"], row["tasks_running"]) == ("NOTIFIED", 0)
            (counted,) = await session.view("activation_counters")
            assert (counted["notifications_total"], counted["tasks_started_total"]) == (2, 0)
            await subscribe(daemon, session, subscription())
            (row,) = await session.view("queue_monitors")
            await subscribe(daemon, session)  # nobody any more
            assert await session.view("queue_monitors") == []

    play(scenario, tmp_path)


@pytest.mark.rule("ACT-36", "ACT-49", "ACT-10")
def test_a_receive_arms_it_and_readers_that_do_not_keep_pace_call_for_more(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await subscribe(daemon, session, subscription())
            await arrive(session, 20)
            assert len(await told(daemon, session)) == 1
            for _ in range(5):  # one at a time, slower than they should be
                assert await session.receive("shop", 1, autocommit=True)
                await daemon.pass_time(2)
            assert len(await told(daemon, session)) == 1
            while await session.receive("shop", autocommit=True):
                pass
            await daemon.pass_time(60)
            assert await told(daemon, session) == []

    play(scenario, tmp_path)


@pytest.mark.rule("ACT-37")
def test_the_shortest_time_out_of_its_subscriptions_holds(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            slow = subscription("slow", activation_timeout="10min")
            await subscribe(daemon, session, slow)
            await arrive(session)
            await daemon.pass_time(300)
            assert len(await told(daemon, session)) == 1
            await subscribe(daemon, session, slow, subscription(activation_timeout="4s"))
            assert len(await told(daemon, session)) == 2  # the queue was altered
            await daemon.pass_time(6)
            assert len(await told(daemon, session)) == 2
            (queue,) = await session.view("event_notifications", where={"name": "slow"})
            assert queue["events"] == ["QUEUE_ACTIVATION"]

    play(scenario, tmp_path)


@pytest.mark.rule("ACT-37")
@pytest.mark.parametrize(("timeout", "seconds"), [("1s", 1), ("1d", 86_400)])
def test_the_least_and_the_longest_time_out(tmp_path: Path, timeout: str, seconds: float) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await subscribe(daemon, session, subscription(activation_timeout=timeout))
            await arrive(session)
            assert len(await told(daemon, session)) == 1
            await daemon.pass_time(seconds - 0.5)
            assert await told(daemon, session) == []
            await daemon.pass_time(10)  # ticks
            assert len(await told(daemon, session)) >= 1

    play(scenario, tmp_path, limit=100_000)


@pytest.mark.rule("ACT-Q2", "PBT-15")
def test_messages_that_wait_are_told_when_somebody_subscribes_and_after_a_start(
    tmp_path: Path,
) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await arrive(session, 2)
            await subscribe(daemon, session, subscription())
            assert [one["ready_messages"] for one in await told(daemon, session)] == [2]
        await daemon.restart()
        async with await daemon.session() as session:
            assert [one["ready_messages"] for one in await told(daemon, session)] == [2]

    play(scenario, tmp_path)


@pytest.mark.rule("ACT-35", "ACT-5")
def test_a_queue_that_is_off_is_not_told_of(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await subscribe(daemon, session, subscription())
            await arrive(session)
            assert len(await told(daemon, session)) == 1
            await session.alter("queue", "shop", status="off")
            await daemon.pass_time(60)
            assert await told(daemon, session) == []
            assert await session.view("queue_monitors", where={"queue_id": "shop"}) == []
            (row,) = await session.view("service_queues", where={"name": "shop"})
            assert row["monitor_absent_reason"] == "the queue is off"

    play(scenario, tmp_path)
