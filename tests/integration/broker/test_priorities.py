"""Broker priorities: which endpoint has which level, and what goes first."""

from pathlib import Path
from typing import Any

import pytest

from brokerd.client.session import Session
from brokerd.errors import DuplicatePriority, InUse, InvalidPriority, ObjectNotFound, ObjectsRefused
from tests.integration.one_daemon import Daemon, live_of, play
from tests.integration.scenarios import scenario
from tests.integration.shorthand import bodies, fails, take, talk


async def priority(session: Session, name: str, level: int = 5, **criteria: str) -> None:
    await session.create("priority", name, level=level, **criteria)


async def levels(session: Session) -> dict[tuple[object, object], object]:
    rows: list[Any] = await session.view("conversation_endpoints")
    return {(one["service_id"], one["far_service"]): one["priority"] for one in rows}


@pytest.mark.rule("OBJ-48", "OBJ-49", "OBJ-51", "VIEW-9")
@scenario
async def test_what_a_priority_may_say(daemon: Daemon, session: Session) -> None:
    await session.create("priority", "plain")
    await priority(session, "fast", 10, contract="talk", local_service="urn:desk")
    await priority(session, "far", 1, remote_service="nobody here\u0301")
    for level in (0, 11, -1):
        await fails(InvalidPriority, priority(session, "p", level, remote_service="x"))
    await fails(InvalidPriority, session.alter("priority", "fast", level="high"))
    same: dict[str, Any] = {
        "contract": "talk",
        "local_service": "urn:desk",
        "remote_service": "ANY",
    }
    error = await fails(DuplicatePriority, session.create("priority", "again", **same))
    assert 'criteria of "fast"' in error.message
    await fails(DuplicatePriority, session.alter("priority", "plain", **same))
    for unknown in ({"contract": "Talk"}, {"local_service": "urn:Desk"}):
        await fails(ObjectNotFound, session.create("priority", "p", **unknown))
    assert await session.view("conversation_priorities") == [
        {
            "priority_id": name,
            "name": name,
            "service_contract_id": contract,
            "local_service_id": local,
            "remote_service_name": remote,
            "priority": level,
        }
        for name, contract, local, remote, level in (
            ("far", "ANY", "ANY", "nobody here\u0301", 1),
            ("fast", "talk", "urn:desk", "ANY", 10),
            ("plain", "ANY", "ANY", "ANY", 5),
        )
    ]
    await fails(InUse, session.drop("service", "urn:desk"))


@pytest.mark.rule("OBJ-48", "OBJ-51")
@scenario
async def test_a_file_declares_them_too(daemon: Daemon, session: Session) -> None:
    given = [{"name": "fast", "contract": "talk", "level": 9}, {"name": "rest", "level": 2}]
    declared = {**daemon.objects, "priority": given}
    sentences = [one["sentence"] for one in await session.apply(declared)]  # type: ignore[index]
    assert sentences == [
        "priority fast is created: level 9 for (talk, ANY, ANY)",
        "priority rest is created: level 2 for (ANY, ANY, ANY)",
    ]
    assert await session.apply(declared) == []
    twice = {**declared, "priority": [*given, {"name": "more", "contract": "talk"}]}
    error = await fails(ObjectsRefused, session.apply(twice))
    assert '"more" has the criteria of "fast" (OBJ-51)' in error.message
    (changed,) = await session.apply({**declared, "priority": [given[0] | {"level": 8}, given[1]]})
    assert changed["sentence"] == "priority fast: level changes from 9 to 8"  # type: ignore[index]


@pytest.mark.rule("OBJ-52", "OBJ-53", "OBJ-54", "RCV-36")
def test_each_end_has_its_own_level_and_keeps_it(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        await priority(session, "asks", 9, local_service="urn:desk")
        await priority(session, "is asked", 2, local_service="urn:shop", remote_service="urn:desk")
        handle = await talk(session, b"1")
        both = {("urn:desk", "urn:shop"): 9, ("urn:shop", "urn:desk"): 2}
        assert await levels(session) == both
        (got,) = await take(session, "shop")
        assert got.priority == 2
        await session.send(got.handle, b"answer", "Answer")
        await session.alter("priority", "asks", level=3)
        await session.drop("priority", "is asked")
        await priority(session, "later", 8, local_service="urn:shop", contract="talk")
        await session.close()
        await daemon.stop()
        await daemon.start(declare=False)
        session = await daemon.session()
        await session.send(handle, b"2", "Ask")
        assert await levels(session) == both
        assert [one.priority for one in await take(session, "desk")] == [9]
        assert [one.priority for one in await take(session, "shop")] == [2]
        later = await talk(session)
        assert live_of(daemon, later).endpoint.priority == 3
        await session.send(later, b"3", "Ask")
        assert [one.priority for one in await take(session, "shop")] == [8]
        await session.close()

    play(program, tmp_path)


@pytest.mark.rule("OBJ-55", "OBJ-54", "OBJ-58")
@scenario
async def test_receive_honours_levels_and_direct_delivery_has_none_of_its_own(
    daemon: Daemon, session: Session
) -> None:
    await session.alter("broker", "main", honor_priority="on")
    await priority(session, "low", 1, local_service="urn:shop", remote_service="urn:desk")
    await priority(session, "high", 10, local_service="urn:shop", remote_service="urn:spare")
    low = await session.begin_dialog("urn:desk", "urn:shop", "talk")
    high = await session.begin_dialog("urn:spare", "urn:shop", "talk")
    async with session.transaction() as tx:
        await tx.send(low, b"low", "Ask")
        await tx.send(high, b"high", "Ask")
    async with session.transaction() as tx:  # the group of the higher one first, too
        groups = [await tx.get_group("shop"), await tx.get_group("shop")]
        assert groups[0] == live_of(daemon, high).peer.endpoint.group_id  # type: ignore[union-attr]
        assert groups[1] == live_of(daemon, low).peer.endpoint.group_id  # type: ignore[union-attr]
    first, second = await take(session, "shop"), await take(session, "shop")
    assert (bodies(first), bodies(second)) == ([b"high"], [b"low"])
    assert first[0].queuing_order > second[0].queuing_order


FAR: dict[str, Any] = {
    "name": "far",
    "default_encryption": "off",
    "queue": [{"name": "far_q"}],
    "service": [{"name": "urn:far", "queue": "far_q", "contracts": ["DEFAULT"]}],
}


@pytest.mark.rule("VIEW-4")
@scenario
async def test_the_oldest_message_counts_whatever_its_level(
    daemon: Daemon, session: Session
) -> None:
    await talk(session, b"old")
    await daemon.pass_time(30)
    await priority(session, "urgent", 9, local_service="urn:shop")
    (before,) = await session.view("service_queues", where={"name": "shop"})
    await talk(session, b"new")
    (after,) = await session.view("service_queues", where={"name": "shop"})
    assert bodies(await take(session, "shop")) == [b"new"]  # a higher level comes first
    assert after["oldest_ready_at"] == before["oldest_ready_at"]


async def arrivals(daemon: Daemon, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with await daemon.session(broker="far") as far:
        while len(found) < count:
            found += bodies(await take(far, "far_q", wait=30))
    return found


@pytest.mark.rule("OBJ-55", "OBJ-59")
@pytest.mark.parametrize("honored", [True, False])
def test_transmission_goes_by_level_over_all_brokers_where_it_is_honored(
    tmp_path: Path, honored: bool
) -> None:
    async def program(daemon: Daemon) -> None:
        east = {
            "name": "east",
            "default_encryption": "off",
            "queue": [{"name": "q"}],
            "service": [{"name": "urn:e3", "queue": "q"}, {"name": "urn:e10", "queue": "q"}],
            "priority": [
                {"name": "a", "local_service": "urn:e3", "level": 3},
                {"name": "b", "local_service": "urn:e10", "level": 10},
            ],
        }
        main = await daemon.session()
        await main.apply({"broker": [east]})
        await priority(main, "low", 1, local_service="urn:desk")
        other = await daemon.session(broker="east")
        if honored:
            await main.alter("broker", "main", honor_priority="on")
            await other.alter("broker", "east", honor_priority="on")
        for session, service in (
            (main, "urn:desk"),  # 1
            (main, "urn:spare"),  # 5
            (other, "urn:e3"),
            (other, "urn:e10"),
        ):
            handle = await session.begin_dialog(service, "urn:far")
            await session.send(handle, service.encode())
            await session.send(handle, b"then")
        await main.apply({"broker": [FAR]})
        found = [one for one in await arrivals(daemon, 8) if one != b"then"]
        if honored:
            assert found == [b"urn:e10", b"urn:spare", b"urn:e3", b"urn:desk"]
        else:
            assert found == [b"urn:desk", b"urn:spare", b"urn:e3", b"urn:e10"]
        await main.close()
        await other.close()

    play(program, tmp_path)


@pytest.mark.rule("OBJ-56", "OBJ-57", "VIEW-3")
@scenario
async def test_switching_honor_priority_shows_with_the_next_sends(
    daemon: Daemon, session: Session
) -> None:
    await session.apply({"broker": [FAR]})
    await priority(session, "low", 1, local_service="urn:desk")
    await priority(session, "high", 10, local_service="urn:spare")
    low = await session.begin_dialog("urn:desk", "urn:far")
    high = await session.begin_dialog("urn:spare", "urn:far")

    async def send_both() -> list[bytes | None]:
        async with session.transaction() as tx:
            await tx.send(low, b"low")
            await tx.send(high, b"high")
        found = await arrivals(daemon, 2)
        await daemon.pass_time(1)
        return found

    assert await send_both() == [b"low", b"high"]
    assert await levels(session) == {("urn:desk", "urn:far"): 1, ("urn:spare", "urn:far"): 10}
    await session.alter("broker", "main", honor_priority="on")
    assert await send_both() == [b"high", b"low"]
    await session.alter("broker", "main", honor_priority="off")
    assert await send_both() == [b"low", b"high"]
    assert await levels(session) == {("urn:desk", "urn:far"): 1, ("urn:spare", "urn:far"): 10}
    async with await daemon.session(broker="far") as far:
        await far.alter("queue", "far_q", status="off")
    await session.send(low, b"waits")

    async def shown() -> tuple[object, object]:
        (row,) = await session.view("transmission_queue")
        return row["priority"], row["effective_priority"]

    assert await shown() == (1, 5)
    await session.alter("broker", "main", honor_priority="on")
    assert await shown() == (1, 1)
