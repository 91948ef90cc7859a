"""Draining: lets the readers of a queue end, and ends those that do not (PBT-25, REL-28).

Reads:  readers and their tasks.      Calls: the signal of a child, the cancelling of a task.
Never:  waits beyond the grace period and `LAST_WORDS`, or keeps a queue from starting readers: the
        caller has switched its activation off.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from brokerd.activation.monitored_queue import Reader
from brokerd.clock import Clock

LAST_WORDS: Final = 1.0
"""Seconds within which a cancelled reader has to be gone; else it counts as left."""


class Drained(msgspec.Struct, frozen=True):
    """Outcome for the readers of a queue that was drained (PBT-25)."""

    ended: int = 0
    """Readers that ended by themselves within the grace period."""
    stopped: int = 0
    """Readers ended after it, their transactions rolled back."""
    left: int = 0
    """Readers that did not even end then: handlers in the daemon that cannot be cancelled."""

    @property
    def text(self) -> str:
        """The outcome in words."""
        left = f", {self.left} do not end" if self.left else ""
        return f"drained: readers ended {self.ended}, stopped {self.stopped}{left}"


def request_end(reader: Reader) -> None:
    """Let the receives of a reader come back empty from now on; send SIGTERM to its process."""
    reader.stopped = True
    if reader.child is not None:
        reader.child.terminate()


async def drain(readers: Sequence[Reader], grace: float, clock: Clock) -> Drained:
    """Ask readers to end, wait at most `grace` seconds, then end them."""
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
    """Wait for readers until the deadline; return the number that are gone."""
    tasks = {one.task for one in readers if one.task is not None}
    timer = asyncio.ensure_future(clock.sleep_until(deadline))
    waiting: set[asyncio.Future[None]] = {*tasks}
    while waiting and not timer.done():
        await asyncio.wait({timer, *waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting = {one for one in waiting if not one.done()}
    timer.cancel()
    return sum(one.done() for one in tasks)
