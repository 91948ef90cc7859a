"""Dialog endpoints in memory; those unused for long are evicted (design D4).

Reads: the store, for endpoints that are not in memory.      Calls: storage.
Never: writes; `changeset.py` steps endpoints and records their new states.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from brokerd.broker.blocked import Blocked, Resume
from brokerd.broker.state import Live
from brokerd.broker.store_reads import Spawn, read_until_answered
from brokerd.ids import ConversationId, EndpointKey, Handle
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.transitions import State

_REMOVED_KEPT = 10_000
_OVER_A_TURN = 2
"""Number of closed endpoints checked per endpoint added, so that they leave faster than they
come."""
_CHECKS = 16
"""Number of endpoints checked for eviction whenever one is added beyond the capacity."""
_CHECKS_A_TICK = 5_000


class Endpoints:
    """The endpoints of one broker that are in memory, by handle and by conversation."""

    def __init__(
        self,
        *,
        capacity: int,
        adopt: Callable[[DialogEndpoint], Live],
        drop: Callable[[Live], None],
        named: Callable[
            [Sequence[Handle], Sequence[ConversationId]], Awaitable[list[DialogEndpoint]]
        ],
        by_key: Callable[[Sequence[EndpointKey]], Awaitable[Mapping[EndpointKey, DialogEndpoint]]],
        durable_serial: Callable[[], int],
        spawn: Spawn,
    ) -> None:
        self._capacity = capacity
        self._adopt = adopt
        self._drop = drop
        self._named = named
        self._by_key = by_key
        self._durable_serial = durable_serial
        self._handles: dict[Handle, Live] = {}
        self._conversations: dict[tuple[ConversationId, bool], Live] = {}
        self._keys: OrderedDict[EndpointKey, Live] = OrderedDict()
        self._over: deque[Live] = deque()
        self._look_ups = LookUps(hold=self._hold_named, spawn=spawn)
        self.complete = True
        """Whether every endpoint of the store is in memory."""
        self._reads = 0
        self._departed: dict[EndpointKey, int] = {}  # evicted during a read; the eviction's number
        self._departures = 0
        self._removed: dict[EndpointKey, int] = {}  # gone; the flush that deletes the row

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, handle: Handle) -> Live | None:
        """Return the endpoint with this handle, if it is in memory."""
        live = self._handles.get(handle)
        if live is not None:
            live.touched = True
        return live

    def find_conversation(self, conversation_id: ConversationId, initiator: bool) -> Live | None:
        """Return the given side of the conversation, if it is in memory."""
        live = self._conversations.get((conversation_id, initiator))
        if live is not None:
            live.touched = True
        return live

    def get(self, key: EndpointKey) -> Live | None:
        """Return the endpoint with this row number, if it is in memory."""
        return self._keys.get(key)

    def all(self) -> list[Live]:
        """Return every endpoint in memory."""
        return list(self._keys.values())

    def look_up(self, handle: Handle) -> Live | Blocked | None:
        """Return the endpoint with this handle; None = none exists; Blocked = it is being read."""
        live = self.find(handle)
        if live is not None:
            return live
        if self.complete:  # the store has no others
            return None
        if self._look_ups.is_absent(handle):
            return None
        return Blocked("endpoint", lambda resume: self._look_ups.ask(handle, resume))

    def is_fresh(self, handle: Handle) -> bool:
        """Return whether memory alone shows that no endpoint has this handle."""
        return self.complete and handle not in self._handles

    def look_up_conversation(
        self, conversation_id: ConversationId, initiator: bool
    ) -> Live | Blocked | None:
        """Return this side of the conversation; None = none exists; Blocked = it is being read."""
        key = (conversation_id, initiator)
        live = self.find_conversation(conversation_id, initiator)
        if live is not None:
            return live
        if self.complete:
            return None
        if self._look_ups.is_absent(key):
            return None
        return Blocked("endpoint", lambda resume: self._look_ups.ask(key, resume))

    def add(self, live: Live) -> None:
        """Add an endpoint, and evict some that have not been used for long."""
        endpoint = live.endpoint
        self._handles[endpoint.handle] = live
        self._conversations[endpoint.conversation_id, endpoint.is_initiator] = live
        self._keys[endpoint.key] = live
        if self._over:
            self._evict_closed()
        if len(self._keys) > self._capacity:
            self._evict(live, _CHECKS)

    def closed(self, live: Live) -> None:
        """Note that an endpoint is closed, so that it may be evicted: its row serves the replay
        guard (PBT-5)."""
        self._over.append(live)

    def remove(self, live: Live) -> None:
        """Drop a removed endpoint; no read brings it back while its row still exists."""
        self.removing(live.endpoint.key, live.serial)
        self._forget(live)
        if live.release is not None:
            live.release()

    def removing(self, key: EndpointKey, serial: int) -> None:
        """Note that flush `serial` deletes a row; no earlier read restores the endpoint."""
        self._removed[key] = serial
        if len(self._removed) > _REMOVED_KEPT and not self._reads:
            self._forget_removed()

    def _forget(self, live: Live) -> None:
        endpoint = live.endpoint
        self._handles.pop(endpoint.handle, None)
        self._conversations.pop((endpoint.conversation_id, endpoint.is_initiator), None)
        self._keys.pop(endpoint.key, None)

    def adopt(self, endpoint: DialogEndpoint) -> Live:
        """Return the endpoint in memory for one that was read from the store; add it if needed."""
        live = self._keys.get(endpoint.key)
        if live is None:
            live = self._adopt(endpoint)
            self.add(live)
            if endpoint.state is State.CLOSED:
                self.closed(live)
        return live

    def is_removed(self, key: EndpointKey) -> bool:
        """Return whether the endpoint was removed while its row may still exist."""
        return key in self._removed

    @contextmanager
    def reading(self) -> Iterator[Callable[[Iterable[EndpointKey]], set[EndpointKey]]]:
        """Bracket a read of endpoint rows that are then adopted.

        Yields a function to call once after each read. It returns which of the endpoints just read
        have been evicted since; read those again, as their rows may have changed."""
        self._reads += 1
        since: dict[EndpointKey, int] = {}
        began = self._departures

        def stale(read: Iterable[EndpointKey]) -> set[EndpointKey]:
            left = {k for k in read if self._departed.get(k, -1) >= since.get(k, began)}
            since.update(dict.fromkeys(left, self._departures))
            return left

        try:
            yield stale
        finally:
            self._reads -= 1
            if not self._reads:
                self._departed.clear()
                self._forget_removed()

    def _forget_removed(self) -> None:
        durable = self._durable_serial()
        self._removed = {k: s for k, s in self._removed.items() if s > durable}

    async def hold(self, keys: set[EndpointKey]) -> dict[EndpointKey, Live]:
        """Load and pin these endpoints, each once; return those that exist."""
        held: dict[EndpointKey, Live] = {}
        for key in sorted(keys):
            live = self._keys.get(key)
            if live is not None:
                live.pin()
                held[key] = live
        await self._load(keys - set(held), held)
        return held

    async def _load(self, missing: set[EndpointKey], held: dict[EndpointKey, Live]) -> None:
        """Load endpoints that are not in memory; pin those that exist and add them to `held`."""
        with self.reading() as stale:
            while missing:
                stored = await read_until_answered(self._by_key, sorted(missing))
                again = stale(stored)
                for key in sorted(missing):
                    live = self._keys.get(key)
                    if live is None and key in stored and key not in again:
                        if self.is_removed(key):
                            continue
                        live = self.adopt(stored[key])
                    if live is not None:
                        live.pin()
                        held[key] = live
                missing = {key for key in missing - set(held) if key in stored}
                missing = {key for key in missing if not self.is_removed(key)}

    async def _hold_named(self, keys: Sequence[Key]) -> list[Live]:
        """Load the endpoints with these keys that exist, and pin each once."""
        handles = {key for key in keys if not isinstance(key, tuple)}
        sides = {key for key in keys if isinstance(key, tuple)}
        conversations = {conversation_id for conversation_id, _ in sides}
        with self.reading() as stale:
            while True:
                found = await read_until_answered(
                    self._named, sorted(handles), sorted(conversations)
                )
                if not stale(endpoint.key for endpoint in found):
                    break
            held: list[Live] = []
            for endpoint in found:
                side = endpoint.conversation_id, endpoint.is_initiator
                is_wanted = side in sides or endpoint.handle in handles
                if endpoint.key in self._removed or not is_wanted:
                    continue
                live = self.adopt(endpoint)
                live.pin()  # adopting the next one may evict it otherwise
                held.append(live)
        return held

    def _evict_closed(self) -> None:
        """Evict the oldest closed endpoints that nothing needs; check the others again later."""
        durable = self._durable_serial()
        for _ in range(min(_OVER_A_TURN, len(self._over))):
            live = self._over.popleft()
            if live.gone or self._keys.get(live.endpoint.key) is not live:
                continue
            if live.release is not None:
                live.release()
            if live.serial > durable or not _idle(live):
                self._over.append(live)
            else:
                self._evict_one(live)

    def trim(self) -> int:
        """Evict endpoints beyond the capacity that nothing needs in memory; return their number.

        This is for times when no endpoint is added: adding one evicts others, too."""
        before = len(self._keys)
        self._evict(None, _CHECKS_A_TICK)
        return before - len(self._keys)

    def _evict(self, newest: Live | None, checks: int) -> None:
        """Evict the oldest endpoints that are not in use and not touched since their last check.

        The check gives each a second chance. All endpoints beyond the capacity are evicted, as far
        as `checks` allow: many may have come while all were in use, and their number would never
        fall if only one was evicted for each one added."""
        durable = self._durable_serial()
        while checks and len(self._keys) > self._capacity:
            checks -= 1
            key, live = next(iter(self._keys.items()))
            if live is newest or live.touched or live.serial > durable or not _idle(live):
                live.touched = False
                self._keys.move_to_end(key)
            else:
                self._evict_one(live)

    def _evict_one(self, live: Live) -> None:
        self._forget(live)
        self._drop(live)
        self.complete = False
        if self._reads:
            self._departed[live.endpoint.key] = self._departures
            self._departures += 1


def _idle(live: Live) -> bool:
    """Return whether nothing in memory needs the endpoint: its row holds its whole state."""
    out = live.outgoing
    return (
        not live.ready
        and not live.pins
        and not live.unpublished
        and not live.parts
        and live.group.holder is None
        and not live.group.line
        and (out is None or out.idle)
    )


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
        """Return whether the read for which a waiter is being resumed did not find this key."""
        if self._absent != key:
            return False
        self._absent = None
        return True

    def ask(self, key: Key, resume: Resume) -> None:
        """Look an endpoint up, then resume all its waiters together, in order of request."""
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
                    self._resume_waiters(key)
                for live in held:
                    live.unpin()
        finally:
            self._is_reading = False

    def _resume_waiters(self, key: Key) -> None:
        for resume in self._waiting.pop(key):
            self._absent = key  # read only if the endpoint was not found
            resume()
        self._absent = None
