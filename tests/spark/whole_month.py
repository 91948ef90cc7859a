"""The month of `month.py` at its full size, through the command that people run.

    python -m tests.spark.whole_month --lines 20000000 DIRECTORY

Exit status 0 where each planted fault is named on its day and nothing else is red.
"""

import argparse
import json
import math
import os
import sys
from pathlib import Path

from brokerd.reports.java import find_java
from brokerd.reports.report import child_environment
from tests.spark import measured
from tests.spark.month import DAYS, WHEN, Month, day_of, planted

INTERVALS = 6
"""Lines that one instance of the month writes for each interval."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--lines", type=int, default=20_000_000)
    parser.add_argument("--days", type=int, default=DAYS)
    options = parser.parse_args()
    landing, reports = options.directory / "landing", options.directory / "reports"
    if not landing.is_dir():
        steps = 12
        hours = options.days * 24 - (4 if options.days > WHEN["clock"] else 0)  # without dialogs
        dialogs = math.ceil(options.lines / (hours * 2) - steps * INTERVALS)
        month = Month(landing, dialogs=max(dialogs, 1), steps=steps, hours=1)
        say(f"{month.write(range(options.days), say)} lines written")
    java = find_java(environ=os.environ, state_dir=options.directory)
    command = [sys.executable, "-m", "spark_jobs.report", "--landing", str(landing)]
    command += ["--output", str(reports), "--date", day_of(0), "--to", day_of(options.days - 1)]
    say(str(measured.run(command, child_environment(os.environ, java.home))))
    return max([_judge(reports, number) for number in range(options.days)])


def _judge(reports: Path, number: int) -> int:
    said = json.loads((reports / day_of(number) / "summary.json").read_text())
    expected = planted(WHEN, number)
    status = ("fine", "look", "act").index(said["status"])
    texts = [point["text"] for point in said["points"]]
    named = all(any(one.text in text for text in texts) for one in expected)
    if named and status == max((one.status for one in expected), default=0):
        return 0
    say(f"{day_of(number)}: {said['status']}, {texts}; planted: {expected}")
    return 1


def say(text: str) -> None:
    """Tell how far it is."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
