"""What daemons count and use while something is measured: looked at when counting begins and ends.

Reads: the counters of daemons, their processor time.      Calls: daemons, on a session of its own.
Never: has in it what comes before the counted time (dialogs that are begun, the warm-up) or after.
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
    """What each daemon has at the moments at which it is told to look."""

    def __init__(self, daemons: Sequence[Daemon], sessions: Sequence[Session]) -> None:
        self._daemons = daemons
        self._sessions = sessions
        self._looks: list[list[Look]] = []

    async def look(self) -> None:
        """At all of them, now. Sessions are open already: who has to connect comes late."""
        pairs = zip(self._daemons, self._sessions, strict=True)
        self._looks.append(await asyncio.gather(*(_look(*one) for one in pairs)))

    def counted(self) -> dict[str, dict[str, int]]:
        """What the counters of each have grown by, from the first look to the last."""
        return {
            one.name: {
                key: value - before.counters.get(key, 0)
                for key, value in after.counters.items()
                if key != "peak_memory"
            }
            for one, before, after in self._ends()
        }

    def processor_us(self, messages: int) -> dict[str, float]:
        """Processor time of each, from the first look to the last, for one message of so many."""
        return {
            one.name: round(
                (after.processor_seconds - before.processor_seconds) / max(1, messages) * 1e6, 1
            )
            for one, before, after in self._ends()
        }

    @property
    def peak_memory(self) -> int:
        """Bytes: the most that one of them has had since its start."""
        return max(one.counters["peak_memory"] for one in self._looks[-1])

    def _ends(self) -> list[tuple[Daemon, Look, Look]]:
        return list(zip(self._daemons, self._looks[0], self._looks[-1], strict=True))


@asynccontextmanager
async def watching(*daemons: Daemon) -> AsyncIterator[Watch]:
    """A watch of daemons that run; what it has seen can be asked for afterwards, too."""
    async with AsyncExitStack() as stack:
        connecting = (connect(one.address, broker="main") for one in daemons)
        sessions = [await stack.enter_async_context(await one) for one in connecting]
        yield Watch(daemons, sessions)


async def _look(daemon: Daemon, session: Session) -> Look:
    counters = await counters_of(session)
    return Look(counters, daemon.processor_seconds)
