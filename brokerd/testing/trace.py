"""Trace: what a simulated run did, as a list and as one hash (HK-1).

Two runs of one seed must have equal digests, whatever PYTHONHASHSEED and memory addresses are.
Reads:  a clock function.
Never:  keeps more than the newest entries; the digest covers all of them.
"""

from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import NamedTuple

_TOGETHER = 512
"""Steps that are hashed at once."""


class Step(NamedTuple):
    """One thing that happened: virtual seconds, where, what."""

    time: float
    node: str
    what: str


class Trace:
    """A running hash over (time, node, what), with the newest entries for reports."""

    def __init__(self, time: Callable[[], float], *, keep: int = 1000) -> None:
        self._time = time
        self._hash = blake2b(digest_size=16)
        self._count = 0
        self._unhashed: list[str] = []
        self.newest: deque[Step] = deque(maxlen=keep)

    def __len__(self) -> int:
        return self._count

    def note(self, node: str, what: str) -> None:
        """Add one step at the present time; `what` holds no addresses and no drawn names."""
        now = self._time()
        self._count += 1
        self.newest.append(Step(now, node, what))
        self._unhashed.append(f"{now!r}\0{node}\0{what}\n")
        if len(self._unhashed) == _TOGETHER:
            self._catch_up()

    def digest(self) -> str:
        """Return the hash of everything noted so far."""
        self._catch_up()
        return self._hash.hexdigest()

    def show(self, last: int = 50) -> str:
        """Return the newest steps as text, one a line."""
        steps = list(self.newest)[-last:]
        return "\n".join(f"{step.time:14.6f} {step.node:10} {step.what}" for step in steps)

    def _catch_up(self) -> None:
        self._hash.update("".join(self._unhashed).encode())
        self._unhashed.clear()
