"""Reader: takes messages of one queue and hands them to the handlers of an App (SDK-9 to SDK-11).

Reads:  a queue, in batches of one conversation group.      Calls: the verbs of a session, handlers.
Never:  commits half a batch: receive, replies, ends and state of it are one transaction.
Fails:  a handler that raises rolls everything back, and the messages come again after a pause.
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
    ConnectionLost,
    InvalidState,
    QueueDisabled,
    QueueNotFound,
    TransactionAborted,
)

LOOK_EVERY: Final = 60.0
"""Seconds that one receive of a reader that never ends waits."""
FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 30.0
NOT_HANDLED: Final = 1
"""Error code with which a dialog is ended when no handler takes its message."""
NOT_READABLE: Final = 2
"""Error code for a body that is not what its message type says."""
_MOST_TEXT: Final = 3000


class Ctx(Delivery):
    """What a handler is told beside the message; all it does belongs to one commit."""

    @property
    def log(self) -> Any:  # noqa: ANN401  # structlog's own type
        """A logger that knows dialog and attempt."""
        message = self.message
        return logger(
            conversation_id=message.conversation_id.hex(),
            service=message.service,
            attempt=message.delivery_count + 1,
        )


class Route(msgspec.Struct, frozen=True):
    """A handler and the values it takes."""

    function: Callable[..., Awaitable[Any]]
    kinds: tuple[Kind, ...]
    takes_ctx: bool


class Reads:
    """What an app does with one queue."""

    def __init__(self, name: str, service: str) -> None:
        self.name = name
        self.service = service
        self.max_readers = 1
        self.batch = 1
        self.contracts: dict[str, Contract] = {}
        self.routes: list[Route] = []
        self.hooks = Hooks()


class Reader:
    """Works until it is stopped; pauses after a failure, the longer the more there were."""

    def __init__(self, session: Session, queue: Reads, *, idle: float | None = None) -> None:
        """`idle`: seconds without a message after which it is done; None = it reads for ever."""
        self._session = session
        self._queue = queue
        self._idle = idle
        self._stopping = False
        self._busy = False
        self._found_nothing = False

    def stop(self, task: "asyncio.Task[None]") -> None:
        """Take nothing more. `task` is the one that runs it; a handler in it is let finish."""
        self._stopping = True
        if not self._busy:
            task.cancel()

    async def run(self) -> None:
        """Read for ever, or until `stop`, or until it is idle."""
        clock = self._session.clock
        failures = 0
        while not self._stopping:
            if await self._succeeds():
                failures = 0
                if self._idle is not None and self._found_nothing:
                    return
                continue
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures, 20))
            failures += 1
            await clock.sleep_until(clock.monotonic() + pause)

    async def _succeeds(self) -> bool:
        log = logger(queue=self._queue.name, service=self._queue.service)
        wait = LOOK_EVERY if self._idle is None else self._idle
        try:
            found = await read_once(self._session, self._queue, wait, taken=self._has_taken)
            self._found_nothing = not found
        except (ConnectionLost, QueueNotFound):
            raise
        except TransactionAborted:
            return False  # the connection was lost, or it took too long: the messages come again
        except QueueDisabled as error:
            log.info("broker.activation", subclass="queue_off", error=error.message)
            return False
        except Exception as error:  # per reader (house style 8)
            log.warning("broker.activation", subclass="handler_failed", exc_info=error)
            return False
        finally:
            self._busy = False
        return True

    def _has_taken(self) -> None:
        self._busy = True


async def read_once(
    session: Session, queue: Reads, wait: float, *, taken: Callable[[], None] = lambda: None
) -> bool:
    """One transaction: a batch of one group; False if none came. `taken` is called when some did.

    Who has ended a dialog takes no answer any more, and an answer to it fails the transaction. Then
    it is done again with fewer messages, in the end with that dialog's answers left out.
    """
    batch = queue.batch
    mute: frozenset[bytes] = frozenset()
    while True:
        messages: list[Message] = []
        try:
            async with session.transaction() as tx:
                messages += await tx.receive(queue.name, batch, wait=wait)
                if not mute.issuperset(message.handle for message in messages):
                    tx.not_counted = (InvalidState,)
                if messages:
                    taken()
                    await _Unit(session, queue, tx, mute).handle(messages)
        except (Retry, Park):  # rolled back with that outcome as the block was left
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
    """What becomes of one batch."""

    def __init__(
        self, session: Session, queue: Reads, tx: Transaction, mute: frozenset[bytes]
    ) -> None:
        self._session = session
        self._queue = queue
        self._tx = tx
        self._mute = mute

    async def handle(self, messages: list[Message]) -> None:
        """Each message in order; of a dialog that is ended on the way nobody wants the rest."""
        over: set[bytes] = set()
        for message in messages:
            if message.handle not in over and await self._handle_one(message):
                over.add(message.handle)

    async def _handle_one(self, message: Message) -> bool:
        """Whether the dialog is over now."""
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
        if not isinstance(outcome, End):
            if outcome is not None:
                await ctx.send(outcome)
            return False
        await ctx.answer(outcome)
        return True

    async def _outcome(self, ctx: Ctx, contract: Contract | None) -> object:
        """What the handler for it returns; an error where there is none, or nothing to read."""
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
                return await route.function(*arguments)
        text = f"{service} has no handler for {message.message_type}"
        return End(error=NOT_HANDLED, description=text)
