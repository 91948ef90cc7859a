"""Receivers: the ledger, which answers the messages of the stream, and the client with the replies.

    python -m tests.chaos.receivers client|ledger

`activated` is the ledger as a daemon starts it. The ledger keeps for each dialog how many messages
it has had and their hash, in the commit that receives them, and says so in its replies.

Reads:  the plan of the run, the stream.      Calls: sessions, the journal.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Final

from brokerd.client.messages import Message
from brokerd.client.session import Session, connect
from brokerd.errors import BrokerError, ConnectionLost
from tests.chaos.journal import Journal, Recorded, read_body
from tests.chaos.plan import EXPECTED, read_plan
from tests.chaos.stream import REPLY_EVERY, Ends, Stream, reply_content, running
from tests.engine.simulation.recording import INITIATOR, TARGET

MOST: Final = 20
"""Messages a receive takes at most."""
WAIT: Final = 5.0
TASKS: Final = 3
"""Receives of one process that go on beside one another."""
AGAIN: Final = 0.3
UNDONE: Final = 0.02
"""Share of transactions that are rolled back on purpose."""
Take = Callable[[Recorded, Message], Awaitable[None]]


class _OnPurpose(Exception):
    """Rolls a transaction back."""


class Ledger:
    """Answers each fifth message of a dialog, and its last."""

    queue = "ledger_q"

    def __init__(self, stream: Stream, journal: Journal) -> None:
        self._stream = stream
        self._journal = journal

    async def take(self, recorded: Recorded, message: Message) -> None:
        tx = recorded.tx
        count, dialog, digest = _read_state(await tx.state(message.group_id))
        if message.is_end:
            if dialog is not None:  # else one that was begun and ended without a message
                recorded.ended(dialog, TARGET)
            await tx.end(message.handle)
            return
        read = read_body(message.body)
        if read is None:
            self._journal.complain(f"the ledger received {message.message_type}: {message.error}")
            await tx.end(message.handle)
            return
        label, content = read
        count, digest = count + 1, running(digest, content)
        await tx.set_state(message.group_id, b"%d %d " % (count, label.dialog) + digest)
        found = self._stream.dialogs[label.dialog]
        if found.is_answered(label.number):
            number = label.number // REPLY_EVERY
            answer = reply_content(count, digest, content)
            await recorded.send(message.handle, label.dialog, number, TARGET, answer)
        if count == found.messages and found.ends is Ends.LEDGER:
            await tx.end(message.handle)


def _read_state(state: bytes | None) -> tuple[int, int | None, bytes]:
    """Messages so far, the dialog, and their hash."""
    if state is None:
        return 0, None, b""
    count, dialog, digest = state.split(b" ", 2)
    return int(count), int(dialog), digest


class Client:
    """Receives replies, and ends what is its to end."""

    queue = "client_q"

    def __init__(self, stream: Stream, journal: Journal) -> None:
        self._stream = stream
        self._journal = journal

    async def take(self, recorded: Recorded, message: Message) -> None:
        tx = recorded.tx
        if message.is_end:
            state = await tx.state(message.group_id) or b""
            recorded.ended(int(state[16:]), INITIATOR)
            await tx.end(message.handle)
            return
        read = read_body(message.body)
        if read is None:
            self._journal.complain(f"the client received {message.message_type}: {message.error}")
            await tx.end(message.handle)
            return
        label, _ = read
        found = self._stream.dialogs[label.dialog]
        if label.number + 1 == found.replies and found.ends is Ends.CLIENT:
            await tx.end(message.handle)


async def receive(
    session: Session, who: Client | Ledger, journal: Journal, *, forever: bool, wait: float
) -> None:
    """Receive until nothing comes for so long, or for ever."""
    rng = Random()
    while True:
        try:
            async with journal.transaction(session) as recorded:
                messages = await recorded.receive(who.queue, MOST, wait=wait)
                for message in messages:
                    await who.take(recorded, message)
                _fail_sometimes(rng)
        except _OnPurpose:
            continue
        except ConnectionLost:
            raise
        except BrokerError as error:
            if not (error.retryable or isinstance(error, EXPECTED)):
                journal.complain(f"{who.queue}: {error.code}: {error}")
            await asyncio.sleep(AGAIN)
            continue
        if not messages and not forever:
            return


def _fail_sometimes(rng: Random) -> None:
    if rng.random() < UNDONE:
        raise _OnPurpose


async def activated(session: Session) -> None:
    """The ledger as a reader that a daemon starts."""
    plan = read_plan()
    with Journal(Path(plan.journal), "reader") as journal:
        ledger = Ledger(Stream(Path(plan.stream)), journal)
        await receive(session, ledger, journal, forever=False, wait=session.drain_wait)


async def _task(role: str, stream: Stream, address: str) -> None:
    with Journal(Path(read_plan().journal), role) as journal:
        while True:
            try:
                async with connect(address, broker="main", wait=600) as session:
                    who = (Client if role == "client" else Ledger)(stream, journal)
                    await receive(session, who, journal, forever=True, wait=WAIT)
            except ConnectionLost:
                continue


async def main(role: str) -> None:
    plan = read_plan()
    stream = Stream(Path(plan.stream))
    address = plan.client_address if role == "client" else plan.ledger_address
    async with asyncio.TaskGroup() as tasks:
        for _ in range(TASKS):
            tasks.create_task(_task(role, stream, address))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
