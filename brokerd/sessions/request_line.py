"""Request line: the order of a client's independent requests, and the size of its waiting bodies.

An independent request is its own transaction. Independent requests begin in the order in which they
were written (CLP-31); only a request that waits for a lock lets later ones start before it is done.

Reads: the work of requests.      Calls: the work, early_body_checks.
Never: accepts a body while more bytes of bodies wait than a transaction may have (CLP-30).
Wakes: when a request is added, and one turn of the loop after the first one has ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from brokerd.errors import Busy
from brokerd.sessions.early_body_checks import EarlyBodyChecks, Sending


class IndependentWork(Sending, Protocol):
    """A request that is its own transaction."""

    size: int
    """Total size in bytes of the bodies that the request sends."""

    def run(self) -> None:
        """Run until the work has to wait or is done."""

    def give_up(self) -> None:
        """Roll back without an answer."""

    def abort(self, reason: str) -> None:
        """End the work by decision of the daemon, and answer with the reason (CLP-37)."""


class RequestLine:
    """The independent requests of one client, and the bytes of all bodies that wait."""

    __slots__ = (
        "_on_end",
        "_soon",
        "_starting",
        "body_limit",
        "checks",
        "under_way",
        "waiting_bytes",
    )

    def __init__(self, *, broke: Callable[[Exception], None], on_end: Callable[[], None]) -> None:
        """Create an empty line.

        broke: ends the connection after an unforeseen error. on_end: called as a request ends."""
        self._on_end = on_end
        self._soon = asyncio.get_running_loop().call_soon
        self._starting: deque[IndependentWork] = deque()
        self.under_way: dict[IndependentWork, None] = {}
        """Requests that have begun and have not ended."""
        self.checks = EarlyBodyChecks(broke)
        self.waiting_bytes = 0
        """Total size in bytes of the bodies of accepted requests that are not done, including those
        of open transactions."""
        self.body_limit = 0
        """Largest total size in bytes of one transaction's bodies; 0 until the client logs in."""

    # The order of independent requests.

    @property
    def is_waiting(self) -> bool:
        """Whether the next independent request has to wait for an earlier one."""
        return bool(self._starting)

    @property
    def works(self) -> list[IndependentWork]:
        """Requests that are under way or wait for their turn."""
        return [*dict.fromkeys((*self.under_way, *self._starting))]

    def add(self, work: IndependentWork) -> None:
        """Begin a request once all earlier requests have begun and do not block it (CLP-31).

        Raises:
            Busy: the request has a body, and too many bytes of bodies wait already (CLP-30).
        """
        self.add_bytes(work.size)
        self._starting.append(work)
        if len(self._starting) > 1:
            self.checks.begin(work)
        else:
            self._start_first()

    def unblock_behind(self, work: IndependentWork) -> None:
        """Let later requests start before `work`, which waits for a lock, is done (CLP-31)."""
        if self._starting and self._starting[0] is work:
            self._starting.popleft()
            self._soon(self._start_next)

    def remove(self, work: IndependentWork) -> None:
        """Remove a request that has ended, and start the next one."""
        self.under_way.pop(work, None)
        self.checks.drop(work)
        self.waiting_bytes -= work.size
        if self._starting and self._starting[0] is work:
            self._starting.popleft()
            if self._starting:
                self._soon(self._start_next)
        self._on_end()

    def give_up_all(self) -> None:
        """Roll back all requests, because the client is disconnected.

        Requests that have not begun may have body checks under way, which must be dropped, too."""
        for work in self.works:
            work.give_up()
        self.checks.clear()
        self._starting.clear()
        self.under_way.clear()

    def _start_first(self) -> None:
        while self._starting:
            first = self._starting[0]
            self.under_way[first] = None
            first.run()
            if self._starting and self._starting[0] is first:
                return  # blocked, and with it the requests behind it

    def _start_next(self) -> None:
        # The first request is under way if an earlier call in the same turn has started it.
        if self._starting and self._starting[0] not in self.under_way:
            self._start_first()

    # Bytes of bodies.

    @property
    def is_loaded(self) -> bool:
        """Whether the bodies of waiting requests exceed the limit of one transaction.

        Further requests with a body are refused then (CLP-30)."""
        return self.waiting_bytes > self.body_limit

    def add_bytes(self, size: int) -> None:
        """Count the bytes of a request's bodies.

        They count until the request is done, because they stay in memory until then.

        Raises:
            Busy: the request has a body, and too many bytes of bodies wait already (CLP-30).
        """
        if size and self.is_loaded:
            raise Busy(f"requests of this client wait with {self.waiting_bytes} bytes of bodies")
        self.waiting_bytes += size

    def remove_bytes(self, size: int) -> None:
        """Uncount the bytes of a request that is done or has failed."""
        self.waiting_bytes -= size
