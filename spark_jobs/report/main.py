"""Reads sealed segments, runs the jobs, writes the page and the aggregates.

Reads:  the input directory.      Calls: the pure jobs, then `page`.
Never:  touches an earlier report before the new one is whole (BI-L5): all is written aside and
        each file then takes its place by one rename, the page last.
Exit:   0 fine, 1 look, 2 act; also 2, with the reason, when no report can be made.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import conservation, coverage, places
from spark_jobs.dedup import distinct_lines
from spark_jobs.latency import latency
from spark_jobs.read import SEALED, read_lines, sealed_segments, usable
from spark_jobs.report import page, session
from spark_jobs.report.data import (
    Boot,
    Data,
    Finding,
    Gap,
    Latency,
    Mark,
    Pair,
    Place,
    Rate,
    Segment,
    values,
)
from spark_jobs.report.summary import summary
from spark_jobs.report.verdict import Verdict, judge
from spark_jobs.throughput import fitting_step, throughput

PAGE = "report.html"
LOG = "spark.log"
NO_REPORT = 2
FINDINGS_SHOWN = 20
MARKS_SHOWN = 200
PLACES_LISTED = 100
"""Lines set aside that are listed with their place; all of them are counted."""

Say = Callable[[str], None]


class NoReportError(Exception):
    """The input gives no report; the text says why and what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; see the module's header for the exit status."""
    options = _options(arguments)
    log: Path = options.output / LOG
    try:
        segments = _segments(options.input)
        options.output.mkdir(parents=True, exist_ok=True)
        _say(f"reading {len(segments)} sealed segments below {options.input}")
        small = sum(path.stat().st_size for path in segments) <= session.SMALL_BYTES
        verdict = _run(options.input, options.output, log, small=small)
    except (NoReportError, OSError) as error:
        return _fail(str(error))
    except Exception as error:  # noqa: BLE001  # one place per command
        return _fail(f"{type(error).__name__}: {error}", log=log)
    _say(f"{verdict.status.name.lower()}: {verdict.sentence}")
    _say(f"page: {options.output / PAGE}")
    return int(verdict.status)


def build(spark: SparkSession, source: Path, output: Path, say: Say) -> Verdict:
    """Make the report of `source` in `output`, an existing directory, and return the verdict."""
    with tempfile.TemporaryDirectory(prefix=".new-", dir=output) as name:
        aside = Path(name)
        data = _collect(spark, source, aside, say)
        verdict = judge(data)
        say("drawing the page")
        figures = json.dumps(summary(data, verdict), indent=2, sort_keys=True, ensure_ascii=False)
        (aside / "summary.json").write_text(figures + "\n", encoding="utf-8")
        (aside / PAGE).write_text(page.render(data, verdict), encoding="utf-8")
        _publish(aside, output)
    return verdict


def _collect(spark: SparkSession, source: Path, aside: Path, say: Say) -> Data:
    lines = read_lines(spark, source).cache()
    segments = values(Segment, _rows(coverage.files(lines)))
    good = usable(lines)
    boots = tuple(_boot(row) for row in _rows(coverage.boots(good)))
    if not boots:
        total = sum(part.lines for part in segments)
        raise NoReportError(f"none of the {total} lines can be used; is this a metrics log?")
    say(f"{sum(boot.lines for boot in boots)} lines of {len(boots)} boots")

    once = distinct_lines(good).cache()
    marks = values(Mark, _rows(coverage.marks(once).limit(MARKS_SHOWN)))
    step_us = _step(boots)

    say("balancing both sides of every dialog")
    balanced = conservation.directions(conservation.dialogs(once)).cache()
    pair_order = ("from_service", "to_service", "contract")
    pairs = _stored(conservation.pairs(balanced), "conservation", pair_order, aside)
    finding_order = ("finding", "conversation_id", "from_service", "to_service")
    found = _stored(conservation.findings(balanced), "findings", finding_order, aside)

    say("merging latency histograms")
    subject = ("instance", "broker", "scope", "name", "measure", "span", "span_at")
    waits = _stored(latency(once, step_us=step_us), "latency", subject, aside)

    say(f"counting messages in steps of {step_us // 1_000_000} s")
    counter = ("instance", "broker", "scope", "name", "counter", "step_at")
    rates = _stored(throughput(once, step_us=step_us), "throughput", counter, aside)

    rank = F.array_position(F.lit(list(conservation.FINDINGS)), F.col("finding"))
    return Data(
        segments=segments,
        places=_places(spark, source, segments),
        boots=boots,
        marks=marks,
        pairs=tuple(_pair(row) for row in _rows(pairs)),
        findings=values(Finding, _rows(found.orderBy(rank, *finding_order).limit(FINDINGS_SHOWN))),
        findings_in_all=found.count(),
        latency=values(Latency, _rows(waits.orderBy(*subject))),
        rates=values(Rate, _rows(rates.orderBy(*counter))),
        step_us=step_us,
    )


def _places(spark: SparkSession, source: Path, segments: Sequence[Segment]) -> tuple[Place, ...]:
    """The first lines that were set aside, each with its place."""
    names = {part.file for part in segments if part.fault}
    found: list[Place] = []
    for batch in places.batches(source, names) if names else ():
        left = PLACES_LISTED - len(found)
        judged = places.places(spark.createDataFrame(batch, places.RAW)).limit(left)
        found += values(Place, _rows(judged))
        if len(found) == PLACES_LISTED:
            break
    return tuple(found)


def _stored(frame: DataFrame, name: str, order: Sequence[str], aside: Path) -> DataFrame:
    """Write `frame` as the one file `name`.parquet and return what the file holds.

    Spark draws part of a file's name at random, so the file gets its own. Within, rows and pages
    are always the same; in the footer the writer lists each column's encodings in an order that
    may differ between two JVMs.
    """
    directory = aside / name
    frame.repartition(1).sortWithinPartitions(*order).write.parquet(str(directory))
    (part,) = directory.glob("part-*.parquet")
    file = part.rename(aside / f"{name}.parquet")
    shutil.rmtree(directory)
    return frame.sparkSession.read.schema(frame.schema).parquet(str(file))


def _publish(aside: Path, output: Path) -> None:
    files = sorted(aside.glob("*"), key=lambda path: (path.name == PAGE, path.name))
    for path in files:
        os.replace(path, output / path.name)


def _step(boots: Sequence[Boot]) -> int:
    span = max(boot.last_at for boot in boots) - min(boot.first_at for boot in boots)
    intervals = sum(boot.intervals for boot in boots)
    usual = sum(boot.interval_us for boot in boots) // intervals if intervals else 0
    return fitting_step(span, usual)


def _run(source: Path, output: Path, log: Path, *, small: bool) -> Verdict:
    with tempfile.TemporaryDirectory(prefix="brokerd-report-") as scratch:
        with session.errors_into(log):
            _say("starting Spark")
            spark = session.start(Path(scratch), small=small)
        try:
            return build(spark, source, output, _say)
        finally:
            spark.stop()


def _segments(source: Path) -> list[Path]:
    if not source.is_dir():
        raise NoReportError(f"there is no directory {source}")
    found = sealed_segments(source)
    if not found:
        raise NoReportError(
            f"no sealed segment ({SEALED}) below {source}; a running daemon seals one a minute"
        )
    return found


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="brokerd report run", description="Make the report of a directory of metrics logs."
    )
    parser.add_argument("--input", type=Path, required=True, help="directory of sealed segments")
    parser.add_argument("--output", type=Path, required=True, help="directory for the report")
    return parser.parse_args(arguments)


def _rows(frame: DataFrame) -> list[dict[str, object]]:
    return [row.asDict(recursive=True) for row in frame.collect()]


def _boot(row: dict[str, object]) -> Boot:
    gaps = row["gaps"]
    assert isinstance(gaps, list)
    return values(Boot, [{**row, "gaps": values(Gap, gaps)}])[0]


def _pair(row: dict[str, object]) -> Pair:
    reasons = row["undelivered_by"]
    assert isinstance(reasons, list)
    named = tuple((reason["outcome"], reason["undelivered"]) for reason in reasons)
    return values(Pair, [{**row, "undelivered_by": named}])[0]


def _say(text: str) -> None:
    sys.stdout.write(f"report: {text}\n")
    sys.stdout.flush()


def _fail(reason: str, *, log: Path | None = None) -> int:
    sys.stderr.write(f"report: no report was made: {reason}\n")
    if log is not None and (last := session.tail(log)):
        sys.stderr.write(f"report: the end of {log}:\n{last}\n")
    return NO_REPORT
