"""Lake: stores ingested days as Parquet, and replaces a day as a whole or not at all.

    <lake>/lines/date=…/generation=…/instance=…/      usable lines, each once
    <lake>/dialogs/date=…/generation=…/instance=…/    usable dialog lines
    <lake>/aside/date=…/generation=…/instance=…/      unusable lines
    <lake>/places/date=…/generation=…/                places of the first of these
    <lake>/stretches, histograms, steps, gauges, …    tables built from the lines
    <lake>/current/<day>.json                         the day's record: the valid generation and
                                                      the ingested segments
    <lake>/<table>/_delta_log/                        the table's log for other readers (`delta`)
    <lake>/tables.json                                names, columns and meanings of the tables

Reads:  directories and the files of `current`.   Calls: the file system, `delta`, and Spark to read
        Parquet.
Never:  changes an existing generation: a new one is written beside it, the file of `current` names
        the new one by one rename, then the logs follow, and only then is the old one removed. A
        crash leaves at most what `clean` mends and removes.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_jobs import delta
from spark_jobs.lake_columns import ABOUT, meaning, unit
from spark_jobs.lake_tables import TABLES, Table

STAGING = "staging"
TABLES_FILE = "tables.json"
TABLES_VERSION = 1
"""Version of the form of the list of tables."""

Step = Callable[[str], None]
"""A callback that is called with the name of each step before the step; a test may raise in it."""


def no_step(_step: str) -> None:
    """Ignore the step."""


class LakeError(Exception):
    """The lake cannot be worked with; the text gives the reason and the way out."""


class LakeDamagedError(LakeError):
    """The lake's record of a day is damaged."""


class LogsNotKeptError(LakeError):
    """The tables have logs, and the package that writes them is not installed."""


class Lake:
    """The directory of ingested days."""

    def __init__(self, root: Path, step: Step = no_step, *, pid: int | None = None) -> None:
        """Open the lake at `root`; `pid` is that of the process working in it (None: this one)."""
        self.root = root
        self.staging = root / f"{STAGING}-{pid or os.getpid()}"
        """Directory in which this run stages days. It has the pid in its name because the Java
        process of a killed run may continue writing for a moment, and must not write among the
        files that the next run stages."""
        self.step = step
        """Called before each change of the lake, and before each job that builds a table."""
        self._read: dict[Path, tuple[tuple[int, int], dict[str, Any]]] = {}
        """Cached records by file of `current`, each with the file's inode and modification time."""

    def clean(self) -> None:
        """Have the logs follow the records; remove staged files, and generations not in use.

        A run that was killed may have left work for each of these steps. The order matters: what a
        log names is not removed before the log has followed.

        Raises:
            LakeError: the logs cannot be kept, or a record is damaged; nothing was changed.
        """
        has_logs = delta.has_logs(self.root)
        if not delta.installed() and has_logs:
            raise LogsNotKeptError(
                f"the tables in {self.root} have Delta logs, and nothing can write them here: "
                f"pip install 'brokerd[lake]', or remove them: rm -r {self.root}/*/{delta.LOG}"
            )
        said = {date: self.current(date) for date in self.dates()}
        self.remove_staged()
        if delta.installed() and (said or has_logs):
            self._follow({date: one for date, one in said.items() if one is not None})
        if said:
            self._describe()
        for home in sorted(self.root.glob("*/date=*")):
            self._remove_others(home, said.get(home.name.removeprefix("date=")))

    def remove_staged(self) -> None:
        """Remove what runs have staged."""
        for left in self.root.glob(f"{STAGING}*"):
            shutil.rmtree(left, ignore_errors=True)

    def _follow(self, said: Mapping[str, Mapping[str, Any]]) -> None:
        named = {date: _named(one["generation"]) for date, one in said.items()}
        for name, table in TABLES.items():
            home, step = self.root / name, partial(self.step, f"log {name}")
            if delta.follow(home, table, named, step):
                _sync(home / delta.LOG)

    def _remove_others(self, home: Path, current: Mapping[str, Any] | None) -> None:
        keep = None if current is None else _named(current["generation"])
        for generation in home.iterdir():
            if generation.name != keep:
                self.step(f"remove what {home.name.removeprefix('date=')} was")
                shutil.rmtree(generation)
        if keep is None:
            home.rmdir()

    def dates(self) -> list[str]:
        """Return the days in the lake."""
        return sorted(path.stem for path in (self.root / "current").glob("*.json"))

    def current(self, date: str) -> dict[str, Any] | None:
        """Return the record of a day: its `generation`, the segments `taken` and the `unusable`.

        None if the lake does not have the day.

        Raises:
            LakeDamagedError: the record cannot be read.
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
        """Publish a staged day: `parts` are names of tables and their staged directories.

        Without parts, the day keeps the tables of the generation that `said` names. With parts,
        `said` must name a new generation. The one before stays whole, for those who are reading it
        and for the logs, until `clean` removes it.
        """
        current = self.current(date)
        for name, path in parts:
            if path.is_dir():
                assert current is None or current["generation"] != said["generation"], date
                self.step(f"place {name} of {date}")
                home = self.root / name / f"date={date}" / _named(said["generation"])
                shutil.rmtree(home, ignore_errors=True)  # left by a run that died before `say`
                home.parent.mkdir(parents=True, exist_ok=True)
                path.rename(home)
                _sync(home)  # the landing may no longer have these lines when power fails
        self.step(f"name {date}")
        self.say(date, said)

    def frame(
        self, spark: SparkSession, name: str, dates: Iterable[str], schema: str | StructType
    ) -> DataFrame:
        """Return a table over several days; a day that is not in the lake has no rows."""
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
        """Replace the record of a day, by one rename."""
        _replace(self.root / "current" / f"{date}.json", json.dumps(dict(said), sort_keys=True))

    def forget_before(self, date: str) -> list[str]:
        """Remove all days before this one from the lake; return them."""
        old = [one for one in self.dates() if one < date]
        for one in old:
            self.step(f"forget {one}")
            (self.root / "current" / f"{one}.json").unlink()
        if old:
            _sync_one(self.root / "current")
            self.clean()
        return old

    def _describe(self) -> None:
        """Write the list of tables, for those who read the lake, unless it is there already."""
        tables = {
            name: {"about": ABOUT[name], "by": one.by, "columns": _described(one)}
            for name, one in TABLES.items()
        }
        said = {"v": TABLES_VERSION, "tables": tables}
        text = json.dumps(said, indent=1, ensure_ascii=False)
        path = self.root / TABLES_FILE
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            _replace(path, text)


def _described(table: Table) -> list[dict[str, str]]:
    return [
        {
            "name": one.name,
            "type": one.dataType.simpleString(),
            "meaning": meaning(table.name, one.name),
            "unit": unit(one.name),
        }
        for one in table.columns
    ]


def _replace(path: Path, text: str) -> None:
    """Replace a file by one rename; it is durable on return."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".part")
    with aside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    _sync_one(path.parent)


def _named(generation: object) -> str:
    return f"generation={generation}"


def _sync(directory: Path) -> None:
    """Sync a directory and everything in it to disk."""
    for path in [directory, *directory.rglob("*")]:
        _sync_one(path)


def _sync_one(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _uri(path: Path) -> str:
    return f"file:{path.resolve()}"
