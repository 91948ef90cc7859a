"""What goes to the metrics log: the figures of an interval, a line for each dialog (D12, D16).

Reads: figures, the stores' closing lines.      Calls: metrics_log.
Never: forgets a closing line before it is on the disk: it is written at least once, whatever
crashes, and readers count it once.
"""

from collections.abc import Callable, Mapping

import msgspec
import orjson

from brokerd.broker.broker import Broker
from brokerd.broker.rounds import dialog_line
from brokerd.metrics import DialogLine, Row
from brokerd.metrics_log import MetricsLog
from brokerd.protocol.transitions import State
from brokerd.storage.changes import Changes

BATCH = 5000


class Journal:
    """Writes the metrics log of one instance; without a log it does nothing."""

    def __init__(
        self,
        *,
        log: MetricsLog | None,
        brokers: Mapping[str, Broker],
        rows: Callable[[], list[Row]],
    ) -> None:
        self._log = log
        self._brokers = brokers
        self._rows = rows

    def write_interval(self) -> int:
        """Write what happened since the last call."""
        if self._log is None:
            return 0
        rows = self._rows()
        self._log.write_interval(rows)
        return len(rows)

    async def write_closed(self) -> int:
        """Write closing lines that are durable in the stores, then let the stores forget them."""
        log, count = self._log, 0
        if log is None:
            return 0
        for broker in self._brokers.values():
            lines = await broker.store.dialog_log(BATCH)
            if not lines:
                continue
            log.write_dialogs([_line(broker.name, orjson.loads(row.line)) for row in lines])
            if log.flush(sync=True):
                changes = Changes()
                changes.logged += [row.endpoint for row in lines]
                await broker.store.commit(changes)
                count += len(lines)
        return count

    async def finish(self) -> None:
        """At an orderly stop: all there is, a line for each endpoint still open, then seal."""
        if self._log is None:
            return
        while await self.write_closed():
            pass
        self.write_interval()
        for broker in self._brokers.values():
            self._log.write_dialogs(
                [
                    _line(broker.name, dialog_line(live, live.endpoint, None))
                    for live in broker.endpoints.all()
                    if live.endpoint.state is not State.CLOSED
                ]
            )
        self.mark("stopped")
        self._log.seal()

    def mark(self, what: str) -> None:
        """Write that something happened to the daemon as a whole."""
        if self._log is not None:
            self._log.write_mark(what)


def _line(broker: str, fields: dict[str, object]) -> DialogLine:
    return msgspec.convert({**fields, "broker": broker}, DialogLine)
