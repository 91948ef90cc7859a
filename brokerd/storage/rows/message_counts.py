"""Message counts: the number of messages of an endpoint that wait beyond its queue's window.

Reads:  queue_messages and the shelves, by the index of endpoints.
Calls:  the reader it is given.
Never:  reads a message; SQLite counts, or returns the numbers of a few.
"""

import json
from collections.abc import Mapping, Sequence, Set
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import (
    Select,
    bindparam,
    func,
    select,
    text,
)

from brokerd.ids import EndpointKey, QueueKey
from brokerd.model import SYSTEM_TYPES
from brokerd.storage.changes import Owner
from brokerd.storage.readers import Reader
from brokerd.storage.rows.bodies import size_of
from brokerd.storage.rows.queues import Skip
from brokerd.storage.shelves import PLACES, Shelves
from brokerd.storage.stretches import (
    STRETCH_ORDERS,
    among,
    found_at,
    table_at,
)
from brokerd.storage.tables import messages_at


class Tally(NamedTuple):
    """A count of messages of an endpoint."""

    messages: int
    application: int
    """Number of messages that an application sent."""


FEW: Final = 500
"""Number of messages of an endpoint up to which they are counted one by one."""
_FEW_TOGETHER: Final = 2000
"""Number of messages of all endpoints in one read up to which the messages are counted singly."""
# One read for all places: each read costs a hop to the reader's thread, and places without rows
# cost little.
_OF_KEYS: Final = " UNION ALL ".join(
    f"SELECT endpoint_key, queuing_order, message_type FROM json_each(:keys)"  # noqa: S608
    f" CROSS JOIN {table_at(place)} INDEXED BY {table_at(place)}_of"
    f" ON {among(place, ':after', ':before')} AND endpoint_key = json_each.value"
    " AND queuing_order > :after AND queuing_order < :before"
    for place in PLACES
)
FEW_OF: Final = select(
    text(
        "json_group_array(json_array(endpoint_key, queuing_order, message_type))"  # noqa: S608
        f" FROM (SELECT * FROM ({_OF_KEYS}) AS counted LIMIT :limit) AS few"
    )
)
"""Statement for endpoint, queuing order and type of messages found by index; values `keys` (JSON),
`after`, `before`, `limit`."""
SAMPLE: Final = 10_000
"""Most messages of a queue of which one read finds out the size (REL-42)."""
_SEEKS: Final = 4096
"""Most seeks in one read of `tallies`: some milliseconds of the reader's thread."""
_Counted = tuple[EndpointKey, int, str]
"""Endpoint, queuing order and type of a message."""


@cache
def count_many(place: int) -> Select[Any]:
    """Return the statement that counts the messages of one endpoint at a place."""
    table = messages_at[place]
    order = table.c.queuing_order
    of = (
        text(among(place, ":after", ":before")),
        table.c.endpoint_key == bindparam("key"),
        order > bindparam("after"),
        order < bindparam("before"),
    )
    # SQLite counts many messages itself. System messages have a sequence below 0, except EndDialog,
    # which is the last message with a higher one: the type of the last message shows whether an
    # EndDialog was counted.
    many = (
        select(
            func.count().label("count"),
            func.count().filter(table.c.sequence >= 0).label("rest"),
            func.max(order).filter(table.c.sequence >= 0).label("last"),
        )
        .where(*of, order.not_in(text("(SELECT value FROM json_each(:but))")))
        .subquery()
    )
    last = select(table.c.message_type).where(order == many.c.last).scalar_subquery()
    return select(many.c.count, many.c.rest, last)


@cache
def _sample(place: int) -> Select[int, Any]:
    """Return the statement that measures messages of one queue at a place."""
    table = messages_at[place]
    some = (
        select(size_of(table, Owner.WAITING).label("size"))
        .where(text(found_at(place)), table.c.queue_key == bindparam("queue"))
        .limit(bindparam("limit"))
        .subquery()
    )
    return select(func.count(), func.sum(some.c.size))


class MessageCounts:
    """The counts of endpoints' waiting messages that are found by index."""

    def __init__(self, reader: Reader, *, shelves: Shelves, skip: Skip) -> None:
        """Create the counts.

        `skip`: messages that count as deleted.
        """
        self._reader = reader
        self._shelves = shelves
        self._skip = skip

    async def tally(
        self,
        key: EndpointKey,
        after: int,
        before: int,
        but: Set[int],
        queue: QueueKey | None = None,
    ) -> Tally:
        """Count messages of an endpoint that were written beyond the window of any queue.

        Only messages with queuing orders between `after` and `before`, and not in `but`, count;
        with `queue`, only messages of this queue. However many there are, each read returns one
        row.
        """
        if key in self._skip.ended():
            return Tally(0, 0)
        places = self._shelves.places_for(queue)
        removed = [self._skip.noted(place.number) for place in places.each]
        few = await self._few_of([key], after, before, FEW + 1)
        if len(few) <= FEW:
            return _counted(few, but, removed)
        found = [
            await self._many_of(key, after, before, place=place.number, but=(but, noted))
            for place, noted in zip(places.each, removed, strict=True)
            if place.first < before
        ]
        return Tally(sum(one.messages for one in found), sum(one.application for one in found))

    async def tallies(
        self,
        but: Mapping[EndpointKey, Set[int]],
        after: int,
        before: int,
        queue: QueueKey,
    ) -> dict[EndpointKey, Tally]:
        """Count messages as `tally` does, for many endpoints of a queue, each with its own `but`.

        The result omits endpoints that have many messages, or whose messages are spread over so
        many stretches that a separate read for each is cheaper.
        """
        found: dict[EndpointKey, Tally] = {}
        places = self._shelves.places_for(queue)
        removed = [self._skip.noted(place.number) for place in places.each]
        stretches = 1 + max(0, before - after) // STRETCH_ORDERS
        ended = self._skip.ended()
        keys = sorted(key for key in but if key not in ended)
        at_once = _SEEKS // (stretches + len(PLACES))
        for at in range(0, len(keys) if at_once else 0, at_once or 1):
            part = keys[at : at + at_once]
            few = await self._few_of(part, after, before, _FEW_TOGETHER + 1)
            if len(few) > _FEW_TOGETHER:
                continue
            of_each: dict[EndpointKey, list[_Counted]] = {key: [] for key in part}
            for one in few:
                of_each[one[0]].append(one)
            found |= {key: _counted(of_each[key], but[key], removed) for key in part}
        return found

    async def sample(self, queue: QueueKey) -> tuple[int, int]:
        """Return number and bytes of bodies of the first `SAMPLE` waiting messages of a queue."""
        messages = size = 0
        for place in self._shelves.places_for(queue).each:
            values = {"queue": queue, "limit": SAMPLE - messages}
            ((count, found),) = await self._reader.rows(_sample(place.number), values)
            messages, size = messages + count, size + (found or 0)
        return messages, size

    async def _few_of(
        self, keys: Sequence[EndpointKey], after: int, before: int, limit: int
    ) -> list[_Counted]:
        values = {"keys": json.dumps(keys), "after": after, "before": before, "limit": limit}
        ((found,),) = await self._reader.hot(FEW_OF, values)
        return msgspec.json.decode(found, type=list[_Counted])

    async def _many_of(
        self,
        key: EndpointKey,
        after: int,
        before: int,
        *,
        place: int,
        but: Sequence[Set[int]],
    ) -> Tally:
        without = [order for order in set().union(*but) if after < order < before]
        values = {"key": key, "after": after, "before": before, "but": json.dumps(without)}
        ((count, rest, last),) = await self._reader.rows(count_many(place), values)
        return Tally(count, rest - (last in SYSTEM_TYPES))


def _counted(found: Sequence[_Counted], but: Set[int], removed: Sequence[Set[int]]) -> Tally:
    kinds = [
        kind
        for _, order, kind in found
        if order not in but and not any(order in noted for noted in removed)
    ]
    return Tally(len(kinds), sum(kind not in SYSTEM_TYPES for kind in kinds))
