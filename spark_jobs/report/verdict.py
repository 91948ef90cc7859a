"""Verdict: fine, look or act, with one sentence and advice about each point. Pure.

Reads:  `Data`.      Calls: `alerts`, `away`, `traffic`, `storms`.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from spark_jobs.conservation import FINDING_DOUBLED, FINDING_LOST
from spark_jobs.coverage import Gap
from spark_jobs.dates import DAY_US
from spark_jobs.landing import FAULT_DAY
from spark_jobs.latency import HOUR_US
from spark_jobs.read import (
    FAULT_CORRUPT,
    FAULT_INCOMPLETE,
    FAULT_NEGATIVE,
    FAULT_TIME,
    FAULT_VERSION,
)
from spark_jobs.report.alerts import COVERED, alerts
from spark_jobs.report.away import away
from spark_jobs.report.data import Data
from spark_jobs.report.status import Point, Status, about, pasted
from spark_jobs.report.storms import storms
from spark_jobs.report.traffic import traffic
from spark_jobs.report.words import counted, day_and_time, hours_of, time_of_day

TEXTS_SAID = 3
"""Maximum number of findings that need action in the sentence; the list below it has more."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The status of the day, a sentence about it, and the points behind it."""

    status: Status
    sentence: str
    points: tuple[Point, ...]


def judge(data: Data) -> Verdict:
    """Evaluate conservation first, coverage second, alerts last (REL-31, REL-65)."""
    found = (*_books(data), *_logs(data), *away(data), *traffic(data), *storms(data), *alerts(data))
    points = tuple(sorted(found, key=lambda point: -point.status))
    status = max((point.status for point in points), default=Status.FINE)
    return Verdict(status, _sentence(data, status, points), points)


def _sentence(data: Data, status: Status, points: tuple[Point, ...]) -> str:
    if status is Status.ACT:
        grave = [point.text for point in points if point.status is Status.ACT]
        more = len(grave) - TEXTS_SAID
        verb = "needs" if more == 1 else "need"
        rest = [f"And {counted(more, 'more finding')} {verb} action."] if more > 0 else []
        return " ".join([*grave[:TEXTS_SAID], *rest])
    sent = sum(pair.sent for pair in data.pairs)
    if not data.pairs:
        return f"Nothing can be said about losses: {_lower(points[0].text)}"
    balanced = f"Nothing was lost or doubled: {counted(sent, 'message')} sent, all accounted for."
    if status is Status.FINE:
        return balanced
    if any(pair.elsewhere for pair in data.pairs) or _incomplete_logs(data):
        return f"Nothing lost or doubled was found, but {_lower(points[0].text)}"
    return f"{balanced} But {_lower(points[0].text)}"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _incomplete_logs(data: Data) -> bool:
    set_aside = any(part.fault for part in data.segments) or bool(data.unusable)
    return set_aside or any(boot.missing for boot in data.boots)


@about("books")
def _books(data: Data) -> Iterator[Point]:
    unaccounted = sum(pair.unaccounted for pair in data.pairs)
    if unaccounted:
        yield Point(
            Status.ACT,
            f"{_are(unaccounted, 'message')} unaccounted for.",
            "Keep both stores as they are, and compare them with the dialogs listed below.",
            _show(data, FINDING_LOST),
        )
    doubled = sum(pair.doubled for pair in data.pairs)
    if doubled:
        yield Point(
            Status.ACT,
            f"{counted(doubled, 'message')} arrived more often than sent.",
            "Look for a store that was copied or restored and is in use twice.",
            _show(data, FINDING_DOUBLED),
        )
    elsewhere = sum(pair.elsewhere for pair in data.pairs)
    if elsewhere:
        yield Point(
            Status.LOOK,
            f"{counted(elsewhere, 'message')} cannot be judged, for the other side is not in "
            "these logs.",
            "Give the report the metrics logs of both instances.",
            "brokerd ship LANDING",
        )
    undelivered = sum(pair.undelivered for pair in data.pairs)
    if undelivered:
        yield Point(
            Status.LOOK,
            f"{_were(undelivered, 'message')} withdrawn before delivery, because the dialog ended.",
            "See the outcomes in the table of service pairs.",
            "brokerd dialog ls",
        )
    yield from _renamed(data)
    if not data.pairs:
        yield Point(
            Status.LOOK,
            "There is no line about a dialog in these logs.",
            "On a day with traffic, check that this is the metrics directory of the daemon.",
            "brokerd status",
        )


def _show(data: Data, finding: str) -> str:
    """Return a command about the first dialog with this finding."""
    ids = [one.conversation_id for one in data.findings if one.finding == finding]
    return pasted("brokerd", "dialog", "show", ids[0]) if ids else "brokerd doctor"


def _renamed(data: Data) -> Iterator[Point]:
    renamed = [one for one in data.sides if one.renamed is not None]
    if renamed:
        first = renamed[0]
        yield Point(
            Status.LOOK,
            f"{counted(sum(one.renamed_dialogs for one in renamed), 'dialog')} had two names of "
            f"one service: {first.renamed}.",
            "Find out which side was renamed or is declared wrongly; the books have both names.",
            pasted("brokerd", "doctor", first.from_service, first.to_service),
        )


@about("coverage")
def _logs(data: Data) -> Iterator[Point]:
    yield from _gaps(data)
    corrupt = data.faulty(FAULT_CORRUPT, FAULT_INCOMPLETE, FAULT_TIME)
    if corrupt:
        yield Point(
            Status.LOOK,
            f"{counted(corrupt, 'line')} could not be used: totals are at least these.",
            "Look at the lines quoted under Coverage, and at the disk they were on.",
            "dmesg --level err",
        )
    other = data.faulty(FAULT_VERSION)
    if other:
        yield Point(
            Status.LOOK,
            f"{_were(other, 'line')} written in a version of the log that this report cannot read.",
            "Run the report of the newest brokerd among the instances.",
            "brokerd --version",
        )
    negative = data.faulty(FAULT_NEGATIVE)
    if negative:
        yield Point(
            Status.LOOK,
            f"{_were(negative, 'line')} set aside because of negative counts: totals are at least "
            "these.",
            "Look at the lines quoted under Coverage: a daemon never writes such counts.",
            "brokerd status",
        )
    yield from _reused(data)
    yield from _whole_segments(data)
    repeated = sum(boot.repeated for boot in data.boots)
    if repeated:
        yield Point(
            Status.FINE,
            f"{_were(repeated, 'line')} there twice, and counted once.",
            "Nothing is to be done: a segment was shipped under two names.",
        )
    backwards = sum(boot.backwards for boot in data.boots)
    if backwards:
        yield Point(
            Status.LOOK,
            f"A clock went back {counted(backwards, 'time')}: hours may be off.",
            "Check time synchronisation on the machines named under Coverage.",
            "date -u",
        )


def _reused(data: Data) -> Iterator[Point]:
    """Yield boots with one id: two starts, or two instances, as after a copy of a machine."""
    instances: dict[str, set[str]] = defaultdict(set)
    for boot in data.boots:
        instances[boot.boot_id].add(boot.instance)
    shared = {names for every in instances.values() if len(every) > 1 for names in every}
    shared |= {boot.instance for boot in data.boots if boot.is_reused}
    if shared:
        yield Point(
            Status.LOOK,
            f"Several boots have one boot id at {', '.join(sorted(shared))}: missing lines cannot "
            "be noticed.",
            "See whether a machine was copied, or set back to an earlier state, with its daemon.",
            "brokerd status",
        )


def _whole_segments(data: Data) -> Iterator[Point]:
    if data.unusable:
        named = ", ".join(f"{one.file} ({one.fault})" for one in data.unusable[:3])
        yield Point(
            Status.LOOK,
            f"{_were(len(data.unusable), 'segment')} set aside whole: {named}.",
            "Ship them again from where they were written; then run the report again. One that is "
            f"{FAULT_DAY}, or of another time, is a copy, or was moved: remove it there.",
            "brokerd ship LANDING",
        )


def _gaps(data: Data) -> Iterator[Point]:
    """Yield a point if numbers are missing; a line spoilt within a segment is not one of them."""
    missing = sum(boot.missing for boot in data.boots)
    if not missing:
        return
    where: dict[str, list[str]] = defaultdict(list)
    for boot in data.boots:
        for gap in boot.gaps:
            where[boot.instance].append(_span(gap))
    named = "; ".join(f"{', '.join(spans[:3])} of {name}" for name, spans in sorted(where.items()))
    lines = sum(boot.lines - boot.repeated for boot in data.boots)
    covered = lines / (lines + missing)
    yield Point(
        Status.LOOK,
        f"{_are(missing, 'line')} missing from the logs{': ' if named else ''}{named}. "
        f"Totals are at least these{'' if covered >= COVERED else f' ({covered:.1%} covered)'}.",
        "Ship the segments named under Coverage and run the report again.",
        "brokerd ship LANDING",
    )


def _span(gap: Gap) -> str:
    """Return the time of a gap in words: the hours of which more than half is missing, if any.

    A gap of more than a day is named with its days.
    """
    if gap.until_at - gap.after_at > DAY_US:
        return f"{day_and_time(gap.after_at)} to {day_and_time(gap.until_at)}"
    first, last = gap.after_at // HOUR_US, gap.until_at // HOUR_US
    hours = [hour % 24 for hour in range(first, last + 1) if _within(gap, hour) > HOUR_US // 2]
    if hours:
        return f"hours {hours_of(hours)}"
    return f"{time_of_day(gap.after_at)} to {time_of_day(gap.until_at)}"


def _within(gap: Gap, hour: int) -> int:
    """Return how many microseconds of an hour lie in the gap."""
    begin = hour * HOUR_US
    return min(gap.until_at, begin + HOUR_US) - max(gap.after_at, begin)


def _are(value: int, noun: str) -> str:
    return f"{counted(value, noun)} {'is' if value == 1 else 'are'}"


def _were(value: int, noun: str) -> str:
    return f"{counted(value, noun)} {'was' if value == 1 else 'were'}"
