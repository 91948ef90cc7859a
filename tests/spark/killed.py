"""Kills the job that makes reports, with all its processes, wherever it can stand, and repeats it.

    python -m tests.spark.killed [--steps name] [--stages reading] [--pause 150]

Two days with reports get a segment each that came late, so both are made anew, and what was taken
in of them is no longer in the landing. Each time the process group of the job gets SIGKILL: before
each step of taking the days in and of putting their pages in place, or some time after a stage
began. At once every file of the reports before must be whole; then the job runs again, here, and
all files must be those of a run that nobody killed, in the lake as well. A Java starts each time,
so all of it takes minutes: `make report-kill`.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import SparkSession

from spark_jobs import delta, footers
from spark_jobs.lake import Step
from spark_jobs.report import build, session
from spark_jobs.report import main as job
from tests.spark.cluster import surroundings
from tests.spark.month import FEW, Month, day_of

DAYS = (0, 4)
DATE = day_of(DAYS[-1])
"""The day that is asked for; the one before is made again because something of it came late."""

STAGES = ("starting Spark", "reading", "making the tables", "comparing", "drawing the page")
LONGEST_S = 4.0
"""So long after a line, at most, the job is killed: somewhere within the stage."""

Files = dict[str, list[bytes]]


def main() -> int:
    """0 where every repeated run gave the same bytes."""
    options = _options()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="brokerd-killed-") as name:
        base = Path(name)
        landing = base / "landing"
        os.environ.update(surroundings(base))
        spark = session.start(base, small=True)
        try:
            before = _prepare(spark, base, landing)
            steps: list[str] = []
            whole = Path(shutil.copytree(before, base / "whole"))
            _run(spark, landing, whole, steps.append)
            points = [Point(step=one) for one in steps if one.startswith(tuple(options.steps))]
            for stage in options.stages:
                delays = [rng.uniform(0, LONGEST_S) for _ in range(options.each)]
                points += [Point(stage=stage, delay=delay) for delay in delays]
            if options.pause:
                points.append(Point(stage=STAGES[2], pause=options.pause))
            differing = sum(_try(spark, landing, before, whole, point) for point in points)
        finally:
            spark.stop()
    say(f"{differing} of {len(points)} differ")
    return 1 if differing else 0


@dataclass(frozen=True)
class Point:
    """Where a job is cut off: before a step, some time into a stage, or there for a while only."""

    step: str = ""
    stage: str = ""
    delay: float = 0
    pause: float = 0

    def __str__(self) -> str:
        if self.pause:
            return f"stopped for {self.pause:.0f} s in {self.stage!r}"
        if self.step:
            return f"killed before {self.step!r}"
        return f"killed {self.delay:.1f} s after {self.stage!r}"


def _try(spark: SparkSession, landing: Path, before: Path, whole: Path, point: Point) -> bool:
    """Whether anything is not as it should be, which is said."""
    output = before.with_name("killed")
    while True:
        shutil.copytree(before, output)
        said = cut_off(landing, output, DATE, point)
        if said is not None:
            break
        shutil.rmtree(output)  # it was through before its time: the stage is shorter here
        point = replace(point, delay=point.delay / 2)
    old, new = reports(before), reports(whole)
    there = reports(output)
    wrong = [name for name in old if there.get(name) not in (old[name], new.get(name))]
    if not point.pause:
        _run(spark, landing, output, lambda _: None)
    wrong += differences(output, whole)
    say(f"{point}; the last it said: {said}{''.join(f', differs: {name}' for name in wrong)}")
    shutil.rmtree(output)
    return bool(wrong)


def cut_off(landing: Path, output: Path, date: str, point: Point) -> str | None:
    """Start the job, a process group of its own, and cut it off there; the last it had said.

    None: it had ended before it could be killed."""
    words = ["--landing", str(landing), "--output", str(output), "--date", date]
    said = ["nothing"]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.spark.killed", "--child", point.step, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as started:
        assert started.stdout is not None
        for line in started.stdout:
            said.append(line.strip())
            if point.stage and point.stage in line:
                time.sleep(point.delay)
                os.killpg(started.pid, signal.SIGSTOP if point.pause else signal.SIGKILL)
                if point.pause:
                    time.sleep(point.pause)
                    os.killpg(started.pid, signal.SIGCONT)
    if point.stage and not point.pause and said[-1].startswith("report: page: "):
        return None
    if not point.pause:
        assert started.returncode == -signal.SIGKILL, f"it was not killed: {started.returncode}"
    return said[-1]


def child(step: str, words: Sequence[str]) -> int:
    """The job itself; it kills its process group when this step is about to be taken."""

    def take(name: str) -> None:
        if name == step:
            os.killpg(0, signal.SIGKILL)

    return job.main(words, step=take)


def reports(root: Path) -> Files:
    """The files of all reports by name, and the pages of weeks and years."""
    found = (path for path in (*root.glob("2*/*"), *root.glob("*.html")) if path.is_file())
    return {str(path.relative_to(root)): [path.read_bytes()] for path in found}


def lake(root: Path) -> Files:
    """What each directory of the lake holds; the names that Spark gives files are left out.

    Of a log it counts which files it names, not in how many commits."""
    found: Files = {}
    for home in (root / build.LAKE).glob(f"*/{delta.LOG}"):
        named = {str(Path(path).parent) for path in delta.files_of(home.parent)}
        found[str(home.relative_to(root))] = sorted(path.encode() for path in named)
    for path in sorted((root / build.LAKE).rglob("*")):
        if path.is_file() and delta.LOG not in path.parts:
            at = path.parent if path.suffix == ".parquet" else path
            raw = path.read_bytes()
            said = footers.in_order(raw) if path.suffix == ".parquet" else raw
            found.setdefault(str(at.relative_to(root)), []).append(said)
    return {name: sorted(bodies) for name, bodies in found.items()}


def differences(one: Path, other: Path) -> list[str]:
    """Names of what is not the same in two roots, or is left over in the first."""
    found = []
    for read in (reports, lake):
        first, second = read(one), read(other)
        found += [name for name in sorted({*first, *second}) if first.get(name) != second.get(name)]
    return found + [path.name for path in one.glob(".new-*")]


def _prepare(spark: SparkSession, base: Path, landing: Path) -> Path:
    """Two days with reports; then what was held back of both lands, and all else is removed."""
    say("two days and their reports")
    Month(landing, hours=12, when=FEW).write(DAYS)
    late = [
        path for number in DAYS for path in sorted((landing / day_of(number)).glob("west-*"))[-2:]
    ]
    aside = base / "late"
    for path in late:
        (aside / path.parent.name).mkdir(parents=True, exist_ok=True)
        path.rename(aside / path.parent.name / path.name)
    before = base / "before"
    before.mkdir()
    build.build_days(spark, landing, before, [day_of(number) for number in DAYS], lambda _: None)
    for path in landing.glob("2*/*"):
        path.unlink()
    for path in late:
        (aside / path.parent.name / path.name).rename(path)
    return before


def _run(spark: SparkSession, landing: Path, output: Path, step: Step) -> None:
    build.build_days(spark, landing, output, [DATE], lambda _: None, step=step)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", nargs="*", default=[""], help="how their names begin")
    parser.add_argument("--stages", nargs="*", default=STAGES, help="parts of progress lines")
    parser.add_argument("--each", type=int, default=1, help="how often in each stage")
    parser.add_argument("--pause", type=float, default=0, help="stop the job so many seconds")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def say(text: str) -> None:
    """Tell how far it is."""
    sys.stdout.write(f"kill: {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(child(sys.argv[2], sys.argv[3:]) if sys.argv[1:2] == ["--child"] else main())
