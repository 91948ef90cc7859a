"""The table of periodic work: multiples, order, failures, overlap."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from brokerd.clock import Instant
from brokerd.errors import StoreFault
from brokerd.maintenance.ticks import Pass, Ticker
from brokerd.telemetry.log import NullLog

TICK = 5.0


class Clock:
    """Moved by the test: each sleep ends at once, later than asked by what `late` says."""

    def __init__(self, ticks: int, late: float = 0.0) -> None:
        self.now = 100.0
        self.asked: list[float] = []
        self._ticks = ticks
        self._late = late

    def monotonic(self) -> float:
        return self.now

    def utc(self) -> Instant:
        return Instant(int(self.now * 1_000_000))

    async def sleep_until(self, deadline: float) -> None:
        if len(self.asked) == self._ticks:
            raise asyncio.CancelledError
        self.asked.append(deadline)
        self.now = deadline + self._late


class Log(NullLog):
    def __init__(self) -> None:
        self.lines: list[tuple[str, object]] = []

    def error(self, event: str, **fields: object) -> None:
        self.lines.append((event, fields["pass_name"]))

    def warning(self, event: str, **fields: object) -> None:
        self.lines.append((event, fields["pass_name"]))


def ticker(passes: list[Pass], clock: Clock, log: Log | None = None) -> Ticker:
    return Ticker(passes=passes, clock=clock, seconds=TICK, log=log or Log())


def noting(seen: list[str], name: str, every: int) -> Pass:
    def run() -> int:
        seen.append(name)
        return 1

    return Pass(name, every, run)


async def ticks(one: Ticker) -> None:
    with pytest.raises(asyncio.CancelledError):
        await one.run()


@pytest.mark.rule("CLK-1", "PER-1", "CLK-3", "PER-20")
async def test_each_pass_runs_at_its_multiple_in_the_order_of_the_table() -> None:
    seen: list[str] = []
    table = [noting(seen, "every", 1), noting(seen, "second", 2), noting(seen, "fifth", 5)]
    await ticks(ticker(table, Clock(10)))
    one = [["every"], ["every", "second"]]
    expected = [*one, *one, ["every", "fifth"], ["every", "second"], *one]
    assert seen == [name for tick in expected for name in tick] + [
        "every", "every", "second", "fifth",
    ]  # fmt: skip


@pytest.mark.rule("PER-20")
async def test_the_order_is_that_of_the_table_whatever_the_periods_are() -> None:
    seen: list[str] = []
    table = [noting(seen, name, every) for name, every in (("b", 5), ("a", 2), ("d", 1), ("c", 5))]
    await ticks(ticker(table, Clock(10)))
    assert " ".join(seen) == "d a d d a d b d c a d d a d d b a d c"


@pytest.mark.rule("PER-2", "FC-4")
async def test_a_late_tick_is_not_made_up_for() -> None:
    clock = Clock(3, late=17.0)
    await ticks(ticker([noting([], "one", 1)], clock))
    gaps = [later - sooner for sooner, later in zip(clock.asked, clock.asked[1:], strict=False)]
    assert all(gap >= TICK for gap in gaps)
    assert clock.asked[1] >= clock.asked[0] + 17.0


@pytest.mark.rule("PER-21")
async def test_a_failing_pass_is_named_and_stops_no_other() -> None:
    seen: list[str] = []
    log = Log()

    def fail() -> int:
        raise RuntimeError("no")

    one = ticker([Pass("bad", 1, fail), noting(seen, "good", 1)], Clock(2), log)
    await ticks(one)
    assert seen == ["good", "good"]
    assert log.lines == [("broker.tick", "bad"), ("broker.tick", "bad")]
    assert one.states["bad"].last_error == "RuntimeError: no"


@pytest.mark.rule("REL-5")
async def test_a_pass_that_met_a_failed_store_leaves_it_to_the_store_to_say_so() -> None:
    def fail() -> int:
        raise StoreFault("the disk says no")

    seen: list[str] = []
    log = Log()
    one = ticker([Pass("bad", 1, fail), noting(seen, "good", 1)], Clock(1), log)
    await ticks(one)
    assert (one.states["bad"].last_error, log.lines, seen) == ("the disk says no", [], ["good"])


@pytest.mark.rule("PER-22", "CLK-3")
async def test_a_pass_that_still_runs_is_skipped_and_counted() -> None:
    released = asyncio.Event()

    async def slow() -> int:
        await released.wait()
        return 1

    run: Callable[[], Awaitable[int]] = slow
    one = ticker([Pass("slow", 1, run)], Clock(0))
    first = asyncio.ensure_future(one.tick(1))
    await asyncio.wait({first}, timeout=0)
    await one.tick(2)
    assert (one.overruns, one.states["slow"].skips, one.states["slow"].runs) == (1, 1, 0)
    released.set()
    await first
    assert one.states["slow"].runs == 1
