"""The fast paths of dialogs of one message do what the general path does."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import asdict

from brokerd.client.session import Session
from brokerd.client.transaction import Transaction
from brokerd.delivery.fastpath import short_dialogs
from brokerd.errors import BrokerError, InvalidState, NotInContract
from brokerd.model import END_DIALOG
from brokerd.sessions import fast_requests
from brokerd.verbs import ends
from tests.integration.one_daemon import Daemon, play
from tests.integration.telemetry.closing_lines import logging

BODIES = [b"", b"a", b"b" * 300, b"c" * 40_000]


async def post(session: Session, body: bytes = b"", to: str = "urn:shop", **options: Any) -> bytes:
    async with session.transaction() as tx:
        handle = await tx.begin_dialog("urn:desk", to, options.pop("contract", "talk"), **options)
        await tx.send(handle, body, "Ask")
        await tx.end(handle)
    return handle


async def left(daemon: Daemon, session: Session) -> list[Any]:
    """What is to be seen of everything so far, without ids."""
    broker = daemon.broker
    stored = await broker.store.endpoints.page(10)
    lines = [
        orjson.loads(line)
        for row in await broker.store.endpoints.closing_lines(10)
        for line in row.line.split(b"\n")
    ]
    pairs = [(one.from_service, one.sent, one.received) for one in broker.pairs.all() if one.sent]
    ids = {"key", "handle", "conversation_id", "group_id", "far_broker", "last_message"}
    return [
        [
            {name: value for name, value in asdict(one).items() if name not in ids}
            | {"far": one.far_broker == broker.broker_id, "last": one.last_message is not None}
            for one in stored
        ],
        [{k: v for k, v in line.items() if k != "conversation_id"} for line in lines],
        len({line["conversation_id"] for line in lines}),
        sorted(pairs),
        (broker.sends, broker.receives, broker.rollbacks, broker.lifetimes.at),
        [(queue.name, queue.depth, queue.enqueued, queue.received)
         for queue in broker.own_queues],
        (len(broker.endpoints), len(broker.groups)),
        session.open_transactions,
    ]  # fmt: skip


async def converse(daemon: Daemon, session: Session) -> list[Any]:
    """Dialogs begun, received and ended, with all that can be seen after each of these."""
    found: list[Any] = []
    for body in BODIES:
        await post(session, body, lifetime=3600)
    found.append(await left(daemon, session))
    async with session.transaction() as tx:
        messages = await tx.receive("shop", 100, groups=100)
        found.append(
            [(one.message_type, one.sequence, one.body, one.priority, one.service, one.contract)
             for one in messages]
        )  # fmt: skip
        ended = [one.handle for one in messages if one.message_type == END_DIALOG]
        await tx.end(ended[0])
        await tx.end(ended[1:])
    found.append(await left(daemon, session))
    return found


def outcome(tmp_path: Path) -> list[Any]:
    found: list[Any] = []

    async def program(daemon: Daemon) -> None:
        await logging(daemon, tmp_path / "metrics")
        session = await daemon.session()
        found.extend(await converse(daemon, session))
        await session.close()

    tmp_path.mkdir()
    play(program, tmp_path)
    return found


def counted(monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[bool]]:
    """Results of the two fast paths from here on: dialogs sent by each call, and ends done."""
    begun: list[int] = []
    ended: list[bool] = []

    def counting(*args: Any, **options: Any) -> int:
        begun.append(short_dialogs.converse_each(*args, **options))
        return begun[-1]

    def ending_one(*args: Any) -> bool:
        ended.append(ends.end_ordinary(*args))
        return ended[-1]

    monkeypatch.setattr(fast_requests, "converse_each", counting)
    monkeypatch.setattr(fast_requests, "end_ordinary", ending_one)
    return begun, ended


@pytest.mark.rule("DLG-16", "DLG-33", "SND-14", "DLG-T12", "DLG-T16")
def test_both_paths_leave_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = counted(monkeypatch)
    by_the_fast_path = outcome(tmp_path / "fast")
    assert (sum(begun), len(begun)) == (len(BODIES), len(BODIES))
    assert ended == [True] * 2
    monkeypatch.setattr(fast_requests, "converse_each", lambda *_args, **_options: 0)
    monkeypatch.setattr(fast_requests, "end_ordinary", lambda *_args: False)
    by_the_general_path = outcome(tmp_path / "general")
    for fast, general in zip(by_the_fast_path, by_the_general_path, strict=True):
        assert fast == general


async def queue_off(session: Session) -> None:
    await session.alter("queue", "shop", status="off")


async def retained(session: Session) -> None:
    await session.alter("queue", "desk", retention=True)


async def checked(session: Session) -> None:
    await session.alter("message_type", "Ask", validate_on_send=True)


async def a_route_away(session: Session) -> None:
    await session.create("route", "away", service="urn:shop", address="TCP://away:7001")


async def two_routes(session: Session) -> None:
    await a_route_away(session)
    await session.create("route", "here", service="urn:shop", address="LOCAL")


@pytest.mark.rule("DLG-1", "OBJ-40", "SND-14", "PBT-14", "RCV-31")
@pytest.mark.parametrize("changed", [queue_off, retained, checked, a_route_away, two_routes])
def test_where_there_is_something_to_decide_the_general_path_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: Any
) -> None:
    begun = []

    def counting(*args: Any, **options: Any) -> int:
        begun.append(short_dialogs.converse_each(*args, **options))
        return begun[-1]

    monkeypatch.setattr(fast_requests, "converse_each", counting)

    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        await post(session)
        await changed(session)
        await post(session)
        await session.close()

    play(program, tmp_path)
    assert begun == [1, 0]


@pytest.mark.rule("OBJ-28", "DLG-2", "OBJ-34")
@pytest.mark.parametrize(
    "wrong",
    [
        {"contract": "other"},
        {"contract": "no such contract"},
        {"to": "urn:desk"},
    ],
)
def test_what_is_refused_is_refused_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any]
) -> None:
    outcomes: list[Any] = []

    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        try:
            await post(session, **wrong)
            outcomes.append(None)
        except BrokerError as error:
            outcomes.append((error.code, error.message))
        outcomes.append((await left(daemon, session))[:2])
        await session.close()

    (tmp_path / "fast").mkdir()
    play(program, tmp_path / "fast")
    monkeypatch.setattr(fast_requests, "converse_each", lambda *_args, **_options: 0)
    (tmp_path / "general").mkdir()
    play(program, tmp_path / "general")
    assert outcomes[:2] == outcomes[2:]


@pytest.mark.rule("CLP-31", "CLP-34")
def test_dialogs_written_together_keep_their_order_around_one_that_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def counting(*args: Any, **options: Any) -> int:
        sizes.append(short_dialogs.converse_each(*args, **options))
        return sizes[-1]

    monkeypatch.setattr(fast_requests, "converse_each", counting)

    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        asked = []
        for number in range(5):
            tx = session.transaction()
            handle = await tx.begin_dialog("urn:desk", "urn:shop", "talk")
            await tx.send(handle, b"%d" % number, "Ask" if number != 2 else "Alone")
            await tx.end(handle)
            future = tx.ask_commit()
            assert future is not None
            asked.append(future)
        for number, future in enumerate(asked):
            if number == 2:
                with pytest.raises(NotInContract):
                    await future
            else:
                await future
        async with session.transaction() as tx:
            messages = await tx.receive("shop", 100, groups=100)
            bodies = [one.body for one in messages if one.message_type == "Ask"]
            assert bodies == [b"0", b"1", b"3", b"4"]
        await session.close()

    play(program, tmp_path)
    assert sizes == [2, 0, 2], "those before and those behind the refused one went together"


@pytest.mark.rule("DLG-16")
def test_a_store_that_is_not_in_memory_as_a_whole_makes_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = counted(monkeypatch)

    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        await session.begin_dialog("urn:desk", "urn:shop", "talk")
        await session.close()
        await daemon.restart()
        assert not daemon.broker.endpoints.complete
        session = await daemon.session()
        await post(session)
        async with session.transaction() as tx:
            await tx.end((await tx.receive("shop"))[-1].handle)
        assert len(await daemon.broker.store.endpoints.page(10)) == 1
        await session.close()

    play(program, tmp_path)
    assert (begun, ended) == ([1], [True])


class Undone(Exception):
    """Undoes a savepoint."""


async def end_within_a_savepoint(tx: Transaction, handle: bytes) -> None:
    async with tx.savepoint():
        await tx.end(handle)
        raise Undone


async def end_twice(session: Session) -> None:
    async with session.transaction() as tx:
        handle = (await tx.receive("shop"))[-1].handle
        await tx.end(handle)
        await tx.end(handle)


@pytest.mark.rule("DLG-19", "GRP-21")
def test_an_end_is_undone_with_its_savepoint_and_refused_a_second_time(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        await post(session)
        async with session.transaction() as tx:
            handle = (await tx.receive("shop"))[-1].handle
            with pytest.raises(Undone):
                await end_within_a_savepoint(tx, handle)
            await tx.end(handle)
        assert not await daemon.broker.store.endpoints.page(10)
        await post(session)
        with pytest.raises(InvalidState):
            await end_twice(session)
        assert len(await daemon.broker.store.endpoints.page(10)) == 1
        await session.close()

    play(program, tmp_path)
