"""Messages whose bodies are not the ones written: never served, and nothing overtakes them."""

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from brokerd.broker.window import WindowOptions
from brokerd.client.session import Session
from brokerd.errors import InvalidArgument
from brokerd.model import ERROR
from brokerd.protocol.frames import ERROR as ERROR_FLAG
from brokerd.storage.connections import Connection
from brokerd.storage.shelves import PLACES
from brokerd.storage.stretches import table_at
from brokerd.telemetry.logs import PARKING, TRANSMISSION
from tests.integration.fastpath.arrivals import arriving
from tests.integration.one_daemon import Daemon, live_of, play, rows
from tests.integration.shorthand import receive_all
from tests.integration.two_brokers import EAST

pytestmark = pytest.mark.damages_stores
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
    tables = [table] if table != "queue_messages" else map(table_at, PLACES)

    def write(connection: Connection) -> None:
        for one in tables:
            connection.execute(f"UPDATE {one} SET body = ? WHERE body = ?", (b"\0", BAD))

    await daemon.broker.store.run(write)


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
        assert daemon.instance.parts.transmitter.retransmitted == 0
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


PARTS: dict[str, Any] = {"fragments": 3, "body": b"a" * 40}


async def arrive(daemon: Daemon, *fragments: int) -> None:
    """Fragments of the second message of a dialog; the first one comes with the first of them."""
    dispatcher = daemon.instance.parts.dispatcher
    if 0 in fragments:
        dispatcher.arrived([arriving(daemon, 1, 0)])
        await daemon.pass_time(1)
    for fragment in fragments:
        dispatcher.arrived([arriving(daemon, 1, 1, fragment=fragment, **PARTS)])
        await daemon.pass_time(1)


async def spoil(daemon: Daemon, statement: str) -> None:
    await daemon.broker.store.run(lambda at: at.execute(statement).rowcount)


@pytest.mark.rule("REL-6", "REL-10", "REL-33", "DLP-11")
@pytest.mark.parametrize("large_body", [64, 4000])
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE body_pieces SET data = substr(data, 1, 1) WHERE piece = 0",
        "DELETE FROM body_pieces WHERE piece = 1",
        "DELETE FROM body_pieces",
    ],
)
def test_a_message_of_which_a_stored_fragment_is_damaged_is_never_received(
    tmp_path: Path, large_body: int, statement: str
) -> None:
    async def scenario(daemon: Daemon) -> None:
        await arrive(daemon, 0, 1)
        await spoil(daemon, statement)
        await daemon.restart()
        await arrive(daemon, 2)
        daemon.instance.parts.dispatcher.arrived([arriving(daemon, 1, 2, body=b"behind")])
        await daemon.pass_time(1)
        async with await daemon.session() as session:
            assert await receive_all(session) == []
            row = await parked(session)
            assert (row["park_reason"], row["messages"]) == ("damaged", 3)
            assert await rows(daemon, "body_pieces") == 0
            await session.admin.edit_group(group_of(row), b"mended")
            assert await receive_all(session) == [b"1/0", b"mended", b"behind"]

    play(scenario, tmp_path, large_body=large_body)


@pytest.mark.rule("REL-6", "DLP-11", "OBJ-18")
def test_a_damaged_message_is_not_called_unfit(tmp_path: Path) -> None:
    async def scenario(daemon: Daemon) -> None:
        daemon.objects["message_type"] = [
            one | {"validation": "well_formed_json"} if one["name"] == "Ask" else one
            for one in daemon.objects["message_type"]
        ]
        async with await daemon.session() as session:
            await session.apply(daemon.objects)
            text = {"message_type": "Ask", "fragments": 2}
            dispatcher = daemon.instance.parts.dispatcher
            dispatcher.arrived([arriving(daemon, 1, 0, fragment=0, **text, body=b'["')])
            await daemon.pass_time(1)
            await spoil(daemon, "UPDATE body_pieces SET data = substr(data, 1, 1)")
        await daemon.restart()
        daemon.instance.parts.dispatcher.arrived(
            [arriving(daemon, 1, 0, fragment=1, **text, body=b'"]')]
        )
        await daemon.pass_time(1)
        async with await daemon.session() as session:
            assert await receive_all(session) == []
            assert (await parked(session))["park_reason"] == "damaged"

    play(scenario, tmp_path)


@pytest.mark.rule("DLP-11", "DLG-30", "DLG-T10", "REL-7")
@pytest.mark.parametrize("restart", [False, True])
def test_fragments_that_an_error_has_overtaken_go_with_the_dialog(
    tmp_path: Path, restart: bool
) -> None:
    async def scenario(daemon: Daemon) -> None:
        await arrive(daemon, 0, 1)
        error = arriving(daemon, 1, 5, flags=ERROR_FLAG, body=b'{"code":7,"description":"x"}')
        daemon.instance.parts.dispatcher.arrived([error])
        await daemon.pass_time(1)
        assert await rows(daemon, "body_pieces") == 2
        if restart:
            await daemon.restart()
        async with await daemon.session() as session:
            (told, _) = await session.receive("shop", autocommit=True)
            await session.end(told.handle)
        await daemon.pass_time(1)
        assert await rows(daemon, "body_pieces") == await rows(daemon, "bodies") == 0
        assert daemon.broker.incomplete == {}

    play(scenario, tmp_path)


@pytest.mark.rule("PBT-5", "DLP-11", "DLG-T10", "DSP-15")
@pytest.mark.parametrize(("reading", "fragment"), [("known_parts", 1), ("parts", 2)])
def test_fragments_that_are_dropped_while_they_are_read_do_not_come_back(
    tmp_path: Path, reading: str, fragment: int
) -> None:
    async def scenario(daemon: Daemon) -> None:
        await arrive(daemon, 0, 1)
        async with await daemon.session() as session:
            (first,) = await session.receive("shop", autocommit=True)
        await daemon.restart()
        incomplete = daemon.broker.store.incomplete
        read, gate = getattr(incomplete, reading), asyncio.Event()

        async def later(key: Any) -> Any:
            found = await read(key)
            await gate.wait()
            return found

        async with await daemon.session() as session:
            with patch.object(incomplete, reading, later):
                await arrive(daemon, fragment)
                await session.end(first.handle)
                live = live_of(daemon, first.handle)
                gate.set()
                await daemon.pass_time(1)
            assert live.parts == []
            assert live.body_key is None
            assert await rows(daemon, "body_pieces") == 0
            assert not daemon.broker.damaged_parts

    play(scenario, tmp_path)
