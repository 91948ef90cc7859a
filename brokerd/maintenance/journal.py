"""Journal: writes the metrics log: the figures of each interval, and lines of dialogs (D12, D16).

Reads: figures, the stores' closing lines.      Calls: telemetry.metrics_log.
Never: deletes a closing line before it is on the disk: in spite of crashes, each line is written at
       least once, and readers count it once.

A dialog gets a line when it closes. An open dialog gets a line at the end of each day and when the
daemon stops, within the time that stopping may take: a million lines take a minute (REL-28).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from datetime import timedelta
from typing import Protocol

import msgspec

from brokerd.broker.broker import Broker
from brokerd.broker.closing_lines import dialog_line
from brokerd.broker.state import Live
from brokerd.clock import Clock
from brokerd.ids import EndpointKey
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.transitions import State
from brokerd.storage.changes import Changes
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import DAEMON
from brokerd.telemetry.metrics import DialogLine, Row
from brokerd.telemetry.metrics_log import MetricsLog
from brokerd.telemetry.segments import day_of

BATCH = 32
"""Number of closing lines read at a time; it is small, because writing them blocks the loop."""
PAGE = 1000
"""Number of endpoints read at a time for the lines at the end of a day."""
Aside = Callable[[Callable[[], bool]], Awaitable[bool]]
COUNT_EVERY = timedelta(hours=1)
"""Interval between two counts of the endpoints by state, each of which reads the whole table."""


class Figures(Protocol):
    """Source of the figures of an interval."""

    def rows(self, *, last: bool = False) -> list[Row]:
        """Return the figures since the last call; `last`: whether this is the final call."""
        ...

    def dialogs(self, broker: str, states: Mapping[str, int]) -> None:
        """Record the number of a broker's endpoints in each state, for the next rows."""
        ...


class Journal:
    """The writer of the metrics log of one instance; without a log it writes nothing."""

    def __init__(
        self,
        *,
        log: MetricsLog | None,
        brokers: Mapping[str, Broker],
        figures: Figures,
        clock: Clock,
        aside: Aside,
        events: Log,
    ) -> None:
        """Create the journal.

        `log`: None = no metrics log. `aside`: runs a long job outside the loop. `events`: the event
        log."""
        self._log = log
        self._events = events
        self._brokers = brokers
        self._figures = figures
        self._aside = aside
        self._clock = clock
        self._day = day_of(clock.utc())
        self._counted = float("-inf")
        self._closing = asyncio.Lock()
        self._has_forgotten = False

    def begin(self) -> None:
        """Create the directory, and seal a segment that a crash left open; called before any line.

        Raises:
            OSError: the directory cannot be created or read.
        """
        if self._log is not None and self._log.start():
            self.mark("recovered")

    def write_interval(self, *, last: bool = False) -> int:
        """Write the figures since the last call; return the number of rows.

        `last`: whether this is the final call."""
        if self._log is None:
            return 0
        rows = self._figures.rows(last=last)
        self._log.write_interval(rows)
        return len(rows)

    def write_closed(self) -> int | Awaitable[int]:
        """Write the durable closing lines of the stores, then delete them in the stores.

        Continue batch by batch until all lines are written; otherwise a backlog of lines would
        make a store grow (PER-24)."""
        if self._log is not None:
            return self._write_closed(self._log)
        if self._has_forgotten:
            return 0
        self._has_forgotten = True
        return self._forget_closed()

    async def _forget_closed(self) -> int:
        """Delete the lines left by an earlier daemon that had a log or was an older version."""
        count = 0
        for broker in [*self._brokers.values()]:
            while rows := await broker.store.endpoints.closing_lines(BATCH):
                changes = Changes()
                changes.logged += [row.endpoint for row in rows]
                await broker.store.commit(changes)
                count += len(rows)
        return count

    async def _write_closed(self, log: MetricsLog) -> int:
        async with self._closing:
            return sum([await self._write_closed_of(log, one) for one in [*self._brokers.values()]])

    async def _write_closed_of(self, log: MetricsLog, broker: Broker) -> int:
        count = 0
        while True:
            rows = await broker.store.endpoints.closing_lines(BATCH)
            if not rows:
                return count
            lines = [line for row in rows for line in row.line.split(b"\n")]
            log.write_closed(broker.name, lines)
            # Deleted in the store only after the sync of the log: a crash in between repeats lines,
            # but loses none.
            if not await self._aside(log.to_sync()):  # a slow disk may take long
                return count
            changes = Changes()
            changes.logged += [row.endpoint for row in rows]
            await broker.store.commit(changes)
            count += len(lines)
            if len(rows) < BATCH:
                return count

    def count_dialogs(self) -> int | Awaitable[int]:
        """Count the endpoints in each state, once an hour; return 1 if they are counted, or 0."""
        now = self._clock.monotonic()
        if self._log is None or now - self._counted < COUNT_EVERY.total_seconds():
            return 0
        self._counted = now
        return self._count_dialogs()

    async def _count_dialogs(self) -> int:
        for broker in list(self._brokers.values()):
            self._figures.dialogs(broker.name, await broker.store.endpoints.count_by_state())
        return 1

    def end_day(self) -> int | Awaitable[int]:
        """After the end of a day, write a line for each open endpoint into the log of that day.

        Return the number of lines."""
        if self._log is None or (today := day_of(self._clock.utc())) == self._day:
            return 0
        over, self._day = self._day, today
        return self._end_day(self._log, over)

    async def _end_day(self, log: MetricsLog, over: str) -> int:
        log.close_day(over)
        count = 0
        async for lines in self._open_lines():
            log.write_dialogs(lines)
            count += len(lines)
        log.seal()
        return count

    async def finish(self, seconds: float) -> None:
        """Write all remaining figures and lines at an orderly stop, and seal the segment.

        Lines of open endpoints are written for at most `seconds`; endpoints in memory come
        first."""
        if self._log is None:
            return
        while await self._write_closed(self._log):
            pass
        self.write_interval(last=True)
        await self._write_open(self._log, self._clock.monotonic() + seconds)
        self.mark("stopped")
        self._log.seal()

    async def _write_open(self, log: MetricsLog, until: float) -> None:
        count = 0
        async for lines in self._open_lines():
            if count and self._clock.monotonic() > until:
                self._events.warning(
                    DAEMON,
                    subclass="dialogs_left_out",
                    written=count,
                    reason="more dialogs are open than stopping has time to write of in the"
                    " metrics log (daemon.drain): those not used for long have no line of now",
                )
                return
            log.write_dialogs(lines)
            count += len(lines)

    def mark(self, what: str) -> None:
        """Write a mark: an event of the daemon as a whole, such as `stopped`."""
        if self._log is not None:
            self._log.write_mark(what)

    async def _open_lines(self) -> AsyncIterator[list[DialogLine]]:
        """Yield pages of lines of the endpoints that are not closed; those in memory come first."""
        for broker in list(self._brokers.values()):
            in_memory = set[EndpointKey]()
            keys = [live.endpoint.key for live in broker.endpoints.all()]
            for at in range(0, len(keys), PAGE):
                found = [
                    live for key in keys[at : at + PAGE] if (live := broker.endpoints.get(key))
                ]
                in_memory.update(live.endpoint.key for live in found)
                yield [line for live in found for line in _line(broker, live, live.endpoint)]
                await self._clock.sleep_until(0)  # let other tasks run
            after = None
            while page := await broker.store.endpoints.page(PAGE, after):
                after = page[-1].key
                yield [
                    line
                    for stored in page
                    if stored.key not in in_memory
                    for line in _line(broker, broker.endpoints.get(stored.key), stored)
                ]


def _line(broker: Broker, live: Live | None, stored: DialogEndpoint) -> Iterator[DialogLine]:
    """Yield the line of an endpoint, unless it is closed; `live` is newer than `stored`."""
    endpoint = stored if live is None else live.endpoint
    if endpoint.state is not State.CLOSED:
        fields = dialog_line(live, endpoint, None)
        yield msgspec.convert({**fields, "broker": broker.name}, DialogLine)
