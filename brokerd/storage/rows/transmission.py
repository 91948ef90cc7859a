"""Transmission queue (messages that wait for the peer's acknowledgement): statements, row mapping.

Reads:  transmission_queue.      Calls: the reader it is given.
Never:  decides which messages are sent; the transmitter does.
"""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import bindparam, literal_column

from brokerd.clock import Instant
from brokerd.ids import EndpointKey, MessageId
from brokerd.storage.changes import OutgoingRow, Owner
from brokerd.storage.readers import Reader, Values
from brokerd.storage.rows.paging import Page, bounded, fetch
from brokerd.storage.statements import Deletes, Inserts, Row, Script
from brokerd.storage.tables import PAGED, transmission_queue

_insert = Inserts(transmission_queue)
_delete = Deletes(transmission_queue.c.transmission_order)
_DELETE_OF: Final = (
    f"DELETE FROM transmission_queue WHERE endpoint_key = ? AND sequence <= ? AND {PAGED}"  # noqa: S608
)


def remove_of(script: Script, ends: Sequence[tuple[EndpointKey, int]]) -> None:
    """Delete messages of endpoints by index, up to a sequence for each endpoint."""
    script.add(_DELETE_OF, *ends)


def write(script: Script, outgoing: Sequence[Row], acknowledged: Sequence[int]) -> None:
    """Write messages, then delete the messages with the transmission orders `acknowledged`."""
    _insert.add(script, outgoing)
    _delete.add(script, acknowledged)


# The condition is that of the partial index, word for word, or SQLite does not use it.
PAGE: Final = bounded(
    transmission_queue,
    Owner.OUTGOING,
    [
        literal_column(PAGED),
        transmission_queue.c.endpoint_key == bindparam("endpoint"),
        transmission_queue.c.sequence >= bindparam("from_sequence"),
    ],
    [transmission_queue.c.sequence],
)
LISTED: Final = bounded(
    transmission_queue,
    Owner.OUTGOING,
    [transmission_queue.c.transmission_order > bindparam("after")],
    [transmission_queue.c.transmission_order],
)


def _message(row: Values) -> OutgoingRow:
    return OutgoingRow(
        transmission_order=row[0],
        endpoint=EndpointKey(row[1]),
        sequence=row[2],
        flags=row[3],
        message_type=row[4],
        fragment_size=row[5],
        paged=row[6],
        enqueued_at=Instant(row[7]),
        message_id=MessageId(row[8]),
        body_hash=row[9],
        body=row[10],
    )


OutgoingPage = Page[OutgoingRow]


class OutgoingMessages:
    """The stored transmission queue, read in pages."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def page(
        self, endpoint: EndpointKey, from_sequence: int, limit: int, max_bytes: int
    ) -> OutgoingPage:
        """Return messages of the endpoint beyond the window (paged = 1), by sequence."""
        values = {
            "endpoint": endpoint,
            "from_sequence": from_sequence,
            "limit": limit,
            "max_bytes": max_bytes,
        }
        return await fetch(self._reader, PAGE, values, _message, owner=Owner.OUTGOING)

    async def listed(self, limit: int, max_bytes: int, after: int = -1) -> OutgoingPage:
        """Return outgoing messages by transmission order, for views."""
        values = {"after": after, "limit": limit, "max_bytes": max_bytes}
        return await fetch(self._reader, LISTED, values, _message, owner=Owner.OUTGOING)
