"""Dialogs that are watched: what befalls them, and whose services are looked at then (MON-20)."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from brokerd.admin.doctor.findings import Finding, Level, Sort
from brokerd.cli.doctor_watch import LOOK, Failed, Watch, watch
from brokerd.client.session import Session
from brokerd.events.error_events import KEPT
from brokerd.ids import parse, show
from tests.integration.one_daemon import Daemon, play
from tests.integration.scenarios import scenario

Seen = tuple[list[Failed], list[Finding]]
HERE = Failed("urn:desk", "urn:shop", "talk", is_initiator=True)
THERE = Failed("urn:shop", "urn:desk", "talk", is_initiator=False)
NOWHERE = Failed("urn:desk", "urn:nowhere", "talk", is_initiator=True)


async def seen(
    daemon: Daemon,
    session: Session,
    asked: Watch,
    act: Callable[[], Awaitable[object]],
) -> Seen:
    """What is found if this is done a moment after the watch began."""
    found: list[Finding] = []
    own = await daemon.session()
    task = asyncio.ensure_future(watch(own, asked, found))
    await daemon.pass_time(LOOK)
    await act()
    await daemon.pass_time(asked.seconds)
    failed = await task
    await own.close()
    return failed, found


async def begun(session: Session, to: str = "urn:shop") -> bytes:
    handle = await session.begin_dialog("urn:desk", to, "talk")
    await session.send(handle, b"?", "Ask")
    return handle


async def conversation(session: Session, handle: bytes) -> bytes:
    (row,) = await session.view(
        "conversation_endpoints", where={"conversation_handle": show(handle)}
    )
    return parse(row["conversation_id"])


WATCH = Watch(seconds=10)


@pytest.mark.rule("MON-20", "MON-22")
@scenario
async def test_a_dialog_that_ends_before_its_time_is_told_with_its_services(
    daemon: Daemon, session: Session
) -> None:
    before = await begun(session)
    await session.end(before, 41, "an old story")
    handle = await begun(session)
    name = show(await conversation(session, handle))
    failed, (one,) = await seen(daemon, session, WATCH, lambda: session.end(handle, 42, "sold out"))
    assert failed == [HERE, THERE]
    assert (one.code, one.level, one.sort) == ("D54", Level.ERROR, Sort.DIAGNOSIS)
    assert one.about == f"dialog {name} of urn:desk with urn:shop"
    assert "42 sold out" in one.text
    assert one.commands == (f"brokerd dialog show {name} --broker main",)


@pytest.mark.rule("MON-20", "MON-21")
@scenario
async def test_events_are_told_each_time_if_they_are_asked_for(
    daemon: Daemon, session: Session
) -> None:
    handle = await begun(session)
    asked = Watch(seconds=10, show_events=True)
    _, found = await seen(daemon, session, asked, lambda: session.end(handle, 42, "sold out"))
    events = [one for one in found if one.sort is Sort.EVENT]
    assert {one.code for one in found} == {"D54"}
    assert len(found) == len(events) + 1
    assert ["end_with_error" in one.text for one in events] == [True, False]
    assert "received_error" in events[1].text
    assert found[0].text.startswith(f"{len(events)} error events")


@pytest.mark.rule("MON-20")
@scenario
async def test_a_dialog_without_a_way_is_told_and_so_is_one_that_was_named_and_waits_already(
    daemon: Daemon, session: Session
) -> None:
    first = await begun(session, "urn:nowhere")
    await daemon.pass_time(2)
    failed, found = await seen(daemon, session, WATCH, lambda: begun(session, "urn:nowhere"))
    assert failed == [NOWHERE]
    (one,) = found
    assert "no_route" in one.text or "local_service_missing" in one.text
    asked = Watch(seconds=10, of=(first,))
    failed, (one,) = await seen(daemon, session, asked, lambda: asyncio.sleep(0))
    assert failed == [NOWHERE]
    assert (one.code, show(first) in one.about) == ("D39", True)
    assert await seen(daemon, session, WATCH, lambda: asyncio.sleep(0)) == ([], [])


@pytest.mark.rule("MON-20")
@pytest.mark.parametrize("kind", ["handle", "conversation", "group", "new"])
def test_only_what_is_asked_for_is_told(tmp_path: Path, kind: str) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        old, other = await begun(session), await begun(session)
        (row,) = await session.view(
            "conversation_endpoints", where={"conversation_handle": show(old)}
        )
        ids = {
            "handle": old,
            "conversation": parse(row["conversation_id"]),
            "group": parse(row["conversation_group_id"]),
        }
        wanted = [row["conversation_id"]]
        of = (ids[kind],) if kind in ids else ()

        async def act() -> None:
            new = await begun(session)
            if kind == "new":
                wanted[0] = show(await conversation(session, new))
            for one in (other, old, new):
                await session.end(one, 42, "sold out")

        asked = Watch(seconds=10, of=of, new=kind == "new")
        _, (one,) = await seen(daemon, session, asked, act)
        assert one.about.startswith(f"dialog {wanted[0]} ")
        await session.close()

    play(program, tmp_path)


@pytest.mark.rule("VIEW-16")
@scenario
async def test_error_events_come_in_the_order_of_their_numbers(
    daemon: Daemon, session: Session
) -> None:
    for _ in range(6):
        await session.end(await begun(session), 42, "sold out")
    rows = await session.view("error_events")
    numbers = [row["number"] for row in rows]
    assert numbers == list(range(1, len(rows) + 1))
    assert {(row["code"], row["reason"]) for row in rows} == {(42, "sold out")}
    assert 10 < len(rows) <= KEPT  # so that numbers are not sorted as texts
    page = await session.view_page("error_events", limit=9)
    (first, *_) = (await session.view_page("error_events", after=page.next)).rows
    assert first["number"] == 10
