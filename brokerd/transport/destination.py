"""Destination: the state of one address: its connection, suppression and figures (MON-8).

Reads:  the clock.                              Calls: `protocol.backoff`.
Never:  connects or writes; `transport.destinations` does.
"""

import asyncio
from collections import Counter
from enum import StrEnum

import msgspec

from brokerd.clock import SECOND, Clock, Instant
from brokerd.ids import InstanceId
from brokerd.protocol.backoff import suppression_after_failure
from brokerd.transport.connection import PeerConnection
from brokerd.transport.options import TransportOptions


class DestinationState(StrEnum):
    """State of a destination (MON-8)."""

    IDLE = "idle"
    CONNECTING = "connecting"
    ONLINE = "online"
    SUPPRESSED = "suppressed"


class DestinationStatus(msgspec.Struct, frozen=True):
    """A destination as views and `transmission_status` show it (MON-8, XMT-18)."""

    address: str
    state: DestinationState
    reason: str
    """Status key of the latest failure (XMT-19); empty = nothing is wrong."""
    detail: str
    since: Instant
    """Instant at which the reason was last set or cleared."""
    suppressed_until: Instant | None
    failures: int
    """Number of failed attempts in a row."""
    peer: InstanceId | None
    is_self: bool
    """Whether the address led back to this instance (TRN-26); its messages are routed as arrivals
    (RTE-41)."""


class Destination:
    """One normalised address; its figures are plain integers, for the metrics log."""

    def __init__(self, address: str, *, clock: Clock, options: TransportOptions) -> None:
        self.address = address
        self.pending = False
        """Whether items were announced, and `fill` has not returned an empty list since."""
        self.connection: PeerConnection | None = None
        """The ONLINE connection that serves the address, and possibly other addresses (TRN-4)."""
        self.opening: PeerConnection | None = None
        """The connection of the current attempt, in its TCP or login phase (TRN-13)."""
        self.attempt: asyncio.Task[None] | None = None
        self.due: asyncio.TimerHandle | None = None
        self.places: frozenset[str] = frozenset()
        """Literal addresses, with port, that its name resolved to at the last attempt (TRN-19)."""
        self.peer: InstanceId | None = None
        self.principal: str | None = None
        """Name that the peer here had proven when it was last served; None = it had proven none."""
        self.is_self = False
        self.reason = ""
        self.detail = ""
        self.since = clock.utc()
        self.last_error = ""
        """The latest failure or loss; success does not clear it (MON-8)."""
        self.last_error_at: Instant | None = None
        self.suppressed_until = 0.0
        self.failures = 0
        self.fragments_sent = 0
        self.fragments_received = 0
        self.boxcars_sent = 0
        self.boxcars_received = 0
        self.bytes_sent = 0
        self.bytes_received = 0
        self.attempts = 0
        self.connects = 0
        self.losses = 0
        self.failed_by_cause: Counter[str] = Counter()
        self._clock = clock
        self._options = options

    @property
    def is_suppressed(self) -> bool:
        """Whether no attempt may be made now (TRN-15, TRN-16)."""
        return self._clock.monotonic() < self.suppressed_until

    @property
    def is_idle(self) -> bool:
        """Whether no connection serves the address, and no attempt to open one is under way."""
        return not (self.connection or self.opening or self.attempt)

    @property
    def may_connect(self) -> bool:
        """Whether an attempt may begin: no connection or attempt, not suppressed, not this instance
        itself (TRN-12, TRN-13)."""
        return self.is_idle and not (self.is_self or self.is_suppressed)

    @property
    def state(self) -> DestinationState:
        """State, derived from the other fields so that it cannot contradict them."""
        if self.connection is not None:
            return DestinationState.ONLINE
        if self.opening is not None:
            return DestinationState.CONNECTING
        return DestinationState.SUPPRESSED if self.is_suppressed else DestinationState.IDLE

    def is_served_by(self, connection: PeerConnection) -> bool:
        """Return whether a connection leads to the peer at this address (TRN-19).

        False also if another connection serves the address already."""
        peer = connection.machine.peer
        if self.connection is not None or peer is None or not connection.may_serve(self.address):
            return False
        if self.peer == peer.instance_id:
            return True
        if self.principal not in (None, connection.identity.name):
            return False  # the place of a peer that is down is not free to others
        place = connection.place
        return place is not None and (place == self.address or place in self.places)

    def served_by(self, connection: PeerConnection) -> None:
        """Set the connection that serves the address; clear suppression and reason (TRN-19)."""
        self.connection = connection
        if connection.identity.is_authenticated:
            self.principal = connection.identity.name
        self.connects += 1
        self.failures = 0
        self.release()
        self._explain("", "")

    def failed(self, reason: str, detail: str) -> None:
        """Record a failed attempt, and suppress the address (TRN-16, TRN-17)."""
        self.failures += 1
        self.failed_by_cause[reason] += 1
        wait = suppression_after_failure(
            self.failures, mode=self._options.suppress_mode, flat=self._options.suppress_failed
        )
        self.suppressed_until = self._clock.monotonic() + wait.total_seconds()
        self._explain(reason, detail)

    def lost(self, reason: str, detail: str) -> None:
        """Record that the connection was lost, and suppress the address (TRN-15, TRN-18)."""
        self.connection = None
        self.losses += 1
        self._suppress_as_lost()
        self._explain(reason, detail)

    def closed(self) -> None:
        """Record that the connection ended in an orderly way (TRN-18)."""
        self.connection = None
        if self._options.suppress_after_goodbye:
            self._suppress_as_lost()

    def release(self) -> None:
        """End the suppression (TRN-19, NBT-8)."""
        self.suppressed_until = 0.0

    def forgive(self) -> None:
        """End the suppression, and forget the reason, which may be mended."""
        self.release()
        self._explain("", "")

    def status(self) -> DestinationStatus:
        """Return the status, as views show it."""
        wait = self.suppressed_until - self._clock.monotonic()
        until = Instant(self._clock.utc() + int(wait * SECOND)) if wait > 0 else None
        return DestinationStatus(
            address=self.address,
            state=self.state,
            reason=self.reason,
            detail=self.detail,
            since=self.since,
            suppressed_until=until,
            failures=self.failures,
            peer=self.peer,
            is_self=self.is_self,
        )

    def _suppress_as_lost(self) -> None:
        wait = self._options.suppress_lost.total_seconds()
        self.suppressed_until = self._clock.monotonic() + wait

    def _explain(self, reason: str, detail: str) -> None:
        self.reason = reason
        self.detail = detail
        self.since = self._clock.utc()
        if reason:
            self.last_error, self.last_error_at = f"{reason}: {detail}", self.since
