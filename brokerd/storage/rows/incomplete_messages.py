"""Incomplete messages: the stored fragments of messages that are arriving; statements.

Reads:  bodies, body_pieces, and the endpoints of the messages.      Calls: the reader it is given.
Never:  assembles a message; the broker does, when the last fragment arrives.
"""

from typing import Final, NamedTuple

from sqlalchemy import (
    bindparam,
    func,
    literal_column,
    select,
)

from brokerd.ids import BodyKey, EndpointKey
from brokerd.storage.changes import Owner
from brokerd.storage.readers import Reader
from brokerd.storage.rows import bodies
from brokerd.storage.tables import bodies as stored_bodies
from brokerd.storage.tables import body_pieces, services
from brokerd.storage.tables import conversation_endpoints as endpoints
from brokerd.storage.tables import endpoint_progress as progress

INCOMPLETE: Final = (
    select(stored_bodies.c.number, progress.c.receive_sequence)
    .select_from(
        stored_bodies.join(endpoints, endpoints.c.endpoint_key == stored_bodies.c.number)
        .join(progress, progress.c.endpoint_key == endpoints.c.endpoint_key)
        .join(services, services.c.name == endpoints.c.service)
    )
    .where(
        services.c.queue == bindparam("queue"),
        stored_bodies.c.owner == literal_column(str(int(Owner.ARRIVING))),
        stored_bodies.c.number > bindparam("after"),
    )
    .order_by(stored_bodies.c.number)
    .limit(bindparam("limit"))
)
PARTS: Final = (
    select(body_pieces.c.body_key, body_pieces.c.piece, body_pieces.c.hash, body_pieces.c.data)
    .join(stored_bodies, stored_bodies.c.body_key == body_pieces.c.body_key)
    .where(
        stored_bodies.c.owner == literal_column(str(int(Owner.ARRIVING))),
        stored_bodies.c.number == bindparam("endpoint"),
    )
    .order_by(body_pieces.c.piece)
)
PARTS_KNOWN: Final = (
    select(
        body_pieces.c.body_key,
        func.count(),
        func.coalesce(func.sum(func.length(body_pieces.c.data)), 0),
    )
    .join(stored_bodies, stored_bodies.c.body_key == body_pieces.c.body_key)
    .where(
        stored_bodies.c.owner == literal_column(str(int(Owner.ARRIVING))),
        stored_bodies.c.number == bindparam("endpoint"),
    )
    .group_by(body_pieces.c.body_key)
)


class StoredParts(NamedTuple):
    """The stored fragments of an incomplete message."""

    key: BodyKey | None
    """Key of the message's body; None = nothing is stored."""
    bodies: list[bytes] | None
    """The fragments from the first on; None = one is not as it was written (REL-6)."""


class KnownParts(NamedTuple):
    """The body key, number and size of the stored fragments of an incomplete message."""

    key: BodyKey | None
    """Key of the message's body; None = nothing is stored."""
    fragments: int
    """Number of fragments."""
    size: int
    """Bytes of the fragments."""


class IncompleteMessages:
    """The stored fragments of messages of which some fragments are still missing."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def endpoints(
        self, queue: str, limit: int, after: EndpointKey
    ) -> list[tuple[EndpointKey, int]]:
        """Return endpoint and sequence of the incomplete messages of a queue (status 2)."""
        rows = await self._reader.rows(INCOMPLETE, {"queue": queue, "limit": limit, "after": after})
        return [(EndpointKey(row[0]), row[1]) for row in rows]

    async def known_parts(self, endpoint: EndpointKey) -> KnownParts:
        """Return the amount stored of the endpoint's incomplete message, without reading a body."""
        rows = await self._reader.rows(PARTS_KNOWN, {"endpoint": endpoint})
        if not rows:
            return KnownParts(None, 0, 0)
        key, count, size = rows[0]
        return KnownParts(BodyKey(key), int(count), int(size))

    async def parts(self, endpoint: EndpointKey) -> StoredParts:
        """Return the stored fragments of the endpoint's incomplete message."""
        rows = await self._reader.rows(PARTS, {"endpoint": endpoint})
        if not rows:
            return StoredParts(None, [])
        key = BodyKey(rows[0][0])
        try:
            return StoredParts(key, list(bodies.sound(key, (row[1:] for row in rows))))
        except bodies.DamagedPieceError:
            return StoredParts(key, None)
