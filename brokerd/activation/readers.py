"""Readers: runs the handlers that the queue monitors order, each in a session of its own.

Reads:  facts of a queue, through a callable given at construction.
Calls:  monitor.step, handlers.load_handler, `connect` for the reader's session.
Never:  decides when to start (monitor does), reads a queue, or opens a transaction (ACT-22).
Wakes:  by the methods below, called on the loop by whoever commits, receives or alters; a lost
        call costs latency only, since `tick` looks at every queue.
Fails:  a handler fails alone; starts that fail are spaced out by the monitor (PBT-6).
"""

import asyncio
import contextvars
import os
from collections.abc import Awaitable, Callable, Container, Iterable
from typing import Final, Protocol

import msgspec
import structlog

from brokerd.activation.handlers import Handler, HandlerError, ReaderSession, load_handler
from brokerd.activation.monitor import (
    Altered,
    Arrived,
    Disabled,
    Enabled,
    Event,
    Limits,
    Monitor,
    MonitorState,
    QueueFacts,
    ReaderExited,
    ReceiveEmpty,
    ReceiveIssued,
    RolledBack,
    StartFailed,
    Ticked,
    Why,
    changes_nothing,
    step,
)
from brokerd.activation.processes import Child, Running, start, words_of
from brokerd.activation.rows import (
    REMOVED,
    Counts,
    MonitorRow,
    Rates,
    TaskRow,
    absent_reason,
    monitor_row,
)
from brokerd.broker.poison import Undone
from brokerd.client.outcomes import Park, Retry
from brokerd.clock import SECOND, Clock, Instant
from brokerd.errors import HandlerLeftTransactionOpen
from brokerd.logs import ACTIVATION
from brokerd.model import Activation, Host, Queue

_NO_FACTS = QueueFacts(ready=False)
_LATE: Final = 100


class Log(Protocol):
    """The part of a structlog logger that is used here."""

    def info(self, event: str, **values: object) -> object:
        """Write one event."""
        ...

    def warning(self, event: str, **values: object) -> object:
        """Write one event that an operator should see."""
        ...


Connect = Callable[[str], Awaitable[ReaderSession]]
"""Opens a session in the broker of that name; it is closed by leaving it."""
FactsOf = Callable[[str, str], QueueFacts]
"""(broker, queue) gives the facts of now; called on the loop, must not wait."""


class _Reader(msgspec.Struct, eq=False):
    """One running handler."""

    number: int
    queue: "_Monitored"
    handler: str
    """What it runs, in one text."""
    generation: int
    started_at: Instant
    started: float
    client_id: bytes = b""
    receives: int = 0
    last_receive_at: Instant | None = None
    invoked: bool = False
    stopped: bool = False
    """Whether it was told to end."""
    child: Running | None = None
    """Its process, if it has one of its own."""
    task: "asyncio.Task[None] | None" = None
    last_sign: float = 0.0
    """When it last began a receive, or was started (monotonic)."""
    error: str = ""


class _Monitored(msgspec.Struct, eq=False):
    """One queue: its definition, its monitor if it has one, its readers of all generations."""

    broker: str
    name: str
    activation: Activation = Activation("")
    limits: Limits = Limits()
    monitor: Monitor | None = None
    generation: int = 0
    absent_reason: str = ""
    readers: set[_Reader] = msgspec.field(default_factory=set)


class Readers:
    """The queue monitors of all brokers of an instance, and the readers they started.

    `limits` holds the timing for every queue; its `max_readers` is replaced by the queue's own.
    """

    def __init__(
        self,
        *,
        connect: Connect,
        facts: FactsOf,
        clock: Clock,
        log: Log,
        limits: Limits | None = None,
        address: str = "",
        tokens: Callable[[], bytes] = lambda: b"",
    ) -> None:
        """`address`: where child processes find the daemon; `tokens`: by which it knows them."""
        self._connect = connect
        self._facts = facts
        self._clock = clock
        self._log = log
        self._limits = limits or Limits()
        self._queues: dict[tuple[str, str], _Monitored] = {}
        self._address = address
        self._tokens = tokens
        self._by_client: dict[bytes, _Reader] = {}
        self._late: dict[
            bytes, _Reader
        ] = {}  # gone, while their connections may not be known to be
        self._tasks: set[asyncio.Task[None]] = set()
        self._group: asyncio.TaskGroup | None = None
        self._context = contextvars.Context()
        self._stopping = asyncio.Event()
        self._grace = 0.0
        self._numbers = 0
        self.counts = Counts()
        self._rates = Rates()

    async def run(self) -> None:
        """Run readers until `stop`; what `altered` told before takes effect now."""
        self._context = contextvars.copy_context()
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                for queue in self._queues.values():
                    self._feed(queue, Enabled())
                await self._stopping.wait()
                await self._drain(group)
            finally:
                self._group = None

    def stop(self, grace: float) -> None:
        """Start nothing more; cancel the readers that still run after `grace` seconds."""
        self._grace = grace
        self._stopping.set()

    # What happened, told by others on the loop.

    def altered(self, broker: str, queues: Iterable[Queue], *, delivery: bool = True) -> None:
        """These queues of a broker were created or altered (ACT-6e), or its delivery switched.

        Also the way they are made known at the start. Handlers that run are left alone (OBJ-46).
        """
        for definition in queues:
            name = definition.name
            queue = self._queues.setdefault((broker, name), _Monitored(broker, name))
            queue.absent_reason = absent_reason(definition, delivery=delivery)
            if (activation := definition.activation) is not None:
                queue.activation = activation
                queue.limits = msgspec.structs.replace(
                    self._limits, max_readers=activation.max_readers
                )
            self._realter(queue)

    def remaining(self, broker: str, queues: Container[str]) -> None:
        """The broker has these queues and no others any more."""
        for home, name in list(self._queues):
            if home == broker and name not in queues:
                self.removed(broker, name)

    def removed(self, broker: str, queue: str) -> None:
        """The queue was dropped; its readers run on and find it gone (ACT-Q9)."""
        known = self._queues.get((broker, queue))
        if known is not None and known.absent_reason != REMOVED:
            known.absent_reason = REMOVED
            self._feed(known, Disabled())
            self._forget(known)

    def arrived(self, broker: str, queue: str, *, was_empty: bool) -> None:
        """Messages were committed to the queue (ACT-6a, ACT-8).

        `was_empty`: it had no unread message just before this commit.
        """
        self._tell(broker, queue, Arrived(was_empty))

    def receive_issued(self, broker: str, queue: str, *, client_id: bytes) -> None:
        """A client begins a receive or get_group, selective or not (ACT-6b, ACT-30)."""
        if (reader := self._by_client.get(client_id)) is not None:
            reader.receives += 1
            reader.last_receive_at = self._clock.utc()
            reader.last_sign = self._clock.monotonic()
        self._tell(broker, queue, ReceiveIssued())

    def receive_empty(self, broker: str, queue: str, *, selective: bool) -> None:
        """A receive or get_group came back with nothing; selective ones do not count (ACT-12)."""
        self._tell(broker, queue, ReceiveEmpty(selective))

    def rolled_back(self, broker: str, queue: str) -> None:
        """A transaction that received from the queue was rolled back (ACT-6c)."""
        self._tell(broker, queue, RolledBack())

    def tick(self) -> int:
        """Check every queue (PER-3); how many readers that started."""
        before = self.counts.started
        self._rates.sample(self.counts, self._clock.monotonic())
        for queue in self._queues.values():
            self._end_overdue(queue)
            self._feed(queue, Ticked())
        return self.counts.started - before

    def _end_overdue(self, queue: _Monitored) -> None:
        """End readers that have not received for longer than their queue allows (ACT-51)."""
        deadline = queue.activation.deadline
        if deadline is None:
            return
        now = self._clock.monotonic()
        for reader in queue.readers:
            silent = now - reader.last_sign
            if silent * SECOND > deadline and not reader.error and reader.task is not None:
                reader.error = f"no receive for {silent:.0f} s, more than its deadline"
                reader.task.cancel()

    def judge(self, client_id: bytes, how: Undone) -> Undone | None:
        """What a rollback of a client means for poison, if it is a reader (PBT-10, PSN-16).

        The end of a reader's session in the middle of a transaction is a rollback like one that
        the handler asked for, unless the reader was told to end."""
        reader = self._by_client.get(client_id) or self._late.get(client_id)
        if reader is None:
            return how
        if reader.stopped:
            return None
        if reader.error and not how.counts:  # cancelled, as it was over its deadline (ACT-51)
            return msgspec.structs.replace(how, counts=True, error=reader.error)
        if how.disconnect:
            error = reader.error or HandlerLeftTransactionOpen().message
            return msgspec.structs.replace(how, disconnect=False, error=error)
        return how

    # What can be seen.

    def running(self, broker: str, queue: str) -> int:
        """Readers of this queue started by activation that run now."""
        known = self._queues.get((broker, queue))
        return 0 if known is None else len(known.readers)

    def trouble(self, broker: str, queue: str) -> str:
        """What the last reader failed with, while starts of this queue are spaced out; else ""."""
        known = self._queues.get((broker, queue))
        monitor = known.monitor if known is not None else None
        if monitor is None or not (monitor.failures or monitor.errors >= self._limits.errors):
            return ""
        return f"its readers fail: {monitor.last_failure}"

    def monitors(self) -> list[MonitorRow]:
        """The rows of `queue_monitors` (VIEW-6)."""
        now, utc = self._clock.monotonic(), self._clock.utc()
        return [
            monitor_row(
                queue.broker,
                queue.name,
                queue.monitor,
                _NO_FACTS if queue.monitor is None else self._facts(queue.broker, queue.name),
                running=len(queue.readers),
                limits=queue.limits,
                absent_reason=queue.absent_reason,
                now=now,
                utc=utc,
            )
            for queue in self._queues.values()
        ]

    def tasks(self) -> list[TaskRow]:
        """The rows of `activated_tasks` (ACT-18, VIEW-7)."""
        readers = [reader for queue in self._queues.values() for reader in queue.readers]
        return [
            TaskRow(
                reader=reader.number,
                session_id=reader.client_id.hex(),
                broker=reader.queue.broker,
                queue=reader.queue.name,
                procedure_name=reader.handler,
                execute_as=reader.queue.activation.run_as,
                started_at=reader.started_at,
                pid=os.getpid() if reader.child is None else reader.child.pid,
                receives=reader.receives,
                last_receive_at=reader.last_receive_at,
                monitor_generation=reader.generation,
            )
            for reader in sorted(readers, key=lambda one: one.number)
        ]

    def counters(self) -> dict[str, object]:
        """The row of `activation_counters` (VIEW-12)."""
        running = sum(len(queue.readers) for queue in self._queues.values())
        return self._rates.row(self.counts, running)

    # How it works.

    def _realter(self, queue: _Monitored) -> None:
        """Begin, alter or end the monitor of a queue, as its definition now says."""
        if queue.absent_reason:
            self._feed(queue, Disabled())
            return
        if queue.monitor is None or queue.monitor.state is MonitorState.DROPPED:
            queue.generation += 1
            queue.monitor = Monitor(queue.generation)
            self._feed(queue, Enabled())
        else:
            self._feed(queue, Altered())

    def _tell(self, broker: str, queue: str, event: Event) -> None:
        if (known := self._queues.get((broker, queue))) is not None:
            self._feed(known, event)

    def _feed(self, queue: _Monitored, event: Event) -> None:
        """Load, step, save, act."""
        monitor, now = queue.monitor, self._clock.monotonic()
        if monitor is None or (self._group is None and not isinstance(event, Disabled)):
            return
        if changes_nothing(monitor, event, now=now, limits=queue.limits):
            return
        ending = isinstance(event, Disabled) or monitor.state is MonitorState.DROPPED
        facts = _NO_FACTS if ending else self._facts(queue.broker, queue.name)
        after, starts = step(
            monitor, event, facts, len(queue.readers), now=now, limits=queue.limits
        )
        queue.monitor = after
        if after is not None:
            self._report(queue, monitor, after)
        for order in starts:
            self._start(queue, order.why, facts)

    def _report(self, queue: _Monitored, before: Monitor, after: Monitor) -> None:
        """One log record per step of a back-off (PBT-6), and the count of ACT-17."""
        self.counts.limit_reached += after.limit_reached - before.limit_reached
        if after.failures <= before.failures:
            return
        self.counts.failed_to_start += 1
        self._log.warning(
            ACTIVATION,
            subclass="failed_to_start",
            broker=queue.broker,
            queue=queue.name,
            handler=queue.activation.procedure,
            error=after.last_failure,
            failures=after.failures,
            retry_in=round(after.backoff_until - self._clock.monotonic(), 3),
            active=len(queue.readers),
        )

    def _start(self, queue: _Monitored, why: Why, facts: QueueFacts) -> None:
        if self._group is None or self._stopping.is_set():
            return
        self._numbers += 1
        reader = _Reader(
            number=self._numbers,
            queue=queue,
            handler=queue.activation.procedure,
            generation=queue.generation,
            started_at=self._clock.utc(),
            started=self._clock.monotonic(),
            last_sign=self._clock.monotonic(),
        )
        queue.readers.add(reader)
        self.counts.started += 1
        self._event(reader, "started", why=str(why), waiting=facts.waiting)
        # The instance's context: a handler inherits nothing from whoever caused its start (ACT-21).
        task = self._group.create_task(
            self._read(reader),
            name=f"reader {reader.number} of {queue.broker}/{queue.name}",
            context=self._context.copy(),
        )
        reader.task = task
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._gone(reader, done))

    async def _read(self, reader: _Reader) -> None:
        """Run one handler to its end; whatever it raises stays here."""
        queue = reader.queue
        structlog.contextvars.bind_contextvars(
            broker=queue.broker, queue=queue.name, reader=reader.number
        )
        try:
            if queue.activation.host is Host.PROCESS:
                await self._read_in_process(reader)
                return
            handler = load_handler(queue.activation.handler, queue.name)
            async with await self._connect(queue.broker) as session:
                reader.client_id = session.client_id
                self._by_client[reader.client_id] = reader
                reader.invoked = True
                self.counts.invoked += 1
                await self._handle(reader, handler, session)
        except HandlerError as error:
            reader.error = error.message
        except (Exception, SystemExit, BaseExceptionGroup) as error:  # noqa: BLE001  # one reader
            reader.error = reader.error or _text_of(error)

    async def _read_in_process(self, reader: _Reader) -> None:
        """Run one child to its end; what it says of itself stays here."""
        queue, token = reader.queue, self._tokens()
        child = Child(
            words=words_of(queue.activation, queue.name),
            environment={
                "BROKERD_ADDRESS": self._address,
                "BROKERD_BROKER": queue.broker,
                "BROKERD_QUEUE": queue.name,
                "BROKERD_READER": token.hex(),
            },
            run_as=queue.activation.run_as,
            memory=queue.activation.memory,
        )
        try:
            running = await start(child, lambda line: self._event(reader, "task_output", line=line))
        except (OSError, LookupError) as error:
            reader.error = f"it cannot be started: {error}"
            return
        reader.client_id, reader.child, reader.invoked = token, running, True
        self._by_client[token] = reader
        self.counts.invoked += 1
        reader.error = reader.error or await running.ended()
        if running.dropped:
            self._event(reader, "task_output", dropped_bytes=running.dropped)

    async def _handle(self, reader: _Reader, handler: Handler, session: ReaderSession) -> None:
        """Run the handler; what it raised is known before its session ends (PSN-16)."""
        try:
            await handler(session)
        except (Retry, Park):
            pass  # its transaction was rolled back as it said
        except (Exception, SystemExit, BaseExceptionGroup) as error:
            reader.error = _text_of(error)
            raise
        if session.open_transactions:
            reader.error = HandlerLeftTransactionOpen().message

    def _gone(self, reader: _Reader, task: asyncio.Task[None]) -> None:
        """Count a reader out, however it went, and let the monitor know (ACT-6d)."""
        self._tasks.discard(task)
        self._by_client.pop(reader.client_id, None)
        if reader.child is not None:
            self._late[reader.client_id] = reader
            while len(self._late) > _LATE:
                del self._late[next(iter(self._late))]
        reader.queue.readers.discard(reader)
        if task.cancelled():
            reader.error = reader.error or "cancelled"
        if reader.invoked:
            self._log_end(reader)
        self._feed(reader.queue, _exit_of(reader))
        self._forget(reader.queue)

    def _forget(self, queue: _Monitored) -> None:
        """Drop a removed queue once its readers are gone; until then they count (ACT-33)."""
        if queue.absent_reason == REMOVED and not queue.readers:
            self._queues.pop((queue.broker, queue.name), None)

    def _log_end(self, reader: _Reader) -> None:
        seconds = round(self._clock.monotonic() - reader.started, 6)
        if reader.error:
            self.counts.aborted += 1
            self._event(
                reader, "aborted", seconds=seconds, receives=reader.receives, error=reader.error
            )
        else:
            self.counts.ended += 1
            self._event(reader, "ended", seconds=seconds, receives=reader.receives)

    def _event(self, reader: _Reader, subclass: str, **values: object) -> None:
        write = self._log.warning if subclass == "aborted" else self._log.info
        write(
            ACTIVATION,
            subclass=subclass,
            broker=reader.queue.broker,
            queue=reader.queue.name,
            reader=reader.number,
            handler=reader.handler,
            active=len(reader.queue.readers),
            **values,
        )

    async def _drain(self, group: asyncio.TaskGroup) -> None:
        """Wait for the readers, at most for the grace period; then cancel them."""
        deadline = self._clock.monotonic() + self._grace
        for reader in self._by_client.values():
            if reader.child is not None:
                reader.stopped = True
                reader.child.terminate()
        timer = group.create_task(self._clock.sleep_until(deadline))
        while self._tasks and not timer.done():
            await asyncio.wait({timer, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
        timer.cancel()
        for reader in self._by_client.values():
            reader.stopped = True
        for task in self._tasks:
            task.cancel()


def _text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _exit_of(reader: _Reader) -> Event:
    if not reader.invoked:
        return StartFailed(reader.generation, reader.error)
    return ReaderExited(reader.receives > 0, reader.generation, reader.error)
