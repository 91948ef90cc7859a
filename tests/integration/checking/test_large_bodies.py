"""Structured bodies that are looked into beside the loop: order, verdicts, and nobody waits."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from brokerd.client.session import Session
from brokerd.errors import TransactionAborted, ValidationFailed
from brokerd.model import ERROR
from tests.integration.checking.gate import Gate
from tests.integration.one_daemon import Daemon
from tests.integration.scenarios import given
from tests.integration.two_brokers import EAST

BIG = orjson.dumps(["x" * 90] * 1000)  # three fragments
SMALL = b'{"n": 1}'
TYPES = [{"name": "Doc", "validation": "well_formed_json"}, {"name": "Plain"}]
CONTRACTS = [{"name": "docs", "types": {"Doc": "any", "Plain": "any"}}]
HERE: dict[str, Any] = {
    "broker": {"name": "main", "default_encryption": "off"},
    "message_type": TYPES,
    "contract": CONTRACTS,
    "queue": [{"name": "desk"}, {"name": "shop"}],
    "service": [
        {"name": "urn:desk", "queue": "desk"},
        {"name": "urn:shop", "queue": "shop", "contracts": ["docs"]},
    ],
}
THERE: dict[str, Any] = {
    **EAST,
    "message_type": TYPES,
    "contract": CONTRACTS,
    "service": [{"name": "urn:harbour", "queue": "harbour", "contracts": ["docs"]}],
}


class Place:
    def __init__(self, daemon: Daemon, main: Session, east: Session) -> None:
        self.daemon = daemon
        self.main = main
        self.east = east
        self.here = Gate(daemon.broker)
        self.there = Gate(daemon.instance.brokers["east"])

    def start(self, what: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return asyncio.create_task(what)

    async def wait(self) -> None:
        await self.daemon.pass_time(0.5)


@asynccontextmanager
async def two_brokers(daemon: Daemon, _folder: Path) -> AsyncIterator[tuple[Place]]:
    """After the test nothing that was looked into is kept."""
    async with await daemon.session() as main:
        await main.apply(HERE)
        await main.apply(THERE)
        async with await daemon.session(broker="east") as east:
            place = Place(daemon, main, east)
            yield (place,)
            assert len(place.here.inspection) == len(place.there.inspection) == 0


scenario = given(two_brokers)


async def bodies(session: Session, queue: str) -> list[bytes | None]:
    found: list[bytes | None] = []
    while got := await session.receive(queue, autocommit=True):
        found += [one.body if one.message_type != ERROR else b"Error" for one in got]
    return found


async def dialog(session: Session, to: str = "urn:shop") -> bytes:
    handle = await session.begin_dialog("urn:desk", to, "docs")
    await session.send(handle, b"first", "Plain")
    return handle


@pytest.mark.rule("OBJ-18", "CLP-31")
@scenario
async def test_while_a_body_is_looked_into_its_dialog_waits_and_no_other(place: Place) -> None:
    session = place.main
    one, other = await dialog(session), await dialog(session)
    await place.wait()
    await bodies(session, "shop")
    big = place.start(session.send(one, BIG, "Doc"))
    behind = place.start(session.send(one, SMALL, "Doc"))
    await session.send(other, b'"meanwhile"', "Doc")
    assert await bodies(session, "shop") == [b'"meanwhile"']
    await place.wait()
    assert not big.done()
    assert not behind.done()
    place.here.finish()
    await asyncio.gather(big, behind)
    assert await bodies(session, "shop") == [BIG, SMALL]


@pytest.mark.rule("OBJ-18", "DLG-43")
@scenario
async def test_a_large_body_that_is_unfit_errors_the_dialog(place: Place) -> None:
    session = place.main
    handle = await dialog(session)
    sending = place.start(session.send(handle, BIG[:-1], "Doc"))
    await place.wait()
    place.here.finish()
    await sending
    assert b"Error" in await bodies(session, "shop")
    (error,) = await session.receive("desk", autocommit=True)
    assert error.message_type == ERROR
    assert b"-8430" in (error.body or b"")


@pytest.mark.rule("OBJ-18", "CLP-31")
@scenario
async def test_a_dialog_that_begins_with_a_large_body_keeps_its_order(place: Place) -> None:
    session = place.main

    async def whole() -> None:
        async with session.transaction() as tx:
            handle = await tx.begin_dialog("urn:desk", "urn:shop", "docs")
            await tx.send(handle, BIG, "Doc")
            await tx.send(handle, SMALL, "Doc")

    sending = place.start(whole())
    await place.wait()
    async with await place.daemon.session() as other:
        assert await bodies(other, "shop") == []
    place.here.finish()
    await sending
    assert await bodies(session, "shop") == [BIG, SMALL]


@pytest.mark.rule("PBT-14", "OBJ-18")
@scenario
async def test_the_senders_own_check_waits_likewise(place: Place) -> None:
    session = place.main
    await session.alter("message_type", "Doc", validate_on_send="on")
    handle = await dialog(session, "urn:harbour")
    sending = place.start(session.send(handle, BIG[:-1], "Doc"))
    await place.wait()
    assert not sending.done()
    place.here.finish()
    with pytest.raises(ValidationFailed, match="does not fit"):
        await sending


@pytest.mark.rule("OBJ-18", "REL-3")
@scenario
async def test_nothing_is_kept_of_a_look_that_nobody_waits_for(place: Place) -> None:
    handle = await dialog(place.main)
    async with await place.daemon.session() as other:
        sending = place.start(other.send(handle, BIG, "Doc"))
        await place.wait()
        await place.main.admin.disable(force=True)
        await place.main.admin.enable()
        with pytest.raises(TransactionAborted):
            await sending
    place.here.finish()
    await place.wait()
    await place.main.send(handle, SMALL, "Doc")
    assert await bodies(place.main, "shop") == [b"first", SMALL]


@pytest.mark.rule("OBJ-18", "DSP-3", "REL-10")
@scenario
async def test_an_arrival_waits_for_its_verdict_and_other_dialogs_do_not(place: Place) -> None:
    session = place.main
    one, other = await dialog(session, "urn:harbour"), await dialog(session, "urn:harbour")
    await place.wait()
    await bodies(place.east, "harbour")
    async with session.transaction() as tx:
        await tx.send(one, b"before", "Plain")
        await tx.send(one, BIG, "Doc")
        await tx.send(one, SMALL, "Doc")
        await tx.send(one, BIG, "Doc")
        await tx.send(one, b"after", "Plain")
    await place.wait()
    await session.send(other, SMALL, "Doc")
    await place.wait()
    assert await bodies(place.east, "harbour") == [b"before", SMALL]
    place.there.finish()
    await place.wait()
    assert await bodies(place.east, "harbour") == [BIG, SMALL]
    await place.daemon.pass_time(20)  # what is sent again meanwhile changes nothing
    assert len(place.there.open) == 1
    place.there.finish()
    await place.daemon.pass_time(20)
    assert await bodies(place.east, "harbour") == [BIG, b"after"]
    (row,) = [
        row
        for row in await session.view("conversation_endpoints")
        if row["conversation_handle"].replace("-", "") == one.hex()
    ]
    assert row["pending_send_count"] == 0


@pytest.mark.rule("OBJ-18", "DLG-43")
@scenario
async def test_an_arrival_that_is_unfit_errors_both_sides(place: Place) -> None:
    handle = await dialog(place.main, "urn:harbour")
    await place.main.send(handle, BIG[:-1], "Doc")
    await place.wait()
    place.there.finish()
    await place.wait()
    assert set(await bodies(place.east, "harbour")) == {b"Error", b"first"}
    (error,) = await place.main.receive("desk", autocommit=True)
    assert b"-8430" in (error.body or b"")


@pytest.mark.rule("OBJ-18", "DSP-12")
@scenario
async def test_delivery_is_switched_off_while_an_arrival_is_looked_into(place: Place) -> None:
    handle = await dialog(place.main, "urn:harbour")
    await place.wait()
    await place.main.send(handle, BIG, "Doc")
    await place.wait()
    await place.east.admin.disable()
    place.there.finish()
    await place.wait()
    assert await bodies(place.east, "harbour") == [b"first"]
    await place.east.admin.enable()
    await place.daemon.pass_time(200)
    place.there.finish()
    await place.wait()
    assert await bodies(place.east, "harbour") == [BIG]


@pytest.mark.rule("OBJ-18", "DSP-11")
@scenario
async def test_a_body_that_is_not_taken_after_all_is_not_kept(place: Place) -> None:
    handle = await dialog(place.main, "urn:harbour")
    await place.wait()
    await place.main.send(handle, BIG, "Doc")
    await place.wait()
    assert len(place.there.inspection) == 1
    await place.east.alter("queue", "harbour", status="off")
    place.there.finish()
    await place.wait()
    assert len(place.there.inspection) == 0


@pytest.mark.rule("PBT-12", "OBJ-18", "REL-32")
@scenario
async def test_what_is_resent_is_looked_into_beside_the_loop(place: Place) -> None:
    """All at once, and nobody else waits: a backlog of large bodies would hold up the loop."""
    session = place.main
    broken = await dialog(session)
    (asked,) = await session.receive("shop", autocommit=True)
    other = await dialog(session)
    await session.alter("queue", "shop", status="off")
    for _ in range(3):
        await session.send(broken, BIG, "Doc")
    await session.send(broken, SMALL, "Doc")
    assert place.here.open == []  # it waits at its sender; who stores it looks into it
    await session.end(asked.handle, 7, "broken")
    await session.alter("queue", "shop", status="on")
    new = await dialog(session)
    resending = place.start(session.resend_pending(broken, new))
    await place.wait()
    assert len(place.here.open) == 3
    await session.send(other, b"meanwhile", "Plain")
    for left in (2, 1, 0):
        assert not resending.done()
        place.here.finish()
        await place.wait()
        assert len(place.here.open) == left
    assert len(await resending) == 4
    got = await bodies(session, "shop")
    assert [one for one in got if one in (BIG, SMALL)] == [BIG, BIG, BIG, SMALL]
    await session.end(broken)
