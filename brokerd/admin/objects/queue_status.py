"""Why a queue is on or off: written with every change that switches one (PBT-1, PSN-9). PURE.

Reads:  the queues as they are, and the changes to come.      Calls: nothing.
Never:  lets a start of the daemon switch on a queue that is off for poison.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from brokerd.clock import Instant
from brokerd.model import Queue, QueueStatus
from brokerd.objects.declared import Action, Change

THE_DAEMON: Final = "the daemon"
"""The actor that applies the declaration of a start."""
MANUAL: Final = "manual"
CREATED_OFF: Final = "created_off"
POISON: Final = frozenset({"poison", "disconnects"})


def stays_off(queue: Queue, actor: str) -> bool:
    """Return whether this actor may not switch the queue on, as it is off for poison (PSN-9)."""
    off_for_poison = queue.status is not None and queue.status.reason in POISON
    return actor == THE_DAEMON and off_for_poison and not queue.is_on


def with_status(
    changes: Iterable[Change], queues: Mapping[str, Queue], *, actor: str, now: Instant
) -> list[Change]:
    """Return the changes; those of queues with the reason why each is on or off from then on."""
    return [_with_status(one, queues, actor, now) for one in changes]


def _with_status(change: Change, queues: Mapping[str, Queue], actor: str, now: Instant) -> Change:
    wanted = change.value
    if not isinstance(wanted, Queue):
        return change
    there = queues.get(change.name)
    status = wanted.status
    if change.action is Action.CREATE or there is None:
        if not wanted.is_on:
            status = QueueStatus(CREATED_OFF, now, actor)
    elif status is not None and status != there.status:
        pass  # the author of the change gives the reason
    elif _flags(there) == _flags(wanted):
        status = there.status
    else:
        status = QueueStatus(MANUAL, now, actor)
    return msgspec.structs.replace(change, value=msgspec.structs.replace(wanted, status=status))


def _flags(queue: Queue) -> tuple[bool, bool]:
    return queue.enqueue_enabled, queue.receive_enabled
