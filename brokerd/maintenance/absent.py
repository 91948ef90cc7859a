"""Absent brokers: whose file cannot be opened, each with why, tried again until it works (CLK-6).

Reads:  what opening a broker raises.      Calls: what opens a broker and makes it known.
Never:  makes a file: where a backup is about to be put, an empty store must not be found.
Wakes:  every fifth tick, beside the other passes: opening may take long.
Fails:  a broker stays out alone; the log hears of each reason once.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from brokerd.broker.broker import Broker
from brokerd.errors import BrokerError, StoreDamaged
from brokerd.logs import STORE


class Log(Protocol):
    """Where events go."""

    def info(self, event: str, **fields: object) -> object:
        """Something an operator may want to know."""
        ...

    def error(self, event: str, **fields: object) -> object:
        """Something has failed."""
        ...


class Absent:
    """The brokers of this instance that do not serve."""

    def __init__(
        self,
        *,
        open_broker: Callable[[str], Awaitable[Broker]],
        opened: Callable[[Broker], None],
        log: Log,
    ) -> None:
        self._open_broker = open_broker
        self._opened = opened
        self._log = log
        self.reasons: dict[str, BrokerError] = {}
        """Name to why; sessions, routing and views look here."""

    @contextmanager
    def keeping_out(self, name: str) -> Iterator[None]:
        """What fails inside keeps this broker out, and nothing else."""
        try:
            yield
        except BrokerError as error:
            known = self.reasons.get(name)
            self.reasons[name] = error
            if known is None or known.message != error.message:
                self._log.error(
                    STORE, subclass="refused", broker=name, reason=error.message, hint=error.hint
                )
        except Exception as error:  # a file may hold what no program wrote
            with self.keeping_out(name):
                raise StoreDamaged(
                    f"what is in the store of broker {name} cannot be used: "
                    f"{type(error).__name__}: {error}"
                ) from error

    async def try_again(self) -> int:
        """Bring in those that can be opened now; how many."""
        before = sorted(self.reasons)
        for name in before:
            with self.keeping_out(name):
                broker = await self._open_broker(name)
                del self.reasons[name]
                self._opened(broker)
                self._log.info(STORE, subclass="opened", broker=name)
        return len(before) - len(self.reasons)
