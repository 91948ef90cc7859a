"""Sender: sends its part of a stream; killed at any moment, it goes on where it was.

    python -m tests.chaos.sender NUMBER

The position in the stream is the state of a group, and moves in the commit that sends. Messages are
spread over the time that the run is to take; what is late is sent at once.

Reads:  the plan of the run, the stream.      Calls: a session, the journal.
"""

import asyncio
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from brokerd.client.session import Session, connect
from brokerd.errors import BrokerError, ConnectionLost, GroupNotFound
from tests.chaos.journal import Journal, Recorded
from tests.chaos.plan import EXPECTED, Plan, read_plan
from tests.chaos.stream import Ends, Entry, Stream
from tests.engine.simulation.recording import INITIATOR

BATCH: Final = 60
BATCH_BYTES: Final = 4 * 1024 * 1024
AGAIN: Final = 0.3
"""Seconds after which what was refused is tried again."""
_NAMES: Final = uuid.UUID("6f3d3f0e-2f35-4c1e-9a59-4f1c3c0a4e57")


def group_of(name: str) -> bytes:
    """The conversation group with that name."""
    return uuid.uuid5(_NAMES, name).bytes


def cursor_of(number: int) -> bytes:
    """The group whose state is the position of a sender."""
    return group_of(f"cursor {number}")


def make_cursor(handle: bytes, position: int) -> bytes:
    """The state of such a group: the handle of the dialog that keeps it, and the position."""
    return handle + b"%d" % position


def read_cursor(state: bytes | None) -> tuple[bytes, int]:
    """The handle and the position in the state of such a group."""
    assert state is not None, "it is set by the transaction that makes the group"
    return state[:16], int(state[16:])


class Sender:
    """One of several; each has the dialogs whose numbers are its own."""

    def __init__(self, number: int, plan: Plan, stream: Stream, journal: Journal) -> None:
        self._plan = plan
        self._stream = stream
        self._journal = journal
        self._cursor = cursor_of(number)
        self._own = [
            (at, entry) for at, entry in enumerate(stream) if entry.dialog % plan.senders == number
        ]
        self._handles: dict[int, bytes] = {}

    async def run(self, session: Session) -> None:
        """Send all that is left of it."""
        position: int | None = None
        while position is None or position < len(self._own):
            try:
                if position is None:
                    position = await self._resume(session)
                else:
                    position = await self._advance(session, position)
            except ConnectionLost:
                raise
            except BrokerError as error:
                position = None
                if not (error.retryable or isinstance(error, EXPECTED)):
                    self._journal.complain(f"a send was refused: {error.code}: {error}")
                await asyncio.sleep(AGAIN)

    async def _resume(self, session: Session) -> int:
        """The position that is durable; its group is made if there is none yet."""
        try:
            async with session.group(self._cursor) as group:
                return read_cursor(group.state)[1]
        except GroupNotFound:
            async with session.transaction() as tx:
                handle = await tx.begin_dialog(
                    "client", "ledger", "chaos/v1", related_group=self._cursor, encryption=False
                )
                await tx.set_state(self._cursor, make_cursor(handle, 0))
            return 0

    async def _advance(self, session: Session, position: int) -> int:
        """Send what is due, at least one message; the new position."""
        due, entry = self._own[position]
        await asyncio.sleep(self._plan.due(due, len(self._stream)) - time.monotonic())
        begun: dict[int, bytes] = {}
        async with self._journal.transaction(session) as recorded:
            state = await recorded.tx.state(self._cursor, take_lock=True)
            handle, durable = read_cursor(state)
            if durable != position:
                self._journal.complain(
                    f"a position that was confirmed is not durable: {position}, then {durable}"
                )
            for entry in self._batch(position):
                await self._send(recorded, entry, begun)
                position += 1
            await recorded.tx.set_state(self._cursor, make_cursor(handle, position))
        self._handles |= begun
        return position

    def _batch(self, position: int) -> Iterator[Entry]:
        now, size = time.monotonic(), 0
        for count, (at, entry) in enumerate(self._own[position : position + BATCH]):
            size += entry.size
            late = self._plan.due(at, len(self._stream)) <= now
            if count and (size > BATCH_BYTES or not late):
                return
            yield entry

    async def _send(self, recorded: Recorded, entry: Entry, begun: dict[int, bytes]) -> None:
        group, dialog = group_of(f"d{entry.dialog}"), self._stream.dialogs[entry.dialog]
        handle = begun.get(entry.dialog) or self._handles.get(entry.dialog)
        if entry.number == 0:
            handle = await recorded.tx.begin_dialog(
                "client", "ledger", "chaos/v1", related_group=group, encryption=False
            )
            await recorded.tx.set_state(group, handle + b"%d" % entry.dialog)
        elif handle is None:
            handle = (await recorded.tx.state(group, take_lock=True) or b"")[:16]
        begun[entry.dialog] = handle
        content = self._stream.content(entry)
        await recorded.send(handle, entry.dialog, entry.number, INITIATOR, content)
        if entry.number + 1 == dialog.messages and dialog.ends is Ends.UNANSWERED:
            await recorded.tx.end(handle)


async def main(number: int) -> None:
    plan = read_plan()
    with Journal(Path(plan.journal), f"sender{number}") as journal:
        sender = Sender(number, plan, Stream(Path(plan.stream)), journal)
        while True:
            try:
                async with connect(plan.client_address, broker="main", wait=600) as session:
                    return await sender.run(session)
            except ConnectionLost:
                continue


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
