"""Dialog and group life-cycle events, for the event log and event notifications (EVT-10). PURE.

Reads:  an endpoint before and after a step.      Calls: nothing.
Never:  reports single messages, or the dialogs on which event notifications are sent.

Ordinary life-cycle events are reported only if there is a subscriber; those of a dialog that ends
before its time are always reported.
"""

from __future__ import annotations

from typing import Final

import msgspec

from brokerd.broker.state import Live
from brokerd.ids import show
from brokerd.model import POST_EVENT_NOTIFICATION
from brokerd.protocol import dialog
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.transitions import State


class DialogEvent(msgspec.Struct, frozen=True):
    """One event, with the endpoint it concerns."""

    what: str
    """The subclass of the event (MON-16)."""
    endpoint: DialogEndpoint
    """The endpoint at that time, or its last state."""
    of_group: bool = False
    """Whether the event concerns the endpoint's group."""

    @property
    def is_trouble(self) -> bool:
        """Whether the event reports that a dialog went wrong."""
        return self.what in _TROUBLE


class Lost(msgspec.Struct, frozen=True):
    """An Error that arrived after the application had ended its side (DLG-T20, PBT-4)."""

    endpoint: DialogEndpoint
    code: int
    description: str
    message_types: tuple[str, ...]
    """Types of the messages that the peer lacks, as far as they were in memory."""
    count: int
    """Number of messages that the peer lacks."""


def lost_by(live: Live, code: int, description: str) -> Lost:
    """Return an Error that no application will see, and messages that the peer lacks (PBT-4)."""
    out = live.outgoing
    rows = out.window.messages() if out is not None else []
    types = sorted({row.message_type for row in rows if not row.flags})
    count = live.undelivered + (0 if out is None else out.undelivered)
    return Lost(live.endpoint, code, description, tuple(types), count)


def fields_of(event: DialogEvent) -> dict[str, object]:
    """Return the fields of an event's line (MON-16), with ids as text, so that all logs agree."""
    endpoint = event.endpoint
    if event.of_group:
        return {"group": show(endpoint.group_id)}
    fields: dict[str, object] = {
        "conversation_id": show(endpoint.conversation_id),
        "handle": show(endpoint.handle),
        "role": "initiator" if endpoint.is_initiator else "target",
        "group": show(endpoint.group_id),
        "state": str(endpoint.state),
        "priority": endpoint.priority,
    }
    if event.is_trouble:
        fields |= {
            "service": endpoint.service,
            "far_service": endpoint.far_service,
            "contract": endpoint.contract,
        }
        if endpoint.error_code is not None:
            fields |= {"code": endpoint.error_code, "reason": endpoint.error_text}
    return fields


_TROUBLE: Final = frozenset(
    {
        "end_with_error",
        "end_with_cleanup",
        "broker_error",
        "terminate",
        "received_error",
        "received_broker_error",
    }
)


def began(live: Live) -> list[DialogEvent]:
    """Report a new endpoint: begun here, or created by the arrival of its first message."""
    endpoint = live.endpoint
    if endpoint.contract == POST_EVENT_NOTIFICATION:
        return []
    events = [DialogEvent("begin_dialog", endpoint)] if endpoint.is_initiator else []
    events.append(DialogEvent("dialog_created", endpoint))
    if live.group.whole and len(live.group.members) == 1:
        events.append(DialogEvent("create", endpoint, of_group=True))
    return events


def moved(
    live: Live,
    before: DialogEndpoint,
    after: DialogEndpoint | None,
    event: dialog.Event,
    *,
    watched: bool,
) -> list[DialogEvent]:
    """Report an endpoint that has changed its state, or was removed."""
    if not watched and type(event) is dialog.EndRequested and event.code is None:
        return []  # every dialog ends, and mostly there is no subscriber
    if before.contract == POST_EVENT_NOTIFICATION:
        return []
    what = _what(before, after, event)
    if not watched and what not in _TROUBLE:
        return []
    events = [DialogEvent(what, before if after is None else after)] if what else []
    if not watched:
        return events
    is_gone = after is None or (after.state is State.CLOSED and live.is_local)  # DLG-33
    if is_gone and live.group.whole and len(live.group.members) == 1:
        events.append(DialogEvent("drop", before, of_group=True))
    return events


def _what(before: DialogEndpoint, after: DialogEndpoint | None, event: dialog.Event) -> str | None:
    match event:
        case dialog.EndRequested():
            failed = after is not None and after.end_sequence >= 0 and after.error_code is not None
            return "end_with_error" if failed else "end"
        case dialog.FragmentsReceived():
            ended = after is not None and after.state is State.DISCONNECTED_INBOUND
            return "received_end" if ended else None
        case dialog.ErrorReceived(code):
            return "received_error" if code > 0 else "received_broker_error"
        case dialog.LifetimeReached() if before.state is State.DISCONNECTED_OUTBOUND:
            return "terminate"
        case _:
            return _ALWAYS.get(type(event))


# A clean-up is reported by the code that carries it out, with who did it and why (DLG-23).
_ALWAYS: Final[dict[type[dialog.Event], str]] = {
    dialog.AckReceived: "received_end_ack",
    dialog.LifetimeReached: "broker_error",
    dialog.FaultStruck: "broker_error",
}
