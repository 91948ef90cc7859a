"""Playing a schedule in a load process, and receiving its messages.

Reads: the file of a schedule.      Calls: the SDK, as any program would.
Never: sends before the recorded time; a lag is counted, and caught up.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from functools import partial
from pathlib import Path

import msgspec

from brokerd.bench.opening import open_dialogs
from brokerd.bench.schedule import Schedule, Sending
from brokerd.bench.stamps import STAMP, sent_at, stamped
from brokerd.bench.tally import Tally
from brokerd.client.session import Session
from brokerd.protocol.client_verbs import MAX_GROUPS


class Player:
    """The sender of a schedule, with a session for each client in the schedule."""

    def __init__(
        self, sessions: list[Session], schedule: str, speed: float, outstanding: int
    ) -> None:
        """Create the player. `schedule`: path of the file with the schedule, as msgpack."""
        self._schedule = msgspec.msgpack.decode(Path(schedule).read_bytes(), type=Schedule)
        self._sessions = sessions
        self._speed = speed
        self._outstanding = outstanding
        self._handles: list[bytes] = []

    async def open(self, from_service: str, to_service: str) -> None:
        """Begin the dialogs."""
        count = self._schedule.dialogs
        self._handles = await open_dialogs(self._sessions[0], count, from_service, [to_service])

    def works(self, tally: Tally) -> list[Coroutine[None, None, None]]:
        """Return the work of each client."""
        parts: list[list[Sending]] = [[] for _ in self._sessions]
        for one in self._schedule.sendings:
            parts[one.client].append(one)
        return [
            self._play(session, part, tally)
            for session, part in zip(self._sessions, parts, strict=True)
        ]

    async def _play(self, session: Session, part: list[Sending], tally: Tally) -> None:
        room = asyncio.Semaphore(self._outstanding)
        broken: list[BaseException] = []

        def confirmed(count: int, began: float, future: "asyncio.Future[None]") -> None:
            room.release()
            if (error := future.exception()) is not None:
                broken.append(error)
            else:
                tally.add(count, began)

        # The lag is taken after the waits for room: a transaction that waits for confirmations is
        # late, too.
        for one in part:
            began = await self._due(one, tally)
            await room.acquire()
            await session.room()
            if broken:
                break
            if self._speed:
                now = tally.clock.monotonic()
                tally.late(now - began)
            began = tally.clock.monotonic()
            asked = await self._submit(session, one, began)
            asked.add_done_callback(partial(confirmed, len(one.sends), began))
        for _ in range(self._outstanding):
            await room.acquire()
        if broken:
            raise broken[0]

    async def _due(self, one: Sending, tally: Tally) -> float:
        """Wait until the sending is due and return that time; without a speed, return at once."""
        if not self._speed:
            return 0.0
        due = tally.times.start + one.due / self._speed
        if due > tally.clock.monotonic():
            await tally.clock.sleep_until(due)
        return due

    async def _submit(self, session: Session, one: Sending, now: float) -> "asyncio.Future[None]":
        if len(one.sends) == 1:
            ((dialog, size),) = one.sends
            return session.submit_send(self._handles[dialog], _body(now, size), "Item")
        tx = session.transaction()
        for dialog, size in one.sends:
            await tx.send(self._handles[dialog], _body(now, size), "Item")
        asked = tx.ask_commit()
        assert asked is not None, "it has sent"
        return asked


def _body(now: float, size: int) -> bytes:
    return stamped(now, size) if size >= STAMP else bytes(size)


async def receive_all(
    session: Session,
    tally: Tally,
    *,
    queues: deque[str],
    batch: int,
    expect: int,
    patience: float,
) -> None:
    """Receive and commit, many groups per transaction, until all expected messages have arrived.

    Several queues are read in turn. Each message is measured from its own time of sending;
    messages too small to contain that time are only counted.
    """
    clock, wait = tally.clock, 0.2 if len(queues) == 1 else None
    while tally.total < expect and (now := clock.monotonic()) < tally.times.stop:
        async with session.transaction() as tx:
            messages = await tx.receive(queues[0], batch, wait=wait, groups=min(batch, MAX_GROUPS))
        queues.rotate(-1)
        if messages:
            bodies = [one.body or b"" for one in messages]
            tally.add_each(len(messages), [sent_at(one) for one in bodies if len(one) >= STAMP])
        elif now - max(tally.last, tally.times.start) > patience:
            return
