"""Poison messages: queues switched off, groups that wait and are parked, and what cures them."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from brokerd.broker.window import WindowOptions
from brokerd.client.outcomes import Park, Retry
from brokerd.client.session import Session
from brokerd.clock import SECOND
from brokerd.errors import (
    BrokerError,
    Busy,
    DeadlockVictim,
    GroupNotFound,
    InvalidState,
    LockTimeout,
    QueueDisabled,
    StoreFull,
    ValidationFailed,
)
from brokerd.ids import parse, show
from brokerd.telemetry.logs import PARKING, QUEUE_DISABLED
from brokerd.telemetry.status import InstanceStatus, concerns
from tests.integration.one_daemon import OBJECTS, Daemon, live_of, play

BOOM = "ValueError: it cannot be done"


async def send(session: Session, body: bytes = b"x", **options: Any) -> bytes:
    """One message to `shop`, in a group of its own."""
    handle = await session.begin_dialog("urn:desk", "urn:shop", "talk", **options)
    await session.send(handle, body, "Ask")
    return handle


async def leave(session: Session, error: Exception, queue: str = "shop", wait: float = 0) -> bool:
    """Leave a transaction by an error, if it has received something; whether it has."""
    async with session.transaction() as tx:
        if await tx.receive(queue, 1, wait=wait):
            raise error
    return False


async def fail(session: Session, count: int = 1, queue: str = "shop") -> int:
    """Roll back so many transactions that have received; how many found something."""
    done = 0
    for _ in range(count):
        try:
            await leave(session, ValueError("it cannot be done"), queue)
        except ValueError:
            done += 1
    return done


async def row(session: Session, queue: str = "shop") -> dict[str, Any]:
    """The row of the queue in `service_queues`."""
    (found,) = await session.view("service_queues", where={"name": queue})
    return dict(found)


async def take(session: Session, queue: str = "shop", **options: Any) -> list[bytes | None]:
    """Bodies of what one receive takes for good."""
    return [m.body for m in await session.receive(queue, autocommit=True, **options)]


def told(daemon: Daemon, event: str) -> list[dict[str, Any]]:
    return [fields for name, fields in daemon.log.lines if name == event]


def with_queue(**options: Any) -> dict[str, Any]:
    queues = [{**one, **(options if one["name"] == "shop" else {})} for one in OBJECTS["queue"]]
    return {**OBJECTS, "queue": queues}


# Service Broker's own.


@pytest.mark.rule("PSN-1")
@pytest.mark.rule("PSN-2")
@pytest.mark.rule("PSN-7")
@pytest.mark.rule("PSN-14")
@pytest.mark.rule("PSN-15")
@pytest.mark.rule("PSN-16")
@pytest.mark.rule("PBT-1")
def test_five_rollbacks_in_a_row_switch_the_queue_off_and_say_why(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await send(session)
            assert await fail(session, 4) == 4
            assert (await row(session))["rollback_streak"] == 4
            assert (await row(session))["is_receive_enabled"]
            assert await fail(session) == 1
            await daemon.pass_time(1)
            now = await row(session)
            assert (now["is_receive_enabled"], now["is_enqueue_enabled"]) == (False, False)
            assert now["status_reason"] == "poison"
            assert now["status_changed_by"] == "poison handling"
            assert now["last_error"] == BOOM
            assert now["culprit_rollbacks"] == 5
            (dialog,) = await session.view(
                "conversation_endpoints",
                where={"conversation_id": now["culprit_conversation_id"], "is_initiator": False},
            )
            assert dialog["service_id"] == "urn:shop"
            (line,) = told(daemon, QUEUE_DISABLED)
            assert (line["queue"], line["error"], line["rollbacks"]) == ("shop", BOOM, 5)
            with pytest.raises(QueueDisabled):
                await take(session)

    play(scenario, tmp_path)


@pytest.mark.rule("PBT-1")
def test_who_switched_a_queue_and_when_is_shown(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:

            async def shown(queue: str) -> tuple[Any, ...]:
                now = await row(session, queue)
                return tuple(
                    now[f"status_{what}"] for what in ("reason", "changed_by", "changed_at")
                )

            assert await shown("shop") == (None, None, None)
            await session.create("queue", "new", status="off")
            assert (await shown("new"))[0] == "created_off"
            changed: tuple[Any, ...] = ()
            for status in ("off", "on"):
                await daemon.pass_time(5)
                await session.alter("queue", "shop", status=status)
                reason, who, when = changed = await shown("shop")
                assert reason == "manual"
                assert who.startswith("client ")
                assert 0 <= daemon.clock.utc() - when < SECOND
            await session.alter("queue", "shop", poison_threshold=9)  # switches nothing
            assert await shown("shop") == changed
            before = await shown("new")
            daemon.objects["queue"] = [*daemon.objects["queue"], {"name": "new", "status": "off"}]
        await daemon.restart()
        async with await daemon.session() as session:
            assert await shown("new") == before

    play(scenario, tmp_path)


@pytest.mark.rule("PSN-2", "PSN-3", "PSN-4")
def test_each_queue_a_transaction_received_from_has_a_count_of_its_own(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await send(session)
            to_spare = await session.begin_dialog("urn:desk", "urn:spare", "talk")
            await session.send(to_spare, b"x", "Ask")
            assert await fail(session, 2) == 2
            for _ in range(3):
                tx = session.transaction()
                for queue in ("spare", "shop"):
                    assert await tx.receive(queue, 1)
                tx.rollback()
            await daemon.pass_time(1)
            shop, spare = await row(session), await row(session, "spare")
            assert not shop["is_receive_enabled"]
            assert (spare["is_receive_enabled"], spare["rollback_streak"]) == (True, 3)
            assert await fail(session, 2, "spare") == 2
            await daemon.pass_time(1)
            assert [line["queue"] for line in told(daemon, QUEUE_DISABLED)] == ["shop", "spare"]
            for queue in ("shop", "spare"):
                await session.alter("queue", queue, status="on")  # begins anew (PSN-4)
                assert (await row(session, queue))["rollback_streak"] == 0
                assert await fail(session, 4, queue) == 4
                assert (await row(session, queue))["is_receive_enabled"]

    play(scenario, tmp_path)


@pytest.mark.rule("PSN-2")
def test_both_queues_of_a_transaction_that_fails_five_times_are_switched_off(
    tmp_path: Path,
) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await send(session)
            to_spare = await session.begin_dialog("urn:desk", "urn:spare", "talk")
            await session.send(to_spare, b"x", "Ask")
            for _ in range(5):
                tx = session.transaction()
                for queue in ("spare", "shop"):
                    assert await tx.receive(queue, 1)
                tx.rollback()
            await daemon.pass_time(1)
            for queue in ("spare", "shop"):
                now = await row(session, queue)
                assert (now["is_receive_enabled"], now["culprit_rollbacks"]) == (False, 5)

    play(scenario, tmp_path)


@pytest.mark.rule("PSN-7")
def test_a_waiting_receive_learns_that_the_queue_is_off(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session, await daemon.session() as other:
            await send(session)
            assert await fail(session, 4) == 4
            last = session.transaction()
            (message,) = await last.receive("shop", 1)
            waits = other.transaction()
            asked = daemon.loop.create_task(waits.receive("shop", group=message.group_id, wait=600))
            await daemon.pass_time(1)
            assert not asked.done()
            await session.alter("queue", "shop", poison_threshold=1)
            other_one = await session.begin_dialog("urn:desk", "urn:shop", "talk")
            await session.send(other_one, b"bad", "Ask")
            assert await fail(session) == 1  # one of another group
            with pytest.raises(QueueDisabled):
                await asked
            last.rollback()

    play(scenario, tmp_path)


@pytest.mark.rule("PSN-3")
@pytest.mark.rule("PSN-4")
@pytest.mark.rule("PSN-5")
@pytest.mark.rule("PSN-6")
@pytest.mark.rule("PSN-12")
def test_what_counts_and_what_does_not(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            first = await send(session)
            assert await fail(session, 4) == 4
            async with session.transaction() as tx:  # a commit that received: anew (PSN-4)
                assert await tx.receive("shop", 1)
            assert (await row(session))["rollback_streak"] == 0
            await send(session)
            assert await fail(session, 3) == 3
            assert (await row(session, "desk"))["rollback_streak"] == 0  # per queue (PSN-3)
            await fail(session, 9, queue="spare")  # received nothing (PSN-5)
            assert (await row(session, "spare"))["rollback_streak"] == 0
            for _ in range(9):  # to look only (PSN-12)
                async with session.transaction(inspect=True) as tx:
                    assert await tx.receive("shop", 1)
            for _ in range(9):
                tx = session.transaction()
                assert await tx.receive("shop", 1)
                tx.rollback(counts=False)
            assert (await row(session))["rollback_streak"] == 3
            async with session.transaction() as tx:  # a savepoint is no rollback (PSN-6)
                for _ in range(9):
                    async with tx.savepoint() as savepoint:
                        assert await tx.receive("shop", 1)
                        await savepoint.undo()
                assert await tx.receive("shop", 1)
            assert (await row(session))["rollback_streak"] == 0
            assert first

    play(scenario, tmp_path)


@pytest.mark.rule("PSN-8")
def test_without_poison_handling_nothing_is_counted(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await session.alter("queue", "shop", poison_handling="off")
            await send(session)
            assert await fail(session, 30) == 30
            await daemon.pass_time(60)
            now = await row(session)
            assert (now["is_receive_enabled"], now["rollback_streak"]) == (True, 0)
            assert not told(daemon, QUEUE_DISABLED)

    play(scenario, tmp_path)


@pytest.mark.rule("PSN-9")
@pytest.mark.rule("PSN-10")
def test_it_stays_off_with_its_messages_until_somebody_switches_it_on(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            handle = await send(session, b"one")
            assert await fail(session, 5) == 5
            await daemon.pass_time(600)
            await session.send(handle, b"two", "Ask")  # waits at the sender (SND-18)
        await daemon.restart()  # which applies the declaration anew
        async with await daemon.session() as session:
            now = await row(session)
            assert (now["is_receive_enabled"], now["status_reason"]) == (False, "poison")
            assert now["last_error"] == BOOM
            await session.alter("queue", "shop", status="on")
            assert (await row(session))["status_reason"] == "manual"
            await daemon.pass_time(60)
            assert await take(session) == [b"one", b"two"]

    play(scenario, tmp_path)


@pytest.mark.rule("PSN-11")
@pytest.mark.rule("PSN-13")
def test_a_queue_is_cured_by_ending_the_culprit(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            bad = await send(session, b"bad")
            await send(session, b"good")
            async with session.transaction() as tx:
                (message,) = await tx.receive("desk", 1, wait=0) or (None,)
                assert message is None
            assert await fail(session, 5) == 5
            await daemon.pass_time(1)
            with pytest.raises(InvalidState, match="not off for a poison message"):
                await session.admin.cure_queue("spare", 7, "gone")
            assert await session.admin.cure_queue("shop", 7, "it was bad")
            assert (await row(session))["is_receive_enabled"]
            assert await take(session) == [b"good"]
            assert await take(session) == []
            (error,) = await session.receive("desk", autocommit=True, wait=5)
            assert error.handle == bad
            assert error.error is not None
            assert (error.error.number, error.error.description) == (7, "it was bad")

    play(scenario, tmp_path)


# What is nobody's fault.


@pytest.mark.rule("PBT-10")
def test_connections_that_are_cut_are_tallied_apart(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await send(session)
            now: dict[str, Any] = {}
            for number in range(1, 21):
                cut = await daemon.session()
                assert await cut.transaction().receive("shop", 1)
                await cut.close()
                await daemon.pass_time(1)
                now = await row(session)
                assert now["rollback_streak"] == 0
                assert now["is_receive_enabled"] == (number < 20)
            assert now["status_reason"] == "disconnects"
            (line,) = told(daemon, QUEUE_DISABLED)
            assert (line["reason"], line["rollbacks"]) == ("disconnects", 20)

    play(scenario, tmp_path)


@pytest.mark.rule("PBT-10", "PBT-3")
def test_connections_that_are_cut_park_the_group_in_the_end(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await session.alter("queue", "shop", poison_mode="park", poison_disconnects=3)
            await send(session)
            group: dict[str, Any] = {}
            for number in range(1, 4):
                cut = await daemon.session()
                assert await cut.transaction().receive("shop", 1)
                await cut.close()
                await daemon.pass_time(1)
                (group,) = await session.view("parked_groups")
                assert (group["disconnects"], group["rollback_streak"]) == (number, 0)
                assert group["state"] == ("parked" if number == 3 else "counted")
            assert group["park_reason"] == "3 connections cut in the middle"
            assert (await row(session))["is_receive_enabled"]
            assert await take(session) == []

    play(scenario, tmp_path)


@pytest.mark.rule("PBT-10", "GRP-12")
def test_a_hundred_deadlocks_never_count(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await send(session)
            handles = [await session.begin_dialog("urn:desk", "urn:spare") for _ in range(2)]
            groups = [live_of(daemon, one).endpoint.group_id for one in handles]
            for _ in range(100):
                async with session.transaction() as old:
                    await old.state(groups[0], take_lock=True)
                    young = session.transaction()
                    assert await young.receive("shop", 1)
                    await young.state(groups[1], take_lock=True)
                    closes = asyncio.ensure_future(old.state(groups[1], take_lock=True))
                    await daemon.pass_time(0.1)
                    with pytest.raises(DeadlockVictim):
                        await young.state(groups[0], take_lock=True)
                    await closes
                    with pytest.raises(DeadlockVictim):
                        await young.commit()
            now = await row(session)
            assert (now["rollback_streak"], now["is_receive_enabled"]) == (0, True)
            assert now["ready_count"] == 1

    play(scenario, tmp_path)


@pytest.mark.rule("PBT-10")
@pytest.mark.parametrize("mode", ["disable_queue", "park"])
@pytest.mark.parametrize("how", ["cancelled", "cut by a stop", "failed in a stop"])
def test_programs_and_daemons_that_are_told_to_stop_never_count(
    tmp_path: Path, mode: str, how: str
) -> None:
    async def scenario(daemon: Daemon) -> None:
        daemon.objects = with_queue(poison_mode=mode, poison_threshold=1, poison_disconnects=1)
        failing = asyncio.Event()

        async def hold(session: Session) -> None:
            async with session.transaction() as tx:
                assert await tx.receive("shop", 1)
                await failing.wait()
                raise ValueError("it cannot be done")

        async with await daemon.session() as session:
            await session.apply(daemon.objects)
            await send(session, b"kept")
            holds = daemon.loop.create_task(hold(session))
            await daemon.pass_time(1)
            if how != "cancelled":
                restarts = daemon.loop.create_task(daemon.restart())
                await daemon.pass_time(0.1)
                if how == "failed in a stop":
                    failing.set()
                await restarts
            holds.cancel()  # as asyncio.run does at Control-C
            await asyncio.wait([holds])
        async with await daemon.session() as session:
            now = await row(session)
            assert (now["is_receive_enabled"], now["ready_count"]) == (True, 1)
            assert now["rollback_streak"] == 0
            assert await session.view("parked_groups") == []
            assert not told(daemon, QUEUE_DISABLED)
            assert await take(session) == [b"kept"]

    play(scenario, tmp_path)


@pytest.mark.rule("PBT-10", "REL-26")
@pytest.mark.parametrize("kind", [StoreFull, Busy])
def test_want_of_room_never_counts(tmp_path: Path, kind: type[BrokerError]) -> None:
    async def scenario(daemon: Daemon) -> None:
        sessions = daemon.instance.parts.sessions
        sessions.options = msgspec.structs.replace(sessions.options, waiting=0)
        async with await daemon.session() as session:
            await send(session)
            tx = session.transaction()
            (got,) = await tx.receive("shop", 1)
            if kind is StoreFull:
                daemon.broker.is_full = True
                await tx.send(got.handle, b"x", "Answer")
                with pytest.raises(StoreFull):
                    await tx.commit()
            else:
                with pytest.raises(Busy):
                    await tx.receive("spare", wait=5)
                with pytest.raises(Busy):
                    await tx.commit()
            assert (await row(session))["rollback_streak"] == 0
            daemon.broker.is_full = False

    play(scenario, tmp_path)


@pytest.mark.rule("PBT-10")
@pytest.mark.rule("PBT-18")
def test_locks_and_limits_of_others_never_count(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session, await daemon.session() as other:
            await send(session)
            blocked = await session.begin_dialog("urn:desk", "urn:spare", "talk")
            holder = other.transaction()
            await holder.send(blocked, b"x", "Ask")
            await holder.get_group("spare")  # now it is open at the daemon
            tx = session.transaction()
            assert await tx.receive("shop", 1)
            await tx.send(blocked, b"y", "Ask")
            with pytest.raises(LockTimeout):
                await tx.commit()
            assert (await row(session))["rollback_streak"] == 0
            holder.rollback()
            old = session.transaction()  # held for too long: rolled back, and not counted
            assert await old.receive("shop", 1)
            await daemon.pass_time(700)
            assert (await row(session))["rollback_streak"] == 0
            assert (await row(session))["ready_count"] == 1

    play(scenario, tmp_path)


@pytest.mark.rule("PBT-10", "PSN-16")
def test_a_failure_that_the_program_names_is_not_counted_though_the_daemon_learns_it_first(
    tmp_path: Path,
) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            handle = await send(session)
            for named, streak in (((InvalidState,), 0), ((), 1)):
                tx = session.transaction()
                tx.not_counted = named
                (message,) = await tx.receive("shop", 1)
                await tx.end(message.handle)
                await tx.send(message.handle, b"y", "Answer")
                with pytest.raises(InvalidState):
                    await tx.commit()
                assert (await row(session))["rollback_streak"] == streak
            await session.end(handle)

    play(scenario, tmp_path)


@pytest.mark.rule("PBT-11")
def test_switching_it_off_waits_for_nobody(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session, await daemon.session() as holder:
            kept = await send(session, b"kept")
            await send(session, b"bad")
            open_one = holder.transaction()
            assert await open_one.receive("shop", 1)
            assert await fail(session, 5) == 5
            began = daemon.loop.time()
            for _ in range(10):
                await session.send(kept, b"more", "Ask")
            assert daemon.loop.time() - began < 0.1
            assert not (await row(session))["is_enqueue_enabled"]
            assert daemon.loop.time() - began < 0.1
            await open_one.commit()

    play(scenario, tmp_path)


# Parking.


@pytest.mark.rule("REL-19", "PBT-3")
def test_a_poison_group_leaves_the_others_their_rate(tmp_path: Path) -> None:
    """Four readers, ten milliseconds a message, a hundred groups, of which one may be bad."""

    async def seconds(daemon: Daemon, *, bad: bool) -> float:
        async with await daemon.session() as session:
            await session.alter("queue", "shop", poison_mode="park")
            handles = [await send(session, b"bad" if bad and not at else b"0") for at in range(100)]
            for handle in handles[1:]:
                for _ in range(4):
                    await session.send(handle, b"more", "Ask")
            began, left = daemon.loop.time(), 99 * 5 + (not bad)

            async def read() -> None:
                nonlocal left
                while left > 0:
                    tx = session.transaction()
                    found = await tx.receive("shop", 1, wait=0.01)
                    await daemon.pass_time(0.01 * len(found))
                    if found and found[0].body == b"bad":
                        await tx.__aexit__(ValueError, ValueError("it cannot be done"), None)
                    else:
                        left -= len(found)
                        await tx.commit()

            await asyncio.gather(*(read() for _ in range(4)))
            return daemon.loop.time() - began

    async def scenario(daemon: Daemon) -> None:
        alone = await seconds(daemon, bad=False)
        assert await seconds(daemon, bad=True) <= alone / 0.9

    play(scenario, tmp_path)


@pytest.mark.rule("PBT-3", "PSN-13")
@pytest.mark.rule("PSN-14")
@pytest.mark.rule("RCV-34")
def test_only_the_poison_group_is_parked(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await session.alter("queue", "shop", poison_mode="park")
            bad = await send(session, b"bad")
            ((bad_group, bad_handle),) = {
                (one["conversation_group_id"], one["conversation_handle"])
                for one in await session.view("conversation_endpoints")
                if not one["is_initiator"]
            }
            began, times = daemon.loop.time(), []
            healthy = [b"%d" % number for number in range(100)]
            for body in healthy:
                await send(session, body)
            done: list[bytes | None] = []
            while daemon.loop.time() - began < 400:
                tx = session.transaction()
                found = await tx.receive("shop", 1, wait=1)
                if found and found[0].body == b"bad":
                    times.append(round(daemon.loop.time() - began))
                    await tx.__aexit__(ValueError, ValueError("it cannot be done"), None)
                else:
                    done += [one.body for one in found]
                    await tx.commit()
            assert sorted(done) == sorted(healthy)  # type: ignore[type-var]
            assert times == [0, 1, 3, 7, 15, 31, 63, 127]
            now = await row(session)
            assert (now["is_receive_enabled"], now["ready_count"], now["parked_count"]) == (
                True,
                0,
                1,
            )
            (parked,) = await session.view("parked_groups")
            assert parked["state"] == "parked"
            assert parked["conversation_group_id"] == bad_group
            assert (parked["rollback_streak"], parked["messages"]) == (8, 1)
            assert (parked["park_reason"], parked["last_error"]) == ("8 rollbacks in a row", BOOM)
            (line,) = [one for one in told(daemon, PARKING) if one["subclass"] == "parked"]
            assert line["group_id"] == bad_group
            status = msgspec.convert(await session.status(), InstanceStatus, strict=False)
            (worry,) = concerns(status)
            assert worry.endswith("1 group is parked; brokerd group ls --parked")
            await session.send(bad, b"later", "Ask")
            now = await row(session)
            assert (now["ready_count"], now["parked_count"]) == (0, 2)
            assert now["oldest_ready_at"] is None
            assert await take(session) == []
            assert await take(session, group=parse(bad_group)) == []
            assert await take(session, conversation=parse(bad_handle)) == []
            async with session.transaction() as tx:
                assert await tx.get_group("shop") is None

    play(scenario, tmp_path)


@pytest.mark.rule("PBT-3")
def test_nobody_receives_of_a_group_that_is_being_discarded(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        daemon.objects = with_queue(poison_mode="park", poison_threshold=1)
        async with await daemon.session() as session, await daemon.session() as reader:
            await session.apply(daemon.objects)
            bad = await send(session, b"bad")
            for _ in range(9):
                await session.send(bad, b"." * 300, "Ask")
            assert await fail(session) == 1
            (parked,) = await session.view("parked_groups")
            group = bytes.fromhex(parked["conversation_group_id"].replace("-", ""))
            waits = asyncio.create_task(take(reader, wait=5))
            await daemon.pass_time(1)
            assert await session.admin.discard_group(group, "no good", everything=True) == 10
            assert await waits == []
            now = await row(session)
            assert (now["ready_count"], now["parked_count"]) == (0, 0)
            await session.send(bad, b"good", "Ask")
            assert await take(session) == [b"good"]

    play(scenario, tmp_path, max_bytes=1000, max_message=500)  # of what one receive takes


@pytest.mark.rule("PBT-10", "CLP-112")
def test_what_was_undone_with_a_savepoint_excuses_nothing(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session, await daemon.session() as other:
            taken = await session.begin_dialog("urn:desk", "urn:shop", "talk")
            group = live_of(daemon, taken).endpoint.group_id
            async with other.transaction() as holds:
                await holds.state(group, take_lock=True)
                await send(session, b"bad")
                tx = session.transaction()
                await tx.__aenter__()
                await tx.receive("shop", 1)
                with pytest.raises(LockTimeout):
                    async with tx.savepoint():
                        await tx.state(group, take_lock=True)
                await tx.__aexit__(ValueError, ValueError("it cannot be done"), None)
                assert (await row(session))["rollback_streak"] == 1

    play(scenario, tmp_path)


@pytest.mark.rule("PBT-3", "RCV-34")
def test_what_lies_behind_more_parked_groups_than_memory_holds_is_received(tmp_path: Path) -> None:
    tiny = WindowOptions(window_messages=3, window_bytes=4000, page_messages=2, locked_factor=1)

    async def scenario(daemon: Daemon) -> None:
        daemon.objects = with_queue(poison_mode="park", poison_threshold=1)
        async with await daemon.session() as session:
            await session.apply(daemon.objects)
            for number in range(9):
                await send(session, b"bad %d" % number)
                assert await fail(session) == 1
            healthy = [b"%d" % number for number in range(9)]
            for body in healthy:
                await send(session, body)
            assert [one for _ in healthy for one in await take(session)] == healthy
            assert (await row(session))["parked_count"] == 9
        await daemon.restart()
        async with await daemon.session() as session:
            await send(session, b"after a restart")
            assert await take(session) == [b"after a restart"]

    play(scenario, tmp_path, window=tiny)


@pytest.mark.rule("MAN-12", "PSN-3")
def test_the_streak_of_a_queue_begins_anew_with_a_restart(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        for _ in range(2):
            async with await daemon.session() as session:
                if not (await row(session))["ready_count"]:
                    await send(session, b"bad")
                assert (await row(session))["rollback_streak"] == 0
                assert await fail(session, 4) == 4
                now = await row(session)
                assert (now["rollback_streak"], now["is_receive_enabled"]) == (4, True)
            await daemon.restart()

    play(scenario, tmp_path)


@pytest.mark.rule("PBT-3", "MAN-12")
@pytest.mark.rule("PSN-17")
def test_attempts_and_waits_survive_a_restart(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        daemon.objects = with_queue(poison_mode="park", poison_threshold=3)
        async with await daemon.session() as session:
            await session.apply(daemon.objects)
            await send(session, b"bad")
            assert await fail(session) == 1
            await daemon.pass_time(1.1)
            assert await fail(session) == 1
            assert await take(session) == []
        await daemon.restart()
        async with await daemon.session() as session:
            assert await take(session) == []  # the wait of two seconds goes on
            now = await row(session)
            assert (now["ready_count"], now["parked_count"]) == (0, 1)
            await daemon.pass_time(2.1)
            now = await row(session)
            assert (now["ready_count"], now["parked_count"]) == (1, 0)
            assert await fail(session) == 1
            assert (await session.view("parked_groups"))[0]["state"] == "parked"
        await daemon.restart()
        async with await daemon.session() as session:
            await daemon.pass_time(1000)
            assert await take(session) == []
            (parked,) = await session.view("parked_groups")
            assert (parked["rollback_streak"], parked["last_error"]) == (3, BOOM)
            group = bytes.fromhex(parked["conversation_group_id"].replace("-", ""))
            await session.admin.release_group(group, "mended")
            assert await take(session) == [b"bad"]
            assert await session.view("parked_groups") == []

    play(scenario, tmp_path)


@pytest.mark.rule("PSN-14")
@pytest.mark.rule("PBT-3")
def test_an_outage_of_two_minutes_parks_nothing(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await session.alter("queue", "shop", poison_mode="park")
            for number in range(20):
                await send(session, b"%d" % number)
            over, done = daemon.loop.time() + 120, 0
            while done < 20:
                with suppress(ConnectionError):
                    async with session.transaction() as tx:
                        got = len(await tx.receive("shop", 1, wait=300))
                        if daemon.loop.time() < over:
                            raise ConnectionError("the database is away")
                        done += got
            assert await session.view("parked_groups") == []
            assert not told(daemon, QUEUE_DISABLED)
            assert daemon.loop.time() - over < 10

    play(scenario, tmp_path)


@pytest.mark.rule("PSN-17")
@pytest.mark.parametrize("mode", ["disable_queue", "park"])
def test_retry_and_park_as_outcomes(tmp_path: Path, mode: str) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await session.alter("queue", "shop", poison_mode=mode)
            await send(session, b"later")
            for _ in range(9):  # nobody's fault: it may go on for ever
                tx = session.transaction()
                assert await tx.receive("shop", 1)
                tx.rollback(Retry(30, counts=False))
                assert await take(session) == []
                (held,) = await session.view("parked_groups")
                assert (held["state"], held["rollback_streak"]) == ("waiting", 0)
                await daemon.pass_time(29)
                assert await take(session) == []
                await daemon.pass_time(1.1)
            assert await session.view("parked_groups") == []
            with pytest.raises(Retry):
                await leave(session, Retry(30))
            now = await row(session)
            streaks = {one["rollback_streak"] for one in await session.view("parked_groups")}
            assert (now["rollback_streak"], streaks) == ((1, {0}) if mode != "park" else (0, {1}))
            await daemon.pass_time(31)
            with pytest.raises(Park):
                await leave(session, Park("ask Ann"))
            (held,) = await session.view("parked_groups")
            assert (held["state"], held["park_reason"]) == ("parked", "ask Ann")
            await daemon.pass_time(10_000)
            assert await take(session) == []

    play(scenario, tmp_path)


@pytest.mark.rule("PSN-17")
@pytest.mark.parametrize("mode", ["disable_queue", "park"])
@pytest.mark.parametrize("outcome", [Retry(30), Retry(30, counts=False), Park("ask Ann")])
def test_what_a_handler_answered_survives_a_restart(
    tmp_path: Path, mode: str, outcome: Retry | Park
) -> None:
    async def scenario(daemon: Daemon) -> None:
        daemon.objects = with_queue(poison_mode=mode)
        async with await daemon.session() as session:
            await session.apply(daemon.objects)
            await send(session, b"later")
            with pytest.raises(type(outcome)):
                await leave(session, outcome)
            assert await take(session) == []
        await daemon.restart()
        async with await daemon.session() as session:
            await daemon.pass_time(20)
            assert await take(session) == []
            asked = daemon.loop.create_task(take(session, wait=60))
            await daemon.pass_time(11)
            is_parked = isinstance(outcome, Park)
            assert asked.done() is not is_parked
            assert await asked == ([] if is_parked else [b"later"])

    play(scenario, tmp_path)


async def park(session: Session, count: int = 3) -> tuple[bytes, bytes]:
    """A parked group of so many messages: handle of its dialog, group id."""
    handle = await send(session, b"0")
    for number in range(1, count):
        await session.send(handle, b"%d" % number, "Ask")
    tx = session.transaction()
    await tx.receive("shop", 1)
    tx.rollback(Park("by hand"))
    await session.status()
    (held,) = [one for one in await session.view("parked_groups") if one["state"] == "parked"]
    assert held["messages"] == count
    return handle, bytes.fromhex(held["conversation_group_id"].replace("-", ""))


@pytest.mark.rule("RCV-34", "RCV-20", "PBT-3")
@pytest.mark.parametrize("selector", ["none", "group", "conversation"])
def test_a_release_wakes_who_waits(tmp_path: Path, selector: str) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session, await daemon.session() as reader:
            _, group = await park(session, 1)
            async with session.transaction(inspect=True) as tx:
                assert await tx.get_group("shop") is None
            (target,) = [one for one in daemon.broker.endpoints.all() if one.group.held]
            selectors: dict[str, dict[str, Any]] = {
                "none": {},
                "group": {"group": group},
                "conversation": {"conversation": target.endpoint.handle},
            }
            asked = daemon.loop.create_task(take(reader, wait=600, **selectors[selector]))
            await daemon.pass_time(60)
            assert not asked.done()
            await session.admin.release_group(group)
            await daemon.pass_time(0.1)
            assert asked.done()
            assert await asked == [b"0"]

    play(scenario, tmp_path)


@pytest.mark.rule("VIEW-14", "VIEW-2")
def test_the_values_of_every_column_of_a_group_that_is_held(tmp_path: Path) -> None:
    """Counted, waiting for its next attempt, and parked."""

    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            handle = await send(session, b"bad")
            live = live_of(daemon, handle).peer
            assert live is not None
            group, message = live.group.group_id, live.ready[0].message_id
            conversation = live.endpoint.conversation_id

            async def seen() -> tuple[dict[str, Any], dict[str, Any]]:
                (held,) = await session.view("parked_groups")
                where = {"conversation_group_id": show(group)}
                (whole,) = await session.view("conversation_groups", where=where)
                return dict(held), dict(whole)

            async def expect(state: str, streak: int, **said: Any) -> None:
                usual = {"retry_at": None, "parked_at": None, "park_reason": None}
                both = {"conversation_group_id": show(group), "rollback_streak": streak}
                both |= usual | {key: said[key] for key in usual if key in said}
                held, whole = await seen()
                assert held == both | {
                    "queue": "shop",
                    "state": state,
                    "disconnects": 0,
                    "last_error": said["last_error"],
                    "messages": None if state == "counted" else 1,
                    "culprit_conversation_id": show(conversation),
                    "culprit_message_id": show(message),
                }
                assert whole == both | {
                    "service_id": "urn:shop",
                    "is_system": False,
                    "locked_by_session": None,
                    "locked_since": None,
                    "ready_messages": 1 if state == "counted" else 0,
                    "effective_priority": 5,
                }

            await session.alter(
                "queue", "shop", poison_mode="park", poison_threshold=3, poison_backoff="10s"
            )
            assert await fail(session) == 1
            held, _ = await seen()
            retry_at = held["retry_at"]
            assert retry_at == pytest.approx(daemon.clock.utc() + 10_000_000, abs=100_000)
            await expect("waiting", 1, last_error=BOOM, retry_at=retry_at)
            await daemon.pass_time(11)
            await expect("counted", 1, last_error=BOOM)
            tx = session.transaction()
            assert await tx.receive("shop", 1)
            tx.rollback(Park("by hand"))
            await session.status()
            held, _ = await seen()
            assert held["parked_at"] == pytest.approx(daemon.clock.utc(), abs=100_000)
            said = {name: held[name] for name in ("parked_at", "last_error", "retry_at")}
            await expect("parked", held["rollback_streak"], park_reason="by hand", **said)

    play(scenario, tmp_path)


@pytest.mark.rule("CLP-117")
def test_discard_and_edit_are_about_the_message_that_was_seen(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session, await daemon.session() as other:
            _, group = await park(session)
            (held,) = await session.view("parked_groups", where={"state": "parked"})
            seen = parse(held["culprit_message_id"])
            wrong = bytes([seen[0] ^ 1]) + seen[1:]
            for asked in (
                session.admin.discard_group(group, message=wrong),
                session.admin.discard_group(group, everything=True, message=wrong),
                session.admin.edit_group(group, b"mended", message=wrong),
            ):
                with pytest.raises(InvalidState, match=f"held for message {show(seen)}"):
                    await asked
            assert [m.body async for m in session.browse("shop")] == [b"0", b"1", b"2"]
            # Two administrators discard the same message at the same time.
            done = await asyncio.gather(
                session.admin.discard_group(group, message=seen),
                other.admin.discard_group(group, message=seen),
                return_exceptions=True,
            )
            assert sorted(isinstance(one, GroupNotFound | InvalidState) for one in done) == [0, 1]
            assert await take(session) == [b"1", b"2"]
            _, group = await park(session)
            (held,) = await session.view("parked_groups", where={"state": "parked"})
            seen = parse(held["culprit_message_id"])
            await session.admin.edit_group(group, b"mended", message=seen)
            assert await take(session) == [b"mended", b"1", b"2"]
            _, group = await park(session)
            (held,) = await session.view("parked_groups", where={"state": "parked"})
            seen = parse(held["culprit_message_id"])
            assert await session.admin.discard_group(group, everything=True, message=seen) == 3

    play(scenario, tmp_path)


@pytest.mark.rule("VIEW-14")
@pytest.mark.rule("CLP-117")
@pytest.mark.rule("CLP-116")
@pytest.mark.rule("PBT-3")
def test_release_discard_end_and_edit(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            _, group = await park(session)
            assert await session.admin.discard_group(group, "it is bad") == 1
            assert await take(session) == [b"1", b"2"]
            handle, group = await park(session)
            assert await session.admin.end_group(group, 9, "we cannot") == 1
            assert await take(session) == []
            (error,) = await session.receive("desk", autocommit=True, wait=5)
            assert (error.handle, error.is_error) == (handle, True)
            _, group = await park(session)
            await session.admin.edit_group(group, b"mended", "a typing error")
            assert await take(session) == [b"mended", b"1", b"2"]
            _, group = await park(session)
            assert await session.admin.discard_group(group, everything=True) == 3
            assert await take(session) == []
            now = await row(session)
            assert (now["ready_count"], now["parked_count"]) == (0, 0)
            sent = await send(session, b"waits, and is not held")
            (free,) = [
                one
                for one in await session.view("conversation_endpoints")
                if one["state"] == "CO" and one["conversation_handle"] == show(sent)
            ]
            for not_held in (group, parse(free["conversation_group_id"])):
                for asked in (
                    session.admin.release_group(not_held),
                    session.admin.discard_group(not_held),
                    session.admin.end_group(not_held, 9, "no"),
                    session.admin.edit_group(not_held, b"no"),
                ):
                    with pytest.raises(GroupNotFound, match="is parked or waits for its next"):
                        await asked
            assert await take(session) == [b"waits, and is not held"]
            said = [one["subclass"] for one in told(daemon, PARKING)]
            assert [one for one in said if one != "parked"] == [
                "discarded",
                "ended",
                "edited",
                "discarded",
            ]
        await daemon.restart()
        async with await daemon.session() as session:
            assert await session.view("parked_groups") == []

    play(scenario, tmp_path)


@pytest.mark.rule("PBT-3", "CLP-117")
def test_an_edited_body_is_one_that_readers_can_take(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await session.alter("queue", "shop", poison_mode="park", poison_threshold=1)
            for body in (b'{"sku":"A1"}', b"[1]"):
                await send(session, body)
                assert await fail(session) == 1
                (parked,) = await session.view("parked_groups", where={"state": "parked"})
                group = parse(parked["conversation_group_id"])
                for other in (b"nonsense", b'{"sku"', None, b"7"):
                    with pytest.raises(ValidationFailed, match="is JSON, and the new one is not"):
                        await session.admin.edit_group(group, other)
                assert [m.body async for m in session.browse("shop")] == [body]
                edited = await session.admin.edit_group(group, b'{"sku":"B2"}')
                assert (edited.message_type, edited.validation) == ("Ask", "none")
                assert not edited.is_checked
                assert await take(session) == [b'{"sku":"B2"}']
            await session.alter("message_type", "Ask", validation="well_formed_json")
            await send(session, b'{"sku":"A1"}')
            await fail(session)
            (parked,) = await session.view("parked_groups", where={"state": "parked"})
            group = parse(parked["conversation_group_id"])
            with pytest.raises(ValidationFailed, match=r"nothing was changed: .* not JSON"):
                await session.admin.edit_group(group, b"nonsense", as_it_is=True)
            await session.alter("message_type", "Ask", validation="none")
            await session.admin.edit_group(group, b"nonsense", as_it_is=True)
            assert await take(session) == [b"nonsense"]

    play(scenario, tmp_path)


@pytest.mark.rule("PBT-3")
def test_an_edited_body_is_stored(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            _, group = await park(session, 1)
            await session.admin.edit_group(group, b"mended")
        await daemon.restart()
        async with await daemon.session() as session:
            assert await take(session) == [b"mended"]

    play(scenario, tmp_path)


@pytest.mark.rule("PBT-20", "RCV-34", "GRP-18")
@pytest.mark.parametrize("into", [True, False])
@pytest.mark.parametrize("restart", [True, False])
def test_messages_are_parked_and_freed_as_their_conversation_is_moved(
    tmp_path: Path, into: bool, restart: bool
) -> None:
    """After a start nobody has counted them yet."""

    async def scenario(daemon: Daemon) -> None:
        session = await daemon.session()
        first = await send(session)
        second = await send(session, related_conversation=first)
        third = await send(session)
        home = live_of(daemon, third).endpoint.group_id
        far = [one for _ in range(3) for one in await session.receive("shop", autocommit=True)]
        for number in range(5):
            for one in far:
                await session.send(one.handle, b"%d" % number, "Answer")
        tx = session.transaction()
        (got,) = await tx.receive("desk", 1, conversation=first)
        tx.rollback(Park("by hand"))
        now = await row(session, "desk")
        assert (now["ready_count"], now["parked_count"]) == (5, 10)
        if restart:
            await session.close()
            await daemon.restart()
            session = await daemon.session()
        if into:
            await session.move(third, got.group_id)
        else:
            await session.move(second, home)
        now = await row(session, "desk")
        ready, parked = (0, 15) if into else (10, 5)
        assert (now["ready_count"], now["parked_count"]) == (ready, parked)
        assert len(await take(session, "desk")) == ready
        await session.admin.release_group(got.group_id)
        assert len(await take(session, "desk")) == parked
        now = await row(session, "desk")
        assert (now["ready_count"], now["parked_count"]) == (0, 0)
        await session.close()

    play(scenario, tmp_path)


@pytest.mark.rule("PBT-3")
@pytest.mark.rule("PBT-20")
def test_a_parked_group_that_is_longer_than_the_window(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            handle, group = await park(session, 40)
            await send(session, b"other")
            now = await row(session)
            assert (now["ready_count"], now["parked_count"]) == (1, 40)
            assert await take(session) == [b"other"]
            await session.send(handle, b"40", "Ask")
            assert (await row(session))["parked_count"] == 41
            await session.admin.release_group(group)
            assert (await row(session))["ready_count"] == 41
            assert await take(session) == [b"%d" % number for number in range(41)]
        await daemon.restart()

    window = WindowOptions(window_messages=16, page_messages=8)
    play(scenario, tmp_path, window=window)


@pytest.mark.rule("PBT-3")
def test_what_ends_is_held_no_longer(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            handle, _ = await park(session)
            (target,) = [
                one
                for one in await session.view("conversation_endpoints")
                if not one["is_initiator"]
            ]
            await session.end(handle)
            await session.end(bytes.fromhex(target["conversation_handle"].replace("-", "")))
            await daemon.pass_time(1)
            assert await session.view("parked_groups") == []
            now = await row(session)
            assert (now["ready_count"], now["parked_count"]) == (0, 0)

    play(scenario, tmp_path)
