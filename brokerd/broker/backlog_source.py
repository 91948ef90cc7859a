"""The reads of one queue's backlog, as functions over its store (design D4).

Reads:  the store.      Calls: store_reads.
Never:  keeps anything; `backlog.py` decides what is read, and when.
Fails:  a read that the store cannot answer yet is repeated until it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Set

from brokerd.broker.backlog import Place, Source
from brokerd.broker.state import Group, Live
from brokerd.broker.store_reads import Spawn, read_until_answered
from brokerd.ids import EndpointKey, MessageId, QueueKey
from brokerd.storage.rows.message_counts import Tally
from brokerd.storage.store import QueuePage, Store


def source_of(
    store: Store,
    queue: QueueKey,
    *,
    complete_groups: Callable[[Collection[Live]], Awaitable[None]],
    hold: Callable[[set[EndpointKey]], Awaitable[Mapping[EndpointKey, Live]]],
    damaged: Callable[[Live, int, MessageId], None],
    members: Callable[[Group], Awaitable[list[Live]]],
    spawn: Spawn,
) -> Source:
    """Return the functions that read the backlog of a queue; see `Source` for the others."""

    async def page(level: int, after: int, limit: int, size: int) -> QueuePage:
        return await read_until_answered(store.messages.page, queue, level, after, limit, size)

    async def page_of(key: EndpointKey, limit: int, size: int, after: Place | None) -> QueuePage:
        return await read_until_answered(store.messages.page_for, key, limit, size, after, queue)

    async def tally(key: EndpointKey, after: int, but: Set[int]) -> Tally:
        return await read_until_answered(
            store.message_counts.tally, key, after, store.coming_order, but, queue
        )

    async def tallies(
        but: Mapping[EndpointKey, Set[int]], after: int
    ) -> Mapping[EndpointKey, Tally]:
        return await read_until_answered(
            store.message_counts.tallies, but, after, store.coming_order, queue
        )

    async def sample() -> tuple[int, int]:
        return await read_until_answered(store.message_counts.sample, queue)

    return Source(
        page=page,
        page_of=page_of,
        tally=tally,
        tallies=tallies,
        complete_groups=complete_groups,
        hold=hold,
        damaged=damaged,
        members=members,
        sample=sample,
        spawn=spawn,
    )
