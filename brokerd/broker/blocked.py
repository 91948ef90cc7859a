"""A verb that cannot continue yet, and the reason for its wait.

Verbs run without an await. If one has to wait (for a lock, a page from the store, a message), it
returns `Blocked` before it has changed anything. The caller registers a function to call when the
reason is gone, which calls the verb again. So a thousand waiting requests need no tasks, and a
request that need not wait costs nothing extra.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

Resume = Callable[[], None]


class Blocked:
    """The wait of a verb; `then` registers how to continue, exactly once."""

    __slots__ = ("_register", "what")

    def __init__(self, what: str, register: Callable[[Resume], None]) -> None:
        self.what = what
        self._register = register

    def then(self, resume: Resume) -> None:
        """Call `resume` once the verb should be tried again; that may be during this call."""
        self._register(resume)


T = TypeVar("T")


async def settle(verb: Callable[[], "T | Blocked"]) -> T:
    """Run a verb to its end from a coroutine, waiting as often as it has to.

    The verb is called again within the call of `resume`, not in a later turn of the loop, because
    an object that was not found is known to be absent only during that call."""
    done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def attempt() -> None:
        if done.done():  # the awaiting task was cancelled
            return
        try:
            outcome = verb()
        except Exception as error:  # noqa: BLE001  # raised by the await below
            done.set_exception(error)
            return
        if isinstance(outcome, Blocked):
            outcome.then(attempt)
        else:
            done.set_result(outcome)

    attempt()
    return await done
