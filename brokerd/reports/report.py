"""Report: runs the report of the metrics logs as a child process.

Calls:  `python -m spark_jobs.report`, with a Java on which Spark runs.
Never:  imports Spark or the jobs; writes anything but a Java launcher below the state directory.
Fails:  with a `Refusal` before the child is started; later, the child's own output is passed on.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from brokerd.errors import Refusal
from brokerd.reports.java import find_java
from brokerd.resources import spark_jobs_dir

_MADE = "report: page: "
"""The beginning of the last line of a job that made a report."""
_AGAIN = "report: made again: "
"""The beginning of a line about an existing page whose input has changed: day and reason."""
_NEEDED = ("pyspark", "jinja2", "matplotlib")
_STATUSES = {0: "fine", 1: "look", 2: "act"}


class ReportExtraMissing(Refusal):
    """The packages that the report needs are not installed."""

    code = "report_extra_missing"
    hint = "install them with: pip install 'brokerd[batch]'"


@dataclass(frozen=True, slots=True)
class ReportResult:
    """The result of the job.

    `exit_status`: 0 = fine, 1 = needs a look, 2 = needs action, or no report was made. `page`: the
    report; None if none was made.
    """

    exit_status: int
    page: Path | None
    said: tuple[str, ...]

    @property
    def made_again(self) -> dict[str, str]:
        """The days whose existing pages were made again, each with the reason (BI-L7)."""
        lines = [line.removeprefix(_AGAIN) for line in self.said if line.startswith(_AGAIN)]
        return {date: why for date, _, why in (one.partition(", because ") for one in lines)}

    @property
    def verdict(self) -> str:
        """The verdict: `fine`, `look`, `act`, or `none` if no report was made."""
        return _STATUSES.get(self.exit_status, "none") if self.page else "none"


@dataclass(frozen=True, slots=True)
class Days:
    """One or several days of landed segments; `first` may be "last", the newest day that landed.

    With `forget_removed` the days are made from the segments in the landing now: segments that were
    added before, and have been removed from the landing since, are dropped (BI-L8). With
    `keep_days` the lake keeps that many days, up to the newest (BI-L37). The pages are copied to
    `publish`, a URL, if there is one (BI-L39).
    """

    first: str = "last"
    to: str | None = None
    forget_removed: bool = False
    keep_days: int | None = None
    publish: str | None = None


def run_report(
    source: Path | str,
    output: Path,
    *,
    state_dir: Path,
    say: Callable[[str], None],
    days: Days | None = None,
    environ: Mapping[str, str] | None = None,
) -> ReportResult:
    """Make the report of the segments below `source` in `output`; block until it is done.

    With `days`, `source` is the directory or the URL to which segments are shipped, and each day's
    report is made in a directory of its own; without `days`, one report covers all segments.

    `say` is called with every line as soon as the child prints it. An interruption ends the child,
    too. Raises `ReportExtraMissing` and `JavaMissing`.
    """
    surroundings = os.environ if environ is None else environ
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ReportExtraMissing(f"the report needs {', '.join(missing)}")
    java = find_java(environ=surroundings, state_dir=state_dir)
    say(f"report: Java {java.version} from {java.origin}")
    command = [sys.executable, "-m", "spark_jobs.report", *job_arguments(source, output, days)]
    said: list[str] = []
    with subprocess.Popen(  # noqa: S603  # our own module, with paths as arguments
        command,
        env=child_environment(surroundings, java.home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    ) as child:
        try:
            _pass_on(child, said, say)
        except BaseException:
            child.terminate()
            raise
    made = [line.removeprefix(_MADE) for line in said if line.startswith(_MADE)]
    return ReportResult(child.returncode, Path(made[-1]) if made else None, tuple(said))


def job_arguments(source: Path | str, output: Path, days: Days | None) -> list[str]:
    """Return the command-line arguments of the job."""
    words = ["--output", str(output.absolute())]
    where = source if isinstance(source, str) else str(source.absolute())
    words += ["--input" if days is None else "--landing", where]
    if days is not None:
        words += ["--date", days.first, *(["--to", days.to] if days.to else [])]
        words += ["--forget-removed"] if days.forget_removed else []
        words += [] if days.keep_days is None else ["--keep-days", str(days.keep_days)]
        words += [] if days.publish is None else ["--publish", days.publish]
    return words


def child_environment(environ: Mapping[str, str], java_home: Path) -> dict[str, str]:
    """Return the child's environment, with this Java, this Python, loopback only, and the jobs.

    Variables that would point Spark at another installation or cluster are left out.
    """
    ours = {name: value for name, value in environ.items() if not name.startswith("SPARK_")}
    path = [str(spark_jobs_dir().parent), *filter(None, [environ.get("PYTHONPATH")])]
    return ours | {
        "JAVA_HOME": str(java_home),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONUNBUFFERED": "1",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def _pass_on(child: "subprocess.Popen[str]", said: list[str], say: Callable[[str], None]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        said.append(line.rstrip("\n"))
        say(said[-1])
