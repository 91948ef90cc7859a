"""Stores: the tables of a store, made once in a process and emptied after each test.

To make 40 tables and 60 indexes takes the server a tenth of a second, and to empty those that a
test has used a few milliseconds. So the first store that a test makes gets its tables by renaming
a schema that has them already; all else of an opening is as it is elsewhere.
"""

from collections.abc import Iterator

import pytest

from brokerd.storage.postgresql import opening
from brokerd.storage.postgresql.schema import definitions
from tests.postgresql.servers import ADMIN, Server

SHOP = "shop"
"""Schema of the first store that a test makes."""
_DATABASE = "stores"
READY = "ready"
_OBJECTS = (
    "SELECT c.oid, c.relname, c.relkind, c.relhastriggers, count(a.attname)"
    " FROM pg_class AS c LEFT JOIN pg_attribute AS a ON a.attrelid = c.oid AND NOT a.attisdropped"
    " WHERE c.relnamespace = '{}'::regnamespace GROUP BY c.oid ORDER BY c.oid"
)
_USED = (
    "SELECT string_agg(format('%I.%I', '{0}', relname), ', ') FROM pg_class"
    " WHERE relnamespace = '{0}'::regnamespace AND relkind = 'r' AND pg_relation_size(oid) > 0"
)
_OTHERS = (
    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
    f" WHERE datname = '{_DATABASE}' AND pid <> pg_backend_pid()"
)


class ReadyTables:
    """The schema with the tables, for one store after the other."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.url = server.url(_DATABASE)
        self._objects: list[tuple[str | None, ...]] = []
        self._is_taken = False
        server.create_database(_DATABASE)
        self._make()

    def take(self) -> tuple[str, ...]:
        """Return the statements that make a store; those of the first one need a schema `SHOP`."""
        if self._is_taken:
            return definitions()
        self._is_taken = True
        return f"DROP SCHEMA {SHOP}", f"ALTER SCHEMA {READY} RENAME TO {SHOP}"

    def give_back(self) -> None:
        """End all sessions, and empty what the stores of a test have used."""
        with self._server.session(_DATABASE, user=ADMIN) as session:
            session.query(_OTHERS)
            schemas = session.query(
                "SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg\\_%'"
                f" AND nspname NOT IN ('public', 'information_schema', '{READY}')"
            )
            for (name,) in schemas:
                if (
                    name == SHOP
                    and self._is_taken
                    and session.query(_OBJECTS.format(name)) == self._objects
                ):
                    session.query(f'ALTER SCHEMA "{name}" RENAME TO {READY}')
                else:
                    session.query(f'DROP SCHEMA "{name}" CASCADE')
            is_there = session.query(f"SELECT FROM pg_namespace WHERE nspname = '{READY}'")
            if is_there:
                ((used,),) = session.query(_USED.format(READY))
                if used is not None:
                    session.query(f"TRUNCATE {used} RESTART IDENTITY CASCADE")
        self._is_taken = False
        if not is_there:
            self._make()

    def _make(self) -> None:
        first = f"CREATE SCHEMA {READY}; SET search_path = {READY}"
        with self._server.session(_DATABASE, user="brokerd") as session:
            session.query("; ".join((first, *definitions())))
            self._objects = session.query(_OBJECTS.format(READY))


@pytest.fixture(scope="session")
def ready_tables(shared_postgresql_server: Server) -> ReadyTables:
    """The tables for the stores of all tests of this process."""
    if not shared_postgresql_server.is_running:
        shared_postgresql_server.start()
    return ReadyTables(shared_postgresql_server)


@pytest.fixture
def postgresql_stores(
    ready_tables: ReadyTables, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ReadyTables]:
    """A database without stores, in which one can be made quickly."""
    monkeypatch.setattr(opening, "definitions", ready_tables.take)
    yield ready_tables
    ready_tables.give_back()
