"""Messages in memory: those that a verb or a local delivery carries, and those in a window. PURE.

Reads: nothing.      Calls: nothing.      Never: change, except for counts.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import orjson

from brokerd.clock import Instant, show_instant
from brokerd.ids import BodyKey, MessageId, show
from brokerd.model import SYSTEM_TYPES
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.headers import Content
from brokerd.storage.changes import QueueRow


class NewMessage(msgspec.Struct, frozen=True, gc=False):
    """A message that an application sends, or that a local delivery carries."""

    message_type: str
    body: bytes | None
    """The content: a `Content` if the message has headers."""
    message_id: MessageId
    body_key: BodyKey | None = None
    """The key under which a large body is stored already."""
    retained_key: BodyKey | None = None
    """The key under which the retained copy of a large body is stored already."""


class QueuedMessage(msgspec.Struct, gc=False):
    """A committed message in the window."""

    order: int
    sequence: int
    message_type: str
    enqueued_at: Instant
    message_id: MessageId
    body: bytes | None
    """The content: a `Content` if the message has headers."""
    place: int = 0
    """The place in the store (`QueueRow.paged`)."""
    deliveries: int = 0
    """Number of receives of the message rolled back since this daemon started (RCV-30)."""

    @classmethod
    def from_row(cls, row: QueueRow) -> QueuedMessage:
        """Return the message of a row."""
        order, _, _, sequence, message_type, _, place, enqueued_at, message_id, _, body, _ = row
        if type(body) is Content:
            body.release()  # its checks are over, and it may wait for long
        return cls(order, sequence, message_type, enqueued_at, message_id, body, place)

    @classmethod
    def from_rows(cls, rows: Iterable[QueueRow]) -> list[QueuedMessage]:
        """Return the messages of rows, each in half the time of `from_row`."""
        return [
            cls(order, sequence, message_type, at, message_id, body, place)
            for order, _, _, sequence, message_type, _, place, at, message_id, _, body, _ in rows
        ]


def size_of(messages: Iterable[QueuedMessage]) -> int:
    """Return the total bytes of the bodies."""
    return sum([len(one.body) for one in messages if one.body])


def error_body(endpoint: DialogEndpoint, code: int, description: str, now: Instant) -> bytes:
    """Return the body of an Error message (DLG-29)."""
    return orjson.dumps(
        {
            "code": code,
            "description": description,
            "origin": "application" if code > 0 else "broker",
            "conversation_id": show(endpoint.conversation_id),
            "at": show_instant(now),
        }
    )


class Counting:
    """Changes to an endpoint's backlog while it is being counted."""

    __slots__ = ("application", "messages")

    def __init__(self) -> None:
        self.messages = self.application = 0

    def add(self, message_type: str, count: int) -> None:
        """Add `count` to the number of messages of this type."""
        self.messages += count
        if message_type not in SYSTEM_TYPES:
            self.application += count
