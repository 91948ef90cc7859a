"""Read cache: answers of a store that are valid until the next write; an idle store is not read.

Only one process writes a store (design D1), so an answer that was read once stays true until a
write has finished. The passes of every tick repeat the same questions, whose answers rarely change.

Reads:  the number of finished writes.      Calls: a read, if its answer is not known.
Never:  keeps an answer beyond a write, or one whose read was under way when a write finished.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


class ReadCache:
    """The answers to a few questions, each under a name."""

    def __init__(self, written: Callable[[], int]) -> None:
        """Create the cache.

        `written`: returns a number that rises with every write.
        """
        self._written = written
        self._answers: dict[str, tuple[int, Any]] = {}

    def known(self, name: str) -> tuple[Any] | None:
        """Return the answer in a tuple; None = it has to be read."""
        found = self._answers.get(name)
        return found[1:] if found is not None and found[0] == self._written() else None

    async def answer(self, name: str, read: Callable[[], Awaitable[T]]) -> T:
        """Return the answer of `read`, or its last answer if nothing was written since."""
        now = self._written()
        known = self._answers.get(name)
        if known is not None and known[0] == now:
            answer: T = known[1]
            return answer
        found = await read()
        # Stored with the number from before the read: a write that has finished meanwhile makes the
        # answer stale.
        self._answers[name] = now, found
        return found
