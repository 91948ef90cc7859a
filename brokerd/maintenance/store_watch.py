"""Store watch: detects that the files of an open store were moved or replaced (FD-9).

Reads:  the files at the path of each broker, and the position up to which its log was confirmed.
Calls:  `failed`, which ends the instance.
Never:  searches for a moved file, or continues with a file that has replaced it.
Wakes:  every tick.
"""

from collections.abc import Callable, Mapping

from brokerd.broker.broker import Broker
from brokerd.errors import StoreFault


class StoreWatch:
    """The watch over the store files of one instance.

    `failed`: called with the fault of each store whose files were moved."""

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
        """Make the confirmed position of each log durable; return the number of grown logs.

        A power cut then hides only changes confirmed since the last tick (REL-39)."""
        behind = [one.store for one in self._brokers.values() if not one.store.is_head_synced]
        for store in behind:
            await store.sync_head()
        return len(behind)
