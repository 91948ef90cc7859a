"""Activation in a whole instance: what counts as an arrival, as waiting, as a receive (ACT)."""

from pathlib import Path
from typing import Any

import pytest

from brokerd.app.app import App
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
            assert not daemon.instance.readers.tasks()
            await tx.commit()
            await daemon.pass_time(1)
            assert len(daemon.instance.readers.tasks()) == 1
            assert held_readers.seen == [0]

    play(scenario, tmp_path)


@pytest.mark.rule("ACT-8")
def test_a_timer_message_is_an_arrival(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await session.alter("queue", "desk", activation={"handler": HANDLER, "status": "on"})
            handle = await session.begin_dialog("urn:desk", "urn:shop", "talk")
            await session.set_timer(handle, 5)
            assert not daemon.instance.readers.tasks()
            await daemon.pass_time(6)
            assert [one.queue for one in daemon.instance.readers.tasks()] == ["desk"]

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


@pytest.mark.rule("ACT-30")
def test_a_receive_that_fails_is_a_receive(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await activate(session)
            handle = await session.begin_dialog("urn:desk", "urn:shop", "talk")
            await session.send(handle, b"x", "Ask")
            await daemon.pass_time(1)
            assert (await monitor(session))["state"] == "NOTIFIED"
            with pytest.raises(GroupNotFound):
                await session.receive("shop", group=b"\1" * 16, autocommit=True)
            assert (await monitor(session))["state"] == "RECEIVES_OCCURRING"

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
            (task,) = daemon.instance.readers.tasks()
            assert await session.receive("shop", autocommit=True)  # somebody else has it
            await daemon.pass_time(2 * 3600)
            assert daemon.instance.readers.tasks() == [task]
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
            await daemon.pass_time(1)
            assert (await monitor(session))["consecutive_failures"] == 3
            await session.alter("queue", "shop", status="on")  # as it was
            await daemon.pass_time(0.1)
            assert (len(held_readers.seen), (await monitor(session))["consecutive_failures"]) == (
                4,
                1,
            )

    play(scenario, tmp_path)
