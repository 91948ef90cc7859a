"""Readers: the queue monitors of an instance, and the readers or notifications they order.

Reads:  facts of a queue, through callables given at construction.
Calls:  monitor.step, runner.Runner, `notify` where external activators start readers (ACT-34).
Never:  decides when to start a reader (monitor), reads a queue, or runs a handler (runner).
Wakes:  by its methods, called on the loop; a lost call costs latency: `tick` checks all queues.
Fails:  a handler fails alone; the monitor spaces out failing starts (PBT-6).
"""

import asyncio
import contextvars
import os
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Final

import msgspec

from brokerd.activation import decisions
from brokerd.activation.decisions import Decision, Decisions, Ready
from brokerd.activation.draining import Drained, drain, request_end
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
from brokerd.activation.monitored_queue import MonitoredQueue, Reader
from brokerd.activation.runner import Connect, Runner
from brokerd.activation.view_rows import (
    REMOVED,
    Counts,
    MonitorRow,
    Rates,
    TaskRow,
    absent_reason,
    monitor_row,
)
from brokerd.broker.poison import Undone
from brokerd.clock import SECOND, Clock
from brokerd.model import Queue
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import ACTIVATION

_ENDED: Final = (
    "it did not end when it was told to; fix: let it end when a receive comes back empty, or give "
    "it longer (daemon.drain, the grace of queue drain)"
)
_CANCELLED: Final = "it cancelled itself; fix: catch asyncio.CancelledError in the handler"
_NO_FACTS: Final = QueueFacts(ready=False)
FactsOf = Callable[[str, str], QueueFacts]
"""Function of (broker, queue) that returns the current facts; runs on the loop, must not wait."""
ReadyOf = Callable[[str, str], Ready]
"""Function of (broker, queue) that returns the ready messages, as figures for operators.

It may count many groups, so it is called for decisions only."""
Notify = Callable[[str, str, Ready], None]
"""Function of (broker, queue, ready messages) that notifies external activators (ACT-34)."""


class Readers:
    """The queue monitors of all brokers of an instance, and the readers they started."""

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
        ready: ReadyOf = lambda _broker, _queue: Ready(),
        notify: Notify = lambda _broker, _queue, _ready: None,
    ) -> None:
        """Create the readers of an instance.

        `limits`: timing for every queue; a queue's own activation replaces `max_readers`,
        `initial_readers` and `ramp_interval`. `address`: address of the daemon for child
        processes. `tokens`: draws the token by which the daemon recognises a child."""
        self._facts = facts
        self._ready = ready
        self._notify = notify
        self._clock = clock
        self._log = log
        self._limits = limits or Limits()
        self._queues: dict[tuple[str, str], MonitoredQueue] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._group: asyncio.TaskGroup | None = None
        self._context = contextvars.Context()
        self._stopping = asyncio.Event()
        self._grace = 0.0
        self._numbers = 0
        self.counts = Counts()
        self._rates = Rates()
        self._runner = Runner(
            connect=connect,
            address=address,
            tokens=tokens,
            output=self._output,
            counts=self.counts,
        )

    async def run(self) -> None:
        """Run readers until `stop`; begin with the queues that `altered` has added before."""
        self._context = contextvars.copy_context()
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                for queue in self._queues.values():
                    self._runner.spares.adjust(queue)
                    self._feed(queue, Enabled())
                await self._stopping.wait()
                await self._end_all(group)
            finally:
                self._group = None
                await self._runner.spares.stop()

    def stop(self, grace: float) -> None:
        """Start no further reader; cancel the readers that still run after `grace` seconds."""
        self._grace = grace
        self._stopping.set()

    # Events, reported on the loop by other packages.

    def altered(
        self,
        broker: str,
        queues: Iterable[Queue],
        *,
        delivery: bool = True,
        subscribed: Mapping[str, float] | None = None,
    ) -> None:
        """Apply the definitions of a broker's queues (ACT-6e).

        Also called at the start of the instance. An unchanged queue keeps its state, including its
        back-off: switching one queue off must not start the failing readers of another. Running
        handlers continue (OBJ-46). `delivery`: whether the delivery of the broker is on.
        `subscribed`: queues with a subscription to QUEUE_ACTIVATION, each with the seconds after
        which a notification is repeated if no receive followed it (ACT-37)."""
        for definition in queues:
            renotify = (subscribed or {}).get(definition.name)
            queue = self._known(broker, definition.name)
            applied = (definition, delivery, renotify)
            if queue.applied == applied:
                continue
            queue.applied = applied
            queue.absent_reason = absent_reason(
                definition, delivery=delivery, subscribed=renotify is not None
            )
            if definition.activation is not None:
                queue.activation = definition.activation
            queue.limits = self._limits_of(definition, renotify)
            self._realter(queue)

    def altered_alike(self, broker: str, queue: str) -> None:
        """Re-arm a queue after an option was set to the value that it already had (ACT-7)."""
        known = self._queues.get((broker, queue))
        if known is not None:
            self._realter(known)

    def _known(self, broker: str, name: str) -> MonitoredQueue:
        queue = self._queues.get((broker, name))
        if queue is None:
            queue = MonitoredQueue(broker, name, Decisions(broker, name))
            self._queues[broker, name] = queue
        return queue

    def _limits_of(self, definition: Queue, renotify: float | None) -> Limits:
        activation = definition.activation
        if renotify is not None:
            return msgspec.structs.replace(self._limits, external=True, renotify=renotify)
        if activation is None:
            return self._limits
        ramp = activation.ramp_interval
        return msgspec.structs.replace(
            self._limits,
            max_readers=activation.max_readers,
            initial_readers=activation.initial_readers,
            ramp_interval=self._limits.ramp_interval if ramp is None else ramp / SECOND,
        )

    def remaining(self, broker: str, queues: Container[str]) -> None:
        """Remove the queues of a broker that are not in `queues`."""
        for home, name in list(self._queues):
            if home == broker and name not in queues:
                self.removed(broker, name)

    def removed(self, broker: str, queue: str) -> None:
        """Remove a dropped queue; its readers keep running, and find it dropped (ACT-Q9)."""
        known = self._queues.get((broker, queue))
        if known is not None and known.absent_reason != REMOVED:
            known.absent_reason = REMOVED
            known.applied = None
            self._runner.spares.adjust(known)
            self._feed(known, Disabled())
            self._forget(known)

    def arrived(self, broker: str, queue: str, *, was_empty: bool) -> None:
        """Report that messages were committed to the queue (ACT-6a, ACT-8).

        `was_empty`: the queue had no unread message just before this commit."""
        self._notify_monitor(broker, queue, Arrived(was_empty))

    def receive_issued(
        self, broker: str, queue: str, *, known_as: bytes, session_id: bytes | None = None
    ) -> bool:
        """Report that a session begins a receive or get_group, selective or not (ACT-6b, ACT-30).

        Return False if the receive must return empty, because the session's reader was asked to
        end (PBT-25)."""
        # Only receives from its own queue count for a reader: its monitor never sees other
        # receives (ACT-31). But every receive is a sign of life (ACT-51).
        reader = self._runner.find(known_as)
        if reader is not None:
            if (broker, queue) == (reader.queue.broker, reader.queue.name):
                reader.receives += 1
                reader.last_receive_at = self._clock.utc()
            reader.last_sign = self._clock.monotonic()
            reader.cut = False
            reader.session_id = session_id or reader.session_id
        self._notify_monitor(broker, queue, ReceiveIssued())
        return reader is None or not reader.stopped

    def receive_empty(self, broker: str, queue: str, *, selective: bool) -> None:
        """Report that a receive or get_group returned empty.

        `selective`: whether it was selective; such a receive does not count (ACT-12)."""
        self._notify_monitor(broker, queue, ReceiveEmpty(selective))

    def rolled_back(self, broker: str, queue: str) -> None:
        """Report that a transaction that received from the queue was rolled back (ACT-6c)."""
        self._notify_monitor(broker, queue, RolledBack())

    def tick(self) -> int:
        """Check every queue (PER-3); return the number of readers started."""
        before = self.counts.started
        self._rates.sample(self.counts, self._clock.monotonic())
        for queue in self._queues.values():
            self._runner.spares.adjust(queue)
            self._end_overdue(queue)
            self._feed(queue, Ticked())
        return self.counts.started - before

    def _end_overdue(self, queue: MonitoredQueue) -> None:
        """End readers that have not received for longer than their queue allows (ACT-51)."""
        deadline = queue.activation.deadline
        if deadline is None:
            return
        now = self._clock.monotonic()
        for reader in queue.readers:
            silent = now - reader.last_sign
            if silent * SECOND > deadline and not reader.error and reader.task is not None:
                reader.error = (
                    f"no receive for {silent:.0f} s, more than its deadline; fix: let it receive "
                    "more often, or give activation.deadline of the queue a higher value"
                )
                reader.task.cancel()

    def evaluate_rollback(self, known_as: bytes, how: Undone) -> Undone | None:
        """Return what a rollback of a client or reader means for poison (PBT-10, PSN-16).

        None = it does not count."""
        return self._runner.evaluate_rollback(known_as, how)

    async def drain(self, broker: str, queue: str, grace: float) -> Drained:
        """Give the readers of a queue `grace` seconds to end; then end the rest (PBT-25).

        The caller has switched the activation of the queue off, so that no reader is started, and
        ends the waiting receives. The messages of a reader that is ended return to the queue; this
        rollback does not count for poison."""
        known = self._queues.get((broker, queue))
        readers = [] if known is None else list(known.readers)
        done = await drain(readers, grace, self._clock)
        if known is not None:
            self._decide(known, "drained", done.text)
        return done

    # Rows of views.

    def running(self, broker: str, queue: str) -> int:
        """Return the number of running readers of the queue that activation started."""
        known = self._queues.get((broker, queue))
        return 0 if known is None else len(known.readers)

    def trouble(self, broker: str, queue: str) -> str:
        """Return the last reader's error while starts for the queue are spaced out, else ""."""
        known = self._queues.get((broker, queue))
        monitor = known.monitor if known is not None else None
        if monitor is None or not (monitor.failures or monitor.errors >= self._limits.errors):
            return ""
        return f"its readers fail: {monitor.last_failure}"

    @property
    def known(self) -> list[tuple[str, str]]:
        """Broker and name of every queue that has or had a monitor."""
        return list(self._queues)

    def monitors(self, of: tuple[str, str] | None = None) -> list[MonitorRow]:
        """Return rows of `queue_monitors`: of queues with a monitor, or that still have readers."""
        now, utc = self._clock.monotonic(), self._clock.utc()
        return [
            monitor_row(
                *(queue.broker, queue.name, queue.monitor, self._facts(queue.broker, queue.name)),
                running=queue.running,
                limits=queue.limits,
                absent_reason=queue.absent_reason,
                now=now,
                utc=utc,
            )
            for queue in (self._queues.values() if of is None else (self._queues.get(of),))
            if queue
            and queue.monitor is not None
            and (queue.monitor.state is not MonitorState.DROPPED or queue.readers)
        ]

    def why_unmonitored(self, broker: str, queue: str) -> str:
        """Return why a queue has no monitor; empty if it has one (ACT-5)."""
        known = self._queues.get((broker, queue))
        return "" if known is None else known.absent_reason

    def tasks(self) -> list[TaskRow]:
        """Return the rows of `activated_tasks` (ACT-18, VIEW-7)."""
        return [
            TaskRow(
                reader=reader.number,
                session_id=reader.session_id.hex(),
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
            for reader in self._all()
        ]

    def decisions(self, of: tuple[str, str]) -> list[Decision]:
        """Return the rows of `activation_decisions` of one queue (VIEW-15)."""
        return [] if (queue := self._queues.get(of)) is None else queue.decisions.rows()

    def counters(self) -> dict[str, object]:
        """Return the row of `activation_counters` (VIEW-12)."""
        running = sum(len(queue.readers) for queue in self._queues.values())
        return self._rates.row(self.counts, running)

    # From an event to a start.

    def _realter(self, queue: MonitoredQueue) -> None:
        """Begin, alter or end the monitor of a queue according to its current definition."""
        if self._group is not None:
            self._runner.spares.adjust(queue)
        if queue.absent_reason:
            if queue.monitor is not None and queue.monitor.state is not MonitorState.DROPPED:
                self._decide(queue, "disabled", f"no further reader: {queue.absent_reason}")
            self._feed(queue, Disabled())
            return
        if queue.monitor is None or queue.monitor.state is MonitorState.DROPPED:
            queue.generation += 1
            queue.monitor = Monitor(queue.generation)
            self._decide(queue, "enabled", _enabled(queue))
            self._feed(queue, Enabled())
        else:
            self._feed(queue, Altered())

    def _notify_monitor(self, broker: str, queue: str, event: Event) -> None:
        if (known := self._queues.get((broker, queue))) is not None:
            self._feed(known, event)

    def _feed(self, queue: MonitoredQueue, event: Event) -> None:
        """Load the facts, step the monitor, save it, and carry out its orders."""
        monitor = queue.monitor
        if monitor is None or (self._group is None and not isinstance(event, Disabled)):
            return
        now = self._clock.monotonic()
        if changes_nothing(monitor, event, now=now, limits=queue.limits):
            return
        ending = isinstance(event, Disabled) or monitor.state is MonitorState.DROPPED
        facts = _NO_FACTS if ending else self._facts(queue.broker, queue.name)
        after, starts = step(
            monitor,
            event,
            facts,
            queue.running,
            now=now,
            limits=queue.limits,
        )
        queue.monitor = after
        if after is not None:
            self._report(queue, monitor, after)
        ready = self._ready(queue.broker, queue.name) if starts else Ready()
        for order in starts:
            if queue.limits.external:
                self._notify_subscribers(queue, order.why, facts, ready)
            else:
                self._start(queue, order.why, facts, ready)

    def _report(self, queue: MonitoredQueue, before: Monitor, after: Monitor) -> None:
        """Log one record per step of a back-off (PBT-6), and count starts refused by the limit
        (ACT-17)."""
        if after.limit_reached > before.limit_reached:
            self.counts.limit_reached += after.limit_reached - before.limit_reached
            ready = self._ready(queue.broker, queue.name)
            text = decisions.limit_reached(ready, len(queue.readers), queue.limits)
            self._decide(queue, "limit reached", text)
        if after.failures <= before.failures:
            return
        self.counts.failed_to_start += 1
        wait = round(after.backoff_until - self._clock.monotonic(), 3)
        text = decisions.backing_off(after.failures, wait, after.last_failure)
        self._decide(queue, "backing off", text)
        self._log.warning(
            ACTIVATION,
            subclass="failed_to_start",
            broker=queue.broker,
            queue=queue.name,
            handler=queue.activation.procedure,
            error=after.last_failure,
            failures=after.failures,
            retry_in=wait,
            active=len(queue.readers),
        )

    def _notify_subscribers(
        self, queue: MonitoredQueue, why: Why, facts: QueueFacts, ready: Ready
    ) -> None:
        """Notify the subscribers that another reader is wanted (ACT-34, ACT-36)."""
        if self._group is None or self._stopping.is_set():
            return
        self.counts.notified += 1
        reason = decisions.why_started(why, ready, facts, 0, queue.limits)
        self._decide(queue, "notified", f"notified subscribers: {reason}")
        self._log.info(
            ACTIVATION,
            subclass="notified",
            broker=queue.broker,
            queue=queue.name,
            why=str(why),
            waiting=facts.waiting,
            ready_messages=ready.messages,
            ready_groups=ready.groups,
        )
        self._notify(queue.broker, queue.name, ready)

    def _start(self, queue: MonitoredQueue, why: Why, facts: QueueFacts, ready: Ready) -> None:
        if self._group is None or self._stopping.is_set():
            return
        self._numbers += 1
        reason = decisions.why_started(why, ready, facts, len(queue.readers), queue.limits)
        reader = Reader(
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
        text = f"started reader {reader.number}: {reason}"
        self._decide(queue, "started", text)
        self._event(
            reader,
            "started",
            why=str(why),
            waiting=facts.waiting,
            ready_messages=ready.messages,
            ready_groups=ready.groups,
            decision=text,
        )
        # The instance's context: a handler inherits nothing from the cause of its start (ACT-21).
        task = self._group.create_task(
            self._runner.run(reader),
            name=f"reader {reader.number} of {queue.broker}/{queue.name}",
            context=self._context.copy(),
        )
        reader.task = task
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._gone(reader, done))

    def _gone(self, reader: Reader, task: asyncio.Task[None]) -> None:
        """Uncount a reader that has ended in any way, and notify its monitor (ACT-6d)."""
        self._tasks.discard(task)
        self._runner.forget(reader)
        reader.queue.readers.discard(reader)
        if task.cancelled():
            reader.error = reader.error or (_ENDED if reader.stopped else _CANCELLED)
        if reader.invoked:
            self._log_end(reader)
        # After the reader has left `readers`: the monitor decides by the running readers (ACT-48).
        self._feed(reader.queue, _exit_of(reader))
        if self._group is not None:
            self._runner.spares.adjust(reader.queue)
        self._forget(reader.queue)

    def _forget(self, queue: MonitoredQueue) -> None:
        """Drop a removed queue once its readers have ended; until then they count (ACT-33)."""
        if queue.absent_reason == REMOVED and not queue.readers:
            self._queues.pop((queue.broker, queue.name), None)

    def _decide(self, queue: MonitoredQueue, decision: str, text: str) -> None:
        queue.decisions.add(decision, text, self._clock.utc())

    def _output(self, reader: Reader, **printed: object) -> None:
        """Log the output of a child (ACT-52)."""
        self._event(reader, "task_output", **printed)

    def _log_end(self, reader: Reader) -> None:
        """Log the end of a reader.

        A failure that causes a step of the back-off is logged only with that step."""
        ending = f"reader {reader.number} ended after {reader.receives} receives"
        if reader.error:
            self._decide(reader.queue, "aborted", f"{ending}: {reader.error}")
        else:
            self._decide(reader.queue, "ended", ending)
        seconds = round(self._clock.monotonic() - reader.started, 6)
        if reader.error:
            self.counts.aborted += 1
            if not self._backs_off_for(reader):
                how = {"receives": reader.receives, "error": reader.error}
                if reader.raised is not None:
                    how["exc_info"] = reader.raised
                self._event(reader, "aborted", seconds=seconds, **how)
        else:
            self.counts.ended += 1
            self._event(reader, "ended", seconds=seconds, receives=reader.receives)

    def _backs_off_for(self, reader: Reader) -> bool:
        """Return whether the reader's end is a failed start, which the back-off logs (PBT-6)."""
        monitor = reader.queue.monitor
        return (
            not reader.receives
            and monitor is not None
            and monitor.state is not MonitorState.DROPPED
            and monitor.generation == reader.generation
        )

    def _event(self, reader: Reader, subclass: str, **values: object) -> None:
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

    async def _end_all(self, group: asyncio.TaskGroup) -> None:
        """Wait for the readers to end, at most for the grace period; then cancel the rest."""
        deadline = self._clock.monotonic() + self._grace
        for reader in self._all():
            if reader.child is not None:
                request_end(reader)
        timer = group.create_task(self._clock.sleep_until(deadline))
        while self._tasks and not timer.done():
            await asyncio.wait({timer, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
        timer.cancel()
        for reader in self._all():
            reader.stopped = True
        for task in self._tasks:
            task.cancel()

    def _all(self) -> list[Reader]:
        readers = [reader for queue in self._queues.values() for reader in queue.readers]
        return sorted(readers, key=lambda one: one.number)


def _enabled(queue: MonitoredQueue) -> str:
    if queue.limits.external:
        return f"subscribers are notified, again after {queue.limits.renotify:g} s without receive"
    limits = queue.limits
    return f"activation is on: up to {limits.max_readers} readers of {queue.activation.procedure}"


def _exit_of(reader: Reader) -> Event:
    if not reader.invoked:
        return StartFailed(reader.generation, reader.error)
    return ReaderExited(reader.receives > 0, reader.generation, reader.error)
