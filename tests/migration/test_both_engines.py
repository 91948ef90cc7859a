"""A revision is written once, and brings stores in files and in PostgreSQL to the same tables."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from brokerd.clock import SystemClock
from brokerd.errors import StoreFault, StoreLocked, StoreVersion
from brokerd.ids import BrokerId, InstanceId, SeededIds
from brokerd.resources import migrations_dir
from brokerd.storage import file_checks, opening, schema
from brokerd.storage.executors import Inline
from brokerd.storage.opening import NewStore
from brokerd.storage.postgresql import opening as server_opening
from brokerd.storage.postgresql import upgrading
from brokerd.storage.postgresql.executor import InlineOnServer, OnServer
from brokerd.storage.postgresql.opening import ServerOptions
from brokerd.storage.store import Store
from tests.postgresql.fixtures import SHARED

PLANTED = '''"""Planted: a table, a column and an index, for a test."""

import sqlalchemy as sa
from alembic import op

revision = "9999_planted"
down_revision = "{before}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make them, and fill the column from a row."""
    op.create_table(
        "planted",
        sa.Column("planted_key", sa.Integer, primary_key=True),
        sa.Column("name", sa.String, nullable=False, unique=True),
        sa.Column("bytes", sa.LargeBinary),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "planted_bytes", "planted", ["bytes"], sqlite_where=sa.text("bytes IS NOT NULL")
    )
    op.add_column("store", sa.Column("motto", sa.String))
    op.add_column(
        "store", sa.Column("limited", sa.Integer, nullable=False, server_default=sa.text("7"))
    )
    store = sa.table("store", sa.column("motto", sa.String), sa.column("broker_name", sa.String))
    op.execute(store.update().values(motto="of " + store.c.broker_name))
    op.bulk_insert(
        sa.table("planted", sa.column("name", sa.String), sa.column("bytes", sa.LargeBinary)),
        [{{"name": name, "bytes": b"1" if name == "b" else None}} for name in "bBa"],
    )
    {last}
'''
ROWS = [("B", None), ("a", None), ("b", b"1")]


@pytest.fixture
def plant(tmp_path, monkeypatch):
    """Give the program one more revision."""

    def add(last="pass"):
        folder = tmp_path / "migrations"
        shutil.copytree(migrations_dir(), folder)
        text = PLANTED.format(before=schema.REVISIONS[-1], last=last)
        (folder / "versions" / "9999_planted.py").write_text(text)
        revisions = (*schema.REVISIONS, "9999_planted")
        for module in (schema, file_checks, opening, server_opening):
            monkeypatch.setattr(module, "REVISIONS", revisions)
        for module in (schema, upgrading):
            monkeypatch.setattr(module, "migrations_dir", lambda: folder)
        # The tables of this program lack what the revision makes.
        monkeypatch.setattr(file_checks, "check_objects", lambda *_: None)

    return add


class InFile:
    """A store in a file."""

    def __init__(self, tmp_path):
        self.path = tmp_path / "shop.db"
        self.executor = Inline()

    def query(self, text):
        with closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(text).fetchall()


class OnAServer:
    """A store in a schema."""

    def __init__(self, server, schema_, executor):
        self._server, self._schema = server, schema_
        self.path = Path(f"/{schema_.name}.db")
        self.executor = executor(schema_.url, ServerOptions(require_durable=False))

    def query(self, text):
        with self._server.session(SHARED) as session:
            session.query(f'SET search_path = "{self._schema.name}"')
            found = session.query(text)
        return [tuple(_value(one) for one in row) for row in found]


def _value(text):
    if text is None or not text.startswith("\\x"):
        return int(text) if text is not None and text.isdigit() else text
    return bytes.fromhex(text[2:])


@pytest.fixture(params=["file", "server", "server, in virtual time"])
def engine(request, tmp_path):
    if request.param == "file":
        return InFile(tmp_path)
    server = request.getfixturevalue("postgresql_server")
    schema_ = request.getfixturevalue("postgresql_schema")
    return OnAServer(server, schema_, OnServer if request.param == "server" else InlineOnServer)


async def opened(engine, name="shop"):
    return await Store.open(
        engine.path,
        ids=SeededIds(Random(5)),
        clock=SystemClock(),
        executor=engine.executor,
        on_fault=lambda _fault: None,
        create=NewStore(name, BrokerId(b"b" * 16), InstanceId(b"i" * 16)),
    )


@pytest.mark.rule("REL-29", "REL-63")
async def test_a_later_revision_runs_at_the_next_opening(engine, plant):
    await (await opened(engine)).close()
    plant()
    store = await opened(engine)
    assert store.identity.epoch == 2
    await store.close()
    assert engine.query("SELECT version_num FROM alembic_version") == [("9999_planted",)]
    assert engine.query("SELECT motto, limited FROM store") == [("of shop", 7)]
    # Names are compared by their bytes, whatever the language of the server.
    assert engine.query("SELECT name, bytes FROM planted ORDER BY name") == ROWS
    await (await opened(engine)).close()  # it runs once


@pytest.mark.rule("REL-29", "REL-63")
async def test_a_revision_that_fails_leaves_the_store_as_it_was(engine, plant):
    await (await opened(engine)).close()
    before = engine.query("SELECT * FROM store")
    plant(last='op.execute("UPDATE nothing_of_that_name SET x = 1")')
    with pytest.raises(StoreFault, match="upgrading failed and was undone"):
        await opened(engine)
    assert engine.query("SELECT version_num FROM alembic_version") == [("0024_master_key",)]
    assert engine.query("SELECT * FROM store") == before


@pytest.mark.rule("REL-29")
async def test_a_newer_revision_is_refused_and_the_store_left_as_it_was(engine):
    await (await opened(engine)).close()
    engine.query("UPDATE alembic_version SET version_num = '9999_planted'")
    before = engine.query("SELECT * FROM store")
    with pytest.raises(StoreVersion, match="9999_planted; this program knows up to"):
        await opened(engine)
    assert engine.query("SELECT * FROM store") == before


@pytest.mark.rule("REL-63")
async def test_the_tables_of_a_migration_are_those_of_a_new_store(
    postgresql_server, postgresql_schema, plant
):
    engine = OnAServer(postgresql_server, postgresql_schema, OnServer)
    await (await opened(engine)).close()
    plant()
    await (await opened(engine)).close()
    assert engine.query(
        "SELECT column_name, data_type, collation_name, is_identity FROM information_schema.columns"
        f" WHERE table_schema = '{postgresql_schema.name}' AND (table_name = 'planted'"
        " OR column_name IN ('motto', 'limited')) ORDER BY table_name, ordinal_position"
    ) == [
        ("planted_key", "bigint", None, "YES"),
        ("name", "text", "C", "NO"),
        ("bytes", "bytea", None, "NO"),
        ("motto", "text", "C", "NO"),
        ("limited", "bigint", None, "NO"),
    ]
    ((index,),) = engine.query(
        "SELECT indexdef FROM pg_indexes WHERE indexname = 'planted_bytes'"
        f" AND schemaname = '{postgresql_schema.name}'"
    )
    assert index.endswith("WHERE (bytes IS NOT NULL)")


@pytest.mark.rule("REL-63", "REL-54")
async def test_a_store_that_another_daemon_has_is_not_upgraded(
    postgresql_server, postgresql_schema, plant
):
    engine = OnAServer(postgresql_server, postgresql_schema, OnServer)
    store = await opened(engine)
    plant()
    try:
        with pytest.raises(StoreLocked):
            await opened(engine)
    finally:
        await store.close()
    assert engine.query("SELECT version_num FROM alembic_version") == [("0024_master_key",)]
