"""Draining: lets the readers of a queue end, and ends those that do not (PBT-25, REL-28).

Reads:  readers and their tasks.      Calls: the signal of a child, the cancelling of a task.
Never:  waits longer than it is told to, or keeps a queue from starting readers: its activation is
        switched off by then.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from brokerd.activation.monitored import Reader
from brokerd.clock import Clock

LAST_WORDS: Final = 1.0
"""Seconds in which a cancelled reader is gone, or is left."""


class Drained(msgspec.Struct, frozen=True):
    """What became of the readers of a queue that was drained (PBT-25)."""

    ended: int = 0
    """Ended by themselves within the grace period."""
    stopped: int = 0
    """Ended after it, their transactions rolled back."""
    left: int = 0
    """Not ended even so: handlers in the daemon that do not let themselves be cancelled."""

    @property
    def text(self) -> str:
        """The same in words."""
        left = f", {self.left} do not end" if self.left else ""
        return f"drained: readers ended {self.ended}, stopped {self.stopped}{left}"


def tell_to_end(reader: Reader) -> None:
    """Its receives come back empty from now on; a process gets SIGTERM as well."""
    reader.stopped = True
    if reader.child is not None:
        reader.child.terminate()


async def drain(readers: Sequence[Reader], grace: float, clock: Clock) -> Drained:
    """Tell them to end, wait at most `grace` seconds, then end them."""
    for reader in readers:
        tell_to_end(reader)
    ended = await _gone_by(readers, clock.monotonic() + grace, clock)
    overdue = [one for one in readers if one.task is not None and not one.task.done()]
    for reader in overdue:
        if reader.task is not None:
            reader.task.cancel()
    stopped = await _gone_by(overdue, clock.monotonic() + LAST_WORDS, clock) if overdue else 0
    return Drained(ended, stopped, len(overdue) - stopped)


async def _gone_by(readers: Iterable[Reader], deadline: float, clock: Clock) -> int:
    """Wait for readers; how many are gone by then."""
    tasks = {one.task for one in readers if one.task is not None}
    timer = asyncio.ensure_future(clock.sleep_until(deadline))
    waiting: set[asyncio.Future[None]] = {*tasks}
    while waiting and not timer.done():
        await asyncio.wait({timer, *waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting = {one for one in waiting if not one.done()}
    timer.cancel()
    return sum(one.done() for one in tasks)
