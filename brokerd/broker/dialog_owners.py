"""Dialog owners: how many dialogs each user or peer has begun and not closed (REL-45).

Reads:  the store, for a number that is not known, or may have fallen.      Calls: storage.
Never:  counts anything while no limit is set; counts an owner twice within `FRESH`.
Fails:  a crash forgets the owners of the dialogs that were begun since the last tick.

The number of an owner in memory rises with each dialog and never falls, so it is the true one or
above it. Only an owner who reaches the limit by it is counted in the store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from brokerd.broker.blocked import Resume
from brokerd.broker.state import Live
from brokerd.broker.store_reads import Spawn
from brokerd.ids import EndpointKey

FRESH: Final = 5.0
"""Seconds for which the number that the store gave is taken for the present one."""
_MOST: Final = 10_000
"""Most owners whose numbers are kept; those of all are forgotten beyond it, and counted anew."""


class Refusals(NamedTuple):
    """The refusals of one owner since the start."""

    number: int
    last_at: float
    """Time of the latest one (monotonic)."""
    most: int
    """The limit."""


class DialogOwners:
    """The owners of the dialogs of one broker."""

    def __init__(
        self,
        *,
        count: Callable[[str], Awaitable[int]],
        note: Callable[[Sequence[tuple[EndpointKey, str]]], Awaitable[None]],
        spawn: Spawn,
        now: Callable[[], float],
    ) -> None:
        """Create the counts.

        `count`: returns the number of an owner's dialogs in the store. `note`: writes owners.
        """
        self._count = count
        self._note = note
        self._spawn = spawn
        self._now = now
        self._known: dict[str, int] = {}
        self._counted_at: dict[str, float] = {}
        self._counting: dict[str, list[Resume]] = {}
        self._begun: list[tuple[Live, str]] = []
        self.refused: dict[str, Refusals] = {}
        """Refusals by owner."""

    def may_begin(self, owner: str, most: int) -> bool:
        """Return whether an owner is known to be below the limit."""
        known = self._known.get(owner)
        return known is not None and known < most

    def is_fresh(self, owner: str) -> bool:
        """Return whether the owner was counted in the store just now."""
        counted_at = self._counted_at.get(owner)
        return counted_at is not None and self._now() - counted_at < FRESH

    def count(self, owner: str, resume: Resume) -> None:
        """Count the owner's dialogs in the store, then call `resume`."""
        waiting = self._counting.setdefault(owner, [])
        waiting.append(resume)
        if len(waiting) == 1:
            self._spawn(self._learn(owner))

    def begun(self, live: Live, owner: str) -> None:
        """Note that an owner has begun a dialog, or would have: its transaction may roll back."""
        self._begun.append((live, owner))
        self._known[owner] = self._known.get(owner, 0) + 1

    def refuse(self, owner: str, most: int) -> None:
        """Count a refusal."""
        before = self.refused.get(owner)
        number = 1 if before is None else before.number + 1
        self.refused[owner] = Refusals(number, self._now(), most)
        if len(self.refused) > _MOST:
            del self.refused[next(iter(self.refused))]

    @property
    def has_unwritten(self) -> bool:
        """Whether owners of dialogs are not in the store yet."""
        return bool(self._begun)

    async def write(self) -> int:
        """Write the owners of the dialogs that were committed; return their number."""
        begun = [one for one in self._begun if not one[0].gone]
        # The serial of an endpoint is that of the flush with its latest change; 0 = none yet.
        self._begun = [one for one in begun if not one[0].serial]
        owned = [(live.endpoint.key, owner) for live, owner in begun if live.serial]
        if owned:
            await self._note(owned)
        return len(owned)

    async def _learn(self, owner: str) -> None:
        try:
            if len(self._known) > _MOST:
                self._known.clear()
                self._counted_at.clear()
            if self._begun:
                await self.write()
            stored = await self._count(owner)
            open_yet = Counter(name for live, name in self._begun if not live.gone)
            self._known[owner] = stored + open_yet[owner]
            self._counted_at[owner] = self._now()
        finally:
            for resume in self._counting.pop(owner, ()):
                resume()
