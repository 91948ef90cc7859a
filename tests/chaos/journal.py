"""Journal: what a program asked its broker for and what it was told, in a file as it happens.

The events are those that `brokerd.testing.check` judges. They are with the system before a commit
is asked for, so that a program that is killed leaves behind all that it may have done.

Calls:  a session, the file system.      Never:  keeps an event in memory once it was written.
"""

import hashlib
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple, Self

import msgspec

from brokerd.client.messages import Message
from brokerd.client.recorder import outcome
from brokerd.client.session import Session
from brokerd.client.transaction import Transaction
from brokerd.model import END_DIALOG
from brokerd.testing.history import Event, Kind
from tests.engine.simulation.recording import INITIATOR, TARGET

_OTHER: Final = {INITIATOR: TARGET, TARGET: INITIATOR}


class Label(NamedTuple):
    """What a body says about its message, before its content."""

    uid: str
    dialog: int
    number: int
    side: str
    """Of who sent it."""

    def body(self, content: bytes) -> bytes:
        return f"{self.uid}|{self.dialog}|{self.number}|{self.side}|".encode() + content


def read_body(body: bytes | None) -> tuple[Label, bytes] | None:
    """The label and the content of a body; None if it was not made here."""
    parts = (body or b"").split(b"|", 4)
    if len(parts) < 5:
        return None
    uid, dialog, number, side = (part.decode("ascii", "replace") for part in parts[:4])
    if not (dialog.isdigit() and number.isdigit() and side in _OTHER):
        return None
    return Label(uid, int(dialog), int(number), side), parts[4]


def content_hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


class Journal:
    """The events of one process, in a file of its own."""

    def __init__(self, folder: Path, program: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.client = f"{program}-{os.getpid()}-{time.monotonic_ns()}"
        self._file = os.open(
            folder / f"{self.client}.jsonl", os.O_CREAT | os.O_WRONLY | os.O_APPEND
        )
        self._encode = msgspec.json.Encoder().encode
        self._transactions = 0
        self._events = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self._file)

    def event(self, op: str, kind: Kind, **fields: object) -> Event:
        """An event of now, which is not in the file yet."""
        self._events += 1
        at = time.monotonic_ns() // 1000
        return Event(i=self._events, t=at, op=op, kind=kind, client=self.client, **fields)  # type: ignore[arg-type]  # as its fields are

    def write(self, *events: Event) -> None:
        os.write(self._file, b"".join(self._encode(one) + b"\n" for one in events))

    def complain(self, text: str) -> None:
        """Note what must not happen; it counts as a violation (CHK-9)."""
        self.write(self.event("left", Kind.INFO, node=self.client, reason=text))

    @asynccontextmanager
    async def transaction(self, session: Session) -> AsyncIterator["Recorded"]:
        """A transaction that is in the journal as soon as it has done anything."""
        self._transactions += 1
        async with session.transaction() as tx:
            recorded = Recorded(self, tx, self._transactions)
            yield recorded
            if not recorded.events:
                return
            asked = self.event("commit", Kind.INVOKE, tx=recorded.number)
            self.write(*recorded.events, asked)
            error: BaseException | None = None
            try:
                await tx.commit()
            except BaseException as raised:
                error = raised
                raise
            finally:
                found = outcome(error)
                kind, reason = Kind(str(found["kind"])), found.get("reason")
                self.write(self.event("commit", kind, tx=recorded.number, reason=reason))


class Recorded:
    """A transaction whose effects are noted."""

    def __init__(self, journal: Journal, tx: Transaction, number: int) -> None:
        self._journal = journal
        self.tx = tx
        self.number = number
        self.events: list[Event] = []

    async def send(
        self, handle: bytes, dialog: int, number: int, side: str, content: bytes
    ) -> None:
        """Send the message of that number on that dialog."""
        uid = f"{dialog}.{number}.{side[0]}@{self._journal.client}.{self.number}"
        label = Label(uid, dialog, number, side)
        kind = "Order" if side == INITIATOR else "Reply"
        await self.tx.send(handle, label.body(content), kind)
        self._note(
            "send",
            Kind.INVOKE,
            uid=uid,
            dialog=f"d{dialog}",
            side=side,
            hash=content_hash(content),
        )

    async def receive(self, queue: str, most: int, *, wait: float) -> list[Message]:
        """Receive messages of one group."""
        asked = self._journal.event("receive", Kind.INVOKE, tx=self.number, queue=queue)
        messages = await self.tx.receive(queue, most, wait=wait)
        if messages:
            self.events.append(asked)
        for message in messages:
            self._received(queue, message)
        return messages

    def ended(self, dialog: int, side: str) -> None:
        """An end was received at that side."""
        self._note("ended", Kind.OK, dialog=f"d{dialog}", side=side, reason=END_DIALOG)

    def _received(self, queue: str, message: Message) -> None:
        read = read_body(message.body) if message.message_type in ("Order", "Reply") else None
        if read is None:
            self._note("receive", Kind.OK, queue=queue)
            return
        label, content = read
        self._note(
            "receive",
            Kind.OK,
            queue=queue,
            uid=label.uid,
            dialog=f"d{label.dialog}",
            side=_OTHER[label.side],
            seq=message.sequence,
            group=message.group_id.hex(),
            hash=content_hash(content),
        )

    def _note(self, op: str, kind: Kind, **fields: object) -> None:
        self.events.append(self._journal.event(op, kind, tx=self.number, **fields))
