"""Signals: SIGTERM, SIGINT and SIGHUP, handled by the loop between two callbacks.

Reads: nothing.      Calls: the function it is given, on the loop.
Never: raises. An exception from a signal handler is raised in whichever task is running, and
then in each task that waits for that one. Each of these times it stops the loop, before the
work under way has been ended.
"""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Interruption:
    """Flag that a signal has asked the program to end."""

    is_wanted = False


@contextmanager
def on_interrupt(interrupt: Callable[[], object]) -> Iterator[Interruption]:
    """Call `interrupt` on the running loop at the first of these signals, within the block.

    Further signals do nothing; after the block they have their former effect again. A signal that
    is ignored stays ignored, as in the background of a script. Works only on the main thread.
    """
    loop, interruption = asyncio.get_running_loop(), Interruption()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if not interruption.is_wanted:
            interruption.is_wanted = True
            loop.call_soon_threadsafe(interrupt)

    found = {number: signal.getsignal(number) for number in _SIGNALS}
    before = {one: known for one, known in found.items() if known not in {None, signal.SIG_IGN}}
    try:
        for number in before:
            signal.signal(number, on_signal)
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
