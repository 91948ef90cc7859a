"""Contexts of traces, as the headers of a message carry them (MON-62, MON-118).

Called: by `tracing`.
Never:  imports OpenTelemetry: the caller passes its module.
Its own propagator, which understands the same, takes five times as long.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from brokerd.clock import Instant
from brokerd.protocol.headers import TRACEPARENT, TRACESTATE, HeaderMap

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

SENT_AT: Final = "brokerd"
"""Our member of `tracestate`: when the message was sent, in microseconds since 1970 (MON-64)."""
_PARENT: Final = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
).fullmatch
_UNSAMPLED: Final = re.compile(
    r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f][02468ace]"
).fullmatch
_LONGEST_STATE: Final = 512
"""Characters of a `tracestate` that is passed on."""
_LONGEST_INSTANT: Final = len(str(2**60))


class Sender(NamedTuple):
    """The span that sent a message."""

    context: SpanContext
    sent_at: Instant | None


def written(context: SpanContext, now: Instant) -> dict[str, str]:
    """Return the headers of a message that a span sends.

    Raises: nothing.
    """
    state = f"{SENT_AT}={now}"
    if context.trace_state:
        others = context.trace_state.delete(SENT_AT).to_header()
        state = f"{state},{others}" if others else state
    trace_id, span_id = f"{context.trace_id:032x}", f"{context.span_id:016x}"
    return {TRACEPARENT: f"00-{trace_id}-{span_id}-{context.trace_flags:02x}", TRACESTATE: state}


def is_unsampled(headers: HeaderMap) -> bool:
    """Return whether the `traceparent` of a message says that its trace is not recorded.

    Raises: nothing.
    """
    parent = headers.get(TRACEPARENT)
    return isinstance(parent, str) and _UNSAMPLED(parent) is not None


def read_sender(trace: Any, headers: HeaderMap) -> Sender | None:  # noqa: ANN401  # a module
    """Return the span that sent a message, sampled or not; None = the headers have none.

    Raises: nothing.
    """
    parent, state = headers.get(TRACEPARENT), headers.get(TRACESTATE)
    found = _PARENT(parent.strip(" \t")) if isinstance(parent, str) else None
    if found is None or (found[1] == "00" and found[5]):  # later versions may have more fields
        return None
    sent_at, others = _split_state(state if isinstance(state, str) else "")
    context = trace.SpanContext(
        int(found[2], 16),
        int(found[3], 16),
        is_remote=True,
        trace_flags=trace.TraceFlags(int(found[4], 16)),
        trace_state=trace.TraceState.from_header([others]) if others else None,
    )
    return Sender(context, sent_at)


def _split_state(state: str) -> tuple[Instant | None, str]:
    """Return when the message was sent, by our member of `tracestate`, and the other members."""
    ours, _, others = state.partition(",")
    name, _, sent_at = ours.partition("=")
    if name != SENT_AT:  # another program has passed the context on, and put itself in front
        members = [one.strip(" \t") for one in state.split(",")]
        found = [one for one in members if one.startswith(f"{SENT_AT}=")]
        sent_at = found[0].partition("=")[2] if found else ""
        others = ",".join(one for one in members if one not in found)
    is_known = sent_at.isdecimal() and len(sent_at) <= _LONGEST_INSTANT
    return (
        Instant(int(sent_at)) if is_known else None,
        others if len(state) <= _LONGEST_STATE else "",
    )
