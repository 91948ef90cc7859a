"""Messages whose bodies are not the ones written: never served, and nothing overtakes them."""

from pathlib import Path
from typing import Any

import pytest

from brokerd.broker.queues import WindowOptions
from brokerd.client.session import Session
from brokerd.errors import InvalidArgument
from brokerd.logs import PARKING, TRANSMISSION
from brokerd.model import ERROR
from tests.integration.one_daemon import Daemon, live_of, play, rows
from tests.integration.two_brokers import EAST

SMALL = WindowOptions(window_messages=4, page_messages=4)
BAD = b"m5"


async def dialog(session: Session, to: str = "urn:shop", name: bytes = b"m") -> bytes:
    """Eight messages to a service, one after the other, so that the window is full in between."""
    handle = await session.begin_dialog("urn:desk", to, "talk")
    for number in range(8):
        await session.send(handle, b"%s%d" % (name, number), "Both")
    return handle


async def damage(daemon: Daemon, table: str = "queue_messages") -> None:
    """Let the file have another body of number 5 than was written."""
    await daemon.broker.store.run(
        lambda at: at.execute(f"UPDATE {table} SET body = x'00' WHERE body = ?", (BAD,))
    )


async def receive_all(session: Session, queue: str = "shop") -> list[bytes | None]:
    """Bodies of all that can be received."""
    found: list[bytes | None] = []
    while got := await session.receive(queue, autocommit=True):
        found += [one.body for one in got]
    return found


async def parked(session: Session) -> dict[str, Any]:
    (row,) = await session.view("parked_groups")
    return dict(row)


def group_of(row: dict[str, Any]) -> bytes:
    return bytes.fromhex(row["conversation_group_id"].replace("-", ""))


def told(daemon: Daemon, event: str, **wanted: object) -> list[dict[str, Any]]:
    found = [fields for name, fields in daemon.log.lines if name == event]
    return [one for one in found if all(one.get(k) == v for k, v in wanted.items())]


def counts(daemon: Daemon) -> tuple[int, int]:
    depth = daemon.broker.queues["shop"].depth
    return depth.ready, depth.parked


@pytest.mark.rule("REL-6", "REL-8", "REL-10", "REL-22", "BI-D3")
def test_a_damaged_message_parks_its_group_alone_until_it_is_discarded(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        session = await daemon.session()
        await dialog(session)
        await dialog(session, name=b"n")
        await damage(daemon)
        others = [b"n%d" % number for number in range(8)]
        assert await receive_all(session) == others  # m0 to m4 wait with it: one group, one order
        row = await parked(session)
        assert (row["state"], row["park_reason"], row["messages"]) == ("parked", "damaged", 8)
        assert counts(daemon) == (0, 8)
        (line,) = told(daemon, PARKING, subclass="parked")
        assert (line["reason"], line["queue"]) == ("damaged", "shop")
        assert line["message_id"] == row["culprit_message_id"]
        with pytest.raises(InvalidArgument, match="is damaged"):
            await session.admin.release_group(group_of(row))
        await session.close()
        await daemon.restart()
        session = await daemon.session()
        assert await receive_all(session) == []
        assert counts(daemon) == (0, 8)
        assert await session.admin.discard_group(group_of(row)) == 1
        assert await receive_all(session) == [b"m%d" % n for n in range(8) if n != 5]
        assert (await session.view("parked_groups"), counts(daemon)) == ([], (0, 0))
        assert await rows(daemon, "queue_messages") == 0
        await session.close()

    play(scenario, tmp_path, window=SMALL)


@pytest.mark.rule("REL-6", "CLP-117")
@pytest.mark.parametrize("verb", ["edit", "end", "discard everything", "release unread"])
def test_what_an_operator_may_do_about_it(tmp_path: Path, verb: str) -> None:
    async def scenario(daemon: Daemon) -> None:
        session = await daemon.session()
        await dialog(session)
        await damage(daemon)
        assert await receive_all(session) == []
        row = await parked(session)
        if verb == "edit":
            edited = await session.admin.edit_group(group_of(row), BAD)
            assert edited.message_id == row["culprit_message_id"]
            assert await receive_all(session) == [b"m%d" % number for number in range(8)]
        elif verb == "end":
            assert await session.admin.end_group(group_of(row), 7, "it was damaged") == 1
            assert await receive_all(session) == []
            (error,) = await session.receive("desk", autocommit=True)
            assert error.message_type == ERROR
        elif verb == "discard everything":
            assert await session.admin.discard_group(group_of(row), everything=True) == 8
            assert await receive_all(session) == []
        else:  # nobody has read the message since the start: the next receive meets it again
            await session.close()
            await daemon.restart()
            session = await daemon.session()
            await session.admin.release_group(group_of(row))
            assert await receive_all(session) == []
            assert (await parked(session))["park_reason"] == "damaged"
            assert counts(daemon) == (0, 8)
            await session.close()
            return
        assert (await session.view("parked_groups"), counts(daemon)) == ([], (0, 0))
        await session.close()

    play(scenario, tmp_path, window=SMALL)


@pytest.mark.rule("REL-6", "PBT-20")
@pytest.mark.parametrize("commits", [True, False])
def test_damage_is_found_while_a_transaction_has_the_group(tmp_path: Path, commits: bool) -> None:
    async def scenario(daemon: Daemon) -> None:
        session = await daemon.session()
        await dialog(session)
        await damage(daemon)
        tx = session.transaction()
        assert [one.body for one in await tx.receive("shop", 3)] == [b"m0", b"m1", b"m2"]
        assert [one.body for one in await tx.receive("shop", 3)] in ([], [b"m3"])
        assert await tx.receive("shop", 3) == []
        if commits:
            await tx.commit()
        else:
            tx.rollback()
            await daemon.pass_time(1)
        left = await rows(daemon, "queue_messages")
        assert left in (4, 5) if commits else left == 8
        assert counts(daemon) == (0, left)
        assert daemon.broker.queues["shop"].ready_count == 0
        assert (await parked(session))["messages"] == left
        await session.close()

    play(scenario, tmp_path, window=WindowOptions(window_messages=4, page_messages=1))


@pytest.mark.rule("REL-6", "REL-10", "REL-22", "XMT-19")
def test_a_dialog_stops_sending_before_its_damaged_message(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        session = await daemon.session()
        handle = await dialog(session, "urn:harbour")
        await session.close()
        await daemon.restart()
        await damage(daemon, "transmission_queue")
        session = await daemon.session()
        await session.apply(EAST)
        east = await daemon.session(broker="east")
        await daemon.pass_time(5)
        assert await receive_all(east, "harbour") == [b"m%d" % number for number in range(5)]
        status = await session.transmission_status(handle)
        assert (status.status_key, status.pending) == ("damaged", 3)
        await session.send(handle, b"m8", "Both")
        await daemon.pass_time(200)
        assert await receive_all(east, "harbour") == []
        assert daemon.instance.transmitter.retransmitted == 0
        (line,) = told(daemon, TRANSMISSION, status_key="damaged")
        assert line["sequence"] == live_of(daemon, handle).outgoing.damaged == 5  # type: ignore[union-attr]
        await session.end(handle, error=7, description="it was damaged")
        await daemon.pass_time(5)
        (error,) = await east.receive("harbour", autocommit=True)
        assert error.message_type == ERROR
        assert await rows(daemon, "transmission_queue") == 0
        await session.close()
        await east.close()

    play(scenario, tmp_path)
