"""Conversation groups on the page: those with most of a queue's messages, and held locks. Pure.

Reads:  `Data`.      Never: alerts; a large group is no fault, and a reader may work for long.
"""

from collections import defaultdict
from dataclasses import dataclass

from spark_jobs.hot_groups import NOBODY
from spark_jobs.report.data import Data, HotGroup

SHOWN = 20
STILL_US = 60_000_000
"""A lock seen less than this many microseconds before the instance's last line is still held."""


@dataclass(frozen=True, slots=True)
class Skew:
    """The distribution of a queue's messages of a day over conversation groups."""

    instance: str
    broker: str
    name: str
    received: int
    named: int
    """The least number of messages that the listed groups, at most 20, had together."""
    within: int
    """Upper bound of the undercount of each listed group, and of the count of any unlisted one."""
    groups: tuple[tuple[str, int], ...]
    """The largest groups, each with the least number of messages that it had."""

    def most(self, messages: int) -> int:
        """Return the most messages that a group can have had if it had at least `messages`."""
        return min(messages + self.within, self.received)

    @property
    def largest_most(self) -> int:
        """The most messages that the largest group can have had."""
        return self.most(self.groups[0][1])

    def part(self, messages: int) -> float:
        """Return `messages` as a fraction of all that the queue received."""
        return messages / self.received if self.received else 0.0


@dataclass(frozen=True, slots=True)
class Kept:
    """A lock that a transaction held for long."""

    instance: str
    broker: str
    name: str
    group: str
    conversation_id: str
    by: str
    since_at: int
    held_us: int
    """Microseconds for which the lock was seen; it may be held past the end of the day or logs."""
    is_held: bool
    """Whether the lock was held when the last lines were written."""


def tells_groups(data: Data) -> bool:
    """Return whether the lines are of daemons that report groups; older ones do not.

    Lines without groups prove nothing, because a line leaves out what is empty. But a daemon that
    reports groups, held locks or a peer's clock reports all three.
    """
    has_clock = any(one.gauge == "clock_ahead_s" for one in data.gauges)
    return bool(data.groups or data.held or has_clock)


def skew(data: Data) -> list[Skew]:
    """Return every queue with listed groups, sorted by the part of its largest group."""
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
            # Lines may be missing, and not the same ones have groups and the count of received
            # messages: the groups' sum is a lower bound of the latter.
            whole = max(received[queue], total)
            found.append(Skew(*queue, whole, total, within, groups))
    found.sort(key=lambda one: (-one.part(one.groups[0][1]), one.name, one.instance))
    return found


def kept(data: Data) -> list[Kept]:
    """Return the locks held for long: first those still held, each part with the longest first."""
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
