"""Unsettled endpoints: closed targets that ask whether message 0 is settled (DLP-57, PBT-5).

Once message 0 is settled, the endpoints can be purged.

Reads: the store, by index.      Calls: `ask`, which sends the question.
Never: waits for an answer, or writes: the answer arrives as any acknowledgement does.
Wakes: every tick. The time of the next question is only in memory.
"""

from collections.abc import Callable

from brokerd.broker.broker import Broker
from brokerd.clock import Clock
from brokerd.ids import EndpointKey
from brokerd.protocol.backoff import retransmit_delay
from brokerd.protocol.endpoint import DialogEndpoint

BATCH = 1000
MOST = 10_000
"""Number of a broker's endpoints that ask at a time; others ask once these are removed."""


class UnsettledEndpoints:
    """Sender of the questions of closed target endpoints, on the schedule of retransmissions,
    rounded up to the next tick (DLP-26)."""

    def __init__(self, *, ask: Callable[[Broker, DialogEndpoint], None], clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._asked: dict[str, dict[EndpointKey, tuple[int, float]]] = {}

    def nothing_due(self, broker: Broker) -> bool:
        """Return whether memory shows that no endpoint has a question to send."""
        return broker.store.endpoints.is_settled and not self._asked.get(broker.name)

    async def run(self, broker: Broker) -> int:
        """Send the questions of all due endpoints; return their number."""
        before = self._asked.get(broker.name, {})
        waiting: dict[EndpointKey, tuple[int, float]] = {}
        count, after = 0, EndpointKey(-1)
        while len(waiting) < MOST:
            found = await broker.store.endpoints.unsettled(after, BATCH)
            now = self._clock.monotonic()
            for endpoint in found:
                attempts, due = before.get(endpoint.key, (0, now + _delay(0)))
                if now >= due:
                    self._ask(broker, endpoint)
                    count += 1
                    attempts, due = attempts + 1, now + _delay(attempts + 1)
                waiting[endpoint.key] = attempts, due
            if len(found) < BATCH:
                break
            after = found[-1].key
        self._asked[broker.name] = waiting
        return count


def _delay(attempts: int) -> float:
    return retransmit_delay(attempts).total_seconds()
