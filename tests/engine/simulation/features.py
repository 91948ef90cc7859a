"""Features: the additions to the plain network of dialogs, each in a part of the seeds (HK-9).

A run with all of them would be slow and would mix causes; many runs with a few each meet the same
combinations of two.
Reads:  a seeded stream.      Never: acts.
"""

from random import Random
from typing import Final

import msgspec

from brokerd.testing.rng import chance

MIRRORED: Final = "west"
"""The instance whose broker has a standby in mirrored runs."""
PARTNER: Final = "mate"
"""The standby of that instance: the two share the store of the broker."""
MIDDLE: Final = "middle"
"""The instance that forwards in some runs: all usual routes of the others then lead to it."""
MANNERS: Final = ("slow", "silent", "wrong", "late", "repeating", "refusing")
"""Manners in which a dynamic routing service may misbehave."""


WORK: Final = {
    "timers": 0.2,
    "savepoints": 0.2,
    "moves": 0.15,
    "several": 0.15,
    "large": 0.1,
    "retention": 0.15,
    "priorities": 0.1,
}
"""Additional work of clients and administrators, and the share of runs that have it."""
WIRE: Final = (
    "transmit.before_write",
    "transmit.after_write",
    "ack.before_write",
    "ack.after_write",
    "ack.dropped",
    "ack.delayed",
    "ack.first_lost",
    "fragment.last_missing",
    "dialog.end_before_ack",
)
"""Failpoints of an instance, or of a frame, at the moment a frame leaves (HK-6)."""


POINTS: Final = {
    "start.ready": (0.05, 0.2),
    "store.read": (0.001, 0.005),
    "tx.after_receive": (0.01, 0.03),
    "tx.before_rollback": (0.02, 0.06),
    "activation.start_fails": (0.05, 0.2),
    "handler.exit_before_commit": (0.02, 0.1),
}
"""Failpoints where an instance dies, or a handler fails, with their two rates (HK-6)."""


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """The features that one seed has drawn."""

    mirrored: bool = False
    """Whether west's broker has a standby: the one with the store open is the principal."""
    routes: bool = False
    """Whether routes are added, changed, dropped and expire while they are used."""
    doubled: bool = False
    """Whether the depot has a second home, with a route from east to each (REL-13)."""
    asking: str = ""
    """The instance that lacks routes and requests them from a service; none if empty."""
    manners: tuple[str, ...] = ()
    """Manners of that service; without any it answers immediately, correctly and once."""

    work: tuple[str, ...] = ()
    wire: dict[str, float] = {}
    """Probability of each failpoint in `WIRE`, each time such a frame leaves."""
    points: dict[str, float] = {}
    """Probability of each failpoint in `POINTS`, each time it is passed."""

    @property
    def changes_objects(self) -> bool:
        """Whether an administrator makes objects or options that the declaration lacks."""
        objects = self.routes or self.doubled or bool(self.asking)
        return objects or "retention" in self.work or "priorities" in self.work


def draw(rng: Random, instances: tuple[str, ...], *, quiet: bool) -> Features:
    """Draw the features of a run of these instances; `quiet`: it has no faults."""
    mirrored = chance(rng, 0.15) and MIDDLE not in instances
    asks = chance(rng, 0.2)
    askers = ["east", "east", *(name for name in instances if name != MIDDLE)]
    asker = rng.choice([name for name in askers if not (mirrored and name == "west")])
    doubled = chance(rng, 0.3) and "south" in instances
    doubled = doubled and not asks and not mirrored
    return Features(
        mirrored=mirrored,
        routes=chance(rng, 0.2),
        doubled=doubled,
        asking=asker if asks else "",
        manners=tuple(name for name in MANNERS if chance(rng, 0.5)),
        work=tuple(name for name, share in WORK.items() if chance(rng, share)),
        wire={} if quiet or chance(rng, 0.7) else _wire(rng),
        points={} if quiet or chance(rng, 0.7) else _points(rng),
    )


def _wire(rng: Random) -> dict[str, float]:
    chosen = {name: rng.choice((0.05, 0.2)) for name in WIRE if chance(rng, 0.4)}
    rare = {name: 0.04 for name in chosen if name.endswith("write")}
    return chosen | rare | ({"ack.first_lost": 0.5} if "ack.first_lost" in chosen else {})


def _points(rng: Random) -> dict[str, float]:
    return {name: rng.choice(rates) for name, rates in POINTS.items() if chance(rng, 0.5)}
