"""Readers on a real loop: started, counted, shown, logged, and stopped; time is moved by hand."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import ModuleType, TracebackType
from typing import Self

import msgspec
import pytest
import structlog

from brokerd.activation.monitor import NO_RECEIVE, Limits, QueueFacts
from brokerd.activation.readers import Readers
from brokerd.activation.view_rows import REMOVED, Counts, Rates
from brokerd.clock import SECOND, Instant
from brokerd.errors import HandlerLeftTransactionOpen
from brokerd.ids import QueueKey
from brokerd.model import Activation, Queue
from brokerd.telemetry.log import NullLog

MODULE = "handled_by_readers"
UTC = Instant(1_700_000_000 * SECOND)


class ManualClock:
    """Stands still until the test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def monotonic(self) -> float:
        return self.now

    def utc(self) -> Instant:
        return Instant(UTC + round(self.now * SECOND))

    async def sleep_until(self, deadline: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        self._sleepers.append((deadline, woken))
        self.move(0)
        await woken

    def move(self, seconds: float) -> None:
        self.now += seconds
        for deadline, woken in self._sleepers:
            if deadline <= self.now and not woken.done():
                woken.set_result(None)


class Recorded(NullLog):
    """A log that can be waited on."""

    def __init__(self) -> None:
        self.lines: list[dict[str, object]] = []
        self._grown = asyncio.Event()

    def info(self, event: str, **values: object) -> None:
        self.lines.append({"event": event, "level": "info", **values})
        self._grown.set()

    def warning(self, event: str, **values: object) -> None:
        self.info(event, **values)
        self.lines[-1]["level"] = "warning"

    def of(self, subclass: str) -> list[dict[str, object]]:
        return [line for line in self.lines if line["subclass"] == subclass]

    async def until(self, subclass: str, count: int = 1) -> dict[str, object]:
        async with asyncio.timeout(5):
            while len(self.of(subclass)) < count:
                self._grown.clear()
                await self._grown.wait()
        return self.of(subclass)[count - 1]


class Abort(BaseException):
    """What a library may end its own work with."""


class FakeSession:
    """Knows whether it was closed; a handler receives through it."""

    def __init__(self, bench: "Bench", number: int) -> None:
        self.bench = bench
        self.client_id = number.to_bytes(16)
        self.closed = False
        self.open_transactions = 0
        self.drain_wait = 0.5

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.closed = True

    def receive(self, queue: str = "q") -> None:
        self.bench.readers.receive_issued("b", queue, known_as=self.client_id)
        self.bench.received.put_nowait(self)


class Bench:
    """Readers with one queue `q` of broker `b` around them."""

    def __init__(self, *, limits: Limits) -> None:
        self.clock = ManualClock()
        self.log = Recorded()
        self.facts = QueueFacts(ready=False)
        self.sessions: list[FakeSession] = []
        self.received: asyncio.Queue[FakeSession] = asyncio.Queue()
        self.refuse_connections = False
        self.readers = Readers(
            connect=self.connect,
            facts=lambda _broker, _queue: self.facts,
            clock=self.clock,
            log=self.log,
            limits=limits,
        )

    async def connect(self, broker: str) -> FakeSession:
        assert broker == "b"
        if self.refuse_connections:
            raise ConnectionRefusedError("no room")
        self.sessions.append(FakeSession(self, len(self.sessions) + 1))
        return self.sessions[-1]

    def define(
        self, handler: str, max_readers: int = 1, *, initial_readers: int = 1, **queue: bool
    ) -> None:
        activation = Activation(f"{MODULE}:{handler}", max_readers, initial_readers=initial_readers)
        key = QueueKey(1)
        self.readers.altered(
            "b", [msgspec.structs.replace(Queue(key, "q", activation=activation), **queue)]
        )

    def arrive(self, **facts: object) -> None:
        """Messages come to the queue."""
        was_empty = not self.facts.ready
        self.facts = msgspec.structs.replace(
            self.facts, ready=True, youngest_ready_at=self.clock.now, **facts
        )
        self.readers.arrived("b", "q", was_empty=was_empty)

    def drained(self) -> None:
        self.facts = QueueFacts(ready=False)


Serve = Callable[[Callable[[FakeSession], Awaitable[object]]], None]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Make a function importable as the handler `handle`."""
    module = ModuleType(MODULE)
    monkeypatch.setitem(sys.modules, MODULE, module)

    return lambda handler: setattr(module, "handle", handler)


@asynccontextmanager
async def running(*, limits: Limits | None = None) -> AsyncIterator[Bench]:
    bench = Bench(limits=limits or Limits())
    task = asyncio.create_task(bench.readers.run())
    await asyncio.sleep(0)
    try:
        yield bench
    finally:
        bench.readers.stop(0)
        async with asyncio.timeout(5):
            await task
    assert not bench.readers.tasks()


@pytest.mark.rule("ACT-21")
@pytest.mark.rule("ACT-18")
@pytest.mark.rule("VIEW-7")
async def test_a_reader_runs_the_handler_in_its_own_session(serve: Serve) -> None:
    go_on = asyncio.Event()
    seen: list[FakeSession] = []

    async def handle(session: FakeSession) -> str:
        session.receive()
        seen.append(session)
        await go_on.wait()
        return "ignored"

    serve(handle)
    async with running() as bench:
        bench.define("handle")
        bench.arrive()
        await bench.received.get()
        [row] = bench.readers.tasks()
        assert row.session_id == seen[0].client_id.hex()
        assert (row.broker, row.queue, row.receives) == ("b", "q", 1)
        assert row.procedure_name == f"{MODULE}:handle"
        assert (row.execute_as, row.pid, row.monitor_generation) == ("owner", os.getpid(), 1)
        assert row.last_receive_at == row.started_at == bench.clock.utc()
        assert bench.readers.running("b", "q") == 1
        bench.clock.move(2)
        bench.drained()
        go_on.set()
        ended = await bench.log.until("ended")
        assert ended["seconds"] == 2
        assert ended["queue"] == "q"
        assert ended["reader"] == 1
        assert ended["receives"] == 1
        assert seen[0].closed
        assert bench.readers.running("b", "q") == 0
        counts = bench.readers.counts
        assert (counts.started, counts.invoked, counts.ended, counts.aborted) == (1, 1, 1, 0)


@pytest.mark.rule("ACT-21")
async def test_a_handler_inherits_no_context_but_its_own(serve: Serve) -> None:
    seen: list[dict[str, object]] = []

    async def handle(session: FakeSession) -> None:
        seen.append(structlog.contextvars.get_contextvars())

    serve(handle)
    async with running() as bench:
        bench.define("handle")
        with structlog.contextvars.bound_contextvars(request=17):
            bench.arrive()
        await bench.log.until("ended")
    assert seen == [{"broker": "b", "queue": "q", "reader": 1}]


@pytest.mark.rule("ACT-23")
@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (ValueError("seven"), "ValueError: seven"),
        (SystemExit(3), "SystemExit: 3"),
        (BaseExceptionGroup("both", [SystemExit(1)]), "BaseExceptionGroup"),
        (Abort("nine"), "Abort: nine"),
        (asyncio.CancelledError(), "it cancelled itself; fix: "),
    ],
)
async def test_a_handler_that_raises_fails_alone(
    serve: Serve, raised: BaseException, told: str
) -> None:
    async def handle(session: FakeSession) -> None:
        session.receive()
        bench.drained()
        raise raised

    serve(handle)
    async with running() as bench:
        bench.define("handle")
        bench.arrive()
        aborted = await bench.log.until("aborted")
        assert told in str(aborted["error"])
        assert aborted["level"] == "warning"
        cancelled = isinstance(raised, asyncio.CancelledError)
        assert aborted.get("exc_info") is (None if cancelled else raised)
        assert bench.sessions[0].closed
        assert bench.readers.counts.aborted == 1
        bench.arrive()
        await bench.log.until("started", 2)


@pytest.mark.rule("ACT-48")
@pytest.mark.rule("ACT-26")
async def test_a_one_shot_handler_is_started_until_the_queue_is_empty(serve: Serve) -> None:
    left = 3

    async def handle(session: FakeSession) -> None:
        nonlocal left
        session.receive()
        left -= 1
        if not left:
            bench.drained()

    serve(handle)
    async with running() as bench:
        bench.define("handle")
        bench.arrive()
        await bench.log.until("ended", 3)
        await asyncio.sleep(0)
        whys = [line["why"] for line in bench.log.of("started")]
        assert whys == ["arrival", "continued", "continued"]


@pytest.mark.rule("PBT-6")
async def test_a_missing_handler_backs_off_and_a_new_one_starts_at_once(serve: Serve) -> None:
    async def handle(session: FakeSession) -> None:
        session.receive()
        bench.drained()

    serve(handle)
    async with running() as bench:
        bench.define("missing")
        bench.arrive()
        failed = await bench.log.until("failed_to_start")
        assert "no attribute 'missing'" in str(failed["error"])
        assert failed["retry_in"] == 5
        for second in range(1, 36):
            bench.clock.move(1)
            if second % 5 == 0:
                bench.readers.tick()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
        assert len(bench.log.of("failed_to_start")) == 4  # at 0, 5, 15 and 35 s
        [row] = bench.readers.monitors()
        assert row.state == "FAILED_BACKOFF"
        assert row.consecutive_failures == 4
        assert row.backoff_until == bench.clock.utc() + 40 * SECOND
        assert "missing" in row.last_failure
        assert "no attribute 'missing'" in bench.readers.trouble("b", "q")
        bench.define("handle")
        await bench.log.until("ended")
        assert bench.readers.trouble("b", "q") == ""
        assert bench.readers.counts.failed_to_start == 4


@pytest.mark.rule("PBT-6")
async def test_a_session_that_cannot_be_opened_is_a_failed_start(serve: Serve) -> None:
    async def handle(session: FakeSession) -> None: ...

    serve(handle)
    async with running() as bench:
        bench.refuse_connections = True
        bench.define("handle")
        bench.arrive()
        failed = await bench.log.until("failed_to_start")
        assert failed["error"] == "ConnectionRefusedError: no room"
        assert bench.readers.counts.invoked == 0
        assert not bench.log.of("ended")


@pytest.mark.rule("ACT-31")
@pytest.mark.parametrize("other", [None, "another"])
async def test_a_handler_that_never_receives_has_failed(serve: Serve, other: str | None) -> None:
    async def handle(session: FakeSession) -> None:
        if other is not None:
            session.receive(other)

    serve(handle)
    async with running() as bench:
        bench.define("handle")
        bench.arrive()
        failed = await bench.log.until("failed_to_start")
        assert failed["error"] == NO_RECEIVE


@pytest.mark.rule("ACT-14")
@pytest.mark.rule("ACT-17")
@pytest.mark.rule("PER-3")
async def test_ticks_ramp_up_to_max_readers(serve: Serve) -> None:
    forever = asyncio.Event()

    async def handle(session: FakeSession) -> None:
        session.receive()
        await forever.wait()

    serve(handle)
    async with running() as bench:
        bench.define("handle", max_readers=3)
        bench.arrive()
        await bench.received.get()
        counts = []
        for _ in range(5):
            counts.append(bench.readers.running("b", "q"))
            bench.clock.move(5)
            if bench.readers.tick():
                await bench.received.get()
        assert counts == [1, 2, 3, 3, 3]
        assert bench.readers.counts.limit_reached == 3
        forever.set()


@pytest.mark.rule("ACT-33")
@pytest.mark.rule("PBT-8")
@pytest.mark.rule("OBJ-46")
async def test_readers_of_a_dropped_monitor_count_against_its_successor(serve: Serve) -> None:
    forever = asyncio.Event()

    async def handle(session: FakeSession) -> None:
        session.receive()
        await forever.wait()

    serve(handle)
    async with running() as bench:
        bench.define("handle", max_readers=2, initial_readers=2)
        bench.arrive(ready_groups=2)
        await bench.log.until("started", 2)
        bench.define("handle", max_readers=2, initial_readers=2, receive_enabled=False)
        [row] = bench.readers.monitors()
        assert (row.state, row.absent_reason) == ("DROPPED", "the queue is off")
        assert row.tasks_running == 2
        bench.define("handle", max_readers=2, initial_readers=2)
        bench.clock.move(60)
        bench.readers.tick()
        assert bench.readers.running("b", "q") == 2
        bench.define("handle", max_readers=3, initial_readers=2)
        bench.clock.move(5)
        assert bench.readers.tick() == 1
        assert {row.monitor_generation for row in bench.readers.tasks()} == {1, 2}
        bench.readers.removed("b", "q")
        [row] = bench.readers.monitors()
        assert (row.state, row.absent_reason) == ("DROPPED", REMOVED)
        forever.set()
        await bench.log.until("ended", 3)
        assert bench.readers.monitors() == []


@pytest.mark.rule("OBJ-46")
async def test_another_handler_is_for_those_that_start_from_now_on(serve: Serve) -> None:
    forever = asyncio.Event()

    async def handle(session: FakeSession) -> None:
        session.receive()
        await forever.wait()

    serve(handle)
    sys.modules[MODULE].other = handle  # type: ignore[attr-defined]
    async with running() as bench:
        bench.define("handle", max_readers=2)
        bench.arrive(ready_groups=5)
        await bench.received.get()
        bench.define("other", max_readers=2)
        assert [row.procedure_name for row in bench.readers.tasks()] == [f"{MODULE}:handle"]
        bench.clock.move(5)
        assert bench.readers.tick() == 1
        await bench.log.until("started", 2)
        names = [row.procedure_name for row in bench.readers.tasks()]
        forever.set()
        assert names == [f"{MODULE}:handle", f"{MODULE}:other"]


@pytest.mark.rule("OBJ-46")
async def test_switched_on_it_reads_what_is_there_and_switched_off_it_starts_no_more(
    serve: Serve,
) -> None:
    forever = asyncio.Event()

    async def handle(session: FakeSession) -> None:
        session.receive()
        await forever.wait()

    serve(handle)

    def switch(bench: Bench, *, on: bool) -> None:
        activation = Activation(f"{MODULE}:handle", 2, enabled=on)
        bench.readers.altered("b", [Queue(QueueKey(1), "q", activation=activation)])

    async with running() as bench:
        switch(bench, on=False)
        bench.arrive(ready_groups=5)
        bench.clock.move(5)
        bench.readers.tick()
        assert bench.readers.tasks() == []
        switch(bench, on=True)
        await bench.log.until("started")  # without a tick or an arrival
        assert bench.readers.running("b", "q") == 1
        switch(bench, on=False)
        for _ in range(4):
            bench.clock.move(5)
            bench.readers.tick()
            bench.arrive()
        assert bench.readers.running("b", "q") == 1
        assert not bench.log.of("ended")
        forever.set()


@pytest.mark.rule("ACT-33", "ACT-17", "OBJ-45")
@pytest.mark.parametrize("how", ["queue made anew", "activation off and on", "max_readers lowered"])
async def test_readers_of_before_count_and_no_more_are_started(serve: Serve, how: str) -> None:
    forever = asyncio.Event()

    async def handle(session: FakeSession) -> None:
        session.receive()
        await forever.wait()

    serve(handle)
    async with running() as bench:
        bench.define("handle", max_readers=2, initial_readers=2)
        bench.arrive(ready_groups=5)
        for _ in range(2):
            await bench.received.get()
        limit = 2
        match how:
            case "queue made anew":
                bench.readers.remaining("b", ())
            case "activation off and on":
                off = Activation(f"{MODULE}:handle", 2, enabled=False)
                bench.readers.altered("b", [Queue(QueueKey(1), "q", activation=off)])
                [row] = bench.readers.monitors()
                assert (row.state, row.absent_reason) == ("DROPPED", "activation is off")
            case _:
                limit = 1
        bench.define("handle", max_readers=limit, initial_readers=2)
        for _ in range(4):
            bench.clock.move(5)
            bench.readers.tick()
            bench.readers.rolled_back("b", "q")
            bench.arrive()
        assert bench.readers.running("b", "q") == len(bench.readers.tasks()) == 2
        assert bench.readers.counts.limit_reached > 0
        forever.set()


@pytest.mark.rule("VIEW-12")
def test_each_counter_of_activation_has_a_total_and_a_rate_between_two_ticks() -> None:
    names = {
        "tasks_started": "started",
        "tasks_aborted": "aborted",
        "procedures_invoked": "invoked",
        "task_limit_reached": "limit_reached",
        "notifications": "notified",
    }
    rates, counts = Rates(), Counts()
    rates.sample(counts, 100.0)
    for number, field in enumerate(names.values(), start=1):
        setattr(counts, field, 10 * number)
    rates.sample(counts, 105.0)
    counts.started += 1  # since the last tick: it is in the total alone
    expected: dict[str, object] = {"tasks_running": 4}
    for number, name in enumerate(names, start=1):
        expected |= {f"{name}_total": 10 * number, f"{name}_per_second": 2.0 * number}
    assert rates.row(counts, 4) == expected | {"tasks_started_total": 11}
    rates.sample(counts, 110.0)
    assert rates.row(counts, 4)["tasks_started_per_second"] == 0.2
    assert rates.row(counts, 4)["notifications_per_second"] == 0


@pytest.mark.rule("ACT-3")
@pytest.mark.rule("ACT-5")
async def test_a_queue_without_monitor_shows_why(serve: Serve) -> None:
    async with running() as bench:
        activation = Activation("x:y", enabled=False)
        plain = Queue(QueueKey(1), "plain")
        off = Queue(QueueKey(2), "off", activation=activation)
        ready = Queue(QueueKey(3), "ready", activation=Activation("x:y"))
        bench.facts = QueueFacts(ready=True)
        bench.readers.altered("b", [plain, off])
        bench.readers.altered("b", [ready], delivery=False)
        assert bench.readers.monitors() == []
        assert {
            name: bench.readers.why_unmonitored("b", name) for name in ("plain", "off", "ready")
        } == {
            "plain": "the queue has no activation",
            "off": "activation is off",
            "ready": "delivery is off in the broker",
        }
        for name in ("plain", "off", "ready", "unknown"):
            bench.readers.arrived("b", name, was_empty=True)
            bench.readers.rolled_back("b", name)
        assert bench.readers.tick() == 0


@pytest.mark.rule("ACT-Q2")
async def test_what_is_known_before_the_run_starts_with_it(serve: Serve) -> None:
    async def handle(session: FakeSession) -> None:
        session.receive()
        bench.drained()

    serve(handle)
    bench = Bench(limits=Limits())
    bench.facts = QueueFacts(ready=True)
    bench.define("handle")
    assert bench.readers.counts.started == 0
    task = asyncio.create_task(bench.readers.run())
    started = await bench.log.until("started")
    assert started["why"] == "enabled"
    await bench.log.until("ended")
    bench.readers.stop(0)
    await task


@pytest.mark.rule("VIEW-6")
async def test_the_monitor_row(serve: Serve) -> None:
    forever = asyncio.Event()

    async def handle(session: FakeSession) -> None:
        session.receive()
        bench.readers.receive_empty("b", "q", selective=True)
        bench.clock.move(1)
        bench.readers.receive_empty("b", "q", selective=False)
        bench.log.info("x", subclass="looked")
        await forever.wait()

    serve(handle)
    async with running() as bench:
        bench.define("handle")
        bench.arrive(waiting=2)
        activated = bench.clock.utc()
        await bench.log.until("looked")
        bench.clock.move(3)
        [row] = bench.readers.monitors()
        assert row.state == "RECEIVES_OCCURRING"
        assert row.last_activated_time == activated
        assert row.last_empty_rowset_time == activated + SECOND
        assert (row.tasks_waiting, row.tasks_running) == (2, 1)
        assert row.necessary == "none: a session is waiting in a receive"
        assert row.backoff_until is None
        forever.set()


@pytest.mark.rule("PBT-25")
async def test_stop_waits_for_the_grace_period_then_cancels(serve: Serve) -> None:
    cleaned: list[str] = []
    busy = asyncio.Event()

    async def handle(session: FakeSession) -> None:
        session.receive()
        busy.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("closed by the handler")

    serve(handle)
    bench = Bench(limits=Limits())
    bench.define("handle")
    task = asyncio.create_task(bench.readers.run())
    await asyncio.sleep(0)
    bench.arrive()
    await busy.wait()
    bench.readers.stop(10)
    for _ in range(5):
        await asyncio.sleep(0)
    bench.arrive()
    assert not task.done()
    assert bench.readers.counts.started == 1
    bench.clock.move(10)
    await asyncio.wait_for(task, 5)
    assert cleaned == ["closed by the handler"]
    assert bench.sessions[0].closed
    assert "daemon.drain" in str(bench.log.of("aborted")[0]["error"])


@pytest.mark.rule("PBT-25")
async def test_stop_returns_as_soon_as_the_last_reader_is_gone(serve: Serve) -> None:
    go_on, busy = asyncio.Event(), asyncio.Event()

    async def handle(session: FakeSession) -> None:
        session.receive()
        busy.set()
        await go_on.wait()

    serve(handle)
    bench = Bench(limits=Limits())
    bench.define("handle")
    task = asyncio.create_task(bench.readers.run())
    await asyncio.sleep(0)
    bench.arrive()
    await busy.wait()
    bench.readers.stop(3600)
    go_on.set()
    await asyncio.wait_for(task, 5)
    assert [line["subclass"] for line in bench.log.lines] == ["started", "ended"]


@pytest.mark.rule("ACT-Q9")
async def test_cancelling_the_run_cancels_the_readers(serve: Serve) -> None:
    busy = asyncio.Event()

    async def handle(session: FakeSession) -> None:
        busy.set()
        await asyncio.Event().wait()

    serve(handle)
    bench = Bench(limits=Limits())
    bench.define("handle")
    task = asyncio.create_task(bench.readers.run())
    await asyncio.sleep(0)
    bench.arrive()
    await busy.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert bench.sessions[0].closed
    assert bench.readers.tasks() == []


@pytest.mark.rule("ACT-51")
async def test_a_reader_that_does_not_receive_in_time_is_ended(serve: Serve) -> None:
    async def handle(session: FakeSession) -> None:
        session.receive()
        await asyncio.Event().wait()

    serve(handle)
    async with running() as bench:
        activation = Activation(f"{MODULE}:handle", deadline=60 * SECOND)
        bench.readers.altered("b", [Queue(QueueKey(1), "q", activation=activation)])
        bench.arrive()
        await bench.received.get()
        bench.clock.move(59)
        bench.readers.tick()
        assert bench.readers.running("b", "q") == 1
        bench.clock.move(2)
        bench.drained()
        bench.readers.tick()
        line = await bench.log.until("aborted")
        assert "more than its deadline" in str(line["error"])


@pytest.mark.rule("ACT-25", "ACT-51")
async def test_a_reader_without_a_deadline_may_be_idle_for_ever(serve: Serve) -> None:
    go_on = asyncio.Event()

    async def handle(session: FakeSession) -> None:
        session.receive()
        await go_on.wait()

    serve(handle)
    async with running() as bench:
        bench.define("handle")
        bench.arrive()
        await bench.received.get()
        bench.drained()
        for _ in range(48):
            bench.clock.move(3600)
            bench.readers.tick()
            await asyncio.sleep(0)
        assert bench.readers.running("b", "q") == 1
        go_on.set()
        await bench.log.until("ended")


@pytest.mark.rule("ACT-23")
@pytest.mark.rule("ERR-8415")
async def test_a_handler_that_leaves_a_transaction_open_is_aborted(serve: Serve) -> None:
    async def handle(session: FakeSession) -> None:
        session.receive()
        session.bench.drained()
        session.open_transactions = 1

    serve(handle)
    async with running() as bench:
        bench.define("handle")
        bench.arrive()
        line = await bench.log.until("aborted")
        assert line["error"] == HandlerLeftTransactionOpen().with_cure
    assert HandlerLeftTransactionOpen.ssb_code == 8415
