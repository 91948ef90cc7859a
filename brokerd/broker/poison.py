"""Poison: effects of a rollback on the queue or group of the messages given back (PSN). PURE.

Reads:  a rollback and the counts before it, as arguments.      Calls: nothing.
Never:  switches a queue off or holds a group; `parking.py` and the administration do.

Service Broker's own way: five rollbacks in a row of transactions that received from a queue switch
it off. With `poison_mode = "park"` each group has a stored count of its own, waits longer after
each rollback, and in the end only that group is set aside (PBT-3).
"""

from __future__ import annotations

from typing import Final

import msgspec

from brokerd import units
from brokerd.clock import SECOND, Instant
from brokerd.model import Poison, PoisonMode, Queue
from brokerd.storage.changes import HeldRow

POISON: Final = "poison"
DISCONNECTS: Final = "disconnects"
"""Reason for which a queue was switched off (PBT-1, PBT-10)."""


class Undone(msgspec.Struct, frozen=True):
    """The way in which a receiving transaction was rolled back, if it may count (PSN-16,
    PSN-17)."""

    error: str = ""
    """The cause, as given by the program."""
    counts: bool = True
    disconnect: bool = False
    """Whether its connection was cut during the transaction; counted separately (PBT-10)."""
    retry_after: float | None = None
    """Seconds for which its groups are not received."""
    park: str | None = None
    """The reason for parking its groups; None = they are not parked."""


class Streak(msgspec.Struct, frozen=True):
    """Rollbacks in a row on a queue, since a commit that received from it (PSN-2, PSN-4)."""

    rollbacks: int = 0
    disconnects: int = 0


NO_STREAK: Final = Streak()


def counted(queue: Queue, streak: Streak, how: Undone) -> Streak:
    """Return the streak of a queue after a rollback; the same object if it does not count."""
    if not (queue.poison_handling and how.counts) or queue.poison.mode is PoisonMode.PARK:
        return streak
    if how.disconnect:
        return msgspec.structs.replace(streak, disconnects=streak.disconnects + 1)
    return msgspec.structs.replace(streak, rollbacks=streak.rollbacks + 1)


def verdict(poison: Poison, streak: Streak) -> str:
    """Return why a queue is to be switched off now; empty = it is not (PSN-2, PBT-10)."""
    if streak.rollbacks >= poison.limit:
        return POISON
    return DISCONNECTS if streak.disconnects >= poison.disconnects else ""


def judged(row: HeldRow, queue: Queue, how: Undone, *, now: Instant) -> HeldRow:
    """Return a group's row after a rollback: counted, and perhaps delayed or parked."""
    parks = queue.poison_handling and queue.poison.mode is PoisonMode.PARK
    attempts = row.attempts + (parks and how.counts and not how.disconnect)
    disconnects = row.disconnects + (parks and how.counts and how.disconnect)
    row = row._replace(attempts=attempts, disconnects=disconnects, error=how.error or row.error)
    # The program's wish to park comes first, then the limits; the rest may be delayed.
    if how.park is not None:
        return row._replace(parked_at=now, retry_at=None, reason=how.park)
    poison = queue.poison
    if parks and attempts >= poison.limit:
        return row._replace(
            parked_at=now, retry_at=None, reason=f"{units.counted(attempts, 'rollback')} in a row"
        )
    if parks and disconnects >= poison.disconnects:
        return row._replace(
            parked_at=now,
            retry_at=None,
            reason=f"{units.counted(disconnects, 'connection')} cut in the middle",
        )
    if how.retry_after is not None:
        return row._replace(retry_at=Instant(now + round(how.retry_after * SECOND)))
    if parks and how.counts and not how.disconnect:
        return row._replace(retry_at=Instant(now + poison.backoff(attempts)))
    return row
