"""Attempts to transmit a dialog: their number, the last one and the next one (XMT-18).

Reads: the transmission object of the dialog, the clock.      Calls: nothing.
Never: changes anything.
"""

from __future__ import annotations

from typing import NamedTuple

from brokerd.broker.outgoing import Outgoing
from brokerd.clock import SECOND, Clock, Instant
from brokerd.protocol.backoff import retransmit_delay
from brokerd.routing.classify import Delayed


class Attempts(NamedTuple):
    """Number and instants of attempts; 0 and None where nothing was tried and nothing is due."""

    times: int = 0
    """How often the oldest fragment was sent since the peer last acknowledged anything. For a
    dialog that waits for a route: how often the routes were matched since then (XMT-9)."""
    last_at: Instant | None = None
    next_at: Instant | None = None


def attempts(
    out: Outgoing, clock: Clock, *, next_pass: Instant, held_until: Instant | None
) -> Attempts:
    """Return the attempts of one dialog.

    `next_pass`: when delayed dialogs are classified again at the latest. `held_until`: until when
    the dialog's destination is suppressed; None = it is not suppressed.
    """
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
