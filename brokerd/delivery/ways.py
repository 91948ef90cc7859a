"""Ways: where what arrives goes, decided once for a conversation and direction (RTE-26).

Reads:  the header of an item.      Calls: whoever applies the instance table.
Never:  knows what an item is for; the dispatcher and the forwarder ask here, and hear the same.
"""

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from brokerd.ids import BrokerId, ConversationId
from brokerd.protocol.frames import Item
from brokerd.routing.classify import ArrivalKey, Arriving, Dropped, Remote
from brokerd.routing.reasons import DropReason, Reason
from brokerd.routing.table import Choice

MOST_WAYS: Final = 10_000
"""Conversations whose way is remembered (XMT-10)."""
ENOUGH_HOPS: Final = 255
"""Hops with which a way is looked for: an item that has fewer than the way needs is dropped."""
_ASKED_FOR: Final = (Reason.BCN_PENDING, Reason.BCN_FAILED)
"""While a route is asked for, who needs it has to say so again and again (BCN-9)."""
_Key = tuple[ConversationId, bool]
_T = TypeVar("_T")


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
        most: int = MOST_WAYS,
    ) -> None:
        self._classify = classify
        self._is_here = is_here
        self._most = most
        self._ways: dict[_Key, Way] = {}
        self._choices: dict[_Key, Choice] = {}

    def of(self, item: Item) -> Way:
        """The way of an item, whatever hops it has left."""
        way = self._ways.get((item.conversation_id, item.from_initiator))
        if way is None or way.to_broker != item.hop.to_broker or way.to_service != item.to_service:
            return self._decide(item)
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
            _remember(self._choices, key, decision.choice, self._most)
        if not isinstance(decision, Remote):
            way = Way(item.to_service, to_broker, decision, None, 0)
        elif self._is_here(item):  # the tables have changed since it was opened (RTE-32)
            return Way(item.to_service, to_broker, decision, None, 0)
        else:
            address, hops = decision.address, decision.hops_used
            way = Way(item.to_service, to_broker, decision, address, hops)
        if not (isinstance(decision, Dropped) and decision.reason in _ASKED_FOR):
            _remember(self._ways, key, way, self._most)
        return way


def _remember(into: dict[_Key, _T], key: _Key, value: _T, most: int) -> None:
    """The oldest leave when there are too many."""
    into.pop(key, None)
    into[key] = value
    if len(into) > most:
        del into[next(iter(into))]
