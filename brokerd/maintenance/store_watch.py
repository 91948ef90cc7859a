"""Store watch: notices that the files of an open store were moved or replaced (FD-9).

Reads:  the files at the path of each broker, and how far its log was confirmed.
Calls:  `failed`, which ends the instance.
Never:  looks for the file that was moved, or goes on with one that has taken its place.
Wakes:  every tick.
"""

from collections.abc import Callable, Mapping

from brokerd.broker.broker import Broker
from brokerd.errors import StoreFault


class StoreWatch:
    """Watches the files of one instance."""

    def __init__(
        self, *, brokers: Mapping[str, Broker], failed: Callable[[StoreFault], None]
    ) -> None:
        self._brokers = brokers
        self._failed = failed

    def check(self) -> int:
        """Run the pass; return the number of stores whose files were moved."""
        faults = [fault for one in self._brokers.values() if (fault := one.store.moved())]
        for fault in faults:
            self._failed(fault)
        return len(faults)

    async def sync_heads(self) -> int:
        """Make durable how far each log was confirmed; return the number of logs that had grown.

        A power cut then hides no more than was confirmed since the last tick (REL-39)."""
        behind = [one.store for one in self._brokers.values() if not one.store.is_head_synced]
        for store in behind:
            await store.sync_head()
        return len(behind)
