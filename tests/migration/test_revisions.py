"""Every revision upwards; the last is what `tables.py` says."""

import sqlite3
from contextlib import closing

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from brokerd.errors import StoreFault
from brokerd.resources import migrations_dir
from brokerd.storage import recovery, schema
from brokerd.storage.changes import Owner
from brokerd.storage.hashes import is_piece_sound
from brokerd.storage.rows import catalog
from brokerd.storage.tables import metadata

# It cannot read an index on an expression back; the whole texts are compared above it.
BLIND = pytest.mark.filterwarnings(
    "ignore:autogenerate skipping:UserWarning",
    "ignore:Skipped unsupported reflection of expression:sqlalchemy.exc.SAWarning",
)


def objects(connection):
    found = connection.execute("SELECT type, name FROM sqlite_schema ORDER BY type, name")
    kinds = found.fetchall()
    shape: list[tuple[object, ...]] = []
    for kind, name in kinds:
        if name == "sqlite_sequence" or name.startswith("sqlite_autoindex"):
            continue
        if kind == "table":
            columns = connection.execute(f"PRAGMA table_xinfo({name})").fetchall()
            keys = connection.execute(f"PRAGMA foreign_key_list({name})").fetchall()
            (listed,) = (row for row in connection.execute("PRAGMA table_list") if row[1] == name)
            shape.append((kind, name, columns, sorted(key[2:] for key in keys), listed[3:]))
        else:
            columns = connection.execute(f"PRAGMA index_xinfo({name})").fetchall()
            sql = connection.execute(
                "SELECT sql FROM sqlite_schema WHERE name = ?", (name,)
            ).fetchone()[0]
            shape.append((kind, name, columns, sql))
    return shape


@pytest.fixture
def migrated(tmp_path):
    path = tmp_path / "old.db"
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    schema.upgrade(connection, path)
    yield connection
    connection.close()


@pytest.mark.rule("REL-29")
def test_revisions_known_are_those_that_are_there():
    config = Config()
    config.set_main_option("script_location", str(migrations_dir()))
    script = ScriptDirectory.from_config(config)
    there = [revision.revision for revision in script.walk_revisions()]
    assert tuple(reversed(there)) == schema.REVISIONS


@pytest.mark.rule("REL-29")
def test_migrated_schema_is_that_of_the_tables(migrated):
    fresh = sqlite3.connect(":memory:")
    for statement in schema.table_definitions():
        fresh.execute(statement)
    assert objects(migrated) == objects(fresh)
    assert migrated.execute("SELECT * FROM alembic_version").fetchall() == [(schema.REVISIONS[-1],)]
    fresh.close()


@BLIND
def test_autogenerate_finds_nothing_to_do(migrated):
    engine = create_engine("sqlite://", creator=lambda: migrated)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_upgrade_is_one_transaction_and_leaves_foreign_keys_on(migrated):
    assert not migrated.in_transaction
    assert migrated.execute("PRAGMA foreign_keys").fetchone() == (1,)


@pytest.mark.rule("MAN-13", "REL-29")
def test_older_store_learns_to_give_space_back(migrated):
    assert migrated.execute("PRAGMA auto_vacuum").fetchone() == (2,)


@pytest.mark.rule("REL-29", "PBT-16")
def test_queues_of_an_older_store_have_no_ageing(tmp_path, monkeypatch):
    path = tmp_path / "filled.db"
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    upgrade = command.upgrade
    monkeypatch.setattr(command, "upgrade", lambda config, _head: upgrade(config, "0002"))
    schema.upgrade(connection, path)
    connection.execute("INSERT INTO service_queues VALUES (7, 'q', 1, 1, 'a:b', 3, 1)")
    monkeypatch.setattr(command, "upgrade", upgrade)
    schema.upgrade(connection, path)
    queue = catalog.load(connection).queues["q"]
    assert (queue.key, queue.receive_ageing) == (7, None)
    assert queue.activation is not None
    connection.close()


@pytest.mark.rule("REL-29", "DLP-11", "REL-33")
def test_messages_that_are_not_complete_keep_their_fragments(tmp_path, monkeypatch):
    path = tmp_path / "filled.db"
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    upgrade = command.upgrade
    monkeypatch.setattr(command, "upgrade", lambda config, _head: upgrade(config, "0013_mirrors"))
    schema.upgrade(connection, path)
    fragments = [(7, 3, 0, b"a"), (7, 3, 1, b"b"), (9, 0, 0, b"c")]
    connection.executemany("INSERT INTO message_fragments VALUES (?, ?, ?, ?)", fragments)
    monkeypatch.setattr(command, "upgrade", upgrade)
    schema.upgrade(connection, path)
    found = connection.execute(
        "SELECT owner, number, piece, data, hash, body_key FROM bodies JOIN body_pieces"
        " USING (body_key) ORDER BY number, piece"
    ).fetchall()
    assert [row[:4] for row in found] == [
        (Owner.ARRIVING, endpoint, piece, data) for endpoint, _, piece, data in fragments
    ]
    assert all(is_piece_sound(row[5], row[2], row[3], row[4]) for row in found)
    connection.close()


@pytest.mark.rule("REL-29", "REL-35")
def test_messages_of_an_older_store_wait_on_and_none_is_noted(tmp_path, monkeypatch):
    path = tmp_path / "filled.db"
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    upgrade = command.upgrade
    monkeypatch.setattr(command, "upgrade", lambda config, _head: upgrade(config, "0018_shelves"))
    schema.upgrade(connection, path)
    for number, table in enumerate(("queue_messages", "shelf_2", "shelf_17")):
        connection.execute(
            f"INSERT INTO {table} VALUES (?, 1, 9, ?, 't', 5, 1, 0, x'00', NULL, x'01')",
            (number + 1, number),
        )
    monkeypatch.setattr(command, "upgrade", upgrade)
    schema.upgrade(connection, path)
    found = recovery.read_recovered(connection)
    assert (found.waiting, found.dropped) == ([(1, 5, 3, 0)], [])
    for table in ("queue_messages", "shelf_2", "shelf_17"):  # and none has headers
        assert connection.execute(f"SELECT flags FROM {table}").fetchall() == [(0,)]
    connection.execute("INSERT INTO queue_drops VALUES (9)")
    found = recovery.read_recovered(connection)
    assert (found.waiting, found.dropped) == ([], [9])
    connection.close()


@pytest.mark.rule("REL-29")
@pytest.mark.parametrize("steps", [0, 1, 20, 100, 200])
def test_an_upgrade_that_fails_at_any_moment_leaves_the_older_version(tmp_path, steps):
    path = tmp_path / "old.db"
    left = steps

    def interrupts():
        nonlocal left
        left -= 1
        return left < 0

    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE of_the_older_version (x)")
        before = objects(connection)
        connection.set_progress_handler(interrupts, 100)
        with pytest.raises(StoreFault, match="was undone: interrupted"):
            schema.upgrade(connection, path)
        connection.set_progress_handler(None, 0)
        assert objects(connection) == before
        schema.upgrade(connection, path)
        assert len(objects(connection)) > 50


@pytest.mark.rule("REL-29", "FD-5")
def test_an_upgrade_for_which_there_is_no_room_says_so_and_is_undone(tmp_path):
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE of_the_older_version (x)")
        connection.execute("PRAGMA max_page_count = 20")
        with pytest.raises(sqlite3.OperationalError, match="full"):
            schema.upgrade(connection, path)
        assert [name for _, name, *_ in objects(connection)] == ["of_the_older_version"]
