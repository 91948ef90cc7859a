"""Service levels: the part of messages that a service pair must receive in time. Pure.

Reads:  `slo.toml` in the directory of the reports, and counts of messages by the hour.
Never:  calls a level missed because of a handful of messages: what was burnt in a window must be a
        part of the budget of thirty days (REL-75).
Fails:  with `SloError` and the reason for a file that cannot be used, before any work.

    [[slo]]
    from = "shop"
    to = "warehouse"
    queue = "orders"          # where the messages of `to` wait; or: destination = "TCP://west:4022"
    within = "2s"
    part = 0.99
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from spark_jobs.dates import DAY_US, midnight
from spark_jobs.latency import HOUR_US
from spark_jobs.report.data import Kept, Objective

FILE = "slo.toml"
DAYS = 30
"""A budget is the number of messages that may be late in this many days."""

LEAST_LATE = 10
"""Number of late messages below which no window counts."""

FAST = ((1, 14.4), (6, 6.0))
"""Windows in hours, with the burn rate from which the day needs action: 2 % and 5 % of a budget."""

SLOW = (24, 3.0)
"""The window and the burn rate from which the day needs a look: a tenth of the budget."""

_UNITS = {"ms": 1_000, "s": 1_000_000, "min": 60_000_000, "h": HOUR_US}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|h)")
_KEYS = {"from", "to", "queue", "destination", "instance", "within", "part"}
_MEASURES = {"queue": "wait_us", "destination": "wire_us"}


class SloError(Exception):
    """The file of service levels cannot be used; the text names the entry and the reason."""


@dataclass(frozen=True, slots=True)
class Burn:
    """The window of a number of hours in which most of a budget was burnt."""

    hours: int
    rate: float
    """How many times faster than allowed messages were late; 1 uses the budget up in `DAYS`."""
    late: int
    total: int
    until_at: int
    """The end of the window."""
    cost: float
    """The part of the budget of `DAYS` that the window took."""


@dataclass(frozen=True, slots=True)
class Level:
    """A service level on one day."""

    objective: Objective
    total: int
    late: int
    left: float
    """The part of the budget of `DAYS` that is left at the end of the day; negative: overdrawn."""
    burns: tuple[Burn, ...]
    """The worst windows of 1, 6 and 24 hours that end on the day."""

    @property
    def met(self) -> float | None:
        """The part of the day's messages that were in time; None if there was no message."""
        return None if not self.total else 1 - self.late / self.total

    @property
    def fast(self) -> Burn | None:
        """The window that needs action; None if none does."""
        for burn, (_, rate) in zip(self.burns, FAST, strict=False):
            if _counts(burn, rate):
                return burn
        return None

    @property
    def slow(self) -> Burn | None:
        """The day, if it burnt so much of the budget that it needs a look."""
        day = self.burns[-1]
        return day if _counts(day, SLOW[1]) else None


def read(path: Path) -> tuple[Objective, ...]:
    """Return the service levels of a file; none if there is no such file.

    Raises:
        SloError: the file cannot be used.
    """
    try:
        said = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SloError(f"{path}: {error}") from error
    entries = said.get("slo", [])
    if {*said} - {"slo"} or not isinstance(entries, list):
        raise SloError(f"{path}: there is only [[slo]]")
    return tuple(
        _objective(f"{path}, [[slo]] {number}", one) for number, one in enumerate(entries, 1)
    )


def levels(date: str, kept: Iterable[Kept]) -> list[Level]:
    """Return every service level on a day, "" = on all days there are; the worst first."""
    found = [_level(date, one) for one in kept]
    return sorted(found, key=lambda one: (one.left, one.objective.pair, one.objective.name))


def _level(date: str, kept: Kept) -> Level:
    by_hour = {one.hour_at: (one.late, one.total) for one in kept.hours}
    first = midnight(date) if date else min(by_hour, default=0)
    last = first + DAY_US if date else max(by_hour, default=0) + HOUR_US
    own = [count for at, count in by_hour.items() if first <= at < last]
    days = len({at // DAY_US for at, (_, total) in by_hour.items() if total})
    allowed = 1 - kept.objective.part
    every = [count for at, count in by_hour.items() if at < last]
    # As if the days that are not known were like those that are.
    budget = allowed * sum(total for _, total in every) * DAYS / max(days, 1)
    spent = sum(late for late, _ in every)
    return Level(
        objective=kept.objective,
        total=sum(total for _, total in own),
        late=sum(late for late, _ in own),
        left=1 - spent / budget if budget else 1.0,
        burns=tuple(
            _burn(by_hour, range(first + HOUR_US, last + 1, HOUR_US), hours, allowed, budget)
            for hours in (*(hours for hours, _ in FAST), SLOW[0])
        ),
    )


def _burn(
    by_hour: Mapping[int, tuple[int, int]],
    ends: range,
    hours: int,
    allowed: float,
    budget: float,
) -> Burn:
    """Return the window of so many hours that cost most of those with one of these ends."""
    found = [Burn(hours, 0.0, 0, 0, ends[-1], 0.0)]
    for until in ends:
        window = range(until - hours * HOUR_US, until, HOUR_US)
        counts = [by_hour[at] for at in window if at in by_hour]
        late, total = sum(late for late, _ in counts), sum(total for _, total in counts)
        if late:
            found.append(Burn(hours, late / total / allowed, late, total, until, late / budget))
    return max(found, key=lambda one: (one.cost, one.rate))


def _counts(burn: Burn, rate: float) -> bool:
    """Return whether a window burnt at this rate and cost as much as it does with even traffic."""
    cost = rate * burn.hours / (DAYS * 24)
    return burn.rate >= rate and burn.cost >= cost and burn.late >= LEAST_LATE


def _objective(where: str, said: object) -> Objective:
    if not isinstance(said, Mapping):
        raise SloError(f"{where}: is no table")
    unknown, missing = {*said} - _KEYS, {"from", "to", "within", "part"} - {*said}
    if unknown or missing:
        named = ", ".join(sorted(unknown or missing))
        raise SloError(f"{where}: {named} {'is unknown' if unknown else 'is missing'}")
    subjects = [name for name in _MEASURES if name in said]
    if len(subjects) != 1:
        raise SloError(f"{where}: name either a queue or a destination")
    texts = [name for name in _KEYS & {*said} if name != "part" and not isinstance(said[name], str)]
    if texts:
        raise SloError(f"{where}: {', '.join(sorted(texts))} must be text")
    (scope,) = subjects
    return Objective(
        from_service=said["from"],
        to_service=said["to"],
        scope=scope,
        name=said[scope],
        measure=_MEASURES[scope],
        instance=said.get("instance", ""),
        within_us=_duration(where, said["within"]),
        part=_part(where, said["part"]),
    )


def _duration(where: str, text: str) -> int:
    found = _DURATION.fullmatch(text.strip())
    us = round(float(found[1]) * _UNITS[found[2]]) if found else 0
    if us <= 0:
        raise SloError(f"{where}: within = {text!r} is no duration such as 500ms, 2s or 1min")
    return us


def _part(where: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise SloError(f"{where}: part = {value!r} is not between 0 and 1, such as 0.99")
    return float(value)
