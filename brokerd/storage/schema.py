"""Schema: makes the tables of an empty store, checks those of a file, and upgrades older files.

Reads:  the schema of a file and its revision.
Calls:  Alembic, only when a file is older than this version.
Never:  reads or writes a row, except where a migration does.
Fails:  a file of an unknown revision, or with an object that no revision has, is refused and left
        unchanged.
"""

import sqlite3
from functools import cache
from pathlib import Path
from typing import Final

from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool
from sqlalchemy.schema import CreateIndex, CreateTable

from brokerd.errors import StoreDamaged, StoreFault, StoreMoved, StoreVersion
from brokerd.resources import migrations_dir
from brokerd.storage import space, tables
from brokerd.storage.connections import Connection
from brokerd.storage.move_marks import Moved, Unfinished, read_mark
from brokerd.storage.sqlite_errors import is_full, is_read_only
from brokerd.storage.statements import sql
from brokerd.storage.writers import roll_back

REVISIONS: Final = (
    "0001",
    "0002",
    "0003_receive",
    "0004_objects",
    "0005_dialogs",
    "0006_events",
    "0007_admin",
    "0008_ended_groups",
    "0009_poison",
    "0010_dynamic_routing",
    "0011_activation",
    "0012_activation_timeout",
    "0013_mirrors",
    "0014_bodies",
    "0015_last_message",
    "0016_xxh3",
    "0017_stretches",
    "0018_shelves",
    "0019_known_brokers",
    "0020_drops",
    "0021_initiators",
    "0022_security",
    "0023_headers",
    "0024_master_key",
)
"""All schema revisions, in order; the last one is the schema of `tables.py`."""


@cache
def table_definitions() -> tuple[str, ...]:
    """Return the statements that make an empty store of this version."""
    made: list[str] = []
    for table in tables.metadata.sorted_tables:
        made.append(sql(CreateTable(table)))
        made += [
            sql(CreateIndex(index)) for index in sorted(table.indexes, key=lambda it: str(it.name))
        ]
    made.append(
        "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL,"
        " CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
    )
    return tuple(made)


def read_revision(connection: Connection, path: object) -> str:
    """Return the revision of a store. `path`: its name, for messages.

    Raises:
        StoreDamaged: the file has no revision, or several.
        StoreVersion: this program does not know the revision.
        StoreMoved: the store goes on elsewhere, or is an unfinished copy.
    """
    found = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    if len(found) != 1:
        raise StoreDamaged(f"{path} says {len(found)} times which version it has")
    revision = str(found[0][0])
    refuse_marked(revision, path)
    if revision not in REVISIONS:
        raise StoreVersion(
            f"{path} has schema version {revision}; this program knows up to {REVISIONS[-1]}",
            hint="start the newer version that wrote it, or restore a backup",
        )
    return revision


def refuse_marked(revision: str, place: object) -> None:
    """Raise `StoreMoved` if a store has a mark in place of its revision (REL-61)."""
    mark = read_mark(revision)
    if isinstance(mark, Moved):
        raise StoreMoved(f"{place} was moved to {mark.to}")
    if isinstance(mark, Unfinished):
        raise StoreMoved(
            f"{place} is an unfinished copy of {mark.of}",
            hint="run the same brokerd store copy again, or start the daemon on what was copied",
        )


def refuse_older(path: object, revision: str) -> None:
    """Raise `StoreVersion` if the file is of an older version.

    Only a start upgrades a file; programs that only read leave it as it is.
    """
    if revision != REVISIONS[-1]:
        raise StoreVersion(
            f"{path} has schema version {revision}, and this program reads {REVISIONS[-1]}",
            hint="keep a copy, then start this version of the daemon on it once, which brings it "
            "up to date; or use the version that wrote it",
        )


def refuse_code(connection: Connection, path: Path) -> None:
    """Refuse a file of any version if it has a trigger or a view (BI-D2).

    Call this before any table is read: a view may have the name of a table, and a trigger would run
    in a migration.

    Raises:
        StoreDamaged: the file has a trigger or a view.
    """
    query = "SELECT type, name FROM sqlite_schema WHERE type IN ('trigger', 'view') ORDER BY name"
    for kind, name in connection.execute(query):
        raise StoreDamaged(f"{path} has a foreign {kind} {name}")


def check_objects(connection: Connection, path: Path) -> None:
    """Raise `StoreDamaged` if an object or column is missing or foreign (BI-D2)."""
    found = {
        (kind, name)
        for kind, name in connection.execute("SELECT type, name FROM sqlite_schema")
        if not name.startswith("sqlite_")
    }
    wanted = _objects_wanted()
    for what, objects in (("lacks", wanted - found), ("has a foreign", found - wanted)):
        for kind, name in sorted(objects):
            raise StoreDamaged(f"{path} {what} {kind} {name}")
    for table in tables.metadata.sorted_tables:
        columns = {row[1] for row in connection.execute(f"PRAGMA table_xinfo({table.name})")}
        wanted_columns = {column.name for column in table.columns}
        for what, names in (
            ("lacks", wanted_columns - columns),
            ("has a foreign", columns - wanted_columns),
        ):
            for name in sorted(names):
                raise StoreDamaged(f"{path} {what} column {name} of table {table.name}")


@cache
def _objects_wanted() -> frozenset[tuple[str, str]]:
    wanted = {("table", "alembic_version")}
    for table in tables.metadata.tables.values():
        wanted.add(("table", table.name))
        wanted |= {("index", str(index.name)) for index in table.indexes}
    return frozenset(wanted)


def upgrade(connection: Connection, path: Path) -> None:
    """Upgrade an older schema to this version in one transaction (REL-29).

    Raises:
        StoreFault: the upgrade failed and was undone.
        sqlite3.Error: the upgrade failed and was undone; the file is read-only or the disk is full.
    """
    # This import takes a quarter of a second, and is rarely needed.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
    config = Config()
    config.set_main_option("script_location", str(migrations_dir()))
    with engine.connect() as wrapped:
        config.attributes["connection"] = wrapped
        try:
            wrapped.exec_driver_sql("PRAGMA foreign_keys = OFF")
            wrapped.exec_driver_sql("BEGIN IMMEDIATE")
            command.upgrade(config, "head")
            wrapped.exec_driver_sql("COMMIT")
        except DBAPIError as error:
            failed = error.orig
            if isinstance(failed, sqlite3.Error) and (is_full(failed) or is_read_only(failed)):
                raise failed from error
            raise StoreFault(f"{path}: upgrading failed and was undone: {failed}") from error
        finally:
            roll_back(connection)
            connection.execute("PRAGMA foreign_keys = ON")
    space.prepare_full(connection)
