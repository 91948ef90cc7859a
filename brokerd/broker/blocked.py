"""A verb that cannot go on yet: who waits, and for what.

Verbs run without an await. Where one has to wait (a lock, a page from the store, a message) it
returns `Blocked` before it has changed anything; whoever called it hands over what to do when the
reason is gone, and calls the verb again. So a thousand waiting requests cost no task, and a
request that need not wait costs nothing at all.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

Resume = Callable[[], None]


class Blocked:
    """Says what a verb waits for; `then` registers what to do next, exactly once."""

    __slots__ = ("_register", "what")

    def __init__(self, what: str, register: Callable[[Resume], None]) -> None:
        self.what = what
        self._register = register

    def then(self, resume: Resume) -> None:
        """Call `resume` once the verb should be tried again; it may be called at once."""
        self._register(resume)


T = TypeVar("T")


async def settle(verb: Callable[[], "T | Blocked"]) -> T:
    """Run a verb to its end from a coroutine, waiting as often as it has to.

    It is called again within the call that says so, not a turn of the loop later: what was looked
    for in vain is known as absent only for that long.
    """
    done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def attempt() -> None:
        if done.done():  # whoever waited has been cancelled
            return
        try:
            outcome = verb()
        except Exception as error:  # noqa: BLE001  # raised where it is waited for
            done.set_exception(error)
            return
        if isinstance(outcome, Blocked):
            outcome.then(attempt)
        else:
            done.set_result(outcome)

    attempt()
    return await done
