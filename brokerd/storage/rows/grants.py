"""Grants that were made online, kept in `msdb`; statements (SX-3).

Reads:  the table `grants`.      Calls: audit.
Never:  changes memory: `admin.grants` does, once the statement is durable.

A row with an empty permission and object is no grant. It says that grants about the connections
named as its principal were made once, so that they stay limited when the last grant is revoked.
"""

from collections.abc import Iterable

from sqlalchemy import delete, select

from brokerd.clock import Instant
from brokerd.security.grants import Audience, Entry, Grant, Origin, Permission
from brokerd.storage.connections import Connection, transaction
from brokerd.storage.rows.audit import append
from brokerd.storage.statements import Inserts, Script, sql
from brokerd.storage.tables import grants
from brokerd.telemetry.audit import Entry as AuditEntry

_load = sql(
    select(
        grants.c.permission,
        grants.c.securable,
        grants.c.principal,
        grants.c.granted_at,
        grants.c.granted_by,
    ).order_by(grants.c.granted_at, grants.c.permission, grants.c.securable, grants.c.principal)
)
_add = Inserts(grants, replace=True)
_remove = sql(
    delete(grants).where(
        grants.c.permission == "", grants.c.securable == "", grants.c.principal == ""
    )
)
_remove_of_principal = sql(delete(grants).where(grants.c.principal == ""))


def load(connection: Connection) -> tuple[list[Entry], frozenset[Audience]]:
    """Return all grants, the oldest first, and the connections that they were ever about."""
    entries: list[Entry] = []
    audiences: set[Audience] = set()
    for permission, on, to, at, by in connection.execute(_load):
        if permission:
            grant = Grant(Permission(permission), on, to)
            entries.append(
                Entry(grant=grant, origin=Origin.ONLINE, granted_at=Instant(at), granted_by=by)
            )
        else:
            audiences.add(Audience(to))
    return entries, frozenset(audiences)


def add(connection: Connection, entry: Entry, record: AuditEntry) -> None:
    """Record a grant, the connections that it is about, and the entry of the audit."""
    grant, script = entry.grant, Script()
    values = (entry.granted_at, entry.granted_by)
    rows = [(grant.permission, grant.on, grant.to, *values), ("", "", grant.audience, *values)]
    _add.add(script, rows)
    with transaction(connection):
        script.run(connection)
        append(connection, [record])


def remove(connection: Connection, grant: Grant, record: AuditEntry | None) -> None:
    """Delete a grant that was revoked, and record the entry of the audit."""
    with transaction(connection):
        connection.execute(_remove, (grant.permission.value, grant.on, grant.to))
        append(connection, [] if record is None else [record])


def remove_of_principal(connection: Connection, principal: str) -> None:
    """Delete the grants of a principal that is removed, in the caller's transaction.

    A later principal of the same name must not inherit them."""
    connection.execute(_remove_of_principal, (principal,))


def put(connection: Connection, entries: Iterable[Entry]) -> None:
    """Record grants inside the caller's transaction, and the connections that they are about."""
    script = Script()
    for entry in entries:
        grant, values = entry.grant, (entry.granted_at, entry.granted_by)
        rows = [(grant.permission, grant.on, grant.to, *values), ("", "", grant.audience, *values)]
        _add.add(script, rows)
    script.run(connection)


def drop(connection: Connection, dropped: Iterable[Grant]) -> None:
    """Delete the rows of grants inside the caller's transaction."""
    for one in dropped:
        connection.execute(_remove, (one.permission.value, one.on, one.to))
