"""Door: who may connect to a listener, so that strangers cannot keep everybody else out (END-18).

Reads:  the moments at which connections come, log in and go.   Calls: the log.
Never:  touches a socket; `transport.accepting` does, and connections tell their seat.
Wakes:  whoever waits for room, when a connection logs in or goes.

A connection that was accepted has a `Seat` until its socket is closed. Programs of this machine
share loopback and the Unix socket, so that the limits of an address do not apply to them.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec

from brokerd.clock import Clock, Instant
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import ENDPOINT
from brokerd.telemetry.status import DoorStatus

PATIENCE: Final = 4.0
"""Seconds a connection has for its login even where others wait for its place, at most."""
LEAST_PATIENCE: Final = 0.25
"""The same where those before it have used it in vain."""
ASIDE: Final = 64
"""Descriptors that connections leave free for stores, logs and pipes (REL-27). Connections that
come over the network leave as many more to the Unix socket."""
SMALL_LIMIT_SHARE: Final = 4
"""Where the process may have few descriptors, a quarter of them is left free instead."""

# Reasons for which a connection is refused (END-18).
FULL: Final = "connections"
ADDRESS_FULL: Final = "address_connections"
ADDRESS_LOGINS: Final = "address_logins"
DISPLACED: Final = "displaced"
DESCRIPTORS: Final = "descriptors"


class DoorOptions(msgspec.Struct, frozen=True):
    """Limits on the connections of one kind, peers or clients (reliability, section 6)."""

    most: int
    """Connections in all."""
    per_address: int = 64
    logins: int = 64
    """Connections that have not logged in."""
    logins_per_address: int = 16


class Seat:
    """The place of one accepted connection, from the accept until its socket is closed."""

    __slots__ = ("_door", "_turn_out", "host", "logged_in", "remote", "since")

    def __init__(self, door: "Door", remote: str, host: str, since: float) -> None:
        self.remote = remote
        """The far end's address; empty for one over a Unix socket."""
        self.host = host
        """Its address where the limits of one address apply to it, else empty."""
        self.since = since
        self.logged_in = False
        self._door = door
        self._turn_out: Callable[[], None] | None = None

    def occupied(self, turn_out: Callable[[], None]) -> None:
        """Its protocol exists; `turn_out` closes the connection."""
        self._turn_out = turn_out

    def log_in(self) -> None:
        """Its login is over: it is no stranger any more."""
        if not self.logged_in:
            self.logged_in = True
            self._door.logged_in(self)

    def leave(self) -> None:
        """Its socket is closed."""
        self._door.left(self)

    def turn_out(self) -> None:
        """Close the connection for another one."""
        if self._turn_out is not None:
            self._turn_out()


class Door:
    """The connections of one kind, peers or clients, over all addresses that they come in by."""

    def __init__(
        self,
        kind: str,
        *,
        options: DoorOptions,
        refusal: Callable[[str], bytes],
        clock: Clock,
        log: Log,
    ) -> None:
        """`refusal`: what a refused connection is sent, as far as it takes it, for a text."""
        self.kind = kind
        self.refused: Counter[str] = Counter()
        """Connections refused since the start, by reason."""
        self.refused_at: Instant | None = None
        """When the last one was refused."""
        self._options = options
        self._refusal = refusal
        self._clock = clock
        self.log = log
        self._seats: dict[Seat, None] = {}
        self._strangers: dict[Seat, None] = {}
        self._by_address: Counter[str] = Counter()
        self._strangers_by_address: Counter[str] = Counter()
        self._waiting: list[Callable[[], None]] = []
        self._patience = PATIENCE

    def __len__(self) -> int:
        return len(self._seats)

    @property
    def strangers(self) -> int:
        """Connections that have not logged in."""
        return len(self._strangers)

    def status(self) -> DoorStatus:
        """How many connections there are, and how many were refused."""
        return DoorStatus(
            kind=self.kind,
            connections=len(self._seats),
            most=self._options.most,
            strangers=len(self._strangers),
            refused=dict(self.refused),
            refused_at=self.refused_at,
        )

    def wait(self) -> float:
        """Seconds after which the next connection may be accepted; 0 = now.

        Where too many have not logged in, `enter` takes the place of the oldest of them, but not
        before that had a moment for its login: programs that start together do not push each other
        out. Each that loses its place halves that moment for the next ones, each login doubles it.

        It changes nothing: until a connection was accepted nobody knows whether one is there."""
        if len(self._strangers) < self._options.logins:
            return 0.0
        oldest = next(iter(self._strangers))
        return max(0.0, oldest.since + self._patience - self._clock.monotonic())

    def when_room(self, resume: Callable[[], None]) -> None:
        """Call it once, when a connection has logged in or gone."""
        self._waiting.append(resume)

    def enter(self, host: str, *, is_shared: bool, has_room: bool) -> "Seat | bytes":
        """The seat of a connection that was accepted, or what to send it before it is closed.

        To be called where `wait` says 0. One that its address keeps out displaces nobody.

        `host`: the far end's address; empty for one over a Unix socket. `is_shared`: all programs
        of this machine have that address. `has_room`: whether its descriptor may be used."""
        if not has_room:
            return self._refuse(DESCRIPTORS, host)
        address = "" if is_shared else host
        if address:
            if self._by_address[address] >= self._options.per_address:
                return self._refuse(ADDRESS_FULL, host)
            if self._strangers_by_address[address] >= self._options.logins_per_address:
                return self._refuse(ADDRESS_LOGINS, host)
        if len(self._strangers) >= self._options.logins:
            self._displace_oldest()
        if len(self._seats) >= self._options.most:
            return self._refuse(FULL, host)
        seat = Seat(self, host, address, self._clock.monotonic())
        self._seats[seat] = self._strangers[seat] = None
        self._by_address[address] += 1
        self._strangers_by_address[address] += 1
        return seat

    def logged_in(self, seat: Seat) -> None:
        """A seat's connection is known from now on."""
        self._patience = min(PATIENCE, self._patience * 2)
        self._forget_stranger(seat)

    def left(self, seat: Seat) -> None:
        """A seat is free."""
        if seat in self._seats:
            del self._seats[seat]
            _count_down(self._by_address, seat.host)
            self._forget_stranger(seat)

    def _displace_oldest(self) -> None:
        """Close the connection that has used its time for the login, for one that was accepted."""
        oldest = next(iter(self._strangers))
        self._patience = max(LEAST_PATIENCE, self._patience / 2)
        self._refuse(DISPLACED, oldest.remote)
        self._forget_stranger(oldest)
        oldest.turn_out()

    def _forget_stranger(self, seat: Seat) -> None:
        if seat in self._strangers:
            del self._strangers[seat]
            _count_down(self._strangers_by_address, seat.host)
        waiting, self._waiting = self._waiting, []
        for resume in waiting:
            resume()

    def _refuse(self, reason: str, host: str) -> bytes:
        """Count and log it. The log writes the first of a kind and sums up the others (MON-11)."""
        self.refused[reason] += 1
        self.refused_at = self._clock.utc()
        self.log.warning(
            ENDPOINT, subclass="refused", listener=self.kind, reason=reason, remote=host or "unix"
        )
        return self._refusal(TEXTS[reason])


TEXTS: Final = {
    FULL: "too many connections are open",
    ADDRESS_FULL: "too many connections of this address are open",
    ADDRESS_LOGINS: "too many connections of this address have not logged in",
    DISPLACED: "it did not log in while others waited",
    DESCRIPTORS: "too many files and sockets are open",
}
"""What a refused connection is told; nothing about others."""


def highest_descriptor(limit: int, *, is_local: bool) -> int:
    """The highest number that the descriptor of a connection may have (REL-27).

    A new descriptor is the lowest one that is free, so its number says how many are in use."""
    aside = min(ASIDE, limit // SMALL_LIMIT_SHARE)
    return limit - 1 - (aside if is_local else 2 * aside)


def _count_down(counter: Counter[str], address: str) -> None:
    """One less; an address without connections is forgotten."""
    counter[address] -= 1
    if not counter[address]:
        del counter[address]
