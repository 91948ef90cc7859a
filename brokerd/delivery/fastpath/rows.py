"""Changesets of ordinary messages, written directly into the gathering flush (design D2).

Reads: the broker's memory.      Calls: the gathering flush of the store.
Never: decides which messages are ordinary: `broker.ordinary` does.

Many such messages come together: the flush, the time and the catalog are looked up once for all of
them. Between `gather` and `join_written` nothing else may join the store.
"""

from __future__ import annotations

from brokerd.broker.broker import Broker
from brokerd.broker.ordinary import TargetChecks
from brokerd.broker.state import Live
from brokerd.clock import Instant
from brokerd.ids import MessageId
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.headers import Content
from brokerd.protocol.items import HEADERS
from brokerd.storage.changes import QueueRow
from brokerd.storage.flush import Flush
from brokerd.storage.hashes import body_hash


class OrdinaryRows:
    """A run of ordinary messages, whose rows join one flush together."""

    __slots__ = ("_broker", "_flush", "_now", "_serial", "_target", "arrived")

    def __init__(self, broker: Broker, *, checked: bool = False) -> None:
        """Begin a run; `checked`: whether bodies may have a verdict of the checking process."""
        self._broker = broker
        self._flush: Flush = broker.store.gather()
        self._serial = broker.store.gathering
        self._now: Instant = broker.clock.utc()
        self._target = TargetChecks(broker, checked=checked)
        self.arrived: list[tuple[Live, QueueRow]] = []
        """Rows appended to queues, to be published once they are durable."""

    def _enqueue(
        self,
        live: Live,
        got: DialogEndpoint,
        message_type: str,
        message_id: MessageId,
        body: bytes | None,
    ) -> None:
        """Append a message to the queue of its receiver, whose new state is `got`."""
        self._append(live, got, got.receive_sequence - 1, message_type, message_id, body)
        # Copies of `Live.stepped` and `Live.joined`: without a call for each message.
        self._flush.progress[got.key] = live.endpoint = got
        live.serial = self._serial

    def _append(  # noqa: PLR0917  # twice a dialog: by name it takes longer
        self,
        live: Live,
        got: DialogEndpoint,
        sequence: int,
        message_type: str,
        message_id: MessageId,
        body: bytes | None,
    ) -> None:
        """Append a message to the queue of an endpoint that was already stepped for it."""
        store, flush, queue, priority = self._broker.store, self._flush, live.queue, got.priority
        size = len(body) if body else 0
        place = store.shelves.place(queue.queue.key) if queue.must_page(priority, size) else 0
        row = QueueRow(
            store.next_queuing_order(),
            queue.queue.key,
            got.key,
            sequence,
            message_type,
            priority,
            place,
            self._now,
            message_id,
            body_hash(got.conversation_id, not got.is_initiator, sequence, body) if body else None,
            body,
            HEADERS if type(body) is Content else 0,  # `flags_of` without a call
        )
        flush.enqueued.append(row)
        flush.bytes += size
        live.unpublished.append(row)
        if place:
            queue.joining(row)
        if queue.room is not None:
            queue.room.joining(size)
        self.arrived.append((live, row))
