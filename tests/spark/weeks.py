"""Days with reports, without a run: what the pages of weeks and years are made of.

    python -m tests.spark.weeks DIRECTORY

writes a year of days and the pages made of them, to look at.
"""

import json
import math
import random
import sys
from dataclasses import replace
from datetime import date as calendar
from datetime import timedelta
from pathlib import Path
from typing import Any

from spark_jobs.dates import DAY_US
from spark_jobs.report import glance, spans
from spark_jobs.report.days import GLANCE, PAGE, SUMMARY
from spark_jobs.report.glance import Day, Found, New, Part, Slowest

MONDAY = calendar(2026, 11, 16)


def a_day(date: str, **fields: Any) -> Day:
    """A day like others of its weekday: few messages on Saturdays and Sundays, and at night."""
    weekend = calendar.fromisoformat(date).weekday() > 4
    rng = random.Random(date)
    sent = tuple(
        round((60 if weekend else 9_000) * (0.2 + math.sin(math.pi * hour / 24) ** 2))
        + rng.randrange(40)
        for hour in range(24)
    )
    day = Day(
        date=date,
        status="fine",
        sentence="Nothing was lost or doubled.",
        points=(),
        points_in_all=0,
        sent=sum(sent),
        received=sum(sent),
        unaccounted=0,
        doubled=0,
        sent_by_hour=sent,
        p95_by_hour=tuple(rng.randrange(20_000, 30_000) for _ in range(24)),
        slowest=(Slowest("wait_us", "west", "orders", sum(sent), 31_000),),
        failures=(),
        failures_in_all=0,
        instances=2,
        covered_us=2 * DAY_US,
        least=(),
        again=(),
    )
    return replace(day, **fields)


def put(root: Path, *days: Day) -> None:
    """Write what a run leaves of each day, as far as the pages of weeks and years read it."""
    for day in days:
        home = root / day.date
        home.mkdir(parents=True, exist_ok=True)
        (home / PAGE).write_text("<title>a day</title>")
        (home / SUMMARY).write_text("{}")
        (home / GLANCE).write_text(json.dumps(glance.as_said(day)))


def ago(days: int, since: calendar = MONDAY) -> str:
    return (since - timedelta(days)).isoformat()


def busy_year() -> list[Day]:
    """Everything that the pages can show, and every name longer than one would like."""
    every = [a_day(ago(-number, calendar(2026, 1, 1))) for number in range(330)]
    name = "https://example.com/services/warehouse/inventory/orders/incoming"
    for number in range(0, 330, 17):
        text = f"Queue {name} at warehouse-instance-{number} is stalled: 1,204 messages waiting."
        found = Found("act", text, f"brokerd queue show {name} --broker main")
        new = New("west", name, "broker.parking", f"ValueError: {number} is no price", 240)
        every[number] = replace(
            every[number],
            status="act" if number % 2 else "look",
            sentence=text,
            points=(found, replace(found, status="look", text="A clock went back 1 time.")),
            points_in_all=12,
            unaccounted=number,
            failures=(new,),
            failures_in_all=1,
            least=(Part("warehouse-instance-1", DAY_US // 3),),
            covered_us=DAY_US * 4 // 3,
            again=("2026-11-18: 2 segments of this day landed late",),
            slowest=(Slowest("wait_us", "west", name, 9, 8_000_000 + number),),
        )
    slow = every[322]  # 2026-11-19
    hours = tuple(
        value // 9 if 8 < at < 14 else value for at, value in enumerate(slow.sent_by_hour)
    )
    waits = tuple(900_000 if 8 < hour < 14 else 25_000 for hour in range(24))
    every[322] = replace(slow, sent_by_hour=hours, p95_by_hour=waits)
    return every


if __name__ == "__main__":
    at = Path(sys.argv[1])
    put(at, *busy_year())
    spans.write(at, [ago(0)], print)
