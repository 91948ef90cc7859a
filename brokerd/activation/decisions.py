"""Decisions: why a queue got a reader or did not, as text for operators (VIEW-15). PURE.

Reads:  the decisions of a monitor, and the messages that were ready then.
Never:  grows without limit: the latest decisions of each queue are kept, repetitions are counted. A
        message adds no entry; a monitor does when it starts a reader, cannot start one, or waits.
"""

from collections import deque
from typing import Final

import msgspec

from brokerd.activation.monitor import Limits, QueueFacts, Why
from brokerd.clock import Instant
from brokerd.units import counted

KEPT: Final = 100
"""Number of decisions kept for each queue."""
MANY_GROUPS: Final = 1000
"""Number of groups at which counting stops."""


class Ready(msgspec.Struct, frozen=True):
    """Ready messages of a queue at the moment of a decision."""

    messages: int = 0
    groups: int = 0
    """Number of unlocked groups in memory; at most `MANY_GROUPS` are counted."""
    is_more: bool = False
    """Whether more groups exist than were counted."""
    oldest_at: Instant | None = None
    """Arrival time of the oldest message in these groups."""


class Decision(msgspec.Struct, frozen=True):
    """One row of `activation_decisions` (VIEW-15)."""

    broker: str
    queue: str
    number: int
    """Number of the decision for its queue, counted since the daemon started."""
    at: Instant
    decision: str
    """Kind of the decision: started, limit reached, backing off, ended, aborted, notified, enabled,
    disabled, drained."""
    text: str
    times: int = 1
    """Number of times that the decision was made in a row."""
    last_at: Instant | None = None
    """Time of the last repetition; None = the decision was not repeated."""


_ONCE: Final = frozenset({"limit reached", "ended"})
"""Decisions whose repetitions in a row are one entry with a count."""


class Decisions:
    """The latest decisions about one queue."""

    def __init__(self, broker: str, queue: str) -> None:
        self._broker = broker
        self._queue = queue
        self._rows: deque[Decision] = deque(maxlen=KEPT)
        self._numbers = 0

    def add(self, decision: str, text: str, at: Instant) -> None:
        """Append a decision, or count it if it repeats the last one."""
        last = self._rows[-1] if self._rows else None
        if last is not None and last.decision == decision and decision in _ONCE:
            self._rows[-1] = msgspec.structs.replace(
                last, text=text, times=last.times + 1, last_at=at
            )
            return
        self._numbers += 1
        self._rows.append(Decision(self._broker, self._queue, self._numbers, at, decision, text))

    def rows(self) -> list[Decision]:
        """Return the kept decisions, the earliest first."""
        return list(self._rows)


def why_started(why: Why, ready: Ready, facts: QueueFacts, running: int, limits: Limits) -> str:
    """Return the reason to start one more reader; `running`: number of readers before it."""
    groups, readers = _groups(ready), counted(running, "reader")
    reasons = {
        Why.ARRIVAL: f"a message arrived and no reader was known to run, {groups}",
        Why.BACKLOG: f"{groups}, {readers}, no empty receive for {limits.ramp_interval:g} s",
        Why.CONTINUED: f"the last reader ended and messages remain, {groups}",
        Why.ENABLED: f"activation was switched on or altered over waiting messages, {groups}",
        Why.RETRIED: f"its back-off is over, {groups}, {readers}",
        Why.FOUND: f"a check found {groups}, {readers}, {facts.waiting} waiting",
        Why.UNHEARD: f"{groups}, and nobody received for {limits.renotify:g} s after the last one",
    }
    return reasons[why]


def limit_reached(ready: Ready, running: int, limits: Limits) -> str:
    """Return why another reader is not started, although it would be useful (ACT-17)."""
    readers = counted(running, "reader")
    return f"no further reader: {readers} of max_readers {limits.max_readers}, {_groups(ready)}"


def backing_off(failures: int, seconds: float, error: str) -> str:
    """Return why no reader is started for a while (PBT-6)."""
    return f"no start for {seconds:g} s after {counted(failures, 'failure')} in a row: {error}"


def _groups(ready: Ready) -> str:
    if not ready.groups:
        return "no unlocked group ready"
    least = "at least " if ready.is_more else ""
    return f"{least}{counted(ready.groups, 'group')} ready"
