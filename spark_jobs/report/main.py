"""Report command: reads sealed segments, runs the jobs, writes the pages and the aggregates.

Reads:  its arguments.      Calls: `build`, in a Spark session.
Exit:   0 fine, 1 look, 2 act; for several days the gravest. Also 2, with the reason, if no report
        can be made; 64 for wrong arguments.
"""

import argparse
import fcntl
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import date as calendar
from datetime import timedelta
from pathlib import Path
from typing import NoReturn, TypeVar

from pyspark.sql import SparkSession

from spark_jobs import ingest, landing
from spark_jobs.dates import days_before
from spark_jobs.lake import Lake, LakeError, Step, no_step
from spark_jobs.read import SEALED, sealed_segments
from spark_jobs.remote import RemoteError, RemoteLanding, RemotePages, is_url
from spark_jobs.report import session
from spark_jobs.report.build import LAKE, NoReportError, build, build_days, span_of
from spark_jobs.report.collect import HISTORY_DAYS
from spark_jobs.report.days import PAGE, SUMMARY
from spark_jobs.report.slo import SloError
from spark_jobs.report.verdict import Verdict
from spark_jobs.report.words import counted

LOG = "spark.log"
_SCRATCH = ".spark-"
NO_REPORT = 2
LEAST_KEPT = 35
"""Minimum number of days that a lake keeps: pages look back on thirty, and segments come late."""
USAGE = 64
"""Exit status of `brokerd` for wrong arguments; argparse's own, 2, has another meaning here."""

Made = TypeVar("Made")


def main(arguments: Sequence[str] | None = None, *, step: Step = no_step) -> int:
    """Run the command; see the module's header for the exit status.

    `step` is called before each change of a day's report, and of the lake it is made from.
    """
    options = _options(arguments)
    log: Path = options.output / LOG
    try:
        if options.landing is not None:
            return _nightly(options, log, step)
        return _single(options, log)
    except (NoReportError, RemoteError, LakeError, SloError, OSError) as error:
        return _fail(str(error))
    except Exception as error:  # noqa: BLE001  # one place per command
        _keep(error, log)
        return _fail(session.reason_of(error), log=log)


def _single(options: argparse.Namespace, log: Path) -> int:
    segments = _segments(options.input)
    options.output.mkdir(parents=True, exist_ok=True)
    _say(f"reading {len(segments)} sealed segments below {options.input}")
    small = _size(segments) <= session.SMALL_BYTES
    with tempfile.TemporaryDirectory(prefix="brokerd-report-") as scratch:
        verdict = _in_spark(
            lambda spark: build(spark, options.input, options.output, _say),
            log,
            Path(scratch),
            small=small,
        )
    _say(f"{verdict.status.name.lower()}: {verdict.sentence}")
    _say(f"page: {options.output / PAGE}")
    return int(verdict.status)


def _nightly(options: argparse.Namespace, log: Path, step: Step) -> int:
    pages = None if options.publish is None else RemotePages(options.publish)
    remote = not isinstance(options.landing, Path)
    if not remote:
        _known_dates(options, options.landing)  # before anything is made
    options.output.mkdir(parents=True, exist_ok=True)
    with _alone(options.output), _scratch(options.output) as scratch:
        source = _fetched(options, scratch / "landing") if remote else options.landing
        dates = _known_dates(options, source)
        verdicts = _verdicts(options, source, dates, log=log, scratch=scratch, step=step)
    for date, verdict in verdicts.items():
        _say(f"{date}: {verdict.status.name.lower()}: {verdict.sentence}")
    for date in dates:
        if date not in verdicts:
            _say(f"{date}: nothing has landed")
    if pages is not None:
        published = pages.publish(options.output, PAGE, SUMMARY)
        _say(f"published {counted(len(published), 'report')} at {options.publish}")
    _say(f"page: {options.output / max(verdicts) / PAGE}")
    return max(int(verdict.status) for verdict in verdicts.values())


def _known_dates(options: argparse.Namespace, source: Path) -> list[str]:
    """Return the requested days, of which at least one has landed or is in the lake."""
    dates = _dates(source, options.landing, options.date, options.to)
    known = {*landing.days(source), *Lake(options.output / LAKE).dates()}
    if not known:
        raise _nothing_at(options.landing)
    if not known & {*dates}:
        raise NoReportError(
            f"nothing of {span_of(dates)} has landed at {options.landing}; the newest day there "
            f"is {max(known)}"
        )
    return dates


def _fetched(options: argparse.Namespace, directory: Path) -> Path:
    """Fetch the new segments of the days that the run may look at; return their directory."""
    landed = RemoteLanding(options.landing, directory)
    dates = _known_dates(options, directory)
    pages = [home.name for home in options.output.glob("????-??-??")]
    fetched = landed.fetch(
        Lake(options.output / LAKE),
        days_before(min(dates), HISTORY_DAYS),
        max([*dates, *pages]),
        version=ingest.VERSION,
        anew=dates if options.forget_removed else (),
    )
    _say(f"fetched {fetched} segments from {options.landing}")
    return directory


def _verdicts(
    options: argparse.Namespace,
    source: Path,
    dates: Sequence[str],
    *,
    log: Path,
    scratch: Path,
    step: Step,
) -> dict[str, Verdict]:
    found = [path for date in dates for path in (source / date).glob("*.jsonl.gz")]
    return _in_spark(
        lambda spark: build_days(
            spark,
            source,
            options.output,
            dates,
            _say,
            forget_removed=options.forget_removed,
            keep_days=options.keep_days,
            step=step,
        ),
        log,
        scratch,
        small=_size(found) <= session.SMALL_BYTES,
    )


def _dates(source: Path, where: str | Path, first: str, last: str | None) -> list[str]:
    """Return the requested days, each a real date; `last` means the newest day that has landed.

    `where` is the landing by the name that the user knows, `source` its directory here.
    """
    if not source.is_dir():
        raise NoReportError(f"there is no directory {source}")
    if first == "last":
        landed = landing.days(source)
        if not landed:
            raise _nothing_at(where)
        return [landed[-1]]
    begin, end = calendar.fromisoformat(first), calendar.fromisoformat(last or first)
    return [(begin + timedelta(days)).isoformat() for days in range((end - begin).days + 1)]


def _nothing_at(source: str | Path) -> NoReportError:
    return NoReportError(f"nothing has landed at {source}; brokerd ship brings segments there")


@contextmanager
def _alone(output: Path) -> Iterator[None]:
    """Hold the lock of `output`: two runs on one lake would remove each other's staged files."""
    with (output / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NoReportError(f"another run is making reports in {output}") from None
        yield


@contextmanager
def _scratch(output: Path) -> Iterator[Path]:
    """Create a directory for Spark's sort files, which are large for a large day, in `output`.

    First remove those that killed runs have left, which is safe because only one run at a time
    works in `output`.
    """
    for left in output.glob(f"{_SCRATCH}*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=output) as name:
        yield Path(name)


def _in_spark(
    work: Callable[[SparkSession], Made], log: Path, scratch: Path, *, small: bool
) -> Made:
    with session.errors_into(log):
        _say("starting Spark")
        spark = session.start(scratch, small=small)
    try:
        return work(spark)
    except Exception as error:
        if how := session.death_of(spark):
            raise NoReportError(f"{how}; the end of {log} may say more") from error
        raise
    finally:
        if not session.death_of(spark):
            spark.stop()


def _segments(source: Path) -> list[Path]:
    if not source.is_dir():
        raise NoReportError(f"there is no directory {source}")
    found = sealed_segments(source)
    if not found:
        raise NoReportError(
            f"no sealed segment ({SEALED}.gz) below {source}; a running daemon seals one a minute"
        )
    return found


def _size(paths: Sequence[Path]) -> int:
    """Return the size of the lines in bytes, roughly: ten times that of a packed segment."""
    sizes = ((path.stat().st_size, path.suffix == ".gz") for path in paths)
    return sum(size * 10 if packed else size for size, packed in sizes)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="brokerd report run", description="Make the report of metrics logs.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--input", type=_directory, help="directory of segments, all in one report")
    source.add_argument(
        "--landing", type=_landing, help="directory or URL to which segments are shipped"
    )
    parser.add_argument("--date", default="last", help="with --landing: the day, 2026-11-18")
    parser.add_argument("--to", help="with --landing: the last day of several")
    parser.add_argument(
        "--forget-removed",
        action="store_true",
        help="with --landing: make the days of what is there now, not of what was there before",
    )
    parser.add_argument(
        "--publish", metavar="URL", help="with --landing: where the pages are copied to"
    )
    parser.add_argument(
        "--keep-days", type=int, help="with --landing: how many days the lake keeps"
    )
    parser.add_argument(
        "--output", type=_directory, required=True, help="directory for the reports"
    )
    options = parser.parse_args(arguments)
    for text in filter(None, (options.date, options.to)):
        if not (landing.is_date(text) or (text, options.to) == ("last", None)):
            parser.error(f"{text} is no day such as 2026-11-18")
    if options.forget_removed and options.landing is None:
        parser.error("--forget-removed is about a landing; it needs --landing")
    if options.publish is not None and options.landing is None:
        parser.error("--publish is about days; it needs --landing")
    if options.publish is not None and not is_url(options.publish):
        parser.error(f"--publish {options.publish} is no URL such as s3://bucket/reports")
    if options.keep_days is not None and options.landing is None:
        parser.error("--keep-days is about the lake; it needs --landing")
    if options.keep_days is not None and options.keep_days < LEAST_KEPT:
        parser.error(
            f"--keep-days is at least {LEAST_KEPT}, because pages look back on thirty days"
        )
    if options.to is not None and options.to < options.date:
        parser.error(f"--to {options.to} is before --date {options.date}")
    return options


def _landing(text: str) -> Path | str:
    """Return a URL as it is, and anything else as a path."""
    return text if is_url(text) else Path(text)


def _directory(text: str) -> Path:
    """Return the path of a directory; refuse a URL, which is no path."""
    if is_url(text):
        raise argparse.ArgumentTypeError(f"{text} is a URL, and no directory of this machine")
    return Path(text)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print the error and exit with `USAGE`."""
        self.exit(USAGE, f"report: {message}\n")


def _say(text: str) -> None:
    sys.stdout.write(f"report: {text}\n")
    sys.stdout.flush()


def _fail(reason: str, *, log: Path | None = None) -> int:
    sys.stderr.write(f"report: no report was made: {reason}\n")
    if log is not None:
        sys.stderr.write(f"report: {log} has all that was said of it\n")
    return NO_REPORT


def _keep(error: Exception, log: Path) -> None:
    """Append the whole traceback, which has pages of Java, to the log with Spark's own output."""
    with suppress(OSError), log.open("a", encoding="utf-8") as file:
        file.writelines(traceback.format_exception(error))
