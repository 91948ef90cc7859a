"""Counters and processor time of daemons during a measurement, read at its beginning and end.

Reads: the counters of daemons, their processor time.      Calls: daemons, on a session of its own.
Never: includes what comes before the counted time (dialogs that are begun, the warm-up) or after.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from brokerd.bench.daemons import Daemon, counters_of
from brokerd.client.session import Session, connect


class Look(msgspec.Struct, frozen=True):
    """One daemon at one moment."""

    counters: dict[str, int]
    processor_seconds: float


class Watch:
    """The figures of all daemons at the moments of `look`."""

    def __init__(self, daemons: Sequence[Daemon], sessions: Sequence[Session]) -> None:
        self._daemons = daemons
        self._sessions = sessions
        self._looks: list[list[Look]] = []

    async def look(self) -> None:
        """Read the figures of all daemons now.

        The sessions are open already: to connect first would delay the reading.
        """
        pairs = zip(self._daemons, self._sessions, strict=True)
        self._looks.append(await asyncio.gather(*(_look(*one) for one in pairs)))

    def counted(self) -> dict[str, dict[str, int]]:
        """Return by how much each daemon's counters have grown, from the first look to the last."""
        return {
            one.name: {
                key: value - before.counters.get(key, 0)
                for key, value in after.counters.items()
                if key != "peak_memory"
            }
            for one, before, after in self._ends()
        }

    def processor_us(self, messages: int) -> dict[str, float]:
        """Return each daemon's processor time per message, from the first look to the last."""
        return {
            one.name: round(
                (after.processor_seconds - before.processor_seconds) / max(1, messages) * 1e6, 1
            )
            for one, before, after in self._ends()
        }

    @property
    def peak_memory(self) -> int:
        """The most bytes of memory that one of the daemons has had since its start."""
        return max(one.counters["peak_memory"] for one in self._looks[-1])

    def _ends(self) -> list[tuple[Daemon, Look, Look]]:
        return list(zip(self._daemons, self._looks[0], self._looks[-1], strict=True))


@asynccontextmanager
async def watching(*daemons: Daemon) -> AsyncIterator[Watch]:
    """Yield a watch of running daemons; its figures can be read after the block, too."""
    async with AsyncExitStack() as stack:
        connecting = (connect(one.address, broker="main") for one in daemons)
        sessions = [await stack.enter_async_context(await one) for one in connecting]
        yield Watch(daemons, sessions)


async def _look(daemon: Daemon, session: Session) -> Look:
    counters = await counters_of(session)
    return Look(counters, daemon.processor_seconds)
