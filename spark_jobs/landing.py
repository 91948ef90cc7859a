"""Finds the segments that have landed, by their manifests (docs/reference/metrics-log.md).

Reads:  `<landing>/<day>/*.manifest` and the files beside them.
Never:  uses a segment without a manifest, or one that does not match its manifest: the latter is
        set aside whole, and reported.
"""

import gzip
import hashlib
import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from spark_jobs.dates import DAY_US, midnight

MANIFEST = ".manifest"
PACKED = ".jsonl.gz"
VERSION = 1
FAULT_DAMAGED = "damaged"
FAULT_MANIFEST = "manifest"
FAULT_VERSION = "version"
FAULT_DAY = "of another day"
"""The manifest names a day other than that of its directory: the segment was copied or moved."""
FAULT_TIME = "of another time"
"""The first line of the segment, by its manifest, is not of its day (BI-L22)."""
FAULT_TRUNCATED = "truncated"
"""The segment matches its manifest, but cannot be unpacked to its end."""

CLOSING_US = 3_600_000_000
"""Time after midnight, in microseconds, in which lines that close the day before may be written."""

_CHUNK = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment as its manifest describes it."""

    date: str
    name: str
    boot_id: str
    first_seq: int
    last_seq: int
    first_at: int
    last_at: int
    instance: str
    sha256: str
    path: Path


@dataclass(frozen=True, slots=True)
class Unusable:
    """A segment that is set aside whole, with the reason."""

    date: str
    name: str
    fault: str


@dataclass(frozen=True, slots=True)
class Day:
    """Everything that has landed of one day, sorted by name."""

    date: str
    segments: tuple[Segment, ...]
    unusable: tuple[Unusable, ...]


def days(landing: Path) -> list[str]:
    """Return the days that have a directory in the landing, in order."""
    return sorted(path.name for path in landing.iterdir() if is_date(path.name) and path.is_dir())


def is_date(text: str) -> bool:
    """Return whether the text is a day in the form 2026-11-18."""
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def read_day(landing: Path, day: str) -> Day:
    """Read the manifests of a day; the segments themselves are not read."""
    segments: list[Segment] = []
    unusable: list[Unusable] = []
    for path in sorted((landing / day).glob(f"*{MANIFEST}")):
        if path.name.startswith("."):  # Spark's reader ignores hidden files as well
            continue
        found = _read(path, day)
        if isinstance(found, Segment):
            segments.append(found)
        else:
            unusable.append(found)
    return Day(day, tuple(segments), tuple(unusable))


def verified(day: Day) -> Day:
    """Return the day with segments that do not match their manifests set aside; read each one."""
    good: list[Segment] = []
    bad = list(day.unusable)
    for one in day.segments:
        if _hash(one.path) == one.sha256:
            good.append(one)
        else:
            bad.append(Unusable(day.date, one.name, FAULT_DAMAGED))
    return Day(day.date, tuple(good), tuple(sorted(bad, key=lambda each: each.name)))


def unpacks(path: Path) -> bool:
    """Return whether a packed segment can be unpacked to its end; read all of it."""
    try:
        with gzip.open(path) as opened:
            while opened.read(_CHUNK):
                pass
    except (OSError, EOFError, zlib.error):
        return False
    return True


def overlapping(segments: Iterable[Segment]) -> set[str]:
    """Return the names of segments that share numbers with another of the same boot and day."""
    by_boot: dict[tuple[str, str], list[Segment]] = defaultdict(list)
    for one in segments:
        by_boot[one.date, one.boot_id].append(one)
    return {name for parts in by_boot.values() for name in _overlapping(parts)}


def _overlapping(parts: list[Segment]) -> Iterator[str]:
    parts.sort(key=lambda one: (one.first_seq, one.last_seq, one.name))
    widest: Segment | None = None
    for one in parts:
        if widest is not None and one.first_seq <= widest.last_seq:
            yield one.name
            yield widest.name
        if widest is None or one.last_seq > widest.last_seq:
            widest = one


def _read(path: Path, day: str) -> Segment | Unusable:
    name = path.name.removesuffix(MANIFEST) + PACKED
    try:
        said = json.loads(path.read_bytes())
        if said["v"] != VERSION:
            return Unusable(day, name, FAULT_VERSION)
        if said["day"] != day:
            return Unusable(day, name, FAULT_DAY)
        begins = midnight(day)
        if not begins <= said["first_at"] < begins + DAY_US + CLOSING_US:
            return Unusable(day, name, FAULT_TIME)
        segment = Segment(
            date=day,
            name=name,
            boot_id=str(said["boot_id"]),
            first_seq=int(said["first_seq"]),
            last_seq=int(said["last_seq"]),
            first_at=int(said["first_at"]),
            last_at=int(said["last_at"]),
            instance=str(said["instance"]),
            sha256=str(said["sha256"]),
            path=path.with_name(name),
        )
    except (ValueError, KeyError, TypeError, OSError):
        return Unusable(day, name, FAULT_MANIFEST)
    return segment


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as opened:
            while chunk := opened.read(_CHUNK):
                digest.update(chunk)
    except OSError:
        return ""
    return digest.hexdigest()
