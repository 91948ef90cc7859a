"""Large bodies: stored in pieces before their messages, and as good as any other (REL-33)."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from brokerd.client.session import Session
from tests.integration.checking.typed_bodies import Ends, both_ways, objects
from tests.integration.one_daemon import Daemon, play, rows

LARGE = 2048
BODY = b"0123456789abcdef" * 700
ROUTE = [{"name": "Any"}]


async def pieces(daemon: Daemon, broker: str = "main") -> int:
    """Pieces in the file once what belongs to nobody was swept."""
    store = daemon.instance.brokers[broker].store
    for _ in range(10):
        await store.run(lambda _connection: None)
    count: int = await store.run(
        lambda at: at.execute("SELECT count(*) FROM body_pieces").fetchone()[0]
    )
    return count


async def received(ends: Ends, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < count:
        found += [one.body for one in await ends.at_there()]
    return found


async def nothing_is_left(ends: Ends) -> None:
    """No broker has a piece, as soon as the last acknowledgements have come."""
    clock = ends.daemon.clock
    await clock.sleep_until(clock.monotonic() + 2.0)
    for name in ends.daemon.instance.brokers:
        assert await pieces(ends.daemon, name) == 0


@pytest.mark.rule("REL-33", "REL-8", "REL-10", "SND-14")
@both_ways
async def test_large_and_small_ones_come_whole_and_in_order(ends: Ends) -> None:
    handle = await ends.send(b"first", "Any")
    sent = [b"%d" % n + (BODY if n % 3 == 0 else b"") for n in range(12)]
    await asyncio.gather(*(ends.here.send(handle, body, "Any") for body in sent))
    assert await received(ends, 13) == [b"first", *sent]
    await nothing_is_left(ends)


@pytest.mark.rule("REL-33", "SND-3", "GRP-21")
@both_ways
async def test_what_is_rolled_back_leaves_no_body(ends: Ends) -> None:
    handle = await ends.send(b"first", "Any")
    with contextlib.suppress(RuntimeError):
        async with ends.here.transaction() as tx:
            await tx.send(handle, BODY, "Any")
            raise RuntimeError
    async with ends.here.transaction() as tx:
        await tx.send(handle, BODY + b"1", "Any")
        with contextlib.suppress(RuntimeError):
            async with tx.savepoint():
                await tx.send(handle, BODY + b"2", "Any")
                raise RuntimeError
        await tx.send(handle, BODY + b"3", "Any")
    assert await received(ends, 3) == [b"first", BODY + b"1", BODY + b"3"]
    await nothing_is_left(ends)


@pytest.mark.rule("REL-33", "SND-10")
@both_ways
async def test_one_body_on_several_dialogs(ends: Ends) -> None:
    begin = ends.here.begin_dialog
    handles: list[bytes] = [await begin("urn:here", "urn:there", "terms") for _ in range(3)]
    await ends.here.send(handles, BODY, "Any")
    assert await received(ends, 3) == [BODY] * 3
    await nothing_is_left(ends)


@pytest.mark.rule("REL-33", "DLG-18", "DLG-T10")
@both_ways
async def test_bodies_go_with_the_dialog(ends: Ends) -> None:
    handle = await ends.send(BODY, "Any")
    await ends.here.send(handle, BODY, "Any")
    (message,) = await ends.there.receive("there_q", 1, wait=30, autocommit=True)
    await ends.there.end(message.handle, error=7, description="enough")
    while not await ends.at_here():
        pass
    await ends.here.end(handle)
    await nothing_is_left(ends)


def local(test: Any, tmp_path: Path, **limits: Any) -> None:
    """Inside one broker, with the objects of the tests of bodies."""

    async def program(daemon: Daemon) -> None:
        declared = objects("main", ROUTE, "urn:here", "here_q")
        there = objects("main", ROUTE, "urn:there", "there_q")
        declared["queue"] += there["queue"]
        declared["service"] += there["service"]
        async with await daemon.session() as admin:
            await admin.apply({"broker": [declared]})
        session = await daemon.session()
        await test(daemon, session)
        await session.close()

    play(program, tmp_path, fragment_size=1024, large_body=LARGE, **limits)


@pytest.mark.rule("REL-33", "REL-7")
def test_large_messages_are_there_after_a_restart(tmp_path: Path) -> None:
    async def test(daemon: Daemon, session: Session) -> None:
        handle = await session.begin_dialog("urn:here", "urn:there", "terms")
        await session.send(handle, BODY, "Any")
        await session.send(handle, b"small", "Any")
        await session.close()
        await daemon.restart()
        again = await daemon.session()
        messages = await again.receive("there_q", wait=30, autocommit=True)
        assert [one.body for one in messages] == [BODY, b"small"]
        assert await pieces(daemon) == 0
        await again.close()

    local(test, tmp_path)


@pytest.mark.damages_stores
@pytest.mark.rule("REL-6", "REL-33")
def test_a_damaged_piece_parks_the_group(tmp_path: Path) -> None:
    async def test(daemon: Daemon, session: Session) -> None:
        for body in (BODY, b"small"):
            handle = await session.begin_dialog("urn:here", "urn:there", "terms")
            await session.send(handle, body, "Any")
        await session.close()
        await daemon.broker.store.run(
            lambda at: at.execute(
                "UPDATE body_pieces SET data = substr(data, 1, 1) WHERE piece = 2"
            )
        )
        await daemon.restart()
        again = await daemon.session()
        messages = await again.receive("there_q", wait=30, autocommit=True)
        assert [one.body for one in messages] == [b"small"]
        (row,) = await again.view("parked_groups")
        assert isinstance(row, dict)
        assert (row["park_reason"], row["messages"]) == ("damaged", 1)
        group = bytes.fromhex(row["conversation_group_id"].replace("-", ""))
        assert await again.admin.discard_group(group) == 1
        assert await pieces(daemon) == 0
        assert await rows(daemon, "queue_messages") == 0
        await again.close()

    local(test, tmp_path)
