"""Looks into the rows of a store, and changes them, in the same words on every engine."""

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

from brokerd.storage.postgresql.connecting import connect
from brokerd.storage.postgresql.connection import ServerConnection, in_thread
from brokerd.storage.store import Store
from brokerd.storage.verifying import Finding, findings_of_rows

# Whoever looks stops the loop, and so the writer: it must not wait long for the writer's locks.
_SETTINGS = {"lock_timeout": "5s", "statement_timeout": "10s"}


class Look:
    """Looks at the committed rows of a store, and changes them, beside whoever has it open."""

    def __init__(self, connect: Callable[[], AbstractContextManager[Any]]) -> None:
        self._connect = connect

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._connect() as connection:
            return list(connection.execute(query, values).fetchall())

    def counts(self, *tables: str) -> list[int]:
        """Return how many rows each table has."""
        return [self.rows(f"SELECT count(*) FROM {table}")[0][0] for table in tables]

    def change(self, statement: str, *values: object) -> None:
        with self._connect() as connection:
            _change(connection, statement, values)

    @contextmanager
    def reading(self, query: str) -> Iterator[None]:
        """Have a transaction open that has read something, as a backup has for long."""
        with self._connect() as connection:
            connection.execute("BEGIN")
            connection.execute(query).fetchall()
            yield

    def findings(self) -> list[Finding]:
        """Return what contradicts itself in the rows of the store."""
        with self._connect() as connection:
            return list(findings_of_rows(connection))


def in_file(path: Path) -> Look:
    return Look(lambda: closing(sqlite3.connect(path, isolation_level=None)))


def on_server(url: str, schema: str) -> Look:
    def connected() -> AbstractContextManager[ServerConnection]:
        made = in_thread(connect(url, schema, settings=_SETTINGS, patience=5))
        return closing(ServerConnection(made, in_thread))

    return Look(connected)


async def spoil(store: Store, statement: str, *values: object) -> None:
    """Change rows of a store on its own connection: its reads notice it."""
    await store.run(lambda connection: _change(connection, statement, values))


def _change(connection: Any, statement: str, values: tuple[object, ...]) -> None:
    if not isinstance(connection, sqlite3.Connection):
        # The store itself has no such words.
        statement = re.sub(r"x'(\w*)'", r"'\\x\1'::bytea", statement)
        statement = re.sub(r"CAST\((.*) AS BLOB\)", r"\1", statement)
    connection.execute(statement, values)
