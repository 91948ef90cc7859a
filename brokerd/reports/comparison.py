"""Comparison: compares two reports by their `summary.json`, without Spark or Java.

Reads:  two directories of reports, or the files themselves.     Calls: nothing.
Never:  judges a difference as good or bad: it only sorts the differences by size.
Fails:  `NoSummary` if a report is missing, or of another version.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from brokerd.errors import Refusal

SUMMARY: Final = "summary.json"
VERSION: Final = 2
SHOWN: Final = 40

Figures = Mapping[tuple[str, str], float]


class NoSummary(Refusal):
    """A report is missing, or was made by another version."""

    code = "no_summary"
    hint = "name two directories that brokerd report run has made, such as reports/2026-11-18"


class Difference(msgspec.Struct, frozen=True):
    """One figure in two reports; None = the report does not have the figure."""

    what: str
    where: str
    one: float | None
    other: float | None

    @property
    def change(self) -> float | None:
        """The change as a fraction of the first figure; None if that figure is zero or missing."""
        return None if not self.one else ((self.other or 0.0) - self.one) / abs(self.one)

    @property
    def weight(self) -> float:
        """The size of the difference, from 0 to 2; doubling and halving have the same size."""
        first, second = self.one or 0.0, self.other or 0.0
        most = max(abs(first), abs(second))
        return abs(second - first) / most if most else 0.0


def compare(one: Path, other: Path) -> list[Difference]:
    """Return the differing figures, the largest difference first, at most `SHOWN`.

    Raises:
        NoSummary: one of the paths is not a report.
    """
    first, second = _figures(_read(one)), _figures(_read(other))
    found = [
        Difference(*key, first.get(key), second.get(key))
        for key in sorted({*first, *second})
        if first.get(key) != second.get(key)
    ]
    found.sort(key=lambda row: (-row.weight, row.what, row.where))
    return found[:SHOWN]


def _read(path: Path) -> dict[str, Any]:
    file = path / SUMMARY if path.is_dir() else path
    try:
        said = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise NoSummary(f"{file} is no summary of a report: {error}") from error
    if said.get("v") != VERSION:
        raise NoSummary(f"{file} is of version {said.get('v')}, and this reads {VERSION}")
    return said


def _figures(said: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    return dict(_each(said))


def _each(said: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], float]]:
    for name, value in said["totals"].items():
        yield (f"messages {name.replace('_', ' ')}", "all"), value
    for line in said["latency"]:
        if line["span"] == "all":
            where = f"{line['name'] or line['broker'] or 'instance'} at {line['instance']}"
            yield (f"{line['measure']} p95", where), line["p95_us"]
    for one in said["queues"]:
        where = f"{one['name']} at {one['instance']}"
        yield ("messages waiting at the end", where), one["waiting"]
        yield ("messages parked at the end", where), one["parked"]
    failures: dict[str, float] = {}
    for one in said["failures"]:
        where = f"{one['name'] or one['event']}: {one['fingerprint']}"
        failures[where] = failures.get(where, 0) + one["times"]
    for where, times in failures.items():
        yield ("failures", where), times
    for night in said["nights"]:
        if night["date"] == said["date"]:
            where = f"{night['name'] or night['broker'] or 'instance'} at {night['instance']}"
            yield (night["gauge"], where), night["last"]
