"""Duplicate brokers: two instances deliver for one id, such as a copy switched on (PBT-13).

Reads:  the broker lists of neighbours and of this instance.      Calls: routing.duplicates.
Never:  decides which of the two is the copy: an administrator does. Nothing is sent to the
        later one.
Wakes:  when a neighbour sends its list, when this instance's list changes, every second tick.
Fails:  a duplicate at an instance that sends no list is not found; delivery continues.
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
"""Seconds after which an absent instance no longer counts. A restarted daemon is back by then, even
if an attempt to connect failed meanwhile and its address is suppressed (TRN-16)."""
CURE: Final = (
    "find out which of the two is the copy; drop the routes that lead its peers there, "
    "then give it an identifier of its own: brokerd broker new-id NAME"
)


class Around(msgspec.Struct, frozen=True):
    """The functions by which duplicates are found and reported."""

    tell: Callable[[InstanceId, BrokersHere], bool]
    """Sends the broker list to a neighbour; False = it accepts none, or is not ONLINE."""
    neighbours: Callable[[], Iterable[InstanceId]]
    """Returns the neighbours that are ONLINE."""
    place: Callable[[InstanceId], str]
    """Returns the address of a neighbour that is ONLINE; empty = unknown."""
    heard_at: Callable[[InstanceId], float]
    """Returns when the last data arrived from a neighbour (monotonic)."""
    peer_at: Callable[[str], InstanceId | None]
    """Returns the instance at an address; None = unknown."""
    is_suppressed: Callable[[str], bool]
    """Tests whether an address has failed and is not tried now (TRN-15, TRN-16)."""
    connect: Callable[[str], None]
    """Opens a connection to an address, unless one exists."""
    name_of: Callable[[BrokerId], str]
    """Returns the name of a broker of this instance; empty = no broker here has the id."""
    changed: Callable[[frozenset[BrokerId]], None]
    """Called with the brokers for which sending was barred or allowed."""


class DuplicateBrokers:
    """Duplicate brokers as one instance knows them."""

    def __init__(
        self, *, me: InstanceId, here: str, clock: Clock, log: Log, keepalive: float, around: Around
    ) -> None:
        """Create the record of duplicates, which is empty at first.

        `here`: the name of this instance. `keepalive`: seconds after which the connection of a dead
        peer is lost (TRN-30)."""
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
        """Instances to which nothing for a broker is sent, with the detail for waiting dialogs."""

    # For routing and views.

    def why_barred(self, broker_id: BrokerId | None, address: str) -> str:
        """Return why nothing for a broker may be sent to an address; empty = it may (RTE-72).

        `broker_id` None: return the reason for any broker for which nothing may be sent to the
        address."""
        if not self._held:
            return ""
        peer = self._around.peer_at(address)
        if peer is None:
            return ""
        if broker_id is not None:
            return self._held.get(broker_id, {}).get(peer, "")
        return next((those[peer] for those in self._held.values() if peer in those), "")

    def are_held_at(self, address: str) -> frozenset[BrokerId]:
        """Return the brokers for which nothing is sent to the instance at an address."""
        peer = self._around.peer_at(address) if self._held else None
        return frozenset(one for one, those in self._held.items() if peer in those)

    def rows(self) -> list[DuplicateStatus]:
        """Return the known duplicates, for the status of the instance."""
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

    # Broker lists.

    def set_own_list(self, broker_ids: Iterable[BrokerId]) -> None:
        """Set the brokers whose delivery is on in this instance, and send the list (TRN-46)."""
        own = brokers_here(broker_ids)
        if own == self._own:
            return
        self._own = own
        for peer in list(self._around.neighbours()):
            self._around.tell(peer, own)
        self._namers.replace_names(self._me, frozenset(own.broker_ids), self._clock.monotonic())
        self._evaluate()

    def came_online(self, peer: InstanceId) -> None:
        """Send our list to a neighbour that came ONLINE; if it takes no list, forget its list."""
        if not self._around.tell(peer, self._own):
            self._namers.forget(peer)

    def record_list(self, peer: InstanceId, named: BrokersHere) -> None:
        """Record the broker list of a neighbour."""
        self._places[peer] = self._around.place(peer)
        self._namers.replace_names(peer, frozenset(named.broker_ids), self._clock.monotonic())
        self._evaluate()

    def left(self, peer: InstanceId) -> None:
        """Record that no connection leads to a neighbour any longer."""
        self._namers.left(peer, self._clock.monotonic())

    # Periodic check.

    def check_contested(self) -> int:
        """Check the contested brokers, every second tick; return the number of duplicates.

        This instance's list is sent once more to the instances that name the same broker: they
        have to prove that they are alive (TRN-30), and their connections are not closed as
        idle."""
        for peer in list(self._namers.contested()):
            if not self._namers.is_away(peer):
                self._around.tell(peer, self._own)
            elif (place := self._places[peer]) and not self._around.is_suppressed(place):
                self._around.connect(place)
            # Unreachable, so its list does not count any more (RTE-71), except for a duplicate that
            # was found: that lasts for 2 min, in which a daemon may be restarted (RTE-73).
            elif not self._namers.is_party(peer):
                self._namers.forget(peer)
        self._evaluate()
        known = self._namers.known()
        self._places = {peer: at for peer, at in self._places.items() if peer in known}
        return len(self._since)

    # Internals.

    def _evaluate(self) -> None:
        new, over = self._namers.evaluate(self._clock.monotonic(), self._around.heard_at)
        if not new and not over:
            return
        for one in over:
            del self._since[one]
            self._log.info(DUPLICATE_BROKER, subclass="over", **self._fields_of(one))
        for one in new:
            self._since[one] = self._clock.utc()
            self._log.error(DUPLICATE_BROKER, subclass="seen", **self._fields_of(one), hint=CURE)
        self._held = {}
        for one in self._since:
            both = f"{self._show(one.earlier)} and {self._show(one.later)}"
            why = f"{both} both have broker {show(one.broker_id)}, and it goes to the first only"
            self._held.setdefault(one.broker_id, {})[one.later] = why
        self._around.changed(frozenset(one.broker_id for one in (*new, *over)))

    def _fields_of(self, one: Duplicate) -> dict[str, object]:
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
        """Return name or id of an instance, and its address."""
        if instance == self._me:
            return f"{self._here} (here)"
        return f"instance {show(instance)} at {self._place(instance) or 'an unknown address'}"
