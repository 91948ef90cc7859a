"""Rows of the views `routes` and `instance_routes` (MON-3).

Reads: the catalog of a broker, what is known of mirrored and of dynamic routes.  Calls: nothing.
Never: changes anything.
"""

from collections.abc import Callable

from brokerd.admin.views.stored import Row
from brokerd.broker.broker import Broker
from brokerd.clock import Instant
from brokerd.ids import show
from brokerd.model import Route
from brokerd.routing.mirror import Known, Pair
from brokerd.routing.table import pair_of

Mirrored = Callable[[Pair], Known]
Dynamic = Callable[[str, str], bool]
"""Returns whether a broker's route of that name was made by dynamic routing."""


def route_rows(broker: Broker, now: Instant, mirrored: Mirrored, dynamic: Dynamic) -> list[Row]:
    """Return a row for each route, also for expired ones, which can be revived (RTE-65)."""
    return [
        _row(one, now, mirrored, dynamic(broker.name, one.name))
        for one in broker.store.catalog.routes.values()
    ]


def _row(route: Route, now: Instant, mirrored: Mirrored, is_dynamic: bool) -> Row:
    pair = pair_of(route)
    known = None if pair is None else mirrored(pair)
    return {
        "name": route.name,
        "route_id": route.name,
        "principal_id": None,
        "remote_service_name": route.service_name,
        "broker_instance": None if route.broker_id is None else show(route.broker_id),
        "lifetime": route.expires_at,
        "address": route.address,
        "mirror_address": route.mirror or None,
        "is_expired": route.expires_at is not None and route.expires_at <= now,
        "is_dynamic": is_dynamic,
        "mirror_state": None if known is None else known.state.value,
        "current_principal": None if known is None else known.principal or None,
    }
