"""Looking for endpoints that are not in memory: all that are asked for meanwhile in one read.

Reads: the store (through the function it is given).      Calls: whoever asked.
Never: has two reads under way: what is asked for during one waits for the next, which costs
hardly more for a hundred than for one.
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
"""Brings those into memory that exist, pinned once each."""


class LookUps:
    """Who waits for which endpoint."""

    __slots__ = ("_absent", "_asked", "_hold", "_is_reading", "_spawn", "_waiting")

    def __init__(self, *, hold: Hold, spawn: Spawn) -> None:
        self._hold = hold
        self._spawn = spawn
        self._waiting: dict[Key, list[Resume]] = {}
        self._asked: list[Key] = []
        self._is_reading = False
        self._absent: Key | None = None

    def is_absent(self, key: Key) -> bool:
        """Whether it was looked for in vain just now, for whoever goes on now."""
        if self._absent != key:
            return False
        self._absent = None
        return True

    def ask(self, key: Key, resume: Resume) -> None:
        """Look for one; whoever asked goes on in the order of asking, before anyone else."""
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
            self._absent = key  # looked at only where nothing was found
            resume()
        self._absent = None
