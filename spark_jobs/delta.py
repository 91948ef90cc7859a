"""Delta logs: keep a log beside each table of the lake, so that others read it as a Delta table.

    <lake>/<table>/_delta_log/…     the table's schema, and its files at each time

Reads:  the logs, and the directories of new generations.   Calls: `deltalake`.
Never:  decides which generation of a day is valid: the record of the day does, and each log follows
        the records, in one commit that adds the files of new generations and removes those of old
        ones. So readers see a day of a table once, before the commit or after it.
Fails:  killed between two commits, some logs name generations that the records no longer do; their
        files are still there, and the next run continues (see `Lake.clean`). A log that cannot be
        read is made anew.
"""

import importlib.util
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from spark_jobs import footers
from spark_jobs.lake_tables import TABLES, Table

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

LOG = "_delta_log"

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""Name of the directory that Spark gives rows without a value of the partition column."""


def installed() -> bool:
    """Return whether the package that writes the logs is installed."""
    return importlib.util.find_spec("deltalake") is not None


def has_logs(root: Path) -> bool:
    """Return whether a table of the lake has a log."""
    return any((root / name / LOG).is_dir() for name in TABLES)


def follow(
    home: Path, table: Table, generations: Mapping[str, str], before: Callable[[], None]
) -> bool:
    """Have the log of the table at `home` name the files of these generations, and no others.

    `generations` has the name of a generation's directory by day. `before` is called before the
    commit. Return whether one was needed.
    """
    from deltalake._internal import RemoveAction  # noqa: PLC0415  # installed with brokerd[lake]

    log = _opened(home, table)
    named = _named(log)
    wanted = {f"date={date}/{name}" for date, name in generations.items()}
    gone = [path for path in named if _generation(path) not in wanted]
    there = {_generation(path) for path in named}
    new = [
        path
        for generation in sorted(wanted - there)
        for path in sorted((home / generation).rglob("*.parquet"))
    ]
    if not gone and not new:
        return False
    before()
    made_at = max((path.stat().st_mtime_ns for path in new), default=0) // 1_000_000
    log.create_write_transaction(
        [
            *(_added(home, path, table) for path in new),
            *(RemoveAction(path, data_change=True, deletion_timestamp=made_at) for path in gone),
        ],
        mode="append",
        schema=log.schema(),
        partition_by=list(table.by),
    )
    return True


def _opened(home: Path, table: Table) -> "DeltaTable":
    """Return the log of a table; make it if there is none, or add the columns that are new.

    A log that cannot be read, or in which a column has another type, is made anew: the records and
    the directories have all that it says.
    """
    from deltalake import DeltaTable, Schema  # noqa: PLC0415
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    schema = Schema.from_json(table.columns.json())
    try:
        if DeltaTable.is_deltatable(str(home)):
            log = DeltaTable(home)
            known = {field.name: field for field in log.schema().fields}
            if all(known.get(field.name, field) == field for field in schema.fields):
                new = [field for field in schema.fields if field.name not in known]
                if new:
                    log.alter.add_columns(new)
                return log
    except DeltaError:
        pass
    shutil.rmtree(home / LOG, ignore_errors=True)
    home.mkdir(parents=True, exist_ok=True)
    return DeltaTable.create(home, schema, partition_by=list(table.by), name=table.name)


def files_of(home: Path) -> list[str]:
    """Return the files that the log of the table at `home` names, relative to it."""
    from deltalake import DeltaTable  # noqa: PLC0415

    return _named(DeltaTable(home))


def _named(log: "DeltaTable") -> list[str]:
    paths = log.get_add_actions().column("path").to_pylist()
    return [unquote(path) for path in paths]


def _generation(path: str) -> str:
    """Return the directories of the day and of the generation: the first two of a path."""
    return "/".join(path.split("/")[:2])


def _added(home: Path, path: Path, table: Table) -> "AddAction":
    from deltalake.transaction import AddAction  # noqa: PLC0415

    parts = path.relative_to(home).parts
    said = dict(part.split("=", 1) for part in parts[:-1])
    values = {name: None if said[name] == _NO_VALUE else unquote(said[name]) for name in table.by}
    status = path.stat()
    return AddAction(
        path="/".join(parts),
        size=status.st_size,
        partition_values=values,
        modification_time=status.st_mtime_ns // 1_000_000,
        data_change=True,
        stats=json.dumps({"numRecords": footers.rows(path)}),
    )
