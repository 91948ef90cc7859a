"""`brokerd bench scale`: the growth of the cost of a message with one quantity.

Reads: the system's figures of the daemons.      Calls: daemons and load processes.
Never: asserts a speed, or varies two quantities; all others stay as in `bench local`.
"""

from enum import StrEnum

import msgspec

from brokerd.bench.daemons import OBJECTS, Daemon, running
from brokerd.bench.drawing import Panel, growth
from brokerd.bench.load import Load
from brokerd.bench.loads import Loads
from brokerd.bench.measuring import (
    MOST_BODY,
    MOST_CLIENTS,
    Options,
    Say,
    bench_directory,
    describe_settings,
)
from brokerd.bench.opening import numbered
from brokerd.bench.watching import watching
from brokerd.clock import SystemClock
from brokerd.errors import UsageError

CLIENTS = 8
DIALOGS = 512
OUTSTANDING = 800
"""Number of unconfirmed sends of all clients together."""
SIZE = 256
BATCH = 100
_BYTES = 32 * 1024 * 1024
"""Approximate limit, in bytes, of unconfirmed sends, and of all receives under way."""
_PATIENCE = 10.0


class By(StrEnum):
    """The quantity that grows."""

    SIZE = "size"
    DIALOGS = "dialogs"
    QUEUES = "queues"
    CONNECTIONS = "connections"
    BACKLOG = "backlog"


POINTS: dict[By, tuple[int, ...]] = {
    By.SIZE: (64, 256, 1024, 4096, 16_384, 65_536, 262_144),
    By.DIALOGS: (10, 100, 1000, 10_000, 30_000),
    By.QUEUES: (1, 10, 100, 1000),
    By.CONNECTIONS: (1, 10, 100, 500),
    By.BACKLOG: (100, 1000, 10_000, 100_000, 300_000),
}
"""The points that are measured by default, in about a minute."""
LIMITS: dict[By, tuple[int, int]] = {
    By.SIZE: (8, MOST_BODY),
    By.DIALOGS: (1, 1_000_000),
    By.QUEUES: (1, 10_000),
    By.CONNECTIONS: (1, MOST_CLIENTS),
    By.BACKLOG: (1, 10_000_000),
}
WORDS: dict[By, str] = {
    By.SIZE: "bytes of a body",
    By.DIALOGS: "open dialogs, each with a message that waits",
    By.QUEUES: "queues, each with a service",
    By.CONNECTIONS: "connections of clients",
    By.BACKLOG: "messages that wait already",
}


class ScaleOptions(Options, frozen=True, kw_only=True):
    """The quantity that grows, and its values."""

    by: By
    points: tuple[int, ...] = ()
    """The points to measure; empty = those of `POINTS`."""
    seconds: float = 2.0
    """Seconds of each phase of a point."""
    cold: bool = False
    """Whether receives are measured once more, from a daemon restarted after the sends."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """One phase of a point."""

    rate: float
    """Messages per second."""
    processor_us_per_message: float
    """Processor time of the daemon, in microseconds."""
    client_us_per_message: float
    """Processor time of the load process, in microseconds."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a message at one point."""

    send: Cost
    receive: Cost
    memory_bytes: int
    """Memory of the daemon after the sends, in bytes."""
    receive_after_restart: Cost | None = None
    """Cost of a receive after a restart; None unless `ScaleOptions.cold` is set."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The load at a point."""

    clients: int = CLIENTS
    dialogs: int = DIALOGS // CLIENTS
    """Number of dialogs of each client."""
    more_dialogs: int = 0
    """Number of clients that have one dialog more."""
    outstanding: int = OUTSTANDING // CLIENTS
    size: int = SIZE
    batch: int = BATCH
    queues: int = 1
    primed: int = 0
    """Number of messages that each client sends beforehand."""
    more_primed: int = 0
    """Number of clients that send one message more beforehand."""

    @property
    def all_primed(self) -> int:
        """Number of messages that all clients send beforehand."""
        return self.clients * self.primed + self.more_primed


def shape(by: By, value: int) -> Shape:
    """Return the load in which this quantity is `value` and all others are as usual."""
    match by:
        case By.SIZE:
            under_way = min(OUTSTANDING, _BYTES // value) // CLIENTS
            return Shape(
                size=value,
                outstanding=max(1, under_way),
                batch=max(1, min(BATCH, _BYTES // CLIENTS // value)),
            )
        case By.DIALOGS:
            clients = min(CLIENTS, value)
            each, more = divmod(value, clients)
            return Shape(
                clients=clients, dialogs=each, more_dialogs=more, primed=each, more_primed=more
            )
        case By.QUEUES:
            each, more = divmod(max(DIALOGS, value), CLIENTS)
            return Shape(queues=value, dialogs=each, more_dialogs=more)
        case By.CONNECTIONS:
            each, more = divmod(max(DIALOGS, value), value)
            return Shape(
                clients=value,
                dialogs=each,
                more_dialogs=more,
                outstanding=max(1, OUTSTANDING // value),
            )
        case By.BACKLOG:
            clients = min(CLIENTS, value)
            each, more = divmod(value, clients)
            return Shape(clients=clients, primed=each, more_primed=more)


def sender(load: Shape, address: str) -> Load:
    """Return the load process that sends."""
    return Load(
        role="send",
        address=address,
        clients=load.clients,
        dialogs=load.dialogs,
        more_dialogs=load.more_dialogs,
        outstanding=load.outstanding,
        size=load.size,
        queues=load.queues,
        primed=load.primed,
        more_primed=load.more_primed,
    )


def checked(options: ScaleOptions) -> tuple[int, ...]:
    """Return the points to measure; raise `UsageError` if a point cannot be measured."""
    low, high = LIMITS[options.by]
    for value in options.points:
        if not low <= value <= high:
            raise UsageError(
                f"{value} is no point of --by {options.by}: it goes from {low} to {high}",
                hint=f"--points {','.join(map(str, POINTS[options.by]))}",
            )
    return options.points or POINTS[options.by]


def objects(queues: int) -> str:
    """Return the objects of a daemon with this number of queues, each with a service."""
    if queues == 1:
        return OBJECTS
    return OBJECTS + "".join(
        f'[[queue]]\nname = "{queue}"\n[[service]]\nname = "{service}"\nqueue = "{queue}"\n'
        'contracts = ["bench/v1"]\n'
        for queue, service in zip(
            numbered("bench_q", queues), numbered("bench_sink", queues), strict=True
        )
    )


async def scale(options: ScaleOptions, say: Say) -> dict[str, object]:
    """Measure all points, one after the other."""
    options = msgspec.structs.replace(options, points=checked(options))
    points: dict[str, Point] = {}
    for value in options.points:
        say(f"{WORDS[options.by]}: {value}")
        points[str(value)] = await _measure(shape(options.by, value), options)
    return {
        "benchmark": f"scale by {options.by}",
        "settings": describe_settings(options),
        "points": points,
    }


async def _measure(load: Shape, options: ScaleOptions) -> Point:
    with bench_directory(options) as directory:
        daemon = Daemon(directory, "scale", port=0, objects=objects(load.queues))
        async with running(daemon):
            send, total = await _send(daemon, load, options)
            memory = daemon.memory
            receive = await _receive(daemon, load, total, options)
    return Point(
        send=send,
        receive=receive,
        memory_bytes=memory,
        receive_after_restart=await _measure_cold(load, options) if options.cold else None,
    )


async def _measure_cold(load: Shape, options: ScaleOptions) -> Cost:
    """Return the cost of a receive from a restarted daemon, which has nothing in memory."""
    with bench_directory(options) as directory:
        daemon = Daemon(directory, "cold", port=0, objects=objects(load.queues))
        async with running(daemon):
            _, total = await _send(daemon, load, options)
        async with running(daemon):
            return await _receive(daemon, load, total, options)


async def _send(daemon: Daemon, load: Shape, options: ScaleOptions) -> tuple[Cost, int]:
    return await _phase(daemon, sender(load, daemon.address), options.seconds, warm_up=0.5)


async def _receive(daemon: Daemon, load: Shape, sent: int, options: ScaleOptions) -> Cost:
    taken = Load(
        role="take",
        address=daemon.address,
        clients=load.clients,
        batch=load.batch,
        queues=load.queues,
        expect=sent + load.all_primed,
        patience=_PATIENCE,
    )
    cost, _ = await _phase(daemon, taken, options.seconds, warm_up=0.0)
    return cost


async def _phase(daemon: Daemon, load: Load, seconds: float, *, warm_up: float) -> tuple[Cost, int]:
    """Run a phase; return its cost and the number of messages, including the warm-up."""
    async with watching(daemon) as watch:
        running = Loads([load], SystemClock())
        (outcome,) = await running.run(seconds, warm_up=warm_up, sample=watch.sample)
    (spent,) = watch.processor_us(outcome.counted).values()
    cost = Cost(
        rate=round(outcome.counted / max(0.001, outcome.last - outcome.began), 1),
        processor_us_per_message=spent,
        client_us_per_message=round(outcome.cpu / max(1, outcome.total) * 1e6, 1),
    )
    return cost, outcome.total


def picture(result: dict[str, object]) -> str:
    """Return the result of `scale` as SVG."""
    settings, points = result["settings"], result["points"]
    assert isinstance(settings, dict)
    assert isinstance(points, dict)
    found: list[Point] = list(points.values())
    by = By(settings["by"])
    panels = [
        Panel(
            "messages a second",
            {
                "sent": [one.send.rate for one in found],
                "received": [one.receive.rate for one in found],
            },
        ),
        Panel("daemon's memory, MiB", {"memory": [one.memory_bytes / 2**20 for one in found]}),
        Panel(
            "processor, µs a send",
            {
                "daemon": [one.send.processor_us_per_message for one in found],
                "client": [one.send.client_us_per_message for one in found],
            },
        ),
        Panel(
            "processor, µs a receive",
            {
                "daemon": [one.receive.processor_us_per_message for one in found],
                "client": [one.receive.client_us_per_message for one in found],
            },
        ),
    ]
    return growth(f"How cost grows with {by}", WORDS[by], [int(one) for one in points], panels)
