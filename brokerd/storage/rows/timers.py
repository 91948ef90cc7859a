"""Pending conversation timers: statements and row mapping (DLG-35 to DLG-41).

Reads:  conversation_timers.      Calls: the reader it is given.
Never:  decides when a timer fires; `maintenance.timers` does.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from sqlalchemy import bindparam, func, select, text, tuple_, update

from brokerd.clock import Instant
from brokerd.ids import EndpointKey
from brokerd.storage.changes import Rare
from brokerd.storage.connections import Connection, transaction
from brokerd.storage.readers import Reader
from brokerd.storage.statements import Deletes, Inserts, Script, sql
from brokerd.storage.tables import conversation_timers as timers


class RunJob(Protocol):
    """A function that runs a job alone on the writing connection."""

    async def __call__(self, job: Callable[[Connection], None]) -> None:
        """Run the job, and return when it is done; raise the error of the job."""
        ...


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
        timers.c.due_at == bindparam("due"),  # otherwise the timer was set again meanwhile
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


def write(script: Script, rare: Rare) -> None:
    """Add to a flush's script set and cancelled timers, then the deletions for ended endpoints."""
    for which, due in rare.timers.items():
        if due is None:
            script.add(_delete, which)
    _put.add(script, [(*which, at, 0) for which, at in rare.timers.items() if at is not None])
    _delete_of.add(script, rare.timers_removed_of)


class StoredTimers:
    """The stored pending timers, without those that cannot fire now."""

    def __init__(self, reader: Reader, run: RunJob) -> None:
        """Create the queries for timers.

        `run`: runs a job alone on the writing connection.
        """
        self._reader = reader
        self._run = run

    async def due(self, now: Instant, limit: int, after: Timer | None) -> list[Timer]:
        """Return timers that are due and not held, oldest first, from the first after `after`."""
        last = after or Timer(EndpointKey(-1), "", Instant(-1))
        values = {
            "now": now,
            "limit": limit,
            "after": last.due_at,
            "after_key": last.endpoint,
            "after_name": last.name,
        }
        return [_timer(row) for row in await self._reader.rows(DUE, values)]

    async def first_due(self) -> Instant | None:
        """Return when the first timer that is not held is due; None = no such timer."""
        ((found,),) = await self._reader.rows(FIRST)
        return None if found is None else Instant(found)

    async def hold(self, found: list[Timer]) -> None:
        """Hold these timers: leave them out until `release` (DLG-41)."""

        def hold(connection: Connection) -> None:
            with transaction(connection):
                connection.executemany(_hold, [(1, *one) for one in found])

        await self._run(hold)

    async def release(self) -> None:
        """Release all held timers, so that they can fire again."""

        def release(connection: Connection) -> None:
            with transaction(connection):
                connection.execute(_release, (0, 1))

        await self._run(release)


def _timer(row: tuple[object, ...]) -> Timer:
    key, name, due_at = row
    assert isinstance(key, int)
    assert isinstance(due_at, int)
    return Timer(EndpointKey(key), str(name), Instant(due_at))
