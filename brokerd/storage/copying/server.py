"""Server: a store in PostgreSQL as the source or the target of a copy.

Reads:  the source, in one transaction.      Calls: `postgresql`, whose driver is an extra.
Never:  shows a password; leaves part of a copy.
Fails:  `StoreFault` if the server cannot be reached or fails, `StoreLocked` if somebody has the
        store.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from brokerd.errors import CopyFailed, StoreDamaged, StoreFault
from brokerd.storage.connections import Connection, transaction
from brokerd.storage.copying.ends import Facts, Staging, highest_keys, read_facts
from brokerd.storage.copying.places import SchemaPlace
from brokerd.storage.copying.rows import NUMBERED, Row
from brokerd.storage.move_marks import Moved, Unfinished
from brokerd.storage.postgresql import ownership
from brokerd.storage.postgresql.connecting import connect
from brokerd.storage.postgresql.connection import ServerConnection, as_connection, in_thread
from brokerd.storage.postgresql.errors import ServerError
from brokerd.storage.postgresql.opening import ServerOptions, check_server
from brokerd.storage.postgresql.schema import definitions
from brokerd.storage.postgresql.streaming import stream
from brokerd.storage.postgresql.verifying import findings_of
from brokerd.storage.schema import REVISIONS
from brokerd.storage.verifying import Finding
from brokerd.storage.writers import roll_back

_LONGEST: Final = 63
"""Most bytes of the name of a schema."""
_OBJECTS: Final = (
    "SELECT c.relname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
    " WHERE n.nspname = ? ORDER BY c.relname = 'alembic_version' DESC, c.relname LIMIT 1"
)

_ALL_TABLES: Final = "SELECT tablename::text FROM pg_tables WHERE schemaname = ?"


class _End:
    """A session that has the lock of a store."""

    def __init__(self, place: SchemaPlace, options: ServerOptions) -> None:
        self.place = place
        if len(place.schema.encode()) > _LONGEST:
            raise CopyFailed(
                f"the schema {place.schema} has a name of more than {_LONGEST} bytes",
                hint="name a schema with a shorter name",
            )
        settings = {
            "application_name": "brokerd store copy",
            "synchronous_commit": options.synchronous_commit,
            # The other end may be slow.
            "idle_in_transaction_session_timeout": "0",
        }
        try:
            session = in_thread(
                connect(
                    place.url, place.schema, settings=settings, patience=options.connect_timeout
                )
            )
        except ServerError as error:
            raise StoreFault(
                f"the PostgreSQL server of {place} cannot be used: {error}",
                hint="check the URL, and that the server runs and lets this user in; a password "
                "belongs into the file that PGPASSFILE names",
            ) from error
        self._server = ServerConnection(session, in_thread)
        self.connection: Connection = as_connection(self._server)
        try:
            with _failing(place):
                check_server(self._server, options)
                ownership.own(self.connection, place.schema, options.lock_wait)
        except BaseException:
            self.close()
            raise

    def stream(self, query: str, size: int) -> Iterator[Sequence[Row]]:
        """Yield the rows of a query, at most `size` at a time."""
        return stream(self._server, query, size)

    def numbers(self) -> dict[str, int]:
        """Return the highest key that each numbered table has ever given."""
        found = highest_keys(self.connection)
        for name, sequence in _sequences(self.connection):
            query = f"SELECT last_value, is_called FROM {sequence}"  # noqa: S608  # the server's
            last, is_called = self.connection.execute(query).fetchone()
            found[name] = max(found[name], last if is_called else 0)
        return found

    def close(self) -> None:
        """Close the session, which releases the lock."""
        self._server.close()


class ServerSource(_End):
    """A store in a schema, locked."""

    def __init__(self, place: SchemaPlace, options: ServerOptions) -> None:
        """Connect to the server and lock the store.

        Raises:
            StoreLocked: a daemon has the store.
            StoreFault: the server cannot be used.
            StoreDamaged: there is no store.
        """
        super().__init__(place, options)
        try:
            with _failing(place):
                self.facts = self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> Facts:
        """Begin to read, all rows from one state of the store; return whose store it is."""
        if _an_object(self.connection, self.place) != "alembic_version":
            raise StoreDamaged(f"there is no store in {self.place}", hint="name its schema")
        self.connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        facts = read_facts(self.connection)
        if facts is None:
            raise StoreDamaged(f"{self.place} does not say whose store it is")
        return facts

    def findings(self) -> list[Finding]:
        """Return what is wrong with the store."""
        with _failing(self.place):
            return findings_of(self._server, self.place)

    def mark(self, mark: Moved) -> None:
        """Mark the store as moved, durably; nothing is read from it afterwards."""
        with _failing(self.place):
            self.connection.execute("ROLLBACK")
            with transaction(self.connection):
                self.connection.execute(
                    "UPDATE alembic_version SET version_num = ?", (mark.show(),)
                )


class ServerTarget(_End):
    """The place of a schema; the copy is marked until it is finished."""

    def facts(self) -> Facts | None:
        """Return whose store is there; None = there is none."""
        with _failing(self.place):
            found = _an_object(self.connection, self.place)
            if found is None:
                return None
            facts = read_facts(self.connection) if found == "alembic_version" else None
        if facts is None:
            raise CopyFailed(
                f"{self.place} has something else, such as {found}; nothing was copied",
                hint="name a schema that is empty or does not exist",
            )
        return facts

    def unfinished(self) -> Unfinished | None:
        """Return the copy that was made here and not finished; None = there is none."""
        facts = self.facts()
        return facts.mark if facts is not None and isinstance(facts.mark, Unfinished) else None

    def stage(self, mark: Unfinished, fill: Callable[[Staging], None]) -> None:
        """Make a copy that nobody can open yet, durably; if `fill` fails, nothing is left."""
        connection = self.connection
        quoted = '"' + self.place.schema.replace('"', '""') + '"'
        with _failing(self.place):
            if not _has_schema(connection, self.place):
                connection.execute(f"CREATE SCHEMA {quoted}")
            with transaction(connection):
                for statement in definitions():
                    connection.execute(statement)
                connection.execute("INSERT INTO alembic_version VALUES (?)", (mark.show(),))
                fill(self)

    def finish(self, mark: Unfinished) -> None:
        """Let the copy be opened, durably."""
        with _failing(self.place), transaction(self.connection):
            self.connection.execute(
                "UPDATE alembic_version SET version_num = ? WHERE version_num = ?",
                (REVISIONS[-1], mark.show()),
            )

    def discard(self) -> None:
        """Remove an unfinished copy; the schema stays, since it may have been made for this."""
        with _failing(self.place):
            roll_back(self.connection)
            with transaction(self.connection):
                found = self.connection.execute(_ALL_TABLES, (self.place.schema,)).fetchall()
                for (name,) in found:  # all of them are of the copy
                    self.connection.execute(f'DROP TABLE IF EXISTS "{name}" CASCADE')

    def set_numbers(self, numbers: dict[str, int]) -> None:
        """Set the highest key that each numbered table has given."""
        for name, sequence in _sequences(self.connection):
            if numbers[name]:
                self.connection.execute(
                    "SELECT setval(?::regclass, ?)", (sequence, numbers[name])
                ).fetchone()


def _sequences(connection: Connection) -> Iterator[tuple[str, str]]:
    """Yield the numbered tables, each with the name of its sequence."""
    for table in NUMBERED:
        (key,) = table.primary_key
        row = connection.execute(
            "SELECT pg_get_serial_sequence(?, ?)", (table.name, key.name)
        ).fetchone()
        yield table.name, row[0]


def _an_object(connection: Connection, place: SchemaPlace) -> str | None:
    """Return an object in the schema, `alembic_version` if that is there; None = it is empty."""
    row = connection.execute(_OBJECTS, (place.schema,)).fetchone()
    return None if row is None else str(row[0])


def _has_schema(connection: Connection, place: SchemaPlace) -> bool:
    query = "SELECT 1 FROM pg_namespace WHERE nspname = ?"
    return connection.execute(query, (place.schema,)).fetchone() is not None


@contextmanager
def _failing(place: SchemaPlace) -> Iterator[None]:
    """Convert an error of the server to a fault that names the place."""
    try:
        yield
    except ServerError as error:
        raise StoreFault(f"{place}: {error}", hint="run the same command again") from error
