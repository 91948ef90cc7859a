"""Verifying: the rows of a store in PostgreSQL, checked as those of a file are (HK-10).

Reads:  all rows, in one transaction that cannot write.      Calls: the server.
Never:  changes anything, or checks the pages of the server: pg_amcheck does that.
"""

from typing import Final

from brokerd.errors import StoreDamaged, StoreFault
from brokerd.storage.postgresql.connecting import connect
from brokerd.storage.postgresql.connection import ServerConnection, as_connection, in_thread
from brokerd.storage.postgresql.errors import ServerError
from brokerd.storage.postgresql.schema import check_objects
from brokerd.storage.postgresql.streaming import Streamed
from brokerd.storage.rows import references
from brokerd.storage.verifying import Finding, findings_of_rows

_PATIENCE: Final = 5.0
"""Seconds until the attempt to connect is given up."""
_PIECE: Final = 64
"""Rows that are read at a time; each may have a body."""


def verify_schema(url: str, schema: str, *, place: object) -> list[Finding]:
    """Return all contradictions in the store of a schema, in use or not, and its leftover rows.

    `place`: the store, for messages.

    Raises:
        StoreDamaged, StoreVersion: the schema has no store, or not one of this version.
        StoreMoved: the store goes on elsewhere.
        StoreFault: the server cannot be reached, or failed meanwhile.
    """
    settings = {
        "application_name": "brokerd store verify",
        "default_transaction_read_only": "on",
        "default_transaction_isolation": "repeatable read",
        "idle_in_transaction_session_timeout": "0",
    }
    try:
        session = in_thread(connect(url, schema, settings=settings, patience=_PATIENCE))
        server = ServerConnection(session, in_thread)
        try:
            server.execute("BEGIN")
            return findings_of(server, place)
        finally:
            server.close()
    except ServerError as error:
        raise StoreFault(
            f"{place} cannot be read: {error}",
            hint="check the URL, and that the server runs and lets this user in",
        ) from error


def findings_of(server: ServerConnection, place: object) -> list[Finding]:
    """Return all contradictions in the store, in the caller's transaction.

    Raises:
        StoreDamaged, StoreVersion: the schema has no store, or not one of this version.
        StoreMoved: the store goes on elsewhere.
    """
    connection = as_connection(server)
    row = server.execute("SELECT to_regclass('alembic_version') IS NULL").fetchone()
    if row is None or row[0]:
        raise StoreDamaged(f"there is no store in {place}", hint="name the schema of a store")
    check_objects(connection, place)
    missing = [
        Finding(kind, name, f"names the {what} {named}, which is not there")
        for kind, name, what, named in references.missing(connection)
    ]
    return [*missing, *findings_of_rows(Streamed(server, _PIECE))]
