"""`brokerd bench local`: one daemon, sends each confirmed on its own, then receives.

Reads: nothing.      Calls: a daemon and load processes.      Never: asserts a speed.
"""

import msgspec

from brokerd.bench.daemons import OBJECTS, Daemon, delta, running
from brokerd.bench.load import Load
from brokerd.bench.loads import Loads, Phase, receivers, senders, summed
from brokerd.bench.measuring import LoadOptions, Say, bench_directory, describe_settings
from brokerd.clock import Clock, SystemClock


async def local(options: LoadOptions, say: Say) -> dict[str, object]:
    """One daemon: sends each confirmed on its own, then receives in transactions."""
    clock = SystemClock()
    with bench_directory(options) as directory:
        daemon = Daemon(directory, "local", port=0, objects=OBJECTS)
        async with running(daemon):
            say(f"sending for {options.seconds:g} s: {options.clients} clients")
            before = await daemon.counters()
            sends = await _phase(senders(options, daemon.address), options, clock)
            sent = delta(before, await daemon.counters())
            waiting = await daemon.ready("bench_q")
            say(f"receiving what waits: {waiting} messages")
            before = await daemon.counters()
            receives = await _drain(daemon, options, waiting, clock)
            received = delta(before, await daemon.counters())
            memory = (await daemon.counters())["peak_memory"]
    return {
        "benchmark": "local",
        "settings": describe_settings(options),
        "send": _with_flushes(sends, sent),
        "receive": _with_flushes(receives, received),
        "peak_memory": memory,
    }


async def _phase(loads: list[Load], options: LoadOptions, clock: Clock) -> Phase:
    running = Loads(loads, clock)
    return summed(await running.run(options.seconds), options.seconds)


async def _drain(daemon: Daemon, options: LoadOptions, waiting: int, clock: Clock) -> Phase:
    """Receive what waits; the time is that from the first to the last commit."""
    loads = [
        msgspec.structs.replace(one, expect=waiting // options.processes)
        for one in receivers(options, daemon.address)
    ]
    running = Loads(loads, clock)
    outcomes = await running.run(max(2.0, waiting / 40_000), warm_up=0.0)
    first = min(one.first for one in outcomes if one.counted)
    last = max(one.last for one in outcomes if one.counted)
    return summed(outcomes, max(last - first, 0.001))


def _with_flushes(phase: Phase, counters: dict[str, int]) -> Phase:
    flushes = counters.get("flushes", 0)
    return msgspec.structs.replace(
        phase, flushes=flushes, syncs_per_message=round(flushes / max(1, phase.messages), 5)
    )
