"""What is beyond a queue's window comes into memory in order, whatever happens meanwhile."""

import asyncio
from collections.abc import Sequence, Set
from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokerd.broker.backlog import Backlog, Place
from brokerd.broker.messages import QueuedMessage
from brokerd.broker.state import Group, Live
from brokerd.clock import Instant
from brokerd.ids import EndpointKey, GroupId, MessageId, QueueKey
from brokerd.protocol.transitions import State
from brokerd.storage.changes import QueueRow
from brokerd.storage.rows.message_counts import Tally
from brokerd.storage.rows.paging import Page

KEY = EndpointKey(7)


def row(number: int) -> QueueRow:
    """A message whose order is its sequence, too."""
    return QueueRow(
        number, QueueKey(1), KEY, number, "t", 5, 1, Instant(0), MessageId(b"i" * 16), None, b"x"
    )


def enter(found: Sequence[tuple[Any, Sequence[QueueRow]]]) -> list[Group]:
    """What a window does, without a place for anybody."""
    for live, rows in found:
        live.ready.extend([QueuedMessage.from_row(row) for row in rows])
    return [live.group for live, _ in found]


def beyond_of(page_of: Any, *, tally: Any = None) -> tuple[Backlog, Any]:
    """What is beyond a window, read by these functions, and a conversation there."""
    source = SimpleNamespace(
        page_of=page_of, tally=tally, damaged=None, spawn=asyncio.ensure_future
    )
    beyond = Backlog(
        cast("Any", source),
        page_messages=100,
        page_bytes=1 << 20,
        enter=enter,
        entered=lambda _group: None,
    )
    nothing = cast("Any", None)
    live = Live(
        cast("Any", SimpleNamespace(key=KEY, state=State.CONVERSING, priority=5)),
        group=Group(GroupId(b"g" * 16), "s", nothing),
        queue=nothing,
        contract=nothing,
        coming=nothing,
        is_local=False,
    )
    return beyond, live


async def reading() -> None:
    """Until what is being read is there."""
    (one,) = asyncio.all_tasks() - {cast("Any", asyncio.current_task())}
    await one


@pytest.mark.rule("RCV-8", "REL-4")
async def test_what_is_durable_later_does_not_overtake_what_is_not_published_yet() -> None:
    """12 and 13 are in the file and the loop has not heard of it; 14 comes while it reads."""

    async def page_of(_key: EndpointKey, _limit: int, _size: int, after: Place | None) -> Any:
        if after == (10, 10):
            return Page([row(11), row(12), row(13)], [], (13, 13))
        if after != (13, 13):
            return Page([], [], None)
        for number in (12, 13):
            beyond.published(live, row(number))
        beyond.joining(row(14))
        beyond.published(live, row(14))
        return Page([row(14)], [], (14, 14))

    beyond, live = beyond_of(page_of)
    live.ready.append(QueuedMessage.from_row(row(10)))
    beyond.joining(row(11))
    beyond.published(live, row(11))
    for number in (12, 13):
        beyond.joining(row(number))
    beyond.load_ahead([live], 100)
    await reading()
    assert [one.sequence for one in live.ready] == [10, 11]
    assert live.pins == 0


@pytest.mark.rule("REL-25")
async def test_what_overtakes_messages_that_nobody_receives_is_not_known_for_ever() -> None:
    """The window is full of them; what comes behind is brought in and received at once."""

    async def page_of(_key: EndpointKey, _limit: int, _size: int, after: Place | None) -> Any:
        assert after is not None
        return Page([row(after[1] + 1)], [], (after[1] + 1, after[1] + 1))

    beyond, live = beyond_of(page_of)
    live.ready.append(QueuedMessage.from_row(row(0)))
    for number in range(1, 100):
        beyond.joining(row(number))
        beyond.published(live, row(number))
        beyond.load_ahead([live], 2)
        await reading()
        assert [one.sequence for one in live.ready] == [number - 1, number]
        live.ready.popleft()
    assert beyond.is_empty
    assert not beyond._ahead[5].orders
    beyond.joining(row(100))
    assert beyond.published(live, row(100))  # what comes next is beyond the window again


@pytest.mark.rule("REL-25")
async def test_a_conversation_is_counted_without_a_copy_of_all_that_others_have() -> None:
    """A thousand are counted at once; each copy of tens of thousands would be two megabytes."""

    async def tally(key: EndpointKey, _after: int, but: Set[int]) -> Tally:
        asked.append((key, set(but)))
        return Tally(3, 3)

    asked: list[tuple[EndpointKey, set[int]]] = []
    beyond, live = beyond_of(None, tally=tally)
    beyond.came_in(live, [3, 4])
    live.endpoint.key = EndpointKey(8)
    beyond.came_in(live, range(1000, 2000))
    live.endpoint.key = KEY
    beyond.joining(row(5))
    live.unpublished.append(row(5))
    beyond.count(live, lambda: None)
    await reading()
    assert asked == [(KEY, {3, 4, 5})]
    assert live.beyond == 3


@pytest.mark.rule("REL-6", "REL-10")
async def test_a_row_that_names_another_conversation_than_its_index_keeps_its_place() -> None:
    """The index says whose it is; its body is nobody's, and nothing behind it comes first."""
    wrong = row(12)._replace(endpoint=EndpointKey(9))

    async def page_of(_key: EndpointKey, _limit: int, _size: int, after: Place | None) -> Any:
        if after != (10, 10):
            return Page([], [], None)
        return Page([row(11), row(13)], [wrong], (13, 13))

    beyond, live = beyond_of(page_of)
    told: list[tuple[Any, int]] = []
    beyond.damaged = lambda whose, order, _message_id: told.append((whose, order))
    live.ready.append(QueuedMessage.from_row(row(10)))
    for number in (11, 12, 13):
        beyond.joining(row(number))
        beyond.published(live, row(number))
    beyond.load_ahead([live], 100)
    await reading()
    assert [(one.sequence, one.body) for one in live.ready] == [
        (10, b"x"),
        (11, b"x"),
        (12, None),
        (13, b"x"),
    ]
    assert told == [(live, 12)]
    assert live.beyond == 0
    assert beyond.is_empty
