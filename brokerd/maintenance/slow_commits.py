"""Slow commits: a disk that delays commits is a state, logged once, then shown (REL-34).

Reads:  how long each store's oldest changeset has waited to be durable.      Calls: the event log.
Never:  refuses or hurries commits: meanwhile, flow control makes the clients wait (design D3).
Wakes:  every tick, and at each check of the watchdog, if there is one, because a pass that waits
        for the slow store holds up the tick.
A full disk is another state, reported by `disk_space` (REL-26).
"""

from collections.abc import Callable, Mapping
from typing import Final

from brokerd.broker.broker import Broker
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import STORE

STUCK: Final = 30.0
"""Seconds of waiting after which the supervisor no longer gets a sign of life."""
HINT: Final = (
    "clients wait until the disk answers, and nothing is lost; see what else uses it, such as a "
    "backup, and whether it fails"
)


class SlowCommits:
    """The brokers of one instance whose commits take too long."""

    def __init__(
        self,
        *,
        brokers: Mapping[str, Broker],
        after: float,
        log: Log,
        waits_for_standby: Callable[[str], bool],
    ) -> None:
        """Create the watch.

        `after`: seconds that a commit may take. `waits_for_standby`: returns whether a broker's
        commit is known to wait for the standby of its server."""
        self._brokers = brokers
        self._waits_for_standby = waits_for_standby
        self._after = after
        self._log = log
        self._seen: dict[str, float] = {}
        """Wait, in seconds, of each broker whose commits took too long at the last check."""
        self._reported: set[str] = set()

    def check(self) -> int:
        """Log the brokers that have become slow or fast again; return their number.

        A broker counts as slow only at the second late check in a row, because the first check
        after the process was suspended finds every commit late."""
        before = set(self._reported)
        for name, broker in self._brokers.items():
            waited = self.late(broker)
            if waited:
                if name in self._seen and name not in self._reported:
                    self._reported.add(name)
                    self._report(name, waited)
                self._seen[name] = waited
            else:
                self._over(name)
        for name in self._seen.keys() - self._brokers.keys():
            self._over(name)
        return len(before ^ self._reported)

    def late(self, broker: Broker) -> float:
        """Return the seconds that the broker's oldest commit has waited, if too long, else 0."""
        waited = _waited(broker)
        return waited if waited > self._after else 0.0

    @property
    def is_stuck(self) -> bool:
        """Whether a commit takes so long that restarting the daemon is better.

        It is not while the commit waits for a standby: a restart would wait for it as well."""
        return any(
            _waited(broker) > STUCK and not self._waits_for_standby(name)
            for name, broker in self._brokers.items()
        )

    def _report(self, name: str, waited: float) -> None:
        self._log.warning(STORE, subclass="slow", broker=name, seconds=round(waited, 1), hint=HINT)

    def _over(self, name: str) -> None:
        waited = self._seen.pop(name, 0.0)
        if name in self._reported:
            self._reported.discard(name)
            self._log.info(STORE, subclass="quick_again", broker=name, seconds=round(waited, 1))


def _waited(broker: Broker) -> float:
    return 0.0 if broker.is_full else broker.store.oldest_unflushed_age
