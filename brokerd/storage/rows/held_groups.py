"""Held groups, whose transactions roll back: statements and row mapping (PBT-3, PSN-17).

Reads:  held_groups.      Calls: nothing.
Never:  decides how long a group waits or when it is parked; `broker.poison` does.
"""

from collections import Counter
from typing import NamedTuple

from sqlalchemy import select

from brokerd.ids import GroupId, QueueKey
from brokerd.storage.changes import HeldRow, Rare
from brokerd.storage.connections import Connection
from brokerd.storage.rows.deferred_drops import DROPPED
from brokerd.storage.shelves import PLACES
from brokerd.storage.statements import Deletes, Inserts, Script, sql
from brokerd.storage.stretches import among, table_at
from brokerd.storage.tables import held_groups

_put = Inserts(held_groups, replace=True)
_delete = Deletes(held_groups.c.group_id)
_all = sql(select(held_groups))
_forget = (
    "DELETE FROM held_groups WHERE NOT EXISTS (SELECT 1 FROM conversation_endpoints AS e"
    " WHERE e.group_id = held_groups.group_id AND e.state <> 'CD')"
)
# From the few groups to their messages, in the order of the names: CROSS JOIN fixes that order.
_counts = [
    "SELECT h.group_id, count(*) FROM held_groups AS h"  # noqa: S608
    " CROSS JOIN conversation_endpoints AS e ON e.group_id = h.group_id CROSS JOIN"
    f" {table} AS m INDEXED BY {table}_of ON m.endpoint_key = e.endpoint_key"
    f" WHERE {among(place)} AND m.endpoint_key NOT IN ({DROPPED}) GROUP BY h.group_id"
    for place, table in ((place, table_at(place)) for place in PLACES)
]


class RecoveredGroup(NamedTuple):
    """The state of a group at a start."""

    row: HeldRow
    messages: int
    """Number of waiting messages of the group."""


def write(script: Script, rare: Rare) -> None:
    """Add to a flush's script its changes of held groups."""
    if rare.held:
        _delete.add(script, [group for group, row in rare.held.items() if row is None])
        _put.add(script, [row for row in rare.held.values() if row is not None])


def forget_gone(connection: Connection) -> None:
    """Delete the rows of groups without an open dialog, in the caller's transaction."""
    connection.execute(_forget)


def recovered(connection: Connection) -> list[RecoveredGroup]:
    """Return every row, with the number of waiting messages of its group."""
    rows = connection.execute(_all).fetchall()
    if not rows:
        return []
    counts: Counter[GroupId] = Counter()
    for statement in _counts:
        counts.update(dict(connection.execute(statement).fetchall()))
    return [
        RecoveredGroup(HeldRow(GroupId(row[0]), QueueKey(row[1]), *row[2:]), counts[row[0]])
        for row in rows
    ]
