"""Several days together: their status, their totals, and what was worst. Pure.

Reads:  `Day` values.
Never:  shows more than `SHOWN` rows of a table.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spark_jobs.dates import DAY_US
from spark_jobs.report.glance import Day, Slowest
from spark_jobs.report.words import counted, number, short_day

SHOWN = 20
DAYS_NAMED = 4
STATUSES = ("fine", "look", "act")

WHAT = {
    "wait_us": "waiting in queue",
    "handler_us": "handling of queue",
    "wire_us": "way to peer",
    "outbox_us": "leaving for peer",
}
"""The measures of durations in words, before the name of a queue or peer."""


@dataclass(frozen=True, slots=True)
class Worst:
    """The longest duration of one subject, with the day."""

    one: Slowest
    what: str
    date: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A failure that was new on a day, of all instances together."""

    fingerprint: str
    event: str
    name: str
    instances: tuple[str, ...]
    times: int
    first: str


@dataclass(frozen=True, slots=True)
class Totals:
    """The numbers at the top of the page."""

    status: str
    sentence: str
    sent: int
    received: int
    unaccounted: int
    doubled: int
    longest: Worst | None
    instances: int
    """The largest number of instances on one day."""
    covered: float | None
    """The part of the time of the instances that the logs cover; None: not known."""


def totals(days: Sequence[Day]) -> Totals:
    """Return the totals of these days, of which there is at least one."""
    known = [day for day in days if day.covered_us]
    whole = sum(day.instances * DAY_US for day in known)
    waits = [day for day in days if day.longest]
    slow = max(waits, key=lambda day: day.longest.p95_us if day.longest else 0, default=None)
    longest = slow.longest if slow else None
    return Totals(
        status=max((day.status for day in days), key=STATUSES.index),
        sentence=sentence(days),
        sent=sum(day.sent for day in days),
        received=sum(day.received for day in days),
        unaccounted=sum(day.unaccounted for day in days),
        doubled=sum(day.doubled for day in days),
        longest=Worst(longest, WHAT[longest.measure], slow.date) if slow and longest else None,
        instances=max(day.instances for day in days),
        covered=sum(day.covered_us for day in known) / whole if whole else None,
    )


def sentence(days: Sequence[Day]) -> str:
    """Return one sentence about the status of these days, the gravest first."""
    said = []
    for status, one, many in (
        ("act", "needs action", "need action"),
        ("look", "needs a look", "need a look"),
    ):
        found = [day.date for day in days if day.status == status]
        if found:
            named = ", ".join(short_day(date) for date in found[-DAYS_NAMED:])
            latest = ", the latest" if len(found) > DAYS_NAMED else ""
            verb = one if len(found) == 1 else many
            said.append(f"{counted(len(found), 'day')} {verb}{latest}: {named}.")
    if not said:
        said.append(f"Nothing needs attention in {counted(len(days), 'day')}.")
    unaccounted = sum(day.unaccounted for day in days)
    doubled = sum(day.doubled for day in days)
    if unaccounted or doubled:
        said.append(
            f"{counted(unaccounted, 'message')} unaccounted for, {number(doubled)} doubled."
        )
    else:
        said.append("Nothing was lost or doubled.")
    return " ".join(said)


def worst(days: Iterable[Day]) -> list[Worst]:
    """Return the longest durations, each subject once, the longest first."""
    found: dict[tuple[str, str, str], Worst] = {}
    for day in days:
        for one in day.slowest:
            key = (one.measure, one.instance, one.name)
            if key not in found or one.p95_us > found[key].one.p95_us:
                found[key] = Worst(one, WHAT[one.measure], day.date)
    every = sorted(found.values(), key=lambda each: (-each.one.p95_us, each.date, each.one.name))
    return every[:SHOWN]


def failures(days: Iterable[Day]) -> list[Failed]:
    """Return the failures that were new, each once, the latest first."""
    found: dict[tuple[str, str, str], Failed] = {}
    for day in days:
        for one in day.failures:
            key = (one.fingerprint, one.event, one.name)
            known = found.get(key, Failed(*key, (), 0, day.date))
            instances = tuple(sorted({*known.instances, one.instance}))
            found[key] = Failed(*key, instances, known.times + one.times, known.first)
    every = sorted(found.values(), key=lambda each: (-each.times, each.fingerprint))
    return sorted(every, key=lambda each: each.first, reverse=True)[:SHOWN]
