"""App: handlers by queue and type, for readers in the daemon or in another process (SDK-10).

Reads:  queues, in batches of one conversation group.      Calls: the verbs of a session.
Never:  decides how many readers run in the daemon (the queue monitor does), or commits half a
        batch: its receive, replies, ends and state changes are one transaction.
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
from brokerd.app.reader import Reader, Reads, Route
from brokerd.app.tracing import Tracing
from brokerd.client.session import Session
from brokerd.errors import InvalidArgument

SPARE: Final = 4
"""Number of a session's transactions that its readers leave free for their handlers."""

_F = TypeVar("_F", bound=Callable[..., Awaitable[Any]])


class App:
    """A service: its queues, and the handlers of their messages.

    `brokerd worker run module:app` runs the app as a process; `handler = "module:app"` of an
    activated queue runs it in the daemon; `await app.run(session)` runs it in any program.
    """

    def __init__(self, service: str, *, tracing: Tracing | None = None) -> None:
        """Create the app; `tracing`: makes spans in each session that has no tracing of its own."""
        self.service = service
        self._tracing = tracing
        self._queues: dict[str, Reads] = {}

    # Handlers and hooks.

    def activate(
        self,
        queue: str | None = None,
        *,
        contract: Contract | None = None,
        max_readers: int = 1,
        batch: int = 1,
    ) -> Callable[[_F], _F]:
        """Mark `async def handler(value, ctx)` as the handler for values of its first annotation.

        `queue`: by default the service's name followed by `_q`. `contract`: by default DEFAULT,
        whose message has the annotated type. `max_readers`: number of readers that run at a time.
        `batch`: maximum number of messages of one group that a reader receives for one commit. The
        handler's result is sent as the reply in that commit; None sends no reply, `End(reply)` also
        ends the dialog. The parameter `ctx` may be left out. If the handler raises, the transaction
        is rolled back and the messages are received again.

        Raises, when the function is marked:
            InvalidArgument: the handler is not an async function of one or two arguments, an
                annotation cannot be resolved, or the queue has a handler for DEFAULT already.
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
        """Mark `async def hook(error, ctx)` as the hook for dialogs ended with an error.

        The other side, or a broker, has ended the dialog; this side ends after the hook.

        Raises: nothing.
        """
        return self._hook(queue, "on_error")

    def on_end(self, queue: str | None = None) -> Callable[[_F], _F]:
        """Mark `async def hook(ctx)` as the hook for dialogs that the other side has ended.

        This side of the dialog ends after the hook.

        Raises: nothing.
        """
        return self._hook(queue, "on_end")

    def on_timer(self, queue: str | None = None) -> Callable[[_F], _F]:
        """Mark `async def hook(ctx)` as the hook for conversation timers that are due.

        Raises: nothing.
        """
        return self._hook(queue, "on_timer")

    def _hook(self, queue: str | None, name: str) -> Callable[[_F], _F]:
        known = self._queue(queue)

        def mark(function: _F) -> _F:
            known.hooks = msgspec.structs.replace(known.hooks, **{name: function})
            return function

        return mark

    def _queue(self, queue: str | None) -> Reads:
        name = queue or f"{self.service}_q"
        return self._queues.setdefault(name, Reads(name, self.service))

    # Objects that the app needs in a broker.

    @property
    def queues(self) -> tuple[str, ...]:
        """Names of the queues that the app reads."""
        return tuple(self._queues)

    @property
    def contracts(self) -> tuple[Contract, ...]:
        """Contracts of the app's handlers."""
        found = {n: c for queue in self._queues.values() for n, c in queue.contracts.items()}
        return tuple(found.values())

    def objects(self) -> dict[str, Any]:
        """Return the objects that the app needs, as in a file: contracts, queues, the service.

        Raises: nothing.
        """
        contracts = self.contracts
        found: dict[str, Any] = merged(one.objects() for one in contracts)
        first = next(iter(self._queues), f"{self.service}_q")
        found["queue"] = [
            {"name": name, "poison_mode": "park"} for name in self._queues or (first,)
        ]
        found["service"] = [
            {
                "name": self.service,
                "queue": first,
                "contracts": sorted(one.name for one in contracts),
            }
        ]
        return found

    # Running.

    def handler_for(self, queue: str) -> Callable[[Session], Awaitable[None]]:
        """Return the handler of one queue, as the daemon runs it.

        Raises:
            InvalidArgument: the app has no handler for the queue.
        """
        known = self._queues.get(queue)
        if known is None or not known.routes:
            raise InvalidArgument(
                f"app {self.service} has no handler for queue {queue}",
                hint=f"it has handlers for: {', '.join(self._queues) or 'no queue'}",
            )

        async def handle(session: Session) -> None:
            session.tracing = session.tracing or self._tracing
            await Reader(session, known, idle=session.drain_wait, by_load=True).run()

        return handle

    async def __call__(self, session: Session) -> None:
        """Read the only queue of the app until no message has come for a moment.

        Raises:
            InvalidArgument: the app has several queues.
            ConnectionLost: the daemon could not be reached again.
            BrokerError: an error of receiving from the queue; it ends a reader that the daemon
                started.
        """
        if len(self._queues) != 1:
            raise InvalidArgument(
                f"app {self.service} has several queues", hint="handler_for(queue) gives each one"
            )
        await self.handler_for(next(iter(self._queues)))(session)

    async def run(
        self, session: Session, *, stop: asyncio.Event | None = None, idle: float | None = None
    ) -> None:
        """Read all queues of the app, each with its `max_readers`, until cancelled.

        `idle`: return after this many seconds without a message, for a program that is started when
        there is work (ACT-44); None = never. `stop`: once it is set, no message is received, and
        this call returns when the running handlers have ended. A handler that raises delays only
        its own reader, longer each time. If a queue is switched off or dropped meanwhile, this is
        logged, and the queue is read again once that is possible.

        Raises:
            ConnectionLost: the daemon could not be reached again.
            QueueNotFound: a queue is missing at the start.
            InvalidArgument: there are more readers than a session has room for.
        """
        session.tracing = session.tracing or self._tracing
        readers = [
            Reader(session, queue, idle=idle)
            for queue in self._queues.values()
            for _ in range(queue.max_readers)
        ]
        room = session.welcome.limits.transactions - SPARE
        if len(readers) > room:
            raise InvalidArgument(
                f"app {self.service}: {len(readers)} readers, and a session has room for {room}",
                hint="lower max_readers, or run further processes",
            )
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(reader.run()) for reader in readers]
                if stop is not None:
                    await _first(stop, tasks)
                    for reader, task in zip(readers, tasks, strict=True):
                        reader.stop(task)
        except BaseExceptionGroup as errors:  # all have the same cause
            raise errors.exceptions[0] from None


async def _first(stop: asyncio.Event, tasks: list[asyncio.Task[None]]) -> None:
    """Return when `stop` is set, a reader has failed, or all readers are done."""
    asked = asyncio.ensure_future(stop.wait())
    left = set(tasks)
    try:
        while left and not asked.done():
            done, _ = await asyncio.wait({asked, *left}, return_when=asyncio.FIRST_COMPLETED)
            left -= done
            if any(one in done and (one.cancelled() or one.exception()) for one in tasks):
                return
    finally:
        asked.cancel()


def merged(parts: "typing.Iterable[dict[str, list[dict[str, object]]]]") -> dict[str, Any]:
    """Merge several declarations of objects into one, which has each name of a kind once.

    Raises: nothing.
    """
    found: dict[str, dict[str, Any]] = {}
    for part in parts:
        for kind, rows in part.items():
            names = found.setdefault(kind, {})
            for row in rows:
                names.setdefault(str(row["name"]), row)
    return {kind: list(rows.values()) for kind, rows in found.items()}


def _route(function: Callable[..., Awaitable[Any]]) -> Route:
    """Return the route of a handler, from its signature."""
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
    return Route(function, kinds, len(parameters) == 2)  # noqa: PLR2004


def _hints(function: Callable[..., Awaitable[Any]], name: str) -> Iterator[tuple[str, Kind]]:
    try:
        yield from typing.get_type_hints(function).items()
    except NameError as error:
        raise InvalidArgument(f"handler {name}: {error}") from error
