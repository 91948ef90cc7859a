"""Lingering dialogs: reports ended or failed dialogs that no program has finished (PBT-5).

Reads: the whole stores, so it runs rarely.      Calls: the log.
Never: ends a dialog: its unread messages belong to the application.
Wakes: each time the limit has passed, so that a dialog is first reported when it has lingered
       for between one and two times the limit.
"""

from collections.abc import Mapping
from datetime import timedelta

from brokerd.broker.broker import Broker
from brokerd.clock import Clock, later, show_instant
from brokerd.errors import Busy
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import LINGERING
from brokerd.units import show_duration

MOST = 20
"""Largest number of log lines for one broker in a run: one per service and state, the longest
lingering first."""


class LingeringDialogs:
    """The pass that finds endpoints which have been in DI, DO or ER for long."""

    def __init__(
        self, *, brokers: Mapping[str, Broker], clock: Clock, log: Log, limit: timedelta
    ) -> None:
        """Create the pass.

        `limit`: how long an endpoint may be in one of these states; 0 = report no endpoint."""
        self._brokers = brokers
        self._clock = clock
        self._log = log
        self._limit = limit
        self._checked_at = clock.monotonic()

    async def check(self) -> int:
        """Log the lingering endpoints, once per limit; return the number of lines."""
        now, logged = self._clock.monotonic(), 0
        if not self._limit or now - self._checked_at < self._limit.total_seconds():
            return 0
        self._checked_at = now
        since, limit = later(self._clock.utc(), -self._limit), show_duration(self._limit)
        for broker in list(self._brokers.values()):
            try:
                found = await broker.store.endpoints.lingering(since, MOST)
            except Busy:  # a large store on a slow disk: retry at the next run
                continue
            for one in found:
                self._log.warning(
                    LINGERING,
                    broker=broker.name,
                    service=one.service,
                    state=str(one.state),
                    endpoints=one.endpoints,
                    since=show_instant(one.since),
                    reason=f"nobody has finished them; brokerd dialog ls --state {one.state} "
                    f"--older-than {limit} shows which",
                )
            logged += len(found)
        return logged
