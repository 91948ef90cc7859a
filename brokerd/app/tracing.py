"""Tracing: spans of OpenTelemetry for what a program sends, receives and handles (MON-60).

Reads:  headers of messages, the current span.      Calls: opentelemetry-api, imported only when a
        `Tracing` is made.
Never:  makes a span of a receive that found nothing, or of a message of the broker; adds a header
        to a message that is not traced.
The extra `otel` brings what it needs: `pip install 'brokerd[otel]'`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from brokerd.app.trace_context import is_unsampled, read_sender, written
from brokerd.clock import SECOND, Clock, Instant, SystemClock
from brokerd.errors import InvalidArgument
from brokerd.model import SYSTEM_TYPES
from brokerd.protocol.headers import TRACEPARENT, Headers, find_problem

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanContext, TracerProvider

    from brokerd.client.messages import Message
    from brokerd.client.tracer import SendSpan

MOST_DIALOGS: Final = 4096
"""Dialogs whose far service a tracer remembers, for the names of their spans."""
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
        except ImportError as error:
            raise InvalidArgument(
                "traces need OpenTelemetry, which is not installed",
                hint="pip install 'brokerd[otel]'",
            ) from error
        self._trace: Any = trace
        self._tracer = trace.get_tracer("brokerd", tracer_provider=tracer_provider)
        self._current = trace.get_current_span
        self._everything_current = context.get_current
        self._contexts: Any = context
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
        both = {**(headers or {}), **written(span.get_span_context(), self._clock.utc())}
        # A send must not fail because it is traced.
        return both if not headers or not find_problem(both) else headers

    # Receives.

    def received(
        self, queue: str, messages: Sequence[Message], since: Instant, *, for_handlers: bool = False
    ) -> None:
        """Make the span of a receive that found messages, and those of how they came.

        `for_handlers`: each message has a span of its handler, so the receive has none (MON-63).

        Raises: nothing.
        """
        known: list[SpanContext] = []
        others: list[Message] = []
        for message in messages:
            if not message.headers or TRACEPARENT not in message.headers:
                others.append(message)
            elif is_unsampled(message.headers):
                continue
            elif (sender := read_sender(self._trace, message.headers)) is None:
                others.append(message)
            elif sender.context.trace_flags.sampled:
                known.append(sender.context)
                if message.delivery_count == 0 and sender.sent_at is not None:
                    self._transmitted(message, sender.context, sender.sent_at)
        if for_handlers or not (known or (others and self._may_begin(others))):
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

    def _transmitted(self, message: Message, sender: SpanContext, sent_at: Instant) -> None:
        """Make the span of the way of a message, from its send to its place on the queue (MON-64).

        It belongs to the sender's trace. Where the clocks of the two machines disagree so much
        that it would end before it begins, it has no length."""
        began = sent_at * _NANOSECONDS
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
        if (
            headers
            and TRACEPARENT in headers
            and (found := read_sender(self._trace, message.headers)) is not None
        ):
            sender = found.context
            if not sender.trace_flags.sampled:  # what the handler sends has to carry that on
                return _Processing(
                    self._contexts, self._trace, self._trace.NonRecordingSpan(sender)
                )
        elif not self._may_begin((message,)):
            return _NOTHING
        span = self._tracer.start_span(
            f"process {message.service}",
            context=self._context(sender) if self._parent and sender is not None else None,
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
        return _Processing(self._contexts, self._trace, span)

    # Contexts.

    def _context(self, sender: SpanContext) -> Context:
        span = self._trace.NonRecordingSpan(sender)
        context: Context = self._trace.set_span_in_context(span)
        return context

    def _links(self, senders: Sequence[SpanContext]) -> list[Link]:
        return [self._trace.Link(one) for one in senders]


_HANDLE: Final = "brokerd.conversation_handle"
_NOTHING: Final = nullcontext()


class _Processing:
    """The block in which a message is handled: its span is the current one, and ends with it."""

    __slots__ = ("_contexts", "_span", "_token", "_trace")

    def __init__(self, contexts: Any, trace: Any, span: Span) -> None:  # noqa: ANN401  # modules
        self._contexts = contexts
        self._trace = trace
        self._span = span
        self._token: Any = None

    def __enter__(self) -> None:
        self._token = self._contexts.attach(self._trace.set_span_in_context(self._span))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._contexts.detach(self._token)
        if isinstance(error, Exception):
            _fail(self._trace, self._span, error, f"{type(error).__name__}: {error}")
        self._span.end()


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
            _fail(self._trace, self._span, error, str(error))
        self._span.end()


def _fail(trace: Any, span: Span, error: BaseException, text: str) -> None:  # noqa: ANN401  # a module
    """Record that what the span covers has failed."""
    span.record_exception(error)
    span.set_status(trace.Status(trace.StatusCode.ERROR, text))


def _handles(span: Span, handle: bytes) -> bool:
    """Return whether the span is that of a handler of a message of this dialog."""
    attributes = getattr(span, "attributes", None) or {}
    return attributes.get(_HANDLE) == handle.hex() and "brokerd.attempt" in attributes
