"""Opening: a store in PostgreSQL is made whole, or it is owned, upgraded, checked, opened.

Reads:  the settings of the server, and everything that a start needs, in one transaction.
Calls:  `ownership`, `schema`, `upgrading`, and the half of an opening that all engines share.
Never:  writes to a store of another daemon, or promises what the server does not (REL-53).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from brokerd.errors import StoreDamaged, StoreFault, StoreFull
from brokerd.ids import Incarnation
from brokerd.storage.connections import transaction
from brokerd.storage.opening import Opened, Wanted, count_and_load, write_first_rows
from brokerd.storage.postgresql import history, ownership
from brokerd.storage.postgresql.connection import ServerConnection, as_connection
from brokerd.storage.postgresql.errors import FORMER, OTHER_SYSTEM, STANDBY, ServerError
from brokerd.storage.postgresql.last_history import History, read_history
from brokerd.storage.postgresql.schema import check_objects, definitions
from brokerd.storage.postgresql.upgrading import upgrade
from brokerd.storage.schema import REVISIONS, read_revision
from brokerd.storage.sqlite_errors import is_full

OLDEST: Final = 150000
"""The oldest version of the server, as `server_version_num`."""
_DURABLE: Final = ("on", "remote_apply")


_UNREACHABLE: Final = "check store.url, and that the server runs"
HINTS: Final = {
    OTHER_SYSTEM: "correct store.url; or, if the stores are to go on at this server: brokerd store "
    "accept-server -c FILE",
    FORMER: "start the server that was promoted, and name it in store.url; or, if it is lost "
    "for good: brokerd store accept-server -c FILE",
    STANDBY: "name the primary in store.url, or all servers: the primary among them is used",
    "28P01": "correct the password in the file that passfile= of store.url or PGPASSFILE names, or "
    "in PGPASSWORD, which counts before any file",
    "28000": "let this user in from this machine: pg_hba.conf of the server",
    "3D000": "create the database, or correct its name in store.url",
    "42501": "give the user of store.url the right to create schemas in the database",
    "53300": "raise max_connections of the server, or end other clients; a store needs five",
    "57P03": "wait until the server has started",
    "25006": "make the server writable again: default_transaction_read_only",
}
"""Hints for errors of the server, by SQLSTATE or name."""


class ServerOptions(msgspec.Struct, frozen=True):
    """Options of stores in PostgreSQL: the promises that a server must keep."""

    synchronous_commit: str = "on"
    """`on`: a commit waits for the disk of the server, and of its synchronous standbys.
    `remote_apply`: it also waits until these standbys show it."""
    require_standby: bool = False
    """Whether a server without a synchronous standby is refused."""
    require_durable: bool = True
    """Whether a server that does not write to its disk (`fsync = off`) is refused. Tests alone turn
    this off."""
    schema_prefix: str = ""
    """The beginning of the names of the schemas, where several instances share a database."""
    lock_wait: float = 1.0
    """Seconds to wait for the session of an owner that is about to end."""
    shown: str = "postgresql"
    """The servers and the database, as reports name them: without user and password."""
    connect_timeout: float = 5.0
    """Seconds until an attempt to connect is given up."""
    history_file: Path | None = None
    """The file that notes in which history of its server a daemon was last; None = there is none,
    and a former primary is not recognised."""

    def last_history(self) -> History | None:
        """Return the history that the file notes; None = none."""
        return None if self.history_file is None else read_history(self.history_file)


def open_schema(
    connect: Callable[[], ServerConnection],
    path: Path,
    *,
    schema: str,
    options: ServerOptions,
    wanted: Wanted,
) -> Opened:
    """Own, check and open the store in a schema, and count the open; make it if it is missing.

    `path`: the name of the store, for messages.

    Raises:
        StoreLocked: another daemon has the store.
        StoreDamaged: the store, or the server, is not what it should be.
        StoreFault: the server cannot be reached, or failed meanwhile.
        StoreFull: the server has no room for what a start writes.
    """
    try:
        connection = connect()
    except ServerError as error:
        if is_full(error):
            raise _no_room(schema) from error
        raise StoreFault(
            f"the PostgreSQL server of store {schema} cannot be used: {error}",
            hint=HINTS.get(error.sqlstate or error.sqlite_errorname, _UNREACHABLE),
        ) from error
    try:
        return _open(
            connection,
            path,
            schema=schema,
            options=options,
            wanted=wanted,
        )
    except BaseException as error:
        connection.close()  # it may have the lock of the store
        if not isinstance(error, ServerError):
            raise
        if is_full(error):
            raise _no_room(schema) from error
        raise StoreFault(
            f"the store {schema} cannot be opened: {error}", hint=HINTS.get(error.sqlstate)
        ) from error


def _no_room(schema: str) -> StoreFull:
    return StoreFull(
        f"the store {schema} cannot be opened: the server has no room for it",
        hint="make room on the disk of the server, then try again",
    )


def _open(
    server: ServerConnection,
    path: Path,
    *,
    schema: str,
    options: ServerOptions,
    wanted: Wanted,
) -> Opened:
    connection = as_connection(server)
    check_server(server, options)
    ownership.own(connection, schema, options.lock_wait)
    made = False
    if connection.execute("SELECT to_regclass('alembic_version') IS NULL").fetchone()[0]:
        if wanted.create is None:
            raise StoreDamaged(f"there is no store {schema} in this database")
        with transaction(connection):
            server.execute_all([f'CREATE SCHEMA IF NOT EXISTS "{schema}"', *definitions()])
            incarnation = Incarnation(wanted.ids.fresh())
            write_first_rows(connection, wanted.create, incarnation, wanted.clock.utc())
        made = True
    elif read_revision(connection, path) != REVISIONS[-1]:
        upgrade(server, path)
    check_objects(connection, path)
    if wanted.name is not None:
        (found,) = connection.execute("SELECT broker_name FROM store").fetchone()
        if found != wanted.name:
            raise StoreDamaged(f"{schema} is the store of broker {found}, not of {wanted.name}")
    has_new_history = history.continue_or_begin(connection, wanted.ids)
    opened = count_and_load(
        connection, path, ownership.ServerLock(server.close), fault=wanted.fault
    )
    return opened._replace(is_new=made, has_new_history=has_new_history)


def check_server(server: ServerConnection, options: ServerOptions) -> None:
    """Refuse a server that cannot keep the promises of a store (REL-53, REL-80)."""
    execute = server.execute

    def setting(name: str) -> str:
        row = execute("SELECT current_setting(?)", (name,)).fetchone()
        return str(row[0]) if row else ""

    version = int(setting("server_version_num"))
    if version < OLDEST:
        raise StoreDamaged(
            f"the server has PostgreSQL {setting('server_version')}; stores need 15 or newer",
            hint="use a newer server",
        )
    if options.require_durable and (setting("fsync"), setting("full_page_writes")) != ("on", "on"):
        raise StoreDamaged(
            "the server does not write what it confirms: fsync or full_page_writes is off",
            hint="set both to on in postgresql.conf, and restart the server",
        )
    if setting("synchronous_commit") not in _DURABLE:
        raise StoreDamaged("the server did not accept the session's synchronous_commit")
    if options.require_standby and not setting("synchronous_standby_names"):
        # A server may get its standby back by itself, so a supervisor is to try again.
        raise StoreFault(
            "the server has no synchronous standby, and store.require_standby wants one",
            hint="set synchronous_standby_names in postgresql.conf, and reload the server",
        )
