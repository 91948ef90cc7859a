"""Look-ups of endpoints that are not in memory: all requested meanwhile go into one read.

Reads: the store (through the function it is given).      Calls: the requesters.
Never: has two reads under way: a request during one waits for the next, which costs hardly more
for a hundred endpoints than for one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from brokerd.broker.blocked import Resume
from brokerd.ids import ConversationId, Handle

if TYPE_CHECKING:
    from brokerd.broker.endpoints import Live, Spawn

Key = Handle | tuple[ConversationId, bool]
"""A handle, or one side of a conversation."""
Hold = Callable[[Sequence[Key]], Awaitable["list[Live]"]]
"""Loads the endpoints that exist, and pins each once."""


class LookUps:
    """The pending look-ups, with their waiters."""

    __slots__ = ("_absent", "_asked", "_hold", "_is_reading", "_spawn", "_waiting")

    def __init__(self, *, hold: Hold, spawn: Spawn) -> None:
        self._hold = hold
        self._spawn = spawn
        self._waiting: dict[Key, list[Resume]] = {}
        self._asked: list[Key] = []
        self._is_reading = False
        self._absent: Key | None = None

    def is_absent(self, key: Key) -> bool:
        """Return whether this key was looked up in vain just now, for the waiter being resumed."""
        if self._absent != key:
            return False
        self._absent = None
        return True

    def ask(self, key: Key, resume: Resume) -> None:
        """Look an endpoint up; waiters are resumed in the order of requests, before any other."""
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.append(resume)
            return
        self._waiting[key] = [resume]
        self._asked.append(key)
        if not self._is_reading:
            self._is_reading = True
            self._spawn(self._read())

    async def _read(self) -> None:
        try:
            while self._asked:
                keys, self._asked = self._asked, []
                held = await self._hold(keys)
                for key in keys:
                    self._tell(key)
                for live in held:
                    live.pins -= 1
        finally:
            self._is_reading = False

    def _tell(self, key: Key) -> None:
        for resume in self._waiting.pop(key):
            self._absent = key  # read only if the endpoint was not found
            resume()
        self._absent = None
