"""Duplicate brokers: which instances name one broker as theirs, and since when (RTE-70 on). PURE.

Reads:  what instances say of themselves, moments.      Calls: nothing.
Never:  asks, waits or looks at a clock; `delivery.peers.duplicates` does.

A naming outlives the connection over which it was heard: an instance that has left is remembered,
but it proves nothing until it is ONLINE and says so again. So neither a failover nor a broker that
has moved is taken for a copy: of the two instances one is never heard again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from brokerd.ids import BrokerId, InstanceId

MOST_AWAY: Final = 200
"""Instances that are remembered while they are not ONLINE; the oldest go. Each may have named as
many brokers as a frame holds."""

Barred = Callable[["BrokerId | None", str], str]
"""Why what is for a broker may not be sent to an address; empty if it may. None as the broker:
whether there is any broker for which it may not."""


def nobody_barred(_broker_id: BrokerId | None, _address: str) -> str:
    """Where nobody looks for duplicates: all may be sent everywhere."""
    return ""


class Duplicate(msgspec.Struct, frozen=True):
    """Two instances that both say that a broker is theirs."""

    broker_id: BrokerId
    earlier: InstanceId
    """Who keeps what is sent to the broker."""
    later: InstanceId
    """Who is sent nothing for it (RTE-72)."""


class Namers:
    """Who names what, as one instance has heard it."""

    def __init__(self, me: InstanceId, *, patience: float, gone_after: float) -> None:
        """`patience`: seconds for which two have to say so (RTE-71). `gone_after`: seconds after
        which an instance that is not ONLINE counts no more as one of two (RTE-73)."""
        self._me = me
        self._patience = patience
        self._gone_after = gone_after
        self._since: dict[BrokerId, dict[InstanceId, float | None]] = {}
        """Who names it, the first one first; since when without a break, None while not ONLINE."""
        self._contested: dict[BrokerId, None] = {}
        """Those that more than one instance names."""
        self._names: dict[InstanceId, frozenset[BrokerId]] = {}
        self._away: dict[InstanceId, float] = {}
        """Since when an instance is not ONLINE that named something; the longest first."""
        self.found: dict[Duplicate, None] = {}
        """The duplicates there are now."""

    # What is heard.

    def said(self, instance: InstanceId, names: frozenset[BrokerId], now: float) -> None:
        """An instance that is ONLINE says which brokers are its own: these, and no others."""
        self._away.pop(instance, None)
        for broker_id in self._names.get(instance, frozenset()) - names:
            self._drop(broker_id, instance)
        for broker_id in sorted(names):
            namers = self._since.setdefault(broker_id, {})
            if namers.get(instance) is None:
                namers[instance] = now
            if len(namers) > 1:
                self._contested[broker_id] = None
        self._names[instance] = names
        if not names:
            del self._names[instance]

    def left(self, instance: InstanceId, now: float) -> None:
        """It is not ONLINE any more."""
        for broker_id in self._names.get(instance, ()):
            self._since[broker_id][instance] = None
            self._away.setdefault(instance, now)
        if len(self._away) > MOST_AWAY:
            self.forget(next(iter(self._away)))

    def forget(self, instance: InstanceId) -> None:
        """It cannot be reached, or does not say such things: what it named counts no more."""
        self.said(instance, frozenset(), 0.0)

    # What follows.

    def contested(self) -> Iterator[InstanceId]:
        """Other instances that name what another one names as well."""
        rivals = {one: None for broker_id in self._contested for one in self._since[broker_id]}
        return (one for one in rivals if one != self._me)

    def is_party(self, instance: InstanceId) -> bool:
        """Whether it is one of two in a duplicate that was found."""
        return any(instance in (one.earlier, one.later) for one in self.found)

    def known(self) -> frozenset[InstanceId]:
        """All that name something, or did when they left."""
        return frozenset(self._names)

    def is_away(self, instance: InstanceId) -> bool:
        """Whether it is remembered only."""
        return instance in self._away

    def judge(
        self, now: float, heard: Callable[[InstanceId], float]
    ) -> tuple[list[Duplicate], list[Duplicate]]:
        """The duplicates that are new, and those that are over.

        `heard`: when anything was heard of an instance last; one that is silent proves nothing."""
        for instance, since in list(self._away.items()):
            if now - since >= self._gone_after and self.is_party(instance):
                self.forget(instance)
        pairs = dict.fromkeys(self._pairs())
        over = [one for one in self.found if one not in pairs]
        new = [one for one in pairs if one not in self.found and self._is_proved(one, now, heard)]
        for one in over:
            del self.found[one]
        self.found.update(dict.fromkeys(new))
        return new, over

    def _pairs(self) -> Iterator[Duplicate]:
        """Whoever named a broker first, this instance before all, with each of the others."""
        for broker_id in self._contested:
            first, *others = sorted(self._since[broker_id], key=lambda one: one != self._me)
            yield from (Duplicate(broker_id, first, other) for other in others)

    def _is_proved(self, pair: Duplicate, now: float, heard: Callable[[InstanceId], float]) -> bool:
        namers = self._since[pair.broker_id]
        earlier, later = namers[pair.earlier], namers[pair.later]
        if earlier is None or later is None:
            return False
        both = max(earlier, later)
        parties = [one for one in (pair.earlier, pair.later) if one != self._me]
        return now - both > self._patience and all(heard(one) > both for one in parties)

    def _drop(self, broker_id: BrokerId, instance: InstanceId) -> None:
        namers = self._since[broker_id]
        del namers[instance]
        if len(namers) == 1:
            self._contested.pop(broker_id, None)
        if not namers:
            del self._since[broker_id]
