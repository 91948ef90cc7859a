"""Rows of the view of event notifications (VIEW-11). PURE.

Reads:  a subscription and its dialog's endpoint, as arguments.      Never: changes anything.
"""

from brokerd.clock import SECOND, Instant
from brokerd.events.subscription import Subscription
from brokerd.ids import BrokerId, show
from brokerd.protocol.endpoint import DialogEndpoint


def view_row(
    one: Subscription,
    endpoint: DialogEndpoint | None,
    *,
    waiting: int,
    home: BrokerId,
    now: float,
    utc: Instant,
) -> dict[str, object]:
    """Return one notification as a row; `now` (monotonic) and `utc` are the same moment.

    `waiting`: number of events that came and are not kept or sent yet."""
    told = one.definition
    backing_off = not one.is_due(now)
    # A dialog with an acknowledged message works: earlier failures do not count.
    failures = 0 if endpoint is not None and endpoint.first_acked else one.failures
    return {
        "name": told.name,
        "scope": str(told.scope),
        "queue": told.queue,
        "events": sorted(told.events),
        "service_name": told.service,
        "broker_instance": show(told.broker_id or home),
        "fan_in": told.fan_in,
        "conversation_handle": show(one.handle) if one.handle is not None else None,
        "dialog_state": str(endpoint.state) if endpoint is not None else None,
        "status": "backing_off" if backing_off else "open",
        "last_sent_at": one.last_sent_at,
        "failures": failures,
        "last_error": one.last_error,
        "next_attempt_at": Instant(utc + round((one.retry_at - now) * SECOND))
        if backing_off
        else None,
        "undelivered": len(one.owed) + waiting,
        "lost": one.lost,
    }
