"""Dialog: one dialog as an `async with` block, which ends the dialog on leaving (SDK-5 to SDK-7).

Reads:  messages of this dialog.      Calls: the verbs of a session.
Never:  begins the dialog before the first send, or consumes a message of an unrequested type.
"""

import shlex
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, overload

from brokerd.app import bodies
from brokerd.app.contract import Contract
from brokerd.app.nearby import NOWHERE, why_waiting
from brokerd.client.messages import FOREVER, Message, Wait
from brokerd.client.session import Session
from brokerd.client.transaction import Transaction
from brokerd.clock import Clock
from brokerd.errors import (
    BrokerError,
    ConversationNotFound,
    DialogEnded,
    InvalidState,
    ReceiveTimeout,
    RemoteError,
    TransactionAborted,
    UnexpectedMessage,
    WouldWaitForever,
)
from brokerd.ids import Handle, show
from brokerd.protocol.headers import Headers

LEFT_BY_EXCEPTION = 1
"""Error code with which a block ends its dialog when an exception leaves it."""
_MOST_TEXT = 3000

_T = TypeVar("_T")


class Timer:
    """A due conversation timer of this side; `receive` returns it if `kinds` has this class."""


class QueueOf(Protocol):
    """A function that finds the queue of a service."""

    async def __call__(self, service: str) -> str:
        """Return the name of the queue of a service.

        Raises:
            ServiceNotFound: the service does not exist.
        """
        ...


class Dialog:
    """A dialog, made by `Session.dialog` and used with `async with`."""

    def __init__(
        self,
        *,
        session: Session,
        clock: Clock,
        queue_of: QueueOf,
        service: str,
        to_service: str,
        contract: Contract,
        options: dict[str, Any],
    ) -> None:
        self._session = session
        self._clock = clock
        self._queue_of = queue_of
        self._options = options
        self._over = False
        self._begun = False
        self._asked_in: Transaction | None = None
        self._ended_in: Transaction | None = None
        self.service = service
        self.to_service = to_service
        self.contract = contract
        self.handle: Handle | None = None
        """Handle of the dialog; None before the first send."""
        self.headers: Headers = {}
        """Headers of the message that was received last; empty if it had none."""

    async def __aenter__(self) -> Self:
        """Return the dialog, which begins with its first send."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End this side of the dialog, with an error if an exception leaves the block.

        Raises:
            BrokerError: an error that `end` names, if the block did not fail.
        """
        if error is None:
            await self.end()
            return
        with suppress(BrokerError):  # the exception of the block says more
            text = f"{type(error).__name__}: {error}"[:_MOST_TEXT]
            await self.end(LEFT_BY_EXCEPTION, text)

    async def send(
        self, value: object, *, headers: Headers | None = None, tx: Transaction | None = None
    ) -> None:
        """Send a value; it is durable when this returns, or with the commit of `tx`.

        The first send begins the dialog. `headers`: as for `Transaction.send` (SND-26).

        Raises:
            NotInContract: the contract has no message type for the value.
            InvalidArgument: `headers` has the wrong form.
            InvalidState, ConversationNotFound: the dialog is over.
            BrokerError: an error that `begin_dialog` or `send` of a session or transaction names.
        """
        message_type, body = self.contract.write(value)
        self._look_at_transactions()
        if tx is not None:
            await tx.send(await self._begin(tx), body, message_type, headers=headers)
            self._asked_in = tx
        elif self._begun and self.handle is not None:
            await self._session.send(self.handle, body, message_type, headers=headers)
        else:
            async with self._session.transaction() as alone:
                await alone.send(await self._begin(alone), body, message_type, headers=headers)
            self._begun = True

    @overload
    async def receive(
        self,
        kinds: type[_T],
        *,
        timeout: float | timedelta | None = ...,  # noqa: ASYNC109
        tx: Transaction | None = ...,
    ) -> _T: ...

    @overload
    async def receive(
        self,
        kinds: Any = ...,  # noqa: ANN401  # a union is not a type
        *,
        timeout: float | timedelta | None = ...,  # noqa: ASYNC109
        tx: Transaction | None = ...,
    ) -> Any: ...  # noqa: ANN401

    async def receive(
        self,
        kinds: Any = object,
        *,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109  # the daemon waits
        tx: Transaction | None = None,
    ) -> Any:
        """Return the next message of this dialog, as a value of one of the types in `kinds`.

        Without `tx` the message is received in a transaction of its own, and has left the
        queue when this returns; with `tx` it leaves the queue when `tx` commits. `timeout`:
        seconds to wait, or a timedelta; None = wait without a limit.

        Raises:
            ReceiveTimeout: no message came in time; the error says why, if the reason is known.
            RemoteError, DialogEnded: the other side has ended the dialog; this side is ended,
                too.
            UnexpectedMessage: a message of another type came, or its body cannot be read; the
                message stays in the queue.
            WouldWaitForever: nothing was sent, or the transaction that sent is still open
                (SDK-7).
            BrokerError: an error common to all requests.
        """
        self._look_at_transactions()
        if self._asked_in is not None:
            raise WouldWaitForever
        if self.handle is None:
            raise WouldWaitForever(
                f"nothing has been sent to {self.to_service} yet", hint="send something first"
            )
        queue = await self._queue_of(self.service)
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        deadline = None if seconds is None else self._clock.monotonic() + seconds
        if tx is None:
            return await self._receive_alone(queue, deadline, kinds)
        while True:
            wait = self._wait_until(deadline)
            taken = await tx.receive(queue, 1, conversation=self.handle, wait=wait)
            value = await self._value_of(tx, taken, kinds)
            if value is not _SKIPPED:
                return value

    async def end(self, error: int | None = None, description: str | None = None) -> None:
        """End this side, with an error if one is given, unless the dialog is over or never began.

        If a transaction that has sent on the dialog is still open, the end joins that transaction.

        Raises:
            ErrorNeedsCodeAndText: one of `error` and `description` is missing.
            BrokerError: an error common to all requests.
        """
        self._look_at_transactions()
        if self._over or self._ended_in is not None or self.handle is None:
            return
        with suppress(InvalidState, ConversationNotFound):  # the dialog is over already
            if self._asked_in is not None:
                await self._asked_in.end(self.handle, error, description)
                self._ended_in = self._asked_in
            else:
                self._over = True
                await self._session.end(self.handle, error, description)

    # Implementation.

    def _look_at_transactions(self) -> None:
        """Find out the outcome of the transactions that have sent on this dialog or ended it.

        After a rollback the dialog has not begun, or is still to be ended."""
        asked_in, ended_in = self._asked_in, self._ended_in
        if asked_in is not None and not asked_in.is_open:
            self._asked_in = None
            self._begun = self._begun or asked_in.committed
            if not self._begun:
                self.handle = None
        if ended_in is not None and not ended_in.is_open:
            self._ended_in = None
            self._over = self._over or ended_in.committed

    async def _begin(self, tx: Transaction) -> Handle:
        if self.handle is None:
            self.handle = await tx.begin_dialog(
                self.service, self.to_service, self.contract.name, **self._options
            )
        return self.handle

    def _wait_until(self, deadline: float | None) -> Wait:
        return FOREVER if deadline is None else max(0.0, deadline - self._clock.monotonic())

    async def _receive_alone(
        self, queue: str, deadline: float | None, kinds: bodies.Kind
    ) -> object:
        while True:
            wait = self._wait_until(deadline)
            tx = self._session.transaction()
            try:
                taken = await tx.receive(queue, 1, conversation=self.handle, wait=wait)
                try:
                    value = await self._value_of(tx, taken, kinds)
                except (DialogEnded, RemoteError):
                    await tx.commit()
                    raise
                await tx.commit()
            except TransactionAborted:  # the connection was lost: retry on the next one
                continue
            except ReceiveTimeout as error:
                raise await self._with_reason(error) from None
            finally:
                tx.rollback(counts=False)
            if value is not _SKIPPED:
                return value

    async def _with_reason(self, error: ReceiveTimeout) -> ReceiveTimeout:
        """Return the error, with the reason why the messages sent are waiting, if it is known."""
        assert self.handle is not None, "something was sent"
        why, key = await why_waiting(self._session, self.handle, self.to_service)
        if not why:
            return error
        return ReceiveTimeout(
            f"{error.message}{why}",
            hint=f"brokerd route explain {shlex.quote(self.to_service)} says where it goes, and why"
            if key in NOWHERE
            else f"brokerd dialog status {show(self.handle)}",
        )

    async def _value_of(self, tx: Transaction, taken: list[Message], kinds: bodies.Kind) -> object:
        """Return the value of the message, or `_SKIPPED`; end this side if the other has ended."""
        if not taken:
            raise ReceiveTimeout(f"no message of {self.to_service} came in time")
        (message,) = taken
        wanted = bodies.members(kinds)
        if message.is_timer:
            return Timer() if Timer in wanted else _SKIPPED
        if message.is_end or message.is_error:
            await tx.end(message.handle)
            self._ended_in = tx
            raise message.error or DialogEnded(f"{self.to_service} has ended the dialog")
        try:
            value = self.contract.read(message)
        except ValueError as error:
            raise UnexpectedMessage(
                f"the body of {message.message_type} cannot be read: {error}"
            ) from error
        if not any(bodies.is_a(value, kind) for kind in wanted):
            raise UnexpectedMessage(
                f"{message.message_type} came, which was not asked for",
                hint="it is still in the queue: ask for it too",
            )
        self.headers = message.headers
        return value


_SKIPPED = object()
