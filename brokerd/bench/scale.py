"""`brokerd bench scale`: how the cost of a message grows with one thing.

Reads: what the system tells of the daemons.      Calls: daemons and load processes.
Never: asserts a speed, or varies two things: what does not grow stays as `bench local` has it.
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
"""Of all clients together."""
SIZE = 256
BATCH = 100
_BYTES = 32 * 1024 * 1024
"""Of all that is sent and not confirmed, and of all receives under way, about at most."""
_PATIENCE = 10.0


class By(StrEnum):
    """What grows."""

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
"""What is measured unless other points are asked for: about a minute."""
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
    """What grows, and how far."""

    by: By
    points: tuple[int, ...] = ()
    """None: those of `POINTS`."""
    seconds: float = 2.0
    """Of each phase of a point."""
    cold: bool = False
    """Measure receives once more, from a daemon that was restarted after the sends."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """One phase of a point."""

    rate: float
    """Messages a second."""
    processor_us_per_message: float
    """Of the daemon."""
    client_us_per_message: float
    """Processor time of the load process."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """What a message costs there."""

    send: Cost
    receive: Cost
    memory_bytes: int
    """What the daemon has after the sends."""
    receive_after_restart: Cost | None = None
    """None unless `ScaleOptions.cold` asks for it."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The load at a point."""

    clients: int = CLIENTS
    dialogs: int = DIALOGS // CLIENTS
    """Of each client."""
    more_dialogs: int = 0
    """So many clients have one more."""
    outstanding: int = OUTSTANDING // CLIENTS
    size: int = SIZE
    batch: int = BATCH
    queues: int = 1
    primed: int = 0
    """Messages that each client has sent before."""
    more_primed: int = 0
    """So many clients have sent one more."""

    @property
    def all_primed(self) -> int:
        """Messages that all clients have sent before."""
        return self.clients * self.primed + self.more_primed


def shape(by: By, value: int) -> Shape:
    """The load where this is `value` and everything else is as usual."""
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
    """What the load process that sends is told."""
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
    """The points to measure. `UsageError` if one cannot be."""
    low, high = LIMITS[options.by]
    for value in options.points:
        if not low <= value <= high:
            raise UsageError(
                f"{value} is no point of --by {options.by}: it goes from {low} to {high}",
                hint=f"--points {','.join(map(str, POINTS[options.by]))}",
            )
    return options.points or POINTS[options.by]


def objects(queues: int) -> str:
    """The objects of a daemon with so many queues, each with a service."""
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
    """What a receive costs a daemon that has nothing in memory of what was sent."""
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
    """What it cost, and how many messages it was, those of the warm-up too."""
    async with watching(daemon) as watch:
        running = Loads([load], SystemClock())
        (outcome,) = await running.run(seconds, warm_up=warm_up, look=watch.look)
    (spent,) = watch.processor_us(outcome.counted).values()
    cost = Cost(
        rate=round(outcome.counted / max(0.001, outcome.last - outcome.began), 1),
        processor_us_per_message=spent,
        client_us_per_message=round(outcome.cpu / max(1, outcome.total) * 1e6, 1),
    )
    return cost, outcome.total


def picture(result: dict[str, object]) -> str:
    """The SVG of what `scale` found."""
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
