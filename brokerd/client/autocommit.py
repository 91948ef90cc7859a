"""Autocommit: a receive that is a transaction of its own, and its messages if it is cancelled.

Such a receive has consumed messages as soon as its commit is written. If the caller is cancelled
after that, the messages are kept for the next receive with the same selectors (CLP-41).

Reads:  answers.     Calls: client.link, client.transaction.
Never:  returns messages of two groups in one list, or waits longer in one transaction than
        `LONGEST_WAIT`.
"""

import asyncio
from collections.abc import Callable
from itertools import takewhile
from typing import Any, Final

from brokerd.client.failures import Interrupted
from brokerd.client.link import Link
from brokerd.client.messages import Message, read_messages
from brokerd.client.tracer import Tracer
from brokerd.client.transaction import Transaction
from brokerd.protocol.client_verbs import FOREVER_MS

LONGEST_WAIT: Final = 240.0
"""Seconds after which a waiting receive begins another transaction, so that none comes near the age
limit of transactions."""
REFUSED_WITHIN: Final = 1.0
"""Seconds within which a wait that ends early, without messages, counts as a refusal to wait."""

Selectors = tuple[str, bytes | None, bytes | None]
"""Queue, conversation and group of a receive."""


class AutocommitReceiver:
    """The receives of one session outside a transaction, each a transaction of its own."""

    def __init__(
        self,
        link: Link,
        begin: Callable[[], Transaction],
        *,
        is_recorded: bool,
        tracer: Callable[[], Tracer | None],
    ) -> None:
        """Create the receiver. `tracer`: returns the tracer of the session, if it has one."""
        self._link = link
        self._clock = link.clock
        self._begin = begin
        self._is_recorded = is_recorded
        self._tracer = tracer
        self._kept: dict[Selectors, list[Message]] = {}

    async def receive(
        self, selectors: Selectors, max_messages: int | None, wait_ms: int | None
    ) -> list[Message]:
        """Receive messages of one group, first the messages kept from a cancelled receive.

        The caller has checked the arguments.

        Raises:
            OutcomeUnknown: messages may have been lost with the connection.
            BrokerError: an error common to all requests; see `Session`.
        """
        if selectors in self._kept:
            return self._kept_messages(selectors, max_messages)
        if wait_ms:
            return await self._receive_waiting(selectors, max_messages, wait_ms)
        return await self._receive_now(selectors, max_messages)

    async def _receive_now(self, selectors: Selectors, max_messages: int | None) -> list[Message]:
        queue, conversation, group = selectors
        args = (queue, max_messages, conversation, group, None)
        tracer, since = self._tracer(), self._clock.utc()
        answer = self._link.ask("receive", args, token=True)
        if self._is_recorded:
            self._begin().receive_alone(queue, answer)
        try:
            messages = read_messages(await asyncio.shield(answer))
        except asyncio.CancelledError:
            answer.add_done_callback(lambda done: self._keep_late(selectors, done))
            raise
        if tracer is not None and messages:
            tracer.received(queue, messages, since)
        return messages

    async def _receive_waiting(
        self, selectors: Selectors, max_messages: int | None, wait_ms: int
    ) -> list[Message]:
        deadline = self._clock.monotonic() + wait_ms / 1000
        queue, conversation, group = selectors
        refused = False
        while True:
            began = self._clock.monotonic()
            left = LONGEST_WAIT
            if wait_ms != FOREVER_MS:
                left = min(left, max(0.0, deadline - self._clock.monotonic()))
            tx = self._begin()
            try:
                messages = await tx.receive(
                    queue, max_messages, conversation=conversation, group=group, wait=left
                )
                await self._commit(tx, selectors, messages)
            except Interrupted:  # no message was consumed: retry on the next connection
                continue
            finally:
                tx.rollback(counts=False)
            now = self._clock.monotonic()
            if messages or (wait_ms != FOREVER_MS and now >= deadline):
                return messages
            # A daemon that stops ends a wait early: keep waiting. A daemon that refuses at once,
            # twice in a row, wants this reader to end (PBT-25).
            early = now - began < min(left, REFUSED_WITHIN)
            if early and refused:
                return []
            refused = early or now - began < left

    async def _commit(self, tx: Transaction, selectors: Selectors, messages: list[Message]) -> None:
        """Commit; if cancelled meanwhile, keep the messages that the commit consumes (CLP-41)."""
        committed = tx.ask_commit()
        if committed is None:
            return
        try:
            await asyncio.shield(committed)
        except asyncio.CancelledError:
            committed.add_done_callback(
                lambda done: self._keep_if_committed(selectors, messages, done)
            )
            raise

    def _keep_late(self, selectors: Selectors, answer: "asyncio.Future[object]") -> None:
        if not answer.cancelled() and answer.exception() is None:
            self._keep(selectors, read_messages(answer.result()))

    def _keep_if_committed(
        self, selectors: Selectors, messages: list[Message], committed: "asyncio.Future[Any]"
    ) -> None:
        if not committed.cancelled() and committed.exception() is None:
            self._keep(selectors, messages)

    def _keep(self, selectors: Selectors, messages: list[Message]) -> None:
        if messages:
            self._kept.setdefault(selectors, []).extend(messages)

    def _kept_messages(self, selectors: Selectors, max_messages: int | None) -> list[Message]:
        """Return the first kept messages, all of one group, and keep the rest."""
        kept = self._kept.pop(selectors)
        leading = takewhile(lambda message: message.group_id == kept[0].group_id, kept)
        found = list(leading)[:max_messages]
        self._keep(selectors, kept[len(found) :])
        return found
