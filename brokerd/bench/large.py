"""`brokerd bench large`: what large messages of one dialog cost the small ones of others (TRN-40).

Reads: nothing.      Calls: two daemons and load processes.
Never: asserts a speed; both phases are of one run, and the ratio of their p99 is told.
"""

import asyncio

from brokerd.bench.daemons import OBJECTS, Daemon, free_ports, route
from brokerd.bench.load import Load
from brokerd.bench.loads import Loads, Phase, summed
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
"""Clients that receive the small ones: enough that they wait for messages, not the other way."""


class LargeOptions(Options, frozen=True, kw_only=True):
    """Small messages at a steady rate, and large ones among them."""

    seconds: float = 5.0
    """Of each phase."""
    rate: float = 500.0
    """Small messages a second."""
    dialogs: int = 16
    """Of the small ones."""
    size: int = 256
    large: int = 16 * 1024 * 1024
    """Bytes of a large one."""
    every: float = 1.0
    """Seconds from one large message to the next."""


async def large(options: LargeOptions, say: Say) -> dict[str, object]:
    """Small ones alone, then with large ones; each counts from when its sending was due."""
    with bench_directory(options) as directory:
        here, there = free_ports(2)
        ways = route("bench_sink", there) + route("bench_large", there)
        east = Daemon(directory, "east", port=here, objects=OBJECTS + ways)
        sinks = OBJECTS + LARGE_OBJECTS + route("bench_source", here)
        west = Daemon(directory, "west", port=there, objects=sinks)
        daemons = (east, west)
        await asyncio.gather(*(one.start() for one in daemons))
        try:
            say(f"small messages alone, for {options.seconds:g} s")
            small = _small(options, east.address, west.address)
            alone = await _measure(small, options)
            say(f"and with one of {options.large} bytes every {options.every:g} s")
            both = [*small, *_large(options, east.address, west.address)]
            among = await _measure(both, options)
        finally:
            await asyncio.gather(*(one.stop() for one in daemons))
    return {
        "benchmark": "large",
        "settings": describe_settings(options),
        "alone": alone[0],
        "among_large": among[0],
        "large": among[1],
        "p99_ratio": round(among[0].latency_us["p99"] / max(1, alone[0].latency_us["p99"]), 2),
    }


async def _measure(loads: list[Load], options: LargeOptions) -> list[Phase]:
    """What was received of the small ones, and of the large ones where there are any."""
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
