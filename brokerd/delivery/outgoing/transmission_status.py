"""Status of a dialog's transmission, for views: why it waits, and its attempts (XMT-17, XMT-18).

Reads: the transmission object of the dialog, the clock.      Calls: nothing.
Never: changes anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from brokerd.broker.outgoing import Outgoing
from brokerd.clock import SECOND, Clock, Instant
from brokerd.delivery.outgoing.classification import HERE
from brokerd.protocol.backoff import retransmit_delay
from brokerd.routing.classify import Delayed
from brokerd.routing.reasons import Reason


def transmission_status(
    out: Outgoing, is_online: Callable[[str], bool], *, paused: bool = False
) -> tuple[str, str]:
    """Return status key and detail of a dialog's transmission, never blank while it waits (NBT-2).

    A dialog that owes an acknowledgement or an error waits as well, without a row (XMT-17)."""
    route = out.route
    if not out.pending and not out.acks.is_owing:
        return "", ""
    if (out.held and out.pending) or out.damaged is not None:
        return (out.held, "") if out.held else (Reason.DAMAGED, f"message {out.damaged}")
    if paused or isinstance(route.decision, Delayed):
        return (Reason.TRANSMITTER_PAUSED, "") if paused else (route.status, route.detail)
    if route.notice is not None:
        return route.notice.key, route.notice.detail
    if route.address is not None and route.address != HERE and not is_online(route.address):
        return Reason.TRANSPORT_UNAVAILABLE, route.address
    return (Reason.AWAITING_ACK, "") if out.window.outstanding else (Reason.NOT_ATTEMPTED, "")


class Attempts(NamedTuple):
    """Number and instants of attempts; 0 and None where nothing was tried and nothing is due."""

    times: int = 0
    """Number of times that the oldest fragment was sent since the peer last acknowledged anything.
    For a dialog that waits for a route: number of matches with the routes since it began to wait
    (XMT-9)."""
    last_at: Instant | None = None
    next_at: Instant | None = None


def attempts(
    out: Outgoing, clock: Clock, *, next_pass: Instant, held_until: Instant | None
) -> Attempts:
    """Return the attempts of one dialog.

    `next_pass`: latest time at which delayed dialogs are classified again. `held_until`: time until
    which the dialog's destination is suppressed; None = it is not suppressed."""
    if out.held:  # the dialog sends nothing more (DLP-50)
        return Attempts()
    if isinstance(out.route.decision, Delayed):
        return Attempts(out.route.matches, out.route.matched_at, next_pass)
    window = out.window
    sent = window.attempts + (1 if window.outstanding else 0)
    if window.due is None:
        return Attempts(sent, None, held_until)
    limits = window.limits
    wait = retransmit_delay(window.attempts, first=limits.retry_first, most=limits.retry_max)
    due_in = window.due - clock.monotonic()
    now = clock.utc()
    last_at = Instant(now + round((due_in - wait.total_seconds()) * SECOND))
    return Attempts(sent, last_at, held_until or Instant(now + max(0, round(due_in * SECOND))))
