"""Upgrading: brings a store in PostgreSQL to this version, in one transaction (REL-29).

Reads:  the revision of the store.      Calls: Alembic, over the store's own connection.
Never:  commits a part, or makes a table otherwise than a new store has it.
Fails:  with everything undone.

A migration is written once. Alembic and SQLAlchemy say it to PostgreSQL by a dialect whose tables,
columns and indexes are those of `schema.py`: whole numbers are bigint, texts sort by their bytes,
and conditions of indexes are those written for SQLite.
"""

from typing import Any, Final

from sqlalchemy import Column, Engine, make_url
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.dialects.postgresql.base import PGDDLCompiler, PGTypeCompiler
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.util import greenlet_spawn

from brokerd.errors import StoreFault
from brokerd.resources import migrations_dir
from brokerd.storage.connections import transaction
from brokerd.storage.postgresql.connection import ServerConnection, as_connection
from brokerd.storage.postgresql.schema import column_of, index_of, table_of

_ANY_URL: Final = make_url("postgresql+asyncpg://")


class _Types(PGTypeCompiler):
    """The types of `texts.column_type`."""

    def visit_INTEGER(self, type_: Any, **_: Any) -> str:  # noqa: ANN401  # SQLAlchemy's
        """Return the type of a whole number."""
        del type_
        return "BIGINT"

    def visit_VARCHAR(self, type_: Any, **_: Any) -> str:  # noqa: ANN401  # SQLAlchemy's
        """Return the type of a text."""
        del type_
        return "TEXT"


class _Definitions(PGDDLCompiler):
    """The definitions of `schema.py`."""

    def visit_create_table(self, create: CreateTable, **_: Any) -> str:  # noqa: ANN401
        """Return the statement that makes a table."""
        return table_of(create.element)

    def get_column_specification(self, column: Column[Any], **_: Any) -> str:  # noqa: ANN401
        """Return the definition of a column that is added to a table."""
        return column_of(column.table, column)

    def visit_create_index(self, create: CreateIndex, *_: Any, **__: Any) -> str:  # noqa: ANN401
        """Return the statement that makes an index."""
        return index_of(create.element)


class _Dialect(PGDialect_asyncpg):
    """PostgreSQL, as the stores use it."""

    supports_statement_cache = True
    type_compiler_cls = _Types
    ddl_compiler = _Definitions

    def on_connect(self) -> None:
        """Do nothing: the codecs of the connection are those of the store."""


def upgrade(server: ServerConnection, place: object) -> None:
    """Run the revisions that a store lacks, in one transaction. `place`: its name, for messages.

    Raises:
        StoreFault: the upgrade failed and was undone.
        ServerError: the server failed, or the outcome of the commit is unknown.
    """
    with transaction(as_connection(server)):
        try:
            server.use_driver(lambda driver: greenlet_spawn(_run, driver))
        except DBAPIError as error:
            raise StoreFault(f"{place}: upgrading failed and was undone: {error.orig}") from error


def _run(driver: Any) -> None:  # noqa: ANN401  # a connection of asyncpg
    """Run Alembic in the open transaction of a connection of the driver; in a greenlet."""
    # This import takes a quarter of a second, and is rarely needed.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    dbapi: Any = PGDialect_asyncpg.import_dbapi()  # type: ignore[no-untyped-call]  # SQLAlchemy's
    dialect = _Dialect(dbapi=dbapi)  # type: ignore[no-untyped-call]  # SQLAlchemy's

    def adapted() -> Any:  # noqa: ANN401
        connection = dbapi.connect(async_creator_fn=given)
        # The transaction is that of the caller: SQLAlchemy must not begin one.
        connection.set_isolation_level("autocommit")
        return connection

    async def given() -> Any:  # noqa: ANN401
        return driver

    engine = Engine(StaticPool(adapted, dialect=dialect), dialect, _ANY_URL)
    config = Config()
    config.set_main_option("script_location", str(migrations_dir()))
    with engine.connect() as wrapped:
        config.attributes["connection"] = wrapped
        command.upgrade(config, "head")
