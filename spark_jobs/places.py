"""Places of the unusable lines: segment, line and byte offset (BI-L1).

Reads:  on the driver, the segments that have such lines, a second time: a frame has the order of
        the lines, but not the offset in the file at which a line begins.
Never:  decides whether a line is usable; it finds the n-th line that the reader saw. If that is not
        the line that was set aside, as in a file that the reader split, line and offset are None.
"""

import gzip
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.coverage import SAMPLE_LENGTH
from spark_jobs.schema import CORRUPT

LONGEST = 1024 * 1024
"""Number of bytes read of the beginning of a line; the daemon's lines are far shorter."""


@dataclass(frozen=True, slots=True)
class Bad:
    """A line that was set aside; `number` counts the lines of its file that the reader saw."""

    date: str
    file: str
    number: int
    fault: str
    text: str | None
    """The beginning of the line if the reader could not parse it."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one unusable line, from line 1 and byte 0 of the unpacked file.

    `line` and `offset` are None if the line was not found.
    """

    date: str
    file: str
    line: int | None
    offset: int | None
    fault: str
    sample: str


def numbered(lines: DataFrame, limit: int) -> DataFrame:
    """Return the first `limit` unusable lines, as rows like `Bad`.

    `lines` are all lines, including usable ones, with the `row` that the reader gave them.
    """
    bad = lines.where(F.col("fault").isNotNull()).select(
        "date", "file", "row", "fault", F.substring(CORRUPT, 1, SAMPLE_LENGTH).alias("text")
    )
    firsts = lines.groupBy("date", "file").agg(F.min("row").alias("first_row"))
    placed = bad.join(firsts, ["date", "file"]).select(
        "date", "file", (F.col("row") - F.col("first_row")).alias("number"), "fault", "text"
    )
    return placed.orderBy("date", "file", "number").limit(limit)


def locate(bad: Iterable[Bad], paths: Mapping[tuple[str, str], Path]) -> list[Place]:
    """Return the place of each of these lines; `paths`: segments by date and name."""
    by_file: dict[tuple[str, str], dict[int, Bad]] = defaultdict(dict)
    for one in bad:
        by_file[one.date, one.file][one.number] = one
    found: list[Place] = []
    for key, wanted in sorted(by_file.items()):
        there = dict(_found(paths[key], wanted)) if key in paths else {}
        for number, one in sorted(wanted.items()):
            line, offset, text = there.get(number, (None, None, one.text or ""))
            if one.text is not None and not _same(text, one.text):
                line, offset, text = None, None, one.text
            found.append(Place(one.date, one.file, line, offset, one.fault, text))
    return found


def open_segment(path: Path) -> BinaryIO:
    """Open a segment for its bytes, unpacked if it is packed."""
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _found(path: Path, wanted: Mapping[int, Bad]) -> Iterator[tuple[int, tuple[int, int, str]]]:
    last = max(wanted)
    with open_segment(path) as opened:
        for number, (line, offset, raw) in enumerate(_seen(opened)):
            if number in wanted:
                yield number, (line, offset, raw.decode("utf-8", "replace")[:SAMPLE_LENGTH])
            if number == last:
                return


def _seen(opened: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """Yield the lines as Spark's reader sees them: without blank ones, and split at a lone CR."""
    for line, offset, raw in _pieces(opened):
        for part in raw.split(b"\r"):
            if part.strip(b" \t"):
                yield line, offset, part
            offset += len(part) + 1  # noqa: PLW2901


def _pieces(opened: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """Yield each line without its end, cut to `LONGEST` bytes, with its number and offset."""
    line = offset = 0
    while raw := opened.readline(LONGEST):
        line += 1
        yield line, offset, raw.rstrip(b"\n")
        while raw and not raw.endswith(b"\n"):
            offset += len(raw)
            raw = opened.readline(LONGEST)
        offset += len(raw)


def _same(found: str, expected: str) -> bool:
    length = min(len(found), len(expected), 40)
    return found[:length] == expected[:length]
