"""Tracer: what a session calls at its sends and receives, if its program traces (MON-60).

Called: by `Session` and `Transaction`, if the session has a tracer.
Never:  imports a tracing system: `brokerd.app.tracing` has the one for OpenTelemetry.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from brokerd.client.messages import Message
from brokerd.clock import Instant
from brokerd.protocol.headers import Headers


class SendSpan(Protocol):
    """The span of one send, from the call until it is durable, undone or refused."""

    @property
    def headers(self) -> Headers:
        """The headers to send: those of the program, and the context of the span."""
        ...

    def end(self, error: BaseException | None = None) -> None:
        """End the span; `error`: why nothing was sent.

        Raises: nothing.
        """
        ...


class Tracer(Protocol):
    """A tracer of one or several sessions."""

    def began(self, handle: bytes, to_service: str) -> None:
        """Note the far service of a new dialog, for the spans of its sends.

        Raises: nothing.
        """
        ...

    def begin_send(
        self, handle: bytes | Sequence[bytes], message_type: str | None, headers: Headers | None
    ) -> SendSpan | None:
        """Begin the span of a send; None = the send is not traced.

        Raises: nothing.
        """
        ...

    def received(
        self, queue: str, messages: Sequence[Message], since: Instant, *, for_handlers: bool = False
    ) -> None:
        """Make the span of a receive that found messages; `since`: when it was requested.

        `for_handlers`: each message has a span of its handler, so the receive has none.

        Raises: nothing.
        """
        ...

    def processing(self, queue: str, message: Message) -> AbstractContextManager[Any]:
        """Return the block in which a message is handled.

        Raises: nothing.
        """
        ...


class Spans:
    """The spans of the sends of one transaction, which end when its outcome is known."""

    __slots__ = ("_open", "tracer")

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self._open: list[SendSpan] = []

    def send(
        self,
        handle: bytes | Sequence[bytes],
        message_type: str | None,
        headers: dict[str, str | bytes] | None,
    ) -> dict[str, str | bytes] | None:
        """Begin the span of a send; return the headers to send.

        Raises: nothing.
        """
        span = self.tracer.begin_send(handle, message_type, headers)
        return headers if span is None else self.add(span)

    def add(self, span: SendSpan) -> dict[str, str | bytes] | None:
        """Add the span of a send that has begun; return the headers to send.

        Raises: nothing.
        """
        self._open.append(span)
        return dict(span.headers) or None

    def watch(self, asked: "asyncio.Future[Any]") -> "asyncio.Future[Any]":
        """Return the future of a commit, after arranging that the spans end with it.

        Raises: nothing.
        """
        if self._open:
            asked.add_done_callback(self._done)
        return asked

    def _done(self, asked: "asyncio.Future[Any]") -> None:
        self.end(asyncio.CancelledError() if asked.cancelled() else asked.exception())

    def end(self, error: BaseException | None = None) -> None:
        """End the spans; `error`: why nothing was sent.

        Raises: nothing.
        """
        spans, self._open = self._open, []
        for span in spans:
            span.end(error)
