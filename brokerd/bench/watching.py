"""Counters and processor time of daemons during a measurement, read at its beginning and end.

Reads: the counters of daemons, their processor time.      Calls: daemons, on a session of its own.
Never: includes work before the counted time (beginning dialogs, the warm-up) or after it.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from brokerd.bench.daemons import Daemon, counters_of
from brokerd.client.session import Session, connect


class Figures(msgspec.Struct, frozen=True):
    """One daemon at one moment."""

    counters: dict[str, int]
    processor_seconds: float


class Watch:
    """The figures of all daemons at the moments of `sample`."""

    def __init__(self, daemons: Sequence[Daemon], sessions: Sequence[Session]) -> None:
        self._daemons = daemons
        self._sessions = sessions
        self._samples: list[list[Figures]] = []

    async def sample(self) -> None:
        """Read the figures of all daemons now.

        The sessions are open already, because connecting first would delay the reading.
        """
        pairs = zip(self._daemons, self._sessions, strict=True)
        self._samples.append(await asyncio.gather(*(_read_figures(*one) for one in pairs)))

    def counted(self) -> dict[str, dict[str, int]]:
        """Return the growth of each daemon's counters from the first sample to the last."""
        return {
            one.name: {
                key: value - before.counters.get(key, 0)
                for key, value in after.counters.items()
                if key != "peak_memory"
            }
            for one, before, after in self._ends()
        }

    def processor_us(self, messages: int) -> dict[str, float]:
        """Return each daemon's processor time per message, from the first sample to the last."""
        return {
            one.name: round(
                (after.processor_seconds - before.processor_seconds) / max(1, messages) * 1e6, 1
            )
            for one, before, after in self._ends()
        }

    @property
    def peak_memory(self) -> int:
        """Peak memory, in bytes, of any of the daemons since its start."""
        return max(one.counters["peak_memory"] for one in self._samples[-1])

    def _ends(self) -> list[tuple[Daemon, Figures, Figures]]:
        return list(zip(self._daemons, self._samples[0], self._samples[-1], strict=True))


@asynccontextmanager
async def watching(*daemons: Daemon) -> AsyncIterator[Watch]:
    """Yield a watch of running daemons; its figures can be read after the block, too."""
    async with AsyncExitStack() as stack:
        connecting = (connect(one.address, broker="main") for one in daemons)
        sessions = [await stack.enter_async_context(await one) for one in connecting]
        yield Watch(daemons, sessions)


async def _read_figures(daemon: Daemon, session: Session) -> Figures:
    counters = await counters_of(session)
    return Figures(counters, daemon.processor_seconds)
