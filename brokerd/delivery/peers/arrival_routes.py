"""Ways: where what arrives goes, decided once for a conversation and direction (RTE-26).

Reads:  the header of an item.      Calls: whoever applies the instance table.
Never:  knows what an item is for; the dispatcher and the forwarder ask here, and hear the same.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Final, TypeVar

import msgspec

from brokerd.clock import Clock
from brokerd.ids import BrokerId, ConversationId
from brokerd.protocol.frames import Item
from brokerd.routing.classify import ArrivalKey, Arriving, Dropped, Remote
from brokerd.routing.reasons import DropReason, Reason
from brokerd.routing.table import Choice

ENOUGH_HOPS: Final = 255
"""Hops with which a way is looked for: an item that has fewer than the way needs is dropped."""
_ASKED_FOR: Final = (
    Reason.BCN_PENDING,
    Reason.BCN_FAILED,
    Reason.MIRROR_INITIALISING,
    Reason.MIRROR_ERROR,
)
"""While a route, or its principal, is asked for, who needs it has to say so again and again."""
_Key = tuple[ConversationId, bool]
_T = TypeVar("_T")


class WayOptions(msgspec.Struct, frozen=True):
    """What is remembered of ways (XMT-10)."""

    cache_age: timedelta = timedelta(minutes=5)
    cache_size: int = 10_000


class Way(msgspec.Struct, frozen=True, gc=False):
    """What was decided for one conversation and direction."""

    to_service: str
    to_broker: bytes
    decision: Arriving
    address: str | None
    """Where it leaves this instance; None if it does not."""
    hops: int
    """Forwarding steps it takes (RTE-43)."""


class Ways:
    """One per instance; forgets everything when a routing table changes."""

    def __init__(
        self,
        classify: Callable[[ArrivalKey, Choice | None], Arriving],
        *,
        is_here: Callable[[Item], bool],
        clock: Clock,
        options: WayOptions,
    ) -> None:
        self._classify = classify
        self._is_here = is_here
        self._clock = clock
        self._most = options.cache_size
        self._age = options.cache_age.total_seconds()
        self._ways: dict[_Key, Way] = {}
        self._choices: dict[_Key, Choice] = {}
        self._now = clock.monotonic()
        """When it was looked through last; near enough for what was asked for since."""
        self._used: dict[_Key, float] = {}

    def of(self, item: Item) -> Way:
        """The way of an item, whatever hops it has left."""
        key = (item.conversation_id, item.from_initiator)
        way = self._ways.get(key)
        if way is None or way.to_broker != item.hop.to_broker or way.to_service != item.to_service:
            return self._decide(item)
        self._used[key] = self._now
        return way

    def arriving(self, item: Item) -> Arriving:
        """Where an item from outside goes (DSP-4)."""
        way = self.of(item)
        if item.hop.hops < way.hops:
            return Dropped(DropReason.HOPS_EXHAUSTED)
        return way.decision

    def forget(self) -> None:
        """A table has changed, or a route of it has expired; choices that still stand are kept."""
        self._ways.clear()
        self._used = {key: at for key, at in self._used.items() if key in self._choices}

    def trim(self) -> int:
        """Every second tick: what nobody has asked for in that time goes (XMT-10). How many."""
        self._now = now = self._clock.monotonic()
        since = now - self._age
        old = [key for key, at in self._used.items() if at < since]
        for key in old:
            del self._used[key]
            self._ways.pop(key, None)
            self._choices.pop(key, None)
        return len(old)

    def _decide(self, item: Item) -> Way:
        """A choice among several holds for the conversation, before and after it is bound."""
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
            way = Way(item.to_service, to_broker, decision, None, 0)
        elif self._is_here(item):  # the tables have changed since it was opened (RTE-32)
            return Way(item.to_service, to_broker, decision, None, 0)
        else:
            address, hops = decision.address, decision.hops_used
            way = Way(item.to_service, to_broker, decision, address, hops)
        if not (isinstance(decision, Dropped) and decision.reason in _ASKED_FOR):
            self._remember(self._ways, key, way)
        return way

    def _remember(self, into: dict[_Key, _T], key: _Key, value: _T) -> None:
        """The oldest leave when there are too many."""
        into.pop(key, None)
        into[key] = value
        self._used[key] = self._now
        if len(into) > self._most:
            oldest = next(iter(into))
            del into[oldest]
            if oldest not in self._ways and oldest not in self._choices:
                del self._used[oldest]
