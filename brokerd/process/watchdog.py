"""Watchdog: notices that the loop does not turn, and names what blocks it (ACT-20, FP-8).

Reads:  the stack of the loop's thread, from a thread of its own.
Calls:  `report_blocked` from that thread meanwhile, `report_free` on the loop once it is free.
Never:  ends what blocks the loop: a coroutine that never awaits cannot be ended from outside.
It counts its own checks, not the time: a process that was stopped or starved has not blocked
itself.
"""

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Final, Self

PERIOD: Final = 0.25
"""Seconds between two checks."""
FRAMES: Final = 12
"""Number of innermost frames that are named."""
ReportBlocked = Callable[[float, str, list[str]], None]
"""Takes the seconds so far, the name of the task, and its stack from the outermost frame on."""
ReportFree = Callable[[float], None]
"""Takes the seconds for which the loop was blocked."""
Turned = Callable[[], None]


class Watchdog:
    """A watchdog for the event loop that is running where the watchdog is entered."""

    def __init__(
        self,
        *,
        after: float,
        report_blocked: ReportBlocked,
        report_free: ReportFree,
        turned: Turned = lambda: None,
    ) -> None:
        """`after`: seconds that the loop may take for one turn; reported again each time it
        doubles.

        `turned` is called on the loop for each check that found it turning.
        """
        self._checks = max(1, round(after / PERIOD))
        self._report_blocked = report_blocked
        self._report_free = report_free
        self._call_turned = turned
        self._ended = threading.Event()
        self._turned = True
        self._held_up = 0

    def __enter__(self) -> Self:
        """Begin to watch the loop of this thread."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        """End the watch; no further call comes."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        missed, due = 0, self._checks
        while not self._ended.wait(PERIOD):
            if self._turned:
                missed, due = 0, self._checks
                self._turned = False
                if self._loop.is_closed():
                    return
                self._loop.call_soon_threadsafe(self._turn)
                continue
            missed += 1
            if missed >= due:
                due *= 2
                self._held_up = missed
                self._report_blocked(missed * PERIOD, self._task(), self._stack())
            elif self._held_up:
                self._held_up = missed

    def _turn(self) -> None:
        """Record, in a turn of the loop, that the loop is turning."""
        held_up, self._held_up = self._held_up, 0
        self._turned = True
        if held_up:
            self._report_free(held_up * PERIOD)
        self._call_turned()

    def _task(self) -> str:
        task = asyncio.current_task(self._loop)
        return "no task" if task is None else task.get_name()

    def _stack(self) -> list[str]:
        # the only way to read another thread's stack
        frame = sys._current_frames().get(self._loop_thread)
        if frame is None:
            return []
        found = traceback.extract_stack(frame, limit=None)[-FRAMES:]
        return [f"{one.filename}:{one.lineno} {one.name}: {one.line}" for one in found]
