"""The lines of the metrics log about dialog endpoints, one per endpoint (design D16).

Reads: endpoints.      Calls: nothing.
Never: writes; `maintenance.journal` does, once the content is durable.
"""

from __future__ import annotations

import orjson

from brokerd.broker.state import Live
from brokerd.clock import Instant
from brokerd.ids import ConversationId, show
from brokerd.protocol import dialog
from brokerd.protocol.endpoint import DialogEndpoint


def closing_line(live: Live, last: DialogEndpoint, now: Instant) -> bytes:
    """Return the line of an endpoint that closes now, as JSON."""
    return orjson.dumps(dialog_line(live, last, now))


def short_dialog_rest(service: str, far_service: str, contract: str, now: Instant) -> bytes:
    """Return the part of a `short_dialog_line` after the id; many dialogs share this part."""
    return orjson.dumps(
        {
            "is_initiator": True,
            "service": service,
            "far_service": far_service,
            "contract": contract,
            "sent": 1,
            "acknowledged": 1,
            "received": 0,
            "discarded_unread": 0,
            "undelivered": 0,
            "outcome": "ended",
            "began_at": now,
            "ended_at": now,
        }
    )[1:]


def short_dialog_line(conversation_id: ConversationId, rest: bytes) -> bytes:
    """Return the line of an initiator that begins, sends one message and ends in one instant."""
    name = show(conversation_id).encode()
    return b'{"state":"closed","conversation_id":"%b",%b' % (name, rest)


def dialog_line(live: Live | None, last: DialogEndpoint, now: Instant | None) -> dict[str, object]:
    """Return the fields of an endpoint's line: closed at `now`, or still open if `now` is None.

    `live` is None if the endpoint is not in memory; then none of its messages wait to be sent."""
    undelivered = 0 if live is None else live.undelivered
    if live is not None and live.outgoing is not None:
        undelivered += live.outgoing.undelivered
    if last.error_code is not None:
        outcome = "expired" if last.error_code == dialog.LIFETIME_EXCEEDED else ""
        outcome = outcome or f"error:{last.error_code}"
    else:
        outcome = "ended" if now is not None else "open"
    return {
        "state": "open" if now is None else "closed",
        "conversation_id": show(last.conversation_id),
        "is_initiator": last.is_initiator,
        "service": last.service,
        "far_service": last.far_service,
        "contract": last.contract,
        "sent": last.sent,
        "acknowledged": last.sent - undelivered,
        "received": last.received,
        "discarded_unread": last.discarded,
        "undelivered": undelivered if now is not None else 0,
        "outcome": outcome,
        "began_at": last.began_at,
        "ended_at": now,
    }
