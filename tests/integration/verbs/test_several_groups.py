"""A receive of several conversation groups: what it takes and locks, and where it ends (RCV-44)."""

import asyncio
from collections.abc import Container
from contextlib import suppress
from typing import Any
from unittest.mock import patch

import pytest

from brokerd.broker.ready_groups import ReadyGroups
from brokerd.broker.state import Group, Holder
from brokerd.client.messages import FOREVER
from brokerd.client.session import Session
from brokerd.errors import BadRequest, InvalidArgument, QuotaExceeded
from brokerd.protocol.client_verbs import parse_request
from tests.integration.one_daemon import Daemon, closing
from tests.integration.scenarios import scenario, with_limits
from tests.integration.shorthand import bodies, fails, take, talk, undone


@pytest.mark.rule("RCV-44", "RCV-2")
@scenario
async def test_messages_of_a_group_stand_together(daemon: Daemon, session: Session) -> None:
    first, second, third = [await talk(session, b"%d" % one) for one in range(3)]
    for handle in (third, first, second):
        await session.send(handle, b"again", "Ask")
    async with session.transaction() as tx:
        got = await tx.receive("shop", groups=1000)
    assert bodies(got) == [b"0", b"again", b"1", b"again", b"2", b"again"]
    assert len({one.group_id for one in got}) == 3
    assert all(got[at].group_id == got[at + 1].group_id for at in (0, 2, 4))


@pytest.mark.rule("RCV-44", "GRP-8")
@scenario
async def test_each_group_is_locked_and_given_back(daemon: Daemon, session: Session) -> None:
    for one in range(3):
        await talk(session, b"%d" % one)
    async with undone(session) as tx:
        assert bodies(await tx.receive("shop", groups=2)) == [b"0", b"1"]
        other = await daemon.session()
        async with closing(other):
            assert bodies(await take(other, "shop")) == [b"2"]
            assert await take(other, "shop") == []
    assert bodies(await take(session, "shop")) == [b"0"]
    assert bodies(await take(session, "shop")) == [b"1"]


@pytest.mark.rule("RCV-44", "RCV-5")
@scenario
async def test_max_messages_is_of_all_together(daemon: Daemon, session: Session) -> None:
    for one in range(3):
        await talk(session, b"%d a" % one, b"%d b" % one)
    async with session.transaction() as tx:
        got = await tx.receive("shop", 3, groups=5)
        rest = await tx.receive("shop", 3, groups=5)
    assert bodies(got) == [b"0 a", b"0 b", b"1 a"]
    assert bodies(rest) == [b"1 b", b"2 a", b"2 b"]


@pytest.mark.rule("RCV-44")
@with_limits(max_message=1500, max_bytes=3000)
async def test_it_ends_where_the_transaction_is_full(daemon: Daemon, session: Session) -> None:
    for _ in range(4):
        await talk(session, bytes(1500))
    async with session.transaction() as tx:
        assert len(await tx.receive("shop", groups=4)) == 2
    assert len(await take(session, "shop")) == 1


@pytest.mark.rule("RCV-44", "RCV-18")
@scenario
async def test_only_the_first_waits(daemon: Daemon, session: Session) -> None:
    async def read() -> list[bytes | None]:
        async with reader.transaction() as tx:
            return bodies(await tx.receive("shop", groups=5, wait=FOREVER))

    reader = await daemon.session()
    async with closing(reader):
        reading = asyncio.create_task(read())
        await daemon.pass_time(0.1)
        await talk(session, b"now")
        assert await reading == [b"now"]


@pytest.mark.rule("RCV-44", "ACT-12")
@scenario
async def test_only_one_that_finds_too_few_counts_as_empty(
    daemon: Daemon, session: Session
) -> None:
    empty: list[str] = []
    daemon.broker.queues["shop"].on_empty = lambda queue: empty.append(queue.name)
    for one in range(3):
        await talk(session, b"%d" % one)
    async with session.transaction() as tx:
        assert len(await tx.receive("shop", 1, groups=1000)) == 1  # that is all it may take
        assert len(await tx.receive("shop", groups=1)) == 1
        assert empty == []
        assert len(await tx.receive("shop", groups=2)) == 1
        assert empty == ["shop"]


@pytest.mark.rule("RCV-44", "CLP-40")
@scenario
async def test_cancelled_it_takes_nothing(daemon: Daemon, session: Session) -> None:
    reader = await daemon.session()
    async with closing(reader):
        tx = reader.transaction()
        reading = asyncio.create_task(tx.receive("shop", groups=5, wait=FOREVER))
        await daemon.pass_time(0.1)
        reading.cancel()
        await asyncio.wait([reading])
        await talk(session, b"here")
        assert bodies(await take(session, "shop")) == [b"here"]
        tx.rollback()


@pytest.mark.rule("RCV-44", "PBT-24")
@scenario
async def test_a_group_of_which_no_more_may_be_retained_is_left(
    daemon: Daemon, session: Session
) -> None:
    """Else those before it would be rolled back with it, each time anew."""
    full = await talk(session, b"0")
    await session.alter(
        "queue", "shop", retention="on", retention_limit={"max_rows": 1, "policy": "error"}
    )
    assert bodies(await take(session, "shop")) == [b"0"]
    await talk(session, b"1")
    await talk(session, b"2")
    await session.send(full, b"too many", "Ask")
    await talk(session, b"3")
    async with session.transaction() as tx:
        assert bodies(await tx.receive("shop", groups=10)) == [b"1", b"2"]
        other = await daemon.session()
        async with closing(other), undone(other) as others:  # it is free for whoever comes next
            await fails(QuotaExceeded, others.receive("shop", groups=10))
    await fails(QuotaExceeded, take(session, "shop"))


@pytest.mark.rule("RCV-44", "RCV-3")
@scenario
async def test_groups_that_are_done_with_are_looked_at_no_more(
    daemon: Daemon, session: Session
) -> None:
    """A transaction that has many groups would choose the slower the more it has."""
    handles = [await talk(session, b"%d" % one) for one in range(40)]
    looked: list[int] = []
    best = ReadyGroups.best

    def counting(ready: ReadyGroups, holder: Holder, but: Container[Group] = ()) -> Group | None:
        looked.append(len(holder.ready))
        return best(ready, holder, but)

    with patch.object(ReadyGroups, "best", counting):
        async with session.transaction() as tx:
            assert len(await tx.receive("shop", groups=40)) == 40
            assert max(looked) <= 1
            await session.send(handles[3], b"more", "Ask")
            assert bodies(await tx.receive("shop", groups=40)) == [b"more"]


@pytest.mark.rule("RCV-44", "RCV-3", "GRP-21")
@scenario
async def test_what_is_put_back_may_be_received_again(daemon: Daemon, session: Session) -> None:
    await talk(session, b"1")
    await talk(session, b"2")
    async with session.transaction() as tx:
        assert bodies(await tx.receive("shop")) == [b"1"]
        with suppress(RuntimeError):
            async with tx.savepoint():
                assert bodies(await tx.receive("shop", groups=5)) == [b"2"]
                raise RuntimeError
        assert bodies(await tx.receive("shop", groups=5)) == [b"2"]


@pytest.mark.rule("RCV-44", "SDK-18")
@scenario
async def test_what_cannot_be_right_is_refused(daemon: Daemon, session: Session) -> None:
    handle = await talk(session, b"one")
    async with session.transaction() as tx:
        for wrong in (0, 1001, "all"):
            error = await fails(InvalidArgument, tx.receive("shop", groups=wrong))  # type: ignore[arg-type]
            assert "groups" in error.message
            assert "1000" in (error.hint or "")
        selectors: list[dict[str, Any]] = [{"conversation": handle}, {"group": handle}]
        for selector in selectors:
            named = await fails(InvalidArgument, tx.receive("desk", **selector, groups=2))
            assert "groups" in named.message
        assert bodies(await tx.receive("shop", groups=2)) == [b"one"]


@pytest.mark.rule("CLP-35", "RCV-44")
@pytest.mark.parametrize(
    ("args", "what"),
    [
        (("shop", 1, None, None, None, 1, 2), "transaction"),
        (("shop", 1, bytes(16), None, None, None, 2), "groups"),
        (("shop", 1, None, bytes(16), None, None, 2), "groups"),
        (("shop", 1, None, None, None, None, 1001), "groups"),
        (("shop", 1, None, None, None, None, 0), "groups"),
    ],
)
def test_so_it_is_on_the_wire(args: tuple[object, ...], what: str) -> None:
    with pytest.raises(BadRequest, match=what):
        parse_request(None if args[5] else 3, "receive", list(args))
