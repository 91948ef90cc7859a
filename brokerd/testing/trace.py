"""Trace: the steps of a simulated run, as a list and as one hash (HK-1).

Two runs with one seed must have equal digests, for any PYTHONHASHSEED and any memory addresses.
Reads:  a function that returns the time.
Never:  keeps more than the newest steps; the digest covers every step.
"""

from array import array
from collections import deque
from collections.abc import Callable
from hashlib import blake2b

_TOGETHER = 512
"""Number of steps that are hashed in one call."""

Step = tuple[float, str, str]
"""One step: virtual seconds, the node, and the text."""


class Trace:
    """A running hash over (time, node, text), with the newest steps for reports."""

    def __init__(self, time: Callable[[], float], *, keep: int = 1000) -> None:
        self._time = time
        self._hash = blake2b(digest_size=16)
        self._count = 0
        self._times = array("d")
        self._texts: list[str] = []
        self._newest: deque[Step] = deque(maxlen=keep)

    def __len__(self) -> int:
        return self._count + len(self._times)

    def note(self, node: str, what: str) -> None:
        """Add one step at the current time; `what` must not contain addresses or drawn names."""
        now = self._time()
        self._newest.append((now, node, what))
        self._times.append(now)
        self._texts += (node, what)
        if len(self._times) == _TOGETHER:
            self._catch_up()

    def digest(self) -> str:
        """Return the hash of all steps so far; earlier calls do not change it."""
        return self._caught_up().hexdigest()

    def show(self, last: int = 50) -> str:
        """Return the newest steps as text, one per line; `last`: the number of steps."""
        steps = list(self._newest)[-last:]
        return "\n".join(f"{time:14.6f} {node:10} {what}" for time, node, what in steps)

    def _catch_up(self) -> None:
        self._hash = self._caught_up()
        self._count += len(self._times)
        self._times = array("d")
        self._texts.clear()

    def _caught_up(self) -> "blake2b":
        whole = self._hash.copy()
        whole.update(self._times.tobytes())
        whole.update("\0".join(self._texts).encode())
        return whole
