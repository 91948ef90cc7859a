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
    """Run a verb to its end from a coroutine, waiting as often as it has to."""
    loop = asyncio.get_running_loop()
    while True:
        outcome = verb()
        if not isinstance(outcome, Blocked):
            return outcome
        waiting: asyncio.Future[None] = loop.create_future()

        def resume(future: asyncio.Future[None] = waiting) -> None:
            if not future.done():
                future.set_result(None)

        outcome.then(resume)
        await waiting
