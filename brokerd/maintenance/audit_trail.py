"""Audit trail: records logins, refusals and administration in `msdb` (SX-15).

Reads:  the clock.      Calls: storage.
Never:  lets a component wait for its entry, or lets repeats of one event fill the table.
Wakes:  when an entry is recorded; entries recorded while others are written are written next.
Fails:  on a full disk, entries are lost; the event log has their lines.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Final

from brokerd.clock import Clock
from brokerd.errors import StoreFull
from brokerd.storage.connections import Connection, transaction
from brokerd.storage.rows import audit
from brokerd.storage.store import Store
from brokerd.telemetry.audit import COUNTED, Action, Entry, Outcome

WINDOW: Final = 60.0
"""Seconds within which repeats of an entry from outside are counted, not recorded."""
MOST: Final = 1_000
"""Most different entries from outside that are counted at a time, or wait to be written."""
_Key = tuple[Action, str, str, Outcome]


class AuditTrail:
    """The audit of one instance; it implements `telemetry.audit.Audit`."""

    def __init__(
        self,
        *,
        clock: Clock,
        spawn: Callable[[Coroutine[object, object, None]], asyncio.Task[None]],
    ) -> None:
        self._clock = clock
        self._spawn = spawn
        self._msdb: Store | None = None
        self._waiting: list[Entry] = []
        self._writing: asyncio.Task[None] | None = None
        self._repeats: dict[_Key, tuple[float, int]] = {}

    def open(self, msdb: Store) -> None:
        """Write to this store; entries recorded before are lost."""
        self._msdb = msdb

    def record(
        self,
        action: Action,
        *,
        actor: str,
        subject: str,
        outcome: Outcome = Outcome.SUCCESS,
        **detail: object,
    ) -> None:
        """Record an entry; a repeat within a minute is counted, and the next entry has the count.

        Only the actions of `COUNTED` are counted."""
        if action in COUNTED:
            key = (action, actor, subject, outcome)
            repeated = self._repeats_of(key)
            if repeated is None:
                return
            if repeated:
                detail["repeated"] = repeated
        self._waiting.append(
            Entry(
                at=self._clock.utc(),
                action=action,
                actor=actor,
                subject=subject,
                outcome=outcome,
                detail=detail,
            )
        )
        if self._msdb is not None and (self._writing is None or self._writing.done()):
            self._writing = self._spawn(self._write(self._msdb))

    def _repeats_of(self, key: _Key) -> int | None:
        """Return the number of repeats since the last entry; None = this is one more of them."""
        now = self._clock.monotonic()
        until, count = self._repeats.get(key, (0.0, 0))
        if now < until:
            self._repeats[key] = until, count + 1
            return None
        if key not in self._repeats and len(self._repeats) >= MOST:
            self._repeats = {one: it for one, it in self._repeats.items() if now < it[0]}
            if len(self._repeats) >= MOST:
                return None
        self._repeats[key] = now + WINDOW, 0
        return count

    async def finish(self) -> None:
        """Wait until all entries are written."""
        if self._writing is not None:
            await asyncio.wait({self._writing})

    async def _write(self, msdb: Store) -> None:
        while self._waiting:
            entries, self._waiting = self._waiting, []
            try:
                await msdb.run(partial(_append, entries=entries))
            except StoreFull:
                return


def _append(connection: Connection, entries: list[Entry]) -> None:
    with transaction(connection):
        audit.append(connection, entries)
