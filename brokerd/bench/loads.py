"""The load processes of a phase: their orders, and the sum of their results.

Reads: nothing.      Calls: `bench.load` as child processes.
Never: sends or receives in this process, because that would disturb the measurement.
"""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Awaitable, Callable
from math import inf
from typing import Final, TypeVar

import msgspec

from brokerd.bench.children import ending, killed, started
from brokerd.bench.load import FAILED, Load
from brokerd.bench.measuring import MOST_CLIENTS, WARM_UP, BenchFailed, LoadOptions, Say
from brokerd.bench.tally import Outcome, Times
from brokerd.clock import Clock
from brokerd.errors import UsageError
from brokerd.sessions.options import SessionOptions
from brokerd.telemetry.metrics import bucket_value

_T = TypeVar("_T")
Sample = Callable[[], Awaitable[None]]
_TO_THE_END: Final = {"take", "play"}
"""Roles that count all their messages, including those under way when the time is over."""
_REACHED: Final = 0.95
"""Share of the ordered rate that is enough, since messages are under way when counting ends."""


class Phase(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One measured phase; figures that were not counted are left out."""

    messages: int
    seconds: float
    rate: float
    """Messages per second."""
    rate_asked: float = 0.0
    """The rate that was ordered, if any."""
    latency_us: dict[str, int | None] = {}
    """p50, p95, p99, p999 and the maximum, in microseconds; None = no time is known."""
    since_sent_us: dict[str, int | None] = {}
    """Percentiles of the age, at the time of receipt, of messages that had waited."""
    flushes: int = 0
    syncs_per_message: float = 0.0


class Loads:
    """The load processes of one phase."""

    def __init__(self, loads: list[Load], clock: Clock) -> None:
        self._loads = loads
        self._clock = clock
        self._processes: list[Process] = []

    async def run(
        self, seconds: float, *, warm_up: float = WARM_UP, sample: Sample | None = None
    ) -> list[Outcome]:
        """Run the processes together and return their outcomes, in order; leave no process behind.

        `sample` is called when counting begins and when it ends; the growth between the two calls
        belongs to the counted messages.
        """
        refuse_too_many(self._loads)
        try:
            outcomes = await self._run(seconds, warm_up, sample)
        finally:
            await self._end()
        refuse_nothing(self._loads, outcomes, seconds)
        return outcomes

    async def _run(self, seconds: float, warm_up: float, sample: Sample | None) -> list[Outcome]:
        for load in self._loads:
            command = (sys.executable, "-m", "brokerd.bench.load")
            process = await started(*command, stdin=PIPE, stdout=PIPE)
            self._processes.append(process)
            _pipe(process.stdin).write(msgspec.json.encode(load) + b"\n")
        for process in self._processes:
            await _line(process)  # each is ready
        start = self._clock.monotonic() + 0.2
        times = Times(start, start + warm_up, start + warm_up + seconds)
        for process in self._processes:
            _pipe(process.stdin).write(msgspec.json.encode(times) + b"\n")
        working = asyncio.ensure_future(self._outcomes())
        try:
            if sample is not None:
                await self._until(times.count, working)
                await sample()
                await self._until(self._last(times), working)
                await sample()
            return await working
        finally:
            working.cancel()

    def _last(self, times: Times) -> float:
        """Return the time at which counting ends; infinite = when all processes are done."""
        return inf if any(one.role in _TO_THE_END for one in self._loads) else times.stop

    async def _until(self, due: float, working: "asyncio.Future[list[Outcome]]") -> None:
        """Wait until `due` or until all processes are done; raise the error of a failed process."""
        if due == inf:
            await working
            return
        sleeping = asyncio.ensure_future(self._clock.sleep_until(due))
        try:
            await asyncio.wait((sleeping, working), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
        if working.done():
            working.result()

    async def _outcomes(self) -> list[Outcome]:
        """Return the outcome that each process prints at its end."""
        outcomes = []
        for process in self._processes:
            outcomes.append(msgspec.json.decode(await _line(process), type=Outcome))
            await process.wait()
        return outcomes

    async def _end(self) -> None:
        """Kill the processes that still run, and wait for their end."""
        await asyncio.gather(*(killed(one) for one in self._processes))


async def _line(process: Process) -> bytes:
    """Return the next line of a process; if it failed, raise `BenchFailed` with its message."""
    line = await _pipe(process.stdout).readline()
    if line.startswith(FAILED.encode()):
        why, hint = msgspec.json.decode(line[len(FAILED) :], type=tuple[str, str])
        raise BenchFailed(f"a load process cannot go on: {why}", hint=hint)
    if not line:
        raise BenchFailed(f"a load process ended {ending(await process.wait())} and without a word")
    return line


TAKES: Final = SessionOptions()
"""The limits of a daemon for its clients; no setting changes them."""


def refuse_too_many(loads: list[Load]) -> None:
    """Raise `UsageError` if one daemon would have more clients or transactions than it accepts."""
    clients: Counter[str] = Counter()
    transactions: Counter[str] = Counter()
    for load in loads:
        clients[load.address] += load.clients
        if load.role == "receive":
            transactions[load.address] += load.clients * load.transactions
    for counts, what, most in (
        (clients, "clients", MOST_CLIENTS),
        (transactions, "receiving transactions", TAKES.transactions_in_all),
    ):
        count = max(counts.values(), default=0)
        if count > most:
            raise UsageError(
                f"{count} {what} of one daemon are too many: it takes {most}",
                hint="ask for fewer; where there is one daemon, both sides are its clients",
            )


_NOTHING = {
    "send": "no send was confirmed",
    "echo": "no send was confirmed",
    "pace": "no send was confirmed",
    "play": "no send was confirmed",
    "call": "no call had its reply",
    "answer": "no call was answered",
}


def refuse_nothing(loads: list[Load], outcomes: list[Outcome], seconds: float) -> None:
    """Raise `BenchFailed` if a side has counted no message, because it then has no rate.

    Several processes are one side if they have the same role, and the same queue or service.
    """
    sides: Counter[tuple[str, str, str]] = Counter()
    for load, outcome in zip(loads, outcomes, strict=True):
        sides[load.role, load.queue, load.to_service] += outcome.counted
    for (role, queue, service), count in sides.items():
        if not count:
            what = _NOTHING.get(role, "no message was received")
            where = f"to {service}" if role in _NOTHING else f"from {queue}"
            raise BenchFailed(
                f"nothing to tell of: {what}, {where}, in the {seconds:g} s that count",
                hint="let it last longer with --seconds, or ask for less",
            )


def senders(options: LoadOptions, address: str) -> list[Load]:
    """Return the load processes that send."""
    return [
        Load(
            role="send",
            address=address,
            clients=count,
            dialogs=options.dialogs,
            outstanding=options.outstanding,
            size=options.size,
        )
        for count in _shares(options)
    ]


def receivers(options: LoadOptions, address: str, *, transactions: int = 1) -> list[Load]:
    """Return the load processes that receive."""
    return [
        Load(
            role="receive",
            address=address,
            clients=count,
            batch=options.batch,
            transactions=transactions,
        )
        for count in _shares(options)
    ]


def _shares(options: LoadOptions) -> list[int]:
    each, rest = divmod(options.clients, options.processes)
    return [each + (at < rest) for at in range(options.processes)]


def summed(outcomes: list[Outcome], seconds: float) -> Phase:
    """Return the results of all load processes of a side as one phase."""
    counted = sum(one.counted for one in outcomes)
    return Phase(
        messages=counted,
        seconds=round(seconds, 3),
        rate=round(counted / seconds, 1),
        latency_us=_percentiles(
            [one.latency for one in outcomes], max(one.most_latency_us for one in outcomes)
        ),
    )


def with_rate(phase: Phase, asked: float, say: Say) -> Phase:
    """Return the phase with the ordered rate; report if it was not reached."""
    if phase.rate < _REACHED * asked:
        say(
            f"{asked:g} messages a second were asked for, {phase.rate:g} were received: the times "
            "are those of a backlog that grows; ask for less with --rate"
        )
    return msgspec.structs.replace(phase, rate_asked=asked)


def summed_lag(outcomes: list[Outcome]) -> dict[str, int | None]:
    """Return percentiles of the lag of all processes behind their schedule, in microseconds."""
    return _percentiles([one.lag for one in outcomes], max(one.most_lag_us for one in outcomes))


def _percentiles(histograms: list[dict[str, int]], most: int) -> dict[str, int | None]:
    """Return the percentiles of all processes together, and the maximum.

    Percentiles are limited to the maximum, because the value of a bucket is its middle, and all
    times in the bucket may be lower.
    """
    buckets: Counter[int] = Counter()
    for one in histograms:
        buckets.update({int(bucket): count for bucket, count in one.items()})
    found = {**quantiles(buckets), "most": most if buckets else None}
    return {name: None if us is None else min(us, most) for name, us in found.items()}


def quantiles(buckets: Counter[int]) -> dict[str, int | None]:
    """Return p50, p95, p99 and p999 of a histogram, in its unit; None if it is empty."""
    return {
        name: _quantile(buckets, part)
        for name, part in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999))
    }


def _quantile(buckets: Counter[int], part: float) -> int | None:
    rest = part * sum(buckets.values())
    for bucket in sorted(buckets):
        rest -= buckets[bucket]
        if rest <= 0:
            return round(bucket_value(bucket))
    return None


def _pipe(stream: _T | None) -> _T:
    assert stream is not None, "the process was started with pipes"
    return stream
