"""Responses to one client: one for each request, gathered until they are written together.

Frames are gathered until all waiters of a flush, or of a turn of the loop, are notified, because
each write wakes the client's program. Requests that are done without a value share one frame.

Reads: whether an open transaction will be answered once more.      Calls: the transport.
Never: gathers more than a fixed number of bytes: long answers are written at once (CLP-62).
Fails: an answer to a durable commit that cannot be written becomes `outcome_unknown` (CLP-120).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from brokerd.errors import AccessDenied, BrokerError, OutcomeUnknown
from brokerd.protocol import client_frames as frames

_WRITE_NOW: Final = 256 * 1024


class Answered(Protocol):
    """A transaction whose requests are answered."""

    @property
    def answers_by_itself(self) -> bool:
        """Whether one more answer comes without a further request (CLP-9)."""


class AnsweredClient(Protocol):
    """The client that gets the responses."""

    def log_failure(self, error: Exception) -> None:
        """Log an unforeseen error."""

    def broke(self, error: Exception) -> None:
        """Log an unforeseen error, and end the connection."""

    def audit_refusal(self, error: AccessDenied) -> None:
        """Record that a request was refused for want of a permission (SX-15)."""


class Responses:
    """The responses to the requests of one client."""

    __slots__ = (
        "_client",
        "_done",
        "_most",
        "_out",
        "_scheduled",
        "_silent",
        "_size",
        "gathers",
        "on_response",
        "outstanding",
        "soon",
        "transport",
    )

    def __init__(self, client: AnsweredClient, *, most: int) -> None:
        """Create the responses, without a connection.

        `most`: number of requests that may be unanswered (CLP-30)."""
        self._client = client
        self._most = most
        self.outstanding = 0
        """Number of accepted requests without a response."""
        self.on_response: Callable[[], None] | None = None
        """Called after each response while the client drains (CLP-71); None = not draining."""
        self.gathers = False
        """Whether received requests are being processed, so that `settle` will follow."""
        self.soon: Callable[[Callable[[], None]], object] = asyncio.get_running_loop().call_soon
        self._done: list[int] = []
        self._silent: list[Answered] = []  # transactions with requests in _done
        self._out: list[bytes] = []
        self._size = 0
        self._scheduled = False
        self.transport: asyncio.Transport | None = None
        """None = no client is connected, and responses are dropped."""

    # Outcomes of requests.

    def expect(self, requests: int) -> None:
        """Count accepted requests; each request gets a response."""
        self.outstanding += requests

    def done(self, request: int) -> None:
        """Report that a request without a value succeeded."""
        self.done_all((request,))

    def done_all(self, requests: Sequence[int]) -> None:
        """Report that requests without a value succeeded; the response is written soon."""
        self._done += requests
        if not self._scheduled:
            self._schedule()
        self.outstanding -= len(requests)
        if self.on_response is not None:
            self.on_response()

    def done_inside(self, request: int, transaction: Answered) -> None:
        """Report that a request without a value succeeded in an open transaction.

        `settle` decides when the response is written. If a callback resumed the request, no
        `settle` follows, and the response is written soon."""
        if not self.gathers or self.on_response is not None:
            self.done(request)
            return
        self._done.append(request)
        if not self._silent or self._silent[-1] is not transaction:
            self._silent.append(transaction)
        self.outstanding -= 1

    def answer(self, request: int, value: object) -> None:
        """Report that a request succeeded, and send its value."""
        if type(value) is frames.Bulky:
            self._write_large(frames.encode_bulky(request, value))
        else:
            self.write(frames.encode_answer(request, value))
        self.outstanding -= 1
        if self.on_response is not None:
            self.on_response()

    def failed(self, request: int, error: BrokerError) -> None:
        """Report that a request failed."""
        if isinstance(error, AccessDenied):
            self._client.audit_refusal(error)
        self.write(frames.encode_failed(request, error))
        self.outstanding -= 1
        if self.on_response is not None:
            self.on_response()

    def confirmed(self, requests: Sequence[int]) -> None:
        """Report that the commits of these requests are durable.

        Never raises, because the same flush confirms commits of other clients."""
        try:
            self.done_all(requests)
        except Exception as error:  # noqa: BLE001  # per connection (design, The code)
            self._confirm_failed(requests, error)

    def received(self, request: int, messages: list[list[object]]) -> None:
        """Report that a receive with its own transaction is durable.

        Never raises, for the reason given at `confirmed`."""
        try:
            self.answer(request, messages)
        except Exception as error:  # noqa: BLE001  # per connection (design, The code)
            self._confirm_failed((request,), error)

    def _confirm_failed(self, requests: Sequence[int], error: Exception) -> None:
        """Answer `outcome_unknown`: the commit is durable, but its answer failed (CLP-120)."""
        self._client.log_failure(error)
        unknown = OutcomeUnknown(
            f"it is committed, but the answer failed with {type(error).__name__}: {error}",
            hint="the log of the daemon has the traceback: please report it",
        )
        try:
            for request in requests:
                self.failed(request, unknown)
        except Exception as again:  # noqa: BLE001  # per connection, as above
            self._client.broke(again)

    # Frames.

    def settle(self) -> None:
        """Schedule the write, once all received requests have been processed.

        The write waits if each transaction will get another answer without a further request:
        that answer carries these responses along, and the client wakes only once (CLP-9). The
        write does not wait for a client near its limit, which may need these responses before it
        sends more requests (CLP-30)."""
        done = self._done
        if not done or self._scheduled:
            return
        is_near_limit = 2 * (self.outstanding + len(done)) >= self._most
        if is_near_limit or not all(one.answers_by_itself for one in self._silent):
            self._schedule()

    def write(self, data: bytes) -> None:
        """Add a frame, after the responses of all requests that are done."""
        self._gather_done()
        self._out.append(data)
        self._size += len(data)
        if self._size > _WRITE_NOW:
            self._write_out()
        elif not self._scheduled:
            self._schedule()

    def _write_large(self, pieces: list[frames.Piece]) -> None:
        """Write frames given in pieces, which are too large to be copied once more."""
        self.flush()
        if self.transport is not None and not self.transport.is_closing():
            self.transport.writelines(pieces)

    def flush(self) -> None:
        """Write the gathered frames now."""
        self._scheduled = False
        self._gather_done()
        self._write_out()

    def _gather_done(self) -> None:
        if self._done:
            self._out.append(frames.encode_done(self._done))
            self._done = []
            self._silent.clear()

    def _schedule(self) -> None:
        self._scheduled = True
        self.soon(self.flush)

    def _write_out(self) -> None:
        out, self._out, self._size = self._out, [], 0
        if self.transport is not None and out and not self.transport.is_closing():
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))
