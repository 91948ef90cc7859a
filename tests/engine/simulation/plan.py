"""The plan of one run: which instances, limits, workloads and faults its seed draws (HK-9).

Reads:  seeded streams.      Never: acts.
"""

from datetime import timedelta
from random import Random
from typing import Final

import msgspec

from brokerd.broker.options import BrokerOptions
from brokerd.broker.outgoing import OutgoingOptions
from brokerd.broker.window import WindowOptions
from brokerd.testing.link import Conditions
from brokerd.testing.rng import Streams, chance
from tests.engine.simulation import features
from tests.engine.simulation.features import MIDDLE, PARTNER, Features

FAULTS: Final = (
    "crash",
    "restart",
    "cut",
    "one_way_cut",
    "reset_peer",
    "stall",
    "half_open",
    "client_crash",
    "client_reset",
    "clock_jump",
    "queue_off",
    "store_error",
)
"""Faults that `Chaos` may inject; a run has a drawn subset."""
FAILPOINTS: Final = ("store.begin", "store.before_commit", "store.after_commit", "start.recover")
"""Failpoints of the engine at which an instance may die (HK-6)."""
KIB: Final = 1024
HOUR: Final = 3600.0


class Night(msgspec.Struct, frozen=True):
    """A span of virtual time in which hardly anything happens."""

    seconds: float
    kind: str
    """`quiet`: everything runs; `cut`: a link carries nothing; `down`: an instance is off; `dark`:
    all instances and clients are off."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The instances, limits, workloads and faults that one seed has drawn."""

    instances: tuple[str, ...]
    activated: bool
    """Whether activation starts the workers; else they are clients."""
    shuffle: bool
    writers: int
    dialogs: int
    """Dialogs that each writer begins."""
    messages: int
    """Most orders that a writer sends in each dialog."""
    pause: float
    """Longest pause of a writer between two transactions, in seconds."""
    fragment_size: int
    window_fragments: int
    batch: int
    ack_delay: timedelta
    ack_every: int
    flush_transactions: int
    limits: BrokerOptions
    drop: float
    duplicate: float
    reorder: float
    conditions: Conditions
    faults: tuple[str, ...]
    mean_wait: float
    """Mean time between two faults, in seconds; it is longer at night."""
    nights: tuple[Night, ...]
    wait: float
    """Longest wait for messages of a worker that is a client, in seconds."""
    failpoints: dict[str, float]
    """Probability that an instance dies at a failpoint, each time it passes it."""
    rollbacks: float
    """Probability that a transaction is rolled back on purpose."""
    keeps_files_open: bool
    """Whether machines keep their connections to stores over a crash; else they reopen them."""
    slow_commits: float
    """Probability that a step of a commit takes 50 ms or 1.5 s."""
    skew: dict[str, timedelta]
    """How far the UTC of each instance is ahead of the true one at the start."""
    commits_cut: float
    """Probability that a client loses its connection in the middle of a commit (REL-2)."""
    fast_paths: bool = True
    """Whether ordinary messages may take the fast path: chosen by the command, not drawn."""
    features: Features = Features()
    """The further features of the run."""
    security: str = ""
    """Kind of the security of the dialogs between instances: full or anonymous; none if empty."""


def draw(streams: Streams) -> Plan:
    """Draw the plan of a run."""
    rng = streams.stream("plan")
    quiet = chance(rng, 0.08)  # no faults at all
    instances = ("east", "west", "south") if chance(rng, 0.4) else ("east", "west")
    if chance(streams.stream("topology"), 0.2):
        instances = (*instances, MIDDLE)
    chosen = features.draw(streams.stream("features"), instances, quiet=quiet)
    if chosen.mirrored:
        instances = (*instances, PARTNER)
    lossy = not quiet and chance(rng, 0.75)
    return Plan(
        instances=instances,
        activated=chance(rng, 0.5),
        shuffle=chance(rng, 0.5),
        writers=rng.choice((1, 1, 2, 3)),
        dialogs=rng.choice((1, 1, 2, 3)),
        messages=rng.choice((3, 6, 12)),
        pause=rng.choice((0.2, 1.0, 3.0)),
        fragment_size=rng.choice((256, 512, 4 * KIB, 32 * KIB)),
        window_fragments=rng.choice((4, 8, 32, 256)),
        batch=rng.choice((1, 2, 16, 256)),
        ack_delay=timedelta(seconds=rng.choice((0.0, 0.01, 0.2, 2.0))),
        ack_every=rng.choice((1, 4, 32)),
        flush_transactions=rng.choice((1, 3, 4096)),
        limits=_limits(rng),
        drop=_rate(rng, lossy, 0.3),
        duplicate=_rate(rng, lossy, 0.3),
        reorder=_rate(rng, lossy, 0.3),
        conditions=_conditions(rng, quiet=quiet),
        faults=() if quiet else _faults(rng, mirrored=chosen.mirrored),
        mean_wait=rng.choice((0.4, 0.8, 2.0)),
        nights=_nights(rng, quiet=quiet),
        wait=rng.choice((5.0, 60.0, 600.0)),
        failpoints={} if quiet else _failpoints(rng),
        rollbacks=rng.choice((0.0, 0.05, 0.2)),
        keeps_files_open=chance(rng, 0.94),
        slow_commits=rng.choice((0.0, 0.02, 0.1)),
        skew={name: timedelta(seconds=rng.uniform(-30, 30)) for name in instances},
        commits_cut=0.0 if quiet else rng.choice((0.0, 0.0, 0.05, 0.2)),
        features=chosen,
        security=_security(streams.stream("security"), chosen),
    )


def _security(rng: Random, chosen: Features) -> str:
    """Draw the kind of dialog security (SEC-19).

    Two homes of one service, or two partners of one broker, would have to share their keys."""
    drawn = rng.choice(("full", "anonymous")) if chance(rng, 0.3) else ""
    return "" if chosen.mirrored or chosen.doubled else drawn


def _rate(rng: Random, on: bool, most: float) -> float:
    value = rng.uniform(0.0, most)
    return value if on and chance(rng, 0.7) else 0.0


def _faults(rng: Random, *, mirrored: bool) -> tuple[str, ...]:
    """Draw a subset; it always has crashes, more often than other faults."""
    chosen = [name for name in FAULTS if chance(rng, 0.35)]
    chosen += ["failover"] * 3 if mirrored else []
    return (*chosen, *rng.choice((("crash",), ("crash",) * 3, ("crash",) * 6)))


def _nights(rng: Random, *, quiet: bool) -> tuple[Night, ...]:
    if not chance(rng, 0.17):
        return ()
    kind = "quiet" if quiet else rng.choice(("quiet", "quiet", "cut", "down", "dark", "dark"))
    # Nothing runs in a dark night, so it may be long; a long one of another kind takes real time.
    most = 5.0 * HOUR if kind == "dark" else 0.2 * HOUR
    return (Night(round(rng.uniform(120.0, most), 3), kind),)


def _limits(rng: Random) -> BrokerOptions:
    """Draw limits of memory, from tiny ones to the defaults, so that some runs page."""
    if chance(rng, 0.4):
        return BrokerOptions()
    endpoints = rng.choice((2, 5, 20_000))
    return BrokerOptions(
        endpoints=endpoints,
        unfinished_bytes={2: 1, 5: KIB}.get(endpoints, BrokerOptions().unfinished_bytes),
        window=WindowOptions(
            window_messages=rng.choice((2, 8, 20_000)),
            window_bytes=rng.choice((4 * KIB, 64 * KIB, 16 * KIB * KIB)),
            page_messages=rng.choice((1, 3, 2_000)),
            page_bytes=rng.choice((2 * KIB, 4 * KIB * KIB)),
        ),
        outgoing=OutgoingOptions(
            memory=rng.choice((2 * KIB, 16 * KIB, 48 * KIB * KIB)),
            page_messages=rng.choice((4, 256)),
            page_bytes=rng.choice((2 * KIB, KIB * KIB)),
        ),
    )


def _conditions(rng: Random, *, quiet: bool) -> Conditions:
    """Draw the conditions of all links."""
    latency = rng.choice((0.0002, 0.002, 0.05))
    if quiet:
        return Conditions(latency=latency)
    return Conditions(
        latency=latency,
        jitter=rng.choice((0.0, 0.01, 0.1)),
        chunk=rng.choice((None, None, (1, 700))),
        stall=rng.choice((0.0, 0.0, 0.01)),
        reset_every=rng.choice((0.0, 0.0, 0.0, 60_000.0)),
        refuse=rng.choice((0.0, 0.0, 0.2)),
        silent=rng.choice((0.0, 0.0, 0.0, 0.1)),
        give_up=60.0,
    )


def _failpoints(rng: Random) -> dict[str, float]:
    return {name: rng.choice((0.01, 0.04)) for name in FAILPOINTS if chance(rng, 0.35)}
