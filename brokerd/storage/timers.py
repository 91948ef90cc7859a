"""Pending conversation timers: statements and row mapping (DLG-35 to DLG-41).

Reads:  conversation_timers.      Calls: the reader it is given.
Never:  decides when a timer fires; `maintenance.timers` does.
"""

from typing import Final, NamedTuple

from sqlalchemy import bindparam, func, select, text, tuple_, update

from brokerd.clock import Instant
from brokerd.ids import EndpointKey
from brokerd.storage.changes import Rare
from brokerd.storage.engine import Connection, Reader, transaction
from brokerd.storage.statements import Deletes, Inserts, Script, sql
from brokerd.storage.tables import conversation_timers as timers


class Timer(NamedTuple):
    """A pending timer."""

    endpoint: EndpointKey
    name: str
    """"" = the unnamed one (PBT-23)."""
    due_at: Instant


_put = Inserts(timers, replace=True)
_delete_of = Deletes(timers.c.endpoint_key)
_delete = sql(
    timers.delete().where(
        timers.c.endpoint_key == bindparam("key"), timers.c.name == bindparam("name")
    )
)
_hold = sql(
    update(timers)
    .where(
        timers.c.endpoint_key == bindparam("key"),
        timers.c.name == bindparam("of"),
        timers.c.due_at == bindparam("due"),  # otherwise it was set again meanwhile
    )
    .values(is_held=1)
)
_release = sql(update(timers).where(timers.c.is_held == 1).values(is_held=0))
# The condition is that of the partial index, word for word, or SQLite does not use it.
_PENDING: Final = text("is_held = 0")
DUE: Final = (
    select(timers.c.endpoint_key, timers.c.name, timers.c.due_at)
    .where(
        _PENDING,
        timers.c.due_at <= bindparam("now"),
        tuple_(timers.c.due_at, timers.c.endpoint_key, timers.c.name)
        > tuple_(bindparam("after"), bindparam("after_key"), bindparam("after_name")),
    )
    .order_by(timers.c.due_at, timers.c.endpoint_key, timers.c.name)
    .limit(bindparam("limit"))
)
FIRST: Final = select(func.min(timers.c.due_at)).where(_PENDING)
OF: Final = (
    select(timers.c.endpoint_key, timers.c.name, timers.c.due_at)
    .where(timers.c.endpoint_key == bindparam("key"))
    .order_by(timers.c.name)
)


def write(script: Script, rare: Rare) -> None:
    """Write the part of a flush: timers set and cancelled, then those of ended endpoints."""
    for which, due in rare.timers.items():
        if due is None:
            script.add(_delete, which)
    _put.add(script, [(*which, at, 0) for which, at in rare.timers.items() if at is not None])
    _delete_of.add(script, rare.timers_removed_of)


def hold(connection: Connection, found: list[Timer]) -> None:
    """Leave these timers out until they are released; a transaction of its own."""
    with transaction(connection):
        connection.executemany(_hold, [(1, *one) for one in found])


def release(connection: Connection) -> None:
    """Consider held timers again; a transaction of its own."""
    with transaction(connection):
        connection.execute(_release, (0, 1))


async def due(reader: Reader, now: Instant, limit: int, after: Timer | None) -> list[Timer]:
    """Return timers that are due and not held, oldest first, after `after`."""
    last = after or Timer(EndpointKey(-1), "", Instant(-1))
    values = {
        "now": now,
        "limit": limit,
        "after": last.due_at,
        "after_key": last.endpoint,
        "after_name": last.name,
    }
    return [_timer(row) for row in await reader.rows(DUE, values)]


async def first_due(reader: Reader) -> Instant | None:
    """Return when the first timer that is not held is due; None = there is none."""
    ((found,),) = await reader.rows(FIRST)
    return None if found is None else Instant(found)


async def of(reader: Reader, key: EndpointKey) -> list[Timer]:
    """Return the timers of an endpoint, the unnamed one first."""
    return [_timer(row) for row in await reader.rows(OF, {"key": key})]


def _timer(row: tuple[object, ...]) -> Timer:
    key, name, due_at = row
    assert isinstance(key, int)
    assert isinstance(due_at, int)
    return Timer(EndpointKey(key), str(name), Instant(due_at))
