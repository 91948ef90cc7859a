"""`brokerd bench stages`: the processor time of one message, stage by stage.

Reads: the reports of sampled daemons, and the metrics logs they leave.
Calls: daemons (`bench.sampled`) and load processes.
Never: guesses; a module that is not in the table is counted in the stage "rest".

Messages are sent, received and committed during the whole measurement, so a figure is per message
from its send to its commit. Stages are processor time of the loop's thread; a flush is also given
in elapsed time.
"""

import asyncio
import gzip
import os
import signal
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from brokerd.bench.daemons import OBJECTS, Daemon, introduce, pair, running
from brokerd.bench.loads import Loads, Sample, quantiles, receivers, senders, summed
from brokerd.bench.measuring import (
    BenchFailed,
    LoadOptions,
    Say,
    bench_directory,
    describe_settings,
)
from brokerd.bench.sampled import EVERY, Report
from brokerd.bench.tally import Outcome
from brokerd.clock import SystemClock
from brokerd.telemetry.metrics import bucket_value

STAGES: dict[str, tuple[str, ...]] = {
    "session": ("sessions.", "protocol.client_"),
    "dialog_step": (
        "protocol.dialog",
        "protocol.endpoint",
        "protocol.transitions",
        "protocol.fragments",
        "protocol.sending",
        "broker.endpoints",
    ),
    "changeset": (
        "broker.changeset",
        "broker.local_delivery",
        "broker.publication",
        "delivery.fastpath.rows",
        "storage.changes",
    ),
    "queue_and_wake_up": (
        "broker.queue",
        "broker.backlog",
        "broker.ready_groups",
        "broker.receive_waiters",
        "broker.window",
        "activation.",
    ),
    "flush": ("storage.",),
    "verb": (
        "delivery.fastpath.",
        "verbs.",
        "broker.",
    ),
    "delivery": ("delivery.", "routing.", "broker.outgoing", "broker.ack_state"),
    "security": ("security.", "delivery.peers.dialog_security", "delivery.incoming.unsealing"),
    "wire": ("transport.", "protocol."),
}
"""The prefixes of each stage's modules; the longest that matches decides."""
REST = "rest"
WRITERS = ("brokerd-writer", "brokerd-flusher")
"""Names of the writing threads, in Python and compiled."""
_MODULES = 12
"""Number of modules that are reported one by one."""
_REPORT_LIMIT = 10.0
_SLOTS = 16 * 64


class StagesOptions(LoadOptions, frozen=True, kw_only=True):
    """The load of `bench stages`."""

    cap: int = 1600
    """Most messages sent and not yet received, so that the rate is steady."""
    peer: bool = False
    """Whether messages go from one daemon to another; both daemons are reported."""
    secured: bool = False
    """Whether the dialogs between two daemons are encrypted and authenticated."""
    encrypted: bool = False
    """Whether the connection between two daemons is, by TLS."""


class SampledDaemon(Daemon):
    """A daemon that samples its loop."""

    def command(self, settings: Path) -> tuple[str, ...]:
        """Return the arguments that run the daemon with a sampler."""
        return ("-m", "brokerd.bench.sampled", str(self._report), "serve", "-c", str(settings))

    @property
    def _report(self) -> Path:
        return self.directory / "report"

    async def report(self) -> Report:
        """Return a report of the processor time that the daemon has used until now."""
        clock, before = SystemClock(), self._read()
        deadline = clock.monotonic() + _REPORT_LIMIT
        os.kill(self.pid, signal.SIGUSR2)
        while clock.monotonic() < deadline:
            await clock.sleep_until(clock.monotonic() + 0.01)
            now = self._read()
            if now is not None and (before is None or now.number > before.number):
                return now
        raise BenchFailed("a daemon did not say what it has used")

    def _read(self) -> Report | None:
        try:
            return msgspec.json.decode(self._report.read_bytes(), type=Report)
        except FileNotFoundError:
            return None


async def stages(options: StagesOptions, say: Say) -> dict[str, object]:
    """Send, receive and commit for a while; return the cost of each stage."""
    with bench_directory(options) as directory:
        daemons = _daemons(options, directory)
        async with running(*daemons):
            if options.peer and (options.secured or options.encrypted):
                await introduce(*daemons)
            say(f"sending and receiving for {options.seconds:g} s")
            reports: list[list[Report]] = []

            async def sample() -> None:
                reports.append(await asyncio.gather(*(one.report() for one in daemons)))

            outcomes = await _run(daemons, options, directory, sample)
        flushes = {one.name: read_times(one.directory / "data" / "metrics") for one in daemons}
    sent, received = outcomes[: options.processes], outcomes[options.processes :]
    count = max(1, sum(one.counted for one in received))
    total = max(1, sum(one.total for one in received))
    return {
        "benchmark": "stages",
        "settings": {**describe_settings(options), "sampled_every_us": round(EVERY * 1e6)},
        "end_to_end": summed(received, options.seconds),
        "client_us_per_message": {
            "send": per_message(sum(one.cpu for one in sent), total),
            "receive": per_message(sum(one.cpu for one in received), total),
        },
        "daemons": {
            one.name: {
                **stage_costs(before, after, count),
                "flush_times": per_flush(flushes[one.name], total),
            }
            for one, before, after in zip(daemons, *reports, strict=True)
        },
    }


async def _run(
    daemons: list[SampledDaemon], options: StagesOptions, directory: Path, sample: Sample
) -> list[Outcome]:
    counters = directory / "counters"
    counters.write_bytes(bytes(_SLOTS))
    both = (*senders(options, daemons[0].address), *receivers(options, daemons[-1].address))
    loads = [
        msgspec.structs.replace(load, cap=options.cap, counters=str(counters), slot=slot)
        for slot, load in enumerate(both)
    ]
    return await Loads(loads, SystemClock()).run(options.seconds, sample=sample)


def _daemons(options: StagesOptions, directory: Path) -> list[SampledDaemon]:
    if not options.peer:
        return [SampledDaemon(directory, "daemon", port=0, objects=OBJECTS)]
    return pair(SampledDaemon, directory, secured=options.secured, encrypted=options.encrypted)


def stage_costs(before: Report, after: Report, count: int) -> dict[str, object]:
    """Return microseconds per message between two reports of a daemon, and its loop's load."""
    loop = _grown(before.loop, after.loop)
    threads = _grown(before.threads, after.threads)
    main = threads.pop("MainThread", 0.0)
    writer = sum(threads.pop(name, 0.0) for name in WRITERS)
    most = sorted(loop.items(), key=lambda one: -one[1])[:_MODULES]
    return {
        "processor_us_per_message": per_message(main + writer + sum(threads.values()), count),
        "loop_percent": round(100 * main / max(after.at - before.at, 1e-6), 1),
        "loop_us": per_message(main, count),
        "stages_us": {
            name: per_message(spent, count) for name, spent in staged(loop).items() if spent
        },
        "writer_us": per_message(writer, count),
        "other_threads_us": per_message(sum(threads.values()), count),
        "kernel_us": per_message(after.kernel - before.kernel, count),
        "modules_us": {name: per_message(spent, count) for name, spent in most},
    }


def staged(modules: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of modules added up by stage, in the order of a message's path."""
    found = dict.fromkeys((*STAGES, REST), 0.0)
    for module, spent in modules.items():
        found[stage_of(module)] += spent
    return found


def stage_of(module: str) -> str:
    """Return the stage that a module belongs to."""
    fitting = [
        (len(prefix), name)
        for name, prefixes in STAGES.items()
        for prefix in prefixes
        if module.startswith(prefix)
    ]
    return max(fitting, default=(0, REST))[1]


def read_times(metrics: Path) -> dict[str, Counter[int]]:
    """Return the histograms of a daemon's whole life, from its metrics log."""
    lines: list[bytes] = []
    for path in sorted(metrics.rglob("*.jsonl.gz")):
        lines += gzip.decompress(path.read_bytes()).splitlines()
    return merged(msgspec.json.decode(line, type=_Interval).histograms for line in lines)


class _Interval(msgspec.Struct):
    histograms: dict[str, dict[str, int]] = {}


def merged(intervals: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, Counter[int]]:
    """Return all histograms of one name as one, by bucket."""
    found: dict[str, Counter[int]] = {}
    for histograms in intervals:
        for name, buckets in histograms.items():
            sums = found.setdefault(name, Counter())
            sums.update({int(bucket): count for bucket, count in buckets.items()})
    return found


def per_flush(times: Mapping[str, Counter[int]], count: int) -> dict[str, float | None]:
    """Return the mean elapsed microseconds of a flush, and the number of its messages.

    `hops_us`: from the loop to the writer and back, with percentiles; `build_us`: its statements;
    `commit_us`: the COMMIT with its sync of the disk.
    """
    hops, whole, commits = (
        times.get(name, Counter()) for name in ("hop_us", "flush_us", "commit_us")
    )
    return {
        "messages": round(count / max(1, whole.total()), 1),
        "hops_us": round(_mean(hops), 1),
        **{f"hops_{name}_us": us for name, us in quantiles(hops).items()},
        "hops_most_us": round(bucket_value(max(hops))) if hops else None,
        "build_us": round(_mean(whole) - _mean(commits), 1),
        "commit_us": round(_mean(commits), 1),
    }


def per_message(seconds: float, count: int) -> float:
    """Return the microseconds per message."""
    return round(seconds / count * 1e6, 2)


def _mean(buckets: Counter[int]) -> float:
    total = sum(bucket_value(bucket) * count for bucket, count in buckets.items())
    return total / max(1, sum(buckets.values()))


def _grown(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in after.items()}
