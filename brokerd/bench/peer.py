"""`brokerd bench peer`: messages from one daemon to another, optionally through a third (FWD).

Reads: nothing.      Calls: daemons and load processes.
Never: asserts a speed; with `compare` both paths are measured in one run, and their ratio reported.
"""

from functools import partial
from pathlib import Path

import msgspec

from brokerd.bench.daemons import (
    OBJECTS,
    Daemon,
    binding,
    free_ports,
    introduce,
    pair,
    route,
    running,
)
from brokerd.bench.loads import Loads, Phase, receivers, senders, summed
from brokerd.bench.measuring import LoadOptions, Say, bench_directory, describe_settings
from brokerd.bench.watching import watching
from brokerd.clock import SystemClock

PASSING = '[broker]\nname = "main"\n'
"""Objects of the daemon in the middle, without its instance routes."""


class PeerOptions(LoadOptions, frozen=True, kw_only=True):
    """The load between two daemons."""

    cap: int = 1600
    """Most messages sent and not yet received, so that the rate is steady."""
    forwarder: bool = False
    """Whether a third daemon is between the two."""
    secured: bool = False
    """Whether the dialogs are encrypted and authenticated, from one end to the other."""
    encrypted: bool = False
    """Whether the connections between the daemons are, by TLS."""
    compare: bool = False
    """Whether both paths are measured, one after the other, with their ratio."""


async def peer(options: PeerOptions, say: Say) -> dict[str, object]:
    """Send at east, receive and commit at west; measure end to end."""
    about: dict[str, object] = {"benchmark": "peer", "settings": describe_settings(options)}
    if not options.compare:
        return about | await _measure(options, say)
    direct = await _measure(msgspec.structs.replace(options, forwarder=False), say)
    passed = await _measure(msgspec.structs.replace(options, forwarder=True), say)
    return about | {
        "direct": direct,
        "forwarder": passed,
        "rate_ratio": round(_rate(passed) / max(1.0, _rate(direct)), 3),
    }


def _rate(result: dict[str, object]) -> float:
    phase = result["end_to_end"]
    assert isinstance(phase, Phase)
    return phase.rate


async def _measure(options: PeerOptions, say: Say) -> dict[str, object]:
    with bench_directory(options) as directory:
        daemons = _daemons(options, directory)
        east, *_, west = daemons
        async with running(*daemons):
            if options.secured or options.encrypted:
                await introduce(*daemons)
            way = " through a forwarder" if options.forwarder else ""
            say(f"sending at east, receiving at west{way}, for {options.seconds:g} s")
            counters = directory / "counters"
            counters.write_bytes(bytes(16 * 64))
            both = (*senders(options, east.address), *receivers(options, west.address))
            loads = Loads(
                [
                    msgspec.structs.replace(
                        load, cap=options.cap, counters=str(counters), slot=slot
                    )
                    for slot, load in enumerate(both)
                ],
                SystemClock(),
            )
            async with watching(*daemons) as watch:
                outcomes = await loads.run(options.seconds, sample=watch.sample)
    received = summed(outcomes[options.processes :], options.seconds)
    return {
        "send": summed(outcomes[: options.processes], options.seconds),
        "end_to_end": received,
        "processor_us_per_message": watch.processor_us(received.messages),
        "counters": watch.counted(),
        "peak_memory_bytes": watch.peak_memory,
    }


def _daemons(options: PeerOptions, directory: Path) -> list[Daemon]:
    """Return east, west and any forwarder between them, with routes."""
    if not options.forwarder:
        return pair(Daemon, directory, secured=options.secured, encrypted=options.encrypted)
    east, middle, west = free_ports(3)
    to_west, to_east = ("bench_sink", west), ("bench_source", east)
    ways = "".join(route(*to, kind="instance_route") for to in (to_west, to_east))
    bound = binding("bench_sink", "west") if options.secured else ""
    there, back = route("bench_sink", middle) + bound, route("bench_source", middle)
    made = partial(Daemon, directory, encrypted=options.encrypted)
    return [
        made("east", port=east, objects=OBJECTS + there),
        made("middle", port=middle, objects=PASSING + ways, forwarding=True),
        made("west", port=west, objects=OBJECTS + back),
    ]
