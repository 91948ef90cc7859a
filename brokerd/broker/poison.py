"""Poison: what a rollback means for the queue, or the group, whose messages came back (PSN). PURE.

Reads:  what was rolled back and how, as arguments.      Calls: nothing.
Never:  switches a queue off or holds a group; `held.py` and the administration do.

Service Broker's own: five rollbacks in a row of transactions that received from a queue switch it
off. With `poison_mode = "park"` the count is the group's and is stored, the group waits longer
after each, and only that group is set aside in the end (PBT-3).
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
"""Why a queue was switched off (PBT-1, PBT-10)."""


class Undone(msgspec.Struct, frozen=True):
    """How a transaction that received was rolled back, where that may count (PSN-16, PSN-17)."""

    error: str = ""
    """What the program gave as the cause."""
    counts: bool = True
    disconnect: bool = False
    """Its connection was cut in the middle; tallied apart (PBT-10)."""
    retry_after: float | None = None
    """Seconds for which its groups are not received."""
    park: str | None = None
    """Set its groups aside, for this reason."""


class Streak(msgspec.Struct, frozen=True):
    """Rollbacks in a row on a queue, since a commit that received from it (PSN-2, PSN-4)."""

    rollbacks: int = 0
    disconnects: int = 0


NO_STREAK: Final = Streak()


def counted(queue: Queue, streak: Streak, how: Undone) -> Streak:
    """The streak of a queue after a rollback; the same where it does not count."""
    if not (queue.poison_handling and how.counts) or queue.poison.mode is PoisonMode.PARK:
        return streak
    if how.disconnect:
        return msgspec.structs.replace(streak, disconnects=streak.disconnects + 1)
    return msgspec.structs.replace(streak, rollbacks=streak.rollbacks + 1)


def verdict(poison: Poison, streak: Streak) -> str:
    """Why a queue is to be switched off now; empty = it is not (PSN-2, PBT-10)."""
    if streak.rollbacks >= poison.limit:
        return POISON
    return DISCONNECTS if streak.disconnects >= poison.disconnects else ""


def judged(row: HeldRow, queue: Queue, how: Undone, *, now: Instant) -> HeldRow:
    """What becomes of a group after a rollback; the row as it is = nothing does."""
    parks = queue.poison_handling and queue.poison.mode is PoisonMode.PARK
    attempts = row.attempts + (parks and how.counts and not how.disconnect)
    disconnects = row.disconnects + (parks and how.counts and how.disconnect)
    row = row._replace(attempts=attempts, disconnects=disconnects, error=how.error or row.error)
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
