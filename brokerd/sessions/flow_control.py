"""Flow control: decides when the requests of a client are not read.

A client's bytes are not read while there is a reason to pause: the client does not read its answers
(CLP-62), its broker is administered (MAN-1), the writer is behind (design D3), or the other
connections have their turn (REL-32). Bytes that are not read stay in the socket, so a pause
slows the client down without a message.

Reads: the backlog of a broker's store.      Calls: the transport of a client.
Never: pauses a client if only its further requests can end the wait of its work.
Wakes: every few milliseconds while the writer is behind and clients are paused for it.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from brokerd.broker.broker import Broker
from brokerd.clock import Clock
from brokerd.sessions.options import SessionOptions
from brokerd.sessions.request_line import RequestLine

ANSWERS: Final = "answers"
ADMINISTRATION: Final = "administration"
WRITER: Final = "writer"
TURN: Final = "turn"
"""Reasons for not reading requests: unread answers, administration, the writer's backlog, and the
turn of the other connections."""
_CHECK_AGAIN: Final = 0.005
"""Seconds after which paused clients are checked again."""


class Reading:
    """The reading state of one client: the reasons for a pause, and the time of its last bytes."""

    __slots__ = ("_clock", "active_at", "reasons", "transport")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.transport: asyncio.Transport | None = None
        """None = no client is connected."""
        self.reasons: set[str] = set()
        """Reasons for which reading is paused; empty = requests are read."""
        self.active_at = clock.monotonic()
        """Monotonic time in seconds when bytes of the client last arrived."""

    def record_activity(self) -> None:
        """Record that bytes of the client have arrived."""
        self.active_at = self._clock.monotonic()

    def is_silent(self, limit: float) -> bool:
        """Return whether the client has sent nothing for more than `limit` seconds.

        Return False while reading is paused for the writer: unread bytes are not silence."""
        return WRITER not in self.reasons and self._clock.monotonic() - self.active_at > limit

    def pause(self, reason: str) -> None:
        """Add a reason for a pause, and stop reading requests."""
        if not self.reasons and self.transport is not None:
            self.transport.pause_reading()
        self.reasons.add(reason)

    def resume(self, reason: str) -> None:
        """Remove one reason for the pause, and read again if it was the last reason."""
        self.reasons.discard(reason)
        if reason == WRITER:
            self.record_activity()  # the time of this pause does not count as silence
        if not self.reasons and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()


class ReadClient(Protocol):
    """A client whose requests are read, as `Congestion` sees it."""

    broker: Broker
    reading: Reading
    line: RequestLine
    closed: bool

    @property
    def is_worked_on(self) -> bool:
        """Whether some work of the client will end without a further request from it."""


class Congestion:
    """A limit on unwritten commits: clients are not read while the writer is behind (design D3)."""

    def __init__(self, options: SessionOptions) -> None:
        self._options = options
        self._paused: list[ReadClient] = []

    def check(self, client: ReadClient) -> bool:
        """Pause a client if the writer is behind, until the writer has caught up.

        Return whether the client is paused."""
        if not self._is_behind(client):
            return False
        client.reading.pause(WRITER)
        if not self._paused:
            asyncio.get_running_loop().call_later(_CHECK_AGAIN, self._check_paused)
        self._paused.append(client)
        return True

    def _is_behind(self, client: ReadClient) -> bool:
        """Return whether to pause: the writer is too far behind, in total or for this client.

        A client whose work can end only by its further requests is not paused for its own
        waiting bodies."""
        if client.broker.is_full:  # the requests have to fail with it, so they are read
            return False
        store, most = client.broker.store, self._options.backlog_bytes
        return (
            store.backlog_bytes > most
            or store.oldest_unflushed_age > self._options.backlog_age
            or (client.line.waiting_bytes > most and client.is_worked_on)
        )

    def _check_paused(self) -> None:
        paused, self._paused = self._paused, []
        for client in paused:
            if not client.closed and not self.check(client):
                client.reading.resume(WRITER)
