"""Reader: receives messages of one queue for the handlers of an App (SDK-9 to SDK-11).

Reads:  a queue, in batches of one conversation group.      Calls: the verbs of a session, handlers.
Never:  commits half a batch: its receive, replies, ends and state changes are one transaction.
Fails:  never with a handler: its error is logged, and its messages roll back and are received
        again. A failed receive ends a reader in the daemon, and makes any other reader wait.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from brokerd.app import bodies
from brokerd.app.bodies import Kind
from brokerd.app.contract import Contract
from brokerd.app.deliveries import Delivery, Hooks, handled
from brokerd.app.log import logger
from brokerd.client.messages import Message
from brokerd.client.outcomes import End, Park, Retry
from brokerd.client.session import Session
from brokerd.client.transaction import Transaction
from brokerd.errors import (
    BrokerError,
    ConnectionLost,
    InvalidState,
    QueueDisabled,
    QueueNotFound,
    TransactionAborted,
)

LOOK_EVERY: Final = 60.0
"""Seconds that one receive waits in a reader without `idle`."""
FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 30.0
LONGEST_PAUSE_BY_LOAD: Final = 5.0
"""Seconds, for a reader started by the daemon: it must notice soon when it is to end (PBT-25)."""
NOT_HANDLED: Final = 1
"""Error code with which a dialog is ended if no handler accepts its message."""
NOT_READABLE: Final = 2
"""Error code with which a dialog is ended if a body cannot be read as the type of its message."""
_MOST_TEXT: Final = 3000
_KEPT_OUT: Final[dict[type[Exception], tuple[str, str]]] = {
    QueueDisabled: ("queue_off", "switch it on: brokerd queue show NAME says why it is off"),
    QueueNotFound: (
        "queue_missing",
        "it was dropped; it is read again once it is there: brokerd apply FILE, or start the "
        "worker anew, which declares it",
    ),
}
"""Errors for a queue that cannot be read, each with the subclass of its log event and a hint."""


class Ctx(Delivery):
    """The second argument of a handler; all its operations are part of one commit."""

    @property
    def log(self) -> Any:  # noqa: ANN401  # structlog's own type
        """A logger that adds the dialog and the attempt to each line."""
        message = self.message
        return logger(
            conversation_id=message.conversation_id.hex(),
            service=message.service,
            attempt=message.delivery_count + 1,
        )


class Route(msgspec.Struct, frozen=True):
    """A handler and the types of values that it accepts."""

    function: Callable[..., Awaitable[Any]]
    kinds: tuple[Kind, ...]
    takes_ctx: bool


class Reads:
    """A queue of an app: its handlers, and the options for reading it."""

    def __init__(self, name: str, service: str) -> None:
        self.name = name
        self.service = service
        self.max_readers = 1
        self.batch = 1
        self.contracts: dict[str, Contract] = {}
        self.routes: list[Route] = []
        self.hooks = Hooks()


class Reader:
    """A reader of one queue, which pauses after a failure: longer after each consecutive one.

    There are two kinds of failures (ACT-27): those of handling messages, after which the reader
    continues, and those of the receive itself, which only time can repair, if at all.
    """

    def __init__(
        self, session: Session, queue: Reads, *, idle: float | None = None, by_load: bool = False
    ) -> None:
        """Create the reader.

        `idle`: seconds without a message after which it ends; None = it reads for ever.
        `by_load`: a queue monitor has started the reader, which then ends if its receive fails."""
        self._session = session
        self._queue = queue
        self._idle = idle
        self._by_load = by_load
        self._longest_pause = LONGEST_PAUSE_BY_LOAD if by_load else LONGEST_PAUSE
        self._stopping = False
        self._busy = False
        self._found_nothing = False
        self._is_known = by_load
        """Whether the queue is known to exist."""
        self._failures = 0
        """Number of consecutive failures."""
        self._kept_by = ""
        """Reported reason why the queue cannot be read at present; empty = it can be read."""
        self._log = logger(queue=queue.name, service=queue.service)

    def stop(self, task: "asyncio.Task[None]") -> None:
        """Stop receiving; a running handler may finish. `task`: the task of `run`.

        Raises: nothing.
        """
        self._stopping = True
        if not self._busy:
            task.cancel()

    async def run(self) -> None:
        """Read until `stop`, or until there was no message for `idle` seconds.

        Raises:
            ConnectionLost: the daemon could not be reached again.
            BrokerError: an error of a receive that waiting cannot repair, such as `QueueNotFound`.
        """
        clock = self._session.clock
        while not self._stopping:
            if await self._succeeds():
                self._failures = 0
                if self._idle is not None and self._found_nothing:
                    return
                continue
            self._failures += 1
            await clock.sleep_until(clock.monotonic() + self._pause())

    def _pause(self) -> float:
        """Return the seconds to wait after a failure.

        0 after one failure, because the broker itself holds back a group that fails (PBT-3)."""
        if self._failures == 1:
            return 0.0
        return float(min(self._longest_pause, FIRST_PAUSE * 2 ** min(self._failures - 2, 20)))

    async def _succeeds(self) -> bool:
        """Receive and handle a batch, if there is one; False = failed, but worth a retry."""
        wait = LOOK_EVERY if self._idle is None else self._idle
        if not self._is_known:
            wait = 0.0  # a queue that is missing at the start is reported at once
        try:
            found = await read_once(self._session, self._queue, wait, taken=self._has_taken)
        except ConnectionLost:
            raise
        except TransactionAborted:
            return False  # connection lost, or transaction too old: the messages come again
        except Exception as error:  # per reader (design, The code)
            if self._busy:
                self._failed(error)
            elif self._may_be_mended(error):
                self._kept_from_reading(error)
            else:
                raise
            return False
        finally:
            self._busy = False
        if self._kept_by:
            self._log.info("broker.activation", subclass="reads_again")
            self._kept_by = ""
        self._found_nothing = self._is_known and not found
        self._is_known = True
        return True

    def _failed(self, error: Exception) -> None:
        """Log that a handler raised.

        Its messages are received again; meanwhile the reader continues with other messages."""
        self._log.warning(
            "broker.activation",
            subclass="handler_failed",
            error=f"{type(error).__name__}: {error}",
            failures=self._failures + 1,
            exc_info=error,
        )

    def _may_be_mended(self, error: Exception) -> bool:
        """Return whether a failed receive may succeed later, by itself or once it is repaired."""
        if self._by_load or not self._is_known:
            return False
        retryable = isinstance(error, BrokerError) and error.retryable
        return retryable or isinstance(error, QueueDisabled | QueueNotFound)

    def _kept_from_reading(self, error: Exception) -> None:
        """Report an obstacle once, however often the receive is retried."""
        subclass, hint = _KEPT_OUT.get(type(error), ("receive_failed", ""))
        if subclass != self._kept_by:
            text = f"{type(error).__name__}: {error}"
            self._log.warning("broker.activation", subclass=subclass, error=text, hint=hint)
            self._kept_by = subclass

    def _has_taken(self) -> None:
        self._busy = True


async def read_once(
    session: Session, queue: Reads, wait: float, *, taken: Callable[[], None] = lambda: None
) -> bool:
    """Receive and handle a batch of one group in one transaction; return False if none came.

    `wait`: seconds. `taken`: called when messages were received. An answer on a dialog that the
    other side has ended fails the transaction. It is then repeated with fewer messages, and finally
    without the answers on that dialog.

    Raises:
        BrokerError: an error of the receive, of a verb in the handler, or of the commit.
        Exception: an error of the handler; the transaction was rolled back.
    """
    batch = queue.batch
    mute: frozenset[bytes] = frozenset()
    while True:
        messages: list[Message] = []
        try:
            async with session.transaction() as tx:
                tx.is_for_handlers = True
                messages += await tx.receive(queue.name, batch, wait=wait)
                if not mute.issuperset(message.handle for message in messages):
                    tx.not_counted = (InvalidState,)
                if messages:
                    taken()
                    await _Unit(session, queue, tx, mute).handle(messages)
        except (Retry, Park):  # the block has rolled back with this outcome
            return True
        except InvalidState:
            handles = frozenset(message.handle for message in messages)
            if not handles or handles <= mute:
                raise
            if len(handles) > 1:
                batch = 1
            else:
                mute = handles
        else:
            return bool(messages)


class _Unit:
    """One batch of messages, handled in one transaction."""

    def __init__(
        self, session: Session, queue: Reads, tx: Transaction, mute: frozenset[bytes]
    ) -> None:
        self._session = session
        self._queue = queue
        self._tx = tx
        self._mute = mute
        self._handler: Callable[..., object] | None = None
        """The handler that was called last."""

    async def handle(self, messages: list[Message]) -> None:
        """Handle the messages in order; skip the rest of a dialog that is over."""
        over: set[bytes] = set()
        for message in messages:
            if message.handle not in over and await self._handle_one(message):
                over.add(message.handle)

    async def _handle_one(self, message: Message) -> bool:
        """Handle a message within its span, if it is traced; see `_call`."""
        tracing = self._session.tracing
        if tracing is None:
            return await self._call(message)
        with tracing.processing(self._queue.name, message):
            return await self._call(message)

    async def _call(self, message: Message) -> bool:
        """Call the handler of a message; return whether the dialog is over afterwards."""
        contract = self._queue.contracts.get(message.contract)
        ctx = Ctx(
            message,
            tx=self._tx,
            session=self._session,
            contract=contract,
            mute=message.handle in self._mute,
        )
        if await handled(ctx, self._queue.hooks):
            return not message.is_timer
        try:
            outcome = await self._outcome(ctx, contract)
        except End as raised:
            outcome = raised
        if isinstance(outcome, Retry | Park):
            raise outcome
        self._tx.act_for(self._handler)
        try:
            if not isinstance(outcome, End):
                if outcome is not None:
                    await ctx.send(outcome)
                return False
            await ctx.answer(outcome)
        finally:
            self._tx.act_for(None)
        return True

    async def _outcome(self, ctx: Ctx, contract: Contract | None) -> object:
        """Return the handler's result, or an `End` if no handler fits or the body is unreadable."""
        message, service = ctx.message, self._queue.service
        if contract is None or message.message_type not in contract.kinds:
            text = f"{service} does not handle {message.message_type} of {message.contract}"
            return End(error=NOT_HANDLED, description=text)
        try:
            value = contract.read(message)
        except ValueError as error:
            text = f"{message.message_type} cannot be read: {error}"
            return End(error=NOT_READABLE, description=text[:_MOST_TEXT])
        for route in self._queue.routes:
            if any(bodies.is_a(value, kind) for kind in route.kinds):
                arguments = (value, ctx) if route.takes_ctx else (value,)
                self._handler = route.function
                return await route.function(*arguments)
        text = f"{service} has no handler for {message.message_type}"
        return End(error=NOT_HANDLED, description=text)
