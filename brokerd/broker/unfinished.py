"""Fragments of incomplete messages, and the limit of those kept in memory (DSP-15).

Reads:  its arguments.      Calls: nothing.
Never:  drops anything that is not stored: its fragments are durable, or in the flush under way.

The fragments of a message are stored as they come, and acknowledged, so a peer may leave any
number of messages incomplete for as long as it likes. Memory keeps them, to join them when the
last one comes. Beyond a limit, the fragments of the messages that grew longest ago are kept only
in the store.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from brokerd.broker.state import Live
from brokerd.ids import BodyKey

COST: Final = 64
"""Bytes of memory that a fragment costs in addition to its body."""


class Unfinished:
    """The fragments of one broker's incomplete messages."""

    __slots__ = ("_held", "_limit", "_sizes", "size")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sizes: OrderedDict[Live, int] = OrderedDict()
        self._held: dict[Live, None] = {}
        self.size = 0
        """Bytes of memory that all fragments use."""

    def add(self, live: Live, body: bytes) -> None:
        """Note one more stored fragment of this dialog's message; evict others to make room."""
        live.parts_size += len(body)
        if live.parts_stored:
            live.parts_stored += 1
            return
        live.parts.append(body)
        self._grow(live, len(body) + COST)

    def open(self, live: Live, key: BodyKey) -> None:
        """Note the key under which the fragments of a new message are stored."""
        live.body_key = key

    def recovered(self, live: Live, key: BodyKey | None, fragments: int, size: int) -> None:
        """Note the fragments of a message that were stored before the start; none is in memory."""
        live.body_key = key
        live.parts_stored, live.parts_size = fragments, size

    def close(self, live: Live) -> BodyKey | None:
        """Drop the fragments of a message from memory, and return the key of their stored body.

        That body is deleted, or has become the body of its message. None: the fragments were not
        read since the start."""
        self.remove(live)
        key, live.body_key = live.body_key, None
        return key

    def have(self, live: Live, bodies: list[bytes]) -> None:
        """Add the stored fragments of a message, read because its last one has arrived.

        They stay in memory until the message is complete, or until `release`."""
        self._held[live] = None
        live.parts_stored = 0
        live.parts.extend(bodies)
        self._grow(live, sum(map(len, bodies)) + COST * len(bodies))

    @property
    def is_crowded(self) -> bool:
        """Whether the fragments of messages that are about to be complete use up the limit."""
        return sum(self._sizes.get(live, 0) for live in self._held) >= self._limit

    def release(self, live: Live) -> None:
        """Allow the fragments of a message to be evicted: its last one is no longer in memory."""
        self._held.pop(live, None)

    def remove(self, live: Live) -> None:
        """Drop the fragments of a message that is complete, or not wanted."""
        self._held.pop(live, None)
        self.size -= self._sizes.pop(live, 0)
        live.parts.clear()
        live.parts_size = live.parts_stored = 0

    def _grow(self, live: Live, size: int) -> None:
        self.size += size
        self._sizes[live] = self._sizes.get(live, 0) + size
        self._sizes.move_to_end(live)
        if self.size > self._limit:
            self._leave_to_the_store(live)

    def _leave_to_the_store(self, newest: Live) -> None:
        for live in list(self._sizes):
            if self.size <= self._limit:
                return
            if live is not newest and live not in self._held:
                self.size -= self._sizes.pop(live)
                live.parts_stored = len(live.parts)
                live.parts.clear()
