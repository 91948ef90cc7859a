"""Ends: what a copy needs of the store that it reads, and of the one that it makes.

`files.py` and `server.py` have these for files and for PostgreSQL.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from sqlalchemy import Table

from brokerd.storage.connections import Connection
from brokerd.storage.copying.places import Place
from brokerd.storage.copying.rows import NUMBERED, Readable, Row
from brokerd.storage.move_marks import Moved, Unfinished, read_mark
from brokerd.storage.statements import sql
from brokerd.storage.tables import store
from brokerd.storage.verifying import Finding


class Facts(NamedTuple):
    """The broker and the history of a store."""

    broker: str
    broker_id: bytes
    incarnation: bytes
    version: str
    """The revision, or a mark."""

    @property
    def mark(self) -> Moved | Unfinished | None:
        """The mark of the store; None = it has none."""
        return read_mark(self.version)


class Source(Readable, Protocol):
    """The store that is read; nobody else can open it before `close`."""

    facts: Facts

    @property
    def place(self) -> Place:
        """The place of the store."""
        ...

    def findings(self) -> list[Finding]:
        """Return what is wrong with the store.

        Raises:
            StoreVersion: the store is of another version.
            StoreDamaged: the store cannot be read.
        """
        ...

    def numbers(self) -> dict[str, int]:
        """Return the highest key that each numbered table has ever given."""
        ...

    def mark(self, mark: Moved) -> None:
        """Mark the store as moved, durably; nothing is read from it afterwards."""
        ...

    def close(self) -> None:
        """Close the store, and let others open it."""
        ...


class Staging(Protocol):
    """A copy in the making: the tables are there and empty, in an open transaction."""

    connection: Connection

    def stream(self, query: str, size: int) -> Iterator[Sequence[Row]]:
        """Yield the rows of a query, at most `size` at a time."""
        ...

    def set_numbers(self, numbers: dict[str, int]) -> None:
        """Set the highest key that each numbered table has given."""
        ...

    def numbers(self) -> dict[str, int]:
        """Return the highest key that each numbered table has given."""
        ...


class Target(Protocol):
    """The place of the store that is made; nobody else can make or open one before `close`."""

    @property
    def place(self) -> Place:
        """The place."""
        ...

    def facts(self) -> Facts | None:
        """Return whose store has this place; None = the place is free.

        Raises:
            CopyFailed: something else is there.
        """
        ...

    def unfinished(self) -> Unfinished | None:
        """Return the copy that was made here and not finished; None = there is none."""
        ...

    def stage(self, mark: Unfinished, fill: Callable[[Staging], None]) -> None:
        """Make a copy that nobody can open yet, durably; if `fill` fails, nothing is left."""
        ...

    def finish(self, mark: Unfinished) -> None:
        """Let the copy be opened, durably."""
        ...

    def discard(self) -> None:
        """Remove an unfinished copy."""
        ...

    def close(self) -> None:
        """Let others use the place."""
        ...


_FACTS: Final = sql(
    store.select().with_only_columns(store.c.broker_name, store.c.broker_id, store.c.incarnation)
)


def read_facts(connection: Connection) -> Facts | None:
    """Return whose store it is; None = it does not say."""
    version = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    facts = connection.execute(_FACTS).fetchone()
    if version is None or facts is None:
        return None
    broker, broker_id, incarnation = facts
    return Facts(broker, broker_id, incarnation, version[0])


def highest_keys(connection: Connection) -> dict[str, int]:
    """Return the highest key that each numbered table has now; 0 = it is empty."""
    each = (f"(SELECT coalesce(max({_key(table)}), 0) FROM {table.name})" for table in NUMBERED)  # noqa: S608  # ours
    row = connection.execute(f"SELECT {', '.join(each)}").fetchone()
    return {table.name: int(key) for table, key in zip(NUMBERED, row, strict=True)}


def _key(table: Table) -> str:
    (key,) = table.primary_key
    return key.name
