"""The client of the demo: has many dialogs at once, over one session that may lose its daemon.

Calls:  the SDK; `Tally`, once a transaction has been committed.
Never:  counts a message before the transaction that sent or received it is durable.
A transaction that a kill has undone is repeated; the SDK finds out the outcome of a commit whose
answer was lost (REL-2).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final, TypeVar

from brokerd.client.messages import Message
from brokerd.client.session import Session
from brokerd.clock import Clock
from brokerd.demo.dialogs import Dialog, Sending
from brokerd.errors import BrokerError
from brokerd.ids import Handle

FROM: Final = "shop"
TO: Final = "warehouse"
QUEUE: Final = "shop_q"
READERS: Final = 3
"""Number of transactions that receive at the same time, from different dialogs."""
ALL: Final = 2.0
"""A gate that lets every message pass."""
_BATCH: Final = 100
_WAIT: Final = 1.0
_PAUSE: Final = 0.02
"""Seconds before a failed transaction is repeated."""
_MOST_FAULTS: Final = 20

_T = TypeVar("_T")


class Tally:
    """Counts of committed messages, and events for tasks that wait for a count."""

    def __init__(self, *, clock: Clock) -> None:
        self.dialogs = 0
        """Number of dialogs begun."""
        self.ended = 0
        self.sent = 0
        self.answered = 0
        self.replies = 0
        self.doubled = 0
        self.redone = 0
        """Number of repeated transactions: undone by a kill, or refused for a while."""
        self.faults: list[str] = []
        self.began_at = clock.monotonic()
        self.moved_at = self.began_at
        """Time of the last commit, or of another sign of progress, on the monotonic clock."""
        self.sent_at = self.began_at
        self.replied_at: float | None = None
        self.first_reply_at: float | None = None
        self.longest_pause = 0.0
        """Longest time, in seconds, between two commits that received replies, since the last reset
        to 0."""
        self._clock = clock
        self._marks: list[tuple[int, asyncio.Event]] = []

    def mark(self, answered: int) -> asyncio.Event:
        """Return an event that is set once `answered` messages have been answered."""
        event = asyncio.Event()
        self._marks.append((answered, event))
        self._reach()
        return event

    def sent_some(self, dialog: Dialog, chunk: list[Sending], *, first: bool) -> None:
        """Count the messages of a durable transaction; `first`: whether it began the dialog."""
        dialog.judged.sent += len(chunk)
        self.sent += len(chunk)
        self.dialogs += first
        self.sent_at = self.moved_at = self._clock.monotonic()

    def received_some(self, dialog: Dialog, replies: list[Message], *, ended: bool) -> None:
        """Check and count the replies that were received in a durable transaction.

        `ended`: whether that transaction ended the dialog."""
        judged = dialog.judged
        answered, doubled, known = judged.answered, judged.doubled, len(judged.faults)
        for reply in replies:
            dialog.check(reply)
        self.answered += judged.answered - answered
        self.doubled += judged.doubled - doubled
        self.faults += judged.faults[known:][: max(0, _MOST_FAULTS - len(self.faults))]
        self.replies += len(replies)
        self.ended += ended
        self._pause()
        self._reach()

    def _pause(self) -> None:
        now = self.moved_at = self._clock.monotonic()
        if self.first_reply_at is None:
            self.first_reply_at = now
        elif self.replied_at is not None:
            self.longest_pause = max(self.longest_pause, now - self.replied_at)
        self.replied_at = now

    def _reach(self) -> None:
        for at, event in self._marks:
            if self.answered >= at:
                event.set()


class _Open:
    """A dialog that has begun and is not over."""

    def __init__(self, dialog: Dialog) -> None:
        self.dialog = dialog
        self.received = 0
        self.ended = asyncio.Event()
        self.moved = asyncio.Event()

    def is_over_with(self, replies: list[Message]) -> bool:
        """Return whether no more replies will come after these."""
        if any(reply.is_error or reply.is_end for reply in replies):
            return True
        return self.received + len(replies) >= self.dialog.replies


class Client:
    """A program that continues its dialogs until all are over.

    `at_once`: largest number of open dialogs. `gate`: share of the messages that may be sent now.
    """

    def __init__(
        self, session: Session, tally: Tally, *, clock: Clock, at_once: int, gate: float = ALL
    ) -> None:
        self._session = session
        self._tally = tally
        self._clock = clock
        self._places = asyncio.Semaphore(at_once)
        self._open: dict[bytes, _Open] = {}
        self._gate = gate
        self._gate_moved = asyncio.Event()

    async def run(self, dialogs: Iterable[Dialog]) -> None:
        """Run all dialogs; return when every reply has been received and every dialog has ended."""
        readers = [asyncio.ensure_future(self._read()) for _ in range(READERS)]
        try:
            writer = asyncio.ensure_future(self._have(dialogs))
            await asyncio.wait({writer, *readers}, return_when=asyncio.FIRST_COMPLETED)
            for one in (writer, *readers):
                if one.done():
                    one.result()
        finally:
            for one in (writer, *readers):
                one.cancel()
            await asyncio.wait({writer, *readers})

    def open_gate(self, upto: float) -> None:
        """Raise the share of the messages that may be sent."""
        self._gate = upto
        self._gate_moved.set()
        self._gate_moved = asyncio.Event()

    # Sending.

    async def _have(self, dialogs: Iterable[Dialog]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for dialog in dialogs:
                    await self._places.acquire()
                    group.create_task(self._converse(_Open(dialog)))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _converse(self, conversation: _Open) -> None:
        """Run one dialog, from its first transaction until its last reply has been received."""
        handle: Handle | None = None
        for chunk in conversation.dialog.chunks():
            await self._may_go_on(conversation, chunk)
            handle = await self._until_done(partial(self._send, conversation, handle, chunk))
        await conversation.ended.wait()
        self._places.release()

    async def _may_go_on(self, conversation: _Open, chunk: list[Sending]) -> None:
        dialog = conversation.dialog
        while dialog.due >= self._gate:
            await self._gate_moved.wait()
        while not dialog.room(chunk):
            conversation.moved.clear()
            await conversation.moved.wait()

    async def _send(
        self, conversation: _Open, handle: Handle | None, chunk: list[Sending]
    ) -> Handle:
        """Send the messages in one transaction, which begins the dialog if `handle` is None."""
        await self._session.room()
        async with self._session.transaction() as tx:
            to = handle or await tx.begin_dialog(FROM, TO, conversation.dialog.contract)
            for message_type, body in chunk:
                await tx.send(to, body, message_type)
            # Before the commit: a reply may arrive before the answer to the commit does.
            self._open[to] = conversation
        self._tally.sent_some(conversation.dialog, chunk, first=handle is None)
        return to

    # Receiving.

    async def _read(self) -> None:
        while True:
            await self._until_done(self._receive)

    async def _receive(self) -> None:
        """Receive replies of one dialog in one transaction, which ends the dialog after the last.

        The replies are counted after the commit, because a kill may undo the transaction.
        """
        async with self._session.transaction() as tx:
            replies = await tx.receive(QUEUE, _BATCH, wait=_WAIT)
            if not replies:
                return
            handle = replies[0].handle
            conversation = self._open.get(handle)
            over = conversation is None or conversation.is_over_with(replies)
            if over:
                await tx.end(handle)
        if conversation is None:
            self._tally.faults.append("a reply came in a dialog that was never begun")
            return
        self._tally.received_some(conversation.dialog, replies, ended=over)
        conversation.received += len(replies)
        conversation.moved.set()
        if over:
            self._open.pop(handle, None)
            conversation.ended.set()

    # Repeating.

    async def _until_done(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """Repeat a transaction until it is durable; raise errors that a repetition cannot cure."""
        while True:
            try:
                return await work()
            except BrokerError as error:
                if not error.retryable or self._session.closed:
                    raise
            self._tally.redone += 1
            await self._clock.sleep_until(self._clock.monotonic() + _PAUSE)
