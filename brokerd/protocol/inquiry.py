"""Inquiry: a question about one side of a dialog, and its report, which a TRACE carries (MON-55).

Reads:  nothing; values in, fields out, and back.    Calls: nothing.
Never:  carries a body, a header, the name of a message type or the text of an error: forwarders on
        the way read a TRACE, and a secured dialog hides these from them.
"""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from brokerd.ids import ID_SIZE
from brokerd.protocol.wire import MAX_INT

MOST: Final = 20
"""Most messages of one kind, and most events, in a report."""
_Count = Annotated[int, Meta(ge=0, le=MAX_INT)]
_Number = Annotated[int, Meta(ge=-1, le=MAX_INT)]
LATEST: Final = 253_402_300_799_999_999
"""Latest instant that can be shown: the end of the year 9999."""
_Instant = Annotated[int, Meta(ge=0, le=LATEST)]
_Key = Annotated[str, Meta(max_length=64)]


class Waiting(Struct, frozen=True, array_like=True):
    """A message that waits: to be acknowledged, or to be received."""

    sequence: _Number
    at: _Instant
    """When it was sent, or when it arrived in the queue."""
    fragments: _Count = 0
    acknowledged: _Count = 0
    """Fragments that the other side has acknowledged."""


class Incident(Struct, frozen=True, array_like=True):
    """A log event about the side: something went wrong."""

    at: _Instant
    what: _Key
    code: Annotated[int, Meta(ge=-MAX_INT, le=MAX_INT)] | None = None


class SideReport(Struct, frozen=True, kw_only=True):
    """The state of one side of a dialog at one moment, without any content."""

    now: _Instant
    """Time by the clock of the instance that reports."""
    instance: Annotated[str, Meta(max_length=256)] = ""
    is_known: bool = True
    """Whether the side exists; if not, it never began, or is over and was removed."""
    is_initiator: bool = True
    state: Annotated[str, Meta(max_length=2)] = ""
    began_at: _Instant = 0
    state_since: _Instant = 0
    expires_at: _Instant = 0
    sent: _Count = 0
    """Application messages sent."""
    pending: _Count = 0
    """Messages that the other side has not acknowledged, system messages included."""
    received: _Count = 0
    """Application messages that have arrived completely, read or not."""
    unread: _Count = 0
    discarded: _Count = 0
    """Application messages deleted unread."""
    is_bound: bool = False
    """Whether the other side has answered, if only by an acknowledgement."""
    end_sequence: _Number = -1
    """Number of the message by which this side ended; -1 = it has not."""
    far_end_sequence: _Number = -1
    error_code: Annotated[int, Meta(ge=-MAX_INT, le=MAX_INT)] | None = None
    status_key: _Key = ""
    """Why messages, or an acknowledgement, wait (XMT-19); empty = none waits."""
    status_since: _Instant | None = None
    attempts: _Count = 0
    last_attempt_at: _Instant | None = None
    next_attempt_at: _Instant | None = None
    destination: Annotated[str, Meta(max_length=512)] = ""
    is_queue_on: bool = True
    is_parked: bool = False
    """Whether its conversation group is parked or waits for its next attempt."""
    parked_at: _Instant | None = None
    retry_at: _Instant | None = None
    is_locked: bool = False
    """Whether a transaction holds the conversation group at this moment."""
    waiting: Annotated[tuple[Waiting, ...], Meta(max_length=MOST)] = ()
    """The oldest messages that the other side has not acknowledged."""
    queued: Annotated[tuple[Waiting, ...], Meta(max_length=MOST)] = ()
    """The oldest messages that wait to be received."""
    incidents: Annotated[tuple[Incident, ...], Meta(max_length=MOST)] = ()


class Inquiry(Struct, frozen=True):
    """The question about one side of a dialog, and the report once it was answered."""

    conversation_id: bytes
    about_initiator: bool
    """Whether the side that is asked about is the initiator."""
    report: SideReport | None = None


def fields_of_inquiry(inquiry: Inquiry) -> tuple[object, ...]:
    """Return the fields of an inquiry."""
    report = inquiry.report
    return (
        inquiry.conversation_id,
        inquiry.about_initiator,
        None if report is None else msgspec.to_builtins(report),
    )


def inquiry_of(fields: Any) -> Inquiry:  # noqa: ANN401  # whatever was decoded
    """Return the inquiry with these fields.

    Raises:
        ValueError, IndexError: malformed.
    """
    if type(fields) is not tuple:
        raise ValueError("an inquiry is an array")  # as the other readers of fields
    conversation_id, about_initiator, report = fields[:3]
    if type(conversation_id) is not bytes or len(conversation_id) != ID_SIZE:
        raise ValueError("the id of a conversation has sixteen bytes")
    if type(about_initiator) is not bool:
        raise ValueError("a side is the initiator or not")
    return Inquiry(conversation_id, about_initiator, None if report is None else _report_of(report))


def _report_of(value: object) -> SideReport:
    try:
        return msgspec.convert(value, SideReport)
    except msgspec.ValidationError as error:
        raise ValueError(f"report: {error}"[:200]) from None
