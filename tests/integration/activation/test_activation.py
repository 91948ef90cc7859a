"""Activation in a whole instance: what counts as an arrival, as waiting, as a receive (ACT)."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from brokerd.app.app import App
from brokerd.client.outcomes import Park, Retry
from brokerd.client.session import DRAIN_WAIT, Session
from brokerd.errors import GroupNotFound, QueueDisabled
from tests.integration.activation import held_readers
from tests.integration.one_daemon import Daemon, play

HANDLER = "tests.integration.activation.held_readers:waits"


async def activate(session: Session, **options: object) -> None:
    await session.alter("queue", "shop", activation={"handler": HANDLER, "status": "on", **options})


async def monitor(session: Session) -> dict[str, Any]:
    (row,) = await session.view("queue_monitors", where={"queue_id": "shop"})
    return dict(row)


@pytest.mark.rule("ACT-8")
@pytest.mark.rule("ACT-22")
def test_an_arrival_is_a_commit_and_a_reader_begins_without_a_transaction(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        held_readers.seen.clear()
        async with await daemon.session() as session:
            await activate(session)
            tx = session.transaction()
            handle = await tx.begin_dialog("urn:desk", "urn:shop", "talk")
            await tx.send(handle, b"x", "Ask")
            await tx.get_group("desk")  # the send is with the daemon now
            await daemon.pass_time(1)
            assert not daemon.instance.parts.readers.tasks()
            await tx.commit()
            await daemon.pass_time(1)
            assert len(daemon.instance.parts.readers.tasks()) == 1
            assert held_readers.seen == [0]

    play(scenario, tmp_path)


@pytest.mark.rule("ACT-8", "DLG-36")
@pytest.mark.parametrize("kind", ["timer", "error of the peer", "error of the broker", "end"])
def test_a_message_that_the_broker_makes_is_an_arrival(tmp_path: Path, kind: str) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await session.alter("queue", "desk", activation={"handler": HANDLER, "status": "on"})
            lifetime = timedelta(seconds=5) if kind == "error of the broker" else None
            handle = await session.begin_dialog("urn:desk", "urn:shop", "talk", lifetime=lifetime)
            await session.send(handle, b"x", "Ask")
            if kind == "timer":
                await session.set_timer(handle, 5)
            await daemon.pass_time(1)
            assert not daemon.instance.parts.readers.tasks()
            if kind in ("error of the peer", "end"):
                (came,) = await session.receive("shop", autocommit=True)
                error = (1, "none left") if kind == "error of the peer" else ()
                await session.end(came.handle, *error)
            await daemon.pass_time(6)
            told = [one for event, one in daemon.log.lines if event == "broker.activation"]
            assert [(one["queue"], one["why"]) for one in told] == [("desk", "arrival")]

    play(scenario, tmp_path)


@pytest.mark.rule("RCV-34", "ACT-8")
@pytest.mark.parametrize("outcome", [Park("by hand"), Retry(30)])
def test_a_group_that_is_held_starts_a_reader_when_it_is_free(
    tmp_path: Path, outcome: Park | Retry
) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            handle = await session.begin_dialog("urn:desk", "urn:shop", "talk")
            await session.send(handle, b"x", "Ask")
            tx = session.transaction()
            (came,) = await tx.receive("shop")
            tx.rollback(outcome)
            await activate(session)
            await session.send(handle, b"y", "Ask")
            await daemon.pass_time(16)
            assert not daemon.instance.parts.readers.tasks()
            gauges = {row.queue: row.gauges for row in daemon.instance.parts.figures.rows()}["shop"]
            assert (gauges["ready"], gauges["parked"]) == (0, 2)
            if isinstance(outcome, Park):
                await session.admin.release_group(came.group_id)
            else:
                await daemon.pass_time(14)
            await daemon.pass_time(0.5)
            assert len(daemon.instance.parts.readers.tasks()) == 1
            told = [one for event, one in daemon.log.lines if event == "broker.activation"]
            assert [one["why"] for one in told] == ["arrival"]

    play(scenario, tmp_path)


@pytest.mark.rule("ACT-13")
@pytest.mark.rule("ACT-16")
@pytest.mark.rule("ACT-4")
def test_everybody_who_waits_counts_and_locked_groups_are_unread(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session, await daemon.session() as other:
            await activate(session)
            handle = await session.begin_dialog("urn:desk", "urn:shop", "talk")
            for _ in range(3):
                await session.send(handle, b"x", "Ask")
            tx = session.transaction()
            assert await tx.receive("shop", 1)  # the only group is locked now
            row = await monitor(other)
            assert (row["state"], row["tasks_waiting"]) == ("RECEIVES_OCCURRING", 0)
            await daemon.pass_time(5.5)
            assert (await monitor(other))["necessary"] != "none: no messages ready"
            waits = other.transaction()
            asked = daemon.loop.create_task(waits.receive("shop", wait=60))
            await daemon.pass_time(1)
            row = await monitor(session)
            assert row["tasks_waiting"] == 1
            assert row["necessary"] == "none: a session is waiting in a receive"
            assert row["tasks_running"] >= 1
            await tx.commit()
            assert len(await asked) == 2

    play(scenario, tmp_path)


WAYS = {
    "any": lambda tx, message, **wait: tx.receive("shop", **wait),
    "get_group": lambda tx, message, **wait: tx.get_group("shop", **wait),
    "conversation": lambda tx, message, **wait: tx.receive(
        "shop", conversation=message.handle, **wait
    ),
    "group": lambda tx, message, **wait: tx.receive("shop", group=message.group_id, **wait),
    "none": lambda tx, message, **wait: tx.receive("shop", 0, **wait),
}
"""Ways to receive, with a message of the dialog that is asked for."""


@pytest.mark.rule("ACT-10", "ACT-12", "RCV-23")
@pytest.mark.parametrize(
    ("way", "counts"), [("any", 1), ("get_group", 1), ("conversation", 0), ("group", 0)]
)
def test_only_receives_of_any_group_count_as_waiting_and_as_empty(
    tmp_path: Path, way: str, counts: int
) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session, await daemon.session() as other:
            await activate(session)
            handle = await session.begin_dialog("urn:desk", "urn:shop", "talk")
            await session.send(handle, b"x", "Ask")
            (came,) = await session.receive("shop", autocommit=True)
            asked = daemon.loop.create_task(WAYS[way](other.transaction(), came, wait=5))
            await daemon.pass_time(1)
            row = await monitor(session)
            assert (row["tasks_waiting"], row["last_empty_rowset_time"]) == (counts, None)
            await daemon.pass_time(5)
            assert not await asked
            row = await monitor(session)
            assert row["tasks_waiting"] == 0
            assert (row["last_empty_rowset_time"] is not None) == bool(counts)

    play(scenario, tmp_path)


@pytest.mark.rule("ACT-13", "ACT-19")
def test_readers_that_were_started_count_as_waiting_and_bound_no_others(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session, await daemon.session() as other:
            handler = HANDLER.replace(":waits", ":waits_for_ever")
            await activate(session, handler=handler, max_readers=1)
            await session.send(await session.begin_dialog("urn:desk", "urn:shop"), b"x")
            await daemon.pass_time(1)
            row = await monitor(session)
            assert (row["tasks_running"], row["tasks_waiting"]) == (1, 1)
            asked = [
                daemon.loop.create_task(one.receive("shop", autocommit=True, wait=60))
                for one in (session, other)
            ]
            await daemon.pass_time(1)
            row = await monitor(session)
            assert (row["tasks_running"], row["tasks_waiting"]) == (1, 3)
            for _ in range(3):
                await session.send(await session.begin_dialog("urn:desk", "urn:shop"), b"x")
            assert [len(await one) for one in asked] == [1, 1]

    play(scenario, tmp_path)


@pytest.mark.rule("ACT-30", "RCV-12", "RCV-23")
@pytest.mark.parametrize("way", ["fails", "any", "get_group", "group", "conversation", "none"])
def test_a_receive_that_fails_or_gets_nothing_is_a_receive(tmp_path: Path, way: str) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session, await daemon.session() as other:
            handle = await session.begin_dialog("urn:desk", "urn:shop", "talk")
            await session.send(handle, b"x", "Ask")
            holds = session.transaction()
            (came,) = await holds.receive("shop")  # its group is locked
            await activate(other)
            await other.send(handle, b"y", "Ask")
            await daemon.pass_time(1)
            assert (await monitor(session))["state"] == "NOTIFIED"
            if way == "fails":
                with pytest.raises(GroupNotFound):
                    await other.receive("shop", group=b"\1" * 16, autocommit=True)
            else:
                assert not await WAYS[way](other.transaction(), came)
            now = await monitor(session)
            assert now["state"] == "RECEIVES_OCCURRING"
            came_empty = now["last_empty_rowset_time"] is not None
            assert came_empty == (way in ("any", "get_group"))

    play(scenario, tmp_path)


@pytest.mark.rule("ACT-6")
@pytest.mark.parametrize("how", ["rolled back", "connection lost"])
def test_what_a_rollback_brings_back_is_looked_at_without_a_tick(tmp_path: Path, how: str) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session, await daemon.session() as other:
            handle = await session.begin_dialog("urn:desk", "urn:shop", "talk")
            await session.send(handle, b"x", "Ask")
            tx = other.transaction()
            assert await tx.receive("shop")
            await activate(session)
            await daemon.pass_time(0.1)
            assert (await monitor(session))["state"] == "INACTIVE"
            if how == "rolled back":
                tx.rollback()
            else:
                daemon.network.reset("client", "daemon")
            await daemon.pass_time(0.1)
            assert len(daemon.instance.parts.readers.tasks()) == 1

    play(scenario, tmp_path)


@pytest.mark.rule("ACT-23", "ERR-8415")
def test_what_a_handler_leaves_open_is_back_in_the_queue(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await session.alter("queue", "shop", poison_handling="off")
            await activate(session, handler=HANDLER.replace(":waits", ":leaves_open"))
            await session.send(await session.begin_dialog("urn:desk", "urn:shop"), b"x")
            await daemon.pass_time(0.1)
            told = [one for event, one in daemon.log.lines if event == "broker.activation"]
            (aborted, *_) = [one for one in told if one["subclass"] == "aborted"]
            assert "ended with a transaction open" in str(aborted["error"])
            await session.alter("queue", "shop", activation={"status": "off"})
            await daemon.pass_time(1)
            assert [one.body for one in await session.receive("shop", autocommit=True)] == [b"x"]

    play(scenario, tmp_path)


@pytest.mark.rule("ACT-51")
def test_what_a_reader_had_received_at_its_deadline_is_back_in_the_queue(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            handler = HANDLER.replace(":waits", ":receives_and_waits")
            await activate(session, handler=handler, deadline="20s")
            await session.send(await session.begin_dialog("urn:desk", "urn:shop"), b"x")
            await daemon.pass_time(15)
            assert not await session.receive("shop", autocommit=True)
            await session.alter("queue", "shop", activation={"max_readers": 0})  # none after it
            await daemon.pass_time(10)
            assert daemon.instance.parts.readers.tasks() == []
            (queue,) = await session.view("service_queues", where={"name": "shop"})
            assert queue["rollback_streak"] == 1
            assert [one.body for one in await session.receive("shop", autocommit=True)] == [b"x"]

    play(scenario, tmp_path)


@pytest.mark.rule("ACT-25")
@pytest.mark.rule("ACT-27")
def test_the_loop_of_the_sdk_ends_when_idle_and_when_the_queue_is_off(tmp_path: Path) -> None:
    app, done = App("urn:shop"), list[object]()

    @app.activate("shop")
    async def handle(body: bytes) -> None:
        done.append(body)

    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            dialog = await session.begin_dialog("urn:desk", "urn:shop")
            await session.send(dialog, b"one")
            began = daemon.loop.time()
            await app.handler_for("shop")(session)
            assert done == [b"one"]
            assert DRAIN_WAIT <= daemon.loop.time() - began < DRAIN_WAIT + 0.1
            await session.alter("queue", "shop", status="off")
            with pytest.raises(QueueDisabled):
                await app.handler_for("shop")(session)

    play(scenario, tmp_path)


@pytest.mark.rule("ACT-25")
def test_a_handler_that_is_idle_is_left_alone(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            held_readers.seen.clear()
            await activate(session)
            handle = await session.begin_dialog("urn:desk", "urn:shop", "talk")
            await session.send(handle, b"x", "Ask")
            await daemon.pass_time(1)
            (task,) = daemon.instance.parts.readers.tasks()
            assert await session.receive("shop", autocommit=True)  # somebody else has it
            await daemon.pass_time(2 * 3600)
            assert daemon.instance.parts.readers.tasks() == [task]
            assert held_readers.seen == [0]

    play(scenario, tmp_path)


@pytest.mark.rule("PBT-6", "ACT-6", "ACT-7")
def test_a_back_off_ends_by_a_change_of_its_own_queue_and_of_no_other(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            held_readers.seen.clear()
            await activate(session, handler=HANDLER.replace(":waits", ":returns_at_once"))
            handle = await session.begin_dialog("urn:desk", "urn:shop", "talk")
            await session.send(handle, b"x", "Ask")
            await daemon.pass_time(17)  # started at 0, 5 and 15 s
            assert (len(held_readers.seen), (await monitor(session))["state"]) == (
                3,
                "FAILED_BACKOFF",
            )
            await session.alter("queue", "spare", status="off")
            await session.alter("broker", "main", honor_priority="on")
            await session.create("service", "urn:more", queue="shop")
            await daemon.pass_time(1)
            assert (await monitor(session))["consecutive_failures"] == 3
            await session.alter("queue", "shop", status="on")  # as it was
            await daemon.pass_time(0.1)
            assert (len(held_readers.seen), (await monitor(session))["consecutive_failures"]) == (
                4,
                1,
            )

    play(scenario, tmp_path)
