"""Survey: looks at a server and at what an instance has there, without taking or changing anything.

Reads:  the settings of the server, its standbys, its sessions; the brokers of the instance.
Calls:  the server, on a connection of its own.
Never:  takes a lock, or writes.
Fails:  as an opening would, with `StoreFault` or `StoreDamaged`.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from brokerd.errors import StoreDamaged, StoreFault
from brokerd.ids import BrokerId
from brokerd.model import MSDB, Contract
from brokerd.storage.file_checks import refuse_changed_contracts
from brokerd.storage.postgresql import ownership
from brokerd.storage.postgresql.connecting import connect
from brokerd.storage.postgresql.connection import ServerConnection, as_connection, in_thread
from brokerd.storage.postgresql.errors import ServerError
from brokerd.storage.postgresql.opening import HINTS, ServerOptions, check_server
from brokerd.storage.postgresql.schema import check_objects
from brokerd.storage.rows import known_brokers
from brokerd.storage.schema import REVISIONS, read_revision
from brokerd.storage.server_facts import ServerFacts, SessionWait, wait_of
from brokerd.storage.tables import APPLICATION_ID

_LONGEST: Final = 63
"""Most bytes of the name of a schema."""
_STANDBYS: Final = (
    "SELECT application_name FROM pg_stat_replication"
    " WHERE sync_state IN ('sync', 'quorum') AND state = 'streaming' ORDER BY 1"
)
_SEES: Final = "SELECT pg_has_role('pg_read_all_stats', 'USAGE')"
_WRITERS: Final = (
    "SELECT l.objid::bigint, a.pid, a.wait_event_type, a.wait_event"
    " FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid"
    " WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2 AND l.classid::bigint = ?"
    " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_SIZE: Final = (
    "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class AS c"
    " JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = ? AND c.relkind = 'r'"
)
_IDENTITY: Final = (
    "SELECT system_identifier::text || ' ' || current_database() FROM pg_control_system()"
)


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """The stores of an instance on a server."""

    brokers: dict[str, BrokerId]
    """The brokers of the instance, except `msdb`; empty before its first start."""
    missing: tuple[str, ...] = ()
    """Brokers that have no schema."""
    holder: str = ""
    """The daemon that has the stores open now, as text; empty = none."""
    fingerprint: bytes = b""
    """Sixteen bytes that no other database has, except copies of the whole server."""


def schema_of(options: ServerOptions, broker: str) -> str:
    """Return the schema of a broker.

    Raises:
        StoreDamaged: the name is too long for the server, which would shorten it.
    """
    name = options.schema_prefix + broker
    if len(name.encode()) > _LONGEST:
        raise StoreDamaged(
            f"the schema {name} of broker {broker} has a name of more than {_LONGEST} bytes",
            hint="give the broker a shorter name, or take a shorter store.schema_prefix",
        )
    return name


def survey(url: str, options: ServerOptions) -> Survey:
    """Look at the server; return what the instance has there. Waits on another thread's loop.

    Raises:
        StoreFault: the server cannot be reached, or refuses the login.
        StoreDamaged: the server cannot keep what stores promise, or `msdb` is damaged.
        StoreVersion: another version of this program made `msdb`.
    """
    schema = schema_of(options, MSDB)
    with _looking(url, options, schema) as server:
        check_server(server, options)
        return _read(server, options, schema)


def refuse_contracts_in_use(
    url: str, options: ServerOptions, broker: str, wanted: Mapping[str, Contract]
) -> None:
    """Refuse declarations of a broker as `file_checks.refuse_contracts_in_use` does (REL-84).

    A store of an older version is not inspected, and one that does not exist has no dialogs.

    Raises:
        InUse: open dialogs need a contract that the declarations change.
        StoreFault: the server cannot be reached, or refuses the login.
    """
    schema = schema_of(options, broker)
    with _looking(url, options, schema) as server:
        connection = as_connection(server)
        if exists(server, schema) and read_revision(connection, schema) == REVISIONS[-1]:
            refuse_changed_contracts(connection, wanted)


@contextmanager
def _looking(url: str, options: ServerOptions, schema: str) -> Iterator[ServerConnection]:
    """Connect to the server for one look, on another thread's loop."""
    try:
        session = in_thread(
            connect(
                url,
                schema,
                settings={"application_name": "brokerd (survey)"},
                patience=options.connect_timeout,
                last=options.last_history(),
            )
        )
    except ServerError as error:
        raise unreachable(error) from error
    server = ServerConnection(session, in_thread)
    try:
        yield server
    except ServerError as error:
        raise StoreFault(f"the PostgreSQL server cannot be looked at: {error}") from error
    finally:
        server.close()


def unreachable(error: ServerError) -> StoreFault:
    """Return the fault of a server that cannot be reached."""
    usual = "check store.url, that the server runs, and that it lets this user in"
    return StoreFault(
        f"the PostgreSQL server of the stores cannot be used: {error}",
        hint=HINTS.get(error.sqlstate or error.sqlite_errorname, usual),
    )


def _read(server: ServerConnection, options: ServerOptions, schema: str) -> Survey:
    connection = as_connection(server)
    (identity,) = server.execute(_IDENTITY).fetchone() or ("",)
    found: dict[str, BrokerId] = {}
    missing: list[str] = []
    if exists(server, schema):
        if read_revision(connection, schema) == REVISIONS[-1]:  # the start upgrades an older one
            check_objects(connection, schema)
        found = dict(known_brokers.load(connection))
        missing = [name for name in found if not exists(server, schema_of(options, name))]
    return Survey(
        brokers=found,
        missing=tuple(sorted(missing)),
        holder=ownership.holder(connection, schema),
        fingerprint=hashlib.sha256(b"brokerd host " + str(identity).encode()).digest()[:16],
    )


def exists(server: ServerConnection, schema: str) -> bool:
    """Return whether a schema has a store."""
    place = '"' + schema.replace('"', '""') + '".alembic_version'
    row = server.execute("SELECT to_regclass(?) IS NOT NULL", (place,)).fetchone()
    return bool(row and row[0])


def _waits(server: ServerConnection, schemas: Iterable[str]) -> dict[str, SessionWait]:
    """Return what the session that writes each schema waits for."""
    names = {ownership.lock_keys(name)[1] & 0xFFFFFFFF: name for name in schemas}
    rows = server.execute(_WRITERS, (APPLICATION_ID,)).fetchall()
    return {names[key]: wait_of(pid, kind, event) for key, pid, kind, event in rows if key in names}


def read_facts(server: ServerConnection, shown: str, schemas: Sequence[str]) -> ServerFacts:
    """Return the facts of a server; `shown`: its name in reports."""

    def value(text: str, *values: object) -> object:
        row = server.execute(text, values).fetchone()
        return row[0] if row else None

    return ServerFacts(
        server=shown,
        version=str(value("SELECT current_setting(?)", "server_version")).split(" ")[0],
        standbys=tuple(name for (name,) in server.execute(_STANDBYS)),
        wanted_standbys=str(value("SELECT current_setting(?)", "synchronous_standby_names") or ""),
        sees_standbys=bool(value(_SEES)),
        waits=_waits(server, schemas),
        sizes={name: int(str(value(_SIZE, name) or 0)) for name in schemas},
    )
