"""Tracing: spans of OpenTelemetry for what a program sends, receives and handles (MON-60).

Reads:  headers of messages, the current span.      Calls: opentelemetry-api, imported only when a
        `Tracing` is made.
Never:  makes a span of a receive that found nothing, or of a message of the broker; adds a header
        to a message that is not traced.
The extra `otel` brings what it needs: `pip install 'brokerd[otel]'`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from random import Random
from typing import TYPE_CHECKING, Any, Final

from brokerd.clock import SECOND, Clock, Instant, SystemClock
from brokerd.errors import InvalidArgument
from brokerd.model import SYSTEM_TYPES
from brokerd.protocol.headers import TRACEPARENT, TRACESTATE, Headers, find_problem

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanContext, TracerProvider

    from brokerd.client.messages import Message
    from brokerd.client.tracer import SendSpan

MOST_DIALOGS: Final = 4096
"""Dialogs whose far service a tracer remembers, for the names of their spans."""
SENT_AT: Final = "brokerd"
"""Our member of `tracestate`: when the message was sent, in microseconds since 1970 (MON-64)."""
_NANOSECONDS: Final = 1_000_000_000 // SECOND


class Tracing:
    """A tracer for `connect(..., tracing=Tracing())`, or for an App: `App(..., tracing=Tracing())`.

    `tracer_provider`: where the spans go; None = the global one of OpenTelemetry. `parent`: whether
    what handles a message is a child of the span that sent it; by default it has a trace of its
    own with a link, because a message may be handled days later, or with others. `sample`: the
    share of sends and of messages, from 0 to 1, that begin a trace where none is going on; the
    sampler of the provider decides after that. `random`, `clock`: for tests.

    Raises:
        InvalidArgument: OpenTelemetry is not installed, or `sample` is not from 0 to 1.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        *,
        parent: bool = False,
        sample: float = 1.0,
        random: Random | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not 0 <= sample <= 1:
            raise InvalidArgument(f"sample is {sample!r}", hint="give a share from 0 to 1")
        try:
            from opentelemetry import context, trace  # noqa: PLC0415  # optional, for who traces
            from opentelemetry.trace.propagation import (  # noqa: PLC0415
                tracecontext,
            )
        except ImportError as error:
            raise InvalidArgument(
                "traces need OpenTelemetry, which is not installed",
                hint="pip install 'brokerd[otel]'",
            ) from error
        self._trace: Any = trace
        self._propagator = tracecontext.TraceContextTextMapPropagator()
        self._tracer = trace.get_tracer("brokerd", tracer_provider=tracer_provider)
        self._current = trace.get_current_span
        self._everything_current = context.get_current
        self._parent = parent
        self._sample = sample
        self._draw = (random or Random()).random  # noqa: S311  # which sends are traced
        self._clock = clock or SystemClock()
        self._services: dict[bytes, str] = {}

    # Sends.

    def began(self, handle: bytes, to_service: str) -> None:
        """Note the far service of a new dialog, for the spans of its sends.

        Raises: nothing.
        """
        services = self._services
        if len(services) >= MOST_DIALOGS:
            del services[next(iter(services))]
        services[handle] = to_service

    def begin_send(
        self, handle: bytes | Sequence[bytes], message_type: str | None, headers: Headers | None
    ) -> SendSpan | None:
        """Begin the span of a send; None = the send is not traced.

        The span is a reply's if it happens while a message is being handled.

        Raises: nothing.
        """
        # Most sends are not traced: these two questions are all that one may cost.
        if not self._everything_current() and self._draw() >= self._sample:
            return None
        return self._begin_send(handle, message_type, headers)

    def _begin_send(
        self, handle: bytes | Sequence[bytes], message_type: str | None, headers: Headers | None
    ) -> SendSpan | None:
        """Begin the span of a send that was drawn, or that happens in a context of the program."""
        current = self._current()
        if self._everything_current() and not self._is_traced(current):
            # The receiver has to learn that the trace is not recorded (MON-113).
            is_known = current.get_span_context().is_valid and not current.is_recording()
            return _Untraced(self._carried(current, headers)) if is_known else None
        first = handle if isinstance(handle, bytes) else handle[0]
        to_service = self._services.get(first)
        operation = "reply" if _handles(current, first) else "send"
        attributes = {
            "messaging.system": "brokerd",
            "messaging.operation.name": operation,
            "messaging.operation.type": "send",
            "brokerd.conversation_handle": first.hex(),
            "brokerd.message_type": message_type or "DEFAULT",
        }
        if to_service is not None:
            attributes["messaging.destination.name"] = to_service
        span = self._tracer.start_span(
            operation if to_service is None else f"{operation} {to_service}",
            kind=self._trace.SpanKind.PRODUCER,
            attributes=attributes,
        )
        if not span.is_recording():  # the sampler of the provider does not want it
            return None
        return _SendSpan(self._trace, span, self._carried(span, headers))

    def _may_begin(self, messages: Sequence[Message]) -> bool:
        """Return whether messages without a context get spans; those of the broker never do."""
        if not self._everything_current():
            if self._draw() >= self._sample:
                return False
        elif not self._is_traced(self._current()):
            return False
        return not all(message.message_type in SYSTEM_TYPES for message in messages)

    def _is_traced(self, current: Span) -> bool:
        """Return whether to go on with the current trace or to begin one."""
        if current.get_span_context().is_valid:
            return current.is_recording()
        return self._draw() < self._sample

    def _carried(self, span: Span, headers: Headers | None) -> Headers:
        """Return the headers with the context of the span, unless the program gave one itself."""
        if headers and TRACEPARENT in headers:
            return headers
        carried: dict[str, str] = {}
        self._propagator.inject(carried, self._trace.set_span_in_context(span))
        ours = f"{SENT_AT}={self._clock.utc()}"
        others = [
            one
            for one in carried.get(TRACESTATE, "").split(",")
            if one and not one.startswith(f"{SENT_AT}=")
        ]
        carried[TRACESTATE] = ",".join([ours, *others])
        both = {**(headers or {}), **carried}
        # A send must not fail because it is traced.
        return both if not headers or not find_problem(both) else headers

    # Receives.

    def received(self, queue: str, messages: Sequence[Message], since: Instant) -> None:
        """Make the span of a receive that found messages, and those of how they came.

        Raises: nothing.
        """
        known: list[SpanContext] = []
        others: list[Message] = []
        for message in messages:
            if not message.headers or TRACEPARENT not in message.headers:
                others.append(message)
            elif _is_unsampled(message):
                continue
            elif (sender := self._sender(message)) is None:
                others.append(message)
            elif sender.trace_flags.sampled:
                known.append(sender)
                if message.delivery_count == 0:
                    self._transmitted(message, sender)
        if not known and not (others and self._may_begin(others)):
            return
        alone = len(messages) == 1 and len(known) == 1
        span = self._tracer.start_span(
            f"receive {queue}",
            context=self._context(known[0]) if alone and self._parent else None,
            kind=self._trace.SpanKind.CLIENT,
            links=self._links(known),
            start_time=since * _NANOSECONDS,
            attributes={
                "messaging.system": "brokerd",
                "messaging.operation.name": "receive",
                "messaging.operation.type": "receive",
                "messaging.destination.name": messages[0].service,
                "messaging.batch.message_count": len(messages),
                "brokerd.queue": queue,
            },
        )
        span.end(end_time=max(since, self._clock.utc()) * _NANOSECONDS)

    def _transmitted(self, message: Message, sender: SpanContext) -> None:
        """Make the span of the way of a message, from its send to its place on the queue (MON-64).

        It belongs to the sender's trace. Where the clocks of the two machines disagree so much
        that it would end before it begins, it has no length."""
        sent_at = sender.trace_state.get(SENT_AT)
        if sent_at is None or not sent_at.isdecimal() or len(sent_at) > len(str(2**60)):
            return
        began = int(sent_at) * _NANOSECONDS
        span = self._tracer.start_span(
            f"transmit {message.service}",
            context=self._context(sender),
            kind=self._trace.SpanKind.INTERNAL,
            start_time=began,
            attributes={
                "messaging.system": "brokerd",
                "messaging.operation.name": "transmit",
                "messaging.destination.name": message.service,
                "messaging.message.id": message.message_id.hex(),
                "messaging.message.conversation_id": message.conversation_id.hex(),
            },
        )
        span.end(end_time=max(began, message.enqueued_at * _NANOSECONDS))

    # Handlers.

    def processing(self, queue: str, message: Message) -> AbstractContextManager[Any]:
        """Return the block in which a message is handled: its span is the current one.

        Raises: nothing.
        """
        headers = message.headers
        sender = None
        if headers and TRACEPARENT in headers and (sender := self._sender(message)) is not None:
            if not sender.trace_flags.sampled:  # what the handler sends has to carry that on
                unrecorded = self._trace.NonRecordingSpan(sender)
                block: AbstractContextManager[Any] = self._trace.use_span(unrecorded)
                return block
        elif not self._may_begin((message,)):
            return _NOTHING
        return self._process(queue, message, sender)

    @contextmanager
    def _process(self, queue: str, message: Message, sender: SpanContext | None) -> Iterator[None]:
        as_child = self._parent and sender is not None
        span = self._tracer.start_span(
            f"process {message.service}",
            context=self._context(sender) if as_child and sender is not None else None,
            kind=self._trace.SpanKind.CONSUMER,
            links=self._links([] if sender is None else [sender]),
            attributes={
                "messaging.system": "brokerd",
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.destination.name": message.service,
                "messaging.message.id": message.message_id.hex(),
                "messaging.message.conversation_id": message.conversation_id.hex(),
                "messaging.message.body.size": len(message.body or b""),
                _HANDLE: message.handle.hex(),
                "brokerd.message_type": message.message_type,
                "brokerd.queue": queue,
                "brokerd.attempt": message.delivery_count + 1,
            },
        )
        # An exception that leaves the block is recorded, and sets the status.
        with self._trace.use_span(span, end_on_exit=True):
            yield

    # Contexts.

    def _sender(self, message: Message) -> SpanContext | None:
        """Return the span that sent the message, sampled or not; None = the message has none."""
        headers = message.headers
        parent = headers.get(TRACEPARENT) if headers else None
        if not isinstance(parent, str):
            return None
        state = headers.get(TRACESTATE)
        carried = {TRACEPARENT: parent}
        if isinstance(state, str):
            carried[TRACESTATE] = state
        found: SpanContext = self._current(self._propagator.extract(carried)).get_span_context()
        return found if found.is_valid else None

    def _context(self, sender: SpanContext) -> Context:
        span = self._trace.NonRecordingSpan(sender)
        context: Context = self._trace.set_span_in_context(span)
        return context

    def _links(self, senders: Sequence[SpanContext]) -> list[Link]:
        return [self._trace.Link(one) for one in senders]


_HANDLE: Final = "brokerd.conversation_handle"
_NOTHING: Final = nullcontext()
_UNSAMPLED: Final = re.compile(
    r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f][02468ace]"
).fullmatch


def _is_unsampled(message: Message) -> bool:
    """Return whether the `traceparent` of the message says that its trace is not recorded."""
    parent = message.headers.get(TRACEPARENT)
    return isinstance(parent, str) and _UNSAMPLED(parent) is not None


class _Untraced:
    """A send within a trace that is not recorded: it carries the context, and has no span."""

    __slots__ = ("headers",)

    def __init__(self, headers: Headers) -> None:
        self.headers = headers

    def end(self, error: BaseException | None = None) -> None:
        """Do nothing.

        Raises: nothing.
        """


class _SendSpan:
    """The span of one send, from the call until it is durable, undone or refused."""

    __slots__ = ("_span", "_trace", "headers")

    def __init__(self, trace: Any, span: Span, headers: Headers) -> None:  # noqa: ANN401  # a module
        self._trace = trace
        self._span = span
        self.headers = headers

    def end(self, error: BaseException | None = None) -> None:
        """End the span; `error`: why nothing was sent.

        Raises: nothing.
        """
        if error is not None:
            self._span.record_exception(error)
            self._span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, str(error)))
        self._span.end()


def _handles(span: Span, handle: bytes) -> bool:
    """Return whether the span is that of a handler of a message of this dialog."""
    attributes = getattr(span, "attributes", None) or {}
    return attributes.get(_HANDLE) == handle.hex() and "brokerd.attempt" in attributes
