"""Absent brokers: brokers whose file cannot be opened, with the reason; retried (CLK-6).

Reads:  the errors of opening a broker.      Calls: `open_broker`, and `opened` after a success.
Never:  creates a file: an operator who restores a backup must not find an empty store in its place.
Wakes:  every fifth tick, apart from the other passes, because opening may take long.
Fails:  an absent broker does not affect the others; each reason is logged once.
"""

from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

from brokerd.broker.broker import Broker
from brokerd.errors import BrokerError, Busy, StoreDamaged, StoreLocked
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import STORE

_MIRROR: Final = "this instance is the mirror of that broker: connect to its partner"


class AbsentBrokers:
    """The brokers of this instance whose store could not be opened, with the reason for each."""

    def __init__(
        self,
        *,
        open_broker: Callable[[str], Awaitable[Broker]],
        opened: Callable[[Broker], None],
        log: Log,
        mirrored: frozenset[str] = frozenset(),
    ) -> None:
        """Create the list.

        `open_broker`: opens the named broker. `opened`: called with each broker that was opened.
        `mirrored`: brokers whose partner may have the store open, which is not a failure
        (RTE-55)."""
        self._mirrored = mirrored
        self._trying: set[str] = set()
        self._open_broker = open_broker
        self._opened = opened
        self._log = log
        self.reasons: dict[str, BrokerError] = {}
        """Reasons by name of the broker; sessions, routing and views read them."""

    @contextmanager
    def recording_failure(self, name: str) -> Iterator[None]:
        """Record an error of the block as the reason why this broker is absent; do not raise it."""
        try:
            yield
        except BrokerError as error:
            is_mirror = name in self._mirrored and isinstance(error, StoreLocked)
            if is_mirror:
                error = StoreLocked(error.message, hint=_MIRROR)
            known = self.reasons.get(name)
            self.reasons[name] = error
            if known is None or known.message != error.message:
                write = self._log.info if is_mirror else self._log.error
                subclass = "mirror" if is_mirror else "refused"
                write(STORE, subclass=subclass, broker=name, reason=error.message, hint=error.hint)
        except Exception as error:  # a damaged file may raise anything
            with self.recording_failure(name):
                raise StoreDamaged(
                    f"what is in the store of broker {name} cannot be used: "
                    f"{type(error).__name__}: {error}"
                ) from error

    @contextmanager
    def removing(self, name: str) -> Iterator[None]:
        """Keep a broker from being opened during the block; drop its reason if the block succeeds.

        Raises `Busy` if the broker is being opened at this moment."""
        if name in self._trying:
            raise Busy(f"broker {name} is being opened just now", hint="see: brokerd broker ls")
        self._trying.add(name)
        try:
            yield
            self.reasons.pop(name, None)
        finally:
            self._trying.discard(name)

    async def retry(self, names: Collection[str] | None = None) -> int:
        """Open the absent brokers (or the named ones) that can be opened; return their number."""
        opened = 0
        for name in sorted(self.reasons if names is None else names):
            if name in self._trying:
                continue
            self._trying.add(name)
            try:
                with self.recording_failure(name):
                    broker = await self._open_broker(name)
                    self.reasons.pop(name, None)
                    self._opened(broker)
                    self._log.info(STORE, subclass="opened", broker=name)
                    opened += 1
            finally:
                self._trying.discard(name)
        return opened
