"""Held locks: the locks of conversation groups held longest, by queue, for the metrics log (D12).

Reads:  open transactions of clients.      Calls: nothing.
Never:  touches a transaction, or runs more than once per interval of the metrics log: a lock that
        is taken and released between two runs is not seen.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from brokerd.broker.state import Group
from brokerd.broker.transaction import Transaction
from brokerd.clock import SECOND, Clock, Instant
from brokerd.ids import ClientId, show
from brokerd.telemetry.metrics import HeldLock

LEAST_S: Final = 1.0
"""Seconds from which a lock is reported; shorter ones are ordinary work."""
LISTED: Final = 3
"""Largest number of locks that are reported for each queue."""

Place = tuple[str, str]
"""Broker and queue."""


class HeldLocks:
    """Finder of the locks held longest, called once per interval."""

    def __init__(
        self,
        *,
        open_transactions: Callable[[], Iterable[tuple[ClientId, Transaction]]],
        readers: Callable[[], Mapping[str, int]],
        clock: Clock,
    ) -> None:
        """Create the finder. `readers`: returns the number of each reader, by session id."""
        self._open = open_transactions
        self._readers = readers
        self._clock = clock
        self._since: dict[tuple[str, int], Instant] = {}
        """Instant at which a transaction began to hold locks, by broker and number of the
        transaction. It is the same at each report, even if the clock is set meanwhile.
        """

    def by_queue(self) -> dict[Place, list[HeldLock]]:
        """Return the transactions that have held locks longest, each with its first group."""
        now, utc = self._clock.monotonic(), self._clock.utc()
        old = [
            (tx.locked_at, client, tx)
            for client, tx in self._open()
            if tx.locked and tx.locked_at is not None and now - tx.locked_at >= LEAST_S
        ]
        known, self._since = self._since, {}
        found: dict[Place, list[HeldLock]] = defaultdict(list)
        readers = self._readers() if old else {}
        for locked_at, client, tx in sorted(old, key=lambda one: (one[0], one[2].opened)):
            group = tx.locked[0]
            rows = found[tx.broker.name, group.queue.name]
            if len(rows) < LISTED and not group.queue.is_system:
                key = (tx.broker.name, tx.opened)
                began = Instant(utc - int((now - locked_at) * SECOND))
                since = self._since[key] = known.get(key, began)
                rows.append(_row(group, tx, readers.get(client.hex()), since))
        return found


def _row(group: Group, tx: Transaction, reader: int | None, since: Instant) -> HeldLock:
    """Return the row of a lock; it names a conversation only if the group has just one."""
    members = list(group.members.values()) if len(group.members) == 1 else []
    who = tx.owner if reader is None else f"reader {reader}, {tx.owner}"
    return HeldLock(
        group=show(group.group_id),
        conversation_id=show(members[0].endpoint.conversation_id) if members else "",
        by=f"{who}, latest verb {tx.verb}",
        since_at=since,
    )
