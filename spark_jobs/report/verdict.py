"""The verdict: fine, look or act, with one sentence and what to do about each point. Pure.

Reads:  `Data`.      Never: calls a quiet day anything but fine.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from spark_jobs.read import FAULT_CORRUPT, FAULT_INCOMPLETE, FAULT_TIME, FAULT_VERSION
from spark_jobs.report.data import Data
from spark_jobs.report.words import counted


class Status(IntEnum):
    """How much attention the day needs; the value is the exit status of the job."""

    FINE = 0
    LOOK = 1
    ACT = 2


@dataclass(frozen=True, slots=True)
class Point:
    """One reason for a verdict that is not fine, and what to do."""

    status: Status
    text: str
    advice: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The whole day in a sentence."""

    status: Status
    sentence: str
    points: tuple[Point, ...]


def judge(data: Data) -> Verdict:
    """Weigh conservation first, coverage second (REL-31, BI-L1 to BI-L3)."""
    points = tuple(sorted((*_books(data), *_logs(data)), key=lambda point: -point.status))
    status = max((point.status for point in points), default=Status.FINE)
    return Verdict(status, _sentence(data, status, points), points)


def _sentence(data: Data, status: Status, points: tuple[Point, ...]) -> str:
    if status is Status.ACT:
        return " ".join(point.text for point in points if point.status is Status.ACT)
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
    set_aside = any(part.fault for part in data.segments)
    return set_aside or any(boot.missing for boot in data.boots)


def _books(data: Data) -> Iterator[Point]:
    unaccounted = sum(pair.unaccounted for pair in data.pairs)
    if unaccounted:
        yield Point(
            Status.ACT,
            f"{_are(unaccounted, 'message')} unaccounted for.",
            "Keep both stores as they are, and compare them with the dialogs listed below.",
        )
    doubled = sum(pair.doubled for pair in data.pairs)
    if doubled:
        yield Point(
            Status.ACT,
            f"{counted(doubled, 'message')} arrived more often than sent.",
            "Look for a store that was copied or restored and is in use twice.",
        )
    elsewhere = sum(pair.elsewhere for pair in data.pairs)
    if elsewhere:
        yield Point(
            Status.LOOK,
            f"{counted(elsewhere, 'message')} cannot be judged, for the other side is not in "
            "these logs.",
            "Give the report the metrics logs of both instances.",
        )
    undelivered = sum(pair.undelivered for pair in data.pairs)
    if undelivered:
        yield Point(
            Status.LOOK,
            f"{_were(undelivered, 'message')} withdrawn before delivery, because the dialog ended.",
            "See the outcomes in the table of service pairs.",
        )
    if not data.pairs:
        yield Point(
            Status.LOOK,
            "There is no line about a dialog in these logs.",
            "On a day with traffic, check that this is the metrics directory of the daemon.",
        )


def _logs(data: Data) -> Iterator[Point]:
    missing = sum(boot.missing for boot in data.boots)
    if missing:
        yield Point(
            Status.LOOK,
            f"{_are(missing, 'line')} missing from the logs: totals are at least these.",
            "Find the segments named under Coverage and run the report again.",
        )
    corrupt = data.faulty(FAULT_CORRUPT, FAULT_INCOMPLETE, FAULT_TIME)
    if corrupt:
        yield Point(
            Status.LOOK,
            f"{counted(corrupt, 'line')} could not be used: totals are at least these.",
            "Look at the lines quoted under Coverage, and at the disk they were on.",
        )
    other = data.faulty(FAULT_VERSION)
    if other:
        yield Point(
            Status.LOOK,
            f"{_were(other, 'line')} written in a version of the log that this report cannot read.",
            "Run the report of the newest brokerd among the instances.",
        )
    backwards = sum(boot.backwards for boot in data.boots)
    if backwards:
        yield Point(
            Status.LOOK,
            f"A clock went back {counted(backwards, 'time')}: hours may be off.",
            "Check time synchronisation on the machines named under Coverage.",
        )


def _are(value: int, noun: str) -> str:
    return f"{counted(value, noun)} {'is' if value == 1 else 'are'}"


def _were(value: int, noun: str) -> str:
    return f"{counted(value, noun)} {'was' if value == 1 else 'were'}"
