"""`brokerd bench stalled`: the cost, for others, of a peer that does not read (REL-23, TRN-36).

Reads: nothing.      Calls: five daemons and load processes.
Never: asserts a speed; both phases are in one run, and the ratio of their rates is reported.
"""

import os
import signal
from pathlib import Path

import msgspec

from brokerd.bench.daemons import OBJECTS, Daemon, free_ports, route, running
from brokerd.bench.load import Load
from brokerd.bench.loads import Loads, Phase, summed
from brokerd.bench.measuring import Options, Say, bench_directory, describe_settings
from brokerd.clock import SystemClock

PEERS = 4
_SLOTS = 16 * 64


class StalledOptions(Options, frozen=True, kw_only=True):
    """One daemon that sends to four; the last of them is stopped in the second phase."""

    seconds: float = 5.0
    """Seconds of each phase."""
    dialogs: int = 16
    """Number of dialogs to each peer."""
    size: int = 256
    cap: int = 400
    """Number of messages under way to each of the three measured peers."""
    rate: float = 200.0
    """Messages per second to the fourth peer, before and while it is stopped."""


async def stalled(options: StalledOptions, say: Say) -> dict[str, object]:
    """Measure three peers while the fourth works, and while it is stopped (SIGSTOP)."""
    with bench_directory(options) as directory:
        here, *ports = free_ports(1 + PEERS)
        ways = "".join(route(f"bench_sink{number}", port) for number, port in enumerate(ports))
        east = Daemon(directory, "east", port=here, objects=OBJECTS + ways)
        peers = [
            Daemon(
                directory,
                f"peer{number}",
                port=port,
                objects=OBJECTS.replace("bench_sink", f"bench_sink{number}")
                + route("bench_source", here),
            )
            for number, port in enumerate(ports)
        ]
        async with running(east, *peers):
            say(f"all four peers, for {options.seconds:g} s")
            whole = await _measure(options, directory / "whole", east, peers, stops=False)
            say(f"the fourth is stopped, for {options.seconds:g} s")
            os.kill(peers[-1].pid, signal.SIGSTOP)
            try:
                lame = await _measure(options, directory / "lame", east, peers, stops=True)
                memory = east.memory
            finally:
                os.kill(peers[-1].pid, signal.SIGCONT)
    return {
        "benchmark": "stalled",
        "settings": describe_settings(options),
        "all_work": whole,
        "one_stalled": lame,
        "memory_with_one_stalled_bytes": memory,
        "rate_ratio": round(lame.rate / max(1.0, whole.rate), 3),
    }


async def _measure(
    options: StalledOptions, place: Path, east: Daemon, peers: list[Daemon], *, stops: bool
) -> Phase:
    """Return the phase of the messages that the first three peers receive."""
    loads: list[Load] = []
    for number, peer in enumerate(peers[:-1]):
        counters = place.with_name(f"{place.name}{number}")
        counters.write_bytes(bytes(_SLOTS))
        sent = Load(
            role="send",
            address=east.address,
            clients=1,
            dialogs=options.dialogs,
            size=options.size,
            to_service=f"bench_sink{number}",
            cap=options.cap,
            counters=str(counters),
        )
        got = Load(role="receive", address=peer.address, clients=1, counters=str(counters))
        loads += [msgspec.structs.replace(got, slot=1), sent]
    other = Load(
        role="pace",
        address=east.address,
        clients=1,
        dialogs=options.dialogs,
        size=options.size,
        rate=options.rate,
        to_service=f"bench_sink{PEERS - 1}",
    )
    loads.append(other)
    if not stops:
        loads.append(Load(role="receive", address=peers[-1].address, clients=1))
    running = Loads(loads, SystemClock())
    outcomes = await running.run(options.seconds)
    return summed(outcomes[: 2 * (PEERS - 1) : 2], options.seconds)
