"""Files beside a page: the aggregates as Parquet, one file each, and a few tables as CSV.

Reads:  frames with a `date`, and `Data`.      Calls: Spark, the file system.
Never:  lets a name act as a formula in a spreadsheet (BI-L4).
"""

import csv
import io
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs import footers
from spark_jobs.coverage import Boot
from spark_jobs.latency import SPAN_ALL
from spark_jobs.report.data import Data, Failure, Finding, Held, Latency, Pair
from spark_jobs.report.groups import skew
from spark_jobs.report.moves import Move, moves
from spark_jobs.report.status import Point

ORDERS: Mapping[str, Sequence[str]] = {
    "conservation": ("from_service", "to_service", "contract"),
    "findings": ("finding", "conversation_id", "from_service", "to_service"),
    "latency": ("instance", "broker", "scope", "name", "measure", "span", "span_at"),
    "throughput": ("instance", "broker", "scope", "name", "counter", "step_at"),
}
"""The aggregates by name, each with its sort columns."""

_ALL = "all"
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def write_parquet(
    frame: DataFrame, name: str, dates: Iterable[str], homes: Mapping[str, Path], aside: Path
) -> None:
    """Write the rows of each date as the one file `name`.parquet in the date's directory.

    Equal rows give equal bytes: Spark puts a random part into a file's name, so the file is
    renamed, and the footer is put in order.
    """
    directory = aside / name
    wanted = frame.where(F.col("date").isin(list(dates)))
    day = F.when(F.col("date") == "", _ALL).otherwise(F.col("date"))
    placed = wanted.withColumn("day", day).repartition("day")
    ordered = placed.sortWithinPartitions("day", *ORDERS[name])
    ordered.write.partitionBy("day").parquet(f"file:{directory.resolve()}")
    empty: Path | None = None
    for date in dates:
        parts = sorted((directory / f"day={date or _ALL}").glob("part-*.parquet"))
        if not parts and empty is None:
            empty = _empty(frame, aside / f"{name}-empty")
        found = parts[0] if parts else empty
        assert found is not None, "there is a file, if only an empty one"
        (homes[date] / f"{name}.parquet").write_bytes(footers.in_order(found.read_bytes()))
    shutil.rmtree(directory)


def write_csv(data: Data, home: Path, points: Sequence[Point] = ()) -> None:
    """Write the tables that people open in a spreadsheet; the page shows the worst rows of each."""
    pairs = [{**asdict(pair), "undelivered_by": ""} for pair in data.pairs]
    tables: Iterable[tuple[str, Sequence[str], Iterable[Mapping[str, object]]]] = (
        ("conservation", _names(Pair), pairs),
        ("findings", _names(Finding), map(asdict, data.findings)),
        ("failures", _names(Failure), map(asdict, data.failures)),
        ("groups", _GROUPS, _groups(data)),
        ("held", _names(Held), map(asdict, data.held)),
        ("moves", _names(Move), map(asdict, moves(data))),
        ("latency", _names(Latency), (asdict(one) for one in data.latency if one.span == SPAN_ALL)),
        ("boots", _names(Boot), ({**asdict(one), "gaps": len(one.gaps)} for one in data.boots)),
        ("points", _names(Point), ({**asdict(one), "status": one.status.name} for one in points)),
    )
    for name, columns, rows in tables:
        (home / f"{name}.csv").write_text(csv_of(columns, rows), encoding="utf-8")


def _names(
    kind: type[Pair | Finding | Failure | Held | Move | Latency | Boot | Point],
) -> list[str]:
    return [field.name for field in fields(kind)]


_GROUPS = (
    "instance",
    "broker",
    "name",
    "group",
    "messages_at_least",
    "messages_at_most",
    "received",
)


def _groups(data: Data) -> Iterator[dict[str, object]]:
    for one in skew(data):
        for group, messages in one.groups:
            most = one.most(messages)
            said = (one.instance, one.broker, one.name, group, messages, most, one.received)
            yield dict(zip(_GROUPS, said, strict=True))


def csv_of(names: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """Return the rows as CSV with a header; mark text that a spreadsheet would run as text."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: harmless(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def harmless(value: object) -> object:
    """Put a quote before text that begins like a formula; replace control characters (BI-L4)."""
    if not isinstance(value, str):
        return value
    text = "'" + value if value.startswith(_FORMULA) else value
    return "".join(c if c.isprintable() else " " for c in text)


def _empty(frame: DataFrame, aside: Path) -> Path:
    nothing = frame.sparkSession.createDataFrame([], frame.schema).coalesce(1)
    nothing.write.parquet(f"file:{aside.resolve()}")
    return next(iter(sorted(aside.glob("part-*.parquet"))))
