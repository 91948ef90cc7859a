"""Where ingested days are kept, as Parquet; a day is replaced as a whole or not at all.

    <lake>/lines/date=…/generation=…/instance=…/      usable lines, each once
    <lake>/dialogs/date=…/generation=…/instance=…/    those of dialogs
    <lake>/aside/date=…/generation=…/instance=…/      lines that cannot be used
    <lake>/places/date=…/generation=…/                where the first of these stand
    <lake>/stretches, histograms, steps, gauges, …    made of the lines
    <lake>/current/<day>.json                         which generation holds, and the segments
                                                      that were taken in

Reads:  directories and the files of `current`.   Calls: the file system, and Spark to read Parquet.
Never:  changes a generation that is there: another one is written beside it, the file of `current`
        names it by one rename, and only then does the old one go. A crash leaves at most what
        `clean` removes.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

STAGING = "staging"

Step = Callable[[str], None]
"""Told the name of each step before it is taken; a test may fail there."""


def no_step(_step: str) -> None:
    """Nobody is told."""


class LakeDamagedError(Exception):
    """What the lake says of a day is damaged; the text says where and what to do."""


class Lake:
    """The directory of ingested days."""

    def __init__(self, root: Path, step: Step = no_step, *, pid: int | None = None) -> None:
        """`pid`: of the process that works in it, this one if it is None."""
        self.root = root
        self.staging = root / f"{STAGING}-{pid or os.getpid()}"
        """Where this run makes days. The Java of a run whose Python was killed may go on writing
        for a moment, and must not write among what the next one stages."""
        self.step = step
        """Told of what is done to the lake, and of the jobs that it is made by."""
        self._read: dict[Path, tuple[tuple[int, int], dict[str, Any]]] = {}
        """What the files of `current` said, each as it was with that inode and time."""

    def clean(self) -> None:
        """Remove what a run that was cut off has left."""
        for left in self.root.glob(f"{STAGING}*"):
            shutil.rmtree(left, ignore_errors=True)
        for home in sorted(self.root.glob("*/date=*")):
            self._remove_others(home, self.current(home.name.removeprefix("date=")))

    @staticmethod
    def _remove_others(home: Path, current: Mapping[str, Any] | None) -> None:
        keep = None if current is None else _named(current["generation"])
        for generation in home.iterdir():
            if generation.name != keep:
                shutil.rmtree(generation)

    def dates(self) -> list[str]:
        """The days that are there."""
        return sorted(path.stem for path in (self.root / "current").glob("*.json"))

    def current(self, date: str) -> dict[str, Any] | None:
        """What is said of a day: its `generation`, the segments `taken`, what is `unusable`.

        Raises:
            LakeDamagedError: it cannot be read.
        """
        path = self.root / "current" / f"{date}.json"
        try:
            status = path.stat()
            version = (status.st_ino, status.st_mtime_ns)
            if path not in self._read or self._read[path][0] != version:
                self._read[path] = (version, dict(json.loads(path.read_bytes())))
            return dict(self._read[path][1])
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise LakeDamagedError(
                f"{path} cannot be read; put it back from a backup, or remove it: the day is then "
                "taken in again from the landing, without what is no longer there"
            ) from error

    def publish(
        self, date: str, said: Mapping[str, Any], parts: Iterable[tuple[str, Path]]
    ) -> None:
        """Make a day of what was staged: `parts` are names of tables and their directories.

        Without any, the day keeps the tables of the generation that `said` names. With some, that
        must be another generation than the current one, which stays whole until it is replaced.
        """
        current = self.current(date)
        for name, path in parts:
            if path.is_dir():
                assert current is None or current["generation"] != said["generation"], date
                self.step(f"place {name} of {date}")
                home = self.root / name / f"date={date}" / _named(said["generation"])
                shutil.rmtree(home, ignore_errors=True)  # of a run that did not get to name it
                home.parent.mkdir(parents=True, exist_ok=True)
                path.rename(home)
                _sync(home)  # the landing may no longer have what is in it
        self.step(f"name {date}")
        self.say(date, said)
        self.step(f"remove what {date} was")
        for home in self.root.glob(f"*/date={date}"):
            self._remove_others(home, said)

    def frame(self, spark: SparkSession, name: str, dates: Iterable[str], schema: str) -> DataFrame:
        """A table over several days; days that are not there have no rows."""
        home = self.root / name
        known = ((date, self.current(date)) for date in dates)
        paths = [
            home / f"date={date}" / _named(said["generation"])
            for date, said in known
            if said is not None
        ]
        there = [_uri(path) for path in paths if path.is_dir()]
        if not there:
            return spark.createDataFrame([], schema)
        reader = spark.read.schema(schema).option("basePath", _uri(home))
        return reader.parquet(*there).drop("generation")

    def say(self, date: str, said: Mapping[str, Any]) -> None:
        """Write what is said of a day, by one rename."""
        path = self.root / "current" / f"{date}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(".part")
        with aside.open("w", encoding="utf-8") as file:
            json.dump(dict(said), file, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        _sync(path.parent)


def _named(generation: object) -> str:
    return f"generation={generation}"


def _sync(directory: Path) -> None:
    """Make a directory safe, with all that it holds."""
    for path in [directory, *directory.rglob("*")]:
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _uri(path: Path) -> str:
    return f"file:{path.resolve()}"
