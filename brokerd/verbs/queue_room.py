"""Sends onto a queue of this broker that has limits (REL-42).

Reads:  the queue that a message would go onto.      Calls: broker.transaction.
Never:  refuses a message of the broker itself, or one that leaves by the transmission queue: that
        one waits there, and its receiver refuses it.
"""

from __future__ import annotations

from collections.abc import Sequence

from brokerd.broker.broker import Broker
from brokerd.broker.state import HomeQueue, Live
from brokerd.broker.transaction import Transaction
from brokerd.errors import QueueFull
from brokerd.model import is_system
from brokerd.units import counted


def reserve(tx: Transaction, lives: Sequence[Live], size: int) -> None:
    """Reserve room for a message of `size` bytes on each dialog; all or none.

    Raises:
        QueueFull: a queue is at its limit, with what open transactions have sent to it.
    """
    queues = [queue for queue in (_queue_of(tx, live) for live in lives) if queue is not None]
    for at, queue in enumerate(queues):
        ahead = queues[:at].count(queue)
        if queue.room is not None and queue.is_at_limit(ahead, ahead * size):
            queue.room.refuse(tx.broker.clock.utc())
            raise _full(tx.broker, queue)
    for queue in queues:
        if queue.room is not None:
            tx.enter(queue.room, size)


def _queue_of(tx: Transaction, live: Live) -> HomeQueue | None:
    """Return the queue with limits that a message goes onto; None = it is another, or far away."""
    broker, endpoint, peer = tx.broker, live.endpoint, live.peer
    queue: HomeQueue
    if peer is not None:
        queue = peer.queue
    elif endpoint.is_initiator and not endpoint.send_sequence:  # its first message opens the target
        service = broker.services.get(endpoint.far_service)
        if service is None:
            return None
        queue = broker.queues[service.queue]
    else:
        return None
    if queue.room is None or is_system(endpoint.service):
        return None
    view = tx.view(live)
    if view is None or not broker.delivers_directly(live, view.send_sequence):
        return None
    return queue


def _full(broker: Broker, queue: HomeQueue) -> QueueFull:
    limits = queue.queue
    most = [
        *([counted(limits.max_messages, "message")] if limits.max_messages else []),
        *([f"{limits.max_bytes} bytes"] if limits.max_bytes else []),
    ]
    return QueueFull(
        f"queue {queue.name!r} of broker {broker.name!r} is at its limit of {' or '.join(most)}",
        hint=f"let its messages be received, or raise the limit: brokerd queue alter {queue.name} "
        f"--broker {broker.name} max_messages=N max_bytes=SIZE",
    )
