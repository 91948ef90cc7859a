"""Retention: what a queue's conversations receive and send, kept until they end (RCV-31)."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from brokerd.client.messages import Message
from brokerd.client.session import Session
from brokerd.errors import QueueDisabled, QuotaExceeded
from brokerd.ids import show
from tests.integration.one_daemon import OBJECTS, Daemon, play, rows
from tests.integration.scenarios import Collected, Program, given, with_client
from tests.integration.shorthand import fails, take, talk, undone


def keeping(
    limit: dict[str, Any] | None = None,
    *,
    queues: tuple[str, ...] = ("desk",),
    extra: str | None = None,
) -> Callable[[Program[Daemon, Session]], Collected]:
    """Run the test where these queues have retention."""

    @asynccontextmanager
    async def retaining(daemon: Daemon, folder: Path) -> AsyncIterator[tuple[Daemon, Session]]:
        await retain(daemon, limit, queues=queues, extra=extra)
        async with with_client(daemon, folder) as both:
            yield both

    return given(retaining)


async def retain(
    daemon: Daemon,
    limit: dict[str, Any] | None = None,
    *,
    queues: tuple[str, ...] = ("desk",),
    extra: str | None = None,
) -> None:
    """Declare retention for these queues and for no other, and perhaps one more queue."""
    declared: list[dict[str, Any]] = [] if extra is None else [{"name": extra}]
    for one in OBJECTS["queue"]:
        queue = dict(one)
        if queue["name"] in queues:
            queue["retention"] = "on"
            if limit:
                queue["retention_limit"] = limit
        declared.append(queue)
    daemon.objects = {**daemon.objects, "queue": declared}
    async with await daemon.session() as admin:
        await admin.apply(daemon.objects)


async def kept(session: Session, queue: str = "desk") -> list[tuple[int, str, bytes | None]]:
    """Status, type and body of what a queue retains."""
    found = await session.view("retained_messages", bodies=True)
    return [
        (row["status"], row["message_type_name"], row["message_body"])
        for row in found
        if row["queue"] == queue
    ]


async def exchange(session: Session, *, count: int = 1, **options: Any) -> tuple[bytes, bytes]:
    """Questions and answers, all of them received."""
    mine = await talk(session, *[b"ask%d" % number for number in range(count)], **options)
    asked = await take(session, "shop")
    for number in range(count):
        await session.send(asked[0].handle, b"answer%d" % number, "Answer")
    await take(session, "desk")
    return mine, asked[0].handle


@pytest.mark.rule("RCV-31", "RCV-32", "RCV-35", "RCV-14", "SND-22", "RCV-27", "DLG-42")
@keeping()
async def test_received_and_sent_messages_are_kept_until_the_end(
    daemon: Daemon, session: Session
) -> None:
    mine, theirs = await exchange(session)
    assert await kept(session) == [(3, "Ask", b"ask0"), (0, "Answer", b"answer0")]
    assert await kept(session, "shop") == []
    await session.send(mine, b"more", "Ask")
    await session.set_timer(mine, 1, "named")
    (told,) = await take(session, "desk", wait=2)
    assert told.is_timer
    assert (0, told.message_type, None) in await kept(session)
    assert len(await kept(session)) == 4
    (row, *_) = await session.view("retained_messages")
    assert isinstance(row, dict)
    assert row["conversation_handle"] == show(mine)
    assert row["service_name"] == "urn:desk"
    await session.end(theirs)
    await take(session, "desk")
    assert len(await kept(session)) == 5
    await session.end(mine)
    assert await kept(session) == []
    assert await rows(daemon, "retained_messages") == 0


@pytest.mark.rule("RCV-32", "CLP-90", "VIEW-4")
@keeping()
async def test_what_is_retained_is_counted_and_comes_in_pages(
    daemon: Daemon, session: Session
) -> None:
    mine, _ = await exchange(session, count=5)
    seen: list[tuple[int, bytes | None]] = []
    after = None
    while True:
        page = await session.view_page("retained_messages", limit=3, after=after, bodies=True)
        seen += [(row["status"], row["message_body"]) for row in page.rows]
        if page.next is None:
            break
        after = page.next
    assert sorted(body or b"" for status, body in seen if status == 3) == [
        b"ask%d" % number for number in range(5)
    ]
    assert len(seen) == 10
    chosen = {"queue": "desk", "status": 0, "conversation_handle": show(mine)}
    rows = await session.view("retained_messages", where=chosen)
    assert [row["message_type_name"] for row in rows] == ["Answer"] * 5
    assert {row["message_body"] for row in rows} == {None}
    (queue,) = await session.view("service_queues", where={"name": "desk"})
    assert (queue["retained_count"], queue["is_retention_enabled"]) == (10, True)


@pytest.mark.rule("RCV-31", "RCV-25", "RCV-34")
@keeping()
async def test_retained_messages_are_never_received_and_never_ready(
    daemon: Daemon, session: Session
) -> None:
    mine, _ = await exchange(session, count=5)
    state = daemon.broker.queues["desk"]
    assert (state.ready_count, state.oldest_at) == (0, None)
    for options in ({}, {"conversation": mine}):
        assert await take(session, "desk", **options) == []
    assert await take(session, "desk", wait=30) == []
    await session.close()
    await daemon.restart()
    again = await daemon.session()
    assert daemon.broker.queues["desk"].ready_count == 0
    assert await take(again, "desk") == []
    assert len(await kept(again)) == 10
    await again.end(mine)
    assert await kept(again) == []
    await again.close()


@pytest.mark.rule("RCV-35", "SND-3", "RCV-15")
@keeping()
async def test_the_copies_are_part_of_the_transaction(daemon: Daemon, session: Session) -> None:
    mine, theirs = await exchange(session)
    before = await kept(session)
    await session.send(theirs, b"later", "Answer")
    async with undone(session) as tx:
        await tx.send(mine, b"never", "Ask")
        assert [one.body for one in await tx.receive("desk")] == [b"later"]
    assert await kept(session) == before
    async with session.transaction() as tx:
        await tx.receive("desk")
        await tx.send(mine, b"now", "Ask")
    assert sorted(await kept(session)) == sorted(
        [*before, (0, "Answer", b"later"), (3, "Ask", b"now")]
    )


@pytest.mark.rule("RCV-32", "DLG-M1", "DLG-M2", "DLG-M3", "DLG-T10", "DLG-T11")
@pytest.mark.parametrize("how", ["end", "error", "cleanup", "receive and end"])
def test_every_end_deletes_what_is_retained(tmp_path: Path, how: str) -> None:
    async def program(daemon: Daemon) -> None:
        await retain(daemon, queues=("desk", "shop"))
        async with await daemon.session() as session:
            mine, theirs = await exchange(session)
            other, _ = await exchange(session)
            if how == "receive and end":
                await session.send(theirs, b"last", "Answer")
                async with session.transaction() as tx:
                    await tx.receive("desk")
                    await tx.end(mine)
            elif how == "cleanup":
                await session.admin.clean_up(mine, "test")
            else:
                await session.end(mine, *((3, "bad") if how == "error" else ()))
            assert await kept(session) == [(3, "Ask", b"ask0"), (0, "Answer", b"answer0")]
            await session.end(other)
            assert await kept(session) == []
            assert len(await kept(session, "shop")) >= 4  # the other side has not ended

    play(program, tmp_path)


@pytest.mark.rule("RCV-32", "DLG-M4", "DLG-M5", "DLG-M6")
@pytest.mark.parametrize("what", ["end", "error", "lifetime"])
def test_what_the_other_side_or_time_ends_stays_retained(tmp_path: Path, what: str) -> None:
    async def program(daemon: Daemon) -> None:
        await retain(daemon)
        async with await daemon.session() as session:
            mine, theirs = await exchange(session, lifetime=60)
            await session.send(theirs, b"unread", "Answer")
            before = await kept(session)
            assert len(before) == 2
            if what == "lifetime":
                await daemon.pass_time(70)
            else:
                await session.end(theirs, *((7, "enough") if what == "error" else ()))
            assert await kept(session) == before
            got = await take(session, "desk")
            assert len(got) == 2
            assert b"unread" in [one.body for one in got]
            assert len(await kept(session)) == 4
            await session.end(mine)
            assert await kept(session) == []

    play(program, tmp_path)


@pytest.mark.rule("RCV-32", "DLG-M7", "DLG-M8", "OBJ-37", "MAN-6")
@pytest.mark.parametrize("what", ["service", "identity"])
def test_what_ends_all_dialogs_deletes_what_is_retained_and_what_waits(
    tmp_path: Path, what: str
) -> None:
    async def program(daemon: Daemon) -> None:
        await retain(daemon, queues=("desk", "shop"))
        async with await daemon.session() as session:
            mine, theirs = await exchange(session)
            await session.set_timer(mine, 600)
            await session.send(theirs, b"unread", "Answer")
            await daemon.switch("shop", on=False)
            await session.send(mine, b"untransmitted", "Ask")
            assert await rows(daemon, "transmission_queue") == 1
            if what == "service":
                await session.drop("service", "urn:desk", terminate_existing=True)
                await session.alter("queue", "shop", status="on")
                told, *_ = await take(session, "shop")
                assert told.error is not None
                assert told.error.number == -8470
                await session.end(theirs)
            else:
                await session.admin.new_broker()
                await session.alter("queue", "shop", status="on")
                assert await take(session, "shop") == []
            assert await take(session, "desk") == []
            for table in (
                "retained_messages",
                "queue_messages",
                "transmission_queue",
                "conversation_timers",
                "conversation_endpoints",
            ):
                assert await rows(daemon, table) == 0, table

    play(program, tmp_path)


@pytest.mark.rule("RCV-31", "RCV-32")
@keeping()
async def test_retention_is_of_each_service_that_uses_the_queue(
    daemon: Daemon, session: Session
) -> None:
    await session.create("service", "urn:second", queue="desk", contracts=["talk"])
    first, _ = await exchange(session)
    second = await session.begin_dialog("urn:second", "urn:shop", "talk")
    await session.send(second, b"second", "Ask")
    other = await session.begin_dialog("urn:spare", "urn:second", "talk")
    await session.send(other, b"to it", "Ask")
    await take(session, "desk")
    assert sorted(await kept(session)) == [
        (0, "Answer", b"answer0"),
        (0, "Ask", b"to it"),
        (3, "Ask", b"ask0"),
        (3, "Ask", b"second"),
    ]
    assert await kept(session, "spare") == []  # which sent to it, and has none
    await session.end(first)
    assert sorted(await kept(session)) == [(0, "Ask", b"to it"), (3, "Ask", b"second")]


@pytest.mark.rule("RCV-33")
@keeping()
async def test_switching_it_off_keeps_what_there_is(daemon: Daemon, session: Session) -> None:
    mine, _ = await exchange(session)
    await retain(daemon, queues=())
    await session.send(mine, b"not kept", "Ask")
    assert len(await kept(session)) == 2
    await daemon.restart()
    assert len(await kept(session)) == 2
    await session.end(mine)
    assert await kept(session) == []


@pytest.mark.rule("SND-17", "ERR-9617")
@keeping(queues=("shop",))
async def test_send_needs_its_own_queue_only_for_the_copy(daemon: Daemon, session: Session) -> None:
    mine, theirs = await exchange(session)
    await daemon.switch("desk", on=False)
    await session.send(mine, b"fine", "Ask")  # no retention: the own queue does not matter
    await daemon.switch("desk", on=True)
    await daemon.switch("shop", on=False)
    error = await fails(QueueDisabled, session.send(theirs, b"x", "Answer"))
    assert error.ssb_code == 9618
    await daemon.switch("shop", on=True)
    await session.send(theirs, b"x", "Answer")


@pytest.mark.rule("PBT-24")
@pytest.mark.parametrize("limit", [{"max_rows": 4}, {"max_bytes": 25}])
def test_at_the_limit_the_verb_fails(tmp_path: Path, limit: dict[str, int]) -> None:
    async def program(daemon: Daemon) -> None:
        await retain(daemon, {**limit, "policy": "error"})
        session = await daemon.session()
        mine, theirs = await exchange(session, count=2)
        await session.send(theirs, b"answer2", "Answer")
        for _ in range(2):
            await fails(QuotaExceeded, session.send(mine, b"ask4", "Ask"))
            await fails(QuotaExceeded, take(session, "desk"))
            assert len(await kept(session)) == 4
            await session.close()
            await daemon.restart()
            session = await daemon.session()
        await session.end(mine)  # ends are always possible
        await take(session, "shop")
        other, _ = await exchange(session, count=1)  # each conversation has its own
        async with undone(session) as tx:
            await tx.send(other, b"gone", "Ask")
        async with session.transaction() as tx:
            await tx.send(other, b"kept", "Ask")
        await session.close()

    play(program, tmp_path)


@pytest.mark.rule("PBT-24")
@pytest.mark.parametrize("limit", [{"max_rows": 3}, {"max_bytes": 18}])
def test_at_the_limit_the_oldest_are_dropped(tmp_path: Path, limit: dict[str, int]) -> None:
    async def program(daemon: Daemon) -> None:
        await retain(daemon, {**limit, "policy": "drop_oldest"})
        async with await daemon.session() as session:
            mine, _ = await exchange(session, count=2)
            for number in range(5):
                await session.send(mine, b"later%d" % number, "Ask")
            assert [body for _, _, body in await kept(session)] == [b"later2", b"later3", b"later4"]
            await session.end(mine)
            assert await kept(session) == []

    play(program, tmp_path)


@pytest.mark.rule("PBT-24", "VIEW-5")
@pytest.mark.parametrize("limit", [{"max_rows": 2}, {"max_bytes": 14}])
def test_at_the_limit_the_oldest_move_to_the_archive(tmp_path: Path, limit: dict[str, int]) -> None:
    async def program(daemon: Daemon) -> None:
        await retain(daemon, {**limit, "policy": "archive", "archive": "spare"})
        async with await daemon.session() as session:
            mine, _ = await exchange(session, count=2)
            archived = [(3, "Ask", b"ask0"), (3, "Ask", b"ask1")]
            assert sorted(await kept(session, "spare")) == archived
            assert [body for _, _, body in await kept(session)] == [b"answer0", b"answer1"]
            where = {
                one["queue"]: one["is_archived"] for one in await session.view("retained_messages")
            }
            assert where == {"spare": True, "desk": False}
            await session.end(mine)
            assert await kept(session) == []
            stay = await session.view("retained_messages")
            assert [(one["queue"], one["is_archived"]) for one in stay] == [("spare", True)] * 2
            assert await take(session, "spare") == []

    play(program, tmp_path)


@pytest.mark.rule("RCV-31")
def test_a_queue_without_retention_writes_nothing_more(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            mine, theirs = await exchange(session, count=3)
            assert not daemon.broker.retains
            await session.end(theirs)
            await session.end(mine)
            assert await rows(daemon, "retained_messages") == 0

    play(program, tmp_path)


@pytest.mark.rule("RCV-32", "RCV-27", "RCV-25", "VIEW-5")
@keeping()
async def test_retained_messages_are_browsed_behind_those_that_wait(
    daemon: Daemon, session: Session
) -> None:
    mine, theirs = await exchange(session, count=20)
    await session.set_timer(mine, 1, "named")
    await take(session, "desk", wait=2)
    await session.send(theirs, b"waits", "Answer")
    found: list[Message] = []
    after: tuple[int, int] | None = None
    while True:
        page = await session.browse_page("desk", after, 7)
        found += page.messages
        after = page.after
        if after is None:
            break
    assert [(one.status, one.body) for one in found[:1]] == [(1, b"waits")]
    assert sorted(one.status for one in found[1:]) == [0] * 21 + [3] * 20
    (timer,) = [one for one in found if one.is_timer]
    assert (timer.body, timer.timer_name, timer.status) == (None, "named", 0)
    assert {one.handle for one in found} == {mine}


@pytest.mark.rule("PBT-24", "GRP-21")
@keeping({"max_rows": 3})
async def test_a_savepoint_gives_back_what_was_to_be_retained(
    daemon: Daemon, session: Session
) -> None:
    mine = await talk(session, b"1")
    async with session.transaction() as tx:
        await tx.send(mine, b"2", "Ask")
        with suppress(ZeroDivisionError):
            async with tx.savepoint():
                await tx.send(mine, b"undone", "Ask")
                raise ZeroDivisionError
        await tx.send(mine, b"3", "Ask")
    assert [body for _, _, body in await kept(session)] == [b"1", b"2", b"3"]
    await fails(QuotaExceeded, session.send(mine, b"4", "Ask"))


@pytest.mark.rule("PBT-24")
@keeping({"max_rows": 1, "policy": "archive", "archive": "old"}, extra="old")
async def test_nothing_is_trimmed_where_the_archive_is_gone(
    daemon: Daemon, session: Session
) -> None:
    await talk(session, b"1", b"2")
    assert [body for _, _, body in await kept(session, "old")] == [b"1"]
    await session.drop("queue", "old")
    await talk(session, b"3", b"4")
    assert [body for _, _, body in await kept(session)] == [b"2", b"3", b"4"]
