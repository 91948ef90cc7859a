"""Status of a dialog's transmission: why its messages wait, as a key of XMT-19.

Reads: the transmission object of the dialog.      Calls: nothing.
Never: changes anything.
"""

from __future__ import annotations

from collections.abc import Callable

from brokerd.broker.outgoing import Outgoing
from brokerd.delivery.outgoing.classification import HERE
from brokerd.routing.classify import Delayed
from brokerd.routing.reasons import Reason


def transmission_status(
    out: Outgoing, is_online: Callable[[str], bool], *, paused: bool = False
) -> tuple[str, str]:
    """Return status key and detail of a dialog's transmission, never blank while it waits (NBT-2).

    A dialog that owes an acknowledgement or an error waits as well, without a row (XMT-17)."""
    if not out.pending and out.ack_at is None and not out.errors:
        return "", ""
    if (out.held and out.pending) or out.damaged is not None:
        return (out.held, "") if out.held else (Reason.DAMAGED, f"message {out.damaged}")
    if paused or isinstance(out.decision, Delayed):
        return (Reason.TRANSMITTER_PAUSED, "") if paused else (out.status, out.detail)
    if out.notice is not None:
        return out.notice.key, out.notice.detail
    if out.address is not None and out.address != HERE and not is_online(out.address):
        return Reason.TRANSPORT_UNAVAILABLE, out.address
    return (Reason.AWAITING_ACK, "") if out.window.outstanding else (Reason.NOT_ATTEMPTED, "")
