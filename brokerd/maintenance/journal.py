"""What goes to the metrics log: the figures of an interval, a line for each dialog (D12, D16).

Reads: figures, the stores' closing lines.      Calls: metrics_log.
Never: forgets a closing line before it is on the disk: it is written at least once, whatever
crashes, and readers count it once.

A dialog has a line when it closes; while it is open, one at the end of each day and one when the
daemon stops, as long as stopping may take: a million would take it a minute (REL-28).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from datetime import timedelta
from typing import Protocol

import msgspec

from brokerd.broker.broker import Broker
from brokerd.broker.closing_lines import dialog_line
from brokerd.broker.endpoints import Live
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
"""Rows of closing lines read at a time: the loop stands still while they are written."""
PAGE = 1000
"""Endpoints read at a time for the end of a day."""
Aside = Callable[[Callable[[], bool]], Awaitable[bool]]
COUNT_EVERY = timedelta(hours=1)
"""Counting the endpoints by state reads the table of them."""


class Figures(Protocol):
    """Where the figures of an interval come from."""

    def rows(self, *, last: bool = False) -> list[Row]:
        """What happened since the last call; `last`: there is no further one."""
        ...

    def dialogs(self, broker: str, states: Mapping[str, int]) -> None:
        """How many endpoints of a broker are in each state."""
        ...


class Journal:
    """Writes the metrics log of one instance; without a log it writes nothing."""

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
        """`aside`: runs what takes long beside the loop."""
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
        """Before the first line is written: make the directory, and seal what a crash left open.

        Raises:
            OSError: the directory cannot be made or read.
        """
        if self._log is not None and self._log.start():
            self.mark("recovered")

    def write_interval(self, *, last: bool = False) -> int:
        """Write what happened since the last call; `last`: there is no further one."""
        if self._log is None:
            return 0
        rows = self._figures.rows(last=last)
        self._log.write_interval(rows)
        return len(rows)

    def write_closed(self) -> int | Awaitable[int]:
        """Write closing lines that are durable in the stores, then let the stores forget them: a
        batch after the other until none are left, or a store would grow by what it is behind
        (PER-24)."""
        if self._log is not None:
            return self._write_closed(self._log)
        if self._has_forgotten:
            return 0
        self._has_forgotten = True
        return self._forget_closed()

    async def _forget_closed(self) -> int:
        """Without a log: delete the lines that a daemon with one or an older version has left."""
        count = 0
        for broker in [*self._brokers.values()]:
            while rows := await broker.store.dialog_log(BATCH):
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
            rows = await broker.store.dialog_log(BATCH)
            if not rows:
                return count
            lines = [line for row in rows for line in row.line.split(b"\n")]
            log.write_closed(broker.name, lines)
            if not await self._aside(log.to_sync()):  # a disk may take long, and the loop may not
                return count
            changes = Changes()
            changes.logged += [row.endpoint for row in rows]
            await broker.store.commit(changes)
            count += len(lines)
            if len(rows) < BATCH:
                return count

    def count_dialogs(self) -> int | Awaitable[int]:
        """Once an hour, how many endpoints are in each state."""
        now = self._clock.monotonic()
        if self._log is None or now - self._counted < COUNT_EVERY.total_seconds():
            return 0
        self._counted = now
        return self._count_dialogs()

    async def _count_dialogs(self) -> int:
        for broker in list(self._brokers.values()):
            self._figures.dialogs(broker.name, await broker.store.count_by_state())
        return 1

    def end_day(self) -> int | Awaitable[int]:
        """When another day has begun: a line for each endpoint still open, in the old day's log."""
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
        """At an orderly stop: all there is, a line for each endpoint still open, then seal.

        No more of these lines than so many seconds are enough for; what was used last has one."""
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
        """Write that something happened to the daemon as a whole."""
        if self._log is not None:
            self._log.write_mark(what)

    async def _open_lines(self) -> AsyncIterator[list[DialogLine]]:
        """A line for each endpoint that is not closed: those in memory, then those that are not."""
        for broker in list(self._brokers.values()):
            told = set[EndpointKey]()
            keys = [live.endpoint.key for live in broker.endpoints.all()]
            for at in range(0, len(keys), PAGE):
                found = [
                    live for key in keys[at : at + PAGE] if (live := broker.endpoints.get(key))
                ]
                told.update(live.endpoint.key for live in found)
                yield [line for live in found for line in _line(broker, live, live.endpoint)]
                await self._clock.sleep_until(0)  # others have their turn
            after = None
            while page := await broker.store.conversation_endpoints(PAGE, after):
                after = page[-1].key
                yield [
                    line
                    for stored in page
                    if stored.key not in told
                    for line in _line(broker, broker.endpoints.get(stored.key), stored)
                ]


def _line(broker: Broker, live: Live | None, stored: DialogEndpoint) -> Iterator[DialogLine]:
    """The line of an endpoint that is open; what memory has of it is newer than the store."""
    endpoint = stored if live is None else live.endpoint
    if endpoint.state is not State.CLOSED:
        fields = dialog_line(live, endpoint, None)
        yield msgspec.convert({**fields, "broker": broker.name}, DialogLine)
