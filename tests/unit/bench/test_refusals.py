"""What cannot be measured is refused, and what was not reached is said."""

import asyncio
from collections import Counter
from typing import cast

import msgspec
import pytest

from brokerd.bench import latency
from brokerd.bench.latency import LatencyOptions
from brokerd.bench.load import Load, _pace
from brokerd.bench.loads import (
    TAKES,
    Phase,
    quantiles,
    refuse_nothing,
    refuse_too_many,
    summed,
    with_rate,
)
from brokerd.bench.measuring import MOST_CLIENTS, BenchFailed
from brokerd.bench.tally import Counters, Outcome, Tally, Times
from brokerd.client.session import Session
from brokerd.clock import SystemClock
from brokerd.errors import Busy, UsageError
from brokerd.process.exit_statuses import FAILED, exit_status


def doing(role: str, **more: str) -> Load:
    return Load(role=role, address="a", clients=1, **more)  # type: ignore[arg-type]


def test_a_side_that_has_counted_nothing_is_named_with_its_phase() -> None:
    loads = [doing("send"), doing("send"), doing("receive"), doing("receive")]
    some, none = Outcome(counted=1), Outcome(total=7)
    refuse_nothing(loads, [some, none, none, some], 2.0)  # each side has something
    with pytest.raises(
        BenchFailed, match=r"no message was received, from bench_q, in the 2 s"
    ) as told:
        refuse_nothing(loads, [some, some, none, none], 2.0)
    assert "--seconds" in told.value.hint
    assert exit_status(told.value) == FAILED
    with pytest.raises(BenchFailed, match="no send was confirmed, to bench_sink"):
        refuse_nothing(loads, [none, none, some, some], 2.0)
    with pytest.raises(BenchFailed, match="from large_q"):
        refuse_nothing([doing("listen"), doing("listen", queue="large_q")], [some, none], 2.0)


def test_percentiles_of_nothing_are_none() -> None:
    assert quantiles(Counter()) == dict.fromkeys(("p50", "p95", "p99", "p999"))
    assert set(summed([Outcome()], 1.0).latency_us.values()) == {None}


def test_a_daemon_is_not_asked_for_more_clients_than_it_takes() -> None:
    def having(address: str, clients: int) -> Load:
        return Load(role="send", address=address, clients=clients)

    assert TAKES.clients == MOST_CLIENTS + 1  # with who looks
    refuse_too_many([having("a", 999), having("b", 999)])
    with pytest.raises(UsageError, match="1000 clients of one daemon are too many: it takes 999"):
        refuse_too_many([having("a", 600), having("b", 999), having("a", 400)])
    receiving = Load(role="receive", address="a", clients=999, transactions=2)
    refuse_too_many([receiving])
    with pytest.raises(UsageError, match="2997 receiving transactions of one daemon"):
        refuse_too_many([msgspec.structs.replace(receiving, transactions=3)])


@pytest.mark.parametrize("callers", [1, 7, 8, 23, 64, latency.MOST_CALLERS])
def test_there_are_as_many_callers_as_were_asked_for(callers: int) -> None:
    loads = latency._loads("a", "call_many", LatencyOptions(callers=callers))
    refuse_too_many(loads)
    assert loads[0].clients * loads[0].dialogs + loads[0].more_dialogs == callers


@pytest.mark.parametrize(("rate", "told"), [(480.0, 0), (470.0, 1)])
def test_a_rate_that_was_not_reached_is_told_beside_the_one_asked_for(
    rate: float, told: int
) -> None:
    said: list[str] = []
    phase = with_rate(Phase(messages=1, seconds=1.0, rate=rate, latency_us={}), 500.0, said.append)
    assert (phase.rate_asked, phase.rate) == (500.0, rate)
    assert len(said) == told


class Moving:
    """A clock that is where it is told to be."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep_until(self, deadline: float) -> None:
        self.now = max(self.now, deadline)
        await asyncio.sleep(0)


class Full:
    """A session that takes so many and no more."""

    def __init__(self, room: int) -> None:
        self._room = room
        self.sent = 0

    def submit_send(self, *_: object) -> "asyncio.Future[None]":
        future = asyncio.get_running_loop().create_future()
        self.sent += 1
        if self.sent > self._room:
            future.set_exception(Busy("many wait"))
        else:
            future.set_result(None)
        return future


async def paced(room: int) -> tuple[Full, Tally]:
    clock, session = cast("SystemClock", Moving()), Full(room)
    tally = Tally(Times(0.0, 0.0, 2.0), clock, Counters("", 0))
    load = Load(role="pace", address="", clients=1, rate=10.0)
    await _pace(cast("Session", session), load, [b"h"], tally)
    return session, tally


async def test_a_pace_is_kept_until_the_time_is_over() -> None:
    session, tally = await paced(100)
    assert session.sent == tally.total == 20


async def test_a_pace_that_cannot_be_kept_is_told_as_such() -> None:
    with pytest.raises(
        Busy, match=r"(?m)10 messages a second were asked for, .*: many wait$"
    ) as told:
        await paced(5)
    assert "--rate" in told.value.hint
