"""`brokerd bench large`: the cost of one dialog's large messages for small ones of others (TRN-40).

Reads: nothing.      Calls: two daemons and load processes.
Never: asserts a speed. Each round has both phases, and a ratio of their p99. The round with the
median ratio of several rounds is reported, because the disk may be busy during one of them.
"""

from collections.abc import Sequence

import msgspec

from brokerd.bench.daemons import OBJECTS, Daemon, free_ports, route, running
from brokerd.bench.load import Load
from brokerd.bench.loads import Loads, Phase, summed, with_rate
from brokerd.bench.measuring import Options, Say, bench_directory, describe_settings
from brokerd.clock import SystemClock

LARGE_OBJECTS = """
[[queue]]
name = "bench_large_q"
[[service]]
name = "bench_large"
queue = "bench_large_q"
contracts = ["bench/v1"]
"""


LISTENERS = 8
"""Number of clients that receive the small messages: enough that no message waits for a client."""


class LargeOptions(Options, frozen=True, kw_only=True):
    """Small messages at a steady rate, and large ones among them."""

    seconds: float = 5.0
    """Seconds of each phase."""
    rounds: int = 3
    """Number of rounds of both phases."""
    rate: float = 500.0
    """Number of small messages per second."""
    dialogs: int = 16
    """Number of dialogs of the small messages."""
    size: int = 256
    large: int = 16 * 1024 * 1024
    """Size of a large message, in bytes."""
    every: float = 1.0
    """Seconds from one large message to the next."""


class Round(msgspec.Struct, frozen=True):
    """Both phases, one after the other."""

    alone: Phase
    among_large: Phase
    large: Phase

    @property
    def p99_ratio(self) -> float:
        """The p99 of small messages among large ones, divided by that of small messages alone."""
        alone, among = self.alone.latency_us["p99"], self.among_large.latency_us["p99"]
        return round((among or 0) / (alone or 1), 2)


async def large(options: LargeOptions, say: Say) -> dict[str, object]:
    """Send small messages alone, then with large ones; measure each message from its due time."""
    with bench_directory(options) as directory:
        here, there = free_ports(2)
        ways = route("bench_sink", there) + route("bench_large", there)
        east = Daemon(directory, "east", port=here, objects=OBJECTS + ways)
        sinks = OBJECTS + LARGE_OBJECTS + route("bench_source", here)
        west = Daemon(directory, "west", port=there, objects=sinks)
        daemons = (east, west)
        async with running(*daemons):
            rounds = [await _round(options, east, west, say) for _ in range(options.rounds)]
    shown = middle(rounds)
    return {
        "benchmark": "large",
        "settings": describe_settings(options),
        **msgspec.structs.asdict(shown),
        "p99_ratio": shown.p99_ratio,
        "p99_ratios": [one.p99_ratio for one in rounds],
    }


def middle(rounds: Sequence[Round]) -> Round:
    """Return the round with the median ratio; of an even number, the better of the middle two."""
    return sorted(rounds, key=lambda one: one.p99_ratio)[(len(rounds) - 1) // 2]


async def _round(options: LargeOptions, east: Daemon, west: Daemon, say: Say) -> Round:
    say(f"small messages alone, for {options.seconds:g} s")
    small = _small(options, east.address, west.address)
    (alone,) = await _measure(small, options)
    alone = with_rate(alone, options.rate, say)
    say(f"and with one of {options.large} bytes every {options.every:g} s")
    both = [*small, *_large(options, east.address, west.address)]
    among, large_ones = await _measure(both, options)
    return Round(alone, with_rate(among, options.rate, say), large_ones)


async def _measure(loads: list[Load], options: LargeOptions) -> list[Phase]:
    """Return the phase of the small messages, and that of the large ones if they are sent."""
    running = Loads(loads, SystemClock())
    outcomes = await running.run(options.seconds)
    return [summed([one], options.seconds) for one in outcomes[::2]]


def _small(options: LargeOptions, east: str, west: str) -> list[Load]:
    sent = Load(
        role="pace",
        address=east,
        clients=1,
        dialogs=options.dialogs,
        size=options.size,
        rate=options.rate,
    )
    return [Load(role="listen", address=west, clients=LISTENERS), sent]


def _large(options: LargeOptions, east: str, west: str) -> list[Load]:
    sent = Load(
        role="pace",
        address=east,
        clients=1,
        dialogs=1,
        size=options.large,
        rate=1 / options.every,
        to_service="bench_large",
    )
    return [Load(role="listen", address=west, clients=1, queue="bench_large_q", batch=1), sent]
