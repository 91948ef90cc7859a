"""Audit: logins, refusals and administration; statements (SX-15).

Reads:  the table `audit`.      Calls: nothing.
Never:  changes an entry. Entries are appended; the oldest are deleted when they are too many.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import orjson
from sqlalchemy import bindparam, delete, func, insert, select

from brokerd.clock import Instant
from brokerd.storage.connections import Connection
from brokerd.storage.readers import Reader
from brokerd.storage.statements import DIALECT, sql
from brokerd.storage.tables import audit
from brokerd.telemetry.audit import APART, Action, Entry, Outcome

MOST: Final = 10_000
"""Most entries that are kept: of logins and refusals, and as many of everything else."""


class Kept(Entry, frozen=True, kw_only=True):
    """An entry that is stored, with its number."""

    key: int


def append(connection: Connection, entries: Iterable[Entry]) -> None:
    """Append entries, in the caller's transaction, and delete the oldest if they are too many."""
    rows = [
        (one.at, one.action.value, one.actor, one.subject, one.outcome.value, _json(one))
        for one in entries
    ]
    if not rows:
        return
    connection.executemany(_append, rows)
    if connection.execute(_span).fetchone()[0] >= MOST:
        for trim in _TRIMS:
            connection.execute(trim)


class StoredAudit:
    """The stored entries."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def page(self, before: int, limit: int) -> list[Kept]:
        """Return the newest entries with smaller numbers than `before`, newest first."""
        rows = await self._reader.rows(_page, {"before": before, "most": limit})
        return [_kept(row) for row in rows]


def _kept(row: Sequence[Any]) -> Kept:
    key, at, action, actor, subject, outcome, detail = row
    return Kept(
        key=key,
        at=Instant(at),
        action=Action(action),
        actor=actor,
        subject=subject,
        outcome=Outcome(outcome),
        detail=orjson.loads(detail),
    )


def _json(entry: Entry) -> str:
    return orjson.dumps(entry.detail, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _trim(actions: Iterable[Action], *, others: bool = False) -> str:
    """Return the statement that deletes the oldest entries of these actions, or of all others.

    Its values are in it."""
    named = [one.value for one in sorted(actions)]
    within = audit.c.action.not_in(named) if others else audit.c.action.in_(named)
    keys = select(audit.c.audit_key).where(within).order_by(audit.c.audit_key.desc())
    newest = keys.limit(1).offset(MOST).scalar_subquery()
    statement = delete(audit).where(within, audit.c.audit_key <= newest)
    return str(statement.compile(dialect=DIALECT, compile_kwargs={"literal_binds": True}))


_append = sql(
    insert(audit).values(
        {column.name: bindparam(column.name) for column in audit.c if not column.primary_key}
    )
)
_span = sql(select(func.max(audit.c.audit_key) - func.min(audit.c.audit_key)))
_TRIMS: Final = (*map(_trim, APART), _trim(frozenset[Action]().union(*APART), others=True))
_page: Final[Any] = (
    select(audit)
    .where(audit.c.audit_key < bindparam("before"))
    .order_by(audit.c.audit_key.desc())
    .limit(bindparam("most"))
)
