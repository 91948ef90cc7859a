"""Draining: lets the readers of a queue end, and ends overdue readers (PBT-25, REL-28).

Reads:  readers and their tasks.      Calls: SIGTERM to a child, the cancellation of a task.
Never:  waits longer than the grace period and `LAST_WORDS`, or keeps a queue from starting readers:
        the caller has switched the activation of the queue off.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from brokerd.activation.monitored_queue import Reader
from brokerd.clock import Clock

LAST_WORDS: Final = 1.0
"""Seconds within which a cancelled reader must end; else it counts as `left`."""


class Drained(msgspec.Struct, frozen=True):
    """Outcome of draining a queue: numbers of its readers (PBT-25)."""

    ended: int = 0
    """Readers that ended by themselves within the grace period."""
    stopped: int = 0
    """Readers ended after the grace period; their transactions are rolled back."""
    left: int = 0
    """Readers that still run: handlers in the daemon that cannot be cancelled."""

    @property
    def text(self) -> str:
        """The outcome as text."""
        left = f", {self.left} do not end" if self.left else ""
        return f"drained: readers ended {self.ended}, stopped {self.stopped}{left}"


def request_end(reader: Reader) -> None:
    """Make the receives of a reader return empty from now on; send SIGTERM to its process."""
    reader.stopped = True
    if reader.child is not None:
        reader.child.terminate()


async def drain(readers: Sequence[Reader], grace: float, clock: Clock) -> Drained:
    """Ask readers to end, wait at most `grace` seconds, then end the readers that still run."""
    for reader in readers:
        request_end(reader)
    ended = await _gone_by(readers, clock.monotonic() + grace, clock)
    overdue = [one for one in readers if one.task is not None and not one.task.done()]
    for reader in overdue:
        if reader.task is not None:
            reader.task.cancel()
    stopped = await _gone_by(overdue, clock.monotonic() + LAST_WORDS, clock) if overdue else 0
    return Drained(ended, stopped, len(overdue) - stopped)


async def _gone_by(readers: Iterable[Reader], deadline: float, clock: Clock) -> int:
    """Wait until the readers have ended, or the deadline; return the number of ended readers."""
    tasks = {one.task for one in readers if one.task is not None}
    timer = asyncio.ensure_future(clock.sleep_until(deadline))
    waiting: set[asyncio.Future[None]] = {*tasks}
    while waiting and not timer.done():
        await asyncio.wait({timer, *waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting = {one for one in waiting if not one.done()}
    timer.cancel()
    return sum(one.done() for one in tasks)
