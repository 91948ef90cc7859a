"""Pages of weeks and years: made of the days' `glance.json`, beside the days' directories.

    <output>/week-2026-W47.html
    <output>/year-2026.html

Reads:  a small file of each day, at most 366 for a page, and the beginning of existing pages.
Calls:  days, week, year.
Never:  starts Spark, reads a clock, or leaves a page that was made of other days than there are
        now: a page names a hash of what it was made of, and is made again if that has changed
        (BI-L51).
"""

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from spark_jobs.dates import weekdays_before
from spark_jobs.lake import Step, no_step
from spark_jobs.report import week, year
from spark_jobs.report.days import (
    Days,
    Links,
    days_of_week,
    days_of_year,
    week_of,
    year_of,
)
from spark_jobs.report.words import counted

VERSION = 1
"""Is raised if the same days would give another page."""

ASIDE = ".new-"
"""Prefix of the directory in which pages are written first; a killed run leaves it behind."""

_MADE_OF = re.compile(r'<meta name="made-of" content="([0-9a-f]{64})">')
_HEAD = 1_000
"""The hash of a page stands in this many characters of its beginning."""

Draw = Callable[[str], str]
"""Returns the text of a page, given the hash of what it is made of."""


def write(
    root: Path, dates: Collection[str], say: Callable[[str], object], step: Step = no_step
) -> list[str]:
    """Make the pages of the weeks and years of these days that are not made of what is there now.

    Return the names of the pages made.
    """
    days = Days(root)
    made = []
    for name, links in _spans(root, "week", dates, days.dates, week_of):
        own = days_of_week(name)
        read = {*own, *(one for date in own for one in weekdays_before(date))}

        def draw(made_of: str, name: str = name, links: Links = links) -> str:
            return week.render(name, days, links, made_of)

        made += _write(root, f"week-{name}", draw, _hash(days, links, read), step)
    for name, links in _spans(root, "year", dates, days.dates, year_of):

        def draw(made_of: str, name: str = name, links: Links = links) -> str:
            return year.render(name, days, links, made_of)

        made_of = _hash(days, links, days_of_year(name))
        made += _write(root, f"year-{name}", draw, made_of, step)
    if made:
        say(f"drawing {counted(len(made), 'page')} of weeks and years")
    return made


def _spans(
    root: Path,
    kind: str,
    dates: Iterable[str],
    there: Iterable[str],
    name_of: Callable[[str], str],
) -> list[tuple[str, Links]]:
    """Return the weeks or years of these days, those beside them, and those without a page."""
    every = sorted({name_of(date) for date in there})
    wanted = {name_of(date) for date in dates}
    found = []
    for before, name, after in zip(["", *every], every, [*every[1:], ""], strict=False):
        if wanted & {before, name, after} or not (root / f"{kind}-{name}.html").exists():
            names = [f"{kind}-{one}" if one else "" for one in (before, after)]
            found.append((name, Links(*names)))
    return found


def _write(root: Path, name: str, draw: Draw, made_of: str, step: Step) -> list[str]:
    page = root / f"{name}.html"
    if _made_of(page) == made_of:
        return []
    step(f"draw {name}")
    text = draw(made_of)
    with tempfile.TemporaryDirectory(prefix=ASIDE, dir=root) as aside:
        new = Path(aside) / page.name
        new.write_text(text, encoding="utf-8")
        step(f"place {page.name}")
        os.replace(new, page)
    return [page.name]


def _hash(days: Days, links: Links, dates: Iterable[str]) -> str:
    said = [str(VERSION), links.before, links.after]
    said += [f"{date} {days.hash_of(date)}" for date in sorted(dates)]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()


def _made_of(page: Path) -> str:
    """Return the hash that an existing page names; "" if there is no such page."""
    try:
        with page.open(encoding="utf-8", errors="replace") as file:
            found = _MADE_OF.search(file.read(_HEAD))
    except FileNotFoundError:
        return ""
    return found[1] if found else ""
