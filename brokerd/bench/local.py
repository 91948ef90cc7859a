"""`brokerd bench local`: one daemon, sends each confirmed on its own, then receives.

Reads: nothing.      Calls: a daemon and load processes.      Never: asserts a speed.
"""

import msgspec

from brokerd.bench.daemons import OBJECTS, Daemon, running
from brokerd.bench.loads import Loads, Phase, receivers, senders, summed
from brokerd.bench.measuring import LoadOptions, Say, bench_directory, describe_settings
from brokerd.bench.watching import Watch, watching
from brokerd.clock import SystemClock
from brokerd.units import counted


class LocalOptions(LoadOptions, frozen=True, kw_only=True):
    """The load of `bench local`."""

    transactions: int = 2
    """Number of a receiving client's transactions: while one commits, another receives."""


async def local(options: LocalOptions, say: Say) -> dict[str, object]:
    """Measure one daemon: sends each confirmed on its own, then receives in transactions."""
    with bench_directory(options) as directory:
        daemon = Daemon(directory, "local", port=0, objects=OBJECTS)
        async with running(daemon):
            say(f"sending for {options.seconds:g} s: {counted(options.clients, 'client')}")
            async with watching(daemon) as sending:
                sends = await _send(daemon, options, sending)
            waiting = await daemon.ready("bench_q")
            say(f"receiving what waits: {counted(waiting, 'message')}")
            async with watching(daemon) as receiving:
                receives = await _drain(daemon, options, waiting, receiving)
    return {
        "benchmark": "local",
        "settings": describe_settings(options),
        "send": _with_flushes(sends, sending),
        "receive": _with_flushes(receives, receiving),
        "peak_memory_bytes": receiving.peak_memory,
    }


async def _send(daemon: Daemon, options: LoadOptions, watch: Watch) -> Phase:
    running = Loads(senders(options, daemon.address), SystemClock())
    return summed(await running.run(options.seconds, sample=watch.sample), options.seconds)


async def _drain(daemon: Daemon, options: LocalOptions, waiting: int, watch: Watch) -> Phase:
    """Receive the waiting messages; the time is that from the first to the last commit."""
    loads = [
        msgspec.structs.replace(one, expect=waiting // options.processes)
        for one in receivers(options, daemon.address, transactions=options.transactions)
    ]
    running = Loads(loads, SystemClock())
    outcomes = await running.run(max(2.0, waiting / 40_000), warm_up=0.0, sample=watch.sample)
    first = min(one.first for one in outcomes if one.counted)
    last = max(one.last for one in outcomes if one.counted)
    phase = summed(outcomes, max(last - first, 0.001))
    return msgspec.structs.replace(phase, latency_us={}, since_sent_us=phase.latency_us)


def _with_flushes(phase: Phase, watch: Watch) -> Phase:
    (counters,) = watch.counted().values()
    flushes = counters["flushes"]
    return msgspec.structs.replace(
        phase, flushes=flushes, syncs_per_message=round(flushes / max(1, phase.messages), 5)
    )
