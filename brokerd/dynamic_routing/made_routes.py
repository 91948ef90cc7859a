"""Made routes: the routes created in answer to requests, and which of them have failed. PURE.

Reads:  routes and failure counts, as arguments.      Calls: nothing.
Never:  reports a failed route (`requester.py` does), or outlives the process: a route is
        dynamic only while the daemon that saw its creation keeps running. A dynamic route is
        requested again when it expires (BCN-11).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from brokerd.clock import Instant
from brokerd.dynamic_routing.requests import MOST_KNOWN
from brokerd.ids import BrokerId
from brokerd.model import Route


class Made(NamedTuple):
    """A route that was created in answer to a request."""

    broker: str
    name: str
    service: str
    broker_id: BrokerId | None
    address: str


class _Known(msgspec.Struct):
    made: Made
    reported: int = 0
    """Number of failures in a row in the last report to the service."""


class MadeRoutes:
    """The dynamic routes of one instance."""

    def __init__(self, *, failures: int, most_known: int = MOST_KNOWN) -> None:
        self._failures = failures
        self._most_known = most_known
        self._known: dict[tuple[str, str], _Known] = {}

    def has(self, broker: str, route: str) -> bool:
        """Return whether a route is dynamic: created in answer to a request (MON-3)."""
        return (broker, route) in self._known

    def answered(self, broker: str, before: frozenset[Route], routes: Iterable[Route]) -> None:
        """Record the routes that an answer added or altered, those not in `before`."""
        for route in routes:
            if route in before or len(self._known) >= self._most_known:
                continue
            made = _made(broker, route)
            self._known[broker, route.name] = _Known(made)

    def failed(
        self,
        routes: Mapping[str, Mapping[str, Route]],
        failures: Callable[[str], int],
        now: Instant,
    ) -> list[Made]:
        """Return the routes whose failure is to be reported (BCN-5); discard dropped routes.

        `routes`: routes by name of the broker, then by name of the route. `failures`: returns the
        number of failed attempts in a row at an address. A reported route is due again after as
        many further failures as the first report requires."""
        due: list[Made] = []
        for (broker, name), known in list(self._known.items()):
            route = routes.get(broker, {}).get(name)
            if route is None or _made(broker, route) != known.made or _is_over(route, now):
                del self._known[broker, name]
                continue
            # A route with a mirror has failed only when both of its addresses have failed.
            count = min(map(failures, filter(None, (route.address, route.mirror))))
            if count < known.reported:
                known.reported = 0
            if count >= known.reported + self._failures:
                due.append(known.made)
        return due

    def reported(self, made: Made, failures: int) -> None:
        """Record the number of failures in a report to the service."""
        known = self._known.get((made.broker, made.name))
        if known is not None:
            known.reported = failures


def _made(broker: str, route: Route) -> Made:
    return Made(broker, route.name, route.service_name or "", route.broker_id, route.address)


def _is_over(route: Route, now: Instant) -> bool:
    return route.expires_at is not None and route.expires_at <= now
