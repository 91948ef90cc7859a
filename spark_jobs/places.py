"""Where the lines that were set aside stand: segment, line and byte offset (BI-L1).

Reads:  on the driver, the segments that have such lines, a second time and within bounds: a frame
        of lines knows the names of files, but not where in them a line begins.
Never:  judges by itself; the lines go through the same parser and the same rules as before.
"""

import gzip
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark_jobs.coverage import SAMPLE_LENGTH
from spark_jobs.read import FAULT_CORRUPT, sealed_segments, with_fault
from spark_jobs.schema import CORRUPT, LINE

READ_AGAIN_BYTES = 64 * 1024 * 1024
"""Bytes read a second time, of all segments together."""

BATCH_BYTES = 4 * 1024 * 1024
LONGEST = 1024 * 1024
"""A line is judged by this much of its beginning; the daemon writes none that comes near it."""


class Raw(NamedTuple):
    """A line as it stands in an unpacked segment; `line` counts from 1, `offset` in bytes."""

    file: str
    line: int
    offset: int
    text: str


RAW = StructType(
    [
        StructField("file", StringType()),
        StructField("line", LongType()),
        StructField("offset", LongType()),
        StructField("text", StringType()),
    ]
)


def batches(source: Path, names: Collection[str]) -> Iterator[list[Raw]]:
    """The lines of the segments called one of `names`, a few megabytes at a time."""
    batch: list[Raw] = []
    size = total = 0
    for raw in _lines(source, names):
        batch.append(raw)
        size += len(raw.text)
        if size >= BATCH_BYTES:
            yield batch
            total += size
            batch, size = [], 0
        if total + size >= READ_AGAIN_BYTES:
            break
    if batch:
        yield batch


def places(raw: DataFrame) -> DataFrame:
    """Of lines with the columns of `RAW`, those to be set aside, with `fault` and `sample`."""
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    read = raw.withColumn("read", F.from_json("text", LINE, options))
    place = ("file", "line", "offset", F.substring("text", 1, SAMPLE_LENGTH).alias("sample"))
    judged = with_fault(read.select(*place, F.col("read").isNull().alias("nothing"), "read.*"))
    fault = F.when(F.col("nothing"), FAULT_CORRUPT).otherwise(F.col("fault"))
    found = judged.select("file", "line", "offset", fault.alias("fault"), "sample")
    return found.where(F.col("fault").isNotNull()).orderBy("file", "offset")


def open_segment(path: Path) -> BinaryIO:
    """The bytes of a segment, unpacked if it is packed."""
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _lines(source: Path, names: Collection[str]) -> Iterator[Raw]:
    chosen = {
        os.fsencode(path.relative_to(source)).decode("utf-8", "replace"): path
        for path in sealed_segments(source)
        if path.name in names
    }
    for file, path in sorted(chosen.items()):
        with open_segment(path) as opened:
            for line, offset, raw in _pieces(opened):
                # The reader passes over blank lines, and takes a lone CR for the end of a line.
                for part in raw.split(b"\r"):
                    if part.strip():
                        yield Raw(file, line, offset, part.decode("utf-8", "replace"))
                    offset += len(part) + 1  # noqa: PLW2901


def _pieces(opened: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """Lines without their ends, each with its number and offset; of a long one, the beginning."""
    line = offset = 0
    while raw := opened.readline(LONGEST):
        line += 1
        yield line, offset, raw.rstrip(b"\n")
        while raw and not raw.endswith(b"\n"):
            offset += len(raw)
            raw = opened.readline(LONGEST)
        offset += len(raw)
