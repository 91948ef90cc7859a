"""What befalls dialogs and groups, for the event log and for who subscribed to it (EVT-10). PURE.

Reads:  an endpoint before and after a step.      Calls: nothing.
Never:  tells of single messages, or of the dialogs on which events themselves are told.

What is ordinary in the life of a dialog is told only where somebody watches; what ends a dialog
before its time always.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from brokerd.ids import show
from brokerd.model import POST_EVENT_NOTIFICATION
from brokerd.protocol import dialog
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.transitions import State

if TYPE_CHECKING:
    from brokerd.broker.endpoints import Live


class Told(msgspec.Struct, frozen=True):
    """One thing that happened, with the endpoint it happened to."""

    what: str
    """Subclass of the event (MON-16)."""
    endpoint: DialogEndpoint
    """As it then stood, or stood last."""
    of_group: bool = False
    """It happened to its group."""

    @property
    def is_trouble(self) -> bool:
        """Whether a dialog did not go as it should."""
        return self.what in _TROUBLE


def fields_of(told: Told) -> dict[str, object]:
    """The fields of its line (MON-16): ids as text, so that no two logs write them differently."""
    endpoint = told.endpoint
    if told.of_group:
        return {"group": show(endpoint.group_id)}
    fields: dict[str, object] = {
        "conversation_id": show(endpoint.conversation_id),
        "handle": show(endpoint.handle),
        "role": "initiator" if endpoint.is_initiator else "target",
        "group": show(endpoint.group_id),
        "state": str(endpoint.state),
        "priority": endpoint.priority,
    }
    if told.is_trouble:
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


def began(live: Live) -> list[Told]:
    """A new endpoint: begun here, or created because its first message came."""
    endpoint = live.endpoint
    if endpoint.contract == POST_EVENT_NOTIFICATION:
        return []
    told = [Told("begin_dialog", endpoint)] if endpoint.is_initiator else []
    told.append(Told("dialog_created", endpoint))
    if live.group.whole and len(live.group.members) == 1:
        told.append(Told("create", endpoint, of_group=True))
    return told


def moved(
    live: Live,
    before: DialogEndpoint,
    after: DialogEndpoint | None,
    event: dialog.Event,
    *,
    watched: bool,
) -> list[Told]:
    """An endpoint came into another state, or is gone."""
    if not watched and type(event) is dialog.EndRequested and event.code is None:
        return []  # each dialog ends, and mostly nobody listens
    if before.contract == POST_EVENT_NOTIFICATION:
        return []
    what = _what(before, after, event)
    if not watched and what not in _TROUBLE:
        return []
    told = [Told(what, before if after is None else after)] if what else []
    if not watched:
        return told
    is_gone = after is None or (after.state is State.CLOSED and live.is_local)  # DLG-33
    if is_gone and live.group.whole and len(live.group.members) == 1:
        told.append(Told("drop", before, of_group=True))
    return told


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


# Of a clean-up says who did it, and why: whoever carries it out (DLG-23).
_ALWAYS: Final[dict[type[dialog.Event], str]] = {
    dialog.AckReceived: "received_end_ack",
    dialog.LifetimeReached: "broker_error",
    dialog.FaultStruck: "broker_error",
}
