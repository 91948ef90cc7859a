"""Moved: notices that the file of an open store is not where it was (FD-9).

Reads:  which file is at the path of each broker.      Calls: `failed`, which ends the instance.
Never:  looks for the file that was moved, or goes on with the one that is there instead.
Wakes:  every tick.
"""

from collections.abc import Callable, Mapping

from brokerd.broker.broker import Broker
from brokerd.errors import BAD_FILE, StoreFault


class Moved:
    """Watches the files of one instance."""

    def __init__(
        self, *, brokers: Mapping[str, Broker], failed: Callable[[StoreFault], None]
    ) -> None:
        self._brokers = brokers
        self._failed = failed

    def look(self) -> int:
        """The pass; how many were moved."""
        moved = [one for one in self._brokers.values() if one.store.is_moved()]
        for broker in moved:
            self._failed(
                StoreFault(
                    f"the file of broker {broker.name} is not at {broker.store.path} any more: it "
                    "was moved, replaced or removed while it was open",
                    hint="what was committed since is in the file that was there: put that one "
                    "back before anything is started on another",
                    exit_status=BAD_FILE,
                )
            )
        return len(moved)
