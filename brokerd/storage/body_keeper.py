"""Body keeper: stores large bodies in pieces ahead of their messages, and sweeps disowned ones.

Reads:  nothing.      Calls: the commit pipeline, for one piece per flush.
Never:  reports a body as stored before all its pieces are synced (REL-1), or stores two bodies at
        once: each would take longer, and every flush would have a piece of both.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from brokerd.ids import BodyKey
from brokerd.storage.changes import BodyRow, Changes, Owner, PieceRow
from brokerd.storage.rows import bodies
from brokerd.storage.rows.bodies import Swept
from brokerd.storage.writers import Job, Reported

_SLOW: Final = 0.1
"""Seconds above which a flush is slow: its time then hardly depends on its content (FD-7)."""
_MOST_TOGETHER: Final = 16
"""Most pieces in one flush while flushes are slow."""


class BodyKeeper:
    """The bodies in pieces: they are stored and swept between two flushes."""

    def __init__(
        self,
        *,
        now: Callable[[], float],
        commit: Callable[[Changes], Awaitable[None]],
        drop: Callable[[Changes], None],
        submit: Callable[[Job[Swept], Reported[Swept]], None],
        joined: Callable[[], bool],
        some: bool,
        next_key: BodyKey,
    ) -> None:
        """Create the keeper.

        `drop`: joins changes that disown bodies. `submit`: passes a step of the sweep to the
        writer. Neither does anything if the store is closed. `joined`: returns whether a flush
        that is not durable has a body.
        """
        self._now = now
        self._commit = commit
        self._drop = drop
        self._submit = submit
        self._joined = joined
        self._next = next_key
        self._turn = asyncio.Lock()
        self._keeping = 0
        self._sweeping = self._left = False
        self.some = some
        """Whether any body may be in pieces, so that flushes have to look up owners."""
        self.waiting_bytes = 0
        """Bytes of bodies that wait until earlier bodies are stored."""

    def next_key(self) -> BodyKey:
        """Return a key for an arriving body."""
        key = self._next
        self._next = BodyKey(key + 1)
        return key

    async def keep(self, body: bytes, piece_size: int) -> BodyKey:
        """Store a body in pieces, ahead of its message; return its key once all are synced.

        The body has no owner until a changeset names one; `discard` gives it up.
        """
        key, size = self.next_key(), len(body)
        self.some = True
        self._keeping += 1
        self.waiting_bytes += size
        waiting = size
        try:
            async with self._turn:
                self.waiting_bytes -= size
                waiting = 0
                await self._keep(key, body, piece_size)
        except BaseException:
            self.discard([key])
            raise
        finally:
            self.waiting_bytes -= waiting
            self._keeping -= 1
        return key

    async def _keep(self, key: BodyKey, body: bytes, piece_size: int) -> None:
        """Store one piece per flush, along with other changes; more while flushes are slow."""
        size, number, together = len(body), 0, 1
        while number * piece_size < size:
            changes = Changes()
            if not number:
                changes.bodies[key] = BodyRow(key, Owner.ASIDE, key, size)
            for at in range(number * piece_size, size, piece_size)[:together]:
                changes.pieces.append(PieceRow(key, number, body[at : at + piece_size]))
                number += 1
            began = self._now()
            await self._commit(changes)
            is_slow = self._now() - began > _SLOW
            together = min(2 * together, _MOST_TOGETHER) if is_slow else 1

    def discard(self, keys: Sequence[BodyKey]) -> None:
        """Disown these bodies; their stored pieces are swept, by the next start at the latest.

        The change joins after the pieces of the bodies: a piece written after the row of its body
        was swept would never be swept.
        """
        changes = Changes()
        for key in keys:
            changes.bodies[key] = BodyRow(key, Owner.NOBODY, key, 0)
        self._drop(changes)

    def left(self) -> None:
        """Sweep bodies without an owner, a few pieces at a time."""
        if not self._sweeping:
            self._sweeping = True
            self._submit(bodies.sweep_on, self._swept)

    def resume(self) -> None:
        """Sweep again if the last step found no room, or if any body may be in pieces."""
        if self._left or self.some:
            self.left()

    def _swept(self, swept: Swept | None, error: BaseException | None) -> None:
        self._sweeping = False
        self._left = swept is None or swept.more
        if swept is None:
            return  # the next tick tries again
        if swept.more:
            self.left()
        elif not swept.some and not self._keeping and not self._joined():
            self.some = False
