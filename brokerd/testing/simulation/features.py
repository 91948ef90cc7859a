"""Features: what one seed has beside the plain network of dialogs, each in a part of them (HK-9).

A run that had all of it at once would cost much and mix causes; a few at a time in many runs meet
the same pairs.
Reads:  a seeded stream.      Never: acts.
"""

from random import Random
from typing import Final

import msgspec

from brokerd.testing.rng import chance

MIRRORED: Final = "west"
"""The instance whose broker has a standby, where there is one."""
PARTNER: Final = "mate"
"""The instance that waits for it: the store of that broker is shared by the two."""
MIDDLE: Final = "middle"
"""The instance that forwards, where there is one: then the others know the way by it alone."""
MANNERS: Final = ("slow", "silent", "wrong", "late", "repeating", "refusing")
"""What a dynamic routing service does that it should not do."""


WORK: Final = {
    "timers": 0.2,
    "savepoints": 0.2,
    "moves": 0.15,
    "several": 0.15,
    "large": 0.1,
    "retention": 0.15,
    "priorities": 0.1,
}
"""What clients and administrators do besides, and how many of the runs have it."""
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
"""What may happen to an instance, or to a frame, as it leaves (HK-6)."""


POINTS: Final = {
    "start.ready": (0.05, 0.2),
    "store.read": (0.001, 0.005),
    "tx.after_receive": (0.01, 0.03),
    "tx.before_rollback": (0.02, 0.06),
    "activation.start_fails": (0.05, 0.2),
    "handler.exit_before_commit": (0.02, 0.1),
}
"""Where an instance dies, or a handler fails, and how often as it is passed (HK-6)."""


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """What one seed has drawn of them."""

    mirrored: bool = False
    """The broker of west has a standby: whoever of the two has its store open is principal."""
    routes: bool = False
    """Routes are added, changed, dropped and expire while they are used."""
    doubled: bool = False
    """The depot has a second home, and east a route to each: one dialog, one target (REL-13)."""
    asking: str = ""
    """The instance that lacks routes and asks a service for them; none if empty."""
    manners: tuple[str, ...] = ()
    """Of that service; without any it answers at once, rightly and once."""

    work: tuple[str, ...] = ()
    wire: dict[str, float] = {}
    """Probability that it happens, each time a frame of that kind leaves."""
    points: dict[str, float] = {}
    """Probability that it happens, each time a place of that name is passed."""

    @property
    def changes_objects(self) -> bool:
        """Whether an administrator makes objects that the declaration of the run does not have."""
        objects = self.routes or self.doubled or bool(self.asking)
        return objects or "retention" in self.work or "priorities" in self.work


def draw(rng: Random, instances: tuple[str, ...], *, quiet: bool) -> Features:
    """Draw them for a run of these instances; `quiet`: nothing goes wrong in it."""
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
