"""Reader: finds the sealed segments and turns their lines into rows, marked as usable or not.

Reads:  `*.jsonl` and `*.jsonl.gz` below the input directory; a segment still being written ends in
        `.open` and is ignored.
Never:  drops a line silently (BI-L1, BI-L2): the column `fault` gives the reason.
"""

from collections.abc import Iterable, Sequence
from functools import reduce
from pathlib import Path

from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F

from spark_jobs.dates import DAY_US
from spark_jobs.schema import COMMON, CORRUPT, COUNTS, LINE, REQUIRED, SCOPE_REQUIRED, VERSION

SEALED = "*.jsonl"
PACKED = "*.jsonl.gz"
"""Patterns of the names of sealed segments."""

FAULT_CORRUPT = "corrupt"
FAULT_VERSION = "version"
FAULT_INCOMPLETE = "incomplete"
FAULT_TIME = "time"
FAULT_NEGATIVE = "negative"
"""A count is below zero (BI-L21)."""

NO_DATE = ""
"""The date given to lines that are reported together, whatever their days."""

BACKWARDS_US = 60_000_000
"""Disorder in time, in microseconds, that is not reported, because lines are written in batches."""

EARLIEST_US = 946_684_800_000_000
LATEST_US = 7_258_118_400_000_000
"""Bounds of believable times, in UTC microseconds: times outside 2000 to 2199 count as damage.
"""


def sealed_segments(source: Path) -> list[Path]:
    """Return the segments that `read_lines` will read, sorted; Spark too skips hidden names."""
    found = (path for form in (SEALED, PACKED) for path in source.rglob(form) if path.is_file())
    return sorted(path for path in found if not _hidden(path.relative_to(source)))


def read_lines(
    spark: SparkSession, source: Path, segments: Sequence[Path] | None = None
) -> DataFrame:
    """Read all lines below `source`: the columns of `LINE`, `date`, `file`, `row` and `fault`.

    `segments`: those to read; None means all. The caller must cache the result: Spark refuses a
    plan that needs only the corrupt text.
    """
    if segments is not None:
        raw = _reader(spark).json([_escaped(path) for path in segments])
        return with_fault(_placed(raw, F.lit(NO_DATE)))
    raw = (
        _reader(spark)
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", "{" + SEALED + "," + PACKED + "}")
        .json(_escaped(source))
    )
    return with_fault(_placed(raw, F.lit(NO_DATE)))


def read_segments(spark: SparkSession, paths: Sequence[Path]) -> DataFrame:
    """Read all lines of these segments; `date` is the name of the directory of a segment."""
    raw = _reader(spark).json([_escaped(path) for path in paths])
    days = {path.parent.name for path in paths}
    if len(days) == 1:
        return with_fault(_placed(raw, F.lit(*days)))  # spares parsing a path for each line
    day = F.substring_index(F.substring_index("_metadata.file_path", "/", -2), "/", 1)
    return with_fault(_placed(raw, day))


def _reader(spark: SparkSession) -> DataFrameReader:
    """Return a reader of lines as `LINE`, which also keeps lines that cannot be parsed.

    NaN is not accepted as a number: one NaN would make every total NaN to which it is added."""
    return (
        spark.read.schema(LINE)
        .option("mode", "PERMISSIVE")
        .option("columnNameOfCorruptRecord", CORRUPT)
        .option("allowNonNumericNumbers", "false")
    )


def _placed(raw: DataFrame, date: Column) -> DataFrame:
    """Add `file`, `date` and `row`, which rises in the order of a file's lines; see `places`."""
    named = raw.withColumn("file", F.col("_metadata.file_name")).withColumn("date", date)
    return named.withColumn("row", F.monotonically_increasing_id())


def with_fault(lines: DataFrame) -> DataFrame:
    """Add `fault`: null for a usable line, otherwise why it is set aside (BI-L1, BI-L2)."""
    other_version = F.col("v").isNotNull() & (F.col("v") != VERSION)
    fault = (
        F.when(other_version, FAULT_VERSION)
        .when(F.col(CORRUPT).isNotNull(), FAULT_CORRUPT)
        .when(_incomplete(), FAULT_INCOMPLETE)
        .when(~F.col("at").between(EARLIEST_US, LATEST_US), FAULT_TIME)
        .when(_negative(), FAULT_NEGATIVE)
    )
    return lines.withColumn("fault", fault)


def usable(lines: DataFrame) -> DataFrame:
    """Return the usable lines, without the columns that only describe unusable ones."""
    return believed(lines.where(F.col("fault").isNull()).drop("fault", CORRUPT))


def believed(lines: DataFrame) -> DataFrame:
    """Correct the beginnings of intervals that cannot be believed, and add `jumped`.

    An interval that ends before it begins, or lasts longer than a day, shows a clock that jumped:
    it is taken to begin where it ends. `jumped`: the clock went back within the interval.
    """
    believable = (F.col("at") - F.col("from_at")).between(0, DAY_US)
    began = F.when(believable, F.col("from_at")).when(F.col("from_at").isNotNull(), F.col("at"))
    jumped = F.coalesce(F.col("from_at") - F.col("at") > F.lit(BACKWARDS_US), F.lit(False))
    return lines.withColumn("jumped", jumped).withColumn("from_at", began)


def _incomplete() -> Column:
    common = _any_null(COMMON)
    kinds = [
        (F.col("kind") == kind) & _any_null(fields) for kind, fields in sorted(REQUIRED.items())
    ]
    scopes = [
        (F.col("scope") == scope) & _any_null(fields)
        for scope, fields in sorted(SCOPE_REQUIRED.items())
        if fields
    ]
    unknown_kind = ~F.col("kind").isin(*sorted(REQUIRED))
    return reduce(lambda one, other: one | other, [*kinds, *scopes, unknown_kind], common)


def _negative() -> Column:
    """Return whether a count of the line is below zero; false for a line without counts."""
    maps = [F.exists(F.map_values(name), lambda one: one < 0) for name in ("counters", "groups")]
    histograms = F.exists(
        F.map_values("histograms"),
        lambda buckets: F.exists(F.map_values(buckets), lambda one: one < 0),
    )
    numbers = [F.col(name) < 0 for name in COUNTS]
    found = (F.coalesce(one, F.lit(False)) for one in (*maps, histograms, *numbers))
    return reduce(lambda one, other: one | other, found)


def _any_null(fields: Iterable[str]) -> Column:
    return reduce(lambda one, other: one | other, (F.col(field).isNull() for field in fields))


def _hidden(relative: Path) -> bool:
    return any(part.startswith((".", "_")) for part in relative.parts)


def _escaped(source: Path) -> str:
    """Return the path as a URI in which Spark takes no character for a pattern."""
    special = "\\*?[]{}"
    return "file:" + "".join(f"\\{c}" if c in special else c for c in str(source.resolve()))
