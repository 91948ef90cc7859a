"""Read cache: answers of a store that hold until something is written; an idle store is not read.

Only its one owner writes a store (design D1), so what was read once stays true until a write comes
back. The passes of every tick ask again and again what mostly has not changed.

Reads:  how many writes have come back.      Calls: a read, if its answer is not known.
Never:  keeps an answer over a write, or one whose read was under way when a write came back.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


class ReadCache:
    """The answers to a few questions, each under a name."""

    def __init__(self, written: Callable[[], int]) -> None:
        """`written`: returns a number that rises with every write."""
        self._written = written
        self._answers: dict[str, tuple[int, Any]] = {}

    def known(self, name: str) -> tuple[Any] | None:
        """Return the answer as a tuple of one; None if it has to be read."""
        found = self._answers.get(name)
        return found[1:] if found is not None and found[0] == self._written() else None

    async def answer(self, name: str, read: Callable[[], Awaitable[T]]) -> T:
        """Return the answer of `read`, or the last one if nothing was written since."""
        now = self._written()
        known = self._answers.get(name)
        if known is not None and known[0] == now:
            answer: T = known[1]
            return answer
        found = await read()
        # Filed under the number from before the read: a write that came back meanwhile makes it
        # stale.
        self._answers[name] = now, found
        return found
