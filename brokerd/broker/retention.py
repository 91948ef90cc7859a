"""Retention: messages received and sent on a queue are kept until their conversation ends (RCV-31).

Reads: the store, for how much of a conversation is retained already.
Calls: storage (through the broker).      Never: counts anything of a queue without retention.

Under the policy `error`, retained messages are counted in memory, once their number was read, so
that a verb knows whether there is room; under the other policies the store trims the excess as it
is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from brokerd.broker.blocked import Blocked, Resume
from brokerd.broker.broker import Broker
from brokerd.broker.messages import NewMessage
from brokerd.broker.state import HomeQueue, Live, Taken
from brokerd.broker.store_reads import read_until_answered
from brokerd.clock import Instant
from brokerd.errors import QueueDisabled, QuotaExceeded
from brokerd.ids import show
from brokerd.model import RetentionLimit, RetentionPolicy
from brokerd.protocol.headers import flags_of
from brokerd.storage.changes import Changes, RetainedRow, Trim
from brokerd.storage.rows.retention import SENT, Kept
from brokerd.units import counted


def before_send(broker: Broker, lives: Iterable[Live], size: int) -> Blocked | None:
    """Check that a send may be retained by its own queue (SND-17, PBT-24).

    Return the wait if the count of retained messages has to be read first."""
    for live in lives:
        queue = live.queue
        if not queue.retains:
            continue
        if not queue.queue.enqueue_enabled:
            raise QueueDisabled(
                f"queue {queue.name!r} is off and has retention, so the copy of what is sent "
                "cannot be kept",
                ssb_code=9618,
            )
        blocked = _room(broker, live, 1, size)
        if blocked is not None:
            return blocked
    return None


def before_receive(broker: Broker, lives: Iterable[Live]) -> Blocked | None:
    """Return the wait until the retained messages of conversations to receive from are counted.

    None: no count is missing."""
    for live in lives:
        if live.queue.retains and _is_counted(live) and live.kept is None:
            return _count(broker, live)
    return None


def check_received(taken: Sequence[Taken]) -> None:
    """Raise `QuotaExceeded` if messages just dequeued are more than may be retained (PBT-24)."""
    for live, messages, size, _ in taken:
        _check(live, len(messages), size)


def reserve(live: Live, rows: int, size: int) -> bool:
    """Count messages that a verb will retain of a conversation; return whether they are limited."""
    if not live.queue.retains or not _is_counted(live) or live.kept is None:
        return False
    live.kept = Kept(live.kept.rows + rows, live.kept.bytes + size)
    return True


def give_back(live: Live, rows: int, size: int) -> None:
    """Give back the reservation of a rolled back transaction."""
    if live.kept is not None:
        live.kept = Kept(live.kept.rows - rows, live.kept.bytes - size)


def sent_copy(
    broker: Broker, live: Live, sequence: int, message: NewMessage, now: Instant
) -> RetainedRow:
    """Return the retained copy of a message that is being sent (RCV-35)."""
    endpoint = live.endpoint
    return RetainedRow(
        broker.store.next_queuing_order(),
        live.queue.queue.key,
        endpoint.key,
        endpoint.handle,
        endpoint.conversation_id,
        endpoint.group_id,
        endpoint.service,
        endpoint.contract,
        SENT,
        sequence,
        message.message_type,
        endpoint.priority,
        now,
        message.message_id,
        message.body,
        flags_of(message.body),
    )


def trim_of(broker: Broker, queue: HomeQueue) -> Trim | None:
    """Return the limits to which the store trims retained messages; None = it does not trim."""
    limit = queue.queue.retention_limit
    if not _is_limited(limit) or limit.policy is RetentionPolicy.ERROR:
        return None
    if not limit.archive:
        return Trim(limit.max_rows, limit.max_bytes, None)
    archive = broker.queues.get(limit.archive)
    if archive is None:  # it was dropped: keep too much rather than lose anything
        return None
    return Trim(limit.max_rows, limit.max_bytes, archive.queue.key)


def _is_limited(limit: RetentionLimit) -> bool:
    return bool(limit.max_rows or limit.max_bytes)


def _is_counted(live: Live) -> bool:
    limit = live.queue.queue.retention_limit
    return limit.policy is RetentionPolicy.ERROR and _is_limited(limit)


def _room(broker: Broker, live: Live, rows: int, size: int) -> Blocked | None:
    if not _is_counted(live):
        return None
    if live.kept is None:
        return _count(broker, live)
    _check(live, rows, size)
    return None


def _check(live: Live, rows: int, size: int) -> None:
    kept, limit = live.kept, live.queue.queue.retention_limit
    if kept is None or not _is_counted(live):
        return
    too_many = limit.max_rows and kept.rows + rows > limit.max_rows
    too_large = limit.max_bytes and kept.bytes + size > limit.max_bytes
    if too_many or too_large:
        raise QuotaExceeded(
            f"queue {live.queue.name!r} retains {counted(kept.rows, 'message')} of {kept.bytes} "
            f"bytes of conversation {show(live.endpoint.handle)}, and may not retain more",
            hint="end the conversation, or raise retention_limit of the queue",
        )


def _count(broker: Broker, live: Live) -> Blocked:
    def register(resume: Resume) -> None:
        async def read() -> None:
            await broker.store.commit(Changes())  # so that changes under way count as well
            kept = await read_until_answered(broker.store.retained.size, live.endpoint.key)
            if live.kept is None:
                live.kept = kept
            resume()

        broker.spawn(read())

    return Blocked("retained", register)
