"""What can be seen of the decisions about readers, and what must not be seen (VIEW-7, VIEW-15)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from brokerd.admin.views.columns import COLUMNS
from brokerd.client.session import Session
from brokerd.errors import AccessDenied
from brokerd.ids import ID_SIZE
from tests.integration.activation import held_readers
from tests.integration.one_daemon import Daemon, play

HANDLERS = "tests.integration.activation.held_readers"


async def activate(session: Session, handler: str = "waits", **options: Any) -> None:
    given = {"handler": f"{HANDLERS}:{handler}", "status": "on", **options}
    await session.alter("queue", "shop", activation=given)


async def ask(session: Session, groups: int) -> None:
    for _ in range(groups):
        await session.send(await session.begin_dialog("urn:desk", "urn:shop", "talk"), b"x", "Ask")


async def decided(session: Session) -> list[tuple[str, str]]:
    rows = await session.view("activation_decisions", where={"queue_id": "shop"})
    return [(row["decision"], row["text"]) for row in rows]


@pytest.mark.rule("VIEW-15", "ACT-17", "EVT-10")
def test_a_person_can_read_why_readers_were_started_and_were_not(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await activate(session, "receives_and_waits", max_readers=2)
            await ask(session, 3)
            await daemon.pass_time(12)
            enabled, first, second, limit = await decided(session)
            assert enabled == (
                "enabled",
                f"activation is on: up to 2 readers of {HANDLERS}:receives_and_waits",
            )
            assert first == (
                "started",
                "started reader 1: a message arrived and no reader was known to run, 1 group ready",
            )
            assert second == (
                "started",
                "started reader 2: 2 groups ready, 1 reader, no empty receive for 5 s",
            )
            assert limit == (
                "limit reached",
                "no further reader: 2 readers of max_readers 2, 1 group ready",
            )
            told = [fields for event, fields in daemon.log.lines if event == "broker.activation"]
            assert [one["decision"] for one in told if one["subclass"] == "started"] == [
                first[1],
                second[1],
            ]
            await session.alter("queue", "shop", status="off")
            assert (await decided(session))[-1] == (
                "disabled",
                "no further reader: the queue is off",
            )

    play(scenario, tmp_path)


@pytest.mark.rule("ACT-17", "ACT-14")
def test_load_that_is_there_all_at_once_gets_all_readers_and_not_one_more(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await activate(session, "receives_and_waits", max_readers=8, ramp_interval="1s")
            await ask(session, 64)
            seen = []
            for _ in range(40):
                await daemon.pass_time(1)
                seen.append(len(daemon.instance.parts.readers.tasks()))
            assert seen == sorted(seen)
            assert (max(seen), seen[-1]) == (8, 8)

    play(scenario, tmp_path)


@pytest.mark.rule("PBT-7")
def test_a_queue_says_how_fast_and_with_how_many_it_begins(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await ask(session, 6)
            await activate(session, max_readers=4, initial_readers=3)
            await daemon.pass_time(0.1)
            assert len(daemon.instance.parts.readers.tasks()) == 3
            await session.alter("queue", "shop", activation={"initial_readers": 4})
            await activate(session, "receives_and_waits", max_readers=4, ramp_interval="30s")
            found: list[Any] = await session.objects("queue")
            (row,) = [one for one in found if one["name"] == "shop"]
            assert row["activation"]["ramp_interval"] == "30s"
            assert row["activation"]["initial_readers"] == 4

    play(scenario, tmp_path)


@pytest.mark.rule("ACT-51", "VIEW-7")
def test_the_token_of_a_process_is_shown_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await activate(session)
            await ask(session, 1)
            await daemon.pass_time(1)
            (reader,) = daemon.instance.parts.readers._all()
            token = b"\7" * ID_SIZE
            daemon.instance.parts.readers._runner._known[token] = reader
            (row,) = await session.view("activated_tasks")
            own = row["spid"]
            reader.session_id = b""  # as of a process that has not received yet
            monkeypatch.setenv("BROKERD_READER", token.hex())
            async with await daemon.session() as child:
                await child.receive("shop", autocommit=True)
                (row,) = await session.view("activated_tasks")
                assert row["spid"] == child.client_id.hex() != own
                for name in COLUMNS:
                    assert token.hex() not in str(await session.view(name)), name
                assert token.hex() not in str(await session.status())
                assert token.hex() not in str(daemon.log.lines)

    play(scenario, tmp_path)


@pytest.mark.rule("ACT-33", "ACT-52", "CLP-12")
def test_a_reader_that_outlives_its_daemon_is_not_let_in_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(daemon: Daemon) -> None:
        own = daemon.instance.parts.readers._runner._tokens()
        elsewhere = bytes(ID_SIZE) + own[ID_SIZE:]
        for token in (own, elsewhere):
            monkeypatch.setenv("BROKERD_READER", token.hex())
            async with await daemon.session() as child:
                await child.receive("shop", autocommit=True)
        await daemon.restart()
        async with await daemon.session() as child:  # its own instance knows best
            await child.receive("shop", autocommit=True)
        monkeypatch.setenv("BROKERD_READER", own.hex())
        with pytest.raises(AccessDenied, match="ran here before"):
            await daemon.session()

    play(scenario, tmp_path)


@pytest.mark.rule("PBT-7", "ACT-25")
def test_how_long_a_reader_waits_for_more_is_told_to_its_session(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        held_readers.waits_seen.clear()
        async with await daemon.session() as session:
            await activate(session, "tells_its_wait", drain_wait="2s")
            await ask(session, 1)
            await daemon.pass_time(1)
            assert held_readers.waits_seen[0] == 2.0

    play(scenario, tmp_path)


@pytest.mark.rule("PBT-25", "CLP-118", "PBT-10")
def test_draining_ends_an_idle_reader_at_once_and_a_busy_one_after_the_grace(
    tmp_path: Path,
) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            handler = "first_is_busy"
            held_readers.seen.clear()
            await activate(session, handler, max_readers=2)
            await ask(session, 1)
            await daemon.pass_time(0.1)
            await ask(session, 1)
            await daemon.pass_time(11)  # the second has taken its message, and waits for more
            assert len(daemon.instance.parts.readers.tasks()) == 2
            waits = session.transaction()
            other = asyncio.ensure_future(waits.receive("shop", wait=600))
            began = daemon.loop.time()
            draining = asyncio.ensure_future(session.admin.drain_queue("shop", grace=20))
            await daemon.pass_time(1)
            assert len(daemon.instance.parts.readers.tasks()) == 1
            assert await other == []
            await ask(session, 1)
            done = await draining
            assert (done.ended, done.stopped, done.left, done.activation) == (1, 1, 0, "on")
            assert daemon.loop.time() - began == pytest.approx(20, abs=0.5)
            assert daemon.instance.parts.readers.tasks() == []
            await daemon.pass_time(30)
            assert daemon.instance.parts.readers.tasks() == []
            (queue,) = await session.view("service_queues", where={"name": "shop"})
            assert (queue["rollback_streak"], queue["ready_count"]) == (0, 2)
            assert (queue["is_activation_enabled"], queue["is_receive_enabled"]) == (False, True)
            assert (await decided(session))[-1] == (
                "drained",
                "drained: readers ended 1, stopped 1",
            )
            assert (await session.admin.drain_queue("shop")).activation == "off"
            assert (await session.admin.drain_queue("desk")).activation == "none"
            await session.alter("queue", "shop", activation={"status": "on"})
            await daemon.pass_time(1)
            assert len(daemon.instance.parts.readers.tasks()) == 1

    play(scenario, tmp_path)


@pytest.mark.rule("PBT-25")
def test_a_reader_that_waits_for_ever_is_let_go_and_others_wait_on(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await activate(session, "waits_for_ever")
            await ask(session, 1)
            await daemon.pass_time(1)
            other = asyncio.ensure_future(session.receive("shop", autocommit=True, wait=600))
            await daemon.pass_time(1)
            done = await session.admin.drain_queue("shop", grace=60)
            assert (done.ended, done.stopped) == (1, 0)
            await daemon.pass_time(60)
            assert not other.done()
            await ask(session, 1)
            assert len(await other) == 1

    play(scenario, tmp_path)


@pytest.mark.rule("PBT-25", "REL-28")
def test_a_reader_that_was_told_to_end_gets_nothing_more(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        held_readers.taken.clear()
        async with await daemon.session() as session:
            await ask(session, 200)
            await activate(session, "takes_all")
            await daemon.pass_time(0.3)
            done = await session.admin.drain_queue("shop", grace=60)
            assert (done.ended, done.stopped) == (1, 0)
            (queue,) = await session.view("service_queues", where={"name": "shop"})
            assert held_readers.taken
            assert queue["ready_count"] == 200 - len(held_readers.taken) > 0

    play(scenario, tmp_path)
