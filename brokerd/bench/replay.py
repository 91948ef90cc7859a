"""`brokerd bench replay`: recorded traffic played again, at its speed, faster, or without waiting.

Reads: files of recorded traffic.      Calls: one daemon or two, and load processes.
Never: has the recorded bodies; its own bodies have the recorded sizes, and begin with a time.

Each recorded endpoint that sent has a dialog of its own, on the recorded client's connection, so
the messages of both sides of a dialog are played on two dialogs.
"""

from pathlib import Path

import msgspec

from brokerd.bench.daemons import OBJECTS, Daemon, pair, running
from brokerd.bench.load import Load
from brokerd.bench.loads import Loads, summed, summed_lag
from brokerd.bench.measuring import BenchFailed, Options, Say, bench_directory, describe_settings
from brokerd.bench.schedule import Schedule, read_traffic
from brokerd.bench.watching import watching
from brokerd.clock import SystemClock
from brokerd.units import counted

_LONG = 1e7
"""Latest stop of a load process, in seconds; playing ends when all messages are received."""
_PATIENCE = 30.0
"""Seconds without a message, beyond the longest recorded pause, after which receivers give up."""


class ReplayOptions(Options, frozen=True, kw_only=True):
    """The files to replay, and the options of the replay."""

    files: tuple[str, ...]
    speed: float = 1.0
    """The speed, in multiples of the recorded one; 0 = without waiting."""
    readers: int = 8
    """Number of clients that receive."""
    outstanding: int = 100
    """Most unconfirmed transactions of a client; at this number it waits, and falls behind."""
    batch: int = 100
    peer: bool = False
    """Whether messages go from one daemon to another."""


async def replay(options: ReplayOptions, say: Say) -> dict[str, object]:
    """Play the files, receive and commit all messages, and return the figures."""
    schedule = read_traffic([Path(one) for one in options.files])
    for text in schedule.lacks:
        say(text)
    with bench_directory(options) as directory:
        daemons = _daemons(options, directory)
        async with running(*daemons):
            return await _measure(schedule, daemons, options, say)


async def _measure(
    schedule: Schedule, daemons: list[Daemon], options: ReplayOptions, say: Say
) -> dict[str, object]:
    pace = f"{options.speed:g} times as fast" if options.speed else "as fast as it goes"
    say(
        f"{counted(schedule.messages, 'message')} on {counted(schedule.dialogs, 'dialog')} of "
        f"{counted(schedule.clients, 'client')}, recorded in {schedule.seconds:.1f} s, {pace}"
    )
    running = Loads(_loads(schedule, daemons, options), SystemClock())
    async with watching(*daemons) as watch:
        sent, received = await running.run(_LONG, warm_up=0.0, sample=watch.sample)
    if received.total != schedule.messages:
        raise BenchFailed(f"{schedule.messages} were sent, but {received.total} received")
    played = max(received.last - min(sent.first, received.first), 0.001)
    return {
        "benchmark": "replay",
        "settings": describe_settings(options),
        "recorded": {
            "seconds": round(schedule.seconds, 3),
            "messages": schedule.messages,
            "transactions": len(schedule.sendings),
            "bytes": schedule.bytes,
            "dialogs": schedule.dialogs,
            "clients": schedule.clients,
            "left_out": schedule.left_out,
            **({"lacks": schedule.lacks} if schedule.lacks else {}),
        },
        "send": summed([sent], max(sent.last - sent.first, 0.001)),
        "end_to_end": summed([received], played),
        **({"behind_us": summed_lag([sent])} if options.speed else {}),
        "processor_us_per_message": watch.processor_us(schedule.messages),
        "counters": watch.counted(),
        "peak_memory_bytes": watch.peak_memory,
    }


def _loads(schedule: Schedule, daemons: list[Daemon], options: ReplayOptions) -> list[Load]:
    file = daemons[0].directory.with_name("schedule")
    file.write_bytes(msgspec.msgpack.encode(schedule))
    played = Load(
        role="play",
        address=daemons[0].address,
        clients=schedule.clients,
        outstanding=options.outstanding,
        schedule=str(file),
        speed=options.speed,
    )
    pause = schedule.longest_pause / options.speed if options.speed else 0.0
    taken = Load(
        role="take",
        address=daemons[-1].address,
        clients=options.readers,
        batch=options.batch,
        expect=schedule.messages,
        patience=pause + _PATIENCE,
    )
    return [played, taken]


def _daemons(options: ReplayOptions, directory: Path) -> list[Daemon]:
    if not options.peer:
        return [Daemon(directory, "replay", port=0, objects=OBJECTS)]
    return pair(Daemon, directory)
