"""`brokerd bench latency`: latencies of a daemon that is not at its limit.

Reads: the time of a sync of this disk, for comparison.    Calls: a daemon and load processes.
Never: asserts a speed, or leaves out late results; a paced send is measured from when it was due.
"""

import os
import statistics
from pathlib import Path
from time import perf_counter
from typing import Final

import msgspec

from brokerd.bench.daemons import OBJECTS, Daemon, running
from brokerd.bench.load import Load
from brokerd.bench.loads import TAKES, Loads, Phase, summed, with_rate
from brokerd.bench.measuring import (
    Options,
    Say,
    bench_directory,
    describe_settings,
)
from brokerd.client.session import connect
from brokerd.clock import SystemClock
from brokerd.protocol.client_verbs import MAX_GROUPS

_SYNCS = 200
_BLOCK = 4096
_AT_ONCE = 1000
_CALLERS_A_CLIENT = 8
MOST_CALLERS: Final = TAKES.transactions_in_all - 100
"""Most callers: each of them has a transaction open, and so has each answering client."""


class LatencyOptions(Options, frozen=True, kw_only=True):
    """The load on the daemon."""

    seconds: float = 5.0
    """Seconds of each phase."""
    rate: float = 500.0
    """Number of messages per second, end to end."""
    callers: int = 64
    """Number of callers in the last phase; each waits for a reply before its next request."""
    size: int = 256


async def latency(options: LatencyOptions, say: Say) -> dict[str, object]:
    """Measure one send at a time, a steady rate end to end, one caller, and many callers."""
    with bench_directory(options) as directory:
        sync = _sync_us(directory)
        daemon = Daemon(directory, "latency", port=0, objects=OBJECTS)
        async with running(daemon):
            phases = {name: await _run(daemon, name, options, say) for name in _PHASES}
    alone = phases["send_alone"].latency_us["p50"]
    return {
        "benchmark": "latency",
        "settings": describe_settings(options),
        "disk_sync_us": sync,
        **phases,
        "send_alone_in_syncs": round((alone or 0) / max(1, sync), 2),
    }


_PHASES = {
    "send_alone": "one send at a time",
    "end_to_end": "messages at a steady rate, from the send to the committed receive",
    "call_alone": "one caller: request, reply in the same transaction, reply received",
    "call_many": "many callers",
}


async def _run(daemon: Daemon, name: str, options: LatencyOptions, say: Say) -> Phase:
    say(f"{_PHASES[name]}, for {options.seconds:g} s")
    loads = Loads(_loads(daemon.address, name, options), SystemClock())
    outcomes = await loads.run(options.seconds)
    await _drain(daemon)
    phase = summed(outcomes[:1], options.seconds)
    return with_rate(phase, options.rate, say) if name == "end_to_end" else phase


async def _drain(daemon: Daemon) -> None:
    """Receive all messages, which would otherwise wait in front of those of the next phase."""
    async with await connect(daemon.address, broker="main") as session:
        for queue in ("bench_q", "bench_source_q"):
            while True:
                async with session.transaction() as tx:
                    messages = await tx.receive(queue, _AT_ONCE, groups=MAX_GROUPS)
                if not messages:
                    break


def _loads(address: str, name: str, options: LatencyOptions) -> list[Load]:
    """Return the load processes of a phase, first the process that is counted."""
    plain = Load(role="echo", address=address, clients=1, dialogs=8, size=options.size)

    def having(**changes: object) -> Load:
        return msgspec.structs.replace(plain, **changes)

    if name == "send_alone":
        return [plain]
    if name == "end_to_end":
        return [having(role="listen"), having(role="pace", rate=options.rate)]
    if name == "call_alone":
        return [having(role="call", dialogs=1), having(role="answer")]
    clients = max(1, options.callers // _CALLERS_A_CLIENT)
    each, more = divmod(options.callers, clients)
    callers = having(role="call", clients=clients, dialogs=each, more_dialogs=more)
    return [callers, having(role="answer")]


def _sync_us(directory: Path) -> int:
    """Return the median time of a synced write of one block, in microseconds."""
    times = []
    with (directory / "sync").open("wb", buffering=0) as file:
        for _ in range(_SYNCS):
            began = perf_counter()
            file.write(bytes(_BLOCK))
            os.fdatasync(file.fileno())
            times.append(perf_counter() - began)
    return round(statistics.median(times) * 1e6)
