"""Door: limits accepted connections, so that those without a login do not shut out others (END-18).

Reads:  the times at which connections are accepted, log in and close.   Calls: the log.
Never:  touches a socket; `transport.accepting` does, and connections report to their seat.
Wakes:  acceptors that wait for room, when a connection logs in or closes.

An accepted connection has a `Seat` until its socket is closed. A *stranger* is a connection that
has not logged in. All programs of this machine share loopback and the Unix socket, so the limits of
one address do not apply to them.
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
"""Longest time for a login, in seconds, while other connections wait for the place."""
LEAST_PATIENCE: Final = 0.25
"""Lower limit, in seconds, to which displacements shorten the time for a login (`Door.wait`)."""
ASIDE: Final = 64
"""Descriptors that connections leave free for stores, logs and pipes (REL-27). Connections over the
network leave twice as many, so that the Unix socket has a reserve of its own."""
SMALL_LIMIT_SHARE: Final = 4
"""Divisor of the limit of descriptors; the result is used in place of `ASIDE` if it is smaller."""

# Reasons for which a connection is refused (END-18).
FULL: Final = "connections"
ADDRESS_FULL: Final = "address_connections"
ADDRESS_LOGINS: Final = "address_logins"
DISPLACED: Final = "displaced"
DESCRIPTORS: Final = "descriptors"


class DoorOptions(msgspec.Struct, frozen=True):
    """Limits on the connections of one kind, peers or clients (reliability, section 6)."""

    most: int
    """Limit of connections in all."""
    per_address: int = 64
    logins: int = 64
    """Limit of connections that have not logged in."""
    logins_per_address: int = 16


class Seat:
    """The place of one accepted connection, from the accept until its socket is closed."""

    __slots__ = ("_door", "_turn_out", "host", "logged_in", "remote", "since")

    def __init__(self, door: "Door", remote: str, host: str, since: float) -> None:
        self.remote = remote
        """Literal address of the far end; empty for a Unix socket."""
        self.host = host
        """Literal address of the far end if the limits of one address apply to it, else empty."""
        self.since = since
        self.logged_in = False
        self._door = door
        self._turn_out: Callable[[], None] | None = None

    def occupied(self, turn_out: Callable[[], None]) -> None:
        """Record that the connection has a protocol object; `turn_out` closes the connection."""
        self._turn_out = turn_out

    def log_in(self) -> None:
        """Record that the connection has logged in."""
        if not self.logged_in:
            self.logged_in = True
            self._door.logged_in(self)

    def rest(self) -> None:
        """Record that the connection is open for nothing just now, so it gives way first."""
        if not self.logged_in:
            self._door.rested(self)

    def wake(self) -> None:
        """Record that the connection is in use again."""
        self._door.woken(self)

    def leave(self) -> None:
        """Free the seat, because the socket is closed."""
        self._door.left(self)

    def turn_out(self) -> None:
        """Close the connection in favour of another one."""
        if self._turn_out is not None:
            self._turn_out()


class Door:
    """The connections of one kind, peers or clients, over all listening addresses."""

    def __init__(
        self,
        kind: str,
        *,
        options: DoorOptions,
        refusal: Callable[[str], bytes],
        clock: Clock,
        log: Log,
    ) -> None:
        """Create the door. `refusal`: encodes a text as the bytes sent to a refused connection."""
        self.kind = kind
        self.refused: Counter[str] = Counter()
        """Number of connections refused since the start, by reason."""
        self.refused_at: Instant | None = None
        """Instant of the latest refusal; None = no connection was refused."""
        self._options = options
        self._refusal = refusal
        self._clock = clock
        self.log = log
        self._seats: dict[Seat, None] = {}
        self._strangers: dict[Seat, None] = {}
        self._idle: dict[Seat, None] = {}
        """Strangers that are open for nothing just now, the longest first."""
        self._by_address: Counter[str] = Counter()
        self._strangers_by_address: Counter[str] = Counter()
        self._waiting: list[Callable[[], None]] = []
        self._patience = PATIENCE

    def __len__(self) -> int:
        return len(self._seats)

    @property
    def strangers(self) -> int:
        """Number of connections that have not logged in."""
        return len(self._strangers)

    def status(self) -> DoorStatus:
        """Return the numbers of open and of refused connections."""
        return DoorStatus(
            kind=self.kind,
            connections=len(self._seats),
            most=self._options.most,
            strangers=len(self._strangers),
            refused=dict(self.refused),
            refused_at=self.refused_at,
        )

    def wait(self) -> float:
        """Return the seconds after which the next connection may be accepted; 0 = now.

        If too many connections have not logged in, `enter` displaces one of them: one that is idle
        at once, otherwise the oldest. But first the oldest has some time for its login, so that
        programs that start together do not displace each other. Each displacement halves this time
        for later connections, each login doubles it.

        This method changes nothing, because before the accept it is unknown whether a connection
        waits at all."""
        if len(self._strangers) < self._options.logins or self._idle:
            return 0.0
        oldest = next(iter(self._strangers))
        return max(0.0, oldest.since + self._patience - self._clock.monotonic())

    def when_room(self, resume: Callable[[], None]) -> None:
        """Call `resume` once, when a connection has logged in, closed or become idle."""
        self._waiting.append(resume)

    def enter(self, host: str, *, is_shared: bool, has_room: bool) -> "Seat | bytes":
        """Return the seat of an accepted connection, or the bytes to send before it is closed.

        Must be called only if `wait` returns 0. A connection refused by the limits of its address
        displaces no other one.

        `host`: literal address of the far end; empty for a Unix socket. `is_shared`: whether all
        programs of this machine have this address. `has_room`: whether the descriptor of the
        connection may be used."""
        if not has_room:
            return self._refuse(DESCRIPTORS, host)
        address = "" if is_shared else host
        if address:
            if self._by_address[address] >= self._options.per_address:
                return self._refuse(ADDRESS_FULL, host)
            if self._strangers_by_address[address] >= self._options.logins_per_address:
                return self._refuse(ADDRESS_LOGINS, host)
        if len(self._strangers) >= self._options.logins:
            self._displace_one()
        if len(self._seats) >= self._options.most:
            return self._refuse(FULL, host)
        seat = Seat(self, host, address, self._clock.monotonic())
        self._seats[seat] = self._strangers[seat] = None
        self._by_address[address] += 1
        self._strangers_by_address[address] += 1
        return seat

    def logged_in(self, seat: Seat) -> None:
        """Record that the connection of a seat has logged in."""
        self._patience = min(PATIENCE, self._patience * 2)
        self._forget_stranger(seat)

    def left(self, seat: Seat) -> None:
        """Free a seat."""
        if seat in self._seats:
            del self._seats[seat]
            _count_down(self._by_address, seat.host)
            self._forget_stranger(seat)

    def rested(self, seat: Seat) -> None:
        """Record that the connection of a stranger is idle."""
        if seat in self._strangers:
            self._idle[seat] = None
            self._resume_acceptors()

    def woken(self, seat: Seat) -> None:
        """Record that the connection of a seat is not idle."""
        self._idle.pop(seat, None)

    def _displace_one(self) -> None:
        """Close a connection that has not logged in, to make room for a new one."""
        if self._idle:
            oldest = next(iter(self._idle))
        else:
            oldest = next(iter(self._strangers))
            self._patience = max(LEAST_PATIENCE, self._patience / 2)
        self._refuse(DISPLACED, oldest.remote)
        self._forget_stranger(oldest)
        oldest.turn_out()

    def _forget_stranger(self, seat: Seat) -> None:
        self._idle.pop(seat, None)
        if seat in self._strangers:
            del self._strangers[seat]
            _count_down(self._strangers_by_address, seat.host)
        self._resume_acceptors()

    def _resume_acceptors(self) -> None:
        waiting, self._waiting = self._waiting, []
        for resume in waiting:
            resume()

    def _refuse(self, reason: str, host: str) -> bytes:
        """Count and log a refusal; return the bytes to send.

        The log writes the first refusal of a kind and sums up the others (MON-11)."""
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
"""Texts for refused connections; they reveal nothing about other connections."""


def highest_descriptor(limit: int, *, is_local: bool) -> int:
    """Return the highest number that the descriptor of a connection may have (REL-27).

    A new descriptor has the lowest free number, so the number shows how many are in use."""
    aside = min(ASIDE, limit // SMALL_LIMIT_SHARE)
    return limit - 1 - (aside if is_local else 2 * aside)


def _count_down(counter: Counter[str], address: str) -> None:
    """Decrement the count of an address, and remove it at zero."""
    counter[address] -= 1
    if not counter[address]:
        del counter[address]
