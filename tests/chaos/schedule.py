"""Schedule: which fault befalls whom, when and for how long, drawn from a seed.

Never:  looks at a clock or at what goes on: the same seed and form draw the same faults.
"""

from collections.abc import Collection, Iterator
from enum import StrEnum
from random import Random
from typing import Final

import msgspec


class Form(StrEnum):
    """How the two sides of all dialogs are put up."""

    TWO = "two"
    """Two daemons; programs of their own read both queues."""
    FORWARDER = "forwarder"
    """The same with a third daemon between them that forwards."""
    ACTIVATED = "activated"
    """Two daemons; the second one starts the readers of its queue itself."""

    @property
    def daemons(self) -> tuple[str, ...]:
        return (EAST, WEST, MIDDLE) if self is Form.FORWARDER else (EAST, WEST)

    @property
    def programs(self) -> tuple[str, ...]:
        workers = () if self is Form.ACTIVATED else ("ledger0", "ledger1")
        return ("sender0", "sender1", "client0", *workers)

    @property
    def ways(self) -> tuple[str, ...]:
        """Between which daemons connections are made, from either side."""
        if self is Form.FORWARDER:
            return (way(EAST, MIDDLE), way(WEST, MIDDLE))
        return (way(EAST, WEST),)


def way(one: str, other: str) -> str:
    """The name of what lies between two daemons, whichever is named first."""
    return "-".join(sorted((one, other)))


EAST: Final = "east"
WEST: Final = "west"
MIDDLE: Final = "middle"
READER: Final = "reader"
"""In place of a program: a reader that a daemon has started."""


class Kind(StrEnum):
    """What befalls somebody."""

    KILL = "kill"
    KILL_ALL = "kill all"
    PAUSE = "pause"
    RESET = "reset"
    TEAR = "tear"
    REFUSE = "refuse"
    CUT = "cut"
    DELAY = "delay"
    QUEUE = "queue off"
    ROUTE = "route dropped"
    RESTART = "other settings"
    BACKUP = "backup"
    ROTATE = "certificates rotated"
    REVOKE = "peer revoked"
    EXPIRE = "certificate expires"


class Fault(msgspec.Struct, frozen=True):
    """One fault."""

    kind: Kind
    at: float
    """Seconds after the one before it began."""
    victim: str
    """A daemon, a program or a way; "" for all daemons."""
    seconds: float = 0.0
    """How long it lasts."""
    value: float = 0.0
    """Seconds of latency, or bytes between two tears."""
    settings: dict[str, str] = {}
    """In place of the usual ones, by environment variable."""
    compiled: bool = True
    """Whether the daemon may use its compiled part."""

    def show(self) -> str:
        words = [self.kind.value, self.victim]
        if self.seconds:
            words.append(f"{self.seconds:.1f} s")
        words += [f"{name}={text}" for name, text in self.settings.items()]
        if not self.compiled:
            words.append("without the compiled part")
        return " ".join(filter(None, words))


SETTINGS: Final = {
    "BROKERD_DIALOG__FRAGMENT_SIZE": ("4KiB", "32KiB", "100KiB"),
    "BROKERD_DIALOG__WINDOW_FRAGMENTS": ("8", "64", "256"),
    "BROKERD_DIALOG__WINDOW_BYTES": ("256KiB", "4MiB"),
    "BROKERD_DIALOG__ACK_EVERY": ("1", "32"),
    "BROKERD_DIALOG__RETRY_FIRST": ("500ms", "4s"),
    "BROKERD_TRANSMITTER__MAX_OBJECTS": ("50", "20000"),
    "BROKERD_TRANSMITTER__CACHE_SIZE": ("20", "10000"),
    "BROKERD_DISPATCHER__BATCH": ("4", "256"),
    "BROKERD_STORE__FLUSH_TRANSACTIONS": ("4", "4096"),
    "BROKERD_TRANSPORT__BOXCAR_BYTES": ("128KiB", "512KiB"),
    "BROKERD_CLOCK__TICK": ("500ms", "5s"),
}
"""What a restart may change, besides the guard."""
GUARDS: Final = (60.0, 90.0, 120.0)
"""Seconds that a closed dialog is remembered: short, and yet longer than anything is held up here,
since what a shorter guard lets in again is no fault of the broker."""
SHARE_CHANGED: Final = 0.6
GAP: Final = 5.0
"""Seconds between two faults, on average."""
LONGEST_PAUSE: Final = 10.0
_DECK: Final = (
    *(Kind.KILL,) * 6,
    *(Kind.PAUSE,) * 2,
    *(Kind.RESTART,) * 3,
    *(Kind.RESET,) * 2,
    Kind.KILL_ALL,
    Kind.TEAR,
    Kind.REFUSE,
    Kind.CUT,
    Kind.DELAY,
    Kind.QUEUE,
    Kind.ROUTE,
    Kind.BACKUP,
    Kind.BACKUP,
    Kind.ROTATE,
    Kind.ROTATE,
    Kind.REVOKE,
    Kind.EXPIRE,
)
"""Each kind comes as often as it lies here, in an order that is drawn anew each time round."""


CREDENTIALS: Final = frozenset({Kind.ROTATE, Kind.REVOKE, Kind.EXPIRE})
"""Those that concern who is known, and by what."""


def faults(
    seed: int, form: Form, *, haste: float = 1.0, only: Collection[Kind] = ()
) -> Iterator[Fault]:
    """Faults without an end. `haste`: all times are so many times shorter. `only`: of these kinds;
    none = of all."""
    rng = Random(f"{seed} {form}")
    deck = [kind for kind in _DECK if not only or kind in only]
    while True:
        for kind in rng.sample(deck, len(deck)):
            gap = GAP * rng.uniform(0.3, 1.7) / haste
            yield _drawn(rng, kind, form, at=gap, haste=haste)


_LASTING: Final = {
    Kind.KILL: 3.0,
    Kind.KILL_ALL: 2.0,
    Kind.PAUSE: LONGEST_PAUSE,
    Kind.TEAR: 20.0,
    Kind.REFUSE: 10.0,
    Kind.CUT: 10.0,
    Kind.DELAY: 20.0,
    Kind.QUEUE: 8.0,
    Kind.ROUTE: 8.0,
    Kind.ROTATE: 3.0,
    Kind.REVOKE: 8.0,
    Kind.EXPIRE: 8.0,
}
"""Seconds that a fault lasts at most; others are over at once."""
_VALUES: Final = {Kind.TEAR: (20_000, 2_000_000), Kind.DELAY: (0.005, 0.05, 0.2)}


def _drawn(rng: Random, kind: Kind, form: Form, *, at: float, haste: float) -> Fault:
    seconds = rng.uniform(0.1, 1.0) * _LASTING.get(kind, 0.0) / haste
    fault = Fault(
        kind,
        at,
        rng.choice(_victims(kind, form)),
        round(seconds, 2),
        rng.choice(_VALUES.get(kind, (0.0,))),
    )
    if kind is not Kind.RESTART:
        return fault
    changed = {
        name: rng.choice(values)
        for name, values in SETTINGS.items()
        if rng.random() < SHARE_CHANGED
    }
    changed["BROKERD_DIALOG__REPLAY_GUARD"] = f"{rng.choice(GUARDS) / haste:g}s"
    return msgspec.structs.replace(fault, settings=changed, compiled=rng.random() < 2 / 3)


def _victims(kind: Kind, form: Form) -> tuple[str, ...]:
    match kind:
        case Kind.KILL:
            readers = (READER,) if form is Form.ACTIVATED else ()
            return (*form.daemons * 2, *form.programs, *readers)
        case Kind.PAUSE:
            return (*form.daemons, *form.programs)
        case Kind.ROUTE | Kind.RESTART | Kind.ROTATE | Kind.EXPIRE:
            return form.daemons
        case Kind.QUEUE | Kind.BACKUP | Kind.REVOKE:
            return (EAST, WEST)
        case Kind.KILL_ALL:
            return ("",)
        case _:
            return form.ways
