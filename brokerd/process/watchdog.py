"""Watchdog: detects a blocked event loop, and names the task that blocks it (ACT-20, FP-8).

Reads:  the stack of the loop's thread, from a thread of its own.
Calls:  `report_blocked` from that thread while the loop is blocked, `report_free` on the loop
        once it is free.
Never:  ends the blocking task, because a coroutine that never awaits cannot be ended from
        outside.
The watchdog counts its own checks rather than the time, because a process that was suspended or
starved has not blocked itself.
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
"""Number of innermost stack frames in a report."""
ReportBlocked = Callable[[float, str, list[str]], None]
"""Function of the seconds so far, the name of the task, and its stack from the outermost frame."""
ReportFree = Callable[[float], None]
"""Function of the seconds for which the loop was blocked."""
Turned = Callable[[], None]


class Watchdog:
    """A watchdog, as a context manager, for the event loop that runs when it is entered."""

    def __init__(
        self,
        *,
        after: float,
        report_blocked: ReportBlocked,
        report_free: ReportFree,
        turned: Turned = lambda: None,
    ) -> None:
        """Create the watchdog.

        `after`: seconds that the loop may take for one turn; a longer turn is reported, and again
        each time its length doubles. `turned`: called on the loop after each check that found the
        loop turning.
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
        """End the watch; make no further calls."""
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
