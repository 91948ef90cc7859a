"""App: handlers by queue and type, for readers in the daemon or in a process of one's own (SDK-10).

Reads:  queues, in batches of one conversation group.      Calls: the verbs of a session.
Never:  decides how many readers run in the daemon (the queue monitor does), or commits half a
        batch: receive, replies, ends and state of it are one transaction.
"""

import asyncio
import inspect
import typing
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, TypeVar

import msgspec

from brokerd.app import bodies
from brokerd.app.bodies import Kind
from brokerd.app.contract import Contract
from brokerd.app.deliveries import Delivery, handled
from brokerd.app.deliveries import Hooks as _Hooks
from brokerd.app.log import logger
from brokerd.client.messages import Message
from brokerd.client.session import Session
from brokerd.client.transaction import Transaction
from brokerd.clock import Clock
from brokerd.errors import (
    ConnectionLost,
    InvalidArgument,
    InvalidState,
    QueueDisabled,
    QueueNotFound,
    TransactionAborted,
)

IDLE: Final = 0.5
"""Seconds without a message after which a reader in the daemon ends (ACT-25)."""
LOOK_EVERY: Final = 60.0
FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 30.0
SPARE: Final = 4
"""Transactions of a session that readers leave to their handlers."""
NOT_HANDLED: Final = 1
"""Error code with which a dialog is ended when no handler takes its message."""
NOT_READABLE: Final = 2
"""Error code for a body that is not what its message type says."""

_F = TypeVar("_F", bound=Callable[..., Awaitable[Any]])


class End(msgspec.Struct, frozen=True):
    """What a handler returns to end the dialog: after a reply, or with an error."""

    reply: Any = None
    error: int | None = None
    description: str | None = None


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


class _Route(msgspec.Struct, frozen=True):
    """A handler and the values it takes."""

    function: Callable[..., Awaitable[Any]]
    kinds: tuple[Kind, ...]
    takes_ctx: bool


class _Queue:
    """What an app does with one queue."""

    def __init__(self, name: str, service: str) -> None:
        self.name = name
        self.service = service
        self.max_readers = 1
        self.batch = 1
        self.contracts: dict[str, Contract] = {}
        self.routes: list[_Route] = []
        self.hooks = _Hooks()


class App:
    """A service: its queues and what to do with their messages.

    `brokerd worker run module:app` runs it as a process; `handler = "module:app"` of an activated
    queue runs it in the daemon; `await app.run(session)` runs it wherever there is a session.
    """

    def __init__(self, service: str) -> None:
        self.service = service
        self._queues: dict[str, _Queue] = {}

    # Saying what to do.

    def activate(
        self,
        queue: str | None = None,
        *,
        contract: Contract | None = None,
        max_readers: int = 1,
        batch: int = 1,
    ) -> Callable[[_F], _F]:
        """Mark `async def handler(value, ctx)` as what takes the values of its first annotation.

        `queue`: by default the service's name and `_q`. `contract`: by default DEFAULT, whose
        message is of the annotated type. `max_readers` run at a time; each receives up to `batch`
        messages of one group for one commit. What the handler returns is sent as reply in that
        commit; None sends nothing, `End(reply)` also ends the dialog. `ctx` may be left out. If it
        raises, everything is rolled back and the messages come again.
        """
        known = self._queue(queue)

        def mark(function: _F) -> _F:
            route = _route(function)
            kind = bytes if len(route.kinds) != 1 else route.kinds[0]
            used = contract or Contract.default(kind)
            if known.contracts.setdefault(used.name, used) is not used and contract is None:
                raise InvalidArgument(f"queue {known.name}: DEFAULT has a handler already")
            known.routes.append(route)
            known.max_readers = max(known.max_readers, max_readers)
            known.batch = max(known.batch, batch)
            return function

        return mark

    def on_error(self, queue: str | None = None) -> Callable[[_F], _F]:
        """Mark `async def hook(error, ctx)`: the other side ended a dialog with an error."""
        return self._hook(queue, "on_error")

    def on_end(self, queue: str | None = None) -> Callable[[_F], _F]:
        """Mark `async def hook(ctx)`: the other side ended a dialog; this side ends after it."""
        return self._hook(queue, "on_end")

    def on_timer(self, queue: str | None = None) -> Callable[[_F], _F]:
        """Mark `async def hook(ctx)`: a conversation timer of this side is due."""
        return self._hook(queue, "on_timer")

    def _hook(self, queue: str | None, name: str) -> Callable[[_F], _F]:
        known = self._queue(queue)

        def mark(function: _F) -> _F:
            known.hooks = msgspec.structs.replace(known.hooks, **{name: function})
            return function

        return mark

    def _queue(self, queue: str | None) -> _Queue:
        name = queue or f"{self.service}_q"
        return self._queues.setdefault(name, _Queue(name, self.service))

    # What it needs of a broker.

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues it reads."""
        return tuple(self._queues)

    def objects(self) -> dict[str, Any]:
        """What a file of objects would say of it: contracts, queues, and the service as target."""
        contracts = {
            name: one for queue in self._queues.values() for name, one in queue.contracts.items()
        }
        found: dict[str, Any] = merged(one.objects() for one in contracts.values())
        first = next(iter(self._queues), f"{self.service}_q")
        found["queue"] = [{"name": name} for name in self._queues or (first,)]
        found["service"] = [{"name": self.service, "queue": first, "contracts": sorted(contracts)}]
        return found

    # Running.

    def handler_for(self, queue: str) -> Callable[[Session], Awaitable[None]]:
        """The handler of one queue, as the daemon runs it; `InvalidArgument` if there is none."""
        known = self._queues.get(queue)
        if known is None or not known.routes:
            raise InvalidArgument(
                f"app {self.service} has no handler for queue {queue}",
                hint=f"it has handlers for: {', '.join(self._queues) or 'no queue'}",
            )

        async def handle(session: Session) -> None:
            while await _work(session, known, IDLE):
                pass

        return handle

    async def __call__(self, session: Session) -> None:
        """Read its only queue until it stays empty for a moment."""
        if len(self._queues) != 1:
            raise InvalidArgument(
                f"app {self.service} has several queues", hint="handler_for(queue) gives each one"
            )
        await self.handler_for(next(iter(self._queues)))(session)

    async def run(self, session: Session) -> None:
        """Read all its queues, with as many readers as each may have, until cancelled.

        A handler that raises costs its own reader a growing pause, nobody else anything. Raises
        `ConnectionLost` when the daemon stays away, `QueueNotFound` if a queue is missing.
        """
        readers = sum(queue.max_readers for queue in self._queues.values())
        room = session.welcome.limits.transactions - SPARE
        if readers > room:
            raise InvalidArgument(
                f"app {self.service}: {readers} readers, and a session has room for {room}",
                hint="lower max_readers, or run further processes",
            )
        try:
            async with asyncio.TaskGroup() as group:
                for queue in self._queues.values():
                    for _ in range(queue.max_readers):
                        group.create_task(_read(session, queue), name=f"reader of {queue.name}")
        except BaseExceptionGroup as errors:  # all for the same reason
            raise errors.exceptions[0] from None


def merged(parts: "typing.Iterable[dict[str, list[dict[str, object]]]]") -> dict[str, Any]:
    """Objects of several parts in one declaration, each name once."""
    found: dict[str, dict[str, Any]] = {}
    for part in parts:
        for kind, rows in part.items():
            names = found.setdefault(kind, {})
            for row in rows:
                names.setdefault(str(row["name"]), row)
    return {kind: list(rows.values()) for kind, rows in found.items()}


# One reader.


async def _read(session: Session, queue: _Queue) -> None:
    """Work for ever; after a failure pause, the longer the more there were in a row."""
    clock: Clock = session.clock
    failures = 0
    while True:
        try:
            await _work(session, queue, LOOK_EVERY)
            failures = 0
            continue
        except (ConnectionLost, QueueNotFound):
            raise
        except TransactionAborted:
            pass  # the connection was lost, or the daemon gave it up: the messages come again
        except QueueDisabled as error:
            _log(queue).info("broker.activation", subclass="queue_off", error=error.message)
        except Exception as error:  # noqa: BLE001  # per reader (house style 8)
            _log(queue).warning("broker.activation", subclass="handler_failed", exc_info=error)
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures, 20))
        failures += 1
        await clock.sleep_until(clock.monotonic() + pause)


async def _work(session: Session, queue: _Queue, wait: float) -> bool:
    """One transaction: a batch of one group; False if none came.

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
                over: set[bytes] = set()
                for message in messages:
                    if message.handle not in over:
                        await _handle(session, queue, tx, message, over, mute)
        except InvalidState:
            handles = frozenset(message.handle for message in messages)
            if handles <= mute:
                raise
            if len(handles) > 1:
                batch = 1
            else:
                mute = handles
        else:
            return bool(messages)


async def _handle(
    session: Session,
    queue: _Queue,
    tx: Transaction,
    message: Message,
    over: set[bytes],
    mute: frozenset[bytes],
) -> None:
    """One message; `over` are dialogs this transaction has ended, whose rest nobody wants."""
    contract = queue.contracts.get(message.contract)
    ctx = Ctx(message, tx=tx, session=session, contract=contract, mute=message.handle in mute)
    if await handled(ctx, queue.hooks):
        if not message.is_timer:
            over.add(message.handle)
        return
    outcome = await _outcome(queue, ctx, contract)
    if isinstance(outcome, End):
        if outcome.reply is not None:
            await ctx.send(outcome.reply)
        await ctx.end(outcome.error, outcome.description)
        over.add(message.handle)
    elif outcome is not None:
        await ctx.send(outcome)


async def _outcome(queue: _Queue, ctx: Ctx, contract: Contract | None) -> object:
    message = ctx.message
    if contract is None or message.message_type not in contract.kinds:
        text = f"{queue.service} does not handle {message.message_type} of {message.contract}"
        return End(error=NOT_HANDLED, description=text)
    try:
        value = contract.read(message)
    except ValueError as error:
        text = f"{message.message_type} cannot be read: {error}"[:3000]
        return End(error=NOT_READABLE, description=text)
    for route in queue.routes:
        if any(bodies.is_a(value, kind) for kind in route.kinds):
            return await (route.function(value, ctx) if route.takes_ctx else route.function(value))
    text = f"{queue.service} has no handler for {message.message_type}"
    return End(error=NOT_HANDLED, description=text)


def _route(function: Callable[..., Awaitable[Any]]) -> _Route:
    """Read the signature of a handler."""
    name = getattr(function, "__qualname__", repr(function))
    if not inspect.iscoroutinefunction(function):
        raise InvalidArgument(f"handler {name} is not an async function")
    parameters = list(inspect.signature(function).parameters.values())
    if not 1 <= len(parameters) <= 2:  # noqa: PLR2004
        raise InvalidArgument(
            f"handler {name} takes {len(parameters)} arguments",
            hint="a handler is: async def handle(value: Order, ctx: Ctx)",
        )
    hints = dict(_hints(function, name))
    kind = hints.get(parameters[0].name, object)
    kinds = bodies.members(kind)
    return _Route(function, kinds, len(parameters) == 2)  # noqa: PLR2004


def _hints(function: Callable[..., Awaitable[Any]], name: str) -> Iterator[tuple[str, Kind]]:
    try:
        yield from typing.get_type_hints(function).items()
    except NameError as error:
        raise InvalidArgument(f"handler {name}: {error}") from error


def _log(queue: _Queue) -> Any:  # noqa: ANN401  # structlog's own type
    return logger(queue=queue.name, service=queue.service)
