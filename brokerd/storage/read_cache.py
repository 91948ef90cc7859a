"""Read cache: answers of a store that are valid until the next write; an idle store is not read.

Only one process writes a store (design D1), so an answer that was read once stays true until a
write has finished. The passes of every tick repeat the same questions, whose answers rarely change.

Reads:  the number of finished writes, a clock.      Calls: a read, if its answer is not known.
Never:  keeps an answer beyond a write, or one whose read was under way when a write finished,
        unless the question says for how long an older answer will do.
"""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class _Answer(NamedTuple):
    written: int
    """Number of finished writes when the read began."""
    value: Any
    until: float
    """Instant of the clock until which the answer will do, whatever is written."""


def _not_at_all(_answer: object) -> float:
    return 0.0


class ReadCache:
    """The answers to a few questions, each under a name."""

    def __init__(self, written: Callable[[], int], monotonic: Callable[[], float]) -> None:
        """Create the cache.

        `written`: returns a number that rises with every write. `monotonic`: a clock, in seconds.
        """
        self._written = written
        self._monotonic = monotonic
        self._answers: dict[str, _Answer] = {}

    def known(self, name: str) -> tuple[Any] | None:
        """Return the answer in a tuple; None = it has to be read."""
        found = self._answers.get(name)
        is_valid = found is not None and found.written == self._written()
        return (found.value,) if found is not None and is_valid else None

    async def answer(
        self,
        name: str,
        read: Callable[[], Awaitable[T]],
        lasts: Callable[[T], float] = _not_at_all,
    ) -> T:
        """Return the answer of `read`, or its last answer if nothing was written since.

        `lasts`: returns the seconds after a read for which its answer will do all the same."""
        now = self._written()
        known = self._answers.get(name)
        if known is not None and (
            known.written == now or (known.until and self._monotonic() < known.until)
        ):
            answer: T = known.value
            return answer
        found = await read()
        seconds = lasts(found)
        # Stored with the number from before the read: a write that has finished meanwhile makes the
        # answer stale.
        until = self._monotonic() + seconds if seconds else 0.0
        self._answers[name] = _Answer(now, found, until)
        return found
