"""History: a store notices that its server has begun a new history since it was last open (REL-64).

Reads:  the identity of the server, and the line of time of its log.      Calls: nothing.
Never:  says that nothing was lost: only peers and clients know what they were told.

The row has the OID of its own table as well. A table that `pg_restore` has made has another one,
and rows that were restored are older than what was confirmed after the dump.

A server begins a new timeline when a standby is promoted and when a backup is restored up to a
moment. Commits that had not arrived there are gone then, though they were confirmed, unless the
standby was a synchronous one. No row shows that they are missing. So the store is treated as a
restored one is: with a new incarnation, peers compare what they know at the first contact of each
dialog, and end what does not agree (REL-15).
"""

from typing import Final

from brokerd.ids import IdSource
from brokerd.storage.connections import Connection, transaction
from brokerd.storage.opening import change_facts_within
from brokerd.storage.postgresql.connecting import HISTORY

TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS server_history"
    " (id bigint PRIMARY KEY CHECK (id = 1), system text NOT NULL, timeline text NOT NULL)"
)
"""Makes the table of the one row that names the history which the store belongs to.

`timeline` has the OID of this table behind the timeline; rows of earlier versions have no OID."""
_TABLE: Final = "SELECT 'server_history'::regclass::oid::text"
_KNOWN: Final = "SELECT system, timeline FROM server_history"
_REMEMBER: Final = (
    "INSERT INTO server_history (id, system, timeline) VALUES (1, ?, ?)"
    " ON CONFLICT (id) DO UPDATE SET system = excluded.system, timeline = excluded.timeline"
)


def forget(schema: str) -> str:
    """Return the statement, for PostgreSQL, after which the next open begins a new history."""
    quoted = schema.replace('"', '""')
    return f"UPDATE \"{quoted}\".server_history SET timeline = ''"  # noqa: S608  # a schema


def continue_or_begin(connection: Connection, ids: IdSource) -> bool:
    """Give the store a new incarnation if its server has begun a new history; return whether."""
    system, timeline = connection.execute(HISTORY).fetchone()
    (table,) = connection.execute(_TABLE).fetchone()
    current = system, f"{timeline} {table}"
    known = connection.execute(_KNOWN).fetchone()
    if known == current:
        return False
    is_new = known not in (None, (system, timeline))
    with transaction(connection):
        connection.execute(_REMEMBER, current)
        if is_new:
            change_facts_within(connection, {"incarnation": ids.fresh()})
    return is_new
