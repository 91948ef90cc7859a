"""Reads of the store that must not fail: they are repeated until the store answers.

Reads:  the store.      Calls: the function it is given, again if the store was too slow to answer.
Never:  gives up. A read that is cut short (`Busy`) suits callers that can ask again later; here a
waiter would never be called back, or a supervised task would end, and the daemon with it.
"""

from collections.abc import Awaitable, Callable, Coroutine
from typing import ParamSpec, TypeVar

from brokerd.errors import Busy

Spawn = Callable[[Coroutine[object, object, None]], object]
"""Starts a supervised task (design, The code: only the daemon creates them)."""

P = ParamSpec("P")
T = TypeVar("T")


async def read_until_answered(
    read: Callable[P, Awaitable[T]], *args: P.args, **given: P.kwargs
) -> T:
    """Return the result of a read, however long that takes."""
    while True:
        try:
            return await read(*args, **given)
        except Busy:
            continue
