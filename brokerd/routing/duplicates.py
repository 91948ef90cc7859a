"""Duplicate brokers: instances that name the same broker, and since when (RTE-70 on). PURE.

Reads:  the brokers that instances name, points in time.      Calls: nothing.
Never:  asks, waits or reads a clock; `delivery.peers.duplicate_brokers` does.

A name outlives the connection over which it was received: an instance that has left is remembered,
but proves nothing until it is ONLINE and names the broker again. So a failover, or the move of a
broker, is not mistaken for a copy: after either, the former instance does not name the broker
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from brokerd.ids import BrokerId, InstanceId

MOST_AWAY: Final = 200
"""Largest number of instances that are remembered while not ONLINE; the oldest are dropped. Each
may have named as many brokers as fit into a frame."""

Barred = Callable[["BrokerId | None", str], str]
"""Function that returns why messages for a broker may not be sent to an address; empty if they may.
With None as the broker, the reason for any broker barred at that address."""


def nobody_barred(_broker_id: BrokerId | None, _address: str) -> str:
    """Return "" (sending is allowed); for use where duplicates are not detected."""
    return ""


class Duplicate(msgspec.Struct, frozen=True):
    """Two instances that both name one broker as theirs."""

    broker_id: BrokerId
    earlier: InstanceId
    """Instance to which messages for the broker are still sent."""
    later: InstanceId
    """Instance to which nothing is sent for the broker (RTE-72)."""


class Namers:
    """The brokers that other instances name to this one."""

    def __init__(self, me: InstanceId, *, patience: float, gone_after: float) -> None:
        """Create the collection of names.

        `patience`: seconds for which two instances have to name a broker before it counts as a
        duplicate (RTE-71). `gone_after`: seconds without being ONLINE after which the duplicates
        of an instance are over (RTE-73)."""
        self._me = me
        self._patience = patience
        self._gone_after = gone_after
        self._since: dict[BrokerId, dict[InstanceId, float | None]] = {}
        """By broker, the instances that name it, in order of first naming, each with the start of
        its unbroken time of naming; None while the instance is not ONLINE."""
        self._contested: dict[BrokerId, None] = {}
        """Brokers that more than one instance names."""
        self._names: dict[InstanceId, frozenset[BrokerId]] = {}
        self._away: dict[InstanceId, float] = {}
        """Instances that named brokers and are not ONLINE, since when; the longest first."""
        self.found: dict[Duplicate, None] = {}
        """Present duplicates."""

    # Input.

    def replace_names(self, instance: InstanceId, names: frozenset[BrokerId], now: float) -> None:
        """Replace the brokers that an ONLINE instance names as its own."""
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
        """Note that an instance is no longer ONLINE."""
        for broker_id in self._names.get(instance, ()):
            self._since[broker_id][instance] = None
            self._away.setdefault(instance, now)
        if len(self._away) > MOST_AWAY:
            self.forget(next(iter(self._away)))

    def forget(self, instance: InstanceId) -> None:
        """Drop the names from an instance that is gone, or no longer names brokers."""
        self.replace_names(instance, frozenset(), 0.0)

    # Conclusions.

    def contested(self) -> Iterator[InstanceId]:
        """Return the instances, other than this one, that name a contested broker."""
        rivals = {one: None for broker_id in self._contested for one in self._since[broker_id]}
        return (one for one in rivals if one != self._me)

    def is_party(self, instance: InstanceId) -> bool:
        """Return whether an instance is one of the two instances of a present duplicate."""
        return any(instance in (one.earlier, one.later) for one in self.found)

    def known(self) -> frozenset[InstanceId]:
        """Return all instances that name a broker, or named one when they left."""
        return frozenset(self._names)

    def is_away(self, instance: InstanceId) -> bool:
        """Return whether an instance is remembered but not ONLINE."""
        return instance in self._away

    def evaluate(
        self, now: float, heard: Callable[[InstanceId], float]
    ) -> tuple[list[Duplicate], list[Duplicate]]:
        """Update the duplicates; return the new ones and those that are over.

        `heard`: returns the time of the last arrival from an instance; a silent instance proves
        nothing."""
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
        """Yield, for each contested broker, its first naming instance paired with each later one.

        This instance counts as the first wherever it names the broker (RTE-72)."""
        for broker_id in self._contested:
            first, *others = sorted(self._since[broker_id], key=lambda one: one != self._me)
            yield from (Duplicate(broker_id, first, other) for other in others)

    def _is_proved(self, pair: Duplicate, now: float, heard: Callable[[InstanceId], float]) -> bool:
        namers = self._since[pair.broker_id]
        earlier, later = namers[pair.earlier], namers[pair.later]
        if earlier is None or later is None:
            return False
        both = max(earlier, later)
        # Each must have been heard of since both named the broker: one that crashed without a
        # goodbye stays ONLINE until keepalive finds out, and is no proof (RTE-71).
        parties = [one for one in (pair.earlier, pair.later) if one != self._me]
        return now - both > self._patience and all(heard(one) > both for one in parties)

    def _drop(self, broker_id: BrokerId, instance: InstanceId) -> None:
        namers = self._since[broker_id]
        del namers[instance]
        if len(namers) == 1:
            self._contested.pop(broker_id, None)
        if not namers:
            del self._since[broker_id]
