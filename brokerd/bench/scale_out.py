"""`brokerd bench scale-out`: one daemon, then several at once, each with a broker of its own.

Reads: nothing.      Calls: daemons and load processes; with a URL, a PostgreSQL server.
Never: asserts a speed, or leaves a schema behind on the server.

Daemons, clients and, if it is on this machine, the server share its processors. So a sum that grows
less than the number of daemons says what this machine has, and the processor time of a message says
what one daemon needs.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

from brokerd.bench.daemons import OBJECTS, Daemon, free_ports, running
from brokerd.bench.loads import Loads, Phase, receivers, senders, summed
from brokerd.bench.measuring import LoadOptions, Say, bench_directory, describe_settings
from brokerd.bench.watching import watching
from brokerd.clock import SystemClock
from brokerd.config.database_url import shown
from brokerd.errors import StoreFault
from brokerd.ids import RandomIds
from brokerd.units import counted


class ScaleOutOptions(LoadOptions, frozen=True, kw_only=True):
    """The daemons, and the load of each."""

    daemons: int = 4
    url: str = ""
    """Database of all stores, in which each daemon has schemas of its own; empty = files."""
    cap: int = 1600
    """Most messages sent to a daemon and not yet received, so that the rate is steady."""


async def scale_out(options: ScaleOutOptions, say: Say) -> dict[str, object]:
    """Send to and receive at one daemon, then at all of them at once."""
    alone = await _measure(options, 1, say)
    together = await _measure(options, options.daemons, say)
    described = describe_settings(options) | {"url": shown(options.url) if options.url else ""}
    return {
        "benchmark": "scale_out",
        "settings": described,
        "alone": alone,
        "together": together,
        "sum_ratio": round(_rate(together) / max(1.0, _rate(alone)), 3),
    }


def _rate(result: dict[str, object]) -> float:
    phase = result["sum"]
    assert isinstance(phase, Phase)
    return phase.rate


async def _measure(options: ScaleOutOptions, number: int, say: Say) -> dict[str, object]:
    async with _prefixes(options.url, number) as prefixes:
        with bench_directory(options) as directory:
            daemons = [
                Daemon(directory, f"d{at}", port=port, objects=OBJECTS, store=_store(options, one))
                for at, (one, port) in enumerate(zip(prefixes, free_ports(number), strict=True))
            ]
            async with running(*daemons):
                say(f"{counted(number, 'daemon')} for {options.seconds:g} s")
                return await _load(options, daemons, directory)


def _store(options: ScaleOutOptions, prefix: str) -> str:
    if not options.url:
        return ""
    return f'[store]\nurl = "{options.url}"\nschema_prefix = "{prefix}"\n'


async def _load(
    options: ScaleOutOptions, daemons: Sequence[Daemon], directory: Path
) -> dict[str, object]:
    """Send to each daemon and receive there; return what each has done, and the sum."""
    loads, share = [], 2 * options.processes
    for one in daemons:
        counters = directory / f"{one.name}.counters"
        counters.write_bytes(bytes(16 * 64))
        both = (*senders(options, one.address), *receivers(options, one.address))
        loads += [
            msgspec.structs.replace(load, cap=options.cap, counters=str(counters), slot=slot)
            for slot, load in enumerate(both)
        ]
    async with watching(*daemons) as watch:
        outcomes = await Loads(loads, SystemClock()).run(options.seconds, sample=watch.sample)
    received = [
        outcomes[at * share + options.processes : (at + 1) * share] for at in range(len(daemons))
    ]
    total = summed([one for each in received for one in each], options.seconds)
    return {
        "sum": total,
        "rates": [summed(each, options.seconds).rate for each in received],
        # All daemons share the messages, so their times of one message add up to the mean.
        "processor_us_per_message": round(sum(watch.processor_us(total.messages).values()), 1),
        "flushes": sum(one["flushes"] for one in watch.counted().values()),
        "peak_memory_bytes": watch.peak_memory,
    }


@contextlib.asynccontextmanager
async def _prefixes(url: str, number: int) -> AsyncIterator[list[str]]:
    """Yield a prefix of schemas for each daemon, and remove the schemas after the block."""
    first = f"bench{RandomIds().fresh().hex()[:8]}_"
    made = [f"{first}{at}_" for at in range(number)]
    try:
        yield made
    except BaseException:
        # If the server cannot be reached, what the block has failed of says more than the removal.
        with contextlib.suppress(StoreFault):
            await _remove(url, first)
        raise
    await _remove(url, first)


async def _remove(url: str, first: str) -> None:
    if url:
        from brokerd.storage.postgresql.schema import remove_schemas  # noqa: PLC0415  # an extra

        await asyncio.shield(remove_schemas(url, first))
