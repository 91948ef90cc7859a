"""Arrival routes: where arrivals go, decided once for each conversation and direction (RTE-26).

Reads:  the header of an item.      Calls: the router, which applies the instance table.
Never:  delivers or forwards; the dispatcher and the forwarder do, both by the same arrival route.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Final, TypeVar

import msgspec

from brokerd.clock import Clock
from brokerd.ids import BrokerId, ConversationId
from brokerd.protocol.frames import Item
from brokerd.routing.choice import Choice
from brokerd.routing.classify import ArrivalKey, Arriving, Dropped, Remote
from brokerd.routing.reasons import DropReason, Reason

ENOUGH_HOPS: Final = 255
"""Hops with which a route is decided; an item with fewer hops than its route needs is dropped."""
_ASKED_FOR: Final = (
    Reason.BCN_PENDING,
    Reason.BCN_FAILED,
    Reason.MIRROR_INITIALISING,
    Reason.MIRROR_ERROR,
)
"""Reasons for which no route is kept: each arrival has to ask for the route or principal again."""
_Key = tuple[ConversationId, bool]
_T = TypeVar("_T")


class ArrivalRouteOptions(msgspec.Struct, frozen=True):
    """Limits of the arrival routes that are kept (XMT-10)."""

    cache_age: timedelta = timedelta(minutes=5)
    cache_size: int = 10_000


class ArrivalRoute(msgspec.Struct, frozen=True, gc=False):
    """The decision for one conversation and direction."""

    to_service: str
    to_broker: bytes
    decision: Arriving
    address: str | None
    """Address at which items leave this instance; None = they do not leave."""
    hops: int
    """Number of forwarding steps that the route takes (RTE-43)."""


class ArrivalRoutes:
    """Cache of arrival routes, one per instance, cleared when a routing table changes."""

    def __init__(
        self,
        classify: Callable[[ArrivalKey, Choice | None], Arriving],
        *,
        is_here: Callable[[Item], bool],
        clock: Clock,
        options: ArrivalRouteOptions,
    ) -> None:
        self._classify = classify
        self._is_here = is_here
        self._clock = clock
        self._most = options.cache_size
        self._age = options.cache_age.total_seconds()
        self._routes: dict[_Key, ArrivalRoute] = {}
        self._choices: dict[_Key, Choice] = {}
        self._now = clock.monotonic()
        """Time of the last trim; precise enough as the time of any use since then."""
        self._used: dict[_Key, float] = {}

    def for_item(self, item: Item) -> ArrivalRoute:
        """Return the route of an item, regardless of the hops that it has left."""
        key = (item.conversation_id, item.from_initiator)
        route = self._routes.get(key)
        if (
            route is None
            or route.to_broker != item.hop.to_broker
            or route.to_service != item.to_service
        ):
            return self._decide(item)
        self._used[key] = self._now
        return route

    def arriving(self, item: Item) -> Arriving:
        """Return where an item from outside goes (DSP-4)."""
        route = self.for_item(item)
        if item.hop.hops < route.hops:
            return Dropped(DropReason.HOPS_EXHAUSTED)
        return route.decision

    def clear(self) -> None:
        """Discard all routes, because a table has changed or a route expired; keep the choices.

        A kept choice is reused while its route still matches."""
        self._routes.clear()
        self._used = {key: at for key, at in self._used.items() if key in self._choices}

    def trim(self) -> int:
        """Drop routes and choices unused for long, every second tick; return how many (XMT-10)."""
        self._now = now = self._clock.monotonic()
        since = now - self._age
        old = [key for key, at in self._used.items() if at < since]
        for key in old:
            del self._used[key]
            self._routes.pop(key, None)
            self._choices.pop(key, None)
        return len(old)

    def _decide(self, item: Item) -> ArrivalRoute:
        """Decide the route of an item, and keep its choice among several routes (RTE-29)."""
        key = (item.conversation_id, item.from_initiator)
        to_broker = item.hop.to_broker
        asked = ArrivalKey(
            item.to_service,
            BrokerId(to_broker) if to_broker else None,
            item.from_initiator,
            ENOUGH_HOPS,
        )
        decision = self._classify(asked, self._choices.get(key))
        if not isinstance(decision, Dropped) and decision.ambiguous and decision.choice is not None:
            self._remember(self._choices, key, decision.choice)
        if not isinstance(decision, Remote):
            route = ArrivalRoute(item.to_service, to_broker, decision, None, 0)
        elif self._is_here(item):
            # The tables have changed since the dialog was opened (RTE-32). This route is not kept:
            # it is right only while the endpoint is in memory.
            return ArrivalRoute(item.to_service, to_broker, decision, None, 0)
        else:
            address, hops = decision.address, decision.hops_used
            route = ArrivalRoute(item.to_service, to_broker, decision, address, hops)
        if not (isinstance(decision, Dropped) and decision.reason in _ASKED_FOR):
            self._remember(self._routes, key, route)
        return route

    def _remember(self, into: dict[_Key, _T], key: _Key, value: _T) -> None:
        """Store a value; drop the oldest value beyond the limit."""
        into.pop(key, None)
        into[key] = value
        self._used[key] = self._now
        if len(into) > self._most:
            oldest = next(iter(into))
            del into[oldest]
            if oldest not in self._routes and oldest not in self._choices:
                del self._used[oldest]
