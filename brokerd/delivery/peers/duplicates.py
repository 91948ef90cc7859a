"""Duplicates: brokers that two instances deliver for, such as a copy that was switched on (PBT-13).

Reads:  what neighbours and this instance name as theirs.      Calls: routing.duplicates.
Never:  decides which of the two is the copy: an administrator does, and the later one waits.
Wakes:  when a neighbour says what it has, when that changes here, in every second tick.
Fails:  what one instance cannot be asked is not found; nothing is sent less for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from brokerd.clock import Clock, Instant
from brokerd.ids import BrokerId, InstanceId, show
from brokerd.model import MSDB
from brokerd.protocol.brokers import BrokersHere, brokers_here
from brokerd.routing.duplicates import Duplicate, Namers
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import DUPLICATE_BROKER
from brokerd.telemetry.status import DuplicateStatus

GONE_AFTER: Final = 120.0
"""Seconds: a daemon that is started again is back by then, also where an attempt to connect has
failed meanwhile and its address is left alone (TRN-16)."""
CURE: Final = (
    "find out which of the two is the copy; drop the routes that lead its peers there, "
    "then give it an identifier of its own: brokerd broker new-id NAME"
)


class Around(msgspec.Struct, frozen=True):
    """What duplicates are looked for through."""

    tell: Callable[[InstanceId, BrokersHere], bool]
    """Tells a neighbour that is ONLINE; False = it takes no such frames, or is not there."""
    neighbours: Callable[[], Iterable[InstanceId]]
    """Those that are ONLINE."""
    place: Callable[[InstanceId], str]
    """Where one of them lives."""
    heard_at: Callable[[InstanceId], float]
    """When anything came from it last."""
    peer_at: Callable[[str], InstanceId | None]
    """Who lives at an address, as far as that is known."""
    is_suppressed: Callable[[str], bool]
    """Whether an address has failed and is not tried now (TRN-15, TRN-16)."""
    connect: Callable[[str], None]
    """Opens a connection to an address, if there is none."""
    name_of: Callable[[BrokerId], str]
    """The name of a broker of this instance; empty if it is none."""
    changed: Callable[[frozenset[BrokerId]], None]
    """Told for which brokers something else may be sent, or not, than before."""


class Duplicates:
    """All that one instance knows of duplicate brokers."""

    def __init__(
        self, *, me: InstanceId, here: str, clock: Clock, log: Log, keepalive: float, around: Around
    ) -> None:
        """`here`: the name of this instance. `keepalive`: seconds in which a connection whose peer
        is gone is lost (TRN-30)."""
        self._me = me
        self._here = here
        self._clock = clock
        self._log = log
        self._around = around
        self._namers = Namers(me, patience=keepalive, gone_after=GONE_AFTER)
        self._own = brokers_here(())
        self._places: dict[InstanceId, str] = {}
        self._since: dict[Duplicate, Instant] = {}
        self._held: dict[BrokerId, dict[InstanceId, str]] = {}
        """Who is sent nothing for a broker, and what to tell whoever waits for it."""

    # What routing asks.

    def why_barred(self, broker_id: BrokerId | None, address: str) -> str:
        """Why what is for a broker is not sent there (RTE-72); empty if it may be.

        None as the broker: whether there is any for which nothing is sent there."""
        if not self._held:
            return ""
        peer = self._around.peer_at(address)
        if peer is None:
            return ""
        if broker_id is not None:
            return self._held.get(broker_id, {}).get(peer, "")
        return next((those[peer] for those in self._held.values() if peer in those), "")

    def are_held_at(self, address: str) -> frozenset[BrokerId]:
        """The brokers for which nothing is sent to who lives at an address."""
        peer = self._around.peer_at(address) if self._held else None
        return frozenset(one for one, those in self._held.items() if peer in those)

    def rows(self) -> list[DuplicateStatus]:
        """What there is of them, for the status of the instance."""
        return [
            DuplicateStatus(
                broker_id=show(one.broker_id),
                broker=self._around.name_of(one.broker_id),
                earlier=self._show(one.earlier),
                later=self._show(one.later),
                since=since,
            )
            for one, since in self._since.items()
        ]

    # What is heard.

    def have(self, broker_ids: Iterable[BrokerId]) -> None:
        """The brokers whose delivery is on in this instance, as they are now (TRN-46)."""
        own = brokers_here(broker_ids)
        if own == self._own:
            return
        self._own = own
        for peer in list(self._around.neighbours()):
            self._around.tell(peer, own)
        self._namers.said(self._me, frozenset(own.broker_ids), self._clock.monotonic())
        self._judge()

    def came_online(self, peer: InstanceId) -> None:
        """A neighbour is there: it is told, and tells; one that does not is no witness any more."""
        if not self._around.tell(peer, self._own):
            self._namers.forget(peer)

    def told(self, peer: InstanceId, named: BrokersHere) -> None:
        """A neighbour says which brokers are its own."""
        self._places[peer] = self._around.place(peer)
        self._namers.said(peer, frozenset(named.broker_ids), self._clock.monotonic())
        self._judge()

    def left(self, peer: InstanceId) -> None:
        """No connection leads to a neighbour any more."""
        self._namers.left(peer, self._clock.monotonic())

    # In between.

    def look(self) -> int:
        """Every second tick: how many duplicates there are.

        Those that name the same broker are told once more what is here, so that they have to show
        that they live (TRN-30) and no connection to them is closed for idleness."""
        for peer in list(self._namers.contested()):
            if not self._namers.is_away(peer):
                self._around.tell(peer, self._own)
            elif (place := self._places[peer]) and not self._around.is_suppressed(place):
                self._around.connect(place)
            elif not self._namers.is_party(peer):
                self._namers.forget(peer)
        self._judge()
        known = self._namers.known()
        self._places = {peer: at for peer, at in self._places.items() if peer in known}
        return len(self._since)

    # Inside.

    def _judge(self) -> None:
        new, over = self._namers.judge(self._clock.monotonic(), self._around.heard_at)
        if not new and not over:
            return
        for one in over:
            del self._since[one]
            self._log.info(DUPLICATE_BROKER, subclass="over", **self._told(one))
        for one in new:
            self._since[one] = self._clock.utc()
            self._log.error(DUPLICATE_BROKER, subclass="seen", **self._told(one), hint=CURE)
        self._held = {}
        for one in self._since:
            both = f"{self._show(one.earlier)} and {self._show(one.later)}"
            why = f"{both} both have broker {show(one.broker_id)}, and it goes to the first only"
            self._held.setdefault(one.broker_id, {})[one.later] = why
        self._around.changed(frozenset(one.broker_id for one in (*new, *over)))

    def _told(self, one: Duplicate) -> dict[str, object]:
        return {
            "broker": self._around.name_of(one.broker_id) or MSDB,
            "broker_id": show(one.broker_id),
            "earlier": show(one.earlier),
            "earlier_address": self._place(one.earlier),
            "later": show(one.later),
            "later_address": self._place(one.later),
        }

    def _place(self, instance: InstanceId) -> str:
        return "here" if instance == self._me else self._places.get(instance, "")

    def _show(self, instance: InstanceId) -> str:
        """Name or id, and where it is."""
        if instance == self._me:
            return f"{self._here} (here)"
        return f"instance {show(instance)} at {self._place(instance) or 'an unknown address'}"
