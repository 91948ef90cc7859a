"""`brokerd bench peer`: from one daemon to another, if asked for by way of a third one (FWD).

Reads: nothing.      Calls: daemons and load processes.
Never: asserts a speed; with `compare` both ways are measured in one run, and the ratio is told.
"""

from pathlib import Path

import msgspec

from brokerd.bench.daemons import OBJECTS, Daemon, free_ports, pair, route, running
from brokerd.bench.loads import Loads, Phase, receivers, senders, summed
from brokerd.bench.measuring import LoadOptions, Say, bench_directory, describe_settings
from brokerd.bench.watching import watching
from brokerd.clock import SystemClock

PASSING = '[broker]\nname = "main"\n'
"""Objects of the daemon in the middle; its instance routes come behind."""


class PeerOptions(LoadOptions, frozen=True, kw_only=True):
    """What to measure between two daemons."""

    cap: int = 1600
    """Messages sent and not yet received at most, so that the rate is a steady one."""
    forwarder: bool = False
    """With a third daemon between the two."""
    compare: bool = False
    """Without it and with it, one after the other, and the ratio."""


async def peer(options: PeerOptions, say: Say) -> dict[str, object]:
    """Sent at east, received and committed at west, end to end."""
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
                outcomes = await loads.run(options.seconds, look=watch.look)
    received = summed(outcomes[options.processes :], options.seconds)
    return {
        "send": summed(outcomes[: options.processes], options.seconds),
        "end_to_end": received,
        "processor_us_per_message": watch.processor_us(received.messages),
        "counters": watch.counted(),
        "peak_memory_bytes": watch.peak_memory,
    }


def _daemons(options: PeerOptions, directory: Path) -> list[Daemon]:
    """East, west, and what may be between them; each knows the way by one route."""
    if not options.forwarder:
        return pair(Daemon, directory)
    east, middle, west = free_ports(3)
    to_west, to_east = ("bench_sink", west), ("bench_source", east)
    ways = "".join(route(*to, kind="instance_route") for to in (to_west, to_east))
    return [
        Daemon(directory, "east", port=east, objects=OBJECTS + route("bench_sink", middle)),
        Daemon(directory, "middle", port=middle, objects=PASSING + ways, forwarding=True),
        Daemon(directory, "west", port=west, objects=OBJECTS + route("bench_source", middle)),
    ]
