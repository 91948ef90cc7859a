"""Deliveries: the messages of a queue, each in a transaction of its own (SDK-8, SDK-9).

Reads:  a queue.      Calls: the verbs of a session.
Never:  yields an end, an error or a timer: this module handles them, with hooks (A18).
Fails:  with `ConnectionLost` if a lost connection cannot be replaced; with `QueueDisabled` if
        the queue is off (ACT-27).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

import msgspec

from brokerd.app.bodies import encode
from brokerd.app.contract import Contract, is_end_of_stream
from brokerd.app.log import logger
from brokerd.client.messages import FOREVER, Message, Wait
from brokerd.client.outcomes import End, Park, Reply, Retry
from brokerd.client.session import Session
from brokerd.client.transaction import Transaction
from brokerd.errors import InvalidArgument, RemoteError, TransactionAborted
from brokerd.model import DEFAULT
from brokerd.protocol.headers import Headers


class Delivery:
    """One message and its transaction: `async with` commits, or rolls back on an exception."""

    def __init__(
        self,
        message: Message,
        *,
        tx: Transaction,
        session: Session,
        contract: Contract | None = None,
        queue: str = "",
        left: Callable[[], None] | None = None,
        mute: bool = False,
    ) -> None:
        self.message = message
        self.tx = tx
        self.session = session
        self._contract = contract
        self._left = left or (lambda: None)
        self._mute = mute
        self._queue = queue
        self._span: AbstractContextManager[Any] | None = None

    async def __aenter__(self) -> Self:
        """Return the delivery itself."""
        self._enter_span()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Commit; after an exception roll back, so that the message is received again.

        `raise Retry(...)` and `raise Park(...)` in the block roll back accordingly, and do not
        leave the block; `raise End(...)` replies and ends the dialog in the commit.

        Raises:
            BrokerError: an error that `Transaction.commit` names, or for `End` one that `answer`
                names.
        """
        try:
            return await self._finish(kind, error, trace)
        finally:
            self._leave_span(kind, error, trace)

    async def _finish(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Commit or roll back, as leaving the block does.

        Raises:
            BrokerError: an error that `__aexit__` names.
        """
        try:
            if isinstance(error, End):
                try:
                    await self.answer(error)
                except BaseException as failed:
                    await self.tx.__aexit__(type(failed), failed, failed.__traceback__)
                    raise
                kind = error = trace = None
            await self.tx.__aexit__(kind, error, trace)
        finally:
            self._left()
        return error is None or isinstance(error, Retry | Park)

    def _enter_span(self) -> None:
        """Begin the span of the message, which is then the current one, if the session traces.

        Raises: nothing.
        """
        tracing = self.session.tracing
        if tracing is not None:
            self._span = tracing.processing(self._queue, self.message)
            self._span.__enter__()

    def _leave_span(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the span of the message, with the exception that leaves the block.

        Raises: nothing.
        """
        if self._span is not None:
            self._span.__exit__(kind, error, trace)

    async def answer(self, outcome: End) -> None:
        """Reply and end the dialog as the outcome says, in the same commit.

        Raises:
            BrokerError: an error that `send` or `end` names.
        """
        if outcome.reply is not None:
            await self.send(outcome.reply)
        await self.end(outcome.error, outcome.description)

    @property
    def body(self) -> bytes | None:
        """The body of the message as bytes; None = no body."""
        return self.message.body

    @property
    def headers(self) -> Headers:
        """The headers of the message; empty if it has none (SND-26)."""
        return self.message.headers

    @property
    def dialog(self) -> bytes:
        """Handle of the dialog, to answer on."""
        return self.message.handle

    @property
    def group(self) -> bytes:
        """Id of the conversation group, which is locked; the key for state (GRP-2)."""
        return self.message.group_id

    def value(self) -> object:
        """Return the body as a value of the type that the contract has for it.

        Raises:
            ValueError: the body is not a value of that type.
            InvalidArgument: no contract is known for the message.
            UnexpectedMessage: the contract has no such message type.
        """
        if self._contract is None:
            raise InvalidArgument(
                f"no type is known of {self.message.message_type}",
                hint="deliveries(queue, contracts=[...])",
            )
        return self._contract.read(self.message)

    async def send(self, value: object, *, headers: Headers | None = None) -> None:
        """Send a value on the dialog of the message, in the same commit.

        `headers`: as for `Transaction.send` (SND-26). A `Reply` brings its own.

        If the other side has ended the dialog, the commit fails with `InvalidState`. A handler of
        an App is then called once more, and its answers on this dialog are not sent.

        Raises:
            NotInContract: the contract has no message type for the value.
            InvalidArgument: no contract is known for the message, or `headers` has the wrong form.
            BrokerError: an error that `Transaction.send` names.
        """
        if self._mute:
            return
        if isinstance(value, Reply):
            headers = value.headers if headers is None else headers
            value = value.value
        contract = self._contract
        if contract is None:
            if self.message.contract != DEFAULT:
                raise InvalidArgument(
                    "no contract is known: it cannot be told of which message type this is",
                    hint="deliveries(queue, contracts=[...]), or tx.send(handle, body, type)",
                )
            await self.tx.send(self.dialog, encode(value), headers=headers)
            return
        message_type, body = contract.write(value)
        await self.tx.send(self.dialog, body, message_type, headers=headers)

    async def end(self, error: int | None = None, description: str | None = None) -> None:
        """End this side of the dialog of the message, in the same commit.

        Raises:
            BrokerError: an error that `Transaction.end` names.
        """
        await self.tx.end(self.dialog, error, description)

    async def state(self) -> bytes | None:
        """Return the state of the conversation group; None = it has none.

        Raises:
            BrokerError: an error that `Transaction.state` names.
        """
        return await self.tx.state(self.group)

    async def set_state(self, state: bytes | None) -> None:
        """Replace the state of the conversation group, in the same commit; None deletes it.

        Raises:
            BrokerError: an error that `Transaction.set_state` names.
        """
        await self.tx.set_state(self.group, state)


Hook = Callable[[Delivery], Awaitable[None]]
ErrorHook = Callable[[RemoteError, Delivery], Awaitable[None]]


class Hooks(msgspec.Struct, frozen=True):
    """Functions for messages of the broker, called in the message's transaction; all are optional.

    An end or an error also ends this side of the dialog, with or without a hook.
    """

    on_end: Hook | None = None
    on_error: ErrorHook | None = None
    """Hook for errors; without a hook, an error is logged."""
    on_timer: Hook | None = None


async def handled(delivery: Delivery, hooks: Hooks) -> bool:
    """Handle a message of the broker, or the end of a stream; False = a message of a program.

    Raises:
        BrokerError: an error that `Transaction.end` names; a hook may raise anything.
    """
    message = delivery.message
    if message.is_timer:
        if hooks.on_timer is not None:
            await hooks.on_timer(delivery)
        return True
    error = message.error
    if error is not None:
        if hooks.on_error is not None:
            await hooks.on_error(error, delivery)
        else:
            log_remote_error(error, message)
    elif message.is_end or is_end_of_stream(message):
        if hooks.on_end is not None:
            await hooks.on_end(delivery)
    else:
        return False
    await delivery.end()
    return True


def log_remote_error(error: RemoteError, message: Message) -> None:
    """Log an error from the other side that no hook handles.

    Raises: nothing.
    """
    logger().warning(
        "broker.conversation",
        subclass="received_error",
        conversation_id=message.conversation_id.hex(),
        service=message.service,
        number=error.number,
        description=error.description,
    )


async def deliveries(
    session: Session,
    queue: str,
    *,
    concurrency: int = 1,
    contracts: dict[str, Contract] | None = None,
    hooks: Hooks | None = None,
    wait: Wait = FOREVER,
) -> AsyncIterator[Delivery]:
    """Yield the messages of a queue, each for an `async with`, until none comes within `wait`.

    `concurrency`: maximum number of deliveries that are open at a time. Each locks its conversation
    group, so two open deliveries are never of the same group.

    Raises:
        BrokerError: an error that `Transaction.receive` or `commit` names.
    """
    room = asyncio.Semaphore(concurrency)
    known = contracts or {}
    while True:
        await room.acquire()
        tx = session.transaction()
        tx.is_for_handlers = True
        kept = False
        try:
            found = await tx.receive(queue, 1, wait=wait)
            if not found:
                return
            delivery = Delivery(
                found[0],
                tx=tx,
                session=session,
                contract=known.get(found[0].contract),
                queue=queue,
                left=room.release,
            )
            if await handled(delivery, hooks or Hooks()):
                await tx.commit()
                continue
            kept = True
        except TransactionAborted:  # the connection was lost: retry on the next one
            continue
        finally:
            if not kept:
                tx.rollback()
                room.release()
        yield delivery
