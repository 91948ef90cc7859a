"""Conversation groups on the page: who has most of a queue's messages, who is kept by whom. Pure.

Reads:  `Data`.      Never: alerts; a large customer is no fault, and a reader may work for long.
"""

from collections import defaultdict
from dataclasses import dataclass

from spark_jobs.hot_groups import NOBODY
from spark_jobs.report.data import Data, HotGroup

SHOWN = 20
STILL_US = 60_000_000
"""What was seen so shortly before the last line of an instance is taken to go on."""


@dataclass(frozen=True, slots=True)
class Skew:
    """How a queue's messages of a day were spread over groups."""

    instance: str
    broker: str
    name: str
    received: int
    named: int
    """So many of them at least were of the groups that are named, which are 20 at most."""
    within: int
    """So many more a group may have had, and one that is not named in all."""
    groups: tuple[tuple[str, int], ...]
    """The largest groups, each with how many messages it had at least."""

    def most(self, messages: int) -> int:
        """How many messages a group had at most that had so many at least."""
        return min(messages + self.within, self.received)

    @property
    def largest_most(self) -> int:
        """How many messages the largest group had at most."""
        return self.most(self.groups[0][1])

    def part(self, messages: int) -> float:
        """Of all that the queue received."""
        return messages / self.received if self.received else 0.0


@dataclass(frozen=True, slots=True)
class Kept:
    """A lock that somebody held for long."""

    instance: str
    broker: str
    name: str
    group: str
    conversation_id: str
    by: str
    since_at: int
    held_us: int
    """As long as it was seen; a day ends, and logs do."""
    is_held: bool
    """It was held as the last lines were written."""


def tells_groups(data: Data) -> bool:
    """Whether the lines show that their daemons write of groups; those of older ones do not.

    That nothing is said of groups tells nothing: lines leave out what is none. But a daemon that
    says any of this, or a peer's clock, says all of it.
    """
    has_clock = any(one.gauge == "clock_ahead_s" for one in data.gauges)
    return bool(data.groups or data.held or has_clock)


def skew(data: Data) -> list[Skew]:
    """Every queue with a group that stands out, by the part of its largest."""
    received: dict[tuple[str, str, str], int] = defaultdict(int)
    for one in data.counters:
        if (one.scope, one.counter) == ("queue", "received"):
            received[one.instance, one.broker, one.name] += one.total
    by_queue: dict[tuple[str, str, str], list[HotGroup]] = defaultdict(list)
    for row in data.groups:
        by_queue[row.instance, row.broker, row.name].append(row)
    found = []
    for queue, rows in by_queue.items():
        named = sorted((-one.messages, one.group) for one in rows if one.group != NOBODY)
        within = sum(one.messages for one in rows if one.group == NOBODY)
        groups = tuple((group, -count) for count, group in named[:SHOWN])
        if groups:
            total = sum(count for _, count in groups)
            # Lines may be missing, and what a queue received is said in more of them.
            whole = max(received[queue], total)
            found.append(Skew(*queue, whole, total, within, groups))
    found.sort(key=lambda one: (-one.part(one.groups[0][1]), one.name, one.instance))
    return found


def kept(data: Data) -> list[Kept]:
    """Locks that were held for long: those that still are first, then the longest."""
    ends = {
        instance: max(boot.last_at for boot in data.boots if boot.instance == instance)
        for instance in {boot.instance for boot in data.boots if not boot.stopped}
    }
    found = [
        Kept(
            one.instance,
            one.broker,
            one.name,
            one.group,
            one.conversation_id,
            one.by,
            one.since_at,
            held_us=one.seen_at - one.since_at,
            is_held=one.seen_at > ends.get(one.instance, one.seen_at + STILL_US) - STILL_US,
        )
        for one in data.held
    ]
    found.sort(key=lambda one: (not one.is_held, -one.held_us, one.instance, one.name, one.group))
    return found[:SHOWN]
